"""The coordinator's log as it has been read so far: every entry, and the state after any of them. Reads nothing itself.

A :class:`Book` takes one entry after the other, from ZooKeeper or from a file. It replays each, and files what it means. Every
few entries it keeps the whole state, so that the state after any entry is some decisions away. Entries and states are on disk
(:mod:`sardonyx.web.shelf`); in memory are the live state, a few past ones, and some bytes of each entry.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any, NamedTuple

import msgspec

from coordinator.core.decide import decide
from coordinator.core.projection import project
from coordinator.core.state import State
from coordinator.history.export import Mask
from coordinator.history.replay import Change, Decided, Replay, concerned_jobs, concerned_peers, differences
from coordinator.history.timeline import Past, Teller, TimelineEvent
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import (
    AckTimedOut,
    AnyEvent,
    Declined,
    JobSubmitted,
    LinkLost,
    LinksFailed,
    PeerDied,
    SetAside,
    TaskFailed,
    UserEvent,
    WithSpec,
    happened,
    kind_of,
)
from sardonyx.core.notes import PeerNote
from sardonyx.runtime.secret_values import KNOWN
from sardonyx.web.shelf import Line, Mark, Shelf

KEEP = 1_000_000
"""Entries that are kept; of more, the oldest go."""
EVERY = 500
"""Entries between two states that are kept whole, at least."""
BYTES = 600
"""Bytes of whole states for one entry, at most. So states of more than 10,000 peers are further apart; they also take longer to
unpack."""
STATES = 4
"""Past states that are kept at hand, because the same moment is asked for again and again."""
TOLD = 1000
"""How many incidents of a job we show: of more, the last ones."""

_INCIDENTS = (PeerDied, AckTimedOut, Declined, TaskFailed, LinksFailed, LinkLost, SetAside)


class Words(NamedTuple):
    """How entries are put into words and JSON. The command gives the functions of ``log show``, so that both say the same."""

    summary: Callable[[Decided], str]
    entry: Callable[[Decided, str], dict[str, Any]]
    lines: Callable[[Decided], list[str]]
    incident: Callable[[TimelineEvent, bool], str]
    change: Callable[[Change], tuple[dict[str, Any], str]]


class Book:
    """The log from some entry on. Many threads may use it: one that looks at :attr:`state` holds :attr:`lock` meanwhile.

    Args:
        begin: the state before the first entry; the book changes it.
        words: how to tell entries.
        keep: how many entries to keep.
        every: entries between two states that are kept, at least.
    """

    def __init__(self, begin: State, words: Words, *, keep: int = KEEP, every: int = EVERY) -> None:
        self.lock = threading.RLock()
        self.words = words
        self.mask = Mask(KNOWN)
        """Knows the secrets of all jobs that were ever in the book; and so do the lines that this process logs."""
        for job in begin.jobs.values():
            self.mask.learn_job(job)
        self.first = begin.n + 1
        """The oldest entry that is kept."""
        self._keep = keep
        self._every = every
        self._replay = Replay(begin)
        self._shelf = Shelf()
        self._times = array("d")
        """When each entry was taken in."""
        self._among: dict[tuple[str, str], array[int]] = {}
        """Entries by what they have in common: ``("job", id)``, ``("kind", kind)``, ``("mark", mark)``, ``("marked", job)``."""
        self._recent: OrderedDict[int, State] = OrderedDict()
        self._tellers = {job: Teller(job, running=not each.ended) for job, each in begin.jobs.items()}
        self._keep_state()

    @property
    def state(self) -> State:
        """The state after the last entry."""
        return self._replay.state

    @property
    def last(self) -> int:
        """The number of the last entry; smaller than ``first`` if there is none."""
        return self.state.n

    def take(self, n: int, event: AnyEvent, request: str = "", leader: str = "") -> None:
        """Add the next entry.

        Raises:
            InternalError: ``SX-INTERNAL-LOG-GAP``: it is not the next one.
            SardonyxError: ``SX-WEB-DISK``: it is there, but only in memory.
        """
        with self.lock:
            told = happened(event)
            if isinstance(told, WithSpec):
                self.mask.learn(told.spec)
            if isinstance(told, JobSubmitted) and told.job not in self.state.jobs:  # a request may come twice
                self._tellers[told.job] = Teller(told.job, running=False)
            decided = self._replay.step(n, event)
            line = self._line(decided, leader)
            self._times.append(event.at)
            for key in _keys(line):
                self._among.setdefault(key, array("q")).append(n)
            self._shelf.put(line, event, request)
            if request and isinstance(told, UserEvent):
                self._shelf.put_request(request, n)
            self._tell(Past(decided, leader))
            if n >= self._state_due:
                self._keep_state()
            if self._shelf.full():
                self._shelf.flush()
            if len(self._times) > self._keep * 1.02:
                self._forget()

    # Looking back

    def at(self, n: int) -> State:
        """The state after entry ``n``; of the last entry the live one. Hold :attr:`lock` while looking at it.

        Raises:
            SardonyxError: ``SX-LOG-RANGE``: the book does not hold the entry. ``SX-WEB-DISK``.
        """
        if n == self.last:
            return self.state
        self._check(n, self.first - 1)
        if n in self._recent:
            self._recent.move_to_end(n)
            return self._recent[n]
        stored = self._shelf.state_before(n)
        near = max((number for number in self._recent if stored < number < n), default=None)
        state = self._shelf.state(n) if near is None else self._recent.pop(near)
        for number, event, _ in self._shelf.entries(state.n + 1, n):
            decide(state, number, event)
        self._recent[n] = state
        if len(self._recent) > STATES:
            self._recent.popitem(last=False)
        return state

    def time_of(self, n: int) -> float | None:
        """When entry ``n`` was taken in; None if the book does not hold it."""
        return self._times[n - self.first] if self.first <= n <= self.last else None

    def find(self, at: float) -> int:
        """The last entry that was taken in at or before a time; the one before the first if there is none."""
        return self.first - 1 + bisect_right(self._times, at)

    def decided(self, n: int) -> tuple[Decided, str]:
        """What was decided about entry ``n``, and the request that it came from.

        Raises:
            SardonyxError: ``SX-LOG-RANGE``. ``SX-WEB-DISK``.
        """
        self._check(n, self.first)
        _, event, request = next(self._shelf.entries(n, n))
        state = self.at(n - 1)
        del self._recent[n - 1]  # the replay changes it
        decided = Replay(state).step(n, event)
        self._recent[n] = state
        return decided, request

    def walk(self, first: int, last: int) -> Iterator[tuple[Decided, str, State]]:
        """What was decided about each entry from ``first`` to ``last``, the request that it came from, and the state after it.
        The state is the caller's own, and changes with the next entry. Needs no lock: it takes it where it reads.

        Raises:
            SardonyxError: ``SX-LOG-RANGE``. ``SX-WEB-DISK``.
        """
        with self.lock:
            self._check(first, self.first)
            self._check(last, self.first)
            state = self._shelf.state(first - 1)
            entries = list(self._shelf.entries(state.n + 1, last))
        before = first - 1 - state.n
        for n, event, _ in entries[:before]:
            decide(state, n, event)
        replay = Replay(state)
        for n, event, request in entries[before:]:
            yield replay.step(n, event), request, state

    def changed(self, first: int, last: int) -> list[Change]:
        """What differs between the nodes after two entries.

        Raises:
            SardonyxError: ``SX-LOG-RANGE``. ``SX-WEB-DISK``.
        """
        before = project(self.at(first))
        return differences(before, project(self.at(last)))

    def of_request(self, uuid: str) -> int | None:
        """The entry by which something that a user asked for was taken in; None as long as it was not."""
        return self._shelf.of_request(uuid)

    def submitted(self, job: str) -> int | None:
        """The entry that submitted a job."""
        known = self._among.get(("job", job))
        found = self._shelf.line(known[0]) if known else None
        return found.n if found is not None and found.kind == "submit" else None

    def lines(self, first: int, last: int) -> Iterator[Line]:
        """The entries from ``first`` to ``last``, or backwards. Entries that it does not hold are left out."""
        low, high = max(min(first, last), self.first), min(max(first, last), self.last)
        if low > high:
            return iter(())
        return self._shelf.lines(low, high) if last >= first else self._shelf.lines(high, low)

    def lines_among(self, first: int, last: int, **common: str) -> Iterator[Line]:
        """The same of the entries that have something in common: one of ``job``, ``kind``, ``mark`` and ``marked``.
        Some may be among them that lack the rest of it.
        """
        rows = [self._among.get(key, array("q")) for key in common.items() if key[1]]
        if not rows:
            return self.lines(first, last)
        low, high = min(first, last), max(first, last)
        known = min(rows, key=len)
        found = known[bisect_left(known, low) : bisect_right(known, high)]
        return map(self._shelf.line, found if last >= first else reversed(found))

    def about(self, job: str, n: int, most: int) -> list[Line]:
        """The last entries up to ``n`` that concern a job, the newest first."""
        known = self._among.get(("job", job), array("q"))
        end = bisect_right(known, n)
        return [self._shelf.line(each) for each in reversed(known[max(end - most, 0) : end])]

    def submission(self, job: str) -> int | None:
        """The entry that submitted a job, which may be gone by now; None if the book does not hold it."""
        known = self._among.get(("job", job), ())
        return next((n for n in known[:1] if self._shelf.line(n).kind == "submit"), None)

    def newest_of(self, kinds: Iterable[str], n: int) -> Iterator[Line]:
        """The entries of some kinds up to ``n``, the newest first."""
        rows = [self._among.get(("kind", kind), array("q")) for kind in kinds]
        return map(self._shelf.line, merge(*(_backwards(row, n) for row in rows), reverse=True))

    def marked(self, job: str = "") -> list[int]:
        """The entries that stand out; if a job is named, those that concern it, or that are the first of another coordinator."""
        if not job:
            return list(self._among.get(("marked", ""), ()))
        return sorted({*self._among.get(("marked", job), ()), *self._among.get(("mark", "leader"), ())})

    def marked_lines(self, numbers: Iterable[int]) -> list[Line]:
        """These entries."""
        return [self._shelf.line(n) for n in numbers]

    def taken_in(self, times: Iterable[float]) -> list[int]:
        """How many entries were taken in before each of some times."""
        return [bisect_left(self._times, at) for at in times]

    def timeline(self, job: str, n: int) -> list[TimelineEvent]:
        """What had gone wrong with a job by entry ``n``, or the last of it. What came later, such as who took a place, is not in
        it.
        """
        teller = self._tellers.get(job)
        found = self._shelf.incidents(job, n, TOLD)
        if teller is not None:
            found += [item for item in teller.found if item.n <= n]
            found.sort(key=lambda item: item.n)
        return [item if n >= self.last else _by_then(item, self.time_of(n)) for item in found[-TOLD:]]

    # Underneath

    def _line(self, decided: Decided, leader: str) -> Line:
        event = decided.event
        mark: Mark = "leader" if leader else ""
        if isinstance(event, _INCIDENTS) and decided.changes:  # an event that changes nothing came late, and is not one
            mark = "incident"
        elif isinstance(event, UserEvent):
            mark = "user"
        return Line(
            n=decided.n,
            at=event.at,
            kind=kind_of(event),
            summary=self.words.summary(decided),
            mark=mark,
            leader=leader,
            jobs=sorted(_touched(decided)),
            peers=sorted(concerned_peers(decided)),
        )

    def _tell(self, past: Past) -> None:
        jobs = list(self._tellers) if past.leader else _touched(past.decided)
        for job in jobs:
            teller = self._tellers.get(job)
            if teller is None:
                continue
            teller.take(past)
            if teller.over:
                self._shelf.put_incidents(job, teller.found)
                del self._tellers[job]
            elif len(teller.found) > 2 * TOLD:
                self._shelf.put_incidents(job, teller.settled(TOLD))

    def _keep_state(self) -> None:
        size = self._shelf.put_state(self.state)
        self._state_due = self.last + max(self._every, size // BYTES)

    def _check(self, n: int, first: int) -> None:
        if not first <= n <= self.last:
            raise SardonyxError(
                "SX-LOG-RANGE",
                f"there is no entry {n} here; there are entries {self.first} to {self.last}",
                cause="that has not happened yet" if n > self.last else "older ones are not kept",
                fix=f"name one of {self.first} to {self.last}",
                where={"n": n, "first": self.first, "last": self.last},
            )

    def _forget(self) -> None:
        """Let the oldest entries go, up to one after which the state is kept whole."""
        base = self._shelf.state_before(self.last - self._keep)
        self._shelf.drop(base)
        del self._times[: base + 1 - self.first]
        self.first = base + 1
        self._recent.clear()
        for key, known in list(self._among.items()):
            del known[: bisect_right(known, base)]
            if not known:
                del self._among[key]


def _backwards(row: array[int], n: int) -> Iterator[int]:
    return (row[index] for index in range(bisect_right(row, n) - 1, -1, -1))


def _keys(line: Line) -> Iterator[tuple[str, str]]:
    """What an entry has in common with others."""
    yield "kind", line.kind
    for job in line.jobs:
        yield "job", job
    if line.mark:
        yield "mark", line.mark
        for job in ("", *line.jobs):
            yield "marked", job


def _touched(decided: Decided) -> set[str]:
    """The jobs that an entry concerns, also through the tasks of the peers that it changed."""
    notes = [note for change in decided.changes for note in (change.was, change.now) if isinstance(note, PeerNote)]
    return concerned_jobs(decided) | {note.assignment.job for note in notes if note.assignment is not None}


def _by_then(item: TimelineEvent, at: float | None) -> TimelineEvent:
    """The event without what was not known yet at a time."""
    seen = 0.0 if at is None else at - item.at
    after = {} if item.after is None or item.after <= seen else {"by": "", "after": None}
    backoff = {} if item.backoff is None or item.backoff <= seen else {"backoff": None}
    resumed_after = item.resumed_after or 0.0
    resumed = {} if resumed_after <= seen else {"resumed_by": "", "resumed_after": None}
    return msgspec.structs.replace(item, **after, **backoff, **resumed)
