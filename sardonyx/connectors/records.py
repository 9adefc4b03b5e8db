"""Converts Arrow tables to Python records and back, for functions that take one ``dict`` at a time, and inputs that give them.

Types on the way back. A column that the input had keeps its type if the new values fit without loss. So ``int32`` stays
``int32``, and a batch of whole numbers in a ``double`` column stays ``double``. If they do not fit, it takes the narrowest type
that holds the old and the new (:mod:`sardonyx.core.column_types`). The type of any other column follows from all values of the
slice. If a column contains only None, it stays Arrow's ``null``, which combines with any other type later. Columns keep the
order in which they first appear.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from sardonyx.connectors.python_values import NoValue, values
from sardonyx.core.column_types import UnfitTypes, common, converted
from sardonyx.core.errors import FunctionError

Record = dict[str, Any]


class UnfitColumn(ValueError):
    """A column cannot be made. The message names it and the reason."""


def rows_at(table: pa.Table, indexes: Sequence[int]) -> pa.Table:
    """Return the rows at these indexes, in this order."""
    try:
        return table.take(pa.array(indexes, pa.int64()))
    except pa.ArrowNotImplementedError:  # pyarrow cannot take rows of string_view and binary_view columns
        return pa.concat_tables([table.slice(0, 0), *(table.slice(index, 1) for index in indexes)])


def to_records(table: pa.Table) -> list[Record]:
    """Convert the rows to dicts of Python's own types: ``datetime`` with time zone, ``Decimal``, ``list``, ``dict``.

    Raises:
        FunctionError: ``SX-FN-INPUT``, a value that Python does not have.
    """
    names = table.column_names
    if not names:
        return [{} for _ in range(table.num_rows)]
    columns = [_values(name, column) for name, column in zip(names, table.columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def records_or_errors(table: pa.Table) -> list[Record | FunctionError]:
    """Convert the rows as :func:`to_records` does; in place of a row that cannot be converted, the error."""
    try:
        return list(to_records(table))
    except FunctionError as error:
        if table.num_rows == 1:
            return [error]
    return [each for number in range(table.num_rows) for each in records_or_errors(table.slice(number, 1))]


def _values(name: str, column: pa.ChunkedArray) -> list[Any]:
    try:
        return values(column)
    except NoValue as error:
        raise FunctionError(
            "SX-FN-INPUT",
            f"column {name!r} holds a value that Python does not have: {error}",
            fix="correct it in the task before, or let the function take a pyarrow.Table",
            where={"column": name},
        ) from None


def to_table(records: list[Record], like: pa.Schema, declared: pa.Schema | None = None) -> pa.Table:
    """Convert records to a table. If there are no records, the table has no columns.

    Args:
        records: dicts with string keys. A missing key means null.
        like: the schema of the rows that the function got.
        declared: columns that are there in any case, and their types.

    Raises:
        UnfitColumn: a value has no type, or a column's name is not a string.
        UnfitTypes: values of a column have types that do not go together.
    """
    names = list(dict.fromkeys(itertools.chain.from_iterable(records)))
    for name in names:
        if not isinstance(name, str):
            raise UnfitColumn(f"the name of a field is {name!r}, which is not a string")
    if records and not names:
        raise UnfitColumn("not one of the records has a field")
    known = known_types(like)
    fixed = {} if declared is None or not records else {field.name: field.type for field in declared}
    names += [name for name in fixed if name not in names]
    arrays = [
        typed_as(name, _column(records, name), fixed[name])
        if name in fixed
        else array_of(name, _column(records, name), known.get(name))
        for name in names
    ]
    return pa.Table.from_arrays(arrays, names=names)


def _column(records: Iterable[Record], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), records))
    except KeyError:
        return [record.get(name) for record in records]


PLAIN = {int, float, str, bytes, bool, Decimal, dt.date, dt.timedelta}
"""Classes of which Arrow infers the same type from all values, in any order."""


def known_types(like: pa.Schema) -> dict[str, pa.DataType]:
    """The types that columns had, by their names."""
    return {field.name: field.type.value_type if kinds.is_dictionary(field.type) else field.type for field in like}


def array_of(name: str, values: list[Any], known: pa.DataType | None) -> pa.Array:
    """The values of a column in the narrowest type that holds them. ``known``: the type that it had in the rows before, if any.

    Raises:
        UnfitColumn: a value has no type.
        UnfitTypes: the values have types that do not go together.
    """
    try:
        return _typed(name, values, known)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UnfitColumn(f"a value of field {name!r} has no type: {error}") from error


def _typed(name: str, values: list[Any], known: pa.DataType | None) -> pa.Array:
    """The values in the narrowest type that holds those of each class.

    Arrow alone takes the type of all from the first value, and so makes a date of a moment, and a 1.0 of a True.
    """
    classes = set(map(type, values))
    classes.discard(type(None))
    if len(classes) <= 1 and classes <= PLAIN:
        return _as_known(name, pa.array(values), values, known)
    kind = pa.null()
    for each in sorted(classes, key=lambda each: each.__qualname__):
        mine = [value for value in values if type(value) is each]
        of_class = _as_known(name, pa.array(mine, _of_class(name, mine, each)), mine, known).type
        wider = common(kind, of_class)
        if wider is None:
            raise UnfitTypes(name, kind, of_class)
        kind = wider
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid as error:
        if not kinds.is_floating(kind):
            raise
        raise UnfitTypes(name, pa.int64(), kind, str(error).splitlines()[0]) from error


def typed_as(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values in a type that is declared.

    Raises:
        UnfitColumn: a value has no type.
        UnfitTypes: a value would change.
    """
    classes = set(map(type, values))
    classes.discard(type(None))
    parts, places = [pa.nulls(1, kind)], [0] * len(values)
    try:
        if kinds.is_nested(kind) and (kept := _nested(pa.nulls(0), values, kind)).type == kind:
            return kept
        for each in sorted(classes, key=lambda each: each.__qualname__):
            mine = [index for index, value in enumerate(values) if type(value) is each]
            of_class = [values[index] for index in mine]
            start = sum(map(len, parts))
            parts.append(converted(pa.array(of_class, _of_class(name, of_class, each)), kind, name))
            for place, index in enumerate(mine, start):
                places[index] = place
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UnfitColumn(f"a value of field {name!r} has no type: {error}") from error
    if len(classes) == 1 and len(parts[1]) == len(values):
        return parts[1]
    return pa.concat_arrays(parts).take(pa.array(places, pa.int64()))


def _of_class(name: str, values: list[Any], each: type) -> pa.DataType | None:
    """The type of values of one class; None: Arrow may infer it."""
    if issubclass(each, list | tuple | set | frozenset) and each is not pa.MonthDayNano:
        return pa.list_(_typed(name, [item for value in values for item in value], None).type)
    if issubclass(each, np.ndarray) and any(
        value.dtype == object or value.dtype != values[0].dtype for value in values
    ):
        items = [item for value in values for item in (value if value.dtype.kind in "mM" else value.tolist())]
        return pa.list_(_typed(name, items, None).type)
    if issubclass(each, dict):
        fields = dict.fromkeys(itertools.chain.from_iterable(values))
        if all(isinstance(field, str) for field in fields):
            return pa.struct([(field, _typed(name, _column(values, field), None).type) for field in fields])
    if issubclass(each, dt.datetime):
        zoned = {value.tzinfo is not None for value in values}
        if len(zoned) > 1:
            raise UnfitTypes(name, pa.timestamp("us"), pa.timestamp("us", "UTC"))
        if each is dt.datetime:
            return pa.timestamp("us", "UTC" if zoned.pop() else None)
    return None


def _as_known(name: str, found: pa.Array, values: list[Any], known: pa.DataType | None) -> pa.Array:
    """Values in the type that their column had, if they are of its kind and none of them changes; else in one that holds both."""
    if known is None or found.type == known:
        return found
    if kinds.is_nested(known):
        return _nested(found, values, known)
    wider = common(known, found.type)
    if wider is None or (
        kinds.is_integer(known) and not kinds.is_integer(found.type) and not kinds.is_null(found.type)
    ):
        return found  # whole floats do not become integers, because the next value may not be whole
    try:
        return converted(found, known, name)
    except UnfitTypes:
        return converted(found, wider, name)


def _nested(found: pa.Array, values: list[Any], known: pa.DataType) -> pa.Array:
    """Keep a nested type if no value changes. Arrow silently drops fields that a struct type lacks, so compare both."""
    try:
        kept = pa.array(values, type=known)
        return kept if _are_same(kept.to_pylist(maps_as_pydicts="strict"), values) else found
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return found


def _are_same(kept: object, given: object) -> bool:
    """Whether a nested value is what it was. A NaN is, though it does not equal itself; a 1 in place of a 1.0 is not."""
    if isinstance(given, float):
        return isinstance(kept, float) and (kept == given or (math.isnan(kept) and math.isnan(given)))
    if isinstance(given, list) and isinstance(kept, list):
        return len(kept) == len(given) and all(map(_are_same, kept, given))
    if isinstance(given, dict) and isinstance(kept, dict):
        return kept.keys() == given.keys() and all(_are_same(kept[name], value) for name, value in given.items())
    return kept == given
