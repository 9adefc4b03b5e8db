"""Which timers of a state have run out, and when the next one will. Pure: a caller passes the time in.

A timer makes an event for the log, with its time stamped in, so a replay needs no timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from coordinator.core import scheduling
from coordinator.core.state import State
from sardonyx.core.events import (
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    GraceEnded,
    JobPurged,
    Rebalanced,
    TurnEnded,
)

MAX_BACKOFF = 60.0
"""Seconds: the longest back-off of a task."""


class Timers(msgspec.Struct, frozen=True):
    """Timeouts in seconds, and how many ended jobs are kept.

    Decisions do not depend on them; only the times of timer events do. So they may differ between coordinators and may change at
    any time.
    """

    ack_timeout: float = 15.0
    """A peer that does not answer an offer within this time is revoked."""
    revoke_grace: float = 10.0
    """A revoked or leaving peer must withdraw its pulse within this time."""
    quantum: float = 5.0
    """How long a peer works on a task of an unbounded job while another task of it has no peer."""
    rebalance_after: float = 60.0
    """A job gives no peers to others for this long after it has done so, except those without which they cannot go on."""
    failure_backoff: float = 1.0
    """The back-off after a task's first failure; it doubles with each further failure, up to a minute."""
    keep_jobs: int = 1000
    """Of more jobs that have ended, and whose topics are gone, the oldest are forgotten. Jobs with dead letters that were
    neither redone nor dropped do not count, and stay."""

    def backoff(self, failures: int) -> float:
        """Seconds of back-off after this number of failures."""
        return min(self.failure_backoff * 2.0 ** min(failures - 1, 64), MAX_BACKOFF)


def due(state: State, now: float, timers: Timers) -> list[AnyEvent]:
    """The timers that have expired at ``now`` (seconds since 1970), as events for the log.

    Timers follow from the times in the state, so a new leader has them all. Each queue is read from its oldest entry to the
    first that is not due. If ``now`` lies more than the timeout *before* an entry, the last leader's clock was ahead and the
    waiting time is unknown: the entry counts as due.
    """
    return [event for kind in KINDS for event in kind.due(state, now, timers)]


def _silent_due(state: State, now: float, timers: Timers) -> Iterator[AnyEvent]:
    for name in state.by_state["acking"]:
        peer = state.peers[name]
        if not _over(now, peer.since, timers.ack_timeout):
            break
        yield AckTimedOut(at=now, peer=name, assignment=state.assignment(name).id)
    for name in state.by_state["revoked"]:
        if not _over(now, state.peers[name].since, timers.revoke_grace):
            break
        yield GraceEnded(at=now, peer=name)


def _turns_due(state: State, now: float, timers: Timers) -> Iterator[AnyEvent]:
    for job in _in_order(state):
        for name in scheduling.turns_over(state, job):
            if _over(now, state.peers[name].since, timers.quantum):
                yield TurnEnded(at=now, peer=name, assignment=state.assignment(name).id)


def _rebalances_due(state: State, now: float, timers: Timers) -> Iterator[AnyEvent]:
    for move in scheduling.giving_back(state):
        giver = state.jobs[move.job]
        rested = giver.gave_at is None or _over(now, giver.gave_at, timers.rebalance_after)
        if count := len(move.peers) if rested else move.at_once:
            yield Rebalanced(at=now, job=move.job, peers=count, gave=giver.gave)


def _in_order(state: State) -> list[str]:
    """The jobs whose peers take turns, the oldest first."""
    return sorted(state.short, key=lambda job: state.jobs[job].number)


EXPIRED_AT_ONCE = 500
"""How many jobs :func:`expired_jobs` names at most. The state remembers more deleted jobs than that, so a new leader knows which
may still have topics and nodes to delete."""


def expired_jobs(state: State, now: float, timers: Timers) -> list[JobPurged]:
    """The ended jobs beyond ``timers.keep_jobs``, oldest first, as events for the log; at most :data:`EXPIRED_AT_ONCE`."""
    over = min(max(len(state.expirable) - timers.keep_jobs, 0), EXPIRED_AT_ONCE)
    return [JobPurged(at=now, job=name) for name in islice(state.expirable, over)]


def _over(now: float, since: float, timeout: float) -> bool:
    """Whether a timeout has expired; uses the same arithmetic as :func:`next_due`, so that it has at the time announced there."""
    return not since - timeout < now < since + timeout


def _backoffs_due(state: State, now: float, timers: Timers) -> Iterator[AnyEvent]:
    for failures, row in sorted(state.backing_off.items()):
        for failed_at, job, task in row:
            if _over(now, failed_at, timers.backoff(failures)):
                yield BackoffEnded(at=now, job=job, task=task, failures=failures)


def next_due(state: State, timers: Timers) -> float | None:
    """When to call :func:`due` and :func:`expired_jobs` again (seconds since 1970; 0: at once); None: no timer runs."""
    if len(state.expirable) > timers.keep_jobs:
        return 0.0
    return min((at for kind in KINDS for at in kind.next(state, timers)), default=None)


def _silent_next(state: State, timers: Timers) -> Iterator[float]:
    for queue, timeout in (
        (state.by_state["acking"], timers.ack_timeout),
        (state.by_state["revoked"], timers.revoke_grace),
    ):
        if queue:
            yield state.peers[next(iter(queue))].since + timeout


def _backoffs_next(state: State, timers: Timers) -> Iterator[float]:
    for failures, row in state.backing_off.items():
        yield row[0][0] + timers.backoff(failures)


def _turns_next(state: State, timers: Timers) -> Iterator[float]:
    for job in state.short:
        for peer in scheduling.turns_over(state, job)[:1]:
            yield state.peers[peer].since + timers.quantum


def _rebalances_next(state: State, timers: Timers) -> Iterator[float]:
    for move in scheduling.giving_back(state):
        gave_at = state.jobs[move.job].gave_at
        yield 0.0 if gave_at is None or move.at_once else gave_at + timers.rebalance_after


class TimerKind(NamedTuple):
    """Timers of one kind. They depend on no other kind, so a defect in one need not stop the others."""

    name: str
    due: Callable[[State, float, Timers], Iterator[AnyEvent]]
    next: Callable[[State, Timers], Iterator[float]]


KINDS = (
    TimerKind("silent", _silent_due, _silent_next),
    TimerKind("backoffs", _backoffs_due, _backoffs_next),
    TimerKind("turns", _turns_due, _turns_next),
    TimerKind("rebalances", _rebalances_due, _rebalances_next),
)
"""In the order of their events."""
