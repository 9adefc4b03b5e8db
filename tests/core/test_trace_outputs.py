"""Where a record went in a topic of the user's: its records say from which offsets they were made, if their output is told to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from queues.messages import FROM_HEADER
from queues.origins import written
from sardonyx import Job, JobInvalid, kafka
from sardonyx.cli.progress_commands import lines_of
from sardonyx.client.record_trace import TaskOnWay, trace_of, with_way
from sardonyx.core.batch_origins import writer_of
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.core.record_way import Seen
from sardonyx.job.validate import validate
from sardonyx.testing import ClockedRun
from tests.core.test_job_progress import looked

Begin = Callable[..., ClockedRun]


def doubled(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Twice what is odd, nothing of what is even."""
    return [row, row] if row["n"] % 2 else []


def same(row: dict[str, Any]) -> dict[str, Any]:
    return row


def numbers(**option: Any) -> Job:
    """Two tasks, of which each writes to a topic, and a third output that says nothing."""
    job = Job("numbers", partitions=2, lineage=True)
    given = job.input("numbers", kafka("numbers", schema="n long", start="earliest"))
    double = job.task("double", doubled, after=given)
    last = job.task("last", same, after=double, group_by="n")
    job.output("early", kafka("early", **option), after=double)
    job.output("late", kafka("late", **option), after=last)
    job.output("silent", kafka("silent"), after=last)
    return job


def records(run: ClockedRun, link: Link) -> Iterable[Any]:
    return run._engine.topics.read(Partition(link.topic, 0))


def way(run: ClockedRun, offset: int, job: str = "") -> dict[str, TaskOnWay]:
    """The way of a record, as a client reads it from the topics."""
    engine = run._engine

    def read(link: Link, _enough: Any) -> dict[int, Seen]:
        writer = "" if link.owned else writer_of(job or engine.spec.name, link.source)
        return {
            number: Seen(
                [
                    each
                    for each in (written(m, writer=writer) for m in engine.topics.read(Partition(link.topic, number)))
                    if each is not None
                ],
                0,
                0,
                to_end=True,
            )
            for number in range(engine.facts[link.name].partitions)
        }

    def end(_place: Partition) -> int:
        raise AssertionError("the record was read")

    found = trace_of("numbers", engine.graph, looked(run), ("numbers", 0, offset), end)
    return {each.task: each for each in with_way(found, engine.graph, looked(run), read).tasks}


def places(task: TaskOnWay, topic: str) -> set[int]:
    """The offsets in a topic of the user's among which a record is."""
    return {
        offset
        for each in task.outputs
        if each.topic == topic and each.yours
        for first, last in each.offsets
        for offset in range(first, last + 1)
    }


def test_a_record_is_followed_into_topics_of_the_users(sardonyx_clocked: Begin) -> None:
    """In batches of one record it is certain where each went, also behind another task."""
    run = sardonyx_clocked(numbers(lineage=True), batch_size=1)
    run.give("numbers", [{"n": n} for n in (1, 2, 3)])
    found = way(run, 2)
    assert places(found["double"], "early") == {2, 3}
    assert all(each.sure for each in found["double"].outputs)
    assert {json.loads(run._engine.topics.read(Partition("late", 0))[at].value() or b"")["n"] for at in places(found["last"], "late")} == {3}  # fmt: skip
    lines = [line for task in found.values() for line in lines_of(task)]
    assert "double: it went to early[0]@2-3 (2 rows)" in lines
    assert any(line.startswith("last: it went to late[0]@") for line in lines), lines
    assert "last: not known: which records of silent it became: they say it only of an output with lineage=True" in lines
    assert not any("early" in text for text in found["double"].unknown)
    nothing = way(run, 1)["double"]
    assert places(nothing, "early") == set()
    assert "whether it is in early: no record there says so, as far as they are still there" in nothing.unknown


def test_every_record_of_a_topic_is_told_of_what_it_is_made_from(sardonyx_clocked: Begin, rng: random.Random) -> None:
    """Whatever batches and crashes there are: what was made of a record is among the offsets that are told of it."""
    for _ in range(4):
        run = sardonyx_clocked(numbers(lineage=True), batch_size=rng.randint(1, 5))
        given: list[int] = []
        for _ in range(rng.randint(1, 4)):
            fresh = [rng.randrange(100) for _ in range(rng.randint(1, 6))]
            run.give("numbers", [{"n": n} for n in fresh])
            given += fresh
            if rng.random() < 0.5:
                run.crash(rng.choice(["double", "last"]), rng.choice(["settled", "applied", "committed"]))
        for offset, n in enumerate(given):
            found = way(run, offset)
            for task, topic in (("double", "early"), ("last", "late")):
                there = {
                    m.offset()
                    for m in run._engine.topics.read(Partition(topic, 0))
                    if json.loads(m.value() or b"")["n"] == n
                }
                told = places(found[task], topic)
                assert bool(told & there) == bool(there), (given, offset, topic, told, there)


def test_records_of_other_writers_are_not_taken_for_the_jobs(sardonyx_clocked: Begin) -> None:
    """Other programs and jobs write to the topic, too, and to them the same links may belong."""
    run = sardonyx_clocked(numbers(lineage=True))
    run._engine.topics.append(Partition("early", 0), b"{}", headers=[(FROM_HEADER, b"1 p/1/0 numbers.double:0:0-1")])
    run._engine.topics.append(Partition("early", 0), b"{}")
    run.give("numbers", [{"n": 1}])
    assert places(way(run, 0)["double"], "early") == {2, 3}
    assert places(way(run, 0, job="another")["double"], "early") == set()


def test_only_an_output_that_is_told_to_says_it(sardonyx_clocked: Begin) -> None:
    """Without the option, records carry nothing. A job that does not keep its lineage cannot say it, and is refused."""
    run = sardonyx_clocked(numbers())
    run.give("numbers", [{"n": 1}])
    assert [m.headers() for m in run._engine.topics.read(Partition("early", 0))] == [None, None]
    job = Job("plain")
    job.output("out", kafka("out", lineage=True), after=job.input("in", kafka("in", schema="n long", start="earliest")))
    with pytest.raises(JobInvalid) as raised:
        validate(job.spec())
    assert [(each.code, each.fix) for each in raised.value.problems] == [
        ("SX-JOB-CONNECTOR", "give Job(..., lineage=True), or remove lineage from the output")
    ]
