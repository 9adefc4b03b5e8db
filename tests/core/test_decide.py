"""What the scenario files do not show: timers, retention, what a new leader runs again, odd requests."""

from __future__ import annotations

import random

import pytest
from scenario_runner import World, spec_of

from coordinator.core.decide import decide, unfinished
from coordinator.core.invariants import check
from coordinator.core.state import new_state
from coordinator.core.timers import Timers, due, expired_jobs, next_due
from sardonyx.core.effects import CreateLinks, DeleteLinks, DeletePulse
from sardonyx.core.events import (
    AckTimedOut,
    BackoffEnded,
    GraceEnded,
    JobKilled,
    JobPurged,
    JobSubmitted,
)
from sardonyx.core.spec import JobSpec, TaskSpec


def played(*sentences: str) -> World:
    world = World()
    for sentence in sentences:
        world.say(sentence)
    return world


RUNNING = ("copy is submitted: read -> write; read is a topic; write is sequential", "the links of copy are made")


@pytest.mark.parametrize("job", ["", "a/b", "..", "../log", "1st", "x" * 100, "naïve"])
def test_an_id_that_is_no_path_leaves_no_trace(job: str) -> None:
    """A job under an id that cannot be a node is not recorded: there is nowhere to write it, and the leader goes on."""
    state = new_state()
    assert decide(state, 1, JobSubmitted(job=job, spec=spec_of("copy", "read -> write"))) == []
    assert state.jobs == {}


def _task(name: str, **more: object) -> TaskSpec:
    return TaskSpec(**({"name": name, "type": "function", "fn": "m:f"} | more))  # type: ignore[arg-type]


READ, WRITE = _task("read", type="input", connector="generator"), _task("write", type="output", connector="blackhole")


@pytest.mark.parametrize(
    ("workflow", "catalog", "code"),
    [
        ([], [], "SX-JOB-STRUCTURE"),
        ([("read", "wrote")], [READ, WRITE], "SX-JOB-STRUCTURE"),
        ([("read", "write")], [READ, WRITE, WRITE], "SX-JOB-STRUCTURE"),
        ([("read", "write"), ("read", "write")], [READ, WRITE], "SX-JOB-STRUCTURE"),
        ([("read", "write")], [READ, WRITE, _task("lonely")], "SX-JOB-STRUCTURE"),
        ([("write", "read")], [READ, WRITE], "SX-JOB-STRUCTURE"),
        ([("read", "a/b"), ("a/b", "write")], [READ, WRITE, _task("a/b")], "SX-JOB-STRUCTURE"),
        ([("read", "a"), ("a", "a"), ("a", "write")], [READ, WRITE, _task("a")], "SX-JOB-CYCLE"),
        ([("read", "write")], [_task("read", type="input", connector="kafka"), WRITE], "SX-JOB-STRUCTURE"),
    ],
)
def test_a_job_that_makes_no_sense_is_recorded_as_failed(
    workflow: list[tuple[str, str]], catalog: list[TaskSpec], code: str
) -> None:
    """Whatever is handed in, the coordinator goes on, and the job says what is wrong with it."""
    state = new_state()
    effects = decide(
        state, 1, JobSubmitted(at=7.0, job="odd", spec=JobSpec(name="odd", workflow=workflow, catalog=catalog))
    )
    check(state)
    job = state.jobs["odd"]
    assert (job.status, job.ended_at, job.tasks) == ("failed", 7.0, {})
    assert job.error is not None
    assert job.error.code == code
    assert not any(isinstance(effect, CreateLinks | DeleteLinks) for effect in effects)
    assert unfinished(state) == []
    assert decide(state, 2, JobKilled(job="odd")) == []


def test_timers_follow_from_the_state() -> None:
    """Offers and revocations run out after their own times, each once it is due and not before."""
    world = played(*RUNNING, "P1 is born")
    assert next_due(world.state, Timers()) == 15
    assert due(world.state, 14.9, Timers()) == []
    assert due(world.state, 15.0, Timers()) == [AckTimedOut(at=15.0, peer="P1", assignment=3)]
    world.say("15 s pass")
    assert next_due(world.state, Timers()) == 25
    assert due(world.state, 25.0, Timers()) == [GraceEnded(at=25.0, peer="P1")]
    world.say("P1 dies")
    assert next_due(world.state, Timers()) is None


def test_a_rest_ends_when_it_is_over() -> None:
    """The first rest lasts a second, each further one twice as long, none longer than a minute; due says what next_due said."""
    world = played("copy is submitted: read -> write; outlives 9 failures", "the links of copy are made", "P1 is born")
    for failures, rest in enumerate((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0), 1):
        world.say("P1 declines: no module")
        assert due(world.state, world.now + rest - 0.1, Timers()) == []
        until = next_due(world.state, Timers())
        assert until == world.now + rest
        world.now = until
        over = BackoffEnded(at=until, job="copy", task="read", failures=failures)
        assert due(world.state, until, Timers()) == [over]
        world.deliver(over)
    assert Timers(failure_backoff=0.25).backoff(2) == 0.5
    assert Timers().backoff(10_000) == 60.0


def test_what_is_announced_is_due_then(rng: random.Random) -> None:
    """At exactly the time that next_due names there is something due, however the floating point numbers fall: a coordinator
    that sleeps until then never wakes for nothing.
    """
    for _ in range(300):
        world = played(*RUNNING)
        world.now = rng.uniform(1.7e9, 1.8e9)
        timers = Timers(
            ack_timeout=rng.uniform(0.1, 30), revoke_grace=rng.uniform(0.1, 30), failure_backoff=rng.random()
        )
        world.say("P1 is born")
        for sentence in rng.choice((["P1 declines: no module"], ["P1 is evicted"], [])):
            world.say(sentence)
        first = next_due(world.state, timers)
        assert first is not None
        assert len(due(world.state, first, timers)) == 1


def test_each_task_rests_as_long_as_it_failed_often() -> None:
    """Tasks of several jobs rest side by side; due takes from each row those whose time has come, whatever the clock did."""
    world = World()
    for job in ("one", "two", "three"):
        world.say(f"{job} is submitted: read -> write; read is a topic; outlives 9 failures; 1 partition")
        world.say(f"the links of {job} are made")
        world.say(f"P{job} is born")
    for world.now, job in ((100.0, "one"), (101.0, "two"), (101.5, "one"), (90.0, "three")):
        if job == "one" and world.now > 101:
            world.say("one ends its back-off at write since failure 1")
        world.say(f"P{job} declines: no module")

    def rested(now: float) -> list[tuple[str, int]]:
        return [
            (event.job, event.failures) for event in due(world.state, now, Timers()) if isinstance(event, BackoffEnded)
        ]

    assert world.state.backing_off == {
        1: [(90.0, "three", "write"), (101.0, "two", "write")],
        2: [(101.5, "one", "write")],
    }
    assert next_due(world.state, Timers()) == 91.0
    assert rested(90.5) == [("two", 1), ("one", 2)]
    assert rested(101.1) == [("three", 1)]
    assert rested(102.0) == [("three", 1), ("two", 1)]
    assert rested(103.5) == [("three", 1), ("two", 1), ("one", 2)]


def test_the_oldest_of_too_many_jobs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention: those that were done with first, at once and no more than needed, of very many some at a time."""
    world = World()
    for job in ("one", "two", "three"):
        world.say(f"{job} is submitted: read -> write; write names no topic")
    assert next_due(world.state, Timers(keep_jobs=3)) is None
    assert expired_jobs(world.state, 0.0, Timers(keep_jobs=3)) == []
    assert next_due(world.state, Timers(keep_jobs=1)) == 0.0
    assert expired_jobs(world.state, 5.0, Timers(keep_jobs=1)) == [
        JobPurged(at=5.0, job="one"),
        JobPurged(at=5.0, job="two"),
    ]
    monkeypatch.setattr("coordinator.core.timers.EXPIRED_AT_ONCE", 1)
    assert expired_jobs(world.state, 5.0, Timers(keep_jobs=1)) == [JobPurged(at=5.0, job="one")]


def test_a_clock_that_was_ahead_does_not_stop_the_timers() -> None:
    """If the last leader's clock stood an hour ahead, the next leader does not wait an hour."""
    world = played(*RUNNING)
    world.now = 3600.0
    world.say("P1 is born")
    assert due(world.state, 3595.0, Timers()) == []
    assert due(world.state, 20.0, Timers()) == [AckTimedOut(at=20.0, peer="P1", assignment=3)]


def test_a_new_leader_runs_again_what_may_not_be_done() -> None:
    """Topics to be made or removed, and pulses to be taken, until the log tells of their end."""
    world = played("copy is submitted: read -> write", "P1 is born", "P1 is evicted")
    assert unfinished(world.state) == [CreateLinks("copy"), DeletePulse("P1")]
    world.say("P1 dies")
    world.say("copy is killed")
    assert unfinished(world.state) == [DeleteLinks("copy")]
    world.say("the links of copy are gone")
    assert unfinished(world.state) == []
    world.say("the links of copy are made")
    assert unfinished(world.state) == [DeleteLinks("copy")]
