"""What a part of us costs, beside as little as can do the same: the start, an internal link, exactly once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from performance_track import HERE, Track, busy, filter_job, opponent, smaller
from performance_watch import PRODUCT, daemons
from performance_windows import window_job
from races import Row, raced

from sardonyx import Job, blackhole, generator
from sardonyx.job.load import load_job

SEVERAL = 10
"""Times the records of other parts: rows on a link are fast,"""
MORE = 3
"""and so much faster in large batches."""
ROWS = 200_000
"""Of a batch on the link, where many rows are what is asked for; with ``batch_timeout`` long enough for as many to come."""


def bare_spark() -> float:
    """Seconds from the start of Python to the end of the first job of a Spark session."""
    code = (
        "from pyspark.sql import SparkSession as S; S.builder.master('local[*]').getOrCreate().range(1).count(); "
        "print('done', flush=True)"
    )
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        return time.perf_counter() - began


def session(track: Track, runs: int) -> list[Row]:
    """From nothing to the end of a small job, beside the start of a Spark session: with a function, and of windows without one,
    for which no Spark starts.
    """
    row = Row(
        "start to the end of 10,000 records", "start of a bare Spark session, with a first job", 1 / 1.5, unit="s"
    )
    windows = Row(
        "the same, windows without a function", "start of a bare Spark session, with a first job", 1, unit="s"
    )
    with smaller(track, 10_000) as small:

        def counted() -> float:
            target = small.target()
            began = time.time()
            with small.cluster() as client:
                view = client.submit(load_job(window_job(small.source, target, "key"))).await_completion(900)
                ended = time.time()
            assert view.task("work").rows_in == small.records, view
            return ended - began

        for _ in range(runs):
            theirs = bare_spark()
            for each, ours in ((row, small.ours(filter_job, 0.9).took), (windows, counted())):
                each.theirs.append(theirs)
                each.ours.append(ours)
                each.ratios.append(theirs / ours)
    return [row, windows]


def link(track: Track, runs: int) -> list[Row]:
    """One internal link and an Arrow function behind it, beside a loop that calls the function.

    Ours, from a tenth to nine tenths of what the reading task has committed: rows made by the generator on one of Spark's
    workers, cut into Arrow blocks and written by one virtual peer; read by another, which hands them to Spark's workers,
    takes the results back, forgets them, and commits its positions; each in transactions, both on the same machine at once. So
    it is all that a row costs from the task before to the task's result, making the rows included.

    Theirs: nothing but calls of the function, on tables of as many rows that lie in memory already, in one process.
    """
    many: dict[str, Any] = {"batch_size": ROWS, "batch_timeout": "1 s"}
    return [
        raced(
            f"rows over a link{what}",
            "the same function in plain Python",
            goal,
            runs,
            ours,
            lambda: looped(track, busy),
        )
        for what, goal, ours in (
            (f", batches of {ROWS:,}", 0.5, lambda: linked(track, busy, MORE, **many)),
            (", batches as they are by default", None, lambda: linked(track, busy)),
        )
    ]


def linked(track: Track, function: Callable[[pa.Table], pa.Table], times: int = 1, **more: Any) -> float:
    """Rows a second of ours; ``more`` is for both tasks."""
    records = track.records * SEVERAL * times
    job = Job("bench-link")
    made = job.input("make", generator(count=records), max_peers=1, **more)
    job.output("work", blackhole(), function, after=made, max_peers=1, **more)
    with daemons(track, track.peers) as found:
        view = found.client.submit(load_job(job)).await_completion(900)
        assert view.task("work").rows_out == records, view
        return found.commits("work").steady


def looped(track: Track, function: Callable[[pa.Table], pa.Table]) -> float:
    """Rows a second of a loop."""
    given = {
        **track.given("link", bounded=True),
        "records": track.records * SEVERAL,
        "function": function.__name__,
    }
    with opponent("plain_arrow", given) as process:
        said = [line.strip() for line in process.stdout or ()]
        assert len(said) == 2, f"plain_arrow failed; see {given['folder']}"
        return float(said[1])


def cost(track: Track, runs: int) -> list[Row]:
    """Topic to topic as it is, beside daemons that write without transactions (`plain_peer.py`) and are else the same."""

    def filtered(*program: str) -> float:
        target = track.target()
        began = time.time()
        with daemons(track, track.peers, program=program) as found:
            view = found.client.submit(load_job(filter_job(track.source, target))).await_completion(900)
            ended = time.time()
        assert view.status == "completed", view
        return track.landed(target, began, ended, part=0.9).steady

    return [
        raced(
            "topic to topic, filter and map",
            "the same without transactions, at least once",
            0.9,
            runs,
            lambda: filtered(*PRODUCT),
            lambda: filtered(str(HERE / "plain_peer.py")),
        )
    ]
