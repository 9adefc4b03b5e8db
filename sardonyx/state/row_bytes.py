"""Entries as bytes, one value for each: for stores that are not columnar.

A value is the MessagePack of its columns, one after the other. Arrow's own form of a single row takes ten times the space and
the time. Times and decimals go as numbers and texts, so that each value comes back exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types as kinds

from sardonyx.core.errors import InputError


class RowBytes:
    """Turns columns into one value for each row, and back.

    Args:
        schema: the columns.

    Raises:
        InputError: ``SX-STATE-TYPE``, a column's type cannot be kept on disk.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._plain = [_plain(field.name, field.type) for field in schema]
        self._header = 1 if len(schema) < 16 else 3
        """Bytes with which MessagePack begins a list of so many values."""
        self._encode = msgspec.msgpack.Encoder().encode

    def encode(self, table: pa.Table) -> list[bytes]:
        """The rows as bytes."""
        if not self._plain:
            return [b""] * table.num_rows
        columns = [column.cast(plain).to_pylist() for column, plain in zip(table.columns, self._plain, strict=True)]
        header = self._header
        return [value[header:] for value in map(self._encode, zip(*columns, strict=True))]

    def decode(self, values: Sequence[bytes]) -> list[pa.Array]:
        """The columns of rows."""
        width = len(self._plain)
        flat = msgspec.msgpack.decode(b"".join([b"\xdd", (width * len(values)).to_bytes(4, "big"), *values]))
        return [
            _array(flat[number::width], plain).cast(field.type)
            for number, (field, plain) in enumerate(zip(self._schema, self._plain, strict=True))
        ]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array([_pairs(value, kind) for value in values] if _has_map(kind) else values, kind)


def _has_map(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return kinds.is_map(kind) or any(_has_map(each) for each in inner)


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """The value with tuples for the pairs of maps: MessagePack has made lists of them."""
    if value is None or not _has_map(kind):
        return value
    if kinds.is_map(kind):
        return [(_pairs(key, kind.key_type), _pairs(item, kind.item_type)) for key, item in value]
    if kinds.is_struct(kind):
        return {field.name: _pairs(value[field.name], field.type) for field in kind}
    return [_pairs(each, kind.value_type) for each in value]


def _plain(column: str, kind: pa.DataType) -> pa.DataType:
    """The type that a column is encoded as: Arrow casts it there and back without loss."""
    simple = next((plain for is_kind, plain in _SIMPLE if is_kind(kind)), None)
    if simple is not None:
        return simple
    if kinds.is_list(kind):
        return pa.list_(_plain(column, kind.value_type))
    if kinds.is_struct(kind):
        return pa.struct([(field.name, _plain(column, field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(_plain(column, kind.key_type), _plain(column, kind.item_type))
    if any(is_kind(kind) for is_kind in _AS_IT_IS):
        return kind
    raise InputError(
        "SX-STATE-TYPE",
        f"the column {column!r} of a state has a type that cannot be kept on disk",
        cause=f"it is {kind}",
        fix='make a number, a text, a time, a list or a struct of it, or keep the state with `store="memory"`',
        where={"column": column},
    )


_SIMPLE: list[tuple[Callable[[pa.DataType], bool], pa.DataType]] = [
    (kinds.is_date32, pa.int32()),
    (kinds.is_time32, pa.int32()),
    (kinds.is_date64, pa.int64()),
    (kinds.is_time64, pa.int64()),
    (kinds.is_timestamp, pa.int64()),
    (kinds.is_duration, pa.int64()),
    (kinds.is_decimal, pa.string()),
    (kinds.is_float16, pa.float32()),
]
_AS_IT_IS = (
    kinds.is_boolean,
    kinds.is_integer,
    kinds.is_floating,
    kinds.is_string,
    kinds.is_large_string,
    kinds.is_binary,
    kinds.is_large_binary,
    kinds.is_fixed_size_binary,
    kinds.is_null,
)
