"""Whole microseconds: what connectors and Spark take of moments, times of day and durations. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds


def cut_table(table: pa.Table) -> pa.Table:
    """Cut all nanoseconds of a table, those in nested values too; see :func:`cut`."""
    if not any(_is_finer(field.type) for field in table.schema):
        return table
    columns = [
        pa.chunked_array([cut(chunk) for chunk in column.chunks], _cut_type(column.type)) for column in table.columns
    ]
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def cut(column: pa.Array) -> pa.Array:
    """Convert nanoseconds to the microseconds in which they lie, also before 1970, as the digits of a text are cut.

    Arrow's own cast rounds towards 1970. Other units stay as they are, and so does a column without nanoseconds.
    """
    kind = column.type
    if not _is_finer(kind):
        return column
    to = _cut_type(kind)
    if kinds.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(column.indices, cut(column.dictionary))
    if kinds.is_struct(kind):
        children = [cut(column.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(to), mask=column.is_null())
    if kinds.is_nested(kind):  # lists and maps
        own = column.buffers()[: 1 if kinds.is_fixed_size_list(kind) else 2]
        return pa.Array.from_buffers(to, len(column), own, offset=column.offset, children=[cut(column.values)])
    numbers = column.view(pa.int64())
    found = np.floor_divide(numbers.fill_null(0).to_numpy(zero_copy_only=False), 1_000)
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(found, pa.int64(), mask=missing).view(to)


def _is_finer(kind: pa.DataType) -> bool:
    return bool(kind != _cut_type(kind))


def _cut_type(kind: pa.DataType) -> pa.DataType:
    """The type that :func:`cut` gives."""
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", kind.tz) if kind.unit == "ns" else kind
    if kinds.is_time64(kind):
        return pa.time64("us")
    if kinds.is_duration(kind):
        return pa.duration("us") if kind.unit == "ns" else kind
    if kinds.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _cut_type(kind.value_type), kind.ordered)
    return changed_inside(kind, _cut_type)


def changed_inside(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A nested type with the types inside it changed; any other type as it is."""

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type))

    if kinds.is_struct(kind):
        return pa.struct([changed(field) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(changed(kind.key_field), changed(kind.item_field))
    if kinds.is_list(kind):
        return pa.list_(changed(kind.value_field))
    if kinds.is_large_list(kind):
        return pa.large_list(changed(kind.value_field))
    if kinds.is_fixed_size_list(kind):
        return pa.list_(changed(kind.value_field), kind.list_size)
    return kind
