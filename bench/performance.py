"""Sardonyx beside what one would pick instead: `python bench/performance.py [--part topic ...]`, or `make bench`.

On one broker and the same data, in turns, in one run: medians, and the least and the most, of ratios of neighbouring
runs. Each run of either side begins with nothing of its own running. What was written is read back and compared by id, on
both sides. Figures go to ``bench/results/performance``; `docs/performance.md` shows them.

Opponents run in environments of their own below the cache directory, made at the first run: PySpark 4.0.0 with its Kafka
connector, Quix Streams, Bytewax, Pathway and Flink. Maven builds the program of Kafka Streams there and fetches Flink's
connector.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from confluent_kafka import Consumer, TopicPartition
from environments import BYTEWAX, FLINK, KAFKA_STREAMS, PATHWAY, STREAMS, entered, is_left_out
from machine import machine
from performance_alone import cost, link, session
from performance_chain import chain
from performance_change import changed
from performance_first import first_result
from performance_graph import graph
from performance_join import join
from performance_keyed import keyed
from performance_lineage import lineage
from performance_memory import memory, slow_task
from performance_observed import observed
from performance_restore import restore, standby
from performance_scaling import scaling
from performance_supersteps import durable
from performance_time import clock, cost_of_time
from performance_track import PART, RESULTS, STEPS, Feed, Run, Track, chain_job, filter_job, opponent, pass_job, smaller
from performance_whole import whole
from performance_windows import explain, window, window_wide
from races import Row, attempt, race, race_all, raced, table
from topic_to_topic import PARTITIONS, create_topic, fill, services

from sardonyx import Job
from sardonyx.core.errors import SardonyxError
from sardonyx.job.load import load_job

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.services.spark_cluster import SparkCluster

TOPIC = "topic to topic, filter and map"
MILLION = 1_000_000
FEW = 10_000
"""Records, where it is the start that counts."""
SPARK = "Structured Streaming, at least once"


def topic(track: Track, runs: int) -> Sequence[Row]:
    """Topic to topic, beside Structured Streaming without and with start-up, from the same runs of at most a million records; and
    beside others, with all records.
    """
    with smaller(track, min(track.records, MILLION)) as few:
        many = f"{few.records:,} records"
        rows = [
            *race(
                [
                    Row(f"{TOPIC}, {many}", SPARK, 3),
                    Row(f"with start-up, {many}", "Structured Streaming, with start-up", 1.5),
                ],
                runs,
                lambda: both(few.ours(filter_job, PART)),
                lambda: both(few.theirs("structured_streaming", part=PART)),
            )
        ]
    beside = [
        (
            entered(Row(f"{TOPIC}, {track.records:,} records", against, goal), name),
            functools.partial(filtered, track, name),
        )
        for against, goal, name in (
            (FLINK, 1.5, "flink_sql"),
            (STREAMS, 1.5, KAFKA_STREAMS),
            (BYTEWAX, 1.5, "bytewax_flow"),
            (PATHWAY, None, "pathway_rows"),
        )
    ]
    rows += race_all(runs, lambda: track.ours(filter_job, PART).steady, beside)
    explain(track, rows, "topic", lambda where: where.completed(filter_job(where.source, where.target())))
    return rows


def filtered(track: Track, name: str) -> float:
    """An opponent that filters: records a second."""
    return track.theirs(name, part=PART).steady


def quix(track: Track, runs: int) -> Sequence[Row]:
    """The same."""
    return [
        raced(
            TOPIC,
            "Quix Streams, exactly once",
            5,
            runs,
            lambda: track.ours(filter_job, PART).steady,
            lambda: track.theirs("quix_streams", part=PART).steady,
        )
    ]


def limit(track: Track, runs: int) -> Sequence[Row]:
    """As little as can be done with a record, exactly once."""
    beside = [("bare confluent-kafka, exactly once", 0.6, "bare_copy"), (STREAMS, 1, KAFKA_STREAMS)]
    rows = race_all(
        runs,
        lambda: track.ours(pass_job, right=anything).steady,
        [
            (entered(Row("topic to topic, unchanged", against, goal), name), functools.partial(passed, track, name))
            for against, goal, name in beside
        ],
    )
    explain(track, rows, "limit", lambda where: where.completed(pass_job(where.source, where.target())))
    return rows


def passed(track: Track, name: str) -> float:
    """An opponent's speed with records as they are."""
    return track.theirs(name, work="pass", right=anything).steady


def cluster(track: Track, runs: int) -> Sequence[Row]:
    """The same job with its functions on the two workers of a standalone Spark cluster on this machine, beside local Spark."""
    folder = Path(tempfile.mkdtemp(dir=track.folder))
    with SparkCluster(folder) as spark:
        for _ in range(2):
            spark.add_worker()
        there = track.settings.spark.model_copy(
            update={"master": spark.master, "conf": {**track.settings.spark.conf, "spark.executor.memory": "512m"}}
        )
        on_cluster = dataclasses.replace(track, settings=track.settings.model_copy(update={"spark": there}))
        return race(
            [
                Row(f"{TOPIC}, on a Spark cluster", "local Spark", None),
                Row("the same with start-up", "local Spark", None),
            ],
            runs,
            lambda: both(on_cluster.ours(filter_job, PART)),
            lambda: both(track.ours(filter_job, PART)),
        )


def both(run: Run) -> tuple[float, float]:
    """Records a second without and with the start."""
    return run.steady, run.whole


def start(track: Track, runs: int) -> list[Row]:
    """The same with start-up, few records; many are in :func:`topic`."""
    with smaller(track, FEW) as small:
        return [
            raced(
                f"with start-up, {FEW:,} records",
                "Structured Streaming, with start-up",
                1,
                runs,
                lambda: small.ours(filter_job, 0.9).whole,
                lambda: small.theirs("structured_streaming", part=0.9).whole,
            )
        ]


def anything(_row: dict[str, Any]) -> bool:
    """For what is handed on."""
    return True


# How long a record takes


class Flow(NamedTuple):
    """What is fed to a job whose delays are measured."""

    rate: float
    """Records a second."""
    measured: float
    """Seconds."""
    warm: float = 8.0
    """Seconds from the first record to come through until the measurement begins."""


STREAM = Flow(rate=1000, measured=12)
TRICKLE = Flow(rate=0.93, measured=60)
"""Each record is alone. They come at all moments of the intervals by which tasks and clients wait."""


def delays(track: Track, topic: str, flow: Flow) -> list[float]:
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
        while first is None or time.time() < first + flow.warm + flow.measured:
            assert first is not None or time.time() < deadline, "no record came through within two minutes"
            for message in consumer.consume(1000, 0.01):
                now = time.time()
                first = first or now
                if now > first + flow.warm:
                    found.append((now - orjson.loads(message.value())["value"]) * 1000)
        return found
    finally:
        consumer.close()


def latency(track: Track, runs: int) -> list[Row]:
    """At a rate that neither side finds hard, through one task and through the chain."""
    rows = []
    for work, make, title, peers in (
        ("filter", filter_job, "one task", 1),
        ("chain", chain_job, f"a chain of {STEPS}", STEPS),
    ):
        rows += delayed(
            f"latency, {title}",
            runs,
            functools.partial(our_delays, track, make, peers, STREAM, batch_timeout="1 ms"),
            functools.partial(their_delays, track, work, STREAM),
        )
    return rows


def trickle(track: Track, runs: int) -> list[Row]:
    """Records that come alone, through one task with the default settings."""
    return delayed(
        "a record alone",
        runs,
        functools.partial(our_delays, track, filter_job, 1, TRICKLE),
        functools.partial(their_delays, track, "filter", TRICKLE),
    )


def delayed(
    title: str, runs: int, ours: Callable[[], Sequence[float]], theirs: Callable[[], Sequence[float]]
) -> list[Row]:
    """Two figures of each run: half of the records, and all but one in a hundred, took no longer."""
    kinds = [Row(f"{title}, {kind}", "Structured Streaming", 2, unit="ms") for kind in ("p50", "p99")]
    for _ in range(runs):
        mine, others = ours(), attempt(kinds, theirs)
        if others is None:
            break
        for row, hundredths in zip(kinds, (0.5, 0.99), strict=True):
            row.ours.append(float(np.quantile(mine, hundredths)))
            row.theirs.append(float(np.quantile(others, hundredths)))
            row.ratios.append(row.theirs[-1] / row.ours[-1])
            print(f"  {row.bench}: {row.ours[-1]:,.0f} beside {row.theirs[-1]:,.0f} ms", flush=True)
    return kinds


def our_delays(track: Track, make: Callable[..., Job], peers: int, flow: Flow, **options: Any) -> list[float]:
    """Through a job of ours, one peer for each task."""
    live = dataclasses.replace(track, source=track.target())
    target = track.target()
    with live.cluster(peers=peers) as client, Feed(live, flow.rate):
        handle = client.submit(load_job(make(live.source, target, end=None, **options)))
        found = delays(live, target, flow)
        handle.kill()
        with contextlib.suppress(SardonyxError):
            handle.await_completion(60)
    return found


def their_delays(track: Track, work: str, flow: Flow) -> list[float]:
    """Through as many queries."""
    live = dataclasses.replace(track, source=track.target())
    given = live.given(work, bounded=False, linger=0)
    with opponent("structured_streaming", given), Feed(live, flow.rate):
        return delays(live, given["topics"][-1], flow)


PARTS: dict[str, Callable[[Track, int], Sequence[Row]]] = {
    "topic": topic,
    "whole": whole,
    "quix": quix,
    "limit": limit,
    "start": start,
    "chain": chain,
    "latency": latency,
    "trickle": trickle,
    "cluster": cluster,
    "session": session,
    "first": first_result,
    "link": link,
    "cost": cost,
    "memory": memory,
    "scaling": scaling,
    "slow_task": slow_task,
    "window": window,
    "window-wide": window_wide,
    "keyed": keyed,
    "join": join,
    "restore": restore,
    "standby": standby,
    "clock": clock,
    "cost-of-time": cost_of_time,
    "lineage": lineage,
    "observed": observed,
    "change": changed,
    "graph": graph,
    "graph-durable": durable,
}
ALONE = {"first", "graph"}
"""Parts that need no services that run already."""
RECORDS = dict.fromkeys(("topic", "window", "lineage", "observed"), 4_000_000)
"""Of parts with more than others: what opponents compile while they run is compiled by then, and what is measured lasts for more
than a second or two."""
LONG = {"slow_task"}
"""Parts that run only when they are named."""
ENGINES = ("flink_sql", "bytewax_flow", "pathway_rows")
BESIDE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("start", "chain", "latency", "trickle"), ("structured_streaming",)),
    "topic": ("structured_streaming", KAFKA_STREAMS, *ENGINES),
    "whole": (KAFKA_STREAMS, *ENGINES),
    "quix": ("quix_streams",),
    "limit": (KAFKA_STREAMS,),
    "window": ("structured_windows", "quix_windows", KAFKA_STREAMS, "flink_sql", "pathway_rows"),
    "window-wide": ("structured_windows",),
    "keyed": ("structured_keyed",),
    "join": ("structured_join",),
}
"""Opponents of a part that need more than what we have."""


def keep(rows: Sequence[Row]) -> None:
    """The figures beside those of other parts, and all that have a goal as one plot."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "performance.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    had = [row for row in rows if row.ratios]  # one that is left out here keeps the figures that it had
    figures |= {f"{row.bench} | {row.against}": vars(row) | {"met": row.met, "machine": machine()} for row in had}
    path.write_text(json.dumps(figures, indent=1) + "\n")

    drawn = {
        name: row for name, row in figures.items() if row["goal"] is not None and row["ratios"] and not row.get("gone")
    }  # others have plots of their own
    figure, axes = plt.subplots(figsize=(10, 1 + 0.45 * len(drawn)), layout="constrained")
    for place, row in enumerate(reversed(drawn.values())):
        middle, least, most = (of(row["ratios"]) for of in (statistics.median, min, max))
        color = {True: "tab:green", False: "tab:red", None: "tab:gray"}[row["met"]]
        axes.errorbar(middle, place, xerr=[[middle - least], [most - middle]], fmt="o", capsize=3, color=color)
        axes.plot([row["goal"]] * 2, [place - 0.4, place + 0.4], color="black")
    axes.axvline(1, color="black", linewidth=0.5, linestyle=":")
    axes.set_yticks(range(len(drawn)), [name.replace(" | ", "\nbeside ") for name in reversed(drawn)], fontsize=7)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes.set_xlabel("times as good; black: the goal; red: missed; gray: cannot be told")
    figure.savefig(RESULTS / "performance.png", dpi=90)
    plt.close(figure)


@contextlib.contextmanager
def laid_out(records: int, peers: int, beside: set[str]) -> Iterator[Track]:
    """Services, and a topic with the records that go in."""
    with services() as settings, tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        source = f"{settings.deployment}-in"
        create_topic(settings, source)
        fill(settings, source, records)
        track = Track(settings, Path(temporary), source, records, peers)
        if any(name.startswith("structured") for name in beside):
            first = Row("the first run, which fetches the connector", "Structured Streaming", None)
            with smaller(track, 1000) as few:
                attempt([first], lambda: few.theirs("structured_streaming", part=0.9))
        yield track


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Sardonyx beside what one would pick instead.")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=[name for name in PARTS if name not in LONG])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, help=f"1,000,000; {RECORDS['topic']:,} of {', '.join(RECORDS)}")
    parser.add_argument("--memory-records", type=int, default=10_000_000, help="of the part memory")
    parser.add_argument("--minutes", type=float, default=10, help="of the part slow_task")
    parser.add_argument("--peers", type=int, default=2, help="virtual peers, in one daemon")
    args = parser.parse_args(argv)
    parts = PARTS | {
        "memory": functools.partial(memory, records=args.memory_records),
        "slow_task": functools.partial(slow_task, minutes=args.minutes),
    }
    rows: list[Row] = []
    beside = {name for part in args.part for name in BESIDE.get(part, ())}
    for name in sorted(beside):
        is_left_out(name)  # they are made before anything is measured
    sizes = {part: args.records or RECORDS.get(part, MILLION) for part in args.part}
    with contextlib.ExitStack() as held:
        laid = held.enter_context(laid_out(sizes[args.part[0]], args.peers, beside)) if set(args.part) - ALONE else None
        tracks = {} if laid is None else {laid.records: laid}
        for part in args.part:
            size = sizes[part]
            if laid is not None and size not in tracks:
                tracks[size] = held.enter_context(smaller(laid, size))
            found = parts[part](tracks.get(size), args.runs)  # type: ignore[arg-type]  # None: it needs none
            keep(found)  # each by itself: an hour's figures do not go with the part that fails
            rows += found
    print()
    print(table(rows))
    print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
