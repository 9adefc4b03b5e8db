"""The ``sardonyx`` command. Heavy things (Spark, Kafka, ZooKeeper, pyarrow) are imported by the commands that need them."""

from __future__ import annotations


def main() -> None:
    """Entry point of the command."""
    from sardonyx.cli.app import app

    app(prog_name="sardonyx")
