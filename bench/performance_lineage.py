"""What a job that keeps its lineage costs: the same jobs with and without it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pyarrow as pa
from performance_chain import chained
from performance_track import Track
from performance_windows import generated, our_windows, results
from races import Row, paired
from window_figures import expected, steady

GOAL = 0.97
"""Of the processor time without it."""


def lineage(track: Track, runs: int) -> list[Row]:
    """Functions one after the other, and windows: fronts go through each link, and shards keep what they hold.

    Two runs of one job differ by a tenth and more in records a second. What a record takes of the processor differs less, so
    the goal is about that; and runs are nearly twice as many as elsewhere.
    """
    wanted = expected(pa.concat_tables(generated(track.records)), "key")

    def windows(where: Track, *, lineage: bool = False) -> tuple[float, float]:
        found = our_windows(where, "key", lineage=lineage)
        rate = steady(results(where, found.topic, "key"), wanted, once=True, since=found.since)
        return rate, found.processor / where.records * 1e6

    kinds: tuple[tuple[str, Callable[..., tuple[float, float]]], ...] = (
        ("a chain of 4 functions with lineage=True", chained),
        ("windowed count per key with lineage=True", windows),
    )
    rows: list[Row] = []
    for title, run in kinds:
        beside = [
            Row(title, "the same without", None),
            Row(f"{title}, processor", "the same without", GOAL, unit="µs a record", fine=True),
        ]
        rows += paired(
            beside, 2 * runs - 1, functools.partial(run, track, lineage=True), functools.partial(run, track.beside)
        )
    return rows
