"""Rows of a table as JSON objects, and columns as texts. Pure.

Values are written in these forms. Moments are ISO 8601 with six digits after the second, and ``Z`` if they have a zone.
Dates are ``2026-01-31``. Decimals are strings, so that no reader turns them into floats. Binary is base64. NaN and the
infinities, which JSON lacks, become null. A null keeps its key.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.connectors import moments
from sardonyx.core.errors import OutputError
from sardonyx.core.text import shorten

_ROWS = 50_000
"""Rows that are written at a time."""
_BYTES = 64 * 1024 * 1024
"""About the most bytes written at a time: Arrow's texts end at 2 GiB, and a text can become six times as long."""
_STRANGE = r'["\\\x00-\x1f]'
"""The characters that JSON must escape."""


def rows(table: pa.Table) -> Iterator[bytes]:
    """Yield each row as a JSON object; see :func:`row_column`."""
    for chunk in _chunks(table):
        yield from chunk.to_pylist()


def row_column(table: pa.Table) -> pa.ChunkedArray:
    """Return each row as a JSON object, in bytes, with the columns in the table's order.

    Arrow's kernels convert column by column. Only values that need care, such as a text with a quotation mark, are
    converted one by one.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE`` if JSON cannot hold a type; ``SX-OUTPUT-SCHEMA`` if two columns have one name.
    """
    return pa.chunked_array(list(_chunks(table)), pa.binary())


def _chunks(table: pa.Table) -> Iterator[pa.Array]:
    names = table.column_names
    check_names(names)
    if not names:
        yield pa.array([b"{}"] * table.num_rows, pa.binary())
        return
    before = [
        "{" * (not place) + "," * bool(place) + orjson.dumps(name).decode() + ":" for place, name in enumerate(names)
    ]
    wide = sum(map(len, before)) + table.nbytes // max(table.num_rows, 1) + 8 * len(names)
    for batch in table.to_batches(max_chunksize=max(1, min(_ROWS, _BYTES // wide))):
        columns = (_json(column, name) for name, column in zip(names, batch.columns, strict=True))
        parts = chain.from_iterable(zip(before, columns, strict=True))
        yield pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary())


def _json(column: pa.Array, name: str) -> pa.Array:
    """Return the JSON text of each value. The result has no nulls, because a null is written as text too."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json(column.dictionary_decode(), name)
    if pa.types.is_nested(kind):
        return _strings([orjson.dumps(value).decode() for value in values(column, name)])
    if pa.types.is_null(kind):
        return pa.repeat("null", len(column))
    if pa.types.is_floating(kind):
        column = _floats(column)
    elif is_text(kind):
        column = _quoted(texts(column, name))
    elif not _is_plain(kind):
        raise _no_form(name, kind)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        column = pc.cast(column, pa.string())
    else:
        column = _quoted(_escaped(pc.cast(column, pa.string())))
    return pc.fill_null(column, "null") if column.null_count else column


def _floats(column: pa.Array) -> pa.Array:
    """Write numbers with the fewest digits that give the same value again.

    A whole number gets ``.0``, so that it stays a float for its reader.
    """
    if pa.types.is_float16(column.type):  # which Arrow's kernels lack
        column = pa.array(column.to_pylist(), pa.float64())
    column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))
    written = pc.cast(column, pa.string())
    whole = pc.fill_null(pc.equal(pc.floor(column), column), False)
    if not pc.any(whole).as_py():
        return written
    bare = pc.and_(whole, pc.invert(pc.match_substring_regex(written, "[.e]")))
    return pc.if_else(bare, pc.binary_join_element_wise(written, ".0", ""), written)


def _escaped(column: pa.StringArray) -> pa.Array:
    """Escape texts for use between quotation marks."""
    column.validate(full=True)  # what is not UTF-8 must not be written as if it were
    strange = pc.match_substring_regex(column, _STRANGE)
    if not pc.any(strange).as_py():
        return column
    encoded = [orjson.dumps(value).decode()[1:-1] for value in column.filter(strange).to_pylist()]
    return pc.replace_with_mask(column, pc.fill_null(strange, False), _strings(encoded))


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")


def check_names(names: list[str]) -> None:
    """Raises OutputError ``SX-OUTPUT-SCHEMA`` if two columns have one name, so that one of them would be lost."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise OutputError(
            "SX-OUTPUT-SCHEMA",
            f"the rows have two columns named {twice[0]!r}",
            cause="a join of tables with a common column gives such rows",
            fix="rename one of them or leave it out in the task before",
            where={"column": twice[0]},
        )


def values(column: pa.Array, name: str) -> list[Any]:
    """Convert a column to Python values that orjson writes in the forms described above."""
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


def column_texts(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A whole column as strings; see :func:`texts`."""
    return pa.chunked_array([texts(chunk, name) for chunk in column.chunks], pa.string())


def texts(column: pa.Array, name: str) -> pa.Array:
    """A column as strings: what a record's key and a CSV field hold.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE``, a type that cannot be written as text.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return texts(column.dictionary_decode(), name)
    if pa.types.is_timestamp(kind):
        return _moments(column, name)
    if pa.types.is_nested(kind):
        return _strings([None if value is None else orjson.dumps(value).decode() for value in values(column, name)])
    if _is_binary(kind):
        return _strings([None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()])
    try:
        written = pc.cast(column, pa.string())
    except pa.ArrowException:
        raise _no_form(name, kind) from None
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        _check_range(written, name, kind)
    if pa.types.is_decimal(kind) and pc.any(pc.match_substring(written, "E")).as_py():
        # 1E-8 is a number to everybody, but a surprise to most
        return _strings([None if value is None else f"{value:f}" for value in column.to_pylist()])
    return written


def _moments(column: pa.Array, name: str) -> pa.Array:
    """In UTC if they have a zone. Taken for moments without one, which Arrow writes ten times as fast."""
    kind = column.type
    cut = moments.cut(column)
    try:
        plain = pc.cast(cut.view(pa.timestamp(cut.type.unit)), pa.timestamp("us"))
    except pa.ArrowInvalid as error:
        raise _far(name, kind, str(error)) from None
    written = pc.replace_substring(pc.cast(plain, pa.string()), " ", "T", max_replacements=1)
    _check_range(written, name, kind)
    return written if kind.tz is None else pc.binary_join_element_wise(written, "Z", "")


def _check_range(written: pa.Array, name: str, kind: pa.DataType) -> None:
    """Raise if Arrow has written, in place of a value, that it is out of range."""
    place = pc.index(pc.starts_with(written, "<"), value=True).as_py()
    if place >= 0:
        raise _far(name, kind, written[place].as_py())


def _far(name: str, kind: pa.DataType, told: str) -> OutputError:
    what = "date" if pa.types.is_date(kind) else "time" if pa.types.is_time(kind) else "timestamp"
    return OutputError(
        "SX-OUTPUT-TYPE",
        f"column {name!r} holds a {what} that cannot be written: as a number, {told.rpartition(' ')[2].rstrip('>')}",
        cause=f"its type is {kind}. Dates and moments end thirty thousand years away, and days have 24 hours; "
        "perhaps its unit is not the one of its type",
        fix="correct it in the task before",
        where={"column": name},
    )


def _strings(found: Sequence[str | None]) -> pa.Array:
    return pa.array(found, pa.string())


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


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
    pairs = list(_cut(list(zip(keys[shift:], items[shift:], strict=True)), lengths))
    found = _with_nulls(column, [dict(pair) for pair in pairs])
    for pair, value in zip(pairs, found, strict=True):
        if value is not None and len(value) < len(pair):
            raise _twice(name, pair)
    return found


def _twice(name: str, pairs: list[Any]) -> OutputError:
    keys = [key for key, _ in pairs]
    return OutputError(
        "SX-OUTPUT-TYPE",
        f"column {name!r} holds a map that has one key twice: {shorten(repr(pairs))}",
        cause=f"an object of JSON has each key once, and {next(key for key in keys if keys.count(key) > 1)!r} would be lost",
        fix="correct it in the task before, or pass the map as an array of structs",
        where={"column": name},
    )


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
        f"column {name!r} has type {kind}, which cannot be written as text",
        fix="cast it in the task before, or leave it out",
        where={"column": name},
    )
