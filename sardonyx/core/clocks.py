"""Event time: how far the partitions of a source have come, and a task with them. Pure.

Times are whole microseconds since 1970 (UTC). A *clock* is a promise: no row that comes later is older, late ones apart. The
clock of a source partition is the greatest time in it so far less a delay; it is committed with the position, so no crash sets it
back. The clock of a task is the least of its partitions'. A peer knows its own and asks the consumer group what the others have
committed. What it then *states* in a link, behind the rows that it made, holds for all who write there:

    Let T stand in a link, and let a row come behind it that another peer made from partition u. T is not above what was
    committed for u when the first peer asked. Had the row been committed by then, it would stand before T. So it came later
    in u, and what is promised of u is promised of it.

A partition counts by what is committed, never by what somebody has in hand. The idea of a clock that is the least over all that
is not yet through is Gearpump's (its ClockService); there a service keeps it, here the consumer groups do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

NEVER = -(2**63)
"""The clock before any row: the beginning of time."""
END = 2**63 - 1
"""The clock behind the last row: nothing comes any more."""


class SourceClock(NamedTuple):
    """The clock of one partition of a source, as it is committed with its position.

    ``seen``: the greatest time so far. ``value``: the clock; it never falls, not even if a longer ``delay`` is asked for later.
    ``idle``: nothing has come for so long that the partition holds nobody up.
    """

    seen: int = NEVER
    value: int = NEVER
    idle: bool = False

    def after(self, times: Times, delay: int) -> SourceClock:
        """The clock behind further rows. ``delay``: microseconds by which rows may be older than rows before them."""
        if not len(times):
            return self
        seen = max(self.seen, int(times.max()))
        return SourceClock(seen, max(self.value, _less(seen, delay)))

    def in_force(self, times: Times, delay: int) -> Times:
        """The clock right before each of further rows. It depends on their order in the log, and not on how batches are cut."""
        before = np.empty_like(times)
        if not len(times):
            return before
        before[0] = self.seen
        np.maximum.accumulate(times[:-1], out=before[1:])
        np.maximum(before, self.seen, out=before)
        reached = np.where(before < NEVER + delay, NEVER, before - delay)
        return np.maximum(reached, self.value)

    def ended(self) -> SourceClock:
        """The clock at the end of the partition."""
        return self._replace(value=END, idle=False)


def late(times: Times, in_force: Times, grace: int = 0) -> npt.NDArray[np.bool_]:
    """Which rows are older than the clock that was in force before them, by more than ``grace`` microseconds."""
    return times < np.where(in_force < NEVER + grace, NEVER, in_force - grace)


def task_clock(clocks: Iterable[SourceClock | int]) -> int | None:
    """The least of these clocks, without partitions that are idle. None if all are idle: the task's clock stays where it is."""
    values = (clock if isinstance(clock, int) else clock.value for clock in clocks if not _idle(clock))
    return min(values, default=None)


class Stating:
    """What one peer states in the links of its task. A takeover begins with a new one: what was stated before stays true.

    Args:
        partitions: numbers of all partitions that the task reads.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self._others: dict[int, SourceClock] = dict.fromkeys(partitions, SourceClock())
        self._last = NEVER

    def heard(self, committed: Mapping[int, SourceClock]) -> None:
        """The group has answered. An answer that was overtaken by a newer one does no harm."""
        for number, clock in committed.items():
            if clock.value >= self._others[number].value:
                self._others[number] = clock

    def clock(self, own: Mapping[int, SourceClock]) -> int:
        """What to state behind the rows of a batch, given the clocks of the partitions that this peer holds.

        Those that the batch moves count as they are behind it: they are committed in the same transaction as the statement.
        """
        found = task_clock((self._others | dict(own)).values())
        return self._last if found is None else max(self._last, found)

    def stated(self, clock: int) -> None:
        """The transaction with this statement is committed. Of one that is not, nothing was promised."""
        self._last = max(self._last, clock)


def _less(time: int, delay: int) -> int:
    return max(time - delay, NEVER)


def _idle(clock: SourceClock | int) -> bool:
    return isinstance(clock, SourceClock) and clock.idle


__all__ = ["END", "NEVER", "SourceClock", "Stating", "Times", "late", "task_clock"]
