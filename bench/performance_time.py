"""What event time costs, and how long the result of a window takes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from confluent_kafka import Consumer, TopicPartition
from performance_track import PART, Feed, Track, filter_job
from performance_watch import daemons
from performance_windows import TASKS, explain, start_of
from races import Row, paired
from topic_to_topic import PARTITIONS, SCHEMA
from window_figures import closed_at, miscounted

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.views import JobView
from sardonyx.core.errors import SardonyxError
from sardonyx.job.load import load_job

RATE = 1000
"""Records a second, while delays are measured."""
MEASURED, WARM = 12.0, 8.0
"""Seconds that results are taken from, and those before it from the first result on."""
SOON = 500.0
"""Milliseconds in which half of the results shall be there."""


def cost_of_time(track: Track, runs: int) -> Sequence[Row]:
    """Topic to topic with `time=` on the input and nothing else, beside the same without.

    As with lineage, the goal is about what a record takes of the processor: two runs of one job differ by more than what is to be
    told in records a second.
    """
    title = "topic to topic with time=, filter and map"
    return paired(
        [
            Row(title, "the same without", None),
            Row(f"{title}, processor", "the same without", 0.95, unit="µs a record", fine=True),
        ],
        2 * runs - 1,
        functools.partial(once, track, timed=True),
        functools.partial(once, track.beside, timed=False),
    )


def once(track: Track, *, timed: bool) -> tuple[float, float]:
    """Records a second, and microseconds of processor time of each, in one run."""
    target, began = track.target(), time.time()
    with daemons(track, track.peers, quiet=True) as found:
        before = found.processor_seconds()
        view = found.client.submit(load_job(filter_job(track.source, target, timed=timed))).await_completion(900)
        ended, spent = time.time(), found.processor_seconds() - before
    assert view.status == "completed", view
    return track.landed(target, began, ended, PART).steady, spent / track.records * 1e6


def clock(track: Track, runs: int) -> list[Row]:
    """From the making of the row that closes a window to the reading of its result, with default settings."""
    rows = [
        Row(f"delay of a window's result, {kind}", what, goal, unit="ms")
        for kind, what, goal in (("p50", "the limit of 500 ms", 1.0), ("p99", "the same", None))
    ]
    for _ in range(runs):
        found = window_delays(track)
        for row, part in zip(rows, (0.5, 0.99), strict=True):
            row.ours.append(float(np.quantile(found, part)))
            row.theirs.append(SOON)
            row.ratios.append(SOON / row.ours[-1])
            print(f"  {row.bench}: {row.ours[-1]:,.0f} ms", flush=True)
    explain(track, rows, "clock", lambda where: delayed(where).view)
    for row in rows:
        print(row.line(), flush=True)
    return rows


class Delayed(NamedTuple):
    """What a run was."""

    view: JobView
    read: list[tuple[float, float, int]]
    """The end of its window, when it was read (in seconds since 1970), and the rows that it counts, of each result."""
    times: list[float]
    """Of the records, as :attr:`Feed.times`."""


def window_delays(track: Track) -> list[float]:
    """Of each result that was read while it was measured, in milliseconds."""
    run = delayed(track)
    ends = sorted({end for end, _, _ in run.read})[:-2]  # results of the last ones may be on their way still
    assert len(ends) > MEASURED, "windows of a second did not come each second"
    assert not (wrong := miscounted(run.times, run.read, ends)), f"windows that count wrongly: {wrong}"
    closed = closed_at(run.times, ends, PARTITIONS)
    first = run.read[0][1] + WARM
    return [(read - closed[end]) * 1000 for end, read, _ in run.read if read > first and end in closed]


def second_job(source: str, target: str) -> Job:
    """A count per key and second, of a topic without an end."""
    job = Job("bench-clock", partitions=PARTITIONS)
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest"), time=event_time("at"))
    found = job.window("work", tumbling("1 s"), after=read, group_by="key", aggregate={"hits": Count()})
    job.output("write", kafka(target), after=found)
    return job


def delayed(track: Track) -> Delayed:
    """Feed a job, and read its results as they come."""
    live = dataclasses.replace(track, source=track.target())
    target = track.target()
    with live.cluster(peers=TASKS) as client, Feed(live, RATE, timed=True) as feed:
        handle = client.submit(load_job(second_job(live.source, target)))
        read = watched(live, target)
        handle.kill()
        with contextlib.suppress(SardonyxError):
            handle.await_completion(60)
        view = handle.status()
    return Delayed(view, read, feed.times)


def watched(track: Track, topic: str) -> list[tuple[float, float, int]]:
    """Results as :attr:`Delayed.read` has them, until enough have come."""
    settings: dict[str, Any] = {"group.id": topic, "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
    consumer = Consumer({**track.settings.kafka.client(), **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[tuple[float, float, int]] = []
    seen: set[tuple[str, str]] = set()
    deadline = time.time() + 120
    try:
        while not found or time.time() < found[0][1] + WARM + MEASURED:
            assert found or time.time() < deadline, "no result came within two minutes"
            for message in consumer.consume(1000, 0.01):
                now = time.time()
                row = orjson.loads(message.value())
                place = row["window_end"], row["key"]
                assert place not in seen, f"a window gave two results: {row}"
                seen.add(place)
                found.append((start_of(row["window_end"]) / 1000, now, row["hits"]))
        return found
    finally:
        consumer.close()
