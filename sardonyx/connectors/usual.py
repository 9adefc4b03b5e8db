"""The types that connectors know: of those that Arrow has beside them, the nearest. Pure."""

from __future__ import annotations

import pyarrow as pa

from sardonyx.connectors.moments import changed_inside, cut_table
from sardonyx.core.errors import OutputError
from sardonyx.core.text import shorten


def usual(schema: pa.Schema) -> pa.Schema:
    """Columns in the types that Spark has: moments in microseconds of UTC, no dictionaries, no metadata."""
    return pa.schema([pa.field(field.name, _usual(field.type), field.nullable) for field in schema])


def usual_table(table: pa.Table) -> pa.Table:
    """A table in the types that :func:`usual` gives; nanoseconds are cut.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE``, a value that its column's type cannot hold: a moment that microseconds cannot.
    """
    table = cut_table(table)
    schema = usual(table.schema)
    if schema.types == table.schema.types:
        return table
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise OutputError(
                "SX-OUTPUT-TYPE",
                f"column {field.name!r} cannot be written as {field.type}: {shorten(str(error))}",
                cause="if it is a moment hundreds of thousands of years away, its unit may not be the one of its type",
                fix="correct it in the task before",
                where={"column": field.name},
            ) from None
    return pa.table(columns, schema=schema)


def _usual(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_dictionary(kind):
        return _usual(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_date64(kind):
        return pa.date32()
    return changed_inside(kind, _usual)
