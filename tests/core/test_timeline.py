"""The log shows what went wrong with a job, and how it went on."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest
from history_maker import History
from test_cli_history import LINKS, SPEC

from coordinator.core.state import new_state
from coordinator.history.replay import Replay
from coordinator.history.timeline import Past, TimelineEvent, timeline_of
from sardonyx.cli.history_text import timeline_line
from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Completed,
    Declined,
    Evicted,
    Exhausted,
    JobKilled,
    JobSubmitted,
    Left,
    LinksCreated,
    PeerBorn,
    PeerDied,
    TaskFailed,
)

ALONE = msgspec.structs.replace(
    SPEC, catalog=[msgspec.structs.replace(task, consumption="sequential") for task in SPEC.catalog]
)
ERROR = Failure("SX-TEST", "something broke\nand more")
BEGIN: list[AnyEvent] = [
    PeerBorn(at=10.0, peer="a"),
    JobSubmitted(at=11.0, job="j-1", spec=SPEC),
    LinksCreated(at=12.0, job="j-1", links=LINKS),  # entry 3 offers read to a
    Acked(at=13.0, peer="a", assignment=3),
]


def told(*events: AnyEvent, leaders: Mapping[int, str] | None = None) -> list[TimelineEvent]:
    past = Replay(new_state("test")).steps(enumerate(events, 1))
    return timeline_of("j-1", [Past(decided, (leaders or {}).get(decided.n, "")) for decided in past])


def lines(*events: AnyEvent, ended: bool = False, leaders: Mapping[int, str] | None = None) -> list[str]:
    return [timeline_line(item, ended=ended) for item in told(*events, leaders=leaders)]


def test_a_peer_died_and_another_resumed_its_task() -> None:
    """Who, which task, and how long it was without a peer: from the news of the death to the word that it is taken."""
    events = [*BEGIN, PeerDied(at=20.0, peer="a"), PeerBorn(at=20.5, peer="b"), Acked(at=21.2, peer="b", assignment=6)]
    (item,) = told(*events)
    assert (item.n, item.at, item.kind, item.task, item.by) == (5, 20.0, "died", "read", "b")
    assert item.after == pytest.approx(1.2)
    assert lines(*events) == ["peer a died, task read resumed by b after 1.2 s"]


def test_nobody_is_there_to_take_over() -> None:
    """The timeline says that the place still waits, and later that the job ended so."""
    assert lines(*BEGIN, PeerDied(at=20.0, peer="a")) == ["peer a died, no peer has taken its place on task read yet"]
    killed = [*BEGIN, PeerDied(at=20.0, peer="a"), JobKilled(at=21.0, job="j-1"), PeerBorn(at=22.0, peer="b")]
    assert lines(*killed, ended=True) == ["peer a died, no peer took its place on task read before the job ended"]


def test_others_went_on() -> None:
    """A task of several peers is never without one; the timeline also names the peer that fills the place."""
    events: list[AnyEvent] = [*(PeerBorn(at=9.0, peer=peer) for peer in "abcd"), *BEGIN[1:3]]
    events += [Acked(at=13.0, peer=peer, assignment=6) for peer in "abcd"]  # a and c read, b and d write
    events += [PeerDied(at=15.0, peer="a")]
    assert lines(*events) == ["peer a died, task read went on with c"]
    events += [PeerBorn(at=16.0, peer="e"), Acked(at=17.0, peer="e", assignment=12)]
    assert lines(*events) == ["peer a died, task read went on with c meanwhile, and e took the place of a after 2.0 s"]
    events += [Left(at=18.0, peer="c")]
    assert lines(*events)[1] == "peer c left, task read went on with e"


def test_peers_that_die_together_do_not_go_on_for_each_other() -> None:
    """A daemon's virtual peers are lost one after the other within a moment."""
    events: list[AnyEvent] = [*(PeerBorn(at=9.0, peer=peer) for peer in "abcd"), *BEGIN[1:3]]
    events += [Acked(at=13.0, peer=peer, assignment=6) for peer in "abcd"]  # a and c read, b and d write
    events += [PeerDied(at=15.0, peer="a"), PeerDied(at=15.01, peer="c")]
    assert lines(*events) == [f"peer {peer} died, no peer has taken its place on task read yet" for peer in "ac"]


def test_a_task_is_resumed_by_the_first_peer_on_it_and_other_places_are_filled_later() -> None:
    """Two peers of a task die together. With the first new peer the task works again; the second place is no outage then."""
    events: list[AnyEvent] = [*(PeerBorn(at=9.0, peer=peer) for peer in "abcd"), *BEGIN[1:3]]
    events += [Acked(at=13.0, peer=peer, assignment=6) for peer in "abcd"]  # a and c read, b and d write
    events += [PeerDied(at=15.0, peer="a"), PeerDied(at=15.01, peer="c")]
    events += [PeerBorn(at=16.0, peer="e"), Acked(at=17.0, peer="e", assignment=13)]
    assert lines(*events) == [
        "peer a died, task read resumed by e after 2.0 s",
        "peer c died, task read resumed by e after 2.0 s",
    ]
    events += [Acked(at=141.0, peer="d", assignment=12)]  # it was taken off write when c died
    assert lines(*events) == [
        "peer a died, task read resumed by e after 2.0 s, and d took the place of a after 2 min 6 s",
        "peer c died, task read resumed by e after 2.0 s",
    ]
    first, second = told(*events)
    assert (first.resumed_by, first.resumed_after, first.by, first.after) == ("e", 2.0, "d", 126.0)
    assert (second.resumed_by, second.by) == ("", "e")


def test_how_else_a_peer_comes_off_its_task() -> None:
    """Taken out by a user, silent about an offer, unable to run it."""
    begin = [*BEGIN[:1], JobSubmitted(at=11.0, job="j-1", spec=ALONE), *BEGIN[2:3]]
    spare = PeerBorn(at=14.0, peer="b")
    assert lines(*begin, BEGIN[3], spare, Evicted(at=15.0, peer="a"), Acked(at=15.4, peer="b", assignment=6)) == [
        "peer a was evicted by a user, task read resumed by b after 0.4 s"
    ]
    assert lines(*begin, spare, AckTimedOut(at=15.0, peer="a", assignment=3), Acked(at=16, peer="b", assignment=5)) == [
        "peer a did not answer the offer of task read, task read resumed by b after 1.0 s"
    ]
    declined = [*begin, spare, Declined(at=15.0, peer="a", assignment=3, error=ERROR)]
    (item,) = told(*declined)
    assert item.error == ERROR
    assert lines(*declined) == [
        "peer a could not run task read (SX-TEST: something broke), no peer has taken its place on task read yet"
    ]


def test_failures_with_their_rest() -> None:
    """A task that failed rests, longer each time; the timeline says when it began again, and what failed the job."""
    events = [
        *BEGIN,
        TaskFailed(at=14.0, peer="a", assignment=3, error=ERROR),
        BackoffEnded(at=14.5, job="j-1", task="read", failures=1),  # entry 6 offers it again
        Acked(at=14.7, peer="a", assignment=6),
    ]
    (item,) = told(*events)
    assert (item.failures, item.backoff) == (1, pytest.approx(0.5))
    (line,) = lines(*events)
    assert line.startswith(
        "peer a gave task read up (SX-TEST: something broke, failure 1), task read resumed by a after"
    )
    assert line.endswith("after 0.7 s (0.5 s of them backing off)")
    events.append(TaskFailed(at=15.0, peer="a", assignment=6, error=ERROR, fatal=True))
    assert lines(*events)[1] == "peer a gave task read up (SX-TEST: something broke), which failed the job"


def test_coordinators_that_took_over() -> None:
    """One that led before the job came is none of its story, nor is one that came after its end. The log holds no election: its
    time is that of the first entry that the coordinator wrote, and the words say so.
    """
    sealed: list[AnyEvent] = [
        *BEGIN,
        Exhausted(at=14.0, peer="a", assignment=3),
        Completed(at=15.0, peer="a", assignment=3),
        Acked(at=16.0, peer="a", assignment=6),
        Exhausted(at=17.0, peer="a", assignment=6),
        Completed(at=18.0, peer="a", assignment=6),
        PeerDied(at=19.0, peer="a"),
    ]
    leaders = {1: "h:1", 5: "h:2", 10: "h:3"}
    assert lines(*sealed, leaders=leaders, ended=True) == [
        "coordinator h:2 had taken over (its first entry in the log)"
    ]


def test_coordinators_that_took_over_a_job_whose_submission_is_not_kept() -> None:
    """The log may begin while it runs; then that is known from the state before."""
    replay = Replay(new_state("test"))
    for number, event in enumerate(BEGIN, 1):
        replay.step(number, event)
    past = [Past(replay.step(5, PeerBorn(at=14.0, peer="b")), "h:2")]
    assert [item.leader for item in timeline_of("j-1", past, running=True)] == ["h:2"]
    assert timeline_of("j-1", past) == []


def test_answers_that_came_too_late_are_no_incident() -> None:
    """A peer that gives up what it has not any more; a job that ends with everybody at work."""
    late = TaskFailed(at=15.0, peer="a", assignment=2, error=ERROR)
    assert told(*BEGIN, late, JobKilled(at=16.0, job="j-1"), PeerDied(at=17.0, peer="a")) == []


@pytest.mark.parametrize("number", range(10))
def test_there_are_words_for_every_incident(number: int, seed: int) -> None:
    """Over random histories, every job's story can be told, and no item lies outside of the job's life."""
    history = History(random.Random(f"{seed}/incidents/{number}"))
    history.unkind(200)
    past = [Past(decided) for decided in Replay(new_state("test")).steps(history.world.log)]
    for each in [step.decided.event for step in past]:
        if isinstance(each, JobSubmitted):
            for item in timeline_of(each.job, past):
                assert timeline_line(item, ended=True)
                assert item.after is None or item.by
                assert item.peer != "" or item.kind == "coordinator"
