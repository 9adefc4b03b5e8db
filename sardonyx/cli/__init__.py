"""The ``sardonyx`` command. Heavy things (Spark, Kafka, ZooKeeper, pyarrow) are imported by the commands that need them."""

from __future__ import annotations

import gc


def main() -> None:
    """Entry point of the command."""
    # Imports make many objects and hardly any garbage: looking for it at Python's own pace costs a tenth of a short command.
    gc.set_threshold(50_000, 20, 100)

    from sardonyx.cli.app import app

    app(prog_name="sardonyx")
