"""What time and windows cost, side by side: `PYTHONPATH=. python bench/bench_windows.py [--records 2000000] [--rounds 3]`.

From a JSON topic to a JSON topic: a function (``topic``), the same with `time=` on the input (``timed``), a count and a maximum
per key and minute (``window``, 1,000 keys), and the same with a key of its own for each record (``wide``). The rounds alternate.
The results of windows are compared with what plain Arrow makes of the records.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from machine import machine
from topic_to_topic import PARTITIONS, SCHEMA, arrow, cpu_seconds, create_topic, fill, services

from sardonyx import Count, Job, Max, event_time, kafka, tumbling
from sardonyx.connectors.generator import Generator
from sardonyx.runtime.settings import Settings

KINDS = ("topic", "timed", "window", "wide")


def make_job(kind: str, source: str, target: str) -> Job:
    job = Job(f"bench-{kind}", partitions=PARTITIONS)
    timed = None if kind == "topic" else event_time("at", delay="1 s")
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end="latest"), time=timed)
    if kind in ("topic", "timed"):
        made = job.task("work", arrow, after=read)
    else:
        made = job.window(
            "work",
            tumbling("1 min"),
            after=read,
            group_by="key" if kind == "window" else "id",
            aggregate={"hits": Count(), "most": Max("value")},
        )
    job.output("write", kafka(target, partitions=PARTITIONS), after=made)
    return job


def expected(records: int) -> dict[tuple[str, int], tuple[int, float]]:
    """By key and minute: how many records, and the greatest value."""
    made = Generator({"count": records})
    rows = pa.concat_tables([made.read(split.data) for split in made.splits()])
    minute = pa.array(rows["at"].cast(pa.int64()).to_numpy() // 60_000_000)
    found = (
        rows.append_column("minute", minute).group_by(["key", "minute"]).aggregate([("id", "count"), ("value", "max")])
    )
    return {
        (key, minute): (hits, most)
        for key, minute, hits, most in zip(
            *(found[n].to_pylist() for n in ("key", "minute", "id_count", "value_max")), strict=True
        )
    }


def results(settings: Settings, topic: str) -> list[dict]:
    consumer = Consumer(
        {
            **settings.kafka.client(),
            "group.id": "nobody",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found, ended = [], set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is None:
                found.append(orjson.loads(message.value()))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    consumer.close()
    return found


def check(kind: str, found: list[dict], records: int) -> None:
    if kind in ("topic", "timed", "wide"):
        assert len({row["id"] for row in found}) == len(found) == records, f"{kind}: {len(found)} of {records}"
        return
    minutes = [
        int(np.datetime64(row["window_start"].rstrip("Z"), "us").astype(np.int64)) // 60_000_000 for row in found
    ]
    seen = {(row["key"], minute): (row["hits"], row["most"]) for row, minute in zip(found, minutes, strict=True)}
    assert len(seen) == len(found), "a window gave two results"
    assert seen == expected(records), "windows that count wrongly"


def run(
    settings: Settings, folder: Path, kind: str, number: int, source: str, args: argparse.Namespace
) -> dict[str, float]:
    from sardonyx.client.client import Client
    from sardonyx.dev.daemons import local_daemons
    from sardonyx.job.load import load_job

    target = f"{settings.deployment}-{kind}-{number}"
    create_topic(settings, target)
    folder.mkdir(parents=True)
    with local_daemons(settings, folder, virtual_peers=args.peers), Client(settings=settings) as client:
        while len(client.peers()) < args.peers:
            time.sleep(0.05)
        began, worked = time.perf_counter(), cpu_seconds()
        client.submit(load_job(make_job(kind, source, target))).await_completion(args.timeout)
        took, worked = time.perf_counter() - began, cpu_seconds() - worked
    check(kind, results(settings, target), args.records)
    found = {"per_s": round(args.records / took), "cpu_us": round(worked / args.records * 1e6, 2)}
    print(f"{kind}: exact; {found['per_s']:,} records/s, {found['cpu_us']} us of processor a record", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What time and windows cost.")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600)
    args = parser.parse_args()
    with services() as settings, tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        source = f"{settings.deployment}-in"
        create_topic(settings, source)
        fill(settings, source, args.records)
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in args.kinds}
        for number in range(args.rounds):
            for kind in args.kinds:
                found[kind].append(run(settings, Path(temporary) / f"{kind}{number}", kind, number, source, args))
    medians = {kind: statistics.median(each["per_s"] for each in runs) for kind, runs in found.items()}
    first = medians[args.kinds[0]]
    print(
        json.dumps(
            {
                "machine": machine(),
                "records": args.records,
                "rounds": found,
                "ratio": {k: round(v / first, 2) for k, v in medians.items()},
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
