"""Sardonyx beside what one would pick instead: `python bench/performance.py [--part topic ...]`, or `make bench`.

On one broker and the same data, in turns, in one run: medians, and the least and the most, of ratios of neighbouring
runs. Each run of either side begins with nothing of its own running. What was written is read back and compared by id, on
both sides. Figures go to ``bench/results/performance.json``; `docs/performance.md` shows them.

Opponents run in environments of their own below the cache directory, made at the first run: PySpark 4.0.0 with its Kafka
connector, and Quix Streams.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition

sys.path.insert(0, str(Path(__file__).parent))

from topic_to_topic import PARTITIONS, SCHEMA, create_topic, doubled, fill, read_back, services

from sardonyx import Job, kafka
from sardonyx.cli.daemons import local_daemons
from sardonyx.client import Client
from sardonyx.config import Settings
from sardonyx.kafka_jars import cache_dir
from sardonyx.loading import load_job

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ENVIRONMENTS = {"structured_streaming": ["pyspark==4.0.0"], "quix_streams": ["quixstreams==3.28.1"], "bare_copy": []}
"""What each opponent needs; nothing: it runs in our own environment."""
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


def filter_job(source: str, target: str, **options: Any) -> Job:
    """JSON, filter and map."""
    job = Job("bench-filter")
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end="latest"))
    work = job.task("work", kept, after=read, **options)
    job.output("write", kafka(target), after=work)
    return job


def pass_job(source: str, target: str) -> Job:
    """Records as they are."""
    job = Job("bench-pass")
    read = job.input("read", kafka(source, format="raw", start="earliest", end="latest"))
    job.output("write", kafka(target, format="raw"), after=read)
    return job


def chain_job(source: str, target: str) -> Job:
    """Functions one behind the other, a queue between each two."""
    job = Job("bench-chain", partitions=PARTITIONS)
    last = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end="latest"))
    for number in range(STEPS):
        last = job.task(f"step{number}", step, after=last, params={"number": number})
    job.output("write", kafka(target), after=last)
    return job


# Runs


@dataclass(frozen=True)
class Run:
    """One side's run."""

    steady: float
    """Records read a second, between the tenth and the ninetieth hundredth of what was written."""
    whole: float
    """Records read a second, from the start of the first process to the end."""


@dataclass
class Track:
    """The broker, the data, and where to run."""

    settings: Settings
    folder: Path
    source: str
    records: int
    peers: int

    def target(self) -> str:
        """A fresh topic."""
        topic = f"{self.settings.deployment}-{uuid.uuid4().hex[:8]}"
        create_topic(self.settings, topic)
        return topic

    def ours(self, make: Callable[[str, str], Job], part: float = 1.0, right: Callable[..., bool] = doubled) -> Run:
        """A coordinator and a peer daemon are started for the job, and ended."""
        target = self.target()
        began = time.perf_counter()
        with (
            local_daemons(self.settings, Path(tempfile.mkdtemp(dir=self.folder)), virtual_peers=self.peers),
            Client(settings=self.settings) as client,
        ):
            view = client.submit(load_job(make(self.source, target))).await_completion(900)
            took = time.perf_counter() - began
        assert view.status == "completed", view
        return self._landed(target, took, part, right)

    def theirs(
        self, name: str, *, work: str = "filter", part: float = 1.0, right: Callable[..., bool] = doubled
    ) -> Run:
        """An opponent's process, to its end; chained ones have none, and are ended when all has come."""
        chained = work == "chain"
        topics = [self.source, *(self.target() for _ in range(STEPS if chained else 1))]
        given = {
            "bootstrap": self.settings.kafka.bootstrap_servers,
            "topics": topics,
            "work": work,
            "records": self.records,
            "bounded": not chained,
            "folder": tempfile.mkdtemp(dir=self.folder),
            "ivy": str(cache_dir() / "bench" / "ivy"),
        }
        began = time.perf_counter()
        with opponent(name, given) as process:
            if chained:
                while self._written(topics[-1]) < self.records * part:
                    assert process.poll() is None, f"{name} ended by itself"
                    time.sleep(0.25)
            else:
                assert process.wait(900) == 0, f"{name} failed; see {self.folder}"
            took = time.perf_counter() - began
        return self._landed(topics[-1], took, part, right)

    def _written(self, topic: str) -> int:
        """Records of a topic that no transaction wrote."""
        consumer = Consumer({**self.settings.kafka.client(), "group.id": f"{topic}-count"})
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=10)[1] for n in range(PARTITIONS)
            )
        finally:
            consumer.close()

    def _landed(self, topic: str, took: float, part: float, right: Callable[..., bool]) -> Run:
        found = read_back(self.settings, topic, self.records, right)
        wrong = (int((found.times_seen != 0).sum()) - round(self.records * part), found.doubled, found.strangers)
        assert wrong == (0, 0, 0), f"{topic}: {wrong} too many, twice, strange"
        return Run(found.steady / part, self.records / took)


@contextlib.contextmanager
def opponent(name: str, given: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Its process; killed at the end if it still runs."""
    script = HERE / "opponents" / f"{name}.py"
    python = environment(name)
    process = subprocess.Popen(
        [str(python), str(script), json.dumps(given)],
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        stdout=subprocess.PIPE,
        stderr=(Path(given["folder"]) / "stderr").open("w"),
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def environment(name: str) -> Path:
    """The Python of an opponent's environment, made if it is not there."""
    needs = ENVIRONMENTS[name]
    if not needs:
        return Path(sys.executable)
    folder = cache_dir() / "bench" / "-".join(needs).replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"making the environment of {name}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "--quiet", "install", *needs], check=True)
        (folder / "ready").touch()
    return python


# The table


@dataclass
class Row:
    """One line of the table: a ratio of ours to theirs, more being better, unless ``less``."""

    bench: str
    against: str
    goal: float
    ratios: list[float]
    ours: list[float]
    theirs: list[float]
    unit: str = "records/s"

    @property
    def met(self) -> bool:
        return statistics.median(self.ratios) >= self.goal

    def line(self) -> str:
        middle = statistics.median
        found = f"{middle(self.ratios):.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f})"
        beside = f"{middle(self.ours):,.0f} beside {middle(self.theirs):,.0f} {self.unit}"
        return (
            f"{self.bench} | {self.against} | {self.goal:g} x | {found} | {beside} | {'met' if self.met else 'missed'}"
        )


def raced(
    bench: str, against: str, goal: float, runs: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> Row:
    """In turns: each of our runs is held against the mean of theirs before and after it."""
    row = Row(bench, against, goal, [], [], [theirs()])
    for _ in range(runs):
        row.ours.append(ours())
        row.theirs.append(theirs())
        row.ratios.append(2 * row.ours[-1] / (row.theirs[-1] + row.theirs[-2]))
        print(f"  {bench} beside {against}: {row.ours[-1]:,.0f} {row.theirs[-1]:,.0f} {row.ratios[-1]:.2f}", flush=True)
    print(row.line(), flush=True)
    return row


def topic(track: Track, runs: int) -> list[Row]:
    """Topic to topic."""
    kept_of = 0.9
    once = {"ours": lambda: track.ours(filter_job, kept_of).steady}
    return [
        raced(
            "topic to topic, filter and map",
            "Structured Streaming, at least once",
            2,
            runs,
            once["ours"],
            lambda: track.theirs("structured_streaming", part=kept_of).steady,
        ),
        raced(
            "topic to topic, filter and map",
            "Quix Streams, exactly once",
            5,
            runs,
            once["ours"],
            lambda: track.theirs("quix_streams", part=kept_of).steady,
        ),
        raced(
            "topic to topic, unchanged",
            "bare confluent-kafka, exactly once",
            0.6,
            runs,
            lambda: track.ours(pass_job, right=anything).steady,
            lambda: track.theirs("bare_copy", right=anything).steady,
        ),
    ]


def start(track: Track, runs: int) -> list[Row]:
    """The same with start-up, many records and few."""
    rows = []
    for goal, records in ((1.5, track.records), (1.0, 10_000)):
        with smaller(track, records) as small:
            rows.append(
                raced(
                    f"with start-up, {records:,} records",
                    "Structured Streaming, with start-up",
                    goal,
                    runs,
                    lambda small=small: small.ours(filter_job, 0.9).whole,
                    lambda small=small: small.theirs("structured_streaming", part=0.9).whole,
                )
            )
    return rows


def chain(track: Track, runs: int) -> list[Row]:
    """Four functions behind each other."""
    return [
        raced(
            f"chain of {STEPS} functions",
            f"{STEPS} chained queries of Structured Streaming",
            3,
            runs,
            lambda: track.ours(chain_job, right=stepped).steady,
            lambda: track.theirs("structured_streaming", work="chain", right=stepped).steady,
        )
    ]


def anything(_row: dict[str, Any]) -> bool:
    """For what is handed on."""
    return True


def stepped(row: dict[str, Any]) -> bool:
    """For what went through the chain."""
    return all(row[f"step{number}"] == row["value"] * (number + 2) for number in range(STEPS))


@contextlib.contextmanager
def smaller(track: Track, records: int) -> Iterator[Track]:
    """The same with another number of records."""
    if records == track.records:
        yield track
        return
    source = f"{track.settings.deployment}-in-{records}"
    create_topic(track.settings, source)
    fill(track.settings, source, records)
    yield Track(track.settings, track.folder, source, records, track.peers)


PARTS: dict[str, Callable[[Track, int], list[Row]]] = {"topic": topic, "start": start, "chain": chain}


def machine() -> str:
    """What this ran on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {made}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Sardonyx beside what one would pick instead.")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--peers", type=int, default=2, help="virtual peers, in one daemon")
    args = parser.parse_args(argv)
    rows: list[Row] = []
    for name in ENVIRONMENTS:
        environment(name)
    with services() as settings, tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        source = f"{settings.deployment}-in"
        create_topic(settings, source)
        fill(settings, source, args.records)
        track = Track(settings, Path(temporary), source, args.records, args.peers)
        for part in args.part:
            rows += PARTS[part](track, args.runs)
    print()
    for row in rows:
        print(row.line())
    RESULTS.mkdir(exist_ok=True)
    kept_file = RESULTS / "performance.json"
    found = json.loads(kept_file.read_text()) if kept_file.exists() else {}
    found |= {f"{row.bench} | {row.against}": vars(row) | {"met": row.met, "machine": machine()} for row in rows}
    kept_file.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
