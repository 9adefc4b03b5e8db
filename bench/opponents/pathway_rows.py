"""Pathway doing what our jobs do, in one process with two threads, at least once. Runs in an environment of its own.

One argument: JSON with ``bootstrap``, ``topics`` (two), ``records`` to be read, ``work`` (``filter`` or ``windows``, by ``key``)
and ``folder``. Says ``ready`` and ``done``. It can have no column ``id``: its rows have a ``number`` in place of that.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta

os.environ["PATHWAY_THREADS"] = "2"
import pathway as pw

given = json.loads(sys.argv[1])
SETTINGS = {"bootstrap.servers": given["bootstrap"], "group.id": f"{given['topics'][1]}-pathway"}
PARTITIONS = 4
"""Of the source. The last of so many ids is the last record of one each."""
last = set(range(given["records"] - PARTITIONS, given["records"]))


class Record(pw.Schema):
    number: int
    key: str
    value: float
    at: str


def counted(rows: pw.Table) -> pw.Table:
    """Rows by key and minute. A count is written again whenever it changes."""
    minute = pw.temporal.tumbling(duration=timedelta(minutes=1))
    moment = pw.this.at.dt.strptime("%Y-%m-%dT%H:%M:%S%.fZ")
    timed = rows.select(pw.this.key, moment=moment)
    windows = timed.windowby(pw.this.moment, window=minute, instance=pw.this.key).reduce(
        key=pw.this._pw_instance,  # noqa: SLF001 - its name in Pathway's documentation
        start=pw.this._pw_window_start,  # noqa: SLF001
        hits=pw.reducers.count(),
    )
    start = pw.cast(int, pw.this.start.dt.timestamp(unit="ms"))
    return windows.select(key=pw.this.key, window_start=start, hits=pw.this.hits)


def end_when_all_are_read(row: dict, **_more: object) -> None:
    """It would read on for ever."""
    last.discard(row["number"])
    if not last:
        threading.Thread(target=end).start()


def end() -> None:
    time.sleep(5)  # what the last rows gave is written
    print("done", flush=True)
    os._exit(0)


source, target = given["topics"]
rows = pw.io.kafka.read(
    SETTINGS | {"auto.offset.reset": "earliest"},
    topic=source,
    schema=Record,
    format="json",
    json_field_paths={"number": "/id"},
    autocommit_duration_ms=100,
    name="read",
)
if given["work"] == "filter":
    made = rows.filter(pw.this.number % 10 != 0).select(*pw.this, doubled=pw.this.value * 2)
else:
    made = counted(rows)
pw.io.kafka.write(made, SETTINGS | {"linger.ms": "50", "compression.type": "lz4"}, topic_name=target, format="json")
pw.io.subscribe(rows.filter(pw.this.number >= min(last)), on_change=end_when_all_are_read)
print("ready", flush=True)
pw.run(
    monitoring_level=pw.MonitoringLevel.NONE,
    persistence_config=pw.persistence.Config(
        pw.persistence.Backend.filesystem(f"{given['folder']}/kept"), snapshot_interval_ms=1000
    ),
)
