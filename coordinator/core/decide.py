"""``decide(state, n, event) -> effects``: everything the coordinator decides, and nothing else. Pure.

There is no clock, no randomness and no I/O. The same events in the same order always give the same state and the same effects, so
a log can be replayed anywhere. An event that does not fit the state changes nothing: it names an unknown peer, an old assignment
or an ended job, or it is a repetition. Each handler states its rule.

An error in a decision is a defect. The state is broken then, and the leader sets the event aside
(:mod:`coordinator.core.setting_aside`).

What follows from an event that has changed a job, or the number of idle peers, is in :mod:`coordinator.core.follow_up`. The
handlers of events about jobs are in :mod:`coordinator.core.job_events`, all others here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from coordinator.core import job_events, scheduling
from coordinator.core.changeset import ChangeSet
from coordinator.core.follow_up import follow_up
from coordinator.core.peer_states import ASSIGNED, WORKING
from coordinator.core.state import LIVE, Peer, State, new_state
from sardonyx.core.effects import (
    ChangeLinks,
    CreateLinks,
    DeleteLinks,
    DeletePulse,
    DropLinks,
    Effect,
    OuterEffect,
    ReadLinks,
)
from sardonyx.core.errors import Failure, InternalError
from sardonyx.core.events import (
    NEWER,
    OLDEST,
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Completed,
    Declined,
    Drained,
    Evicted,
    Exhausted,
    GraceEnded,
    JobPurged,
    JobSubmitted,
    Left,
    LinksCreated,
    LinksDeleted,
    LinksDropped,
    LinksFailed,
    LinksRead,
    PeerBorn,
    PeerDied,
    Rebalanced,
    SetAside,
    TaskFailed,
    TurnEnded,
    Yielded,
    kind_of,
)
from sardonyx.core.notes import Assignment


def decide(state: State, n: int, event: AnyEvent) -> list[Effect]:
    """Apply event ``n``: change ``state`` in place and return what must be done.

    The effects on the tree are exactly the difference that the event makes to :func:`coordinator.core.projection.project`. They
    must be written in one transaction with the checkpoint. The other effects may run only after that transaction.

    Args:
        state: changed in place.
        n: the event's number in the log; greater than that of the last event.
        event: with its time stamped in.

    Returns:
        Changes of nodes, parents before children; deletions, children before parents; then effects outside ZooKeeper.

    Raises:
        InternalError: SX-LOG-ORDER, ``n`` does not come after the last event.
        Undecided: a bug. The state is broken from now on.
        SardonyxError: SX-VERSION-RULES, the event names rules that this release does not know.
    """
    if n <= state.n:
        raise InternalError(
            "SX-LOG-ORDER",
            f"event {n} cannot come after event {state.n}",
            cause="the log was read from a wrong position, or two leaders wrote to it",
            fix="please report this with the coordinator's log",
            where={"n": n},
        )
    changes = ChangeSet(state, n, event.at)
    try:
        _HANDLERS[type(event)](changes, event)
        # Without such a change, the offers after the previous event still hold.
        if changes.jobs or changes.free_changed:
            follow_up(changes)
        effects = changes.effects()
    except Exception as error:
        # The event is not at fault if there is no memory, or if this release is too old.
        if isinstance(error, MemoryError) or getattr(error, "code", "") == "SX-VERSION-RULES":
            raise
        raise Undecided(n, event, error) from error
    state.n = n
    return effects


class Undecided(InternalError):
    """An event could not be decided. Its cause is the error."""

    def __init__(self, n: int, event: AnyEvent, error: Exception) -> None:
        kind = kind_of(event)
        super().__init__(
            "SX-LOG-UNDECIDED",
            f"the coordinator cannot decide about entry {n} of its log ({kind}): {type(error).__name__}: {error}",
            cause="a defect in this release",
            fix="try again in a minute: the leader sets the entry aside. If it does not, report it with the coordinator's log",
            where={"n": n, "kind": kind},
        )
        self.n = n
        self.event = event


def replay(
    entries: Iterable[tuple[int, AnyEvent]], state: State | None = None, *, deployment: str = "default"
) -> State:
    """The state after a part of the log, starting from ``state`` (changed in place) or from an empty one."""
    state = new_state(deployment) if state is None else state
    for n, event in entries:
        decide(state, n, event)
    return state


# Peers


def _born(changes: ChangeSet, event: PeerBorn) -> None:
    """Each id is used once. If the id is known, the event is a repetition."""
    if event.peer not in changes.state.peers:
        changes.birth(event.peer, event)


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
    """A peer with a task is revoked, and reads that in its state node. An idle peer holds nothing and dies at once."""
    peer = changes.state.peers.get(event.peer)
    if peer is None:
        return
    if peer.state in ASSIGNED:
        changes.leave(event.peer, "revoke")
    elif peer.state == "idle":
        changes.leave(event.peer, "die")
        changes.take_pulse(event.peer)


def _drained(changes: ChangeSet, event: Drained) -> None:
    """A coordinator that knows only the rules before does not know this event. The last word about a peer counts."""
    state = changes.state
    if state.rules < 4:
        return
    if event.host:
        state.drained = sorted({*state.drained, event.host} - ({event.host} if event.back else set()))
    for name, peer in sorted(state.peers.items(), key=lambda item: item[1].order):
        if (name == event.peer or (event.host and peer.host == event.host)) and peer.state in LIVE:
            changes.drain(name, drained=not event.back)


def _grace_ended(changes: ChangeSet, event: GraceEnded) -> None:
    peer = changes.state.peers.get(event.peer)
    if peer is not None and peer.state == "revoked":
        changes.leave(event.peer, "die")
        changes.take_pulse(event.peer)


# A peer and its task. Each of these events names an assignment. If the peer does not hold it any more, the event is too late.


def _held(
    changes: ChangeSet, event: Acked | AckTimedOut | Declined | Exhausted | Completed | TaskFailed | Yielded | TurnEnded
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
        job = changes.state.jobs[peer.assignment.job]
        job.former, job.tasks[peer.assignment.task].taken_up = None, changes.state.rules > 3


def _ack_timed_out(changes: ChangeSet, event: AckTimedOut) -> None:
    """The peer loses its id, and the task is offered to others at once. It counts as a failure of the task: code that hangs when
    it is imported would be offered without end. What several peers leave unanswered at the same moment is one failure.

    If a peer has begun with the task by this spec, the code does not hang, and the cause lies in the process or its machine. Then
    it does not count for the limit, and the task backs off for that process.
    """
    peer = _held(changes, event)
    if peer is None or peer.assignment is None or peer.state != "acking":
        return
    place, home = peer.assignment, peer.home
    known = changes.state.jobs[place.job].tasks[place.task]
    if known.backing_off or known.failed_at == changes.at:
        changes.leave(event.peer, "revoke")
        if known.taken_up and known.declined and home:
            changes.set_declined(place.job, place.task, home)
        return
    silent = _silent(event.peer, place, taken_up=known.taken_up)
    task = changes.task_failed(place.job, place.task, silent, passing=known.taken_up)
    changes.leave(event.peer, "revoke")
    if task.failures - task.passing > changes.state.jobs[place.job].spec.failure_limit:
        changes.fail(place.job, task.error, begun=False)
    elif task.taken_up and home:
        changes.set_backing_off(place.job, place.task, backing_off=True)
        changes.set_declined(place.job, place.task, home)


def _silent(name: str, place: Assignment, *, taken_up: bool) -> Failure:
    hangs = "it hangs while it prepares the task, as when it imports the job's code; or its machine is overloaded"
    slow = "its machine is overloaded, or lacks something that the job's code waits for: another peer has begun with the task"
    return Failure(
        "SX-PEER-SILENT",
        f"peer {name} did not answer the offer of task {place.task!r} in time",
        cause=slow if taken_up else hangs,
        fix="look into the log of its daemon; coordinator.ack_timeout sets the time",
        where={"job": place.job, "task": place.task, "peer": name},
    )


def _declined(changes: ChangeSet, event: Declined) -> None:
    peer = _held(changes, event)
    if peer is not None and peer.state == "acking":
        _failed_on(changes, peer, event)


def _task_failed(changes: ChangeSet, event: TaskFailed) -> None:
    peer = _held(changes, event)
    if peer is not None:
        _failed_on(changes, peer, event, fatal=event.fatal)


def _failed_on(changes: ChangeSet, peer: Peer, event: Declined | TaskFailed, *, fatal: bool = False) -> None:
    """What a peer of an older release cannot read is not a failure of the task: the job gets only peers of newer ones then."""
    if peer.assignment is None:
        return
    if event.error.code in NEWER:
        changes.job(peer.assignment.job)
        changes.need(peer.assignment.job, (peer.format or OLDEST) + 1)
        changes.leave(event.peer, "release", failed=True)
    else:
        _give_up(changes, peer.assignment, event, fatal=fatal)


def _give_up(changes: ChangeSet, place: Assignment, event: Declined | TaskFailed, *, fatal: bool) -> None:
    """The peer becomes idle. A fatal error fails the job, and so does one failure too many (with the first error that counted).
    Otherwise the task backs off. What further peers report while it does is the same failure, which all of them saw. If it was
    declined, it backs off only for those who declined it, so a failure of a peer at work is another one.
    """
    known, name = changes.state.jobs[place.job].tasks[place.task], event.peer
    home = changes.state.peers[name].home if isinstance(event, Declined) and changes.state.rules > 3 else None
    if not fatal and (known.rests or (known.backing_off and home is not None)):
        if home is not None and not known.rests:
            changes.set_declined(place.job, place.task, home)
        changes.leave(name, "release", failed=True)
        return
    task = changes.task_failed(place.job, place.task, event.error, passing=event.passing)
    changes.leave(name, "release", failed=True)
    if fatal:
        changes.fail(place.job, event.error)
    elif task.failures - task.passing > changes.state.jobs[place.job].spec.failure_limit:
        changes.fail(place.job, task.error, begun=isinstance(event, TaskFailed))
    else:
        changes.set_backing_off(place.job, place.task, backing_off=True)
        if home is not None:
            changes.set_declined(place.job, place.task, home)


def _backoff_ended(changes: ChangeSet, event: BackoffEnded) -> None:
    """Ends the back-off, unless the task has failed again since: then a new back-off has begun."""
    job = changes.state.jobs.get(event.job)
    task = job.tasks.get(event.task) if job is not None else None
    if task is not None and task.backing_off and task.failures == event.failures:
        changes.set_backing_off(event.job, event.task, backing_off=False)


def _exhausted(changes: ChangeSet, event: Exhausted) -> None:
    """The last peer of a task to drain its input seals. The others wait, because a peer that dies leaves them its input. They
    do not wait for a peer that has not accepted yet to join them: it has read nothing.
    """
    peer = _held(changes, event)
    if peer is None or peer.assignment is None or peer.state != "active":
        return
    peers = changes.state.peers
    for other in changes.state.jobs[peer.assignment.job].tasks[peer.assignment.task].peers:
        if peers[other].state != "waiting" and not peers[other].joins and other != event.peer:
            changes.move(event.peer, "wait")
            return
    changes.move(event.peer, "seal")


def _completed(changes: ChangeSet, event: Completed) -> None:
    """The task is complete, unless a peer joined it meanwhile. That peer will find the input drained and seal again. One that
    has not accepted yet to join becomes idle again.
    """
    peer = _held(changes, event)
    if peer is None or peer.assignment is None or peer.state != "sealing":
        return
    place = peer.assignment
    job = changes.state.jobs[place.job]
    others = {name: changes.state.peers[name] for name in changes.state.on_task(job.tasks[place.task])}
    if any(other.state in WORKING and not other.joins for other in others.values()):
        changes.move(event.peer, "wait")
        return
    changes.task_is(place.job, place.task, "complete", event.counts)
    changes.keep_positions(place.job, changes.state.plans[place.job].graph, {place.task: event.positions})
    for name in [name for name, other in others.items() if other.joins]:
        changes.leave(name, "release")
    changes.leave(event.peer, "release")
    if all(job.tasks[stage].state == "complete" for stage in changes.state.plans[place.job].stages):
        changes.end(place.job, "stopped" if job.stopping else "completed")


def _turn_ended(changes: ChangeSet, event: TurnEnded) -> None:
    """The peer gives its task up after its batch, unless as many do so already as tasks have no peer."""
    peer = _held(changes, event)
    if peer is None or peer.assignment is None:
        return
    job = peer.assignment.job
    if job in changes.state.short and event.peer in scheduling.turns_over(changes.state, job):
        changes.mark(event.peer, "turn")


def _yielded(changes: ChangeSet, event: Yielded) -> None:
    """The peer has stopped working on its task, so it becomes idle even if it need not give the task up any more."""
    peer = _held(changes, event)
    if peer is not None:
        changes.leave(event.peer, "release")


def _rebalanced(changes: ChangeSet, event: Rebalanced) -> None:
    """So many peers of the job give their tasks up, if it is still above its share."""
    job = changes.state.jobs.get(event.job)
    if job is None or job.gave != event.gave:
        return
    for move in scheduling.giving_back(changes.state):
        if move.job == event.job:
            job.gave, job.gave_at = job.gave + 1, event.at
            for peer in move.peers[: event.peers]:
                changes.mark(peer, "share")
            changes.take_turns(move.job)


# Events that could not be decided


_CAME_LATE = (LinksCreated, LinksFailed)
"""About an ended job: its topics may have come after they were deleted. This event does not come again."""
_TOLD_AGAIN = (LinksRead, LinksDeleted, LinksDropped, JobPurged)
"""About an ended job: if nothing is decided about it, the coordinator brings it about again."""


def _set_aside(changes: ChangeSet, event: SetAside) -> None:
    """The job fails. If it has ended already, its topics are deleted. But if the event told of that, nothing more is done about
    the job: else the same event would come again and again.
    """
    job, cause = changes.state.jobs.get(event.job), event.event
    if job is None and isinstance(cause, JobSubmitted):
        job_events.refused(changes, cause, event.error)
    elif job is not None and not job.ended:
        changes.end(event.job, "failed", event.error)
    elif job is not None and isinstance(cause, _CAME_LATE):
        if job.links != "made" and not job.refused:
            changes.links_came_late(event.job)
    elif job is not None and isinstance(cause, _TOLD_AGAIN) and job.error != event.error:
        job.left_alone = True
        changes.state.expirable.pop(event.job, None)
    if event.decided:
        _HANDLERS[type(cause)](changes, cause)


_HANDLERS: dict[type, Callable[[ChangeSet, Any], None]] = {
    SetAside: _set_aside,
    PeerBorn: _born,
    PeerDied: _died,
    Left: _left,
    Evicted: _evicted,
    Drained: _drained,
    GraceEnded: _grace_ended,
    Acked: _acked,
    AckTimedOut: _ack_timed_out,
    Declined: _declined,
    TaskFailed: _task_failed,
    BackoffEnded: _backoff_ended,
    Exhausted: _exhausted,
    Completed: _completed,
    Yielded: _yielded,
    TurnEnded: _turn_ended,
    Rebalanced: _rebalanced,
    **job_events.HANDLERS,
}


def unfinished(state: State) -> list[OuterEffect]:
    """What a new leader must run again: effects outside ZooKeeper whose completion is not in the log."""
    effects: list[OuterEffect] = []
    for name, job in state.jobs.items():
        if job.left_alone:
            continue
        if job.status == "planning":
            effects.append(CreateLinks(name))
        if job.switching:
            effects.append(ChangeLinks(name))
        if job.gone_spec is not None:
            effects.append(DropLinks(name))
        if job.ended and not job.refused and job.links != "gone":
            effects.append(ReadLinks(name) if job.must_be_read else DeleteLinks(name))
    effects += [DeletePulse(name) for name in state.by_state["dead"] if state.peers[name].pulse_due]
    return effects
