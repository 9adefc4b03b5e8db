"""What a job that keeps its lineage costs: the same jobs with and without it."""

from __future__ import annotations

import functools

import pyarrow as pa
from performance_chain import chained
from performance_track import Row, Track, raced
from performance_windows import generated, our_windows, results
from window_figures import expected, steady

GOAL = 0.97
"""Of the speed without it."""


def lineage(track: Track, runs: int) -> list[Row]:
    """Functions one after the other, and windows: fronts go through each link, and shards keep what they hold."""
    wanted = expected(pa.concat_tables(generated(track.records)), "key")

    def windows(*, kept: bool) -> float:
        return steady(results(track, our_windows(track, "key", lineage=kept)[1], "key"), wanted, once=True)

    return [
        raced(
            "a chain of 4 functions with lineage=True",
            "the same without",
            GOAL,
            runs,
            functools.partial(chained, track, lineage=True),
            functools.partial(chained, track),
        ),
        raced(
            "windowed count per key with lineage=True",
            "the same without",
            GOAL,
            runs,
            functools.partial(windows, kept=True),
            functools.partial(windows, kept=False),
        ),
    ]
