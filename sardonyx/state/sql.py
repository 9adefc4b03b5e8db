"""The entries of a store as rows of a table in a database. Pure.

A row has the key, the exact value as bytes, and the same value as JSON for people and other programs. Only the bytes are read
back: JSON has no decimals, instants or bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from sardonyx.state.memory import key_list
from sardonyx.state.row_bytes import RowBytes


class EntryRow(NamedTuple):
    """One entry as a row."""

    key: bytes
    entry: str
    """Its columns without the key as a JSON object. Times are texts, bytes are in base64, and NaN is null."""
    data: bytes
    """Its columns without the key, exactly; see :class:`~sardonyx.state.row_bytes.RowBytes`."""


class EntryRows:
    """Turns tables of entries into rows, and back.

    Args:
        schema: the columns of an entry, the key first.

    Raises:
        InputError: ``SX-STATE-TYPE``, a column's type cannot be kept.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = RowBytes(schema.remove(0))

    def encode(self, entries: pa.Table) -> list[EntryRow]:
        """Entries as rows."""
        values = entries.drop_columns([self._schema.names[0]])
        columns = zip(key_list(entries.column(0)), _objects(values), self._rows.encode(values), strict=True)
        return [EntryRow(*row) for row in columns]

    def decode(self, keys: Sequence[bytes], data: Sequence[bytes]) -> pa.Table:
        """The entries of rows, from their keys and bytes."""
        return pa.table([pa.array(keys, pa.binary()), *self._rows.decode(data)], schema=self._schema)


def pack_schemas(schemas: dict[str, pa.Schema]) -> bytes:
    """The columns of stores by name, to keep beside their entries."""
    return msgspec.msgpack.encode({name: schema.serialize().to_pybytes() for name, schema in schemas.items()})


def unpack_schemas(data: bytes) -> dict[str, pa.Schema]:
    """The reverse of :func:`pack_schemas`."""
    found = msgspec.msgpack.decode(data, type=dict[str, bytes])
    return {name: pa.ipc.read_schema(pa.py_buffer(schema)) for name, schema in found.items()}


def _objects(values: pa.Table) -> list[str]:
    if not values.num_columns:
        return ["{}"] * values.num_rows
    encode = msgspec.json.Encoder(enc_hook=_other).encode
    return [encode(row).decode() for row in values.to_pylist()]


def _other(value: Any) -> Any:
    """What JSON has no word for: a number of NumPy, or an instant in nanoseconds."""
    return value.item() if hasattr(value, "item") else str(value)


__all__ = ["EntryRow", "EntryRows", "pack_schemas", "unpack_schemas"]
