"""Kafka to Kafka, exactly once, through one function: `python bench/topic_to_topic.py [--records 1000000]`.

Fills a topic with JSON records of the generator (about 110 bytes each), runs one job a kind of function over it, reads the
output whole and compares it by id: nothing may be missing, nothing may stand there twice. The last line is JSON.

Uses the ZooKeeper and Kafka that are configured (environment, ``sardonyx.toml``), or else starts its own; the coordinator and the
peer daemon are always its own, in a deployment that only this run uses.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sardonyx import Job, kafka
from sardonyx.connectors.generator import Generator
from sardonyx.connectors.topics.formats import JsonFormat
from sardonyx.runtime.settings import Settings, load_settings

PARTITIONS = 4
SCHEMA = "id long, key string, value double, at timestamp"
KINDS = ("record", "arrow")


def record(row: dict) -> dict:
    """A little work on each record."""
    return {**row, "doubled": row["value"] * 2}


def arrow(rows: pa.Table) -> pa.Table:
    """The same on a whole table."""
    return rows.append_column("doubled", pc.multiply(rows["value"], 2.0))


def make_job(kind: str, source: str, target: str, batch_size: int) -> Job:
    """``source`` through the function of that kind to ``target``."""
    job = Job(f"bench-{kind}")
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end="latest"))
    work = job.task("work", {"record": record, "arrow": arrow}[kind], after=read, batch_size=batch_size)
    job.output("write", kafka(target, partitions=PARTITIONS), after=work)
    return job


def create_topic(settings: Settings, topic: str, partitions: int = PARTITIONS) -> None:
    """A topic whose records carry when the broker got them: some producers hand on the time of what they have read."""
    admin = AdminClient(settings.kafka.client())
    (made,) = admin.create_topics(
        [NewTopic(topic, partitions, 1, config={"message.timestamp.type": "LogAppendTime"})]
    ).values()
    made.result(30)


def fill(settings: Settings, topic: str, records: int, partitions: int = PARTITIONS) -> None:
    """Records with the ids 0 to ``records - 1``, dealt out over the partitions."""
    producer = Producer(
        {**settings.kafka.client(), "linger.ms": 50, "compression.type": "lz4", "enable.idempotence": True}
    )
    made, form = Generator({"count": records}), JsonFormat()
    number = 0
    for split in made.splits():
        for _, value in form.encode(made.read(split.data)):
            while True:
                with contextlib.suppress(BufferError):
                    producer.produce(topic, value=value, partition=number % partitions)
                    break
                producer.poll(0.1)
            number += 1
    assert producer.flush(60) == 0, "the input could not be written"


@dataclass(frozen=True)
class Found:
    """What stands in an output topic, as a reader of committed records sees it."""

    times_seen: np.ndarray
    """By id."""
    strangers: int
    """Records with an id that was never written, or with a wrong value."""
    written: np.ndarray
    """When each record was written, in seconds since 1970, sorted."""

    @property
    def missing(self) -> int:
        return int((self.times_seen == 0).sum())

    @property
    def doubled(self) -> int:
        return int(np.maximum(self.times_seen - 1, 0).sum())

    @property
    def steady(self) -> float:
        """Records a second between the tenth and the ninetieth hundredth of the output."""
        first, last = np.quantile(self.written, [0.1, 0.9])
        return float(0.8 * len(self.written) / max(last - first, 1e-9))


def doubled(row: dict[str, Any]) -> bool:
    """What the functions here make of a record."""
    return bool(row["doubled"] == row["value"] * 2)


def read_back(settings: Settings, topic: str, records: int, right: Callable[[dict[str, Any]], bool] = doubled) -> Found:
    """Read everything that was committed; a row that is not right counts as a stranger."""
    consumer = Consumer(
        {
            **settings.kafka.client(),
            "group.id": f"{topic}-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen = np.zeros(records, np.int64)
    written: list[int] = []
    strangers = 0
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
                continue
            row = orjson.loads(message.value())
            written.append(message.timestamp()[1])
            number = row["id"] if "id" in row else row["number"]  # Pathway can have no column id
            if 0 <= number < records and right(row):
                seen[number] += 1
            else:
                strangers += 1
    consumer.close()
    return Found(seen, strangers, np.sort(np.array(written)) / 1000)


@contextlib.contextmanager
def services() -> Iterator[Settings]:
    """The configured services, or embedded ones; a deployment of our own in either case."""
    deployment = f"bench-{uuid.uuid4().hex[:6]}"
    settings = load_settings(deployment=deployment)
    if settings.zookeeper.hosts and settings.kafka.bootstrap_servers:
        yield settings
        return
    from sardonyx.dev.services import embedded_services

    with embedded_services() as started:
        yield load_settings(
            deployment=deployment,
            zookeeper={"hosts": started.zookeeper},
            kafka={"bootstrap_servers": started.kafka},
        )


def cpu_seconds() -> float:
    """What our child processes, services apart if they are not ours, have used of the processors so far, with what ended before
    them below them.

    Unlike records a second it hardly depends on what else runs on the machine.
    """
    used = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            used += sum(
                child.cpu_times()[:4]
            )  # its own, and of the children that it has waited for; of the user, the system
    return used


def run(settings: Settings, folder: Path, kind: str, source: str, args: argparse.Namespace) -> dict[str, float]:
    """One job on a coordinator and peers that are started for it; checked, then measured."""
    from sardonyx.client.client import Client
    from sardonyx.dev.daemons import local_daemons
    from sardonyx.job.load import load_job

    target = f"{settings.deployment}-out-{kind}"
    create_topic(settings, target)
    loaded = load_job(make_job(kind, source, target, args.batch_size))
    folder.mkdir()
    began = time.perf_counter()
    with local_daemons(settings, folder, virtual_peers=args.peers), Client(settings=settings) as client:
        while len(client.peers()) < args.peers:
            time.sleep(0.05)
        submitted, worked = time.perf_counter(), cpu_seconds()
        view = client.submit(loaded).await_completion(args.timeout)
        ended, worked = time.perf_counter(), cpu_seconds() - worked
    assert view.task("work").rows_out == args.records, view
    found = read_back(settings, target, args.records)
    assert (found.missing, found.doubled, found.strangers) == (0, 0, 0), (
        f"{kind}: {found.missing} missing, {found.doubled} twice, {found.strangers} that were never written"
    )
    result = {
        "steady_per_s": round(found.steady),
        "job_per_s": round(args.records / (ended - submitted)),
        "with_start_up_per_s": round(args.records / (ended - began)),
        "cpu_us_per_record": round(worked / args.records * 1e6, 1),
    }
    print(f"{kind}: exact; " + ", ".join(f"{name} {value:,}" for name, value in result.items()), flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Kafka to Kafka through one function, exactly once.")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what the function takes")
    parser.add_argument("--peers", type=int, default=2, help="virtual peers, in one daemon")
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a job may take")
    parser.add_argument("--logs", type=Path, help="where to keep the daemons' logs")
    args = parser.parse_args()
    with services() as settings, tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        source = f"{settings.deployment}-in"
        create_topic(settings, source)
        began = time.perf_counter()
        fill(settings, source, args.records)
        print(f"{args.records:,} records written in {time.perf_counter() - began:.1f} s", flush=True)
        folder = args.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = {kind: run(settings, folder / kind, kind, source, args) for kind in args.kinds}
    print(json.dumps({"records": args.records, "peers": args.peers, "batch_size": args.batch_size, **results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
