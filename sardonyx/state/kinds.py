"""The kinds of windows that time decides: which slices and windows a row is in, and which windows have ended.

Times, starts and lengths are whole microseconds since 1970 (UTC); on an ordinal time, numbers of rows. A window
holds the times from its start on, and before its end.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.timing import WindowSpec, length
from sardonyx.state.calendars import Calendar
from sardonyx.state.groups import Mask, Numbers


def ordinal(window: WindowSpec) -> bool:
    """Whether the windows are made of an ordinal time: their lengths are numbers of rows."""
    return any(isinstance(value, int) for value in (window.size, window.gap)) and window.kind != "counted"


class Windows(Protocol):
    """Windows of one kind. A *slice* is the longest stretch of time that no window's start or end divides."""

    def slices(self, times: Numbers) -> Numbers:
        """The start of the slice that each time is in."""
        ...

    def covered(self, slices: Numbers) -> Mask | None:
        """Which slices are in any window. None: all."""
        ...

    def windows(self, slices: Numbers) -> tuple[Numbers, Numbers]:
        """The starts of all windows with these slices, and for each the position of its slice."""
        ...

    def first(self, slices: Numbers) -> Numbers:
        """The start of the earliest window with each slice."""
        ...

    def last(self, slices: Numbers) -> Numbers:
        """The start of the latest window with each slice."""
        ...

    def ends(self, starts: Numbers) -> Numbers:
        """The ends of windows."""
        ...

    def ended(self, clock: int) -> int:
        """Windows with a start less than this, and no others, have an end that is not above ``clock``."""
        ...


class Hopping:
    """Windows of one length, from each multiple of ``every`` on. With ``every`` = ``size`` they are tumbling windows."""

    def __init__(self, size: int, every: int) -> None:
        self.size, self.every = size, every
        self.slice = math.gcd(size, every)

    @classmethod
    def of(cls, window: WindowSpec) -> Hopping:
        """The windows of a specification of kind ``tumbling`` or ``hopping``."""
        size = length(window.size)
        return cls(size, length(window.every) or size)

    def slices(self, times: Numbers) -> Numbers:
        return times - times % self.slice

    def covered(self, slices: Numbers) -> Mask | None:
        return slices % self.every < self.size if self.every > self.size else None

    def windows(self, slices: Numbers) -> tuple[Numbers, Numbers]:
        """The windows of a slice come one after the other, the earliest first."""
        if self.every == self.size:
            return slices, np.arange(len(slices))
        last = slices - slices % self.every
        hops = np.arange(-(-self.size // self.every) - 1, -1, -1) * self.every
        starts = last[:, None] - hops[None, :]
        inside = starts + self.size > slices[:, None]
        where = np.broadcast_to(np.arange(len(slices))[:, None], starts.shape)
        return starts[inside], where[inside]

    def ends(self, starts: Numbers) -> Numbers:
        return starts + self.size

    def ended(self, clock: int) -> int:
        return END if clock >= END else max(clock - self.size + 1, NEVER)

    def first(self, slices: Numbers) -> Numbers:
        """The start of the earliest window with each slice."""
        return (slices - self.size) // self.every * self.every + self.every

    def last(self, slices: Numbers) -> Numbers:
        """The start of the latest window with each slice."""
        return slices - slices % self.every


class _Whole:
    """Windows that are slices themselves."""

    def covered(self, slices: Numbers) -> Mask | None:  # noqa: ARG002
        return None

    def windows(self, slices: Numbers) -> tuple[Numbers, Numbers]:
        return slices, np.arange(len(slices))

    def first(self, slices: Numbers) -> Numbers:
        return slices

    def last(self, slices: Numbers) -> Numbers:
        return slices


class Everything(_Whole):
    """One window, from 0 on, that ends with the input."""

    def slices(self, times: Numbers) -> Numbers:
        return np.zeros(len(times), np.int64)

    def ends(self, starts: Numbers) -> Numbers:
        return np.full(len(starts), END)

    def ended(self, clock: int) -> int:
        return END if clock >= END else NEVER


class Calendrical(_Whole):
    """The hours, days, weeks, months or years of a zone."""

    def __init__(self, unit: str, zone: str) -> None:
        self._calendar = Calendar(unit, zone)

    def slices(self, times: Numbers) -> Numbers:
        return self._calendar.starts(times)

    def ends(self, starts: Numbers) -> Numbers:
        return self._calendar.ends(starts)

    def ended(self, clock: int) -> int:
        return self._calendar.start(clock)


def windows_of(window: WindowSpec) -> Windows:
    """The windows of a specification whose kind is neither ``session`` nor ``counted``."""
    if window.kind == "everything":
        return Everything()
    if window.kind == "calendar":
        return Calendrical(window.unit or "day", window.zone)
    return Hopping.of(window)


def less(clock: int, span: int) -> int:
    """A clock set back; :data:`NEVER` and :data:`END` stay where they are."""
    return clock if clock >= END or clock < NEVER + span else clock - span
