"""What a job that was stopped with windows leaves for the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.core.admission import resume_refusal
from coordinator.core.state import Job
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.state_points import EndPoint
from sardonyx.core.timing import AggregateSpec, TimeSpec, WindowSpec

COUNTED = WindowSpec(kind="tumbling", size="1 min", aggregate={"hits": AggregateSpec(of="count")})


def counting() -> JobSpec:
    return JobSpec(
        name="j",
        workflow=[("read", "count"), ("count", "out")],
        catalog=[
            TaskSpec(name="read", type="input", connector="kafka", options={"topic": "t"}, time=TimeSpec(column="at")),
            TaskSpec(name="count", type="function", group_by=["user"], window=COUNTED),
            TaskSpec(name="out", type="output", connector="blackhole"),
        ],
    )


def refusal(status: str, end: EndPoint | None, *, rules: int = 4) -> str:
    """Why the next job cannot resume one with windows that has ended so; empty if it can, as far as windows go."""
    tasks = {"read": SimpleNamespace(positions={"t": [7]}), "count": SimpleNamespace(positions={})}
    before: dict[str, Any] = {
        "refused": False,
        "links": "gone",
        "resumed_by": "",
        "closes": False,
        "retired": [],
        "status": status,
        "tasks": tasks,
        "checkpoints": [],
        "end": end,
    }
    jobs = {"j-1": cast("Job", SimpleNamespace(spec=counting(), **before))}
    found = resume_refusal("j-2", counting(), "j-1", jobs, reshards=rules > 3)
    return "" if found is None else found.message


KEPT = EndPoint(60, {"count": [(3, 0, 0)] * 8})
FEWER = EndPoint(60, {"count": [(3, 0, 0)] * 4})


@pytest.mark.parametrize(
    ("status", "end", "why"),
    [
        ("stopped", None, "the state of its task count"),
        ("stopped", KEPT, ""),
        ("stopped", FEWER, ""),
        ("stopped", EndPoint(60, {}), "has no place in the new job"),
        ("completed", None, ""),
    ],
)
def test_a_job_that_was_stopped_with_windows_is_resumed_with_them(status: str, end: EndPoint | None, why: str) -> None:
    """If what its open windows had counted is known; else that would be missing. Those of a completed one have closed."""
    found = refusal(status, end)
    assert why in found
    assert bool(found) == bool(why)


def test_by_the_rules_before_no_state_moves_to_other_partitions() -> None:
    """A log that the release before has written is decided as it was."""
    assert "has no place in the new job" in refusal("stopped", FEWER, rules=3)
    assert refusal("stopped", KEPT, rules=3) == ""
