"""Rows of a table as JSON objects, and columns as texts. Pure.

How values are written: moments as ISO 8601 with six digits behind the second, ``Z`` if they have a zone; dates as
``2026-01-31``; decimals as strings, so that no reader makes a float of them; binary as base64; NaN and the infinities,
which JSON lacks, as null; a null keeps its key.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.errors import OutputError


def rows(table: pa.Table) -> Iterator[bytes]:
    """Each row as a JSON object, columns in the table's order.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE``, a type that has no form in JSON; ``SX-OUTPUT-SCHEMA``, a name stands there twice.
    """
    names = table.column_names
    check_names(names)
    if not names:
        yield from (b"{}" for _ in range(table.num_rows))
        return
    for batch in table.to_batches(max_chunksize=50_000):
        columns = [values(column, name) for name, column in zip(names, batch.columns, strict=True)]
        for row in zip(*columns, strict=True):
            # Copied: what orjson gives sits in a buffer of a KiB, which makes keeping 50,000 of them ten times as slow.
            yield bytes(memoryview(orjson.dumps(dict(zip(names, row, strict=True)))))


def check_names(names: list[str]) -> None:
    """Raises OutputError ``SX-OUTPUT-SCHEMA`` if two columns have one name, so that one of them would be lost."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise OutputError(
            "SX-OUTPUT-SCHEMA",
            f"the rows have more than one column {twice[0]!r}",
            cause="joins of tables with a column in common give such rows",
            fix="rename one of them or leave it out in the task before",
            where={"column": twice[0]},
        )


def values(column: pa.Array, name: str) -> list[Any]:
    """A column as the Python values that orjson writes as described above."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return values(column.dictionary_decode(), name)
    if pa.types.is_nested(kind):
        nested = _maps if pa.types.is_map(kind) else _structs if pa.types.is_struct(kind) else _lists
        return nested(column, name)
    if is_text(kind):
        column = texts(column, name)
    elif pa.types.is_float32(kind):
        column = pc.cast(pc.cast(column, pa.string()), pa.float64())  # 0.1, not 0.10000000149
    elif not _is_plain(kind):
        raise _no_form(name, kind)
    found: list[Any] = column.to_pylist()
    return found


def is_text(kind: pa.DataType) -> bool:
    """Whether a type that is no string is written as one."""
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or _is_binary(kind))


def texts(column: pa.Array, name: str) -> pa.Array:
    """A column as strings: what a record's key and a CSV field hold.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE``, a type that has no form as text.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return texts(column.dictionary_decode(), name)
    if pa.types.is_timestamp(kind):
        return _moments(column)
    if pa.types.is_nested(kind):
        return _strings([None if value is None else orjson.dumps(value).decode() for value in values(column, name)])
    if _is_binary(kind):
        return _strings([None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()])
    try:
        written = pc.cast(column, pa.string())
    except pa.ArrowException:
        raise _no_form(name, kind) from None
    if pa.types.is_decimal(kind) and pc.any(pc.match_substring(written, "E")).as_py():
        # 1E-8 is a number to everybody, but a surprise to most
        return _strings([None if value is None else f"{value:f}" for value in column.to_pylist()])
    return written


def _moments(column: pa.Array) -> pa.Array:
    if column.type.tz not in (None, "UTC"):
        column = pc.cast(column, pa.timestamp(column.type.unit, "UTC"))
    column = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False)
    return pc.replace_substring(pc.cast(column, pa.string()), " ", "T", max_replacements=1)


def _strings(found: list[str | None]) -> pa.Array:
    return pa.array(found, pa.string())


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    )


def _structs(column: pa.StructArray, name: str) -> list[Any]:
    names = [field.name for field in column.type]
    children = [values(child, name) for child in column.flatten()]
    whole = [dict(zip(names, row, strict=True)) for row in zip(*children, strict=True)] if names else [{}] * len(column)
    return _with_nulls(column, whole)


def _lists(column: pa.Array, name: str) -> list[Any]:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
    return _with_nulls(column, list(_cut(values(column.flatten(), name), lengths)))


def _maps(column: pa.MapArray, name: str) -> list[Any]:
    if len(column) == 0:
        return []
    # A map that is null may still span entries below; they are stepped over, not shown.
    first, *ends = column.offsets.to_pylist()
    keys = texts(column.keys, name).to_pylist()
    items = values(column.items, name)
    lengths = [end - start for start, end in zip([first, *ends], ends, strict=False)]
    shift = first if len(keys) > ends[-1] - first else 0
    pairs = _cut(list(zip(keys[shift:], items[shift:], strict=True)), lengths)
    return _with_nulls(column, [dict(pair) for pair in pairs])


def _cut(flat: list[Any], lengths: list[int]) -> Iterator[list[Any]]:
    at = 0
    for length in lengths:
        yield flat[at : at + length]
        at += length


def _with_nulls(column: pa.Array, found: list[Any]) -> list[Any]:
    if not column.null_count:
        return found
    return [value if valid else None for value, valid in zip(found, column.is_valid().to_pylist(), strict=True)]


def _no_form(name: str, kind: pa.DataType) -> OutputError:
    return OutputError(
        "SX-OUTPUT-TYPE",
        f"column {name!r} has type {kind}, which has no form as text",
        fix="cast it in the task before, or leave it out",
        where={"column": name},
    )
