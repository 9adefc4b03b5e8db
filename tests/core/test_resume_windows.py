"""What a job that was stopped with windows leaves for the next one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from coordinator.core.admission import resume_refusal
from coordinator.core.state import Job
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.resuming import resume_problems
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


@pytest.mark.parametrize(
    "other",
    [{"emit": "changes"}, {"allowed_lateness": "5 min"}, {"grace": "5 min"}, {"late": "edge"}],
)
def test_windows_with_one_result_are_no_windows_with_several(other: dict[str, Any]) -> None:
    """The columns of their states differ. The client says so before the job is stopped. Other lengths are taken."""
    old = counting()
    several = msgspec.structs.replace(COUNTED, **other)
    new = msgspec.structs.replace(
        old, catalog=[msgspec.structs.replace(t, window=several) if t.window else t for t in old.catalog]
    )
    differs = set(other) & {"emit", "allowed_lateness"}
    for before, after, said in ((old, new, "may give one result, and several"), (new, old, "several results, and one")):
        problems = list(resume_problems("j-1", Predecessor(before, "running").once_ended(), after))
        assert [problem.task for problem in problems] == ["count"] * bool(differs)
        assert all(said in problem.cause for problem in problems)
        assert not list(resume_problems("j-1", Predecessor(before, "running").once_ended(), after, reshards=False))


def test_by_the_rules_before_no_state_moves_to_other_partitions() -> None:
    """A log that the release before has written is decided as it was."""
    assert "has no place in the new job" in refusal("stopped", FEWER, rules=3)
    assert refusal("stopped", KEPT, rules=3) == ""
