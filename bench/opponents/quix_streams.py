"""Quix Streams doing what our jobs do, exactly once. Runs in an environment of its own.

One argument: JSON with ``bootstrap``, ``topics`` (two), ``records`` to be read and ``folder``. Says ``ready`` and ``done``.
"""

import json
import sys

from quixstreams import Application

given = json.loads(sys.argv[1])
left = given["records"]


def processed(_topic: str, _partition: int, _offset: int) -> None:
    """Ends when all has been read."""
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
    auto_create_topics=False,
    use_changelog_topics=False,
    loglevel="ERROR",
    on_message_processed=processed,
    producer_extra_config={"linger.ms": 50, "retry.backoff.ms": 10, "compression.type": "lz4"},
)
source, target = (app.topic(name, value_deserializer="json", value_serializer="json") for name in given["topics"])
rows = app.dataframe(source)
rows = rows.filter(lambda row: row["id"] % 10 != 0)
rows = rows.apply(lambda row: {**row, "doubled": row["value"] * 2})
rows.to_topic(target)
print("ready", flush=True)
app.run()
print("done", flush=True)
