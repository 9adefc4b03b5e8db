"""JSON objects, one a record, as rows of a table with declared columns. Unreadable records are reported by their index. Pure.

The records of a batch are joined by line feeds, and Arrow parses them in one go. This is safe. Each record begins with
``{`` and ends with ``}``. In JSON, no ``{`` may follow a ``}``, and no string may hold a line feed. Records
can therefore never merge. If as many objects come out as went in, each record was exactly one object. A batch that does
not parse is halved until each bad record is alone. The result for a record therefore never depends on its neighbours.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from sardonyx.connectors.values import narrowed, parsed
from sardonyx.core.text import shorten

_BOM = b"\xef\xbb\xbf"
_WIDE = pa.decimal256(76, 38)
"""The type that a decimal is first read as, before it is fitted to the declared type.

Arrow's JSON reader refuses 1.50 for a decimal(10,1), although nothing would be lost.
"""
_MOST_BYTES = 1 << 30
"""Arrow's JSON blocks are counted in 32 bits; larger batches are parsed in halves."""
_TWICE = re.compile(r"Column\(/(.*?)\) was specified twice")

Bad = tuple[int, str]
"""Index of a record and what is wrong with it."""


def decode(values: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, list[Bad]]:
    """Return the rows of the records that can be read, in order, and the others with the reason.

    Args:
        values: JSON objects, pretty-printed or not. None (a tombstone) and blank ones count as bad.
        schema: the declared columns. Missing fields are null, other fields are ignored, and the table has exactly these
            types. Without declared columns: :mod:`sardonyx.connectors.json_inferred`.
    """
    if (lines := joined(values)) is not None:
        with contextlib.suppress(ValueError, pa.ArrowException):
            return _Parser(schema).of_joined(lines, len(values)), []
    bad: list[Bad] = []
    records: list[bytes] = []
    places: list[int] = []
    for place, value in enumerate(values):
        try:
            records.append(one_line(value))
            places.append(place)
        except ValueError as error:
            bad.append((place, str(error)))
    table, worse = _halved(records, _Parser(schema))
    bad += [(places[index], reason) for index, reason in worse]
    return table, sorted(bad)


def joined(values: Sequence[bytes | None]) -> bytes | None:
    """Join all records by line feeds, if each is plainly one line from ``{`` to ``}``. Nearly all batches are."""
    try:
        lines = b"\n".join(values)  # type: ignore[arg-type]
    except TypeError:  # a tombstone
        return None
    seams = len(values) - 1
    plain = lines.startswith(b"{") and lines.endswith(b"}") and b"\r" not in lines
    return lines if plain and lines.count(b"\n") == lines.count(b"}\n{") == seams else None


def one_line(value: bytes | None) -> bytes:
    """The record without anything that would break it apart when records are joined by line feeds."""
    if value is None:
        raise ValueError("it has no value (a tombstone)")
    record = value.strip()
    if record.startswith(_BOM):
        record = record[len(_BOM) :].lstrip()
    if not record:
        raise ValueError("it is empty")
    if b"\n" in record or b"\r" in record:
        orjson.loads(record)  # so a line feed within a string, which JSON forbids, is not made good by what follows
        record = record.replace(b"\n", b" ").replace(b"\r", b" ")
    return record


def _halved(records: list[bytes], parser: _Parser) -> tuple[pa.Table, list[Bad]]:
    """Separate what can be parsed from what cannot, by halving: log2(n) runs for one bad record."""
    tables = [parser.schema.empty_table()]
    bad: list[Bad] = []
    open_ranges = [(0, len(records))] if records else []
    while open_ranges:
        start, end = open_ranges.pop()
        try:
            tables.append(parser.table(records[start:end]))
        except (ValueError, pa.ArrowException) as error:
            if end - start == 1:
                bad.append((start, _reason(records[start], error, parser.schema)))
            else:
                middle = (start + end) // 2
                open_ranges += [(middle, end), (start, middle)]
    return pa.concat_tables(tables), bad


class _Parser:
    """Parses records against a declared schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._wire = pa.schema([pa.field(field.name, _wire(field.type)) for field in schema])
        self._reshape = any(_has(pa.types.is_map, kind) for kind in schema.types)

    def table(self, records: list[bytes]) -> pa.Table:
        """Parse all records into a table. Raises if even one of them does not fit."""
        if self._reshape:
            records = [self._reshaped(record) for record in records]
        return self._shaped(parse(records, self._wire))

    def of_joined(self, lines: bytes, records: int) -> pa.Table:
        """Do the same as :meth:`table` for the result of :func:`joined`."""
        if self._reshape:
            return self.table(lines.split(b"\n"))
        return self._shaped(parse_joined(lines, records, self._wire))

    def _shaped(self, found: pa.Table) -> pa.Table:
        """Convert what was parsed to the declared types."""
        columns = []
        for field in self.schema:
            try:
                column = pa.chunked_array(
                    [_settled(chunk, field.type) for chunk in found[field.name].chunks], field.type
                )
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(f"column {field.name!r}: {error}") from None
            if not field.nullable and column.null_count:
                raise ValueError(f"column {field.name!r} is declared NOT NULL and has no value")
            columns.append(column)
        return pa.table(columns, schema=self.schema)

    def _reshaped(self, record: bytes) -> bytes:
        """Turn maps into lists of entries, which Arrow can parse. Numbers keep every digit that was written."""
        found = _digits_kept(record)
        if not isinstance(found, dict):
            return record  # Arrow will refuse it
        shaped = {}
        for field in self.schema:
            if field.name in found:
                try:
                    shaped[field.name] = _entries(found[field.name], field.type)
                except ValueError as error:
                    raise ValueError(f"column {field.name!r} {error}") from None
        try:
            return orjson.dumps(shaped)
        except TypeError as error:  # half of a surrogate pair, which Python's own parser lets through
            raise ValueError(str(error)) from None


def parse(records: list[bytes], schema: pa.Schema | None) -> pa.Table:
    """Records as Arrow parses them, with the guard that this module's docstring explains."""
    if not all(record[0] == 0x7B and record[-1] == 0x7D for record in records):
        raise ValueError("it is no JSON object")
    return parse_joined(b"\n".join(records), len(records), schema)


def parse_joined(lines: bytes, records: int, schema: pa.Schema | None) -> pa.Table:
    """The same of records that are joined by line feeds, each of them from ``{`` to ``}``. Without a schema, Arrow infers one.

    Raises:
        ValueError, pa.ArrowException: a record cannot be read; or they are too many bytes.
    """
    if len(lines) > _MOST_BYTES and records > 1:
        raise ValueError("too much at one go")
    lines.decode()  # Arrow lets through bytes that are not UTF-8
    table = pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
        ),
    )
    if table.num_rows != records:
        raise ValueError("it holds more than one JSON object")
    return table


# --- What JSON can say, and what it stands for ------------------------------------------------------------------------


def _wire(kind: pa.DataType) -> pa.DataType:
    """The type that a value is parsed as before it becomes what was declared: moments, dates and bytes are strings."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_decimal(kind) or pa.types.is_float32(kind):
        return _WIDE if pa.types.is_decimal(kind) else pa.float64()
    if pa.types.is_map(kind):
        entry = pa.struct([pa.field("key", pa.string()), pa.field("value", _wire(kind.item_type))])
        return pa.list_(entry)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_wire(kind.value_type)).with_nullable(True))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_wire(field.type)).with_nullable(True) for field in kind])
    return kind


def _settled(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """The reverse of :func:`_wire` on values: an array of exactly ``kind``."""
    if found.type == kind:
        return found
    if pa.types.is_string(found.type):
        return parsed(found, kind)
    if pa.types.is_nested(kind):
        return _settled_nested(found, kind)
    return narrowed(found, kind) if pa.types.is_floating(kind) else pc.cast(found, kind)


def _settled_nested(found: pa.Array, kind: pa.DataType) -> pa.Array:
    mask = pc.is_null(found)
    if pa.types.is_struct(kind):
        children = [_settled(found.field(index), field.type) for index, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        keys = parsed(found.values.field("key"), kind.key_type)
        if not pa.types.is_string(kind.key_type):
            _check_keys(keys.to_pylist(), found.offsets.to_pylist())
        items = _settled(found.values.field("value"), kind.item_type)
        offsets = (
            pc.if_else(_padded(mask), pa.scalar(None, pa.int32()), found.offsets) if found.null_count else found.offsets
        )
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)
    items = _settled(found.values, kind.value_type)
    return pa.ListArray.from_arrays(found.offsets, items, type=kind, mask=mask if found.null_count else None)


def _check_keys(keys: list[Any], offsets: list[int]) -> None:
    """Raise if a map has two texts for one key, such as ``1`` and ``01``."""
    for start, end in itertools.pairwise(offsets):
        if len(set(keys[start:end])) < end - start:
            raise ValueError("a map has one key twice")


def _padded(mask: pa.Array) -> pa.Array:
    """A mask of rows as one of offsets, of which there is one more."""
    return pa.concat_arrays([mask, pa.array([False])])


def _has(is_kind: Callable[[pa.DataType], bool], kind: pa.DataType) -> bool:
    return is_kind(kind) or any(_has(is_kind, kind.field(index).type) for index in range(kind.num_fields))


def _entries(value: Any, kind: pa.DataType) -> Any:
    """A parsed value with every map in it as a list of entries. What does not fit is left for Arrow to refuse."""
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [{"key": key, "value": _entries(item, kind.item_type)} for key, item in value.items()]
    if pa.types.is_map(kind) and isinstance(value, list):
        raise ValueError("holds an array where the schema says map")
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_entries(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: _entries(value[field.name], field.type) for field in kind if field.name in value}
    return value


def _reason(record: bytes, error: Exception, schema: pa.Schema) -> str:
    """Say what is wrong with a record, in words for people: the column and its value, if it is one value."""
    try:
        orjson.loads(record)
        wrong = str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")
    except orjson.JSONDecodeError as broken:
        wrong = f"it is not JSON: {broken}"
    try:
        found = _digits_kept(record)
    except ValueError:
        return wrong
    if not isinstance(found, dict):
        return "it is JSON, but no object"
    return next(filter(None, (_misfit(record, found, field) for field in schema)), wrong)


def _misfit(record: bytes, found: dict[str, Any], field: pa.Field) -> str:
    """What is wrong with a column of a record; empty if nothing is."""
    try:
        _Parser(pa.schema([field])).table([record])
    except (ValueError, pa.ArrowException) as error:
        if twice := _TWICE.search(str(error)):
            return f"column {twice[1]!r} is there twice"
        if found.get(field.name) is None:
            return str(error)
        try:
            shown = orjson.dumps(found[field.name]).decode()
        except TypeError:  # half of a surrogate pair
            shown = ascii(json.loads(record)[field.name])
        inner = f": {error}" if pa.types.is_nested(field.type) else ""
        return f"column {field.name!r} holds {shorten(shown)}, which is not of type {field.type}{inner}"
    return ""


def _digits_kept(record: bytes) -> Any:
    """What Python's own parser makes of a record, with numbers as they are written. Raises ``ValueError``."""
    keep = orjson.Fragment
    try:
        return json.loads(record.decode(), parse_float=keep, parse_int=keep, parse_constant=keep)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
