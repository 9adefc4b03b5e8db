"""What the leader puts into the log in the place of an event about which it cannot decide; and all who replay it know that."""

from __future__ import annotations

from typing import Any

import pytest
from scenario_runner import World

from coordinator.core import decide as core
from coordinator.core import setting_aside
from coordinator.core.changeset import ChangeSet
from coordinator.core.decide import Undecided, decide, replay
from coordinator.core.explain import explain
from coordinator.core.invariants import check
from coordinator.core.scheduling import Offer
from coordinator.core.setting_aside import concerned, set_aside
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.core.timers import Timers, expired_jobs
from coordinator.history.export import Mask
from coordinator.history.replay import Replay, Verifier, concerned_jobs
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import (
    OLDEST_RULES,
    Acked,
    AnyEvent,
    Exhausted,
    JobKilled,
    JobPurged,
    JobSubmitted,
    LinksDeleted,
    PeerBorn,
    PolicySet,
    SetAside,
    decode_event,
    encode_event,
)
from sardonyx.core.spec import JobSpec, TaskSpec

BEGIN = [
    *("P1 and P2 are born", "a is submitted: in -> out", "the links of a are made", "P1 acks", "P2 acks"),
    *("b is submitted: in -> out", "the links of b are made", "2 peers are born", "the offers are acked"),
]


def begun() -> World:
    world = World()
    for sentence in BEGIN:
        world.say(sentence)
    return world


def job_with(world: World, peer: str) -> tuple[str, int]:
    found = world.state.assignment(peer)
    return found.job, found.id


def breaks(monkeypatch: pytest.MonkeyPatch, kind: type, job: str = "") -> None:
    """The handler of a kind of event has a defect, for one job or for all. It shows when the state is changed already."""
    handler = core._HANDLERS[kind]

    def handles(changes: ChangeSet, event: Any) -> None:
        known = concerned(changes.state, event)
        handler(changes, event)
        if known == job or not job:
            raise KeyError("a defect")

    monkeypatch.setitem(core._HANDLERS, kind, handles)


def no_offers(monkeypatch: pytest.MonkeyPatch, job: str = "") -> None:
    """No peer can be offered to a job, or to any."""
    offer = ChangeSet.offer

    def offers(changes: ChangeSet, found: Offer) -> None:
        if found.job == job or not job:
            raise ZeroDivisionError("a defect")
        offer(changes, found)

    monkeypatch.setattr(ChangeSet, "offer", offers)


def aside(state: State, event: AnyEvent) -> SetAside | None:
    """What is found for an event that cannot be decided."""
    before, n = encode_state(state), state.n + 1
    with pytest.raises(Undecided) as caught:
        decide(decode_state(before), n, event)
    assert (caught.value.code, caught.value.n, caught.value.event) == ("SX-LOG-UNDECIDED", n, event)
    return set_aside(before, caught.value)


def test_the_job_of_the_event_fails_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release without the defect decides the same from then on."""
    world = begun()
    job, assignment = job_with(world, "P1")
    event = Exhausted(at=world.now, peer="P1", assignment=assignment)
    before = encode_state(world.state)
    with monkeypatch.context() as patch:
        breaks(patch, Exhausted, job)
        found = aside(world.state, event)
        assert found is not None
        assert (found.job, found.decided, found.event, found.at) == (job, False, event, event.at)
        assert "KeyError: 'a defect'" in found.error.message
        assert "in handles" in found.traceback
        there = decode_state(before)
        decide(there, there.n + 1, found)
    fixed = decode_state(before)
    decide(fixed, fixed.n + 1, decode_event(encode_event(found)))
    assert encode_state(fixed) == encode_state(there)
    check(fixed)
    assert [name for name, known in fixed.jobs.items() if known.status == "failed"] == [job]
    assert fixed.jobs[job].error == found.error
    assert fixed.jobs[job].error.where["n"] == str(fixed.n)


@pytest.mark.parametrize("tried", [1, 50])
def test_a_job_that_no_peer_can_be_offered_to_fails_whatever_event_that_shows_at(
    monkeypatch: pytest.MonkeyPatch, tried: int
) -> None:
    """The event is not lost, and all others go on. The traceback shows which job it is."""
    world = World()
    for sentence in ("good is submitted: in -> out", "the links of good are made", "P1 is born", "P1 acks"):
        world.say(sentence)
    for sentence in ("bad is submitted: in -> out", "the links of bad are made", "new is submitted: in -> out"):
        world.say(sentence)
    no_offers(monkeypatch, "bad")
    monkeypatch.setattr(setting_aside, "TRIED", tried)
    event = PeerBorn(at=world.now, peer="P2")
    found = aside(world.state, event)
    assert found is not None
    assert (found.job, found.decided) == ("bad", True)
    decide(world.state, world.state.n + 1, found)
    check(world.state)
    assert world.state.jobs["good"].status == "running"
    assert world.state.assignment("P2").job == "good"


def test_nothing_is_set_aside_if_that_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in what concerns all jobs stops the coordinator, and a release without it loses nothing."""
    world = begun()
    for sentence in ("c is submitted: in -> out", "the links of c are made"):
        world.say(sentence)
    no_offers(monkeypatch)
    event = JobKilled(at=world.now, job="a")
    assert aside(world.state, event) is None


def test_coordinators_of_the_release_before_never_meet_it(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch, JobSubmitted)
    event = JobSubmitted(job="a", spec=JobSpec(name="a", workflow=[], catalog=[]))
    assert aside(new_state("test", OLDEST_RULES), event) is None
    found = aside(new_state("test"), event)
    assert found is not None
    state = replay([(1, found)])
    assert (state.jobs["a"].status, state.jobs["a"].error) == ("failed", found.error)


def test_a_choice_of_the_scheduler_fails_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun()
    breaks(monkeypatch, PolicySet)
    found = aside(world.state, PolicySet(at=world.now, scheduler="greedy"))
    assert found is not None
    assert (found.job, found.decided) == ("", False)
    decide(world.state, world.state.n + 1, found)
    assert world.state.scheduler == "turns"
    assert not any(job.ended for job in world.state.jobs.values())


def test_what_cannot_be_decided_of_an_ended_job_does_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator would delete its topics again and again, or forget it: it leaves both, until a user purges the job."""
    world = begun()
    for sentence in ("a is killed", "b is killed", "the links of b are gone"):
        world.say(sentence)
    for job, event in (("a", LinksDeleted(at=world.now, job="a")), ("b", JobPurged(at=world.now, job="b"))):
        with monkeypatch.context() as patch:
            breaks(patch, type(event), job)
            found = aside(world.state, event)
        assert found is not None
        decide(world.state, world.state.n + 1, found)
        check(world.state)
        assert [reason.code for reason in explain(world.state, job).reasons][-1] == "topics-left"
        assert not [effect for effect in core.unfinished(world.state) if getattr(effect, "job", "") == job]
        assert not [each for each in expired_jobs(world.state, 0.0, Timers(keep_jobs=0)) if each.job == job]
        assert encode_state(decode_state(encode_state(world.state))) == encode_state(world.state)
    for job in ("a", "b"):
        decide(world.state, world.state.n + 1, JobPurged(at=world.now, job=job))
    decide(world.state, world.state.n + 1, LinksDeleted(at=world.now, job="a"))
    assert not world.state.jobs


@pytest.mark.parametrize("error", [MemoryError(), SardonyxError("SX-VERSION-RULES", "newer")])
def test_what_is_no_fault_of_the_event_is_raised(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def handles(changes: ChangeSet, event: Any) -> None:
        raise error

    monkeypatch.setitem(core._HANDLERS, PeerBorn, handles)
    with pytest.raises(type(error)) as caught:
        decide(new_state("test"), 1, PeerBorn(peer="p"))
    assert caught.value is error


def test_a_replay_that_met_an_undecided_event_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is broken. One that begins anew, when the entry is set aside, comes to the end; `log verify` finds nothing."""
    world = begun()
    job, assignment = job_with(world, "P1")
    broken = Replay(decode_state(encode_state(world.state)))
    with monkeypatch.context() as patch:
        breaks(patch, Acked, job)
        event = Acked(at=world.now, peer="P1", assignment=assignment)
        found = aside(world.state, event)
        with pytest.raises(Undecided):
            broken.step(world.state.n + 1, event)
    assert found is not None
    with pytest.raises(Undecided):
        broken.step(world.state.n + 1, found)
    log = [*world.log, (world.state.n + 1, found)]
    verifier = Verifier(new_state("test"))
    assert len(list(verifier.run(log))) == len(log)
    assert verifier.end().ok
    decided = Replay(world.state).step(world.state.n + 1, found)
    assert job in concerned_jobs(decided)


def test_an_entry_that_is_set_aside_shows_no_secrets() -> None:
    task = TaskSpec(name="t", type="input", connector="kafka", options={"password": "hunter2hunter2"})
    event = JobSubmitted(job="a", spec=JobSpec(name="a", workflow=[], catalog=[task]))
    mask = Mask()
    mask.learn(event.spec)
    failure = SardonyxError("SX-LOG-SET-ASIDE", "no hunter2hunter2").to_failure()
    found = SetAside(event=event, error=failure, traceback="hunter2hunter2 is wrong", job="a")
    assert b"hunter2" not in encode_event(mask.event(found))
