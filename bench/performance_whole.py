"""Whole runs, from the start of the first process until the last record is written: where starting counts."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import pyarrow as pa
from environments import BYTEWAX, FLINK, KAFKA_STREAMS, ONCE, PATHWAY, STREAMS, entered
from performance_track import PART, Track, filter_job
from performance_windows import explain, generated, our_windows, results
from races import Row, race_all
from window_figures import expected, steady

BY = "key"
OPPONENTS = {"flink_sql": FLINK, KAFKA_STREAMS: STREAMS, "bytewax_flow": BYTEWAX, "pathway_rows": PATHWAY}


def whole(track: Track, runs: int) -> list[Row]:
    """A filter, and a windowed count."""
    return [*_filters(track, runs), *_windows(track, runs)]


def _filters(track: Track, runs: int) -> list[Row]:
    def theirs(name: str) -> float:
        return track.theirs(name, part=PART).whole

    beside = _beside(f"whole run, filter and map, {track.records:,} records", theirs, bytewax_flow=0.7)
    rows = race_all(runs, lambda: track.ours(filter_job, PART).whole, beside)
    explain(track, rows, "whole-filter", lambda where: where.completed(filter_job(where.source, where.target())))
    return rows


def _windows(track: Track, runs: int) -> list[Row]:
    wanted = expected(pa.concat_tables(generated(track.records)), BY)

    def rate(target: str, run: Callable[[], object], *, once: bool) -> float:
        """Records a second; raises if the results are not what they should be. ``once``: a window gives one."""
        began = time.time()
        run()
        found = results(track, target, BY)
        steady(found, wanted, once=once)
        return track.records / float(found.written.max() - began)

    def ours() -> float:
        target = track.target()
        return rate(target, lambda: our_windows(track, BY, target), once=True)

    def theirs(name: str) -> float:
        given = track.given("windows", bounded=True, by=BY)
        return rate(given["topics"][-1], lambda: track.finished(name, given), once=name in ONCE)

    title = f"whole run, windowed count per key, {track.records:,} records"
    rows = race_all(runs, ours, _beside(title, theirs, pathway_rows=1.2, flink_sql=2))
    explain(track, rows, "whole-window", lambda where: our_windows(where, BY).view)
    return rows


def _beside(title: str, theirs: Callable[[str], float], **goals: float) -> list[tuple[Row, Callable[[], float]]]:
    """All of the opponents; those without a goal are only reported."""
    return [
        (entered(Row(title, against, goals.get(name)), name), functools.partial(theirs, name))
        for name, against in OPPONENTS.items()
    ]
