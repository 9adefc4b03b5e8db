"""What a job that goes on with the state of a join, or of a lookup, may have another of."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from relation_histories import entries, times

from sardonyx.core.clocks import NEVER
from sardonyx.core.joining import RelationKind, RelationSpec
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.resuming import resume_problems
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.timing import TimeSpec
from sardonyx.state.joins import JoinShard
from sardonyx.state.memory import MemoryStore
from sardonyx.state.row_pack import SCHEMA
from sardonyx.state.sides import LEFT, RIGHT, SidedPiece


def joining(how: Any, kind: RelationKind = "join") -> JobSpec:
    relation = RelationSpec(kind=kind, left="views", right="orders", how=how, within="1 h" if kind == "join" else None)
    inputs = [
        TaskSpec(name=name, type="input", connector="kafka", options={"topic": name}, time=TimeSpec(column="at"))
        for name in ("views", "orders")
    ]
    return JobSpec(
        name="j",
        workflow=[("views", "both"), ("orders", "both"), ("both", "out")],
        catalog=[
            *inputs,
            TaskSpec(name="both", type="function", group_by=["view"], relation=relation),
            TaskSpec(name="out", type="output", connector="blackhole"),
        ],
    )


@pytest.mark.parametrize(
    ("kind", "before", "after", "goes_on"),
    [
        ("join", "inner", "left", False),
        ("join", None, "left", False),
        ("join", "left", "inner", True),
        ("join", "left", None, True),
        ("join", None, "inner", True),
        ("lookup", "inner", "left", True),
        ("lookup", "inner", None, True),
        ("lookup", "left", "inner", True),
    ],
)
def test_a_join_that_gave_no_results_without_a_partner_gives_none_of_what_it_kept(
    kind: RelationKind, before: str | None, after: str | None, goes_on: bool
) -> None:
    """An inner join does not note which of its rows have had a partner. So a left join that would go on with its state is
    refused. A lookup gives its results when they are due, and goes on in any case.
    """
    old, new = joining(before, kind), joining(after, kind)
    ended = Predecessor(old, "running").once_ended()
    problems = list(resume_problems("j-1", ended, new))
    assert [problem.task for problem in problems] == ([] if goes_on else ["both"])
    assert all('how="left"' in problem.cause for problem in problems)
    assert not list(resume_problems("j-1", ended, new, reshards=False)), (
        "a log of the rules before is decided as it was"
    )
    renamed = [msgspec.structs.replace(task, name="anew") if task.name == "both" else task for task in new.catalog]
    edges = [(one.replace("both", "anew"), other.replace("both", "anew")) for one, other in new.workflow]
    assert list(resume_problems("j-1", ended, msgspec.structs.replace(new, workflow=edges, catalog=renamed)))


def piece(side: int, *at: int) -> SidedPiece:
    return SidedPiece(pa.table({"k": ["a"] * len(at), "t": pa.array(at, pa.int64())}), NEVER, side)


def test_an_inner_join_keeps_nothing_of_the_left_join_before_it() -> None:
    """What a left join notes of rows without a partner would stay in the state, and count for its limit."""
    store = MemoryStore(SCHEMA)

    def plan(how: Any, clock: int, *pieces: SidedPiece) -> list[int]:
        spec = RelationSpec(kind="join", left="l", right="r", how=how, within=5, prefix="r_")
        shard = JoinShard(spec, (["k"], ["k"]), store, (times, times), ordinal=True)
        planned = shard.plan(pieces, (clock, clock))
        again = shard.plan(pieces, (clock, clock))
        assert planned.changes.equals(again.changes), "the same call gives the same"
        store.apply(planned.changes)
        found: list[int] = planned.results["join_time"].to_pylist()
        return found

    assert plan("left", 0, piece(LEFT, 10, 20, 30), piece(RIGHT, 21)) == [21]
    assert plan("inner", 1) == []
    assert plan("inner", 2, piece(RIGHT, 11)) == [11]
    assert plan("inner", 1000) == []
    assert entries(store) == []
