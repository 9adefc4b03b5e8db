"""What becomes of jobs when a backup is restored onto a Kafka that has gone on since."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.core import restoring
from coordinator.core.decide import decide, replay
from coordinator.core.invariants import check
from coordinator.core.restoring import KafkaTraces, events_of, outcomes, unknown_jobs
from coordinator.core.state import State
from sardonyx.core.events import (
    Acked,
    AnyEvent,
    Completed,
    Exhausted,
    JobKilled,
    JobStopped,
    JobSubmitted,
    LinkFacts,
    LinksCreated,
    LinksDeleted,
    PeerBorn,
    Restored,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, TaskSpec
from sentinel import rules

S1, S2 = "sentinel-1", "sentinel-2"


def job(*, end: str | None = "latest", output: str = "kafka") -> JobSpec:
    """Orders (a topic) -> first -> second -> out; `first` and `second` run, and `out` if it is not a topic."""
    topic = {"topic": "orders"} | ({} if end is None else {"end": end})
    out: dict[str, Any] = {"kafka": {"topic": "results"}, "files": {"path": "/out"}, "sql": {}}.get(output, {})
    return JobSpec(
        name="copy",
        partitions=2,
        workflow=[("orders", "first"), ("first", "second"), ("second", "out")],
        catalog=[
            TaskSpec(name="orders", type="input", connector="kafka", options=topic),
            TaskSpec(name="first", type="function", fn="job:first"),
            TaskSpec(name="second", type="function", fn="job:second"),
            TaskSpec(name="out", type="output", connector=output, options=out),
        ],
    )


def running(spec: JobSpec, *more: AnyEvent) -> State:
    """A deployment with the job `copy-1`, whose links exist."""
    links = {link.name: LinkFacts(2) for link in graph_of(spec, "test", "copy-1").links}
    events = [JobSubmitted(job="copy-1", spec=spec), LinksCreated(job="copy-1", links=links), *more]
    return replay(enumerate(events, 1), deployment="test")


def traces(spec: JobSpec, **positions: list[Position | int | None]) -> KafkaTraces:
    """All topics of `copy-1`, with two partitions of a hundred offsets, and what these tasks have committed in each partition."""
    graph = graph_of(spec, "test", "copy-1")
    topics = {link.topic: 1 if link.kind == "parts" else 2 for link in graph.links}
    every = [Partition(topic, number) for topic, count in topics.items() for number in range(count)]
    held: dict[str, dict[Partition, Position | None]] = {}
    for stage in graph.stages:
        found = iter(positions.get(stage.name, []))
        held[stage.name] = {
            Partition(link.topic, number): Position(position) if isinstance(position, int) else position
            for link in stage.ingress
            for number, position in zip(range(topics[link.topic]), found, strict=False)
        }
    return KafkaTraces(topics, held, dict.fromkeys(every, 0), dict.fromkeys(every, 100))


def outcome(state: State, known: KafkaTraces | None) -> tuple[str, str]:
    """What becomes of `copy-1`, and why; the entries that a restore adds are sound, and do it."""
    found = outcomes(state, {} if known is None else {"copy-1": known})
    events = events_of(state, found, 1.0)
    for n, event in enumerate(events, state.n + 1):
        decide(state, n, event)
        check(state)
    (one,) = (each for each in found if each.job == "copy-1")
    after = state.jobs["copy-1"]
    assert (one.becomes == "fails") == (one.error is not None) == (after.error is not None and after.resumed_by == "?")
    assert (one.becomes == "is stopped") == any(isinstance(event, JobStopped) for event in events)
    return one.becomes, one.error.message if one.error else ""


def test_a_job_whose_tasks_have_positions_goes_on() -> None:
    """However far they have come since the backup: the results stand where the positions stand."""
    spec = job()
    assert outcome(running(spec), traces(spec, first=[7, 9], second=[3, None])) == ("goes on", "")


def test_a_task_without_positions_begins_while_the_first_one_has_some() -> None:
    """The group of the first task is deleted before the others, so it says that none is."""
    spec = job()
    assert outcome(running(spec), traces(spec, first=[7, 9])) == ("goes on", "")
    becomes, why = outcome(running(spec), traces(spec, second=[7, 9]))
    assert (becomes, "no positions of task first" in why) == ("fails", True)


@pytest.mark.parametrize(
    ("output", "written", "becomes"),
    [
        ("kafka", False, "fails"),
        ("sql", False, "fails"),
        ("files", False, "goes on"),
        ("files", True, "fails"),
        ("blackhole", False, "goes on"),
    ],
)
def test_a_job_that_may_not_have_begun_goes_on_only_where_that_shows(output: str, written: bool, becomes: str) -> None:
    """No task has positions: never had any, or they are deleted. What no topic of the job lists may have been written."""
    whole = job(output=output)
    spec = msgspec.structs.replace(whole, workflow=[("orders", "out")], catalog=[whole.catalog[0], whole.catalog[-1]])
    known = traces(spec)
    known.ends = {p: 100 if written or not p.topic.startswith("test.") else 0 for p in known.ends}
    assert outcome(running(spec), known)[0] == becomes


@pytest.mark.parametrize("written", [False, True])
def test_a_task_that_had_nothing_to_read_begins(written: bool) -> None:
    """Its link is the job's own, and was never written; so it has written nothing either, wherever that would be."""
    spec = job()
    known = traces(spec)
    known.ends[Partition("test.copy-1.first.second", 0)] = 100 if written else 0
    known.ends[Partition("test.copy-1.first.second", 1)] = 0
    assert outcome(running(spec), known)[0] == ("fails" if written else "goes on")


def test_a_job_whose_topics_are_gone_fails() -> None:
    """It has ended since; nothing is left to say how. A topic of the user's that is gone is named, too."""
    spec = job()
    known = traces(spec, first=[7, 9], second=[3, 3])
    del known.partitions["test.copy-1.first.second"]
    becomes, why = outcome(running(spec), known)
    assert (becomes, why.endswith("its topic test.copy-1.first.second is gone")) == ("fails", True)
    known = traces(spec, first=[7, 9], second=[3, 3])
    del known.partitions["orders"]
    assert "topic orders does not exist" in outcome(running(spec), known)[1]


def test_a_job_that_was_being_planned_fails() -> None:
    """Where its inputs begin and end was taken later."""
    state = replay([(1, JobSubmitted(job="copy-1", spec=job()))], deployment="test")
    assert "being planned" in outcome(state, None)[1]


def test_a_stop_since_the_backup_shows_in_the_positions() -> None:
    """An input without an end that has ended somewhere was stopped. A bounded one ends like that by itself."""
    ended = [Position(7, drained="end"), 9]
    endless = job(end=None)
    assert outcome(running(endless), traces(endless, first=ended, second=[1, 1])) == ("is stopped", "")
    stopping = running(endless, JobStopped(job="copy-1"))
    assert outcome(stopping, traces(endless, first=ended, second=[1, 1])) == ("goes on", "")
    assert outcome(running(endless), traces(endless, first=[7, 9], second=[1, 1])) == ("goes on", "")
    bounded = job()
    assert outcome(running(bounded), traces(bounded, first=ended, second=[1, 1])) == ("goes on", "")
    assert restoring.BOUND_END == rules.BOUND_END


def test_an_input_that_reached_its_end_marker_was_not_stopped() -> None:
    """A job that was taken for stopped would leave out what its other partitions still hold before their markers."""
    spec = job(end="marker")
    marked = [Position(57, drained=rules.END_MARKER), 9]
    assert outcome(running(spec), traces(spec, first=marked, second=[1, 1])) == ("goes on", "")
    stopped = [Position(57, drained=rules.END_MARKER), Position(9, drained=rules.BOUND_END)]
    assert outcome(running(spec), traces(spec, first=stopped, second=[1, 1])) == ("is stopped", "")


def test_votes_are_taken_from_the_positions() -> None:
    """The sentinel at which a reader found its partition drained is the elected one. Two would be two deployments."""
    spec = job()
    known = traces(spec, first=[Position(7, drained="end"), 9], second=[Position(5, drained=S1), 4])
    (found,) = outcomes(running(spec), {"copy-1": known})
    assert found.votes == {"first.second": S1}
    torn = traces(spec, first=[7, 9], second=[Position(5, drained=S1), Position(5, drained=S2)])
    assert "disagree" in outcome(running(spec), torn)[1]


def complete(spec: JobSpec) -> State:
    """Task `first` is complete."""
    return running(
        spec,
        PeerBorn(peer="P1"),
        Acked(peer="P1", assignment=3),
        Exhausted(peer="P1", assignment=3),
        Completed(peer="P1", assignment=3),
    )


def test_a_kafka_that_is_older_than_the_backup_is_noticed() -> None:
    """A complete task has not read all, a position lies beyond its topic, or was dropped while records before it went."""
    spec = job()
    assert complete(spec).jobs["copy-1"].tasks["first"].state == "complete"
    drained = [Position(7, drained="end"), Position(9, drained="end")]
    assert outcome(complete(spec), traces(spec, first=drained, second=[1, 1])) == ("goes on", "")
    assert outcome(complete(spec), traces(spec, second=[1, 1])) == ("goes on", ""), "dropped after a week"
    assert "has not read all" in outcome(complete(spec), traces(spec, first=[drained[0], 9], second=[1, 1]))[1]
    assert "it ends at 100" in outcome(running(spec), traces(spec, first=[7, 101], second=[1, 1]))[1]
    trimmed = traces(spec, first=[7, 9], second=[1, None])
    trimmed.begins[Partition("test.copy-1.first.second", 1)] = 5
    assert "the position of task second" in outcome(running(spec), trimmed)[1]
    trimmed = traces(spec, first=[7, 9])
    trimmed.begins[Partition("test.copy-1.first.second", 0)] = 50
    assert "the position of task second" in outcome(running(spec), trimmed)[1], "it had read what is trimmed"


@pytest.mark.parametrize(
    ("topic", "number", "why"),
    [
        ("orders", 0, "task first goes on at 7 in partition 0 of orders, which begins at 50"),
        ("orders", 1, "task first goes on at 0 in partition 1 of orders, which begins at 50"),
        ("test.copy-1.first.second", 0, "task second goes on at 3 in partition 0"),
    ],
)
def test_records_that_are_deleted_and_not_read_are_noticed(topic: str, number: int, why: str) -> None:
    """The job would fail at them, or begin after them. What was read to its end needs no record any more."""
    spec = job(end=None)
    known = traces(spec, first=[7, None], second=[3, 3])
    known.begins[Partition(topic, number)] = 50
    becomes, said = outcome(running(spec), known)
    assert (becomes, why in said) == ("fails", True), said
    drained = Position(3, drained=S1)
    known = traces(spec, first=[Position(7, drained="end"), Position(9, drained="end")], second=[drained, drained])
    known.begins[Partition(topic, number)] = 50
    assert outcome(running(spec, JobStopped(job="copy-1")), known)[0] == "goes on"


def test_an_input_that_ends_before_what_is_deleted_has_nothing_to_read() -> None:
    """Its partition was empty when the job was planned."""
    spec = job()
    state = running(spec)
    facts = state.jobs["copy-1"].facts
    assert facts is not None
    facts["orders.first"] = LinkFacts(2, start=[5, 50], end=[60, 50])
    known = traces(spec, first=[7, None], second=[3, 3])
    known.begins |= {Partition("orders", 0): 7, Partition("orders", 1): 60}
    assert outcome(state, known)[0] == "goes on"


def test_what_had_ended_stays_and_is_not_resumed() -> None:
    """Another job may have resumed it after the backup. One that was resumed before it stays so; a refused one stays as it is."""
    spec = job(end=None)
    state = running(spec, JobKilled(job="copy-1"), LinksDeleted(job="copy-1"))
    for n, name in enumerate(("refused-1", "refused-2"), state.n + 1):
        decide(state, n, JobSubmitted(job=name, spec=msgspec.structs.replace(spec, catalog=[])))
    found = outcomes(state, {})
    assert {each.becomes for each in found} == {"stays ended"}
    events = events_of(state, found, 1.0)
    assert [(type(event), event.job) for event in events] == [(Restored, "copy-1")]
    assert outcome(state, None) == ("stays ended", "")
    assert state.jobs["copy-1"].resumed_by == "?"
    assert events_of(state, found, 1.0) != [], "the same again, which changes nothing"


def test_a_planned_job_that_resumes_another_leaves_it_claimed() -> None:
    """The end of the one frees the other for a moment; the other is marked after that."""
    spec = job(end=None)
    state = running(
        spec,
        JobStopped(job="copy-1"),
        JobKilled(job="copy-1"),
        LinksDeleted(job="copy-1", positions={"first": {"orders": [1, 2]}}),
    )
    state.jobs["copy-1"].resumed_by = "copy-2"
    decide(state, state.n + 1, JobSubmitted(job="copy-2", spec=spec))
    state.jobs["copy-2"].resumes = "copy-1"
    for n, event in enumerate(events_of(state, outcomes(state, {}), 1.0), state.n + 1):
        decide(state, n, event)
    assert (state.jobs["copy-1"].resumed_by, state.jobs["copy-2"].status) == ("?", "failed")


def test_jobs_that_the_backup_does_not_know_are_found_by_their_topics() -> None:
    """Only those of this deployment, and none that was purged before the backup."""
    state = running(job())
    state.purged["old-1"] = None
    names = [
        "test.copy-1.first.second",
        "test.new-1.a.b",
        "test.new-1.a",
        "test.old-1.a.dead",
        "other.x-1.a.b",
        "orders",
    ]
    assert unknown_jobs(state, names) == ["new-1"]
