"""Which tasks a change leaves as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from sardonyx import Job, event_time, kafka
from sardonyx.core.changing import numbered
from sardonyx.core.cycles import standing
from sardonyx.core.events import RULES, Counts, LinkFacts
from sardonyx.core.fronts import Front, offset_of
from sardonyx.core.graph import Graph, Link, graph_of
from sardonyx.core.link_counts import Positions
from sardonyx.core.positions import Partition, Position
from sardonyx.core.source_fronts import Fronts, Sources
from sardonyx.core.spec import CycleSpec, JobSpec, TaskSpec
from sardonyx.core.untouched import untouched, used_by

TASKS = ["a", "b", "c", "d"]


def same(row: dict) -> dict:
    return row


def other(row: dict) -> dict:
    return row


def other_rows(row: dict) -> dict:
    return row


def late(rows: pa.Table) -> pa.Array:
    return rows["n"]


def key(row: dict) -> int:
    return int(row["n"])


def a_job(*parts: str, tasks: Mapping[str, Mapping[str, Any]] | None = None, **settings: Any) -> JobSpec:
    """``read -> a -> b -> c -> out`` and ``read -> d -> beside``, and what is named: ``tap`` after a, ``more`` after read,
    ``again``: a second input before d.
    """
    job = Job("growing", **{"partitions": 2, **settings})
    time = event_time("at", unit="ms") if "timed" in parts else None
    read = job.input(
        "read", kafka("in", schema="n long, at long", end="latest" if "ends" in parts else None), time=time
    )
    given = {name: {"fn": same, **(tasks or {}).get(name, {})} for name in TASKS}
    a = job.task("a", given["a"].pop("fn"), after=read, **given["a"])
    b = job.task("b", given["b"].pop("fn"), after=a, **given["b"])
    c = job.task("c", given["c"].pop("fn"), after=b.where(late) if "where" in parts else b, **given["c"])
    job.output("out", kafka("renamed" if "renamed" in parts else "out"), after=c)
    if "tap" in parts:
        job.output("tapped", kafka("tapped"), after=job.task("tap", same, after=a))
    if "more" in parts:
        job.output("kept", kafka("kept"), after=job.task("more", same, after=read))
    second = [job.input("again", kafka("again", schema="n long, at long"))] if "again" in parts else []
    job.output(
        "beside", kafka("beside"), after=job.task("d", given["d"].pop("fn"), after=[read, *second], **given["d"])
    )
    return job.spec()


def left(new: JobSpec, *, old: JobSpec | None = None, known: list[str] | None = None) -> list[str]:
    old = old or a_job()
    facts = {link.name: LinkFacts(2) for link in graph_of(old, "", "").links}
    return untouched(old, new, TASKS if known is None else known, facts)


@pytest.mark.parametrize(
    ("new", "touched"),
    [
        (a_job(), ""),
        (a_job(failure_limit=9), ""),
        (a_job(weight=2.0), ""),
        (a_job("more"), ""),
        (a_job("again"), "d"),
        (a_job("tap"), "ab"),
        (a_job("where"), "b"),
        (a_job("renamed"), "c"),
        (a_job(tasks={"b": {"fn": other}}), "b"),
        (a_job(tasks={"b": {"params": {"x": 1}}}), "b"),
        (a_job(tasks={"b": {"batch_size": 5}}), "ab"),
        (a_job(tasks={"b": {"max_peers": 2}}), "b"),
        (a_job(tasks={"d": {"on_error": "dead_letter"}}), "d"),
        (a_job(tasks={"b": {"on_error": "skip"}}), "ab"),
        (a_job(tags=["gpu"]), "abcd"),
        (a_job("timed"), "abcd"),
        (a_job(checkpoint_every="1 min"), "abcd"),
        (a_job("again", lineage=True), "abcd"),
    ],
)
def test_a_task_is_touched_if_its_peers_would_know_something_else(new: JobSpec, touched: str) -> None:
    """Of itself, its queues, the whole job, batches and bad records of its readers, or where rows written for it are counted."""
    assert left(new) == [name for name in TASKS if name not in touched]


def test_by_rules_3_a_task_does_not_know_what_its_readers_leave_out() -> None:
    old, new = a_job(), a_job(tasks={"b": {"on_error": "skip"}})
    facts = {link.name: LinkFacts(2) for link in graph_of(new, "", "").links}
    assert untouched(old, new, TASKS, facts, rules=3) == ["a", "c", "d"]


def test_other_code_touches_a_task() -> None:
    """The client says which functions are the same in the code of both versions. What it does not say is not so."""
    assert left(a_job("tap"), known=["a", "d"]) == ["d"]
    assert left(a_job("tap"), known=[]) == []


def test_a_reader_of_numbered_queues_stays() -> None:
    """The first change of a task's queues numbers them, and its readers learn that. By the next one they know where to look."""
    old, new, third = a_job(), a_job("tap"), a_job()
    facts = {link.name: LinkFacts(2) for link in graph_of(new, "", "").links}
    known, _ = numbered(graph_of(old, "", ""), graph_of(new, "", ""), facts, 0, 2)
    assert untouched(new, third, TASKS, known) == ["b", "c", "d"]
    assert [name for name, each in known.items() if each.place is not None] == ["a.b", "a.tap"]
    assert untouched(new, third, TASKS, facts) == ["c", "d"]


def a_loop(*more: str) -> JobSpec:
    """``in -> a -> b -> c -> out``, with a loop from c back to a; ``more``: outputs after b."""
    edges = [("in", "a"), ("a", "b"), ("b", "c"), ("c", "out"), *(("b", name) for name in more)]
    tasks = [TaskSpec(name=name, type="function", fn="m:f") for name in "abc"]
    outs = [TaskSpec(name=name, type="output", connector="blackhole") for name in ("out", *more)]
    read = TaskSpec(name="in", type="input", connector="kafka", options={"topic": "t"})
    cycles = [CycleSpec(name="loop", back=[("c", "a")])]
    return JobSpec(name="loop", workflow=edges, catalog=[read, *tasks, *outs], cycles=cycles)


@pytest.mark.parametrize("rules", [3, RULES])
def test_who_proves_the_end_of_a_loop_knows_how_all_of_it_counts(rules: int) -> None:
    """Once b counts its rows under numbers, a peer of a that does not know these never finds that the loop has ended, and the job
    could not be stopped. By rules 3 such a peer stays.
    """
    old, new, third = a_loop(), a_loop("tap"), a_loop("other")
    before, after, last = (graph_of(spec, "d", "j") for spec in (old, new, third))
    facts = {link.name: LinkFacts(1) for spec in (before, after, last) for link in spec.links}
    known, places = numbered(before, after, {link.name: facts[link.name] for link in after.links}, 0, 2)
    cycle = before.cycles[0]

    def read(link: Link, *told: int) -> dict[Partition, Position | None]:
        return {Partition(link.topic, 0): Position(9, Counts(rows_in=5), told=told)}

    held = {link.name: link for link in after.links}
    answers: dict[str, Positions] = {
        "a": {Partition("t", 0): Position(5, Counts(), "end", told=(0,)), **read(held["c.a"], 5)},
        "b": read(held["a.b"], 5, 5),
        "c": read(held["b.c"], 5, 5),
    }
    assert standing(after, cycle, known, answers).quiescent
    assert standing(before, cycle, facts, answers).uncounted == ["b.c"]
    same = ["a", "b", "c", "out"]
    assert untouched(old, new, same, facts, rules) == (["a", "out"] if rules < 4 else ["out"])

    later, _ = numbered(
        after, last, {link.name: known.get(link.name, facts[link.name]) for link in last.links}, places, 3
    )
    assert standing(last, cycle, later, answers).quiescent
    assert standing(after, cycle, known, answers).quiescent  # as a peer knows it that stays
    assert untouched(new, third, same, known, rules) == ["a", "c", "out"]


def test_a_join_whose_rows_a_function_makes_from_now_on_begins_anew() -> None:
    """By a schema that is declared for an input, it gives rows without a partner columns that are null."""

    def joined(**given: Any) -> JobSpec:
        job = Job("joins", partitions=2)
        time = event_time("at", unit="ms")
        left = job.input("left", kafka("left", schema="k string, at long"), time=time)
        right = job.input("right", kafka("right", schema="k string, v long, at long"), time=time, **given)
        job.output(
            "out", kafka("out"), after=job.join("pairs", left, right, on="k", within="10 s", how="left", prefix="r_")
        )
        return job.spec()

    plain, made, other = joined(), joined(fn=same), joined(fn=other_rows)
    facts = {link.name: LinkFacts(2) for link in graph_of(plain, "", "").links}
    known = ["left", "right", "pairs"]
    assert untouched(plain, made, known, facts) == untouched(made, plain, known, facts) == ["left"]
    assert untouched(plain, made, known, facts, rules=3) == ["left", "pairs"]
    assert untouched(made, other, ["left", "pairs"], facts) == ["left", "pairs"]


def two_sources(*, joined: bool) -> JobSpec:
    """``one -> x -> a -> b -> out`` and ``two -> y -> beside``; ``joined``: a reads y, too."""
    edges = [("one", "x"), ("x", "a"), ("a", "b"), ("b", "out"), ("two", "y"), ("y", "beside"), *[("y", "a")] * joined]
    tasks = [TaskSpec(name=name, type="input", connector="kafka", options={"topic": name}) for name in ("one", "two")]
    tasks += [TaskSpec(name=name, type="function", fn="m:f") for name in "xyab"]
    tasks += [TaskSpec(name=name, type="output", connector="blackhole") for name in ("out", "beside")]
    return JobSpec(name="j", workflow=edges, catalog=tasks, lineage=True)


def test_a_task_that_another_source_comes_to_begins_anew() -> None:
    """What it states of that source would say that no row of it still comes, and progress that all of its rows are through. So
    would what was stated before the change, if that said anything about a source that does not come there.
    """
    old, new = two_sources(joined=False), two_sources(joined=True)
    before, after = (graph_of(spec, "d", "j") for spec in (old, new))
    facts = {link.name: LinkFacts(1) for link in after.links}
    same = [stage.name for stage in before.stages]
    assert {"a", "b", "out"}.isdisjoint(untouched(old, new, same, facts))
    assert "out" in untouched(old, new, same, facts, rules=3)
    place = Partition(next(link.topic for link in before.links if link.name == "b.out"), 0)
    earlier = Partition(next(link.topic for link in before.links if link.name == "a.b"), 0)

    def states(graph: Graph, task: str, front: Front) -> Front:
        where = earlier if task == "b" else place
        found = Fronts(Sources(graph), graph.stage(task), [where])
        return found.front({where: Position(5, front=front)})

    stated = states(before, "b", ((7,),))
    assert offset_of(stated, 0, 0) == 7
    assert offset_of(states(after, "out", stated), 1, 0) == 0  # nothing is known of it yet
    assert offset_of(states(after, "out", ((7,), (3,))), 1, 0) == 3


def test_what_the_peers_of_a_task_call() -> None:
    """Its function, conditions and keys of what comes after it, and that for all tasks in its batches."""
    job = Job("growing", partitions=2)
    read = job.task("a", same, after=job.input("read", kafka("in", schema="n long")))
    fused = job.task("b", other, after=read, fuse=True)
    job.output("out", kafka("out"), after=job.task("c", same, after=fused.where(late), group_by=key))
    stage = graph_of(job.spec(), "", "").stage("a")
    assert [name.partition(":")[2] for name in used_by(stage)] == ["same", "other", "late", "key"]
    assert replace(stage, fused=[]) != stage
