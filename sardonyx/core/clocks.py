"""Event time: how far the partitions of a source have come, and a task with them. Pure.

Times are whole microseconds since 1970 (UTC). A *clock* is a promise: no row that comes later is older, late ones apart. The
clock of a source partition is the greatest time in it so far less a delay. It is committed with the position, so no crash
sets it back. The clock of a task is the least of its partitions' clocks. A peer knows the clocks of the partitions that it
holds, and asks the consumer group what is committed for the others. What it then *states* in a link, after the rows that it
made, holds for all peers that write there:

    Let T stand in a link, and let another peer write a row after it that it made from partition u. T is not above the clock
    that was committed for u when the first peer asked. Had the row been committed by then, it would stand before T. So the row
    comes later in u, and the promise about u holds for it.

A partition counts by what is committed, never by what a peer has in hand. The idea of a clock that is the least over all that
is not yet processed is Gearpump's (its ClockService). There a service keeps it; here the consumer groups do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

NEVER = -(2**63)
"""The clock before any row: the beginning of time."""
END = 2**63 - 1
"""The clock after the last row: nothing comes any more."""

P = TypeVar("P")
"""What names a partition."""


class SourceClock(NamedTuple):
    """The clock of one partition, as it is committed with its position.

    ``seen``: the greatest time so far, in a source; for windows, the clock up to which all are closed. ``value``: the clock; it
    never falls, not even if a longer ``delay`` is asked for later. In a link it is what was stated last. ``idle``: nothing has
    come for so long that the partition holds no other back.
    """

    seen: int = NEVER
    value: int = NEVER
    idle: bool = False

    def after(self, greatest: int, delay: int) -> SourceClock:
        """The clock after further rows.

        Args:
            greatest: the greatest of their times.
            delay: microseconds by which rows may be older than rows before them.
        """
        seen = max(self.seen, greatest)
        return SourceClock(seen, max(self.value, less(seen, delay)))

    def stated(self, clock: int) -> SourceClock:
        """The clock after a statement in a link."""
        return self if clock <= self.value else SourceClock(self.seen, clock)

    def ended(self) -> SourceClock:
        """The clock at the end of the partition."""
        return self._replace(value=END, idle=False)


def task_clock(clocks: Iterable[SourceClock]) -> int | None:
    """The least of these clocks, without partitions that are idle. None if all are idle: the task's clock stays where it is."""
    return min((clock.value for clock in clocks if not clock.idle), default=None)


class Stating(Generic[P]):
    """What one peer states in the links of its task. A takeover begins with a new one: what was stated before stays true.

    Args:
        partitions: all partitions that the task reads. Of one that was added to a topic since, it learns when a peer gets it.
    """

    def __init__(self, partitions: Iterable[P]) -> None:
        self._others: dict[P, SourceClock] = dict.fromkeys(partitions, SourceClock())
        self._last = NEVER

    def heard(self, committed: Mapping[P, SourceClock]) -> None:
        """The group has answered. An answer that was overtaken by a newer one does no harm."""
        for partition, clock in committed.items():
            if clock.value >= self._others.get(partition, clock).value:
                self._others[partition] = clock

    def clock(self, own: Mapping[P, SourceClock]) -> int:
        """What to state after the rows of a batch, given the clocks of the partitions that this peer holds.

        Those that the batch moves count as they are after it: they are committed in the same transaction as the statement.
        """
        found = task_clock((self._others | dict(own)).values())
        return self._last if found is None else max(self._last, found)

    def all_idle(self, own: Mapping[P, SourceClock]) -> bool:
        """Whether no partition of the task can have rows on hand: all are idle."""
        return task_clock((self._others | dict(own)).values()) is None

    def stated(self, clock: int) -> None:
        """The transaction with this statement is committed. Of one that is not, nothing was promised."""
        self._last = max(self._last, clock)

    @property
    def last(self) -> int:
        """What was stated last."""
        return self._last


def less(time: int, delay: int) -> int:
    """A time less a delay, not below :data:`NEVER`."""
    return max(time - delay, NEVER)


__all__ = ["END", "NEVER", "SourceClock", "Stating", "less", "task_clock"]
