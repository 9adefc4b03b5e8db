"""Parquet files of one folder that can be read as one: the same columns in the same types in each.

Batches are typed one by one, and a function that makes dicts may give a batch in which a column is null throughout, is
whole numbers by chance, or is not there at all. Such files stand until the job ends; then the types of all files are
known, and those that differ are written anew.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sardonyx.connectors.usual import usual_table
from sardonyx.core.column_types import UnfitTypes, common_schema, converted
from sardonyx.core.errors import OutputError

_BEFORE = b"sardonyx.connectors.schema"
"""Key in a file's metadata: its schema as the batch had it, if the file had to be written with another one."""


def writable(table: pa.Table) -> pa.Table:
    """A batch in types that every reader of Parquet knows; a column that has no type, as it was null throughout, is string.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE``, a moment that microseconds cannot hold.
    """
    table = usual_table(table.replace_schema_metadata(None))
    kept = table.schema
    written = pa.schema([field.with_type(_typed(field.type)) for field in kept])
    if written == kept:
        return table
    return table.cast(written).replace_schema_metadata({_BEFORE: base64.b64encode(kept.serialize().to_pybytes())})


def encode(table: pa.Table, codec: str) -> memoryview:
    """A table that :func:`writable` or :func:`fitted` gave, as a file of Parquet.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE``, Parquet has no such type.
    """
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(table, sink, compression=codec)
    except (pa.ArrowException, OSError):
        for field in table.schema:
            try:
                pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
            except (pa.ArrowException, OSError) as error:
                raise OutputError(
                    "SX-OUTPUT-TYPE",
                    f"column {field.name!r} has type {field.type}, which Parquet cannot hold",
                    cause=str(error),
                    fix="cast it in the task before, or leave it out",
                    where={"column": field.name},
                ) from None
        raise
    return memoryview(sink.getvalue())


def unified(paths: Sequence[Path]) -> tuple[pa.Schema, list[Path]]:
    """The schema that can hold what is in all files, and the files that have another one.

    Raises:
        OutputError: ``SX-OUTPUT-SCHEMA``, a column has types in two files that no type can hold both of.
    """
    schema = pa.schema([])
    found = []
    for path in paths:
        written = pq.read_schema(path)
        batch = _before(written)
        try:
            schema = common_schema(schema, batch)
        except UnfitTypes as error:
            raise _incompatible(schema, batch, path, error.message) from None
        found.append((path, _shape(written)))
    schema = pa.schema([pa.field(field.name, _typed(field.type)) for field in schema])
    wanted = _shape(schema)
    return schema, [path for path, shape in found if shape != wanted]


def fitted(path: Path, schema: pa.Schema) -> pa.Table:
    """A file's rows in a wider schema: columns that it lacks are null.

    Raises:
        OutputError: ``SX-OUTPUT-SCHEMA``, a value would lose something.
    """
    table = pq.read_table(path, partitioning=None)
    before = _before(table.schema)
    untyped = {field.name for field in before if pa.types.is_null(field.type)}
    try:
        columns = [
            converted(table[field.name], field.type, field.name)
            if field.name in before.names and field.name not in untyped
            else pa.nulls(len(table), field.type)
            for field in schema
        ]
    except UnfitTypes as error:
        raise _incompatible(schema, table.schema, path, str(error)) from None
    return pa.table(columns, schema=schema)


def _before(written: pa.Schema) -> pa.Schema:
    """The schema of a batch before :func:`writable` had to change it."""
    kept = (written.metadata or {}).get(_BEFORE)
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept))) if kept else written.remove_metadata()


def _typed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_typed(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_typed(field.type)) for field in kind])
    return kind


def _shape(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _incompatible(one: pa.Schema, other: pa.Schema, path: Path, reason: str) -> OutputError:
    column = next(
        (name for name in other.names if name in one.names and one.field(name).type != other.field(name).type), ""
    )
    types = f"{one.field(column).type} in some files and {other.field(column).type} in others" if column else reason
    return OutputError(
        "SX-OUTPUT-SCHEMA",
        f"the result cannot be read as one table: column {column!r} is {types}",
        cause=f"the function returned batches with different types; one of them is {path.name}: {reason}",
        fix="give the column one type in the task before, for instance with a cast or a value of that type for every record",
        where={"path": path, "column": column},
    )
