"""Values of Arrow tables as they are shown to people, in errors too: also those that Python does not have. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def records(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table. A value that Python does not have, such as a date after 9999, is a text."""
    columns = [shown_values(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def shown_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, with a text in place of one that Python does not have."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError, pa.ArrowException):
        return [shown_value(column, index) for index in range(len(column))]


def shown_value(column: pa.Array | pa.ChunkedArray, index: int) -> Any:
    """A value of a column, or a text of it if Python does not have it."""
    try:
        return column[index].as_py()
    except (OverflowError, ValueError, pa.ArrowException):
        return " ".join(column.slice(index, 1).to_string().split()).strip("[] ")


__all__ = ["records", "shown_value", "shown_values"]
