"""The oracle of jobs that go on from each other finds what it is there for, also between two rollbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.positions import Partition
from tests.simulation.chain_oracle import ChainOracle, Counted, Leg, Panes
from tests.simulation.time_oracle import Window
from tests.simulation.timed_plans import SECOND, Row, going_back_plan

A, B = ("a", 0), ("b", 10 * SECOND)
"""Windows of ten seconds. With a grace of five seconds they close at 15 and at 25."""
BACK = Leg("j-3", "j-2", 20 * SECOND, {})
"""The second rollback: to a checkpoint at 20 seconds."""


def oracle_of(rows: Iterable[Row] = (), idle: Iterable[int] = (), *, before: Iterable[Window] = ()) -> Any:
    """``idle``: partitions of the source that were idle once. ``before``: windows that had rows by the second rollback."""
    oracle = object.__new__(ChainOracle)
    oracle._world = SimpleNamespace(rows=list(rows))  # type: ignore[assignment]
    oracle._idle = {Partition("rows", number) for number in idle}
    oracle._bases = {("j-3", "count"): Counted(Counter(dict.fromkeys(before, 1)))}
    return oracle


def tasks_of(grace: str = "5 s") -> list[Stage]:
    """One task with windows."""
    plans = (going_back_plan(str(seed)).jobs[0].spec for seed in range(20))
    spec = next(spec for spec in plans if sum(task.window is not None for task in spec.catalog) == 1)
    catalog = [
        task if task.window is None else replace(task, window=replace(task.window, grace=grace, allowed_lateness=0))
        for task in spec.catalog
    ]
    stages = graph_of(replace(spec, catalog=catalog), "sim", "j").stages
    return [stage for stage in stages if stage.task.window is not None]


def given(*windows: Window) -> Panes:
    return {window: {0: {"hits": 1, "final": True}} for window in windows}


def counted(*windows: Window) -> Counted:
    return Counted(Counter(dict.fromkeys(windows, 1)))


def test_a_window_that_only_the_middle_of_three_jobs_could_give_is_missed() -> None:
    """After a rollback to 10 s the window that closes at 15 s is due before the next rollback, to 20 s; the other one is not."""
    oracle = oracle_of(before=[A, B])
    oracle._due(10 * SECOND, given(A), counted(A, B), tasks_of(), BACK)
    with pytest.raises(AssertionError, match="is not given again"):
        oracle._due(10 * SECOND, {}, counted(A, B), tasks_of(), BACK)
    with pytest.raises(AssertionError, match="is not given again"):
        oracle._due(10 * SECOND, given(A), counted(A, B), tasks_of(), None)


def test_a_window_without_rows_is_strange_whichever_job_gives_it() -> None:
    """A result that the middle job makes up is no less wrong than one of the last job."""
    oracle = oracle_of(before=[A])
    for after in (BACK, None):
        with pytest.raises(AssertionError, match="no rows"):
            oracle._due(10 * SECOND, given(A, B), counted(A), tasks_of(), after)


def test_a_window_that_had_closed_before_the_checkpoint_is_not_given_again() -> None:
    """At 20 s the window that closed at 15 s is in no state any more."""
    oracle = oracle_of()
    oracle._due(20 * SECOND, given(B), counted(A, B), tasks_of(), None)
    with pytest.raises(AssertionError, match="had closed before"):
        oracle._due(20 * SECOND, given(A, B), counted(A, B), tasks_of(), None)


def test_an_idle_partition_excuses_its_own_rows_only() -> None:
    """The rows of the other partitions are never late, so they count."""
    rows = [Row(1.0, 0, "a", 0, 0), Row(2.0, 1, "b", 10 * SECOND, 1)]
    oracle_of(rows, [0])._against_the_rows(Counter({B: 1}))
    for lost, idle in ((A, [0]), (B, [])):
        with pytest.raises(AssertionError, match="lack"):
            oracle_of(rows, idle)._against_the_rows(Counter({lost: 1}))
