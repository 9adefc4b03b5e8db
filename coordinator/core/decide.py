"""``decide(state, n, event) -> effects``: everything the coordinator decides, and nothing else. Pure.

No clock, no chance, no I/O: the same events in the same order always give the same state and the same effects, so a log
can be replayed anywhere. An event that does not fit what is known (an unknown peer, another assignment, a job that has
ended, the same event again) changes nothing, by the rule written at its handler.

After each event that has touched a job, or the number of idle peers, these are offered work, and each job's need for further
peers is counted anew.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from coordinator.core import scheduling
from coordinator.core.admission import JOB_ID, refusal
from coordinator.core.changeset import Step
from coordinator.core.peer_states import ASSIGNED, WORKING
from coordinator.core.state import Peer, State, new_state
from sardonyx.core.errors import Failure, InternalError
from sardonyx.core.events import (
    Acked,
    AckTimedOut,
    AnyEvent,
    Assignment,
    Completed,
    CreateLinks,
    Declined,
    DeleteLinks,
    DeletePulse,
    Effect,
    Evicted,
    Exhausted,
    GraceEnded,
    JobKilled,
    JobPurged,
    JobSubmitted,
    LastCommits,
    Left,
    LettersClaimed,
    LinksCreated,
    LinksDeleted,
    LinksFailed,
    OuterEffect,
    PeerBorn,
    PeerDied,
    Rested,
    TaskFailed,
)


def decide(state: State, n: int, event: AnyEvent) -> list[Effect]:
    """Take event ``n`` in: change ``state`` in place and say what is to be done.

    The effects on the tree are exactly the difference that the event makes to :func:`coordinator.core.state.project`; they
    belong into one transaction with the checkpoint. The others may be run only after it.

    Raises:
        InternalError: SX-LOG-ORDER, ``n`` does not come after the last event; SX-STATE-ILLEGAL, a bug.
    """
    if n <= state.n:
        raise InternalError(
            "SX-LOG-ORDER",
            f"event {n} cannot follow event {state.n}",
            cause="the log was read from the wrong place, or two leaders wrote to it",
            fix="please report this with the coordinator's log",
            where={"n": n},
        )
    step = Step(state, n, event.at)
    _HANDLERS[type(event)](step, event)
    # Otherwise everybody got what there was after the last event, and that is as it was.
    if step.jobs or step.free_changed:
        _offer_work(step)
        _count_missing(step)
    state.n = n
    return step.effects()


def replay(
    entries: Iterable[tuple[int, AnyEvent]], state: State | None = None, *, deployment: str = "default"
) -> State:
    """The state after a stretch of the log, going on from ``state`` (changed in place) or from nothing."""
    state = new_state(deployment) if state is None else state
    for n, event in entries:
        decide(state, n, event)
    return state


# Peers


def _born(step: Step, event: PeerBorn) -> None:
    """An id is used once: for one that is known, dead or alive, it is a repetition."""
    if event.peer not in step.state.peers:
        step.birth(event.peer, daemon=event.daemon, host=event.host, pid=event.pid)


def _died(step: Step, event: PeerDied) -> None:
    peer = step.state.peers.get(event.peer)
    if peer is None:
        return
    peer.pulse_due = False
    if peer.state != "dead":
        step.leave(event.peer, "die")


def _left(step: Step, event: Left) -> None:
    peer = step.state.peers.get(event.peer)
    if peer is not None and peer.state != "dead":
        step.leave(event.peer, "die")


def _evicted(step: Step, event: Evicted) -> None:
    """A peer at work is revoked and sees so; an idle one holds nothing that it would have to give back."""
    peer = step.state.peers.get(event.peer)
    if peer is None:
        return
    if peer.state in ASSIGNED:
        step.leave(event.peer, "revoke")
    elif peer.state == "idle":
        step.leave(event.peer, "die")
        step.take_pulse(event.peer)


def _grace_ended(step: Step, event: GraceEnded) -> None:
    peer = step.state.peers.get(event.peer)
    if peer is not None and peer.state == "revoked":
        step.leave(event.peer, "die")
        step.take_pulse(event.peer)


# A peer and its task. All of these are about one assignment: if the peer does not hold that very one, they come too late.


def _held(step: Step, event: Acked | AckTimedOut | Declined | Exhausted | Completed | TaskFailed) -> Peer | None:
    peer = step.state.peers.get(event.peer)
    if peer is None or peer.assignment is None or peer.assignment.id != event.assignment:
        return None
    return peer


def _acked(step: Step, event: Acked) -> None:
    peer = _held(step, event)
    if peer is not None and peer.assignment is not None and peer.state == "acking":
        step.move(event.peer, "ack")
        step.task_is(peer.assignment.job, peer.assignment.task, "running")


def _ack_timed_out(step: Step, event: AckTimedOut) -> None:
    peer = _held(step, event)
    if peer is not None and peer.state == "acking":
        step.leave(event.peer, "revoke")


def _declined(step: Step, event: Declined) -> None:
    peer = _held(step, event)
    if peer is not None and peer.assignment is not None and peer.state == "acking":
        _give_up(step, peer.assignment, event.peer, event.error, fatal=False)


def _task_failed(step: Step, event: TaskFailed) -> None:
    peer = _held(step, event)
    if peer is not None and peer.assignment is not None:
        _give_up(step, peer.assignment, event.peer, event.error, fatal=event.fatal)


def _give_up(step: Step, place: Assignment, name: str, error: Failure, *, fatal: bool) -> None:
    """The peer is idle; what is fatal, or has failed too often, fails the job: with this error, or with the first. If the
    job goes on, the task rests.
    """
    task = step.task_failed(place.job, place.task, error)
    step.leave(name, "release")
    if fatal:
        step.end(place.job, "failed", error)
    elif task.failures > step.state.jobs[place.job].spec.failure_limit:
        step.end(place.job, "failed", task.error)
    else:
        step.rest(place.job, place.task, resting=True)


def _rested(step: Step, event: Rested) -> None:
    """Only if the task has not failed again since the timer was looked at; then it rests anew."""
    job = step.state.jobs.get(event.job)
    task = job.tasks.get(event.task) if job is not None else None
    if task is not None and task.resting and task.failures == event.failures:
        step.rest(event.job, event.task, resting=False)


def _exhausted(step: Step, event: Exhausted) -> None:
    """The last one of a task to find its input drained seals; the others wait, since what they hold may still change."""
    peer = _held(step, event)
    if peer is None or peer.assignment is None or peer.state != "active":
        return
    peers = step.state.peers
    for other in step.state.jobs[peer.assignment.job].tasks[peer.assignment.task].peers:
        if peers[other].state != "waiting" and other != event.peer:
            step.move(event.peer, "wait")
            return
    step.move(event.peer, "seal")


def _completed(step: Step, event: Completed) -> None:
    """The task is complete, unless somebody joined it meanwhile: then that one will find it exhausted and seal again."""
    peer = _held(step, event)
    if peer is None or peer.assignment is None or peer.state != "sealing":
        return
    place = peer.assignment
    job = step.state.jobs[place.job]
    if any(step.state.peers[other].state in WORKING for other in job.tasks[place.task].peers):
        step.move(event.peer, "wait")
        return
    step.task_is(place.job, place.task, "complete", event.counts)
    step.leave(event.peer, "release")
    if all(job.tasks[stage].state == "complete" for stage in step.state.plans[place.job].stages):
        step.end(place.job, "completed")


# Jobs


def _submitted(step: Step, event: JobSubmitted) -> None:
    """A known id is a repetition, even if its job was forgotten; an id that cannot be one leaves no trace, since there is
    nowhere to write it.
    """
    if event.job in step.state.jobs or event.job in step.state.purged or not JOB_ID.fullmatch(event.job):
        return
    error = refusal(event.job, event.spec, step.state.names.get(event.spec.name))
    if error is not None:
        step.refuse(event.job, event.spec, error)
    else:
        step.admit(event.job, event.spec)


def _links_created(step: Step, event: LinksCreated) -> None:
    """For a job that was ended meanwhile they must go again, or they would stand for ever."""
    job = step.state.jobs.get(event.job)
    if job is None or job.refused:
        return
    if job.status == "planning":
        step.start(event.job, event.links)
    elif job.ended and job.links != "made":
        step.links_came_late(event.job)


def _links_failed(step: Step, event: LinksFailed) -> None:
    """Some of the topics may stand; the same care as for those that all stand."""
    job = step.state.jobs.get(event.job)
    if job is None or job.refused:
        return
    if job.status == "planning":
        step.end(event.job, "failed", event.error)
        job.links = "made"  # in part; so that the same news again finds nothing to do
    elif job.ended and job.links != "made":
        step.links_came_late(event.job)


def _links_deleted(step: Step, event: LinksDeleted) -> None:
    job = step.state.jobs.get(event.job)
    if job is not None and job.ended and not job.refused and job.links != "gone":
        step.links_gone(event.job, LastCommits(event.counts, event.positions))


def _killed(step: Step, event: JobKilled) -> None:
    job = step.state.jobs.get(event.job)
    if job is not None and not job.ended:
        step.end(event.job, "killed")


def _purged(step: Step, event: JobPurged) -> None:
    """A job is forgotten only after it has ended and its topics are gone; until then the coordinator must know whose they are.

    One with dead letters that were neither redone nor dropped stays, unless the user gives these up.
    """
    job = step.state.jobs.get(event.job)
    if job is None or not job.ended:
        return
    if not job.purgeable:
        job.purge = True
        job.purge_letters = job.purge_letters or event.dead_letters
    elif event.dead_letters or not job.letters:
        step.forget(event.job)


def _letters_claimed(step: Step, event: LettersClaimed) -> None:
    """The total says what all claims of the task come to, so a repetition changes nothing."""
    job = step.state.jobs.get(event.job)
    if job is not None and event.task in job.tasks:
        step.claim_letters(event.job, event.task, event.letters)


_HANDLERS: dict[type, Callable[[Step, Any], None]] = {
    PeerBorn: _born,
    PeerDied: _died,
    Left: _left,
    Evicted: _evicted,
    GraceEnded: _grace_ended,
    Acked: _acked,
    AckTimedOut: _ack_timed_out,
    Declined: _declined,
    TaskFailed: _task_failed,
    Rested: _rested,
    Exhausted: _exhausted,
    Completed: _completed,
    JobSubmitted: _submitted,
    LinksCreated: _links_created,
    LinksFailed: _links_failed,
    LinksDeleted: _links_deleted,
    JobKilled: _killed,
    JobPurged: _purged,
    LettersClaimed: _letters_claimed,
}


# After every event that may have changed who gets what


def _offer_work(step: Step) -> None:
    """Idle peers get work; jobs that could not end otherwise get theirs back from further down."""
    while True:
        while (offer := scheduling.next_offer(step.state)) is not None:
            step.offer(offer)
        jobs = _in_question(step)
        if not jobs:
            return
        backs = (scheduling.call_back(step.state, job) for job in scheduling.in_turn(step.state, jobs))
        back = next(filter(None, backs), None)
        if back is None:
            return
        for peer in back.peers:
            step.leave(peer, "release")
        step.offer(back.offer)


def _count_missing(step: Step) -> None:
    for job in _in_question(step):
        step.waits_for(job, scheduling.waits_for(step.state, job))


def _in_question(step: Step) -> list[str]:
    """The running jobs for which the event may have changed what they can get: those it touched, and with the number of
    idle peers all that have room.
    """
    known, touched = step.state.jobs, step.jobs
    if step.free_changed:
        touched = dict.fromkeys([*touched, *sorted(step.state.hungry)])
    return [job for job in touched if known[job].status == "running"] if touched else []


# Time


LONGEST_REST = 60.0
"""Seconds that a task rests at most after a failure."""


class Timers(msgspec.Struct, frozen=True):
    """How long things may take, in seconds, and how many ended jobs are kept. No decision depends on them, only when the
    events come that are decided on; so they may differ between coordinators and change at any time.
    """

    ack_timeout: float = 15.0
    """An offer stays so long without answer, then the peer is revoked."""
    revoke_grace: float = 10.0
    """A revoked peer, or one that has said it leaves, has so long to withdraw its pulse."""
    failure_backoff: float = 1.0
    """A task rests so long after its first failure, twice as long after the second, and so on up to a minute."""
    keep_jobs: int = 1000
    """Of more jobs that have ended, and whose topics are gone, the oldest are forgotten. Jobs with dead letters that were
    neither redone nor dropped do not count, and stay."""

    def rest(self, failures: int) -> float:
        """How long a task rests that has failed so often."""
        return min(self.failure_backoff * 2.0 ** min(failures - 1, 64), LONGEST_REST)


def due(state: State, now: float, timers: Timers) -> list[AnyEvent]:
    """The timers that have run out at ``now`` (seconds since 1970), as events to be logged.

    Timers follow from the times in the state, so a new leader has them all. Each queue is looked at from its oldest entry
    until the first that is not due. A clock that stands further *before* an entry than the timeout says nothing about how
    long that has waited (the last leader's clock was ahead): it counts as due.
    """
    events: list[AnyEvent] = []
    for name in state.by_state["acking"]:
        peer = state.peers[name]
        if not _over(now, peer.since, timers.ack_timeout):
            break
        events.append(AckTimedOut(at=now, peer=name, assignment=state.assignment(name).id))
    for name in state.by_state["revoked"]:
        if not _over(now, state.peers[name].since, timers.revoke_grace):
            break
        events.append(GraceEnded(at=now, peer=name))
    events += _rests_due(state, now, timers)
    return events


FORGOTTEN_AT_ONCE = 500
"""Jobs, at most, that :func:`surplus` names: fewer than the state remembers of those that were forgotten, so that a new leader
knows what may still have to be swept."""


def surplus(state: State, now: float, timers: Timers) -> list[JobPurged]:
    """The jobs that are to be forgotten for there being too many that have ended, as events to be logged; some of them, if they
    are very many.
    """
    over = min(max(len(state.expirable) - timers.keep_jobs, 0), FORGOTTEN_AT_ONCE)
    return [JobPurged(at=now, job=name) for name in islice(state.expirable, over)]


def _over(now: float, since: float, timeout: float) -> bool:
    """Computed as in :func:`next_due`, to the last bit: at the very time that was named there it must be over."""
    return not since - timeout < now < since + timeout


def _rests_due(state: State, now: float, timers: Timers) -> Iterator[Rested]:
    """In a row that is sorted by time, those are due that lie at its two ends: long ago, or far ahead."""
    for failures, row in sorted(state.resting.items()):
        rest = timers.rest(failures)
        past = bisect_right(row, now, key=lambda entry: entry[0] + rest)
        ahead = max(past, bisect_left(row, now, key=lambda entry: entry[0] - rest))
        for _, job, task in row[:past] + row[ahead:]:
            yield Rested(at=now, job=job, task=task, failures=failures)


def next_due(state: State, timers: Timers) -> float | None:
    """When :func:`due` and :func:`surplus` should be asked again (seconds since 1970; 0 is at once); None: no timer runs."""
    if len(state.expirable) > timers.keep_jobs:
        return 0.0
    first = math.inf
    for queue, timeout in (
        (state.by_state["acking"], timers.ack_timeout),
        (state.by_state["revoked"], timers.revoke_grace),
    ):
        if queue:
            first = min(first, state.peers[next(iter(queue))].since + timeout)
    for failures, row in state.resting.items():
        first = min(first, row[0][0] + timers.rest(failures))
    return None if first == math.inf else first


def unfinished(state: State) -> list[OuterEffect]:
    """What a new leader must run again: effects outside the tree of whose end the log does not tell."""
    effects: list[OuterEffect] = []
    for name, job in state.jobs.items():
        if job.status == "planning":
            effects.append(CreateLinks(name))
        elif job.ended and not job.refused and job.links != "gone":
            effects.append(DeleteLinks(name))
    effects += [DeletePulse(name) for name in state.by_state["dead"] if state.peers[name].pulse_due]
    return effects
