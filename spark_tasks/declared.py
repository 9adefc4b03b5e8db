"""The columns that a task declares of what its function gives (``schema=``), and results that do not fit them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from sardonyx.connectors.records import Record, UnfitColumn, typed_as
from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.column_types import UnfitTypes, converted

_CLASSES: dict[pa.DataType, type] = {
    pa.string(): str,
    pa.bool_(): bool,
    pa.float64(): float,
    pa.binary(): bytes,
    pa.date32(): dt.date,
}
"""Types, and the class whose values always fit."""


def _quick(kind: pa.DataType) -> Callable[[Any], bool]:
    """Tells of the usual values that they fit a type. The others are tried out, which takes fifty times as long."""
    if kinds.is_integer(kind):
        least, most = -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
        return lambda value: type(value) is int and least <= value <= most
    if kinds.is_timestamp(kind):
        zoned = kind.tz is not None
        return lambda value: type(value) is dt.datetime and (value.tzinfo is not None) == zoned
    if kinds.is_decimal(kind):
        return lambda value: type(value) is Decimal and _has_room(value, kind.precision, kind.scale)
    exact = _CLASSES.get(kind)
    return lambda value: type(value) is exact


def _has_room(value: Decimal, digits: int, places: int) -> bool:
    _, shown, exponent = value.as_tuple()
    return isinstance(exponent, int) and -places <= exponent <= 0 and len(shown) + exponent <= digits - places


class Declared:
    """The declared columns of one function.

    Args:
        ddl: the columns, as Spark writes a schema.
        task: the task.
        fn: its function, as ``module:function``.
    """

    def __init__(self, ddl: str, task: str, fn: str) -> None:
        self.schema = arrow_schema(ddl)
        self._task, self._fn = task, fn
        self._fields = [(field.name, _quick(field.type), field.nullable) for field in self.schema]

    def check(self, records: Iterable[Record]) -> None:
        """Try out whether records fit.

        Raises:
            UnfitTypes: a value is of another type, or there is none where one is declared.
        """
        for record in records:
            for name, fits, nullable in self._fields:
                value = record.get(name)
                if (value is None and nullable) or fits(value):
                    continue
                self.column(name, [value])

    def column(self, name: str, values: list[Any]) -> pa.Array:
        """The values of a declared column in its type.

        Raises:
            UnfitTypes: as :meth:`check`.
        """
        kind = self.schema.field(name).type
        try:
            return self._filled(typed_as(name, values, kind), name)
        except UnfitTypes as error:
            raise self._wrong(error) from error
        except UnfitColumn as error:
            raise self._wrong(UnfitTypes(name, kind, pa.null(), str(error))) from error

    def table(self, table: pa.Table) -> pa.Table:
        """Rows with the declared columns in their types. Those that are missing are null; others stay as they are.

        Raises:
            UnfitTypes: a value is of another type, or there is none where one is declared.
        """
        if not table.num_columns:
            return table
        try:
            for field in self.schema:
                place = table.schema.get_field_index(field.name)
                if place < 0:
                    table = table.append_column(
                        field.name, self._filled(pa.nulls(table.num_rows, field.type), field.name)
                    )
                else:
                    column = self._filled(converted(table.column(place), field.type, field.name), field.name)
                    table = table.set_column(place, field.name, column)
        except UnfitTypes as error:
            raise self._wrong(error) from error
        return table

    def _filled(self, column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
        field = self.schema.field(name)
        if column.null_count and not field.nullable:
            raise UnfitTypes(name, field.type, pa.null(), "it is declared NOT NULL and has no value")
        return column

    def _wrong(self, error: UnfitTypes) -> UnfitTypes:
        return UnfitTypes(
            error.column,
            error.had,
            error.given,
            error.reason,
            who=f"what function {self._fn.partition(':')[2]} of task {self._task} returned",
            fix="let the function give values of the first type, which `schema=` declares, or declare another one; on_error skip "
            "or dead_letter leaves such records out",
            where={"task": self._task, "function": self._fn},
        )


@lru_cache(maxsize=256)
def declared_of(ddl: str | None, task: str, fn: str) -> Declared | None:
    """The declared columns of a function; None: there are none."""
    return None if ddl is None else Declared(ddl, task, fn)


__all__ = ["Declared", "declared_of"]
