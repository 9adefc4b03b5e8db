"""What went wrong with a job and how it went on, read from the log: peers that were lost, who took their place and when, tasks
that failed and were begun again, coordinators that took over. Pure.
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
    Assignment,
    BackoffEnded,
    Declined,
    Evicted,
    JobNote,
    Left,
    PeerDied,
    PeerNote,
    TaskFailed,
    TaskNote,
)
from sardonyx.core.node_paths import job_status, job_task, peer_state

Kind = Literal["died", "left", "evicted", "unanswered", "declined", "failed", "coordinator"]
"""How a peer came off its task: it died, left, was taken out by a user, did not answer the offer, could not run it, gave it
up; or another coordinator took over."""

_KINDS: dict[type, Kind] = {
    PeerDied: "died",
    Left: "left",
    Evicted: "evicted",
    AckTimedOut: "unanswered",
    Declined: "declined",
    TaskFailed: "failed",
}


class Past(NamedTuple):
    """An entry of the log with what was decided about it; ``leader``: who leads from here on, where that is another."""

    decided: Decided
    leader: str = ""


class TimelineEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that went wrong while a job ran. Times are seconds since 1970, durations seconds."""

    n: int
    """The entry of the log that tells of it."""
    at: float
    kind: Kind
    task: str = ""
    peer: str = ""
    leader: str = ""
    """The coordinator that took over, as ``host:pid``."""
    error: Failure | None = None
    fatal: bool = False
    """Whether the job failed of it."""
    failures: int = 0
    """How often the task has failed by now."""
    backoff: float | None = None
    """How long the task then rested before it was offered again."""
    others: list[str] = []
    """Who was on the task besides, and went on with it."""
    by: str = ""
    """Who took the place."""
    after: float | None = None
    """How long it took until somebody had it."""


def timeline_of(job: str, past: Iterable[Past], *, running: bool = False) -> list[TimelineEvent]:
    """What went wrong with a job, in order.

    Args:
        job: its id.
        past: the log from the job's submission on, or from the oldest entry that is kept; read as far as the job's end.
        running: whether the job had been submitted, and had not ended, before the first entry of ``past``.
    """
    teller = _Teller(job, running)
    for each in past:
        teller.take(each)
        if teller.over:
            break
    return teller.found


class _Open(NamedTuple):
    item: TimelineEvent
    slot: int


class _Teller:
    """Goes along the log, and closes each item when its place is taken again."""

    def __init__(self, job: str, running: bool) -> None:
        self._job = job
        self._running = running
        self.over = False
        """Whether the job has ended: nothing that follows is part of its story."""
        self._places: list[_Open] = []
        """Places that were lost and are not taken again yet."""
        self._backing_off: list[TimelineEvent] = []
        self.found: list[TimelineEvent] = []

    def take(self, past: Past) -> None:
        decided = past.decided
        if past.leader and self._running:
            self._add(decided, "coordinator", leader=past.leader)
        self._losses(decided)
        if isinstance(decided.event, BackoffEnded):
            self._backoff_ended(decided.event)
        for change in decided.changes:
            if place_of(change.path).peer and change.after is not None:
                note = msgspec.json.decode(change.after, type=PeerNote)
                if note.state == "active" and note.assignment is not None:
                    self._taken(place_of(change.path).peer, note.assignment, decided)
            elif change.path == job_status(self._job):
                self._running = change.after is not None and not _ended(change.after)
                self.over = not self._running

    def _losses(self, decided: Decided) -> None:
        event, held = decided.event, decided.held
        kind = _KINDS.get(type(event))
        if kind is None or held is None or held.job != self._job:
            return
        peer = str(getattr(event, "peer", ""))
        after = {change.path: change.after for change in decided.changes}
        if _assignment(after.get(peer_state(peer))) == held:  # an answer that came too late changes nothing
            return
        if peer_state(peer) not in after:
            return
        node = after.get(job_task(held.job, held.task))
        task = None if node is None else msgspec.json.decode(node, type=TaskNote)
        others = [] if task is None else sorted(set(task.peers) - _offered(after, decided.n) - {peer})
        status = after.get(job_status(held.job))
        item = self._add(
            decided,
            kind,
            task=held.task,
            peer=peer,
            error=getattr(event, "error", None),
            fatal=status is not None and _ended(status),
            failures=task.failures if task is not None and kind in ("failed", "declined") else 0,
            others=others,
        )
        if task is not None and task.state == "complete":
            return
        if not item.fatal:
            self._places.append(_Open(item, held.slot))
        if task is not None and task.backing_off:
            self._backing_off.append(item)

    def _backoff_ended(self, event: BackoffEnded) -> None:
        if event.job == self._job:
            for item in [each for each in self._backing_off if each.task == event.task]:
                item.backoff = event.at - item.at
                self._backing_off.remove(item)

    def _taken(self, peer: str, assignment: Assignment, decided: Decided) -> None:
        """A peer begins to work: it has the place of whoever lost that slot before it was offered."""
        for place in list(self._places):
            item = place.item
            same = (self._job, item.task, place.slot) == (assignment.job, assignment.task, assignment.slot)
            if same and assignment.id >= item.n:
                item.by, item.after = peer, decided.event.at - item.at
                self._places.remove(place)

    def _add(self, decided: Decided, kind: Kind, **fields: object) -> TimelineEvent:
        event: AnyEvent = decided.event
        item = TimelineEvent(n=decided.n, at=event.at, kind=kind, **fields)  # type: ignore[arg-type]
        self.found.append(item)
        return item


def _assignment(note: bytes | None) -> Assignment | None:
    return None if note is None else msgspec.json.decode(note, type=PeerNote).assignment


def _ended(note: bytes) -> bool:
    return msgspec.json.decode(note, type=JobNote).ended_at is not None


def _offered(after: dict[str, bytes | None], n: int) -> set[str]:
    """The peers to whom the event itself has given something: they were not on it before."""
    found = set()
    for path, note in after.items():
        assignment = _assignment(note) if place_of(path).peer else None
        if assignment is not None and assignment.id == n:
            found.add(place_of(path).peer)
    return found
