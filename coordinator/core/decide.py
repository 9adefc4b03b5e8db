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
from coordinator.core.changeset import ChangeSet
from coordinator.core.peer_states import ASSIGNED, WORKING
from coordinator.core.state import Peer, State, new_state
from sardonyx.core.errors import Failure, InternalError
from sardonyx.core.events import (
    Acked,
    AckTimedOut,
    AnyEvent,
    Assignment,
    BackoffEnded,
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
    changes = ChangeSet(state, n, event.at)
    _HANDLERS[type(event)](changes, event)
    # Otherwise everybody got what there was after the last event, and that is as it was.
    if changes.jobs or changes.free_changed:
        _offer_work(changes)
        _count_missing(changes)
    state.n = n
    return changes.effects()


def replay(
    entries: Iterable[tuple[int, AnyEvent]], state: State | None = None, *, deployment: str = "default"
) -> State:
    """The state after a stretch of the log, going on from ``state`` (changed in place) or from nothing."""
    state = new_state(deployment) if state is None else state
    for n, event in entries:
        decide(state, n, event)
    return state


# Peers


def _born(changes: ChangeSet, event: PeerBorn) -> None:
    """An id is used once: for one that is known, dead or alive, it is a repetition."""
    if event.peer not in changes.state.peers:
        changes.birth(event.peer, daemon=event.daemon, host=event.host, pid=event.pid)


def _died(changes: ChangeSet, event: PeerDied) -> None:
    peer = changes.state.peers.get(event.peer)
    if peer is None:
        return
    peer.pulse_due = False
    if peer.state != "dead":
        changes.leave(event.peer, "die")


def _left(changes: ChangeSet, event: Left) -> None:
    peer = changes.state.peers.get(event.peer)
    if peer is not None and peer.state != "dead":
        changes.leave(event.peer, "die")


def _evicted(changes: ChangeSet, event: Evicted) -> None:
    """A peer at work is revoked and sees so; an idle one holds nothing that it would have to give back."""
    peer = changes.state.peers.get(event.peer)
    if peer is None:
        return
    if peer.state in ASSIGNED:
        changes.leave(event.peer, "revoke")
    elif peer.state == "idle":
        changes.leave(event.peer, "die")
        changes.take_pulse(event.peer)


def _grace_ended(changes: ChangeSet, event: GraceEnded) -> None:
    peer = changes.state.peers.get(event.peer)
    if peer is not None and peer.state == "revoked":
        changes.leave(event.peer, "die")
        changes.take_pulse(event.peer)


# A peer and its task. All of these are about one assignment: if the peer does not hold that very one, they come too late.


def _held(
    changes: ChangeSet, event: Acked | AckTimedOut | Declined | Exhausted | Completed | TaskFailed
) -> Peer | None:
    peer = changes.state.peers.get(event.peer)
    if peer is None or peer.assignment is None or peer.assignment.id != event.assignment:
        return None
    return peer


def _acked(changes: ChangeSet, event: Acked) -> None:
    peer = _held(changes, event)
    if peer is not None and peer.assignment is not None and peer.state == "acking":
        changes.move(event.peer, "ack")
        changes.task_is(peer.assignment.job, peer.assignment.task, "running")


def _ack_timed_out(changes: ChangeSet, event: AckTimedOut) -> None:
    peer = _held(changes, event)
    if peer is not None and peer.state == "acking":
        changes.leave(event.peer, "revoke")


def _declined(changes: ChangeSet, event: Declined) -> None:
    peer = _held(changes, event)
    if peer is not None and peer.assignment is not None and peer.state == "acking":
        _give_up(changes, peer.assignment, event.peer, event.error, fatal=False)


def _task_failed(changes: ChangeSet, event: TaskFailed) -> None:
    peer = _held(changes, event)
    if peer is not None and peer.assignment is not None:
        _give_up(changes, peer.assignment, event.peer, event.error, fatal=event.fatal)


def _give_up(changes: ChangeSet, place: Assignment, name: str, error: Failure, *, fatal: bool) -> None:
    """The peer is idle; what is fatal, or has failed too often, fails the job: with this error, or with the first. If the
    job goes on, the task rests.
    """
    task = changes.task_failed(place.job, place.task, error)
    changes.leave(name, "release")
    if fatal:
        changes.end(place.job, "failed", error)
    elif task.failures > changes.state.jobs[place.job].spec.failure_limit:
        changes.end(place.job, "failed", task.error)
    else:
        changes.set_backing_off(place.job, place.task, backing_off=True)


def _backoff_ended(changes: ChangeSet, event: BackoffEnded) -> None:
    """Only if the task has not failed again since the timer was looked at; then it rests anew."""
    job = changes.state.jobs.get(event.job)
    task = job.tasks.get(event.task) if job is not None else None
    if task is not None and task.backing_off and task.failures == event.failures:
        changes.set_backing_off(event.job, event.task, backing_off=False)


def _exhausted(changes: ChangeSet, event: Exhausted) -> None:
    """The last one of a task to find its input drained seals; the others wait, since what they hold may still change."""
    peer = _held(changes, event)
    if peer is None or peer.assignment is None or peer.state != "active":
        return
    peers = changes.state.peers
    for other in changes.state.jobs[peer.assignment.job].tasks[peer.assignment.task].peers:
        if peers[other].state != "waiting" and other != event.peer:
            changes.move(event.peer, "wait")
            return
    changes.move(event.peer, "seal")


def _completed(changes: ChangeSet, event: Completed) -> None:
    """The task is complete, unless somebody joined it meanwhile: then that one will find it exhausted and seal again."""
    peer = _held(changes, event)
    if peer is None or peer.assignment is None or peer.state != "sealing":
        return
    place = peer.assignment
    job = changes.state.jobs[place.job]
    if any(changes.state.peers[other].state in WORKING for other in job.tasks[place.task].peers):
        changes.move(event.peer, "wait")
        return
    changes.task_is(place.job, place.task, "complete", event.counts)
    changes.leave(event.peer, "release")
    if all(job.tasks[stage].state == "complete" for stage in changes.state.plans[place.job].stages):
        changes.end(place.job, "completed")


# Jobs


def _submitted(changes: ChangeSet, event: JobSubmitted) -> None:
    """A known id is a repetition, even if its job was forgotten; an id that cannot be one leaves no trace, since there is
    nowhere to write it.
    """
    if event.job in changes.state.jobs or event.job in changes.state.purged or not JOB_ID.fullmatch(event.job):
        return
    error = refusal(event.job, event.spec, changes.state.names.get(event.spec.name))
    if error is not None:
        changes.refuse(event.job, event.spec, error)
    else:
        changes.admit(event.job, event.spec)


def _links_created(changes: ChangeSet, event: LinksCreated) -> None:
    """For a job that was ended meanwhile they must go again, or they would stand for ever."""
    job = changes.state.jobs.get(event.job)
    if job is None or job.refused:
        return
    if job.status == "planning":
        changes.start(event.job, event.links)
    elif job.ended and job.links != "made":
        changes.links_came_late(event.job)


def _links_failed(changes: ChangeSet, event: LinksFailed) -> None:
    """Some of the topics may stand; the same care as for those that all stand."""
    job = changes.state.jobs.get(event.job)
    if job is None or job.refused:
        return
    if job.status == "planning":
        changes.end(event.job, "failed", event.error)
        job.links = "made"  # in part; so that the same news again finds nothing to do
    elif job.ended and job.links != "made":
        changes.links_came_late(event.job)


def _links_deleted(changes: ChangeSet, event: LinksDeleted) -> None:
    job = changes.state.jobs.get(event.job)
    if job is not None and job.ended and not job.refused and job.links != "gone":
        changes.links_gone(event.job, LastCommits(event.counts, event.positions))


def _killed(changes: ChangeSet, event: JobKilled) -> None:
    job = changes.state.jobs.get(event.job)
    if job is not None and not job.ended:
        changes.end(event.job, "killed")


def _purged(changes: ChangeSet, event: JobPurged) -> None:
    """A job is forgotten only after it has ended and its topics are gone; until then the coordinator must know whose they are.

    One with dead letters that were neither redone nor dropped stays, unless the user gives these up.
    """
    job = changes.state.jobs.get(event.job)
    if job is None or not job.ended:
        return
    if not job.purgeable:
        job.purge = True
        job.purge_letters = job.purge_letters or event.dead_letters
    elif event.dead_letters or not job.letters:
        changes.forget(event.job)


def _letters_claimed(changes: ChangeSet, event: LettersClaimed) -> None:
    """The total says what all claims of the task come to, so a repetition changes nothing."""
    job = changes.state.jobs.get(event.job)
    if job is not None and event.task in job.tasks:
        changes.claim_letters(event.job, event.task, event.letters)


_HANDLERS: dict[type, Callable[[ChangeSet, Any], None]] = {
    PeerBorn: _born,
    PeerDied: _died,
    Left: _left,
    Evicted: _evicted,
    GraceEnded: _grace_ended,
    Acked: _acked,
    AckTimedOut: _ack_timed_out,
    Declined: _declined,
    TaskFailed: _task_failed,
    BackoffEnded: _backoff_ended,
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


def _offer_work(changes: ChangeSet) -> None:
    """Idle peers get work; jobs that could not end otherwise get theirs back from further down."""
    while True:
        while (offer := scheduling.next_offer(changes.state)) is not None:
            changes.offer(offer)
        jobs = _in_question(changes)
        if not jobs:
            return
        backs = (scheduling.preemption(changes.state, job) for job in scheduling.in_turn(changes.state, jobs))
        back = next(filter(None, backs), None)
        if back is None:
            return
        for peer in back.peers:
            changes.leave(peer, "release")
        changes.offer(back.offer)


def _count_missing(changes: ChangeSet) -> None:
    for job in _in_question(changes):
        changes.waits_for(job, scheduling.waits_for(changes.state, job))


def _in_question(changes: ChangeSet) -> list[str]:
    """The running jobs for which the event may have changed what they can get: those it touched, and with the number of
    idle peers all that have room.
    """
    known, touched = changes.state.jobs, changes.jobs
    if changes.free_changed:
        touched = dict.fromkeys([*touched, *sorted(changes.state.jobs_with_capacity)])
    return [job for job in touched if known[job].status == "running"] if touched else []


# Time


MAX_BACKOFF = 60.0
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

    def backoff(self, failures: int) -> float:
        """How long a task rests that has failed so often."""
        return min(self.failure_backoff * 2.0 ** min(failures - 1, 64), MAX_BACKOFF)


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
    events += _backoffs_due(state, now, timers)
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


def _backoffs_due(state: State, now: float, timers: Timers) -> Iterator[BackoffEnded]:
    """In a row that is sorted by time, those are due that lie at its two ends: long ago, or far ahead."""
    for failures, row in sorted(state.backing_off.items()):
        rest = timers.backoff(failures)
        past = bisect_right(row, now, key=lambda entry: entry[0] + rest)
        ahead = max(past, bisect_left(row, now, key=lambda entry: entry[0] - rest))
        for _, job, task in row[:past] + row[ahead:]:
            yield BackoffEnded(at=now, job=job, task=task, failures=failures)


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
    for failures, row in state.backing_off.items():
        first = min(first, row[0][0] + timers.backoff(failures))
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
