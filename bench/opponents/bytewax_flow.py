"""Bytewax doing what our jobs do, in two processes of a worker each, at least once. Runs in an environment of its own.

One argument: JSON with ``bootstrap``, ``topics`` (two), ``work`` (``filter`` or ``windows``), ``by`` (of windows: the column of
the key) and ``folder``. Says ``ready`` and ``done``. A second argument, which it gives to the other process, holds the addresses
of both.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource, KafkaSourceMessage
from bytewax.dataflow import Dataflow
from bytewax.operators.windowing import EventClock, TumblingWindower, count_window
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

given = json.loads(sys.argv[1])
PROCESSES = 2
MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOLDER = Path(given["folder"], "recovery")


def doubled(messages: list[KafkaSourceMessage]) -> list[KafkaSinkMessage]:
    """Nine of ten rows, and a column more."""
    rows = [orjson.loads(message.value) for message in messages]
    made = [orjson.dumps({**row, "doubled": row["value"] * 2}) for row in rows if row["id"] % 10]
    return [KafkaSinkMessage(None, value) for value in made]


def happened(message: KafkaSourceMessage) -> tuple[str, datetime]:
    """The key, and when."""
    row = orjson.loads(message.value)
    return str(row[given["by"]]), datetime.fromisoformat(row["at"]).astimezone(UTC)


def result(counted: tuple[str, tuple[int, int]]) -> KafkaSinkMessage:
    """A row of the output."""
    key, (window, hits) = counted
    start = window * round(MINUTE.total_seconds() * 1000)
    return KafkaSinkMessage(None, orjson.dumps({given["by"]: key, "window_start": start, "hits": hits}))


def flow_of(source: str, target: str) -> Dataflow:
    """From topic to topic; it ends where the source ends at its start."""
    flow = Dataflow("bench")
    read = op.input("read", flow, KafkaSource([given["bootstrap"]], [source], tail=False, batch_size=10_000))
    if given["work"] == "filter":
        made = op.flat_map_batch("work", read, doubled)
    else:
        # Rows of one key come from several partitions, in any order: a window takes them for a day, so it closes at the end.
        clock = EventClock(lambda row: row[1], timedelta(days=1))
        windower = TumblingWindower(length=MINUTE, align_to=EPOCH)
        rows = op.map("parse", read, happened)
        made = op.map("result", count_window("count", rows, clock, windower, lambda row: row[0]).down, result)
    more = {"linger.ms": "50", "compression.type": "lz4", "queue.buffering.max.messages": "1000000"}
    op.output("write", made, KafkaSink([given["bootstrap"]], target, more))
    return flow


def run(number: int, addresses: list[str]) -> None:
    """One of the processes, to the end."""
    flow, recovery = flow_of(*given["topics"]), RecoveryConfig(str(FOLDER))
    second = timedelta(seconds=1)
    cli_main(flow, process_id=number, addresses=addresses, epoch_interval=second, recovery_config=recovery)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def end_with_the_first() -> None:
    sys.stdin.read()
    os._exit(1)


if len(sys.argv) > 2:
    threading.Thread(target=end_with_the_first, daemon=True).start()
    run(1, json.loads(sys.argv[2]))
    sys.exit()
FOLDER.mkdir()
init_db_dir(FOLDER, PROCESSES)
both = [f"127.0.0.1:{free_port()}" for _ in range(PROCESSES)]
other = subprocess.Popen([sys.executable, __file__, sys.argv[1], json.dumps(both)], stdin=subprocess.PIPE)
print("ready", flush=True)
run(0, both)
assert other.wait() == 0
print("done", flush=True)
