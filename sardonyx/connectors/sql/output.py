"""A database table as output: one database transaction holds both the rows and the positions.

A batch has read each of its partitions from S to E. These steps happen in this order:

1. ``begin`` writes the rows, and replaces S by E in ``sardonyx_positions``. This is a compare-and-set: if that table
   does not hold S, another peer has committed this batch or a part of it, and nothing is written. From here on the
   database locks these rows of ``sardonyx_positions``.
2. The peer checks once more that it still owns the batch.
3. ``commit``. From here on the batch counts, whatever happens to Kafka's transaction and to this peer.
4. Kafka's transaction commits E as the position of the group. It also writes the dead letters and the sentinels that
   records have overtaken. The column ``owed`` keeps these next to E, so that they are not lost if the peer dies before.

A peer that gets a partition asks Kafka first and then this table, and begins where this table says. If Kafka gives
another position, step 4 did not follow step 3. The next commit then writes once what the column holds, and brings
Kafka's position up to date. ``docs/connectors.md`` covers every way in which two peers can work on a batch at once.

The table of positions is kept. A peer that was stopped in its first batch must find out, when it wakes up, that it is
late. The rows of a sealed task are removed a week after its seal, when a later job seals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import structlog

from sardonyx.connectors import json_text
from sardonyx.connectors.base import PositionsMoved, StoredPosition
from sardonyx.connectors.sql import database, narrow
from sardonyx.connectors.sql.database import Address, create_table, explained
from sardonyx.connectors.sql.transaction import HeldTransaction
from sardonyx.connectors.usual import usual_table
from sardonyx.core.errors import OutputError, SetupError
from sardonyx.core.positions import Partition, Position

if TYPE_CHECKING:
    import sqlalchemy as sa

POSITIONS = "sardonyx_positions"
"""This table is in the schema of the output table."""
_KEPT = timedelta(days=7)
"""How long the positions of a sealed task are kept. No peer can be stopped for longer than this and then go on."""

_log = structlog.get_logger()


class SqlOutput:
    """Writes the results of one task to a table.

    Args:
        options: as in the spec: url, table, mode, key, user, password_env.
        deployment: the deployment of the cluster.
        job: the job's id.
        task: the task's name.
    """

    def __init__(self, options: dict[str, Any], deployment: str, job: str, task: str) -> None:
        self._address = Address.of(options)
        self._schema, self._name = database.place(str(options["table"]))
        self._keys: list[str] = options["key"] if options.get("mode") == "upsert" else []
        self._task = {"deployment": deployment, "job": job, "task": task}
        self._transaction = HeldTransaction(self._address)
        self._ready = False
        self._made = False
        self._declared: dict[str, str] = {}
        """By column of the table, its type."""

    # --- Positions ----------------------------------------------------------------------------------------------------

    def positions(self, partitions: Iterable[Partition]) -> dict[Partition, StoredPosition]:
        """Return what the database holds for these partitions.

        Raises:
            SetupError: ``SX-DATABASE-UNREACHABLE``, ``SX-DATABASE-REFUSED``.
            OutputError: ``SX-OUTPUT-DATABASE`` if the database does not allow a table of positions.
        """
        import sqlalchemy as sa

        wanted = set(partitions)
        with self._explained("tell the positions"):
            self._prepare()
            with self._address.engine().connect() as connection:
                held = _positions_table(self._schema)
                rows = connection.execute(sa.select(held).filter_by(**self._task)).all()
        found = {
            Partition(row.topic, row.partition): StoredPosition(Position.read(row.offset, row.metadata), row.owed)
            for row in rows
        }
        return {partition: kept for partition, kept in found.items() if partition in wanted}

    def begin(
        self,
        table: pa.Table,
        started: Mapping[Partition, int | None],
        positions: Mapping[Partition, Position],
        outbox: bytes | None,
    ) -> None:
        """Step 1: begin a transaction, and leave it open for :meth:`commit` or :meth:`abandon`.

        Raises:
            PositionsMoved: another peer has the batch, or the database ended this transaction to resolve a deadlock.
            OutputError: ``SX-OUTPUT-DATABASE`` if the database does not accept the rows; ``SX-OUTPUT-TYPE``, a value.
            SetupError: ``SX-DATABASE-UNREACHABLE``, ``SX-DATABASE-REFUSED``.
        """

        def write(connection: sa.Connection) -> None:
            self._move(connection, started, positions, outbox)
            self._write(connection, table)

        self.abandon()
        table = usual_table(table)
        with self._explained("take the rows"):
            self._prepare()
            if table.num_rows:
                self._make_table(table.schema)
            self._transaction.begin(write)

    def commit(self) -> None:
        """Step 3: commit. If this raises, the transaction may or may not be committed; the positions show which.

        Raises:
            SetupError: ``SX-DATABASE-UNREACHABLE``, ``SX-DATABASE-REFUSED``.
        """
        with self._explained("commit"):
            self._transaction.commit()

    def abandon(self) -> None:
        """Roll back the open transaction. If :meth:`begin` is still running, it rolls back when it is done."""
        self._transaction.abandon()

    def seal(self) -> None:
        """Record that the task is finished, and remove the positions of tasks that were sealed long ago."""
        now = datetime.now(UTC)
        held = _positions_table(self._schema)
        with self._explained("seal"):
            self._prepare()
            with self._address.engine().begin() as connection:
                mark = held.update().filter_by(**self._task).where(held.c.sealed.is_(None))
                connection.execute(mark.values(sealed=now.isoformat(), owed=None))
                connection.execute(held.delete().where(held.c.sealed < (now - _KEPT).isoformat()))
        _log.info("output_sealed", database=self._address.url, table=self._name)

    def reach(self) -> None:
        """Return if the database answers. Raises ``SetupError``."""
        with self._explained("answer"), self._address.engine().connect():
            return

    def _move(
        self,
        connection: sa.Connection,
        started: Mapping[Partition, int | None],
        positions: Mapping[Partition, Position],
        outbox: bytes | None,
    ) -> None:
        """Do the compare-and-set. The fixed order lets one peer wait for another, but never both for each other."""
        import sqlalchemy as sa

        held = _positions_table(self._schema)
        for partition in sorted(positions):
            position, before = positions[partition], started[partition]
            values = {"offset": position.offset, "metadata": position.metadata(), "owed": outbox}
            outbox = None  # it belongs to the whole batch, so it is kept only once, with the first partition
            place = {**self._task, "topic": partition.topic, "partition": partition.number}
            if before is None:
                try:
                    connection.execute(held.insert().values(**place, **values))
                except sa.exc.IntegrityError as error:
                    raise PositionsMoved(f"{partition.topic}[{partition.number}] has a position already") from error
                continue
            moved = connection.execute(held.update().filter_by(**place).where(held.c.offset == before).values(values))
            if moved.rowcount != 1:
                raise PositionsMoved(f"{partition.topic}[{partition.number}] does not stand at {before} any more")

    # --- Rows ---------------------------------------------------------------------------------------------------------

    def _write(self, connection: sa.Connection, table: pa.Table) -> None:
        import sqlalchemy as sa
        from sqlalchemy.dialects import postgresql, sqlite

        if not table.num_rows:
            return
        columns = [self._fitting(table[name], name) for name in table.column_names]
        if not self._address.is_sqlite and not self._keys:
            self._copy(connection, pa.table(columns, table.column_names))
            return
        place = sa.table(self._name, *map(sa.column, table.column_names), schema=self._schema)
        statement: Any = sa.insert(place)
        if self._keys:
            insert: Any = sqlite.insert(place) if self._address.is_sqlite else postgresql.insert(place)
            rest = {name: insert.excluded[name] for name in table.column_names if name not in self._keys}
            statement = (
                insert.on_conflict_do_update(index_elements=self._keys, set_=rest)
                if rest
                else insert.on_conflict_do_nothing(index_elements=self._keys)
            )
        names = table.column_names
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(each.to_pylist() for each in columns), strict=True)]
        # Sorted by key: otherwise two peers could each wait for a row that the other has locked.
        # The sort is stable, so the last row of equal keys still wins.
        rows.sort(key=lambda row: [(row[name] is None, row[name]) for name in self._keys])
        connection.execute(statement, rows)

    def _fitting(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """A column as :meth:`_plain` has it, if the table's own column keeps its values. Raises ``SX-OUTPUT-TYPE``."""
        written = self._plain(column, name)
        is_sqlite = self._address.is_sqlite
        declared = self._declared.get(name.lower() if is_sqlite else name)
        if declared is not None:
            (narrow.refuse_converted if is_sqlite else narrow.refuse_rounded)(column, written, name, declared)
        return written

    def _plain(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """A column as numbers, booleans, texts and bytes: what every driver takes.

        Raises:
            OutputError: ``SX-OUTPUT-TYPE``, a value that the database cannot hold.
        """
        kind = column.type
        if (
            pa.types.is_nested(kind)
            or pa.types.is_temporal(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_uint64(kind)
        ):
            written = json_text.column_texts(column, name)
            if self._address.is_sqlite:
                return _as_sqlite_has_moments(written) if pa.types.is_timestamp(kind) else written
            if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
                narrow.refuse(
                    written, pc.match_substring_regex(written, "^(-|0000)"), name, "databases count years from 1"
                )
            return written
        if not self._address.is_sqlite and pa.types.is_string(kind):
            narrow.refuse(
                column, pc.match_substring(column, "\0"), name, "texts of PostgreSQL cannot hold the character NUL"
            )
        return column

    def _copy(self, connection: sa.Connection, table: pa.Table) -> None:
        """Write the rows with COPY, PostgreSQL's own way for many rows.

        All rows are converted before COPY begins. The transaction holds a lock, so it should be short.
        """
        from psycopg import sql

        place = sql.Identifier(*(part for part in (self._schema, self._name) if part is not None))
        sink = pa.BufferOutputStream()
        columns = {name: _copied(table[name]) for name in table.column_names}
        pacsv.write_csv(pa.table(columns), sink, pacsv.WriteOptions(include_header=False))
        driver: Any = connection.connection.driver_connection
        # Names as they are: SQLAlchemy's would double percent signs, which this call does not halve again.
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            place, sql.SQL(", ").join(map(sql.Identifier, table.column_names))
        )
        try:
            with driver.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(sink.getvalue().to_pybytes())
        except driver.Error as error:  # raised in the same form as the errors of other statements
            from sqlalchemy.exc import DBAPIError

            lost = bool(driver.closed)
            text = statement.as_string(None)
            raise DBAPIError.instance(text, {}, error, driver.Error, connection_invalidated=lost) from error

    def _make_table(self, schema: pa.Schema) -> None:
        """Create the output table if it is missing, with the columns of the first rows."""
        import sqlalchemy as sa

        if self._made:
            return
        json_text.check_names(schema.names)
        engine = self._address.engine()
        if not sa.inspect(engine).has_table(self._name, schema=self._schema):
            columns = [
                sa.Column(
                    field.name, database.to_sql(field.type), primary_key=field.name in self._keys, autoincrement=False
                )
                for field in schema
            ]
            create_table(engine, sa.Table(self._name, sa.MetaData(), *columns, schema=self._schema))
        with engine.connect() as connection:
            self._declared = narrow.declared_types(connection, self._name, self._schema, sqlite=self._address.is_sqlite)
        self._made = True

    def _prepare(self) -> None:
        """Create the table of positions if it is missing."""
        import sqlalchemy as sa

        if self._ready:
            return
        engine = self._address.engine()
        if not sa.inspect(engine).has_table(POSITIONS, schema=self._schema):
            create_table(engine, _positions_table(self._schema))
        self._ready = True

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            with explained(self._address, OutputError, "SX-OUTPUT-DATABASE", what):
                yield
        except SetupError as error:
            if database.lost_to_rival(error):
                raise PositionsMoved(error.message) from error
            raise


def _positions_table(schema: str | None) -> sa.Table:
    import sqlalchemy as sa

    return sa.Table(
        POSITIONS,
        sa.MetaData(),
        sa.Column("deployment", sa.String(100), primary_key=True),
        sa.Column("job", sa.String(100), primary_key=True),
        sa.Column("task", sa.String(100), primary_key=True),
        sa.Column("topic", sa.String(250), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False, key="metadata"),
        sa.Column("owed", sa.LargeBinary),
        sa.Column("sealed", sa.String(40)),
        schema=schema,
    )


def _copied(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to what COPY reads from CSV: bytes in hexadecimal."""
    if pa.types.is_binary(column.type):
        return pa.chunked_array(
            [[None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()]], pa.string()
        )
    return column


def _as_sqlite_has_moments(written: pa.ChunkedArray) -> pa.ChunkedArray:
    """With a space and a zone in digits, as Python's driver of SQLite has always written them."""
    spaced = pc.replace_substring(written, "T", " ", max_replacements=1)
    return pc.replace_substring(spaced, "Z", "+00:00")
