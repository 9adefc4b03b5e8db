"""Turn the rows that a test gives into what a job's inputs would have read."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa

from queues import block
from sardonyx.connectors import frames, registry
from sardonyx.connectors.base import Split
from sardonyx.connectors.records import UnfitColumn, to_table
from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.column_types import UnfitTypes
from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import TaskSpec

Rows: TypeAlias = Sequence[Mapping[str, Any] | bytes | None] | pa.Table | pd.DataFrame
"""Dicts, a table or a data frame; of a Kafka input also single records as bytes, None for one without a value."""

_NOTHING: pa.Schema = pa.schema([])


class GivenRows:
    """Replaces a bounded input: a :class:`sardonyx.connectors.base.SplitInput` whose splits carry their rows."""

    def __init__(self, table: pa.Table, rows: int) -> None:
        self._table = table
        self._rows = rows

    def splits(self) -> Iterator[Split]:
        """The rows in order; each split holds as many as a batch takes. A row may be of any size, as in a file."""
        for piece in block.encode(self._table, max_bytes=sys.maxsize, max_rows=self._rows):
            yield Split({"block": base64.b64encode(piece.value).decode()}, piece.rows)

    def read(self, data: dict[str, Any]) -> pa.Table:
        """The rows of one split."""
        return block.decode([base64.b64decode(data["block"])])

    @classmethod
    def reader(cls) -> GivenRows:
        """Reads splits that another one made."""
        return cls(pa.table({}), 1)

    def __getstate__(self) -> dict[str, int]:
        """What travels to Spark's workers: each split is sent by itself, so they need no table."""
        return {"_rows": self._rows}


def table_of(task: TaskSpec, rows: Rows) -> pa.Table:
    """Rows of an input task as a table; with the types of its schema, if it has one.

    Raises:
        SardonyxError: ``SX-TEST-ROWS``, a column mixes types, or the rows do not fit the schema.
    """
    if isinstance(rows, pa.Table):
        table = rows
    elif isinstance(rows, pd.DataFrame):
        table = _of_frame(task.name, rows)
    else:
        dicts = [dict(row) for row in rows if isinstance(row, Mapping)]
        if len(dicts) < len(rows):
            raise _unfit(task.name, "records as bytes are for inputs that read a Kafka topic")
        try:
            table = to_table(dicts, _NOTHING)
        except (UnfitColumn, UnfitTypes) as error:
            raise _unfit(task.name, str(error)) from error
    schema = task.options.get("schema")
    return table if not isinstance(schema, str) else _fitted(task.name, table, arrow_schema(schema))


def messages_of(task: str, options: dict[str, Any], rows: Rows) -> list[tuple[bytes | None, bytes | None]]:
    """Rows of a Kafka input as records of its topic, keys and values; those given as bytes as they are.

    Raises:
        SardonyxError: ``SX-TEST-ROWS``, the topic's format cannot hold them.
    """
    form = registry.topic_format(options)

    def encoded(table: pa.Table) -> list[tuple[bytes | None, bytes | None]]:
        try:
            return list(form.encode(table))
        except SardonyxError as error:
            raise _unfit(task, str(error)) from error

    if isinstance(rows, pa.Table):
        return encoded(rows)
    if isinstance(rows, pd.DataFrame):
        return encoded(_of_frame(task, rows))
    found: list[tuple[bytes | None, bytes | None]] = []
    # A field that a record lacks stays missing, so only records with the same fields are encoded together.
    for names, group in groupby(rows, _fields):
        if names is None:
            found += [(None, row) for row in group if row is None or isinstance(row, bytes)]
            continue
        try:
            table = to_table([dict(row) for row in group if isinstance(row, Mapping)], _NOTHING)
        except (UnfitColumn, UnfitTypes) as error:
            raise _unfit(task, str(error)) from error
        found += encoded(table)
    return found


def _of_frame(task: str, rows: pd.DataFrame) -> pa.Table:
    try:
        return frames.to_table(rows, frames.by_rule(_NOTHING))
    except (UnfitColumn, UnfitTypes, pa.ArrowException) as error:
        raise _unfit(task, str(error)) from error


def _fields(row: object) -> tuple[Any, ...] | None:
    return tuple(row) if isinstance(row, Mapping) else None


def _fitted(task: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    strange = sorted(set(table.column_names) - set(schema.names))
    if strange:
        raise _unfit(task, f"its schema has no column {strange[0]!r}")
    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    try:
        return pa.Table.from_arrays(columns, names=schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise _unfit(task, f"they do not fit its schema: {error}") from error


def _unfit(task: str, cause: str) -> SardonyxError:
    return SardonyxError(
        "SX-TEST-ROWS",
        f"input {task!r} could not have read the rows that the test gives it",
        cause=cause,
        fix="give each column one type: that of the schema, if the input has one",
        where={"task": task},
    )
