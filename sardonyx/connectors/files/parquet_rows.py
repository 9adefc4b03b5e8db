"""Parquet files as rows: cut by row groups, columns by name, in types that every later stage knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sardonyx.connectors.files.byte_ranges import MOST_BYTES, away
from sardonyx.connectors.files.disk import AWAY
from sardonyx.connectors.moments import cut_table
from sardonyx.connectors.usual import usual
from sardonyx.connectors.values import narrowed
from sardonyx.core.errors import InputError
from sardonyx.core.text import nearest, shorten


class Groups(NamedTuple):
    """Consecutive row groups that are read at one go: ``first`` to before ``end``."""

    first: int
    end: int
    rows: int


def opened(file: BinaryIO, path: str) -> pq.ParquetFile:
    """A Parquet file with its footer read. Raises InputError ``SX-INPUT-UNREADABLE``."""
    try:
        # Of the years 1677 to 2262 Arrow would make nanoseconds, and of others, without a word, wrong years.
        return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
    except pa.ArrowException as error:
        raise _unreadable(path, error) from error


def groups(found: pq.ParquetFile, split_size: int, schema: pa.Schema | None, path: str) -> Iterator[Groups]:
    """The row groups, as many together as stay within ``split_size`` bytes (uncompressed); at least one.

    Raises:
        InputError: ``SX-INPUT-LARGE``: one is too large to be read.
    """
    for part in _groups(found.metadata, split_size):
        _check_size(found.metadata, part.first, part.end, schema, path)
        yield part


def _groups(meta: pq.FileMetaData, split_size: int) -> Iterator[Groups]:
    first, size, rows = 0, 0, 0
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        if rows and size + group.total_byte_size > split_size:
            yield Groups(first, number, rows)
            first, size, rows = number, 0, 0
        size += group.total_byte_size
        rows += group.num_rows
    if rows:
        yield Groups(first, meta.num_row_groups, rows)


_WIDTHS = {"BOOLEAN": 1 / 8, "INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4}
"""Bytes of a value in memory, at least; of the other types 8."""


def _check_size(meta: pq.FileMetaData, first: int, end: int, schema: pa.Schema | None, path: str) -> None:
    """Raise InputError ``SX-INPUT-LARGE`` if these row groups do not fit into one batch, before any of it is in memory.

    A few bytes of a file may stand for any number of equal values, so these count as what they become.
    """
    size, rows = 0.0, 0
    for number in range(first, end):
        group = meta.row_group(number)
        rows += group.num_rows
        for at in range(group.num_columns):
            column = group.column(at)
            if schema is None or any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in schema.names):
                size += max(column.total_uncompressed_size, column.num_values * _WIDTHS.get(column.physical_type, 8))
    if size > MOST_BYTES:
        one = end - first == 1
        raise InputError(
            "SX-INPUT-LARGE",
            f"{path}: row group {first}{'' if one else f' to {end - 1}'} of {rows:,} rows would take {size / (1 << 30):.1f} GiB "
            f"in memory, and at most {MOST_BYTES >> 30} GiB are read at once",
            cause="less than a row group of a Parquet file cannot be read",
            fix="write the file with smaller row groups (row_group_size= of pyarrow and pandas, parquet.block.size of Spark), or "
            "name only the columns that the job needs in schema="
            if one
            else "give the input a smaller split_size=",
            where={"path": path},
        )


def check(found: pq.ParquetFile, schema: pa.Schema, path: str) -> None:
    """Raises InputError ``SX-INPUT-SCHEMA`` if the file lacks a column that the schema names."""
    names = found.schema_arrow.names
    for name in schema.names:
        if names.count(name) == 1:
            continue
        similar = nearest(name, names, cutoff=0.5)
        hint = f"did you mean {similar!r}? " if similar else ""
        raise InputError(
            "SX-INPUT-SCHEMA",
            f"{path}: the schema names column {name!r}, which the file "
            + ("has more than once" if name in names else "does not have"),
            cause=shorten(f"it has {', '.join(names)}", 500),
            fix=f"{hint}name columns as the file does; a schema may leave columns out",
            where={"path": path},
        )


def read(file: BinaryIO, path: str, first: int, end: int, schema: pa.Schema | None) -> pa.Table:
    """Rows of row groups ``first`` to before ``end``: the schema's columns in its types, or all of them.

    Raises:
        InputError: ``SX-INPUT-SCHEMA``, a value that its declared type cannot hold; ``SX-INPUT-AWAY``,
            ``SX-INPUT-UNREADABLE``, ``SX-INPUT-LARGE``.
    """
    found = opened(file, path)
    if schema is not None:
        check(found, schema, path)
    _check_size(found.metadata, first, end, schema, path)
    try:
        read_columns = schema and schema.names
        table = cut_table(found.read_row_groups(list(range(first, end)), columns=read_columns, use_threads=False))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno in AWAY:
            raise away(path, error) from error
        raise _unreadable(path, error) from error
    wanted = usual(table.schema) if schema is None else schema
    columns = []
    for field in wanted:
        column = table[field.name]
        try:
            is_float = pa.types.is_floating(column.type) and pa.types.is_floating(field.type)
            column = narrowed(column, field.type) if is_float else column.cast(field.type)
            wrong = "is declared NOT NULL and lacks a value" if column.null_count and not field.nullable else ""
        except (pa.ArrowException, ValueError) as error:
            wrong = f"has type {column.type}, which cannot be read as {field.type}: {error}"
        if wrong:
            raise InputError(
                "SX-INPUT-SCHEMA",
                f"{path}: column {field.name!r} {shorten(wrong, 300)}",
                fix="declare a type that can hold every value of the column",
                where={"path": path, "column": field.name},
            )
        columns.append(column)
    return pa.table(columns, schema=wanted)


def _unreadable(path: str, error: Exception) -> InputError:
    return InputError(
        "SX-INPUT-UNREADABLE",
        f"{path} cannot be read as Parquet: {shorten(str(error), 300)}",
        fix="check that it is a whole Parquet file",
        where={"path": path},
    )
