"""The hours, days, weeks, months and years of a zone, as instants. Days have 23 to 25 hours where the clock is changed."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from sardonyx.core.errors import FunctionError
from sardonyx.state.groups import Mask, Numbers

_DAY = 86_400_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST = (dt.datetime(2, 1, 1, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
_LAST = (dt.datetime(9998, 1, 1, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)


def outside(times: Numbers) -> Mask:
    """Which times no calendar has: those before the year 2, or after 9997."""
    found: Mask = (times < _FIRST) | (times >= _LAST)
    return found


def no_calendar_has(row: str, fix: str) -> FunctionError:
    """Build the error for a row with such a time. ``row``: as a text; empty: it is not at hand."""
    return FunctionError(
        "SX-WINDOW-TIME",
        "a row has a time that no calendar has: before the year 2, or after 9997",
        cause="windows of a calendar are made of times between these years"
        + (f"; the row is {row}"[:500] if row else ""),
        fix=f"see that the times are right, and that `unit=` names what they count; {fix}",
    )


class Calendar:
    """The windows of a unit in a zone.

    A day begins when the zone's clock first shows midnight. If that midnight is skipped, it begins at the instant that would
    have been midnight by the clock before the change. Weeks begin on Mondays, months and years on their first days. An hour
    begins each time the clock shows a full hour, so twice for an hour that comes twice; an hour that is skipped has no window.
    A window ends where the next begins.

    Args:
        unit: ``hour``, ``day``, ``week``, ``month`` or ``year``.
        zone: a name such as ``Europe/Berlin``.

    Raises:
        FunctionError: ``SX-WINDOW-ZONE``, this machine does not know the zone.
    """

    def __init__(self, unit: str, zone: str) -> None:
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise FunctionError(
                "SX-WINDOW-ZONE",
                f"the time zone {zone!r} is not known here",
                cause=str(error),
                fix="write its name as the IANA database has it, such as Europe/Berlin; or install tzdata on this machine",
            ) from error
        self._unit = unit
        self._around = lru_cache(maxsize=4096)(self._boundaries)

    def starts(self, times: Numbers) -> Numbers:
        """The start of the window that each time is in.

        Raises:
            FunctionError: ``SX-WINDOW-TIME``, a time before the year 2 or after 9997.
        """
        if not len(times):
            return times
        if outside(times).any():
            raise no_calendar_has("", "or leave such rows out before")
        days = np.unique(times // _DAY).tolist()
        bounds = np.unique(np.concatenate([self._around(day) for day in days]))
        return bounds[np.searchsorted(bounds, times, side="right") - 1]

    def ends(self, starts: Numbers) -> Numbers:
        """The end of each of these windows."""
        found, where = np.unique(starts, return_inverse=True)
        return np.array([self._end(start) for start in found.tolist()], np.int64)[where]

    def start(self, time: int) -> int:
        """The start of the window with this time, for any number of 64 bits: those that no calendar has stay as they are."""
        return int(self.starts(np.array([time], np.int64))[0]) if _FIRST <= time < _LAST else time

    def _end(self, start: int) -> int:
        later = self._around(start // _DAY)
        return int(later[np.searchsorted(later, start, side="right")])

    def _boundaries(self, day: int) -> Numbers:
        """Starts of windows: at least the last one at or before this day of UTC, those in it, and the next after it."""
        date = dt.date(1970, 1, 1) + dt.timedelta(days=day)
        found = (self._instant(*start) for start in self._local(date))
        return np.unique(np.array([instant for instant in found if instant is not None], np.int64))

    def _local(self, date: dt.date) -> list[tuple[dt.date, int, int]]:
        """Dates, hours and folds at which windows begin on the zone's own clock."""
        near = [date + dt.timedelta(days=days) for days in (-2, -1, 0, 1, 2, 3)]
        if self._unit == "hour":
            return [(day, hour, fold) for day in near for hour in range(24) for fold in (0, 1)]
        if self._unit == "week":
            monday = date - dt.timedelta(days=date.weekday())
            near = [monday + dt.timedelta(weeks=weeks) for weeks in (-1, 0, 1, 2)]
        elif self._unit == "month":
            months = date.year * 12 + date.month - 1
            near = [dt.date(month // 12, month % 12 + 1, 1) for month in range(months - 1, months + 3)]
        elif self._unit == "year":
            near = [dt.date(year, 1, 1) for year in range(date.year - 1, date.year + 3)]
        return [(day, 0, 0) for day in near]

    def _instant(self, date: dt.date, hour: int, fold: int) -> int | None:
        local = dt.datetime(date.year, date.month, date.day, hour, tzinfo=self._zone, fold=fold)
        if fold and local.astimezone(dt.UTC).astimezone(self._zone).replace(tzinfo=None) != local.replace(tzinfo=None):
            return None  # the clock never shows this hour, so it does not show it a second time
        return (local - _EPOCH) // dt.timedelta(microseconds=1)
