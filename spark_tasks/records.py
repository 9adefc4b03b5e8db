"""Converts Arrow tables to Python records and back, for functions that take one ``dict`` at a time.

Types on the way back. A column that the input had keeps its type if the new values fit without loss. So ``int32`` stays
``int32``, and a batch of whole numbers in a ``double`` column stays ``double``. Arrow infers the type of any other
column from all values of the slice. If a column contains only None, Arrow has nothing to infer a type from. The column
stays Arrow's ``null``, which combines with any other type later (``string`` would not). Columns keep the order in which
they first appear.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from sardonyx.connectors.python_values import NoValue, values
from sardonyx.core.errors import FunctionError

Record = dict[str, Any]


class UnfitColumn(ValueError):
    """The values of a column have no common Arrow type. The message names the column and the reason."""


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


def to_table(records: list[Record], like: pa.Schema) -> pa.Table:
    """Convert records to a table. If there are no records, the table has no columns.

    Args:
        records: dicts with string keys. A missing key means null.
        like: the schema of the rows that the function got.

    Raises:
        UnfitColumn: values of a column have no type in common, or a column's name is not a string.
    """
    names = list(dict.fromkeys(itertools.chain.from_iterable(records)))
    for name in names:
        if not isinstance(name, str):
            raise UnfitColumn(f"the name of a field is {name!r}, which is not a string")
    if records and not names:
        raise UnfitColumn("not one of the records has a field")
    known = {field.name: field.type for field in like}
    arrays = [_array(name, _column(records, name), known.get(name)) for name in names]
    return pa.Table.from_arrays(arrays, names=names)


def _column(records: Iterable[Record], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), records))
    except KeyError:
        return [record.get(name) for record in records]


def _array(name: str, values: list[Any], known: pa.DataType | None) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UnfitColumn(f"the values of field {name!r} have no type in common: {error}") from error
    if known is None or array.type == known:
        return array
    if kinds.is_nested(known):
        return _nested(array, values, known)
    if not _same_kind(array.type, known):
        return array
    try:
        return array.cast(known, safe=True)
    except (pa.ArrowException, ValueError):
        return array


def _same_kind(found: pa.DataType, known: pa.DataType) -> bool:
    """Whether a safe cast may give a column its old type back.

    Whole floats do not become integers, because the next value may not be whole.
    """
    if kinds.is_null(found):
        return True
    if kinds.is_integer(found):
        return bool(kinds.is_integer(known) or kinds.is_floating(known) or kinds.is_decimal(known))
    same = (kinds.is_floating, kinds.is_decimal, kinds.is_timestamp, kinds.is_date, kinds.is_time, kinds.is_duration)
    text = (
        (kinds.is_string, kinds.is_large_string),
        (kinds.is_binary, kinds.is_large_binary, kinds.is_fixed_size_binary),
    )
    return any(is_(found) and is_(known) for is_ in same) or any(
        any(is_(found) for is_ in family) and any(is_(known) for is_ in family) for family in text
    )


def _nested(array: pa.Array, values: list[Any], known: pa.DataType) -> pa.Array:
    """Keep a nested type if no value changes. Arrow silently drops fields that a struct type lacks, so compare both."""
    try:
        kept = pa.array(values, type=known)
        return kept if kept.to_pylist(maps_as_pydicts="strict") == values else array
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return array
