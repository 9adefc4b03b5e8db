"""What `bench/performance.py` races on: the broker and its data, our jobs, the opponents' processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kafka_streams
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from environments import KAFKA_STREAMS, environment, flink_jars
from processes import LONGEST, ending, said_by
from topic_to_topic import PARTITIONS, SCHEMA, create_topic, doubled, fill, read_back

from sardonyx import Job, event_time, kafka
from sardonyx.client.client import Client
from sardonyx.client.views import JobView
from sardonyx.dev.daemons import local_daemons
from sardonyx.dev.kafka_jars import cache_dir
from sardonyx.job.load import load_job
from sardonyx.runtime.settings import Settings

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "performance"
"""Figures and plots."""
PART = 0.9
"""Of the records that pass the filter."""
STEPS = 4
"""Tasks of the chain, and queries."""


# Functions of our jobs


def kept(rows: pa.Table) -> pa.Table:
    """Nine of ten rows, and a column more."""
    ids = rows["id"]
    rows = rows.filter(pc.not_equal(pc.subtract(ids, pc.multiply(pc.divide(ids, 10), 10)), 0))
    return rows.append_column("doubled", pc.multiply(rows["value"], 2.0))


def step(rows: pa.Table, number: int) -> pa.Table:
    """A column more."""
    return rows.append_column(f"step{number}", pc.multiply(rows["value"], float(number + 2)))


def busy(rows: pa.Table) -> pa.Table:
    """A dozen kernels: a text taken apart and another made, arithmetic as of a hash, a regular expression, a condition."""
    number = pc.cast(pc.utf8_slice_codeunits(rows["key"], -6), pa.int64())
    mixed = pc.bit_wise_xor(rows["id"], pc.shift_left(number, 17))
    mixed = pc.bit_wise_xor(mixed, pc.shift_right(mixed, 7))
    mixed = pc.bit_wise_and(pc.multiply(mixed, 0x9E3779B1), 0xFFFFFFFF)
    odd = pc.match_substring_regex(rows["key"], "[13579]$")
    day = pc.strftime(rows["at"], format="%Y-%m-%d")
    label = pc.binary_join_element_wise(pc.utf8_upper(rows["key"]), day, "/")
    value = pc.if_else(odd, pc.multiply(rows["value"], 2.0), pc.round(rows["value"], 2))
    return rows.append_column("mixed", mixed).append_column("label", label).append_column("worth", value)


def filter_job(source: str, target: str, end: str | None = "latest", *, timed: bool = False, **options: Any) -> Job:
    """JSON, filter and map; with ``timed`` the rows have a time, which nothing asks for."""
    job = Job("bench-filter")
    time = event_time("at", delay="1 s") if timed else None
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end=end), time=time)
    work = job.task("work", kept, after=read, **options)
    job.output("write", kafka(target), after=work)
    return job


def pass_job(source: str, target: str) -> Job:
    """Records as they are."""
    job = Job("bench-pass")
    read = job.input("read", kafka(source, format="raw", start="earliest", end="latest"))
    job.output("write", kafka(target, format="raw"), after=read)
    return job


def chain_job(
    source: str,
    target: str,
    end: str | None = "latest",
    *,
    fuse: bool = False,
    lineage: bool = False,
    **options: Any,
) -> Job:
    """Functions one behind the other, a queue between each two unless they are fused."""
    job = Job("bench-chain", partitions=PARTITIONS, lineage=lineage)
    last = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end=end))
    for number in range(STEPS):
        joined = fuse and number > 0
        own = {} if joined else options  # a fused task has its micro-batches from the one before
        last = job.task(f"step{number}", step, after=last, params={"number": number}, fuse=joined, **own)
    job.output("write", kafka(target), after=last)
    return job


# Runs


@dataclass(frozen=True)
class Run:
    """One side's run."""

    steady: float
    """Records read a second, between the tenth and the ninetieth hundredth of what was written."""
    whole: float
    """Records read a second, from the start of the first process until the last record is written."""
    took: float
    """Seconds of all of it."""
    through: float = 0.0
    """Of a chain: records a second, from when the first step had first written something to when the last one wrote the last."""


@dataclass
class Track:
    """The broker, the data, and where to run."""

    settings: Settings
    folder: Path
    source: str
    records: int
    peers: int

    @property
    def beside(self) -> Track:
        """The same for a second deployment that runs at the same time."""
        settings = self.settings.model_copy(update={"deployment": f"{self.settings.deployment}-beside"})
        return dataclasses.replace(self, settings=settings)

    def target(self) -> str:
        """A fresh topic."""
        topic = f"{self.settings.deployment}-{uuid.uuid4().hex[:8]}"
        create_topic(self.settings, topic)
        return topic

    def ours(
        self,
        make: Callable[[str, str], Job],
        part: float = 1.0,
        right: Callable[..., bool] = doubled,
    ) -> Run:
        """A coordinator and a peer daemon are started for the job, and ended."""
        target = self.target()
        began = time.time()
        with self.cluster() as client:
            view = client.submit(load_job(make(self.source, target))).await_completion(LONGEST)
            ended = time.time()
        assert view.status == "completed", view
        return self.landed(target, began, ended, part, right)

    def completed(self, job: Job, peers: int | None = None) -> JobView:
        """A job that has come to its end, on such daemons."""
        with self.cluster(peers) as client:
            view = client.submit(load_job(job)).await_completion(LONGEST)
        assert view.status == "completed", view
        return view

    @contextlib.contextmanager
    def cluster(self, peers: int | None = None) -> Iterator[Client]:
        """A coordinator and a peer daemon of our own."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        with (
            local_daemons(self.settings, folder, virtual_peers=peers or self.peers),
            Client(settings=self.settings) as client,
        ):
            yield client

    def theirs(
        self, name: str, *, work: str = "filter", part: float = 1.0, right: Callable[..., bool] = doubled
    ) -> Run:
        """An opponent's process, to its end; chained ones have none, and are ended when all has come. As with ours, its topics
        are there before it begins.
        """
        chained = work == "chain"
        given = self.given(work, bounded=not chained)
        topics = given["topics"]
        began = time.time()
        if not chained:
            self.finished(name, given)
            return self.landed(topics[-1], began, time.time(), part, right)
        with opponent(name, given) as process:
            while self._written(topics[-1]) < self.records * part:
                assert process.poll() is None, f"{name} ended by itself"
                time.sleep(0.25)
            ended = time.time()
        return self.landed(topics[-1], began, ended, part, right, self._first_written(topics[1]))

    def finished(self, name: str, given: dict[str, Any]) -> str:
        """Run an opponent until it has written all; the topic to which it did. ``given``: what it must know."""
        with opponent(name, given) as process:
            said = said_by(process)
            told = (Path(given["folder"]) / "stderr").read_text()[-2000:]
            assert said == ["ready", "done"], f"{name} failed; see {self.folder}:\n{told}"
        return str(given["topics"][-1])  # as ours: what it does to end itself was not waited for

    def given(self, work: str, *, bounded: bool, linger: int = 50, **more: Any) -> dict[str, Any]:
        """What an opponent must know."""
        return more | {
            "bootstrap": self.settings.kafka.bootstrap_servers,
            "topics": [self.source, *(self.target() for _ in range(STEPS if work == "chain" else 1))],
            "work": work,
            "records": self.records,
            "bounded": bounded,
            "linger": linger,
            "threads": kafka_streams.THREADS,
            "folder": tempfile.mkdtemp(dir=self.folder),
            "ivy": str(cache_dir() / "bench" / "ivy"),
            "jars": str(flink_jars()),
        }

    def _written(self, topic: str) -> int:
        """Records of a topic that no transaction wrote; none while a new topic has no leader yet."""
        consumer = Consumer({**self.settings.kafka.client(), "group.id": f"{topic}-count"})
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=10)[1] for n in range(PARTITIONS)
            )
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE):
                raise
            return 0
        finally:
            consumer.close()

    def _first_written(self, topic: str) -> float:
        """When the first record of a topic was written, in seconds since 1970."""
        consumer = Consumer({**self.settings.kafka.client(), "group.id": f"{topic}-first"})
        try:
            consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
            first: dict[int, float] = {}
            deadline = time.monotonic() + 30
            while len(first) < PARTITIONS:
                assert time.monotonic() < deadline, f"{topic} has partitions without a record: {first}"
                for message in consumer.consume(10_000, 1.0):
                    assert message.error() is None, message.error()
                    if message.offset() == 0:
                        first[message.partition()] = message.timestamp()[1] / 1000
            return min(first.values())
        finally:
            consumer.close()

    def landed(
        self,
        topic: str,
        began: float,
        ended: float,
        part: float = 1.0,
        right: Callable[..., bool] = doubled,
        since: float | None = None,
    ) -> Run:
        """What a run was, by what it wrote; raises if that is not exactly what should stand there: all records, or those that the
        filter keeps.

        ``since``: when the first step of a chain had first written something.
        """
        found = read_back(self.settings, topic, self.records, right)
        wanted = np.arange(self.records) % 10 != 0 if part < 1 else np.ones(self.records, bool)
        beyond = int(((found.times_seen > 0) & ~wanted).sum())
        wrong = (int(((found.times_seen == 0) & wanted).sum()), beyond, found.doubled, found.strangers)
        assert wrong == (0, 0, 0, 0), f"{topic}: {wrong} missing, beyond, twice, strange"
        through = self.records / float(found.written[-1] - since) if since else 0.0
        return Run(found.steady / part, self.records / float(found.written[-1] - began), ended - began, through)


@contextlib.contextmanager
def smaller(track: Track, records: int) -> Iterator[Track]:
    """The same with another number of records."""
    if records == track.records:
        yield track
        return
    source = track.target()
    fill(track.settings, source, records)
    yield dataclasses.replace(track, source=source, records=records)


class Feed:
    """Records into a topic, evenly; each carries in ``value`` when it was handed to the client.

    Args:
        track: whose source they go to.
        rate: records a second.
        timed: whether ``at`` says so too, in whole milliseconds; otherwise it is always the same.
    """

    def __init__(self, track: Track, rate: float, *, timed: bool = False) -> None:
        self.fed = 0
        """Records so far."""
        self.times: list[float] = []
        """If ``timed``, of each record, in seconds since 1970."""
        self._timed = timed
        self._producer = Producer({**track.settings.kafka.client(), "linger.ms": 0, "acks": "all"})
        self._topic = track.source
        self._rate = rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush(10)

    def _run(self) -> None:
        began = time.time()
        while not self._over.wait(0.005):
            while self.fed < (time.time() - began) * self._rate:
                number = self.fed
                row = {"id": number, "key": f"key-{number % 100}", "value": time.time(), "at": "2026-01-01T00:00:00Z"}
                if self._timed:
                    moment = datetime.fromtimestamp(int(row["value"] * 1000) / 1000, UTC)
                    row["at"] = moment.isoformat(timespec="milliseconds")
                try:
                    self._producer.produce(self._topic, json.dumps(row).encode(), partition=number % PARTITIONS)
                except BufferError:
                    self._producer.poll(0.1)
                    continue
                self.fed += 1
                if self._timed:
                    self.times.append(moment.timestamp())
            self._producer.poll(0)


@contextlib.contextmanager
def opponent(name: str, given: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Its process; killed at the end if it still runs, and if it runs for too long."""
    if name == KAFKA_STREAMS:
        command, python = kafka_streams.command(), ""
    else:
        python = str(environment(name))
        command = [python, str(HERE / "opponents" / f"{name}.py")]
    process = subprocess.Popen(
        [*command, json.dumps(given)],
        env={**os.environ, "PYSPARK_PYTHON": python},
        stdout=subprocess.PIPE,
        stderr=(Path(given["folder"]) / "stderr").open("w"),
        text=True,
    )
    with ending(process):
        yield process
