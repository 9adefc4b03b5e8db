"""Which tasks a change leaves as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from sardonyx import Job, event_time, kafka
from sardonyx.core.changing import numbered
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec
from sardonyx.core.untouched import untouched, used_by

TASKS = ["a", "b", "c", "d"]


def same(row: dict) -> dict:
    return row


def other(row: dict) -> dict:
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


def test_what_the_peers_of_a_task_call() -> None:
    """Its function, conditions and keys of what comes after it, and that for all tasks in its batches."""
    job = Job("growing", partitions=2)
    read = job.task("a", same, after=job.input("read", kafka("in", schema="n long")))
    fused = job.task("b", other, after=read, fuse=True)
    job.output("out", kafka("out"), after=job.task("c", same, after=fused.where(late), group_by=key))
    stage = graph_of(job.spec(), "", "").stage("a")
    assert [name.partition(":")[2] for name in used_by(stage)] == ["same", "other", "late", "key"]
    assert replace(stage, fused=[]) != stage
