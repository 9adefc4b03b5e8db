"""``examples/traffic`` counts the hits of each user in each minute, and keeps apart those that come too late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sardonyx.testing import ClockedRun

TRAFFIC = Path(__file__).parents[2] / "examples" / "traffic" / "job.py"


def hit(user: str, at: str, ms: float) -> dict[str, Any]:
    return {"user": user, "at": f"2026-11-23T{at}Z", "ms": ms}


@pytest.fixture
def run(sardonyx_clocked: Callable[..., ClockedRun]) -> ClockedRun:
    return sardonyx_clocked(TRAFFIC, topics={"hits": 2})


def counts(run: ClockedRun) -> list[tuple[Any, ...]]:
    return sorted((row["user"], row["window_start"][11:16], row["hits"], row["mean"]) for row in run.rows("counts"))


def test_a_minute_takes_late_hits_until_its_grace_is_over(run: ClockedRun) -> None:
    """Until 10 seconds after its end by the clock, which is that of the slowest partition, less 5 seconds."""
    run.give("hits", [hit("ada", "12:00:10", 10.0), hit("ada", "12:01:14", 30.0)])
    run.give("hits", [hit("bob", "12:00:20", 5.0), hit("bob", "12:01:14", 5.0)], partition=1)
    run.give("hits", [hit("ada", "12:00:40", 20.0)])
    assert counts(run) == []
    run.give("hits", [hit("ada", "12:01:30", 30.0)])
    assert counts(run) == []  # the other partition holds the clock
    run.give("hits", [hit("bob", "12:01:15", 5.0)], partition=1)
    assert counts(run) == [("ada", "12:00", 2, 15.0), ("bob", "12:00", 1, 5.0)]
    run.give("hits", [hit("ada", "12:00:50", 99.0)])
    assert [(row["user"], row["ms"]) for row in run.rows("late")] == [("ada", 99.0)]
    assert counts(run) == [("ada", "12:00", 2, 15.0), ("bob", "12:00", 1, 5.0)]


def test_a_partition_without_hits_holds_back_no_other_for_long(run: ClockedRun) -> None:
    run.give("hits", [hit("ada", "12:00:10", 10.0)])
    run.advance("61 s")
    run.give("hits", [hit("ada", "12:02:00", 10.0)])
    assert counts(run) == [("ada", "12:00", 1, 10.0)]
