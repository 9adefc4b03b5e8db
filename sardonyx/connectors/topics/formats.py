"""How rows stand as single records on a user's topic: ``json`` and ``raw``."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from queues.record_columns import RecordColumns
from sardonyx.connectors import json_rows, json_text
from sardonyx.connectors.base import Decoded
from sardonyx.connectors.json_inferred import InferringReader
from sardonyx.connectors.topics.record_keys import described, key_column
from sardonyx.core.errors import Failure, OutputError, SardonyxError, failure_of
from sardonyx.core.text import shorten

VALUE, KEY = "value", "key"
"""The columns of the raw format."""


class JsonFormat:
    """An object a record. See ``docs/connectors.md`` for how each type is written.

    Args:
        schema: declared columns; None: the records that this object reads settle the types, in their order.
        key: the column whose value becomes the record's key, as text; None: records have no key.
        topic: for errors.
    """

    def __init__(self, schema: pa.Schema | None = None, key: str | None = None, topic: str = "") -> None:
        self._schema = schema
        self._key = key
        self._inferring = InferringReader(f"topic {topic}", {"topic": topic})

    def decode(self, values: Sequence[bytes | None], _keys: Sequence[bytes | None] | None = None, /) -> Decoded:
        """Rows of the records that can be read, in order. Tombstones and empty records count as unreadable."""
        if self._schema is None:
            table, unfit = self._inferring.decode(values)
            return Decoded(table, [(index, _bad(values[index], reason)) for index, reason in unfit])
        table, bad = json_rows.decode(values, self._schema)
        return Decoded(table, [(index, _undecodable(values[index], reason)) for index, reason in bad])

    def encode(self, table: pa.Table) -> RecordColumns:
        """Key and value of each row, in order.

        Raises:
            OutputError: ``SX-OUTPUT-KEY``, there is no such column; ``SX-OUTPUT-TYPE``, a type without a form in JSON.
        """
        keys = key_column(table, self._key)
        return RecordColumns(json_text.row_column(table), keys)


class RawFormat:
    """Bytes as they are: the columns ``value`` and ``key``.

    Args:
        key: the column that becomes the record's key; None: ``key``, if the table has it.
    """

    def __init__(self, key: str | None = None) -> None:
        self._key = key

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, /) -> Decoded:
        """Every record, also those without a value or a key."""
        own = pa.nulls(len(values), pa.binary()) if keys is None else pa.array(keys, pa.binary())
        return Decoded(pa.table({VALUE: pa.array(values, pa.binary()), KEY: own}), [])

    def encode(self, table: pa.Table) -> RecordColumns:
        """Key and value of each row, in order; a null value is a tombstone.

        Raises:
            OutputError: ``SX-OUTPUT-RAW``, there is no column ``value`` of bytes or text; ``SX-OUTPUT-KEY``.
        """
        if VALUE not in table.column_names or not _is_bytes(table.schema.field(VALUE).type):
            raise OutputError(
                "SX-OUTPUT-RAW",
                "the rows have no column 'value' (binary or string), which format raw writes",
                cause=f"they have {described(table.schema)}",
                fix="make such a column in the task before, or use format json",
            )
        key = self._key or (KEY if KEY in table.column_names else None)
        keys = key_column(table, key)
        return RecordColumns(table[VALUE].cast(pa.large_binary()), keys)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def _bad(value: bytes | None, reason: str | SardonyxError) -> Failure:
    return _undecodable(value, reason) if isinstance(reason, str) else failure_of(reason)


def _undecodable(value: bytes | None, reason: str) -> Failure:
    shown = "" if value is None else shorten(value[:200].decode("utf-8", "backslashreplace"), 100)
    return Failure(
        "SX-RECORD-UNDECODABLE",
        f"a record could not be read as JSON: {reason}",
        cause=f"the record begins with {shown!r}" if shown else "",
        fix='correct the program that writes it, or the schema, or leave such records out with on_error "skip" or "dead_letter"',
    )
