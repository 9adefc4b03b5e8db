"""The ``sardonyx`` command. Heavy things (Spark, Kafka, ZooKeeper, pyarrow) are imported by the commands that need them."""

from __future__ import annotations

import gc


def main() -> None:
    """Entry point of the command."""
    seldom_collect()
    from sardonyx.cli.app import app

    app(prog_name="sardonyx")


def seldom_collect() -> None:
    """Look for garbage less often than Python does by itself. Imports make many objects and hardly any garbage: at that pace it
    costs a tenth of a short command.
    """
    gc.set_threshold(50_000, 20, 100)
