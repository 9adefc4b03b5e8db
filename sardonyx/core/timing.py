"""What a job says about time: where the times of an input's rows come from, windows, and what they aggregate. Pure data."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from sardonyx.core.stores import Store
from sardonyx.core.units import seconds

TimeKind = Literal["column", "kafka", "wall", "ordinal"]
WindowKind = Literal["tumbling", "hopping", "session", "counted", "calendar", "everything"]
AggregateKind = Literal["count", "sum", "min", "max", "mean", "var", "first", "last", "distinct", "quantile", "collect"]


RESULT_COLUMNS = ("window_start", "window_end", "pane", "final", "window_time")
"""The columns that each result of a window has, besides those of the key and those that it aggregates. ``window_time`` is its own
time: of windows by time, right before their end."""
WINDOW_NUMBER = "window_number"
"""The column that the rows of counted windows have for a function: the number of the window among those of its key, from 0."""


MOST_AHEAD = "1 day"
"""How far ahead of the reading machine's clock a row of a topic may be, if its job does not say it. One row of the year 2099 in
each partition would make all later ones late."""


class TimeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Where the times of an input's rows come from, and how far its clock stays behind them."""

    column: str
    """The column with the time of a row. Kinds other than ``column`` add it."""
    kind: TimeKind = "column"
    """``column``: the rows have it. ``kafka``: the timestamp of the Kafka record. ``wall``: the clock of the machine that reads.
    ``ordinal``: the row's number in its source partition, from 0."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Of a column of integers: what it counts, since 1970 (UTC)."""
    delay: str = "0 s"
    """By how much a row may be older than the rows before it in its partition. An ``ordinal`` has none."""
    idle: str | None = None
    """After this long without a row, a partition holds no clock back. None: it does so as long as the input runs."""
    ahead: str | None = None
    """A row that is further ahead of the reading machine's clock is a bad record; see :attr:`most_ahead`."""
    at_rest: Literal["hold", "wall"] = "hold"
    """When all partitions are idle: the clock holds, or goes on with the machine's clock."""
    since: int | None = None
    """Of a topic, ``column`` or ``kafka``: rows before this time are left out, in microseconds since 1970. They move the clock.
    Only a replay says it."""
    until: int | None = None
    """The same of rows of this time or later."""

    @property
    def adds_column(self) -> bool:
        """Whether reading adds the column to the rows."""
        return self.kind != "column"

    @property
    def most_ahead(self) -> str | None:
        """The limit of ``ahead``, with its default for the timestamps of Kafka records. Jobs that are written now say that of a
        column, see :mod:`sardonyx.job.parse`; those of earlier releases have none.
        """
        return self.ahead or (MOST_AHEAD if self.kind == "kafka" else None)


class AggregateSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One column of a window's results."""

    of: AggregateKind
    column: str | None = None
    """What it aggregates; ``count`` has none, or counts the rows where this is not null."""
    options: dict[str, Any] = {}
    """``quantile``: ``q``, from 0 to 1. ``collect``, ``distinct``: ``most``, the largest number of values."""


class WindowSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The windows of a task. Lengths are durations such as "1 min"; on an ``ordinal`` time they are numbers of rows."""

    kind: WindowKind
    size: str | int | None = None
    """``tumbling`` and ``hopping``: the length. ``counted``: the number of rows of a key."""
    every: str | int | None = None
    """``hopping``: from one window's start to the next. ``counted``: rows between one window's start and the next."""
    gap: str | int | None = None
    """``session``: a window ends when a key has no row for so long."""
    most: str | int | None = None
    """``session``: the longest window."""
    unit: Literal["hour", "day", "week", "month", "year"] | None = None
    """``calendar``: the length."""
    zone: str = "UTC"
    """``calendar``: whose days, such as ``Europe/Berlin``."""
    time: str | None = None
    """The column with a row's time; None: that of the inputs."""
    aggregate: dict[str, AggregateSpec] = {}
    """By the name of the column in the results, in the order of these names."""
    emit: str = "final"
    """When results come. ``final``: once, when the window closes. ``changes``: after each batch, for the windows that it changed.
    ``every 10 s``: each time that the clock has gone on by so much (over an ordinal ``every 1000``), for the windows with rows
    since then. ``count 100``: when a window has had so many more rows. All but the final ones come at the end of a batch."""
    accumulate: bool = True
    """Whether each result of a window counts all its rows, or only those since the result before it."""
    grace: str | int = 0
    """How much longer than its end a window waits for rows that are older than the clock."""
    allowed_lateness: str | int = 0
    """How long a closed window is kept, so that a late row gives a corrected result."""
    late: Literal["drop", "dead_letter", "edge"] = "drop"
    """What happens to a row that comes after its windows have closed: it is counted and dropped, is a dead letter, or goes over
    the edges that take late rows. What none of these takes is counted and dropped."""
    state_limit: int | None = None
    """The most entries of one partition's state; the job fails at more, and does not fill the memory."""
    store: Store = "memory"
    """Where the state is kept: ``memory``, ``rocksdb``, or a database."""

    @property
    def by_time(self) -> bool:
        """Whether a row's time decides about its windows, and the clock closes them."""
        return self.kind not in ("counted", "everything")


def length(text: str | int | None) -> int:
    """A length of time in microseconds. An integer counts rows of an ordinal time, and stays as it is."""
    if text is None:
        return 0
    return text if isinstance(text, int) else round(seconds(text) * 1_000_000)


def valid_length(text: str | int | None) -> int:
    """The same; 0: it is not a length, or not above 0. A job may come to a coordinator without having been validated."""
    try:
        return max(0, length(text))
    except (ValueError, OverflowError):
        return 0


def panes(window: WindowSpec) -> bool:
    """Whether a window may give more than one result. Its state then has further columns."""
    return window.emit != "final" or valid_length(window.allowed_lateness) > 0


def combines(window: WindowSpec, every: int | None = None) -> bool:
    """Whether rows of this window can be combined before the link.

    Those of sessions and counted windows cannot, since which rows share a window is known only where all rows of a
    key are. Those of a window without aggregates cannot, since its function is given the rows themselves.

    Args:
        window: the windows.
        every: if the job has checkpoints, how far they are apart, in microseconds. Rows before and after a checkpoint are not
            combined with each other, so each must be at a bound of the slices that are combined.
    """
    if not window.aggregate or window.kind in {"session", "counted"}:
        return False
    if every is None:
        return True
    if window.kind not in {"tumbling", "hopping"}:
        return False
    size = valid_length(window.size)
    slices = math.gcd(size, valid_length(window.every) or size)
    return slices > 0 and every % slices == 0


class RowTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Where the time of a row stands on its way through a job."""

    column: str
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Of a column of integers."""
    ordinal: bool = False
    """Whether it is a number of rows, not a moment."""


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Which rows go over an edge while a job is changed at a time (:mod:`sardonyx.core.changing_at`): those from it on over an
    edge that is new, and those before it over one that goes.
    """

    time: RowTime
    """Where the rows have their time."""
    since: int | None = None
    """Of a new edge: the first time, in microseconds since 1970, or a number of rows."""
    before: int | None = None
    """Of an edge that goes: the first time after."""
    over: bool = False
    """The change is over. No row goes over an edge that goes. A new one stays as it is: its reader reads a topic in place."""
