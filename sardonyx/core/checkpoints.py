"""Checkpoints at a time Tc: of which times a shard keeps its state, and which times all shards have. Pure.

The *checkpoint* of a shard at Tc is the state that it would have if it had been given only the rows before Tc, and its clock had
stopped there. Rows from Tc on come before the clock has passed Tc. So from the first one on, what differs between the two is
kept beside the state: the *undo* of Tc (:mod:`sardonyx.state.undo`). Once the clock has passed Tc, a *bookmark* says which commit
of the state log the undo is about.

Shards agree on nothing. Each takes all multiples of a step of its own: ``every``, doubled until at most two multiples lie between
its clock and the greatest time that it has been given. A multiple of a greater step is one of each smaller step. So all shards
take all multiples of the greatest step of any shard. That checkpoints are at event times, and that the interval must be longer
than rows are out of order, is Gearpump's. There each task chooses the next time after the greatest that it has seen, and tasks
fall out of step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sardonyx.core.clocks import NEVER

KEPT = 12
"""Bookmarks that a shard keeps at most. They stand in the text of its position."""
_BEHIND = 2
"""Multiples that the clock has passed, and whose results are not all given, that a shard keeps apart at most: the last ones."""
REACH = 64
"""A bookmark that is older than so many steps is not kept. The state log must hold all since the oldest."""


class Bookmark(NamedTuple):
    """The checkpoint of one shard at each multiple of the interval from ``first`` to ``last``: between these nothing happened.

    ``seq``, ``low`` and ``base``: of the commit that it is about (:class:`sardonyx.state.messages.Mark`). ``undo``: whether
    entries differ from that commit; the log has them by then.
    """

    first: int
    last: int
    seq: int
    low: int
    base: int
    undo: bool = False


class Checkpoints(NamedTuple):
    """What a shard knows of its checkpoints after a commit. It is committed with the position.

    ``start``: right before the first row; no multiple up to it is taken. ``top``: the greatest time that it has been given, in a
    row or as its clock. ``pending``: multiples that ``top`` has passed and the clock has not, or of which not all results are
    given that were due by then. ``kept``: in the order of time.
    """

    start: int = NEVER
    top: int = NEVER
    pending: tuple[int, ...] = ()
    kept: tuple[Bookmark, ...] = ()

    def text(self) -> list[Any]:
        """As plain data, for the text of a position."""
        kept = [[b.first, b.last - b.first, b.seq, b.low, b.base, int(b.undo)] for b in self.kept]
        return [self.start, self.top, list(self.pending), kept]

    @classmethod
    def read(cls, text: Sequence[Any]) -> Checkpoints:
        """The reverse of :meth:`text`."""
        start, top, pending, kept = text
        marks = (
            Bookmark(first, first + more, seq, low, base, bool(undo)) for first, more, seq, low, base, undo in kept
        )
        return cls(start, top, tuple(pending), tuple(marks))

    def at(self, time: int) -> Bookmark | None:
        """The bookmark that holds for a multiple of the interval."""
        return next((mark for mark in self.kept if mark.first <= time <= mark.last), None)

    @property
    def low(self) -> int | None:
        """From which offset on the state log is needed for them; None: they need nothing of it."""
        return min((mark.low for mark in self.kept), default=None)


class Given(NamedTuple):
    """What a batch gives to a shard.

    ``least``, ``greatest``: of the times of its rows; None: it has none. ``before``, ``clock``: the clock of the shard before and
    after it; at the end of the input ``clock`` is what was stated right before the end.
    """

    least: int | None
    greatest: int | None
    before: int
    clock: int


class Due(NamedTuple):
    """The times of which the state is to be kept apart in a batch.

    ``step``: the distance of the multiples. ``after``: what stands after the batch, but for further bookmarks.
    """

    step: int
    times: tuple[int, ...]
    after: Checkpoints


def multiples(step: int, after: int, to: int) -> range:
    """The multiples of a step that are greater than one time, and not greater than another."""
    return range((after // step + 1) * step, to + 1, step)


def due(known: Checkpoints, every: int, given: Given) -> Due:
    """Which times a batch with rows, or with a change by the clock, makes pending, and which go on to be.

    Args:
        known: after the commit before.
        every: the interval, in microseconds.
        given: what the batch gives.
    """
    start = known.start
    if start == NEVER and given.before == NEVER and given.least is not None:
        start = given.least - 1
    top = max(known.top, given.clock, NEVER if given.greatest is None else given.greatest)
    low, step = max(given.before, start), every
    if low == NEVER:
        return Due(step, (), known._replace(top=top))
    while len(multiples(step, low, top)) > 2:
        step *= 2
    behind = tuple(t for t in known.pending if t <= given.before)[-_BEHIND:]
    times = behind + tuple(t for t in multiples(step, low, top) if t > known.top or t in known.pending)
    left = tuple(t for t in times if t > given.clock)
    return Due(step, times, Checkpoints(start, top, left, known.kept))


def quiet(known: Checkpoints, every: int, given: Given) -> tuple[Due, range]:
    """The same for a batch without rows, in which the clock changes nothing. Also the times of which the state that stands is the
    checkpoint.
    """
    passed = multiples(every, max(known.top, given.before), given.clock)
    top = max(known.top, given.clock)
    left = tuple(t for t in known.pending if t > given.clock)
    return Due(every, known.pending, known._replace(top=top, pending=left)), passed


def keep(kept: Sequence[Bookmark], new: Iterable[Bookmark], every: int, step: int) -> tuple[Bookmark, ...]:
    """What a shard keeps of its bookmarks, with further ones.

    The newest always. Of the others at most :data:`KEPT` in all, that are not older than :data:`REACH` steps: those at multiples
    of greater steps, as other shards keep these too, and the newer ones among them.
    """
    found = list(kept)
    for mark in new:
        last = found[-1] if found else None
        if last is not None and not last.undo and not mark.undo and last[2:] == mark[2:]:
            found[-1] = last._replace(last=mark.last)
        else:
            found.append(mark)
    oldest = found[-1].last - REACH * step if found else 0
    found = [mark for mark in found if mark.last >= oldest]
    while len(found) > KEPT:
        found.remove(min(found[:-1], key=lambda mark: (_aligned(mark, every), mark.last)))
    return tuple(found)


def _aligned(mark: Bookmark, every: int) -> int:
    """The greatest power of two of which one of its times, counted by the interval, is a multiple."""
    step = 1
    while step < 1 << 62 and multiples(2 * step * every, mark.first - 1, mark.last):
        step *= 2
    return step


def complete(shards: Iterable[Checkpoints], every: int) -> list[int]:
    """The times of which each of these shards has a checkpoint, ascending. Of many in a row only the last :data:`REACH`."""
    spans: list[tuple[int, int]] | None = None
    for shard in shards:
        own = [(mark.first, mark.last) for mark in shard.kept]
        spans = own if spans is None else list(_both(spans, own))
    return [time for first, last in spans or () for time in multiples(every, first - 1, last)[-REACH:]]


def _both(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in one:
        for begins, ends in other:
            if max(first, begins) <= min(last, ends):
                yield max(first, begins), min(last, ends)


__all__ = ["KEPT", "REACH", "Bookmark", "Checkpoints", "Due", "Given", "complete", "due", "keep", "multiples", "quiet"]
