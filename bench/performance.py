"""Sardonyx beside what one would pick instead: `python bench/performance.py [--part topic ...]`, or `make bench`.

On one broker and the same data, in turns, in one run: medians, and the least and the most, of ratios of neighbouring
runs. Each run of either side begins with nothing of its own running. What was written is read back and compared by id, on
both sides. Figures go to ``bench/results/performance``; `docs/performance.md` shows them.

Opponents run in environments of their own below the cache directory, made at the first run: PySpark 4.0.0 with its Kafka
connector, and Quix Streams.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Producer, TopicPartition

sys.path.insert(0, str(Path(__file__).parent))

from topic_to_topic import PARTITIONS, SCHEMA, create_topic, doubled, fill, read_back, services

from sardonyx import Job, kafka
from sardonyx.cli.daemons import local_daemons
from sardonyx.client import Client
from sardonyx.config import Settings
from sardonyx.errors import SardonyxError
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


def filter_job(source: str, target: str, end: str | None = "latest", **options: Any) -> Job:
    """JSON, filter and map."""
    job = Job("bench-filter")
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end=end))
    work = job.task("work", kept, after=read, **options)
    job.output("write", kafka(target), after=work)
    return job


def pass_job(source: str, target: str) -> Job:
    """Records as they are."""
    job = Job("bench-pass")
    read = job.input("read", kafka(source, format="raw", start="earliest", end="latest"))
    job.output("write", kafka(target, format="raw"), after=read)
    return job


def chain_job(source: str, target: str, end: str | None = "latest", **options: Any) -> Job:
    """Functions one behind the other, a queue between each two."""
    job = Job("bench-chain", partitions=PARTITIONS)
    last = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end=end))
    for number in range(STEPS):
        last = job.task(f"step{number}", step, after=last, params={"number": number}, **options)
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
    took: float
    """Seconds of all of it."""


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

    def ours(
        self,
        make: Callable[[str, str], Job],
        part: float = 1.0,
        right: Callable[..., bool] = doubled,
        peers: int | None = None,
    ) -> Run:
        """A coordinator and a peer daemon are started for the job, and ended."""
        target = self.target()
        began = time.time()
        with self.cluster(peers) as client:
            view = client.submit(load_job(make(self.source, target))).await_completion(900)
            ended = time.time()
        assert view.status == "completed", view
        return self._landed(target, began, ended, part, right)

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
        """An opponent's process, to its end; chained ones have none, and are ended when all has come."""
        chained = work == "chain"
        given = self.given(work, bounded=not chained)
        topics = given["topics"]
        began = time.time()
        with opponent(name, given) as process:
            if chained:
                while self._written(topics[-1]) < self.records * part:
                    assert process.poll() is None, f"{name} ended by itself"
                    time.sleep(0.25)
            else:
                said = [line.strip() for line in process.stdout or () if line.strip() in ("ready", "done")]
                assert said == ["ready", "done"], f"{name} failed; see {self.folder}"
            ended = time.time()
        return self._landed(topics[-1], began, ended, part, right)

    def given(self, work: str, *, bounded: bool, linger: int = 50) -> dict[str, Any]:
        """What an opponent must know."""
        return {
            "bootstrap": self.settings.kafka.bootstrap_servers,
            "topics": [self.source, *(self.target() for _ in range(STEPS if work == "chain" else 1))],
            "work": work,
            "records": self.records,
            "bounded": bounded,
            "linger": linger,
            "folder": tempfile.mkdtemp(dir=self.folder),
            "ivy": str(cache_dir() / "bench" / "ivy"),
        }

    def _written(self, topic: str) -> int:
        """Records of a topic that no transaction wrote."""
        consumer = Consumer({**self.settings.kafka.client(), "group.id": f"{topic}-count"})
        try:
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=10)[1] for n in range(PARTITIONS)
            )
        finally:
            consumer.close()

    def _landed(self, topic: str, began: float, ended: float, part: float, right: Callable[..., bool]) -> Run:
        found = read_back(self.settings, topic, self.records, right)
        wrong = (int((found.times_seen != 0).sum()) - round(self.records * part), found.doubled, found.strangers)
        assert wrong == (0, 0, 0), f"{topic}: {wrong} too many, twice, strange"
        return Run(found.steady / part, self.records / (ended - began), ended - began)


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
    """One line of the table. A ratio above 1 says that we are better: of rates ours to theirs, of times theirs to ours."""

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
        digits = 0 if middle(self.ours) > 100 else 1
        beside = f"{middle(self.ours):,.{digits}f} beside {middle(self.theirs):,.{digits}f} {self.unit}"
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
            lambda: track.ours(chain_job, right=stepped, peers=STEPS).steady,
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


# How long a record takes

RATE = 1000
"""Records a second."""
WARM, MEASURED = 15.0, 20.0
"""Seconds from the first record to come through until it is measured, and how long it is."""


class Feed:
    """Records a second into a topic, evenly; each carries in ``value`` when it was handed to the client."""

    def __init__(self, track: Track) -> None:
        self._producer = Producer({**track.settings.kafka.client(), "linger.ms": 0, "acks": "all"})
        self._topic = track.source
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
        began, number = time.time(), 0
        while not self._over.wait(0.005):
            while number < (time.time() - began) * RATE:
                row = {"id": number, "key": f"key-{number % 100}", "value": time.time(), "at": "2026-01-01T00:00:00Z"}
                self._producer.produce(self._topic, json.dumps(row).encode(), partition=number % PARTITIONS)
                number += 1
            self._producer.poll(0)


def delays(track: Track, topic: str) -> list[float]:
    """Milliseconds from a record's making to its being read by one who reads what is committed."""
    consumer = Consumer(
        {
            **track.settings.kafka.client(),
            "group.id": topic,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[float] = []
    first = None
    try:
        deadline = time.time() + 120
        while first is None or time.time() < first + WARM + MEASURED:
            assert first is not None or time.time() < deadline, "no record came through within two minutes"
            for message in consumer.consume(1000, 0.01):
                now = time.time()
                first = first or now
                if now > first + WARM:
                    found.append((now - orjson.loads(message.value())["value"]) * 1000)
        return found
    finally:
        consumer.close()


def latency(track: Track, runs: int) -> list[Row]:
    """At a rate that neither side finds hard, through one task and through the chain."""
    rows = []
    for work, make, title in (("filter", filter_job, "one task"), ("chain", chain_job, f"a chain of {STEPS}")):
        kinds = [
            Row(f"latency, {title}, {kind}", "Structured Streaming", 2, [], [], [], "ms") for kind in ("p50", "p99")
        ]
        for _ in range(runs):
            mine, others = our_delays(track, make), their_delays(track, work)
            for row, hundredths in zip(kinds, (0.5, 0.99), strict=True):
                row.ours.append(float(np.quantile(mine, hundredths)))
                row.theirs.append(float(np.quantile(others, hundredths)))
                row.ratios.append(row.theirs[-1] / row.ours[-1])
                print(f"  {row.bench}: {row.ours[-1]:,.0f} beside {row.theirs[-1]:,.0f} ms", flush=True)
        rows += kinds
    return rows


def our_delays(track: Track, make: Callable[..., Job]) -> list[float]:
    """Through a job of ours, whose batches do not wait to be filled."""
    live = dataclasses.replace(track, source=track.target())
    target = track.target()
    with live.cluster(peers=STEPS) as client, Feed(live):
        handle = client.submit(load_job(make(live.source, target, end=None, batch_timeout="1 ms")))
        found = delays(live, target)
        handle.kill()
        with contextlib.suppress(SardonyxError):
            handle.await_completion(60)
    return found


def their_delays(track: Track, work: str) -> list[float]:
    """Through as many queries."""
    live = dataclasses.replace(track, source=track.target())
    given = live.given(work, bounded=False, linger=0)
    with opponent("structured_streaming", given), Feed(live):
        return delays(live, given["topics"][-1])


# By itself


def session(track: Track, runs: int) -> list[Row]:
    """From nothing to the end of a small job, beside the start of a Spark session."""
    bare = "from pyspark.sql import SparkSession as S; S.builder.master('local[*]').getOrCreate().range(1).count()"

    def started() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", bare], check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began

    row = Row(
        "start to the end of 10,000 records",
        "start of a bare Spark session, with a first job",
        1 / 1.5,
        [],
        [],
        [],
        "s",
    )
    with smaller(track, 10_000) as small:
        for _ in range(runs):
            row.theirs.append(started())
            row.ours.append(small.ours(filter_job, 0.9).took)
            row.ratios.append(row.theirs[-1] / row.ours[-1])
    return [row]


PARTS: dict[str, Callable[[Track, int], list[Row]]] = {
    "topic": topic,
    "start": start,
    "chain": chain,
    "latency": latency,
    "session": session,
}


def machine() -> str:
    """What this ran on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {made}"


def keep(rows: list[Row]) -> None:
    """The figures beside those of other parts, and all of them as one plot."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder = RESULTS / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "performance.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    figures |= {f"{row.bench} | {row.against}": vars(row) | {"met": row.met, "machine": machine()} for row in rows}
    path.write_text(json.dumps(figures, indent=1) + "\n")

    figure, axes = plt.subplots(figsize=(8, 1 + 0.45 * len(figures)), layout="constrained")
    for place, (name, row) in enumerate(reversed(figures.items())):
        middle, least, most = (of(row["ratios"]) for of in (statistics.median, min, max))
        axes.barh(
            place, middle, xerr=[[middle - least], [most - middle]], color="tab:green" if row["met"] else "tab:gray"
        )
        axes.plot([row["goal"]] * 2, [place - 0.4, place + 0.4], color="black")
        axes.text(0.02, place, name.replace(" | ", "\n"), va="center", fontsize=6)
    axes.axvline(1, color="black", linewidth=0.5, linestyle=":")
    axes.set_yticks([])
    axes.set_xlabel("times as good as the opponent; the black lines are the goals")
    figure.savefig(folder / "performance.png", dpi=90)
    plt.close(figure)


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
        if args.part != ["session"]:
            with smaller(track, 1000) as few:
                few.theirs("structured_streaming", part=0.9)  # fetches the connector, if it is not there
        for part in args.part:
            rows += PARTS[part](track, args.runs)
    print()
    for row in rows:
        print(row.line())
    keep(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
