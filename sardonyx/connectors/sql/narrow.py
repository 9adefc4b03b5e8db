"""Values that a column of the user's own table would change without a word, since it is narrower than they are."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.connectors.sql.database import SQLITE_DIGITS, SQLITE_WHOLE
from sardonyx.core.errors import OutputError
from sardonyx.core.text import shorten

if TYPE_CHECKING:
    import sqlalchemy as sa

_PLACES = re.compile(
    r"(?:NUMERIC\(\d+(?:, (?P<scale>\d+))?\)|TIME(?:STAMP)?\((?P<precision>\d)\)|(?P<whole>SMALLINT|INTEGER|BIGINT)$)"
)
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_WHOLE = rf"^(0|-?[1-9]\d{{0,{SQLITE_WHOLE - 1}}})$"
_WITH_POINT = r"^-?(0|[1-9]\d*)\.\d+$"


def declared_types(connection: sa.Connection, table: str, schema: str | None, *, sqlite: bool) -> dict[str, str]:
    """How each column of a table is declared, by its name; of SQLite, whose names have no case, in small letters."""
    import sqlalchemy as sa

    if sqlite:
        told = connection.exec_driver_sql("SELECT name, type FROM pragma_table_info(?, ?)", (table, schema or "main"))
        return {row.name.lower(): row.type for row in told}
    dialect = connection.dialect
    return {
        column["name"]: column["type"].compile(dialect)
        for column in sa.inspect(connection).get_columns(table, schema=schema)
        if not isinstance(column["type"], sa.types.NullType)
    }


def refuse_rounded(column: pa.ChunkedArray, written: pa.ChunkedArray, name: str, declared: str) -> None:
    """Refuse what PostgreSQL would round or cut. Doubles are rounded to the digits of a ``numeric``: they are near values anyway.

    Args:
        column: the values.
        written: the same as the database gets them.
        name: of the column.
        declared: its type.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE``.
    """
    kind, found = column.type, _PLACES.match(declared)
    if declared == "DATE" and pa.types.is_timestamp(kind):
        cut = pc.invert(pc.match_substring_regex(written, r"T00:00:00(\.0+)?Z?$"))
        refuse(written, cut, name, "the column is declared DATE, which has no time of day")
    exact = pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind)
    if found is None or not (exact or (found["whole"] and pa.types.is_floating(kind))):
        return
    places = int(found["scale"] or found["precision"] or 0)
    texts = written if exact else column.cast(pa.float64()).cast(pa.string())
    further = pc.match_substring_regex(texts, rf"\.\d{{{places}}}\d*[1-9]" + ("" if exact else "|e-"))
    refuse(texts, further, name, f"the column is declared {declared}, which would round it")


def refuse_converted(column: pa.ChunkedArray, written: pa.ChunkedArray, name: str, declared: str) -> None:
    """Refuse what SQLite would make another value of: it makes numbers of texts in columns that are not declared as texts, and
    texts of numbers in those that are. Arguments and error as of :func:`refuse_rounded`.
    """
    if not declared or "BLOB" in declared.upper():
        return
    kind, holds_texts = column.type, re.search("CHAR|CLOB|TEXT", declared, re.IGNORECASE) is not None
    if holds_texts and "INT" not in declared.upper():
        if pa.types.is_floating(kind):
            near = pa.chunked_array([[_is_longer(value) for value in column.to_pylist()]], pa.bool_())
            refuse(
                column, near, name, f"the column is declared {declared}, for which SQLite keeps {SQLITE_DIGITS} digits"
            )
    elif pa.types.is_decimal(kind):
        digits = pc.utf8_length(pc.replace_substring_regex(written, r"^-?0*\.?0*|\.", ""))
        most = pc.if_else(pc.match_substring(written, "."), SQLITE_DIGITS, SQLITE_WHOLE)
        reason = f"SQLite rounds it in a column declared {declared}; declare the column DECIMAL_TEXT(p, s)"
        refuse(written, pc.greater(digits, most), name, reason)
    elif pa.types.is_string(written.type):
        short = pc.less_equal(pc.utf8_length(written), SQLITE_DIGITS + 1)
        plain = pc.or_(
            pc.match_substring_regex(written, _WHOLE), pc.and_(pc.match_substring_regex(written, _WITH_POINT), short)
        )
        other = pc.and_(pc.match_substring_regex(written, _NUMBER), pc.invert(plain))
        refuse(
            written,
            other,
            name,
            f"SQLite makes a number of it in a column declared {declared}; declare the column TEXT",
        )


def _is_longer(value: float | None) -> bool:
    return value is not None and not math.isnan(value) and float(f"{value:.{SQLITE_DIGITS}g}") != value


def refuse(written: pa.ChunkedArray, which: pa.ChunkedArray, name: str, reason: str) -> None:
    """Raise OutputError ``SX-OUTPUT-TYPE`` for the first value that is chosen."""
    place = pc.index(which, value=True).as_py()
    if place >= 0:
        raise OutputError(
            "SX-OUTPUT-TYPE",
            f"column {name!r} holds {shorten(repr(written[place].as_py()))}, which the database cannot hold",
            cause=reason,
            fix="correct it in the task before, or make it a text",
            where={"column": name},
        )


__all__ = ["declared_types", "refuse", "refuse_converted", "refuse_rounded"]
