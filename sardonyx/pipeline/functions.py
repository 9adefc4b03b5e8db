"""Functions of ours that the tasks of a pipeline name, with the user's function among their params. They run on Spark's workers.

A reduced row goes into the state as plain values. Those of types that a state of any value would give back as texts are tagged,
such as ``{"$decimal": "1.00"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.connectors.records import to_records, to_table
from sardonyx.core.errors import FunctionError
from sardonyx.core.text import shorten
from sardonyx.state.handles import State
from sardonyx.state.timers import Timer, Timers

Row = dict[str, Any]
Reduce = Callable[[Row, Row], Row]

_OF_WINDOW = ("window_start", "window_end", "window_time")
_LAST = datetime.max.replace(tzinfo=UTC)

# --- Filters ----------------------------------------------------------------------------------------------------------


def keep_row(row: dict[str, Any], condition: Callable[[Row], object]) -> Row | None:
    """The row, if the condition holds."""
    return row if condition(row) else None


def keep_rows(rows: pa.Table, condition: Callable[[pa.Table], Any]) -> pa.Table:
    """The rows for which the condition holds. A null counts as false."""
    found = condition(rows)
    chosen = found if isinstance(found, pa.Array | pa.ChunkedArray) else pa.array(found)
    return rows.filter(pc.fill_null(chosen, False))


# --- Reduce -----------------------------------------------------------------------------------------------------------


def reduce_windows(rows: pa.Table, reduce: Reduce, keys: list[str]) -> pa.Table:
    """One row for each key and window, of all rows of the windows that close."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in to_records(rows):
        window = row.pop("window_start"), row.pop("window_end")
        key = *map(_hashable, window), *(_hashable(row.get(name)) for name in keys)
        before = found.get(key)
        found[key] = row | _bounds(*window) if before is None else _reduced(reduce, before, row, keys)
    return to_table(list(found.values()), rows.schema)


def _bounds(start: Any, end: Any) -> Row:
    """The columns of a window. Its time is right before its end, as that of a result of ``aggregate``."""
    last = end - (1 if isinstance(end, int) else timedelta(microseconds=1))
    return dict(zip(_OF_WINDOW, (start, end, last), strict=True))


def reduce_to_here(row: dict[str, Any], reduce: Reduce, keys: list[str], reduced: State[dict[str, Any]]) -> Row:
    """The row of a window, reduced with those of all windows before it."""
    found = _reduced(reduce, _read(reduced.value), row, keys) if reduced.exists else row
    reduced.value = _written({name: value for name, value in found.items() if name not in _OF_WINDOW})
    return found


def reduce_until_end(
    row: dict[str, Any], reduce: Reduce, keys: list[str], reduced: State[dict[str, Any]], timers: Timers
) -> None:
    """The row is reduced with those before it. What comes of them is given at the end of the input."""
    if reduced.exists:
        row = _reduced(reduce, _read(reduced.value), row, keys)
    else:
        timers.set(_LAST)
    reduced.value = _written(row)


def give_reduced(_timer: Timer, reduced: State[dict[str, Any]]) -> Row:
    """What all rows of a key were reduced to."""
    found: Row = _read(reduced.value)
    return found


def _reduced(reduce: Reduce, one: Row, other: Row, keys: list[str]) -> Row:
    """Two rows in one. It has the columns of the key, and those of the later row's window."""
    kept = {name: other.get(name, one.get(name)) for name in keys}
    window = {name: other.get(name, one.get(name)) for name in _OF_WINDOW if name in other or name in one}
    plain = [{name: value for name, value in row.items() if name not in _OF_WINDOW} for row in (one, other)]
    found = reduce(*plain)
    if not isinstance(found, Mapping):
        raise FunctionError(
            "SX-FN-RESULT",
            f"the function of reduce gave {type(found).__name__} ({shorten(repr(found))})",
            cause="it takes two rows, and what it gives takes their place",
            fix="let it return a dict",
            where={"function": getattr(reduce, "__name__", str(reduce))},
        )
    return {**found, **kept, **window}


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, float) and value != value else value  # NaN is one key  # noqa: PLR0124


# --- Aggregates -------------------------------------------------------------------------------------------------------


def add_to_here(row: dict[str, Any], merge: dict[str, list[Any]], totals: State[dict[str, Any]]) -> Row:
    """The result of a window, with its aggregates over all windows so far.

    ``merge``: by column, the kind of the aggregate, and how many values a list has at most.
    """
    if totals.exists:
        before = _read(totals.value)
        row |= {name: _merged(name, kind, before[name], row[name], most) for name, (kind, most) in merge.items()}
    totals.value = _written({name: row[name] for name in merge})
    return row


def _merged(name: str, kind: str, before: Any, now: Any, most: int | None) -> Any:
    if kind in ("first", "last"):
        return before if kind == "first" else now
    if before is None or now is None:
        return now if before is None else before
    if kind == "collect":
        return [*before, *now][:most]
    if kind in ("min", "max"):
        if before != before or now != now:  # NaN is not a value here, as in a window  # noqa: PLR0124
            return now if before != before else before  # noqa: PLR0124
        return (min if kind == "min" else max)(before, now)
    return _added(name, before, now)


_EXACT = Context(prec=160)
"""Of sums of two decimals: the exact sum of two that Arrow can hold, of at most 76 digits, has at most 153."""
_MOST_DIGITS, _MOST_BITS = 38, 64


def _added(name: str, before: Any, now: Any) -> Any:
    """The exact sum of two decimals or integers, of the type that a window gives its sums; or that of two floats."""
    decimals = isinstance(before, Decimal) or isinstance(now, Decimal)
    total = _EXACT.add(before, now) if decimals else before + now
    if decimals and len(total.as_tuple().digits) > _MOST_DIGITS:
        raise _overflow(name, "decimals", f"{_MOST_DIGITS} digits")
    if isinstance(total, int) and not -(2 ** (_MOST_BITS - 1)) <= total < 2 ** (_MOST_BITS - 1):
        raise _overflow(name, "integers", f"{_MOST_BITS} bits")
    return total


def _overflow(name: str, of: str, limit: str) -> FunctionError:
    return FunctionError(
        "SX-WINDOW-OVERFLOW",
        f"the total {name!r} of {of} across windows exceeds {limit}",
        cause=f"totals of {of} are exact, and are kept in {limit}",
        fix="make floats of the column before the aggregate, or let totals begin anew after a while, with `ttl=`",
    )


# --- Values in the state ----------------------------------------------------------------------------------------------

_TAGS: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    Decimal: ("$decimal", str, Decimal),
    datetime: ("$moment", datetime.isoformat, datetime.fromisoformat),
    date: ("$date", date.isoformat, date.fromisoformat),
    time: ("$time", time.isoformat, time.fromisoformat),
    timedelta: ("$microseconds", lambda value: value // timedelta(microseconds=1), lambda n: timedelta(microseconds=n)),
}
_READ = {name: read for name, _, read in _TAGS.values()}


def _written(value: Any) -> Any:
    """A value as the state keeps it."""
    if isinstance(value, dict):
        return {_escaped(name): _written(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_written(inner) for inner in value]
    tag = _TAGS.get(type(value))
    return value if tag is None else {tag[0]: tag[1](value)}


def _read(value: Any) -> Any:
    """The reverse of :func:`_written`."""
    if isinstance(value, dict):
        if len(value) == 1:
            ((name, inner),) = value.items()
            if name in _READ:
                return _READ[name](inner)
        return {_unescaped(name): _read(inner) for name, inner in value.items()}
    return [_read(inner) for inner in value] if isinstance(value, list) else value


def _escaped(name: Any) -> Any:
    """A key of the user's that could be taken for a tag is no tag. Keys of maps need not be texts."""
    return f"${name}" if isinstance(name, str) and name.startswith("$") else name


def _unescaped(name: Any) -> Any:
    return name[1:] if isinstance(name, str) and name.startswith("$") else name
