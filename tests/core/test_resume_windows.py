"""What a job that was stopped with windows leaves for the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.core.admission import resume_refusal
from coordinator.core.state import Job
from sardonyx.core.spec import JobSpec, TaskSpec
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


def refusal(status: str) -> str:
    """Why the next job cannot resume one with windows that has ended so; empty if it can, as far as windows go."""
    tasks = {"read": SimpleNamespace(positions={"t": [7]}), "count": SimpleNamespace(positions={})}
    before: dict[str, Any] = {"refused": False, "links": "gone", "resumed_by": "", "status": status, "tasks": tasks}
    found = resume_refusal("j-2", counting(), "j-1", cast("Job", SimpleNamespace(spec=counting(), **before)))
    return "" if found is None else found.message


@pytest.mark.parametrize(("status", "refused"), [("stopped", True), ("completed", False)])
def test_a_job_that_was_stopped_with_windows_is_not_resumed(status: str, refused: bool) -> None:
    """What its open windows had counted would be missing. Those of a completed one have closed."""
    assert ("count had a state" in refusal(status)) is refused
