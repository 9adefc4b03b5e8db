"""What went wrong with a job and how it went on, read from the log. Pure.

It tells of peers that were lost, of the peers that took their places, of tasks that failed and were started again, and of
coordinators that had taken over: the log holds their first entries, and not their elections, which may be minutes older.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from coordinator.history.replay import Decided, place_of
from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Declined,
    Evicted,
    Left,
    PeerDied,
    SetAside,
    TaskFailed,
    happened,
)
from sardonyx.core.node_paths import job_status, peer_state
from sardonyx.core.notes import Assignment, JobNote, PeerNote

Kind = Literal["died", "left", "evicted", "unanswered", "declined", "failed", "coordinator"]
"""How a peer lost its task: it died, it left, a user evicted it, it did not answer the offer, it could not run the task, or the
task failed on it. Or: this is the first entry of another coordinator, which had taken over at some time before."""

_TOGETHER = 1.0
"""Seconds within which the virtual peers of a daemon that dies are lost."""
_KINDS: dict[type, Kind] = {
    PeerDied: "died",
    Left: "left",
    Evicted: "evicted",
    AckTimedOut: "unanswered",
    Declined: "declined",
    TaskFailed: "failed",
}


class Past(NamedTuple):
    """An entry of the log with what was decided about it; ``leader``: the coordinator that leads from here on, if it is new."""

    decided: Decided
    leader: str = ""


class TimelineEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that went wrong while a job ran. Times are seconds since 1970, durations seconds."""

    n: int
    """The number of the log entry."""
    at: float
    kind: Kind
    task: str = ""
    peer: str = ""
    leader: str = ""
    """The coordinator that had taken over, as ``host:pid``: this is its first entry."""
    error: Failure | None = None
    fatal: bool = False
    """Whether the job failed because of it."""
    failures: int = 0
    """How often the task has failed by now."""
    backoff: float | None = None
    """Seconds until the task was offered again."""
    others: list[str] = []
    """The other peers of the task, which went on with it."""
    by: str = ""
    """The peer that took the place."""
    after: float | None = None
    """Seconds until that peer began. The task did not wait for it if it had ``others``, or was resumed before."""
    resumed_by: str = ""
    """If the task was left without a peer, and one in another of its places was the first to work on it again: that peer."""
    resumed_after: float | None = None
    """Seconds until it began."""


def timeline_of(job: str, past: Iterable[Past], *, running: bool = False) -> list[TimelineEvent]:
    """The timeline of a job: what went wrong, in order.

    Args:
        job: its id.
        past: the log from the job's submission on, or from the oldest entry that is kept; read as far as the job's end.
        running: whether the job had been submitted, and had not ended, before the first entry of ``past``.
    """
    teller = Teller(job, running)
    for each in past:
        teller.take(each)
        if teller.over:
            break
    return teller.found


class _Open(NamedTuple):
    item: TimelineEvent
    slot: int


class Teller:
    """Reads along the log, and completes each timeline event when another peer takes the place."""

    def __init__(self, job: str, running: bool) -> None:
        self._job = job
        self._running = running
        self.over = False
        """Whether the job has ended: nothing after that belongs to its timeline."""
        self._places: list[_Open] = []
        """Places that no peer has taken again yet."""
        self._backing_off: list[TimelineEvent] = []
        self.found: list[TimelineEvent] = []

    def take(self, past: Past) -> None:
        decided = past.decided
        if past.leader and self._running:
            self._add(decided, "coordinator", leader=past.leader)
        self._losses(decided)
        event = happened(decided.event)
        if isinstance(event, BackoffEnded):
            self._backoff_ended(event)
        for change in decided.changes:
            note = change.now
            if isinstance(note, PeerNote):
                if note.state == "active" and note.assignment is not None:
                    self._taken(place_of(change.path).peer, note.assignment, decided)
            elif change.path == job_status(self._job):
                self._running = isinstance(note, JobNote) and note.ended_at is None
                self.over = not self._running

    def settled(self, keep: int) -> list[TimelineEvent]:
        """Take out of :attr:`found` what nothing will be added to, but for the newest so many."""
        old, new = self.found[:-keep], self.found[-keep:]
        open_ = {id(place.item) for place in self._places} | {id(item) for item in self._backing_off}
        self.found = [item for item in old if id(item) in open_] + new
        return [item for item in old if id(item) not in open_]

    def _losses(self, decided: Decided) -> None:
        """Note it if the event took its peer off a task of the job."""
        event, held = decided.event, decided.held
        if isinstance(event, SetAside) and event.decided:
            event = event.event
        kind = _KINDS.get(type(event))
        if kind is None or held is None or held.job != self._job:
            return
        peer = str(getattr(event, "peer", ""))
        if not _lost_its_task(decided, peer):
            return
        task, job = decided.task_note(held.job, held.task), decided.job_note(held.job)
        item = self._add(
            decided,
            kind,
            task=held.task,
            peer=peer,
            error=getattr(event, "error", None),
            fatal=job is not None and job.ended_at is not None,
            failures=task.failures if task is not None and kind in ("failed", "declined") else 0,
            others=[] if task is None else sorted(set(task.peers) - _offered(decided) - {peer}),
        )
        self._also_gone(item)
        if task is not None and task.state == "complete":
            return
        if not item.fatal:
            self._places.append(_Open(item, held.slot))
        if task is not None and task.backing_off:
            self._backing_off.append(item)

    def _also_gone(self, item: TimelineEvent) -> None:
        """Virtual peers of one daemon are lost one after the other: the task has not gone on with the next one."""
        for other in (place.item for place in self._places):
            if other.task == item.task and item.at - other.at < _TOGETHER:
                other.others = [peer for peer in other.others if peer != item.peer]

    def _backoff_ended(self, event: BackoffEnded) -> None:
        if event.job == self._job:
            for item in [each for each in self._backing_off if each.task == event.task]:
                item.backoff = event.at - item.at
                self._backing_off.remove(item)

    def _taken(self, peer: str, assignment: Assignment, decided: Decided) -> None:
        """A peer begins to work: it takes the place of the peer that lost this slot before, and resumes a task that had none."""
        for place in list(self._places):
            item = place.item
            if (self._job, item.task) != (assignment.job, assignment.task) or assignment.id < item.n:
                continue
            after = decided.event.at - item.at
            if place.slot == assignment.slot:
                item.by, item.after = peer, after
                self._places.remove(place)
            elif not item.others and not item.resumed_by:
                item.resumed_by, item.resumed_after = peer, after

    def _add(self, decided: Decided, kind: Kind, **fields: object) -> TimelineEvent:
        event: AnyEvent = decided.event
        item = TimelineEvent(n=decided.n, at=event.at, kind=kind, **fields)  # type: ignore[arg-type]
        self.found.append(item)
        return item


def _lost_its_task(decided: Decided, peer: str) -> bool:
    """Whether the peer does not have the assignment any more that it had; an answer that came too late changes nothing."""
    if not any(change.path == peer_state(peer) for change in decided.changes):
        return False
    note = decided.peer_note(peer)
    return note is None or note.assignment != decided.held


def _offered(decided: Decided) -> set[str]:
    """The peers to which the event itself has offered a task: they were not on it before."""
    return {
        place_of(change.path).peer
        for change in decided.changes
        if isinstance(change.now, PeerNote) and change.now.assignment and change.now.assignment.id == decided.n
    }
