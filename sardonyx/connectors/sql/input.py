"""A table or a query of a database as input, cut into pieces by ranges of a column's values.

Each range holds about the same number of rows. The database ranks the rows by the column, and says where each piece
begins. The first piece has no lower bound, the last has no upper bound, and rows without a key are a piece of their
own. The pieces therefore cover every row exactly once, whatever the type of the column and however the database sorts.

A statement that names the range reads a piece. It gives the same rows again only as long as they do not change, because
a database does not keep a past state beyond a transaction. When the job begins, the rows of each piece are counted, in
the same snapshot in which the ranges are chosen. If a piece has another number of rows when it is read, the job fails.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sardonyx.connectors import json_rows, values
from sardonyx.connectors.base import Split
from sardonyx.connectors.schema import arrow_schema
from sardonyx.connectors.sql import database
from sardonyx.connectors.sql.database import Address, explained
from sardonyx.core.errors import InputError
from sardonyx.core.text import shorten

if TYPE_CHECKING:
    import sqlalchemy as sa

SPLIT_ROWS = 50_000
"""Rows of a piece, unless the job gives the number of pieces. This is one micro-batch."""
_MOST_SPLITS = 10_000


class SqlInput:
    """A table or query of a database. It is sent to Spark workers, so it holds plain data only.

    Args:
        options: as in the spec: url, table or query, schema, split_by, splits, user, password_env.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._address = Address.of(options)
        self._table: str | None = options.get("table")
        self._query: str | None = options.get("query")
        self._ddl: str | None = options.get("schema")
        self._split_by: str | None = options.get("split_by")
        self._splits: int | None = options.get("splits")

    def splits(self) -> Iterator[Split]:
        """List everything there is to read, in pieces by rising keys. Rows without a key come last.

        All pieces come from one snapshot.

        Raises:
            InputError: ``SX-INPUT-DATABASE`` if the database refuses; ``SX-INPUT-SCHEMA`` if a column has an unknown
                type; ``SX-INPUT-SPLIT`` if the rows cannot be cut by the column.
            SetupError: ``SX-DATABASE-UNREACHABLE``, ``SX-DATABASE-REFUSED``.
        """
        what = "tell what there is to read"
        with explained(self._address, InputError, "SX-INPUT-DATABASE", what), self._snapshot() as connection:
            ddl = self._ddl or self._schema(connection)
            found = list(self._pieces(connection))
        for low, high, nulls, rows in found:
            if rows:
                yield Split({"ddl": ddl, "low": low, "high": high, "nulls": nulls, "rows": rows}, rows)

    def read(self, data: dict[str, Any]) -> pa.Table:
        """Read the rows of one piece, by rising keys. Rows with equal keys come in no fixed order.

        Raises:
            InputError: ``SX-INPUT-CHANGED`` if it has more or fewer rows than when the job began; ``SX-INPUT-TYPE`` if
                a value is not of its column's type.
        """
        schema = arrow_schema(data["ddl"])
        with explained(self._address, InputError, "SX-INPUT-DATABASE", "give the rows"), self._snapshot() as connection:
            rows = self._rows(connection, schema, data)
        if len(rows) != data["rows"]:
            raise InputError(
                "SX-INPUT-CHANGED",
                f"{self._shown} was changed while the job was reading it",
                cause=f"a split of it had {data['rows']} rows when the job began and has {len(rows)} now",
                fix="run the job again on a table that does not change meanwhile, such as a copy",
                where={"database": self._address.url},
            )
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        return pa.table([self._array(column, field) for column, field in zip(columns, schema, strict=True)], schema)

    def _rows(self, connection: sa.Connection, schema: pa.Schema, data: dict[str, Any]) -> Sequence[Any]:
        import sqlalchemy as sa

        try:
            return connection.execute(self._select(schema, data)).all()
        except sa.exc.DBAPIError as error:
            if not database.is_about_a_value(error):
                raise
            for field in schema:
                try:
                    connection.execute(self._select(pa.schema([field]), data)).all()
                except sa.exc.DBAPIError as of_column:
                    told = f"cannot be read: {str(of_column.orig).strip().splitlines()[0]}"
                    raise self._misfit(field, told) from of_column
            raise

    # --- Cutting ------------------------------------------------------------------------------------------------------

    def _pieces(self, connection: sa.Connection) -> Iterator[tuple[Any, Any, bool, int]]:
        """Yield the pieces: lower bound (inclusive), upper bound (exclusive), a flag, and the number of rows.

        The flag is True for the piece of the rows without a key.
        """
        import sqlalchemy as sa

        rows = self._count(connection, sa.true())
        if self._split_by is None or not rows:
            yield None, None, False, rows
            return
        key: sa.ColumnElement[Any] = sa.column(self._split_by)
        wanted = self._splits or min(-(-rows // SPLIT_ROWS), _MOST_SPLITS)
        ranked = (
            sa.select(key.label("key"), sa.func.ntile(wanted).over(order_by=key).label("piece"))
            .select_from(self._source())
            .where(key.is_not(None))
            .subquery()
        )
        least = sa.select(sa.func.min(ranked.c.key)).group_by(ranked.c.piece).order_by(ranked.c.piece)
        begins = list(dict.fromkeys(connection.execute(least).scalars()))  # equal keys stay in one piece
        bounds = [None, *map(self._bound, begins[1:]), None]
        for low, high in itertools.pairwise(bounds):
            yield low, high, False, self._count(connection, self._within(low, high))
        nulls = self._count(connection, key.is_(None))
        yield None, None, True, nulls

    def _count(self, connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
        import sqlalchemy as sa

        counted = sa.select(sa.func.count()).select_from(self._source()).where(condition)
        return int(connection.execute(counted).scalar_one())

    def _within(self, low: Any, high: Any) -> sa.ColumnElement[bool]:
        import sqlalchemy as sa

        key: sa.ColumnElement[Any] = sa.column(str(self._split_by))
        parts: list[sa.ColumnElement[bool]] = [key.is_not(None)]
        parts += [] if low is None else [key >= _literal(low)]
        parts += [] if high is None else [key < _literal(high)]
        return sa.and_(*parts)

    def _bound(self, key: object) -> list[str]:
        """Return a key as plain data: the name of its kind, and its text."""
        for name, kind in _KEYS.items():
            if type(key) is kind:
                return [name, _WRITTEN.get(name, str)(key)]
        raise InputError(
            "SX-INPUT-SPLIT",
            f"{self._shown} cannot be split by column {self._split_by!r}",
            cause=f"its values are of type {type(key).__name__}",
            fix="name a column of numbers, texts, dates or timestamps in split_by, or leave split_by out",
        )

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _select(self, schema: pa.Schema, data: dict[str, Any]) -> sa.Select[Any]:
        import sqlalchemy as sa

        columns: list[sa.ColumnElement[Any]] = [sa.column(name) for name in schema.names]
        select = sa.select(*columns).select_from(self._source())
        if self._split_by is None:
            return select
        key: sa.ColumnElement[Any] = sa.column(self._split_by)
        if data["nulls"]:
            return select.where(key.is_(None))
        return select.where(self._within(data["low"], data["high"])).order_by(key)

    def _source(self) -> sa.FromClause:
        import sqlalchemy as sa

        if self._table is not None:
            schema, name = database.place(self._table)
            return sa.table(name, schema=schema)
        # SQLAlchemy would read a colon before a word as a parameter. In a user's query it is only a colon.
        text = re.sub(r"(?<![:\w\\]):(?=\w)", r"\\:", str(self._query).strip().rstrip(";"))
        return sa.text(text).columns().subquery("sx_query")

    def _snapshot(self) -> sa.Connection:
        """Open a connection that sees one state of the database and changes nothing."""
        connection = self._address.engine().connect()
        if self._address.is_sqlite:
            connection.exec_driver_sql("BEGIN")
            return connection
        return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    # --- Types --------------------------------------------------------------------------------------------------------

    def _schema(self, connection: sa.Connection) -> str:
        """Return all columns with the types that the database reports, by Spark's names."""
        told_by = self._sqlite_columns if self._address.is_sqlite else self._postgres_columns
        found = told_by(connection)
        for name, kind, told in found:
            if kind is None:
                raise InputError(
                    "SX-INPUT-SCHEMA",
                    f"{self._shown}: column {name!r} has a type that Sardonyx does not know ({told or 'none declared'})",
                    fix='declare the columns: schema="name type, ..."; a query can cast them',
                    where={"database": self._address.url, "column": name},
                )
        return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind, _ in found)

    def _postgres_columns(self, connection: sa.Connection) -> list[tuple[str, str | None, str]]:
        import sqlalchemy as sa

        cursor: Any = connection.execute(sa.select(sa.literal_column("*")).select_from(self._source()).limit(0)).cursor
        driver: Any = connection.connection.driver_connection
        types = driver.adapters.types
        found = []
        for column in cursor.description or ():
            info = types.get(column.type_code)
            name = info.name if info else str(column.type_code)
            kind = database.of_postgres(name, column.precision, column.scale)
            if info is not None and info.array_oid == column.type_code and kind is not None:
                kind, name = f"array<{kind}>", f"{name}[]"
            found.append((column.name, kind, name))
        return found

    def _sqlite_columns(self, connection: sa.Connection) -> list[tuple[str, str | None, str]]:
        if self._table is None:
            raise InputError(
                "SX-INPUT-SCHEMA",
                f"{self._shown}: SQLite does not give the types of a query's columns",
                fix='declare the columns: schema="name type, ..."',
                where={"database": self._address.url},
            )
        quoted = connection.dialect.identifier_preparer.quote(self._table)
        rows = connection.exec_driver_sql(f"PRAGMA table_info({quoted})").all()
        return [(row.name, database.of_sqlite(row.type), row.type) for row in rows]

    def _array(self, column: tuple[Any, ...], field: pa.Field) -> pa.Array:
        """Convert the values of a column to Arrow. A value of another type becomes the declared one, or is refused."""
        try:
            return _array(column, field.type)
        except _UNFIT as error:
            for value in column:
                try:
                    _array((value,), field.type)
                except _UNFIT as of_value:
                    told = f"is not of type {field.type}: {str(of_value) or type(of_value).__name__}"
                    raise self._misfit(field, told, repr(value)) from of_value
            raise self._misfit(field, f"is not of type {field.type}: {error}") from error

    def _misfit(self, field: pa.Field, told: str, value: str = "a value") -> InputError:
        return InputError(
            "SX-INPUT-TYPE",
            f"{self._shown}: column {field.name!r} holds {shorten(value)}, which {shorten(told, 300)}",
            fix="declare the type that the column has: schema=...; or cast it in a query",
            where={"database": self._address.url, "column": field.name},
        )

    @property
    def _shown(self) -> str:
        return f"table {self._table}" if self._table is not None else "the query"


_UNFIT = (values.BadValue, pa.ArrowException, ArithmeticError, TypeError, ValueError, OverflowError)
"""What is raised for a value that is not of its column's type."""


def _array(column: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([_text(value) for value in column], kind)
    present = [value for value in column if value is not None]
    if present and all(isinstance(value, str) for value in present):  # SQLite has no dates, and others cast to text
        return (
            _of_json(column, kind) if pa.types.is_nested(kind) else values.parsed(pa.array(column, pa.string()), kind)
        )
    if pa.types.is_boolean(kind) and all(value in (0, 1) for value in present):
        return pa.array([None if value is None else bool(value) for value in column], kind)
    if pa.types.is_decimal(kind):
        column = tuple(Decimal(repr(value)) if isinstance(value, float) else value for value in column)
    return values.of_python(column, kind)


def _of_json(column: tuple[str | None, ...], kind: pa.DataType) -> pa.Array:
    """Nested values, as they stand in JSON."""
    name = "value"
    records = [f'{{"{name}":{"null" if text is None else text}}}'.encode() for text in column]
    table, bad = json_rows.decode(records, pa.schema([(name, kind)]))
    if bad:
        raise ValueError(bad[0][1])
    return table[name].combine_chunks()


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        raise TypeError("the driver makes 30 days of a month; cast it to text in a query")
    return str(value)


_KEYS: dict[str, type] = {
    "int": int,
    "float": float,
    "decimal": Decimal,
    "text": str,
    "moment": datetime,
    "date": date,
    "uuid": uuid.UUID,
}
_WRITTEN: dict[str, Any] = {"float": repr, "moment": datetime.isoformat, "date": date.isoformat}
_READ: dict[str, Any] = {**_KEYS, "moment": datetime.fromisoformat, "date": date.fromisoformat}


def _literal(bound: list[str]) -> sa.ColumnElement[Any]:
    import sqlalchemy as sa

    kind, text = bound
    return sa.literal(_READ[kind](text), sa.types.NullType())
