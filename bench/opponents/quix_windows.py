"""Quix Streams counting by key and minute, exactly once, its state in RocksDB. Runs in an environment of its own.

One argument: JSON with ``bootstrap``, ``topics`` (two), ``records`` to be read, ``by`` (the column of the key) and ``folder``.
Says ``ready`` and ``done``.
"""

import json
import sys
from datetime import datetime, timedelta

from quixstreams import Application

given = json.loads(sys.argv[1])
left = given["records"]


def happened(row: dict, _headers: object, _timestamp: float, _kind: object) -> int:
    """When, in milliseconds since 1970."""
    return round(datetime.fromisoformat(row["at"]).timestamp() * 1000)


def result(window: dict, key: str, _timestamp: int, _headers: object) -> dict:
    """A row of the output."""
    return {given["by"]: key, "window_start": window["start"], "hits": window["value"]}


def counted(_window: dict) -> None:
    """Ends when all has been counted."""
    global left  # noqa: PLW0603 - a script
    left -= 1
    if left == 0:
        app.stop()


app = Application(
    broker_address=given["bootstrap"],
    consumer_group=f"{given['topics'][1]}-quix",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_every=50_000,
    state_dir=given["folder"],
    loglevel="ERROR",
    producer_extra_config={"linger.ms": 50, "retry.backoff.ms": 10, "compression.type": "lz4"},
)
source = app.topic(given["topics"][0], value_deserializer="json", timestamp_extractor=happened)
target = app.topic(given["topics"][1], value_serializer="json")
rows = app.dataframe(source)
rows = rows.group_by(lambda row: str(row[given["by"]]), name=given["by"], key_serializer="str", key_deserializer="str")
# Rows of one key come from several partitions, in any order: a window takes them for a year, so it gives what it has so far.
rows = rows.tumbling_window(timedelta(minutes=1), grace_ms=timedelta(days=365)).count().current()
rows = rows.apply(result, metadata=True).update(counted)
rows.to_topic(target, key=lambda _: None)
print("ready", flush=True)
app.run()
print("done", flush=True)
