"""A join of two streams beside that of Structured Streaming: each record of the source with itself, read twice."""

from __future__ import annotations

import functools

import numpy as np
from performance_track import Track
from performance_watch import daemons
from performance_windows import committed, explain
from races import Row, race_all
from topic_to_topic import PARTITIONS, SCHEMA
from window_figures import joined_rate

from sardonyx import Job, event_time, kafka
from sardonyx.client.views import JobView
from sardonyx.job.load import load_job

TASKS = 4
"""Of the job, and its virtual peers: two that read, one that joins, one that writes."""


def join(track: Track, runs: int) -> list[Row]:
    """Every row has a key of its own and one partner."""

    def ours() -> float:
        _, target, since = run(track)
        return joined_rate(*results(track, target), track.records, since)

    def theirs() -> float:
        given = track.given("join", bounded=True)
        return joined_rate(*results(track, track.finished("structured_join", given)), track.records)

    row = Row("join of two streams, a key a row", "Structured Streaming, RocksDB, at least once", 2)
    found = race_all(runs, ours, [(row, theirs)])
    explain(track, found, "join", lambda where: run(where)[0])
    return found


def join_job(source: str, target: str) -> Job:
    """JSON to JSON."""
    job = Job("bench-join", partitions=PARTITIONS)
    topic = functools.partial(kafka, source, schema=SCHEMA, start="earliest", end="latest")
    left = job.input("left", topic(), time=event_time("at", delay="1 s"))
    right = job.input("right", topic(), time=event_time("at", delay="1 s"))
    both = job.join("both", left, right, on="id", within="1 s")
    job.output("write", kafka(target), after=both)
    return job


def run(track: Track) -> tuple[JobView, str, float]:
    """Run the job to its end; the topic with its results, and when it had read its first batch (seconds since 1970)."""
    target = track.target()
    with daemons(track, TASKS) as found:
        view = found.client.submit(load_job(join_job(track.source, target))).await_completion(900)
        assert view.status == "completed", view
        return view, target, found.begun("left", "right")


def results(track: Track, topic: str) -> tuple[np.ndarray, np.ndarray]:
    """The ids in the output, and when the broker got them, in seconds since 1970."""
    found = [(row["id"], written) for row, written in committed(track, topic)]
    ids, written = np.array(found, np.int64).reshape(-1, 2).T
    return ids, written / 1000
