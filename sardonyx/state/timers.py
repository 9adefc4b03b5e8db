"""Timers: a function with keyed state sets them, and ``on_timer`` is called when they are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import FunctionError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Clock = Literal["event", "wall"]


class Timer(NamedTuple):
    """A timer that is due: what ``on_timer`` gets in place of a row."""

    key: Any
    """The key that it was set for: its value; of several columns a tuple; None without ``group_by``."""
    name: str
    at: datetime
    """When it was due (UTC), which may be a while before it fires."""
    by: Clock = "event"
    """By the clock of the rows, or that of the machine."""


class Setting(NamedTuple):
    """A timer as it was set. Times are in microseconds."""

    at: int
    wall: bool
    set_at: int
    """The clock of the rows when it was set. The timer sees states as they are at this time, or later."""


class Timers:
    """Calls ``on_timer`` later: annotate a parameter as ``Timers``. Each key has timers of its own, which go by their names."""

    def __init__(self) -> None:
        self._now = NEVER
        self._due: Setting | None = None
        self._changed: dict[str, Setting | None] = {}

    def set(self, at: datetime, name: str = "", *, by: Clock = "event") -> None:
        """Let ``on_timer`` be called at a time. A timer of this name that has not fired yet is moved.

        Args:
            at: when; a time without a zone counts as UTC. A time that has passed already is due at once, after this row. In
                ``on_timer`` it must be later than the timer that is due.
            name: which timer of the key.
            by: ``"event"``: when the clock of the rows has come to ``at``, and at the end of a bounded input. ``"wall"``: when
                the clock of the machine has. When that is, differs from run to run.

        Raises:
            FunctionError: ``SX-TIMER-PAST``; ``SX-TIMER-TIME``, it is not a time.
        """
        moment = _microseconds(at, name, by)
        if self._due is not None and (by == "wall") == self._due.wall and moment <= self._due.at:
            raise FunctionError(
                "SX-TIMER-PAST",
                f"on_timer sets timer {name!r} for {at.isoformat()}, which is not after the timer that is due",
                cause="it would be due again at once, without end",
                fix="set it for later than `timer.at`",
                where={"timer": name},
            )
        self._changed[name] = Setting(moment, by == "wall", self._now)

    def delete(self, name: str = "") -> None:
        """Remove a timer that has not fired yet, if there is one of this name."""
        self._changed[name] = None

    def begin(self, now: int, due: Setting | None = None) -> None:
        """A call of the function begins.

        Args:
            now: the clock of the rows.
            due: the timer that the call is for.
        """
        self._now, self._due, self._changed = now, due, {}

    @property
    def changed(self) -> bool:
        """Whether the call has set or deleted any."""
        return bool(self._changed)

    def taken(self) -> dict[str, Setting | None]:
        """What the call has set and deleted."""
        found, self._changed = self._changed, {}
        return found


def _microseconds(at: object, name: object, by: object) -> int:
    if not isinstance(at, datetime) or not isinstance(name, str) or by not in ("event", "wall"):
        raise FunctionError(
            "SX-TIMER-TIME",
            f"timer {name!r} cannot be set for {at!r} by {by!r}",
            cause='a timer is set for a datetime, its name is a text, and it goes by "event" or "wall"',
            fix="give a datetime, such as `row['at'] + timedelta(hours=1)`",
        )
    return ((at.replace(tzinfo=UTC) if at.tzinfo is None else at) - EPOCH) // _MICROSECOND


def moment(at: int) -> datetime:
    """The time of so many microseconds. One beyond the years of Python is the nearest within."""
    try:
        return EPOCH + timedelta(microseconds=at)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if at > 0 else datetime.min.replace(tzinfo=UTC)
