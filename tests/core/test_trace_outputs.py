"""Where a record went in a topic of the user's: with ``lineage=True``, records say from which offsets they were made."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from queues.messages import FROM_HEADER
from queues.origins import written
from sardonyx import Job, JobInvalid, event_time, kafka
from sardonyx.cli.progress_commands import lines_of
from sardonyx.client.record_trace import TaskOnWay, trace_of, with_way
from sardonyx.core.batch_origins import writer_of
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.core.record_way import Seen
from sardonyx.job.validate import validate
from sardonyx.testing import ClockedRun
from tests.core.job_progress_runs import looked

Begin = Callable[..., ClockedRun]


def numbers(**option: Any) -> Job:
    """A task that passes all rows on and one that passes each number on once, each with a topic, and one more topic that says
    nothing.
    """
    job = Job("numbers", partitions=2, lineage=True)
    schema = "n long, at timestamp"
    given = job.input("numbers", kafka("numbers", schema=schema, start="earliest"), time=event_time("at"))
    once = job.distinct("once", after=given, by="n", within="1 h")
    job.output("early", kafka("early", **option), after=given)
    job.output("late", kafka("late", **option), after=once)
    job.output("silent", kafka("silent"), after=once)
    return job


def give(run: ClockedRun, *numbers: int) -> None:
    run.give("numbers", [{"n": n, "at": "2026-11-23T10:00:00"} for n in numbers])


def place_of(run: ClockedRun, output: str) -> Partition:
    """The only partition to which an output writes. A harness tells the topics of outputs apart."""
    return Partition(next(link.topic for link in run._engine.graph.links if link.target == output), 0)


def records(run: ClockedRun, output: str) -> dict[int, dict[str, Any]]:
    """By offset, what an output has written."""
    return {m.offset(): json.loads(m.value() or b"") for m in run._engine.topics.read(place_of(run, output))}


def numbers_at(run: ClockedRun, output: str) -> dict[int, int]:
    return {offset: record["n"] for offset, record in records(run, output).items()}


def way(run: ClockedRun, offset: int, *, source: str = "numbers", job: str = "") -> dict[str, TaskOnWay]:
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

    found = trace_of("numbers", engine.graph, looked(run), (source, 0, offset), end)
    return {each.task: each for each in with_way(found, engine.graph, looked(run), read).tasks}


def places(task: TaskOnWay, output: str) -> set[int]:
    """The offsets in a topic of the user's among which a record is."""
    return {
        offset
        for each in task.outputs
        if each.link.endswith(f".{output}") and each.yours
        for first, last in each.offsets
        for offset in range(first, last + 1)
    }


def test_a_record_is_followed_into_topics_of_the_users(sardonyx_clocked: Begin) -> None:
    """In batches of one record it is certain where each went, also behind another task."""
    run = sardonyx_clocked(numbers(lineage=True), batch_size=1)
    give(run, 1, 2, 1, 3)
    found = way(run, 3)
    assert places(found["numbers"], "early") == {3}
    assert {numbers_at(run, "late")[at] for at in places(found["once"], "late")} == {3}
    lines = [line for task in found.values() for line in lines_of(task)]
    assert "numbers: it went to early (early)[0]@3 (1 row)" in lines
    assert any(line.startswith("once: it went to late (late)[0]@") for line in lines), lines
    assert (
        "once: not known: which records of silent (silent) it became: they say it only of an output with lineage=True"
        in lines
    )
    assert found["numbers"].unknown == []
    repeated = way(run, 2)
    assert places(repeated["numbers"], "early") == {2}
    assert places(repeated["once"], "late") == set()
    assert (
        "whether it is in late (late): no record there says so, as far as they are still there"
        in repeated["once"].unknown
    )


def test_every_record_of_a_topic_is_told_of_what_it_is_made_from(sardonyx_clocked: Begin, rng: random.Random) -> None:
    """Whatever batches and crashes there are: what was made of a record is among the offsets that are told of it."""
    for _ in range(2):
        run = sardonyx_clocked(numbers(lineage=True), batch_size=rng.randint(1, 5))
        given: list[int] = []
        for _ in range(rng.randint(1, 4)):
            fresh = [rng.randrange(20) for _ in range(rng.randint(1, 6))]
            give(run, *fresh)
            given += fresh
            if rng.random() < 0.5:
                run.crash(rng.choice(["numbers", "once"]), rng.choice(["settled", "applied", "committed"]))
        assert [*numbers_at(run, "early").values()] == given
        late = {n: offset for offset, n in numbers_at(run, "late").items()}
        for offset, n in enumerate(given):
            found = way(run, offset)
            assert offset in places(found["numbers"], "early"), (given, offset)
            if n not in given[:offset]:
                assert late[n] in places(found["once"], "late"), (given, offset, late)


def test_records_of_other_writers_are_not_taken_for_the_jobs(sardonyx_clocked: Begin) -> None:
    """Other programs and jobs write to the topic, too, and the links of these may have the same names."""
    run = sardonyx_clocked(numbers(lineage=True))
    for header in (None, [(FROM_HEADER, b"1 p/1/0 numbers.topic:0:0-1")]):
        run._engine.topics.append(place_of(run, "early"), b'{"n": 9}', headers=header)
    give(run, 1)
    assert places(way(run, 0)["numbers"], "early") == {2}
    assert places(way(run, 0, job="another")["numbers"], "early") == set()


def test_only_an_output_that_is_told_to_says_it(sardonyx_clocked: Begin) -> None:
    """Without the option, records carry nothing. A job that does not keep its lineage cannot say it, and is refused."""
    run = sardonyx_clocked(numbers())
    give(run, 1)
    assert [m.headers() for m in run._engine.topics.read(place_of(run, "early"))] == [None]
    job = Job("plain")
    job.output("out", kafka("out", lineage=True), after=job.input("in", kafka("in", schema="n long", start="earliest")))
    with pytest.raises(JobInvalid) as raised:
        validate(job.spec())
    assert [(each.code, each.fix) for each in raised.value.problems] == [
        ("SX-JOB-CONNECTOR", "give Job(..., lineage=True), or remove lineage from the output")
    ]
