"""Queues of a running job get another number of partitions: when that is possible, and what of the queues stays."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from queues.batch import StartingPoint
from queues.reading import Reading
from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.clocks import clocks_of
from sardonyx.client.record_trace import partitions_of
from sardonyx.core.changing import NOTHING, change_failure, finished, is_draining, obstacles, rewired
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import Link, graph_of
from sardonyx.core.link_counts import with_told
from sardonyx.core.positions import Partition, Position, clock_of
from sardonyx.core.progress import Look
from sardonyx.core.resizing import (
    UNREAD,
    awake,
    facts_then,
    left_unread,
    queues,
    resized,
    stand_still,
    unprepared,
    unread,
)
from sardonyx.core.spec import JobSpec, Route
from sardonyx.core.untouched import untouched


def same(row: dict) -> dict:
    return row


def a_job(partitions: int = 2, *parts: str, **settings: Any) -> JobSpec:
    """``read -> label -> count -> out``; what is named besides: ``window`` in place of count, ``loop`` from count to label,
    ``more``: another output after label; ``direct``: only a topic and a task that writes to another one.
    """
    job = Job("keyed", **{"partitions": partitions, **settings})
    read = job.input("read", kafka("in", schema="n long, at timestamp"), time=event_time("at", delay="0 s"))
    label = job.task("label", same, after=read, group_by=None if "direct" in parts else "n")
    last = label
    if "window" in parts:
        last = job.window("count", tumbling("1 s"), after=label, aggregate={"hits": Count()})
    elif "direct" not in parts:
        last = job.task("count", same, after=label, group_by="n")
    job.output("out", kafka("out"), after=last)
    if "more" in parts:
        job.output("beside", kafka("beside"), after=job.task("more", same, after=label))
    return job.spec()


def facts_of(spec: JobSpec, **partitions: int) -> dict[str, LinkFacts]:
    return {link.name: LinkFacts(partitions.get(link.source, spec.partitions)) for link in graph_of(spec, "", "").links}


def held_by(
    spec: JobSpec, rows: dict[str, tuple[int, int]], *clocks: int
) -> dict[str, dict[Partition, Position | None]]:
    """What the tasks of a job have committed: by task, the rows that it has read and written, in partition 0 of each link that it
    reads; and the clocks of the partitions of all these links.
    """
    found: dict[str, dict[Partition, Position | None]] = {}
    for stage in graph_of(spec, "", "").stages:
        read, wrote = rows[stage.name]
        own = found[stage.name] = {}
        for link in stage.ingress:
            for number, clock in enumerate(clocks or (NEVER, NEVER)):
                own[Partition(link.topic, number)] = Position(5, clock=SourceClock(clock, clock))
            own[Partition(link.topic, 0)] = _wrote(read, wrote, len(stage.counted), clocks[0] if clocks else NEVER)
    return found


def _wrote(read: int, wrote: int, links: int, clock: int = NEVER) -> Position:
    told = with_told(Position(9, clock=SourceClock(clock, clock)), [wrote] * links)
    return told._replace(counts=Counts(rows_in=read))


def test_only_a_job_at_rest_gets_another_number() -> None:
    """Inputs that are read fill the queues, so the coordinator takes another number only while they stand still, for just this
    number. Neither version changes what any task reads or writes.
    """
    old, new = a_job(2), a_job(5)
    assert resized(old, new)
    assert change_failure("j", old, new) is None
    assert unprepared(old, new)
    assert unprepared(stand_still(old, 4), new)
    assert not unprepared(stand_still(old, 5), new)
    assert change_failure("j", old, stand_still(old, 5)) is None
    assert change_failure("j", stand_still(old, 5), new) is None
    assert awake(stand_still(old, 5)) == old
    assert not rewired(graph_of(old, "", ""), graph_of(stand_still(old, 5), "", ""))
    resting = [link for link in graph_of(stand_still(old, 5), "", "").links if link.rests]
    assert [link.kind for link in resting] == ["input"]
    assert is_draining(graph_of(stand_still(old, 5), "", "")), (
        "peers take turns, so that all that was read goes through"
    )


def test_a_job_without_queues_takes_another_number_at_once() -> None:
    """It has nothing with so many partitions."""
    old, new = a_job(2, "direct"), a_job(5, "direct")
    assert queues(graph_of(old, "", "")) == []
    assert not resized(old, new)
    assert not unprepared(old, new)
    assert change_failure("j", old, new) is None


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (a_job(2, "window"), a_job(3, "window"), "task count keeps a state, and with 3 partitions its keys would be"),
        (a_job(2), a_job(3, "more"), "tasks and queues come or go by a change of their own"),
        (a_job(2, "more"), a_job(3), "tasks and queues come or go by a change of their own"),
    ],
)
def test_what_stands_in_the_way_is_said(old: JobSpec, new: JobSpec, why: str) -> None:
    """A state would have to move with its keys. Tasks come and go by a change of their own."""
    assert any(why in found.text and found.field == "partitions" for found in obstacles(old, new))
    failure = change_failure("j", old, new)
    assert failure is not None
    assert why in failure.message


def test_another_function_may_come_with_it() -> None:
    """All tasks stand still anyway, so what may change without it may change with it."""
    new = a_job(3)
    catalog = [replace(task, fn="m:other") if task.name == "label" else task for task in new.catalog]
    assert change_failure("j", stand_still(a_job(2), 3), replace(new, catalog=catalog)) is None


def test_which_tasks_stand_still() -> None:
    """Those that read inputs while these rest, and then all: each has read how many partitions there are."""
    old, rests, new = a_job(2), stand_still(a_job(2), 3), a_job(3)
    facts, names = facts_of(old), ["read", "label", "count"]
    assert untouched(old, rests, names, facts) == ["label", "count"]
    assert untouched(rests, new, names, facts) == []
    assert untouched(rests, old, names, facts) == ["label", "count"]


def test_a_complete_task_keeps_its_queues() -> None:
    """New partitions would have no end, and their reader would wait for one."""
    old, new = graph_of(a_job(2), "", ""), graph_of(a_job(3), "", "")
    assert finished(old, new, {"read"}, resizes=True) == "read"
    assert finished(old, new, set(), resizes=True) == ""
    assert finished(old, new, {"read"}) == ""


def test_what_is_unread_is_found_by_counts() -> None:
    """In partitions that are not used any more, too: a queue keeps its positions when its number falls."""
    spec = a_job(2)
    graph, facts = graph_of(spec, "", ""), facts_of(spec)
    held = held_by(spec, {"read": (7, 7), "label": (7, 7), "count": (7, 7)})
    assert unread(graph, held, facts) == {}
    assert left_unread("j", graph, held, facts) is None
    behind = Partition(graph.stage("count").ingress[0].topic, 9)
    held["count"][behind] = Position(3, Counts(rows_in=2))
    held["label"][Partition(graph.stage("label").ingress[0].topic, 0)] = _wrote(7, 9, 1)
    assert unread(graph, held, facts) == {}
    held["count"][behind] = None
    assert unread(graph, held, facts) == {"label.count": 2}
    failure = left_unread("j", graph, held, facts)
    assert failure is not None
    assert failure.code == UNREAD
    assert "label.count (2)" in failure.message
    held["label"][Partition(graph.stage("label").ingress[0].topic, 0)] = Position(9, Counts(rows_in=7))
    assert unread(graph, held, facts) == {"label.count": None}, "it is not known how many rows were written there"


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_the_clock_of_a_reader_does_not_fall(partitions: int) -> None:
    """A new partition begins with the least clock of those that there were. What is committed counts where there is something."""
    spec, new = a_job(2), a_job(partitions)
    graph, facts = graph_of(new, "", ""), facts_of(spec)
    held = held_by(spec, {"read": (7, 7), "label": (7, 7), "count": (7, 7)}, 40, 30)
    found = facts_then(graph, partitions, facts_of(new), held, facts)
    assert {name: found[name].partitions for name in ("read.label", "label.count")} == {
        "read.label": partitions,
        "label.count": partitions,
    }
    assert found["label.count"].clocks == [(40, 40), (30, 30), (30, 30), (30, 30), (30, 30)][:partitions]
    topic = graph.stage("count").ingress[0].topic
    now = {Partition(topic, n): held["count"].get(Partition(topic, n)) for n in range(partitions)}
    shown = clocks_of("j", graph, {"count": now}, None, found).tasks[-1]
    assert shown.clock == (40 if partitions == 1 else 30)
    unstated = held_by(spec, {"read": (7, 7), "label": (7, 7), "count": (7, 7)})
    assert facts_then(graph, partitions, facts_of(new), unstated, facts)["label.count"].clocks is None


def test_a_partition_that_is_used_again_is_not_behind() -> None:
    """Its clock was committed when it was used last, and the others have gone on since."""
    link = queues(graph_of(a_job(2), "", ""))[-1]
    held = [Position(5, clock=SourceClock(each, each)) for each in (40, 50, 10)]  # the last one is not used
    facts = facts_then(
        graph_of(a_job(3), "", ""),
        3,
        facts_of(a_job(3)),
        {name: {Partition(link.topic, n): each for n, each in enumerate(held)} for name in ("label", "count")},
        facts_of(a_job(2)),
    )
    assert [clock_of(facts[link.name], number, each).value for number, each in enumerate(held)] == [40, 50, 40]
    reader = _Reader({link.name: (link, facts[link.name])}, lambda _link, uuid: uuid, 10, timed=True)
    for number, each in enumerate(held):
        reader.give(Partition(link.topic, number), each)
    assert sorted(clock.value for clock in reader.clocks.values()) == [40, 40, 50]
    batch = reader.cut(10)
    assert {place.number: position.clock.value for place, position in batch.positions.items()} == {2: 40}, (
        "it is committed"
    )


def test_the_way_of_a_record_is_sought_in_partitions_that_are_not_used_any_more() -> None:
    """They held rows once, and the trace of a record says of nothing that it does not exist because it was not looked at."""
    spec = a_job(2)
    graph = graph_of(spec, "", "")
    link = queues(graph)[-1]
    held: dict[str, dict[Partition, Position | None]] = {"count": {Partition(link.topic, n): None for n in range(5)}}
    assert partitions_of(link, Look(held, held, facts=facts_of(spec))) == 5
    assert partitions_of(link, Look({}, {}, facts=facts_of(spec))) == 2


class _Reader(Reading):
    """What a group gives it."""

    def given(self, *partitions: Partition) -> list[Partition]:
        for partition in partitions:
            self.give(partition, None)
        return [*self.held]

    def give(self, partition: Partition, position: Position | None) -> None:
        self._begin(partition, StartingPoint(position))


def test_a_reader_leaves_alone_what_does_not_count() -> None:
    """The partitions of an input that stands still, unless the job is stopped; and those of a queue behind its number."""
    rests = graph_of(stand_still(a_job(2), 3), "", "")

    def given(link: Link, facts: LinkFacts) -> list[int]:
        reader = _Reader({link.name: (link, facts)}, lambda _link, uuid: uuid, 10)
        return [place.number for place in reader.given(*(Partition(link.topic, number) for number in range(3)))]

    (topic,), (queue, *_) = rests.stage("read").ingress, queues(rests)
    assert given(topic, LinkFacts(3)) == []
    assert given(topic, LinkFacts(3, stops=True)) == [0, 1, 2]
    assert given(queue, LinkFacts(2)) == [0, 1]
    assert given(queue, LinkFacts(3)) == [0, 1, 2]


def test_a_queue_to_which_no_row_goes_is_read_to_its_end_too() -> None:
    """It counts like all others."""
    spec = replace(a_job(2), routes={"label.count": Route(where=NOTHING)})
    held = held_by(spec, {"read": (7, 7), "label": (7, 0), "count": (0, 0)})
    assert unread(graph_of(spec, "", ""), held, facts_of(spec)) == {}
