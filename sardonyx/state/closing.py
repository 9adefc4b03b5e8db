"""Which rows come when a window of theirs has closed, by the clock in force before each of them. Pure."""

from __future__ import annotations

import numpy as np

from sardonyx.core.clocks import NEVER
from sardonyx.core.timing import WindowSpec, length
from sardonyx.state.kinds import Windows, less, windows_of
from sardonyx.state.times import Mask, Times, late


class Closing:
    """Judges rows before they go into a window's link. All others count in their windows, whatever the clock before them.

    Args:
        window: the windows.
    """

    def __init__(self, window: WindowSpec) -> None:
        self._grace = length(window.grace)
        self._sessions = window.kind == "session"
        self._windows = None if window.kind in ("session", "counted") else windows_of(window)

    def late(self, times: Times, clocks: Times) -> Mask:
        """The rows of which a window has closed. Of sessions those of which one may have: their ends follow from other rows.

        Args:
            times: of the rows.
            clocks: the clock in force before each of them.
        """
        found = late(times, clocks, self._grace)  # a window ends after each of its rows
        if self._sessions or not found.any():
            return found
        if self._windows is None:
            return np.zeros(len(times), np.bool_)
        rows = np.flatnonzero(found)
        slices = self._windows.slices(times[rows])
        starts, covered = self._windows.first(slices), self._windows.covered(slices)
        closed = starts < self._windows.ended(less(int(clocks[rows].max()), self._grace))
        if covered is not None:
            closed &= covered
        rows, starts = rows[closed], starts[closed]
        found[:] = False
        found[rows[starts < ended(self._windows, clocks[rows], self._grace)]] = True
        return found


def ended(windows: Windows, clocks: Times, grace: int, closed: int = NEVER) -> Times:
    """For each clock, which never falls: windows with a start less than this, and no others, have closed. Those that end at
    ``closed`` or before have in any case.
    """
    if len(clocks) and clocks[0] == clocks[-1]:
        return np.broadcast_to(np.int64(windows.ended(max(less(int(clocks[0]), grace), closed))), len(clocks))
    reached, which = np.unique(clocks, return_inverse=True)
    return np.array([windows.ended(max(less(clock, grace), closed)) for clock in reached.tolist()], np.int64)[which]


def carried(clocks: Times, which: Mask) -> Times | None:
    """The clocks of some rows, each up to the next one of them, so that few differ. None: of no row."""
    return np.maximum.accumulate(np.where(which, clocks, NEVER)) if which.any() else None


__all__ = ["Closing", "carried", "ended"]
