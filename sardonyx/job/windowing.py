"""The words about time: where the times of rows come from, windows, what windows hold, and when their results come.

Each word gives plain data for the job's spec, as YAML would have it (:mod:`sardonyx.job.parse` reads both). Nothing is checked
here: :mod:`sardonyx.job.validate_windows` checks a job as a whole. ``docs/time.md`` explains the words with pictures.

The ideas are those of the Dataflow model (Akidau et al., 2015), which Beam and Flink have made known: event time, watermarks,
windows, triggers, and whether results accumulate. The names are those that most systems share. Where they differ, the docstrings
say how Beam, Flink and Kafka Streams call the same thing. A clock here is what these systems call a watermark.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec

from sardonyx.connectors.declarations import Connector
from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.arguments import match_arguments
from sardonyx.runtime.functions import reference_text

P = ParamSpec("P")

StoreChoice = Literal["memory", "rocksdb"] | Connector | type[Any] | str
"""Where a task keeps its state: one of our stores, a database by :func:`sardonyx.sql`, or the user's own class (or its name)."""

Length = str | int
"""A duration such as ``"1 min"``; of windows over an ``ordinal`` time a number of rows."""


class Declared(msgspec.Struct, frozen=True):
    """A word as the user wrote it."""

    data: Any
    """For the job's spec."""
    problems: tuple[SardonyxError, ...] = ()
    """Arguments that the word does not have; the job reports them with its other problems."""


class Clock(Declared, frozen=True):
    """Where the times of an input's rows come from: for ``time=`` of ``job.input``."""


class Windows(Declared, frozen=True):
    """How rows are put into windows: the second argument of ``job.window``."""


class Aggregate(Declared, frozen=True):
    """One column of a window's results: for ``aggregate=`` of ``job.window``."""


class Emit(Declared, frozen=True):
    """When results come: for ``emit=`` of ``job.window``."""


class Stored(Declared, frozen=True):
    """A database that keeps state: for ``store=`` of ``job.window``, ``job.keyed``, ``job.join`` and the like."""


D = TypeVar("D", bound=Declared)


def _declares(function: Callable[P, D]) -> Callable[P, D]:
    """Let a word collect wrong arguments in ``problems`` of what it gives, instead of raising for the first."""
    signature = inspect.signature(function)

    @wraps(function)
    def declared(*args: P.args, **kwargs: P.kwargs) -> D:
        called = f"{function.__name__}()"
        values, problems = match_arguments(signature, args, kwargs, called=called, code="SX-JOB-FIELD")
        made = function(**values)  # type: ignore[call-arg]  # all parameters, by name
        return msgspec.structs.replace(made, problems=problems) if problems else made

    return declared


# --- Where a row's time comes from ------------------------------------------------------------------------------------


@_declares
def event_time(
    column: str,
    *,
    delay: str | None = None,
    idle: str | None = None,
    unit: Literal["s", "ms", "us", "ns"] | None = None,
    ahead: str | None = None,
    at_rest: Literal["hold", "wall"] | None = None,
) -> Clock:
    """A row's time is in one of its columns.

    Flink calls this a ``WatermarkStrategy`` for bounded out-of-orderness with a timestamp assigner, Kafka Streams a
    ``TimestampExtractor``, Beam the timestamps and the watermark of a source.

    Args:
        column: a timestamp, or whole numbers with ``unit``. Functions must keep it.
        delay: by how much a row may be older than rows before it in its partition, such as ``"5 s"``. The clock of a partition is
            its greatest time so far less this. None: rows are in the order of their times.
        idle: after this long without a row, a partition holds the clock back no more. None: it does so as long as the job runs.
        unit: of a column of whole numbers: what it counts, since 1970 (UTC).
        ahead: a row that is further ahead of the clock of the machine that reads it is a bad record, and ``on_error`` decides
            about it. None: ``"1 day"`` for rows of a Kafka topic, where one of the year 2099 in each partition would make all
            later rows late; no limit for others, which have no clock before their end.
        at_rest: when all partitions are idle: ``"hold"`` (the default): the clock stands still; ``"wall"``: it goes on with the
            clock of the machine.
    """
    return Clock(_said("column", locals()))


@_declares
def kafka_time(
    column: str,
    *,
    delay: str | None = None,
    idle: str | None = None,
    ahead: str | None = None,
    at_rest: Literal["hold", "wall"] | None = None,
) -> Clock:
    """A row's time is the timestamp of its Kafka record, which is added to the row. Kafka Streams does this by default.

    Args:
        column: the name of the column that is added, of type ``timestamp``.
        delay: as for :func:`event_time`.
        idle: as for :func:`event_time`.
        ahead: as for :func:`event_time`.
        at_rest: as for :func:`event_time`.
    """
    return Clock(_said("kafka", locals()))


@_declares
def wall(column: str, *, idle: str | None = None, at_rest: Literal["hold", "wall"] | None = None) -> Clock:
    """A row's time is the clock of the machine that read it, which is added to the row. Others call it processing time.

    Results then depend on when rows were read: a second run over the same rows gives others.

    Args:
        column: the name of the column that is added, of type ``timestamp``.
        idle: as for :func:`event_time`.
        at_rest: as for :func:`event_time`.
    """
    return Clock(_said("wall", locals()))


@_declares
def ordinal(column: str, *, idle: str | None = None) -> Clock:
    """A row's time is its number in its source partition, from 0, which is added to the row.

    Lengths of windows are then numbers of rows: ``tumbling(1000)`` is a window by size, as GeaFlow has it.

    Args:
        column: the name of the column that is added, of type ``bigint``.
        idle: as for :func:`event_time`.
    """
    return Clock(_said("ordinal", locals()))


# --- Windows ----------------------------------------------------------------------------------------------------------


@_declares
def tumbling(size: Length) -> Windows:
    """Windows of one length, one after the other, aligned to 1970-01-01 00:00 UTC. Each row is in one. Beam: fixed windows.

    Args:
        size: their length, such as ``"1 min"``.
    """
    return Windows(_said("tumbling", locals()))


@_declares
def hopping(size: Length, every: Length) -> Windows:
    """Windows of one length that overlap: one begins after each ``every``. Beam and Flink: sliding windows.

    Args:
        size: their length, such as ``"10 min"``.
        every: from the start of one to the start of the next, such as ``"1 min"``; at most ``size``. Each row is in about
            ``size / every`` windows, and costs as much as so many rows.
    """
    return Windows(_said("hopping", locals()))


@_declares
def session(gap: Length, most: Length | None = None) -> Windows:
    """A window for each burst of rows of a key. The three systems have session windows under this name.

    Args:
        gap: a window ends when its key has no row for so long, such as ``"30 min"``.
        most: the longest window: a row after that begins a new one. None: no limit.
    """
    return Windows(_said("session", locals()))


@_declares
def counted(n: int, every: int | None = None) -> Windows:
    """Windows of ``n`` rows of a key, in the order in which they come. Flink: count windows. They need no time.

    Args:
        n: how many rows a window has.
        every: rows from the start of one window to the start of the next; None: ``n``, so each row is in one window.
    """
    return Windows(_said("counted", {"size": n, "every": every}))


@_declares
def calendar(unit: Literal["hour", "day", "week", "month", "year"], zone: str = "UTC") -> Windows:
    """Hours, days, weeks (from Monday), months or years of a time zone; a day may have 23 or 25 hours. Beam: calendar windows.

    Args:
        unit: ``"hour"``, ``"day"``, ``"week"``, ``"month"`` or ``"year"``.
        zone: whose, such as ``"Europe/Berlin"``.
    """
    return Windows(_said("calendar", locals()))


@_declares
def everything() -> Windows:
    """One window that holds all rows of a key, and closes at the end of a bounded job. Beam and Flink: the global window.

    It needs no time. In a job that never ends use it with ``emit="changes"``, ``every(...)`` or ``on_count(...)``: Kafka Streams
    would call the result a KTable.
    """
    return Windows(_said("everything", {}))


# --- What a window holds ----------------------------------------------------------------------------------------------


@_declares
def Count(column: str | None = None) -> Aggregate:  # noqa: N802 - the aggregations read as nouns
    """How many rows a window has, as ``bigint``; with ``column``, those where it is not null."""
    return Aggregate(_aggregate("count", column))


@_declares
def Sum(column: str) -> Aggregate:  # noqa: N802
    """The sum of a column of numbers, null values apart; null if there are no others."""
    return Aggregate(_aggregate("sum", column))


@_declares
def Min(column: str) -> Aggregate:  # noqa: N802
    """The least value of a column, null values apart."""
    return Aggregate(_aggregate("min", column))


@_declares
def Max(column: str) -> Aggregate:  # noqa: N802
    """The greatest value of a column, null values apart."""
    return Aggregate(_aggregate("max", column))


@_declares
def Mean(column: str) -> Aggregate:  # noqa: N802
    """The arithmetic mean of a column of numbers, null values apart, as ``double``."""
    return Aggregate(_aggregate("mean", column))


@_declares
def Var(column: str) -> Aggregate:  # noqa: N802
    """The variance of a column of numbers as of a sample (divided by n - 1), null values apart, as ``double``.

    It is null of fewer than two values.
    """
    return Aggregate(_aggregate("var", column))


@_declares
def First(column: str) -> Aggregate:  # noqa: N802
    """The value of the row with the least time, which may be null; of several the one that comes first."""
    return Aggregate(_aggregate("first", column))


@_declares
def Last(column: str) -> Aggregate:  # noqa: N802
    """The value of the row with the greatest time, which may be null; of several the one that comes last."""
    return Aggregate(_aggregate("last", column))


@_declares
def Distinct(column: str, *, most: int | None = None) -> Aggregate:  # noqa: N802
    """How many different values a column has, null values apart: exact, so the state holds them all.

    Args:
        column: of any type that can be a key.
        most: it counts no further than this, and keeps no more values. None: no limit.
    """
    return Aggregate(_aggregate("distinct", column, most=most))


@_declares
def Quantile(column: str, q: float) -> Aggregate:  # noqa: N802
    """The value below which a share ``q`` of a column's numbers lies, null values apart, as ``double``, to within 1 %.

    It is estimated by a DDSketch (Masson, Rim and Lee, 2019), whose size does not grow with the number of rows.

    Args:
        column: of numbers.
        q: from 0 to 1; 0.5 is the median.
    """
    return Aggregate(_aggregate("quantile", column, q=q))


@_declares
def Collect(column: str, *, most: int | None = None) -> Aggregate:  # noqa: N802
    """A column's values as a list, null values apart, in the order of their rows' times.

    Args:
        column: of any type.
        most: the list has at most this many, the first ones. None: no limit.
    """
    return Aggregate(_aggregate("collect", column, most=most))


# --- When results come ------------------------------------------------------------------------------------------------


@_declares
def every(duration: Length, by: Literal["event", "wall"] = "event") -> Emit:
    """Results when the clock of the rows has gone on by so much, for the windows that have had rows since then.

    Flink: ``ContinuousEventTimeTrigger``, ``ContinuousProcessingTimeTrigger``.

    Args:
        duration: such as ``"10 s"``; over an ``ordinal`` time a number of rows.
        by: ``"wall"``: when the clock of the machine has gone on by so much. It goes on without rows, too.
    """
    return Emit(f"every {duration}" + (" by wall" if by == "wall" else ""))


@_declares
def on_count(n: int) -> Emit:
    """A result of a window when it has had at least ``n`` more rows. Beam: ``AfterPane.elementCountAtLeast``, repeated.

    Args:
        n: how many rows.
    """
    return Emit(f"count {n}")


# --- For the builder --------------------------------------------------------------------------------------------------


def data_of(value: object, problems: list[SardonyxError]) -> Any:
    """A value as YAML would have it; the problems of its words are added to ``problems``."""
    if isinstance(value, Declared):
        problems += value.problems
        return data_of(value.data, problems)
    if isinstance(value, Mapping):
        return {key: data_of(item, problems) for key, item in value.items()}
    return value


def window_data(given: Mapping[str, Any]) -> Windows | dict[str, Any]:
    """The entry ``window`` of a task, from the arguments of ``job.window``; those that were not given are left out.

    Raises:
        TypeError: ``windows`` is of another kind.
    """
    windows = {} if given["windows"] is None else given["windows"]
    if not isinstance(windows, Windows | Mapping):
        wanted = f"task {given['name']!r}: windows are made by tumbling(), session(), everything() and the like"
        raise TypeError(f"{wanted}, not {type(windows).__name__} ({windows!r})")
    fields = {name: given[name] for name in _WITH_WINDOWS if given[name] is not None}
    if "store" in fields:
        fields["store"] = store_data(fields["store"])
    if isinstance(windows, Windows):
        return Windows(windows.data | fields, windows.problems)
    return {**windows, **fields}


_WITH_WINDOWS = (
    "aggregate",
    "emit",
    "accumulate",
    "grace",
    "allowed_lateness",
    "late",
    "state_limit",
    "store",
    "time",
)


def store_data(store: object) -> Any:
    """The entry ``store`` of a task: a name, a class of the user's, or a database that :func:`sardonyx.sql` declares."""
    if isinstance(store, type):
        return reference_text(store)
    if not isinstance(store, Connector):
        return store
    if store.name != "sql":
        fix = 'give "memory", "rocksdb", sql("postgresql://host/name") or your own class'
        return Stored("memory", (SardonyxError("SX-WINDOW-STORE", f"{store.name}() is not a store of state", fix=fix),))
    options = dict(store.options)
    return Stored({"sql": options.pop("url", None), **options}, store.problems)


def _said(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": kind} | {name: value for name, value in given.items() if value is not None}


def _aggregate(of: str, column: str | None, **options: Any) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    return {"of": of} | ({"column": column} if column is not None else {}) | ({"options": given} if given else {})
