"""Keyed state in a database: two tables, written in one transaction for each commit of a shard.

``sardonyx_shards`` has a row for each shard: the number of its last commit, its positions, and what that commit still owed to
Kafka. ``sardonyx_state`` has a row for each entry, for everyone to read. A commit writes only if the last one is the one that it
follows: otherwise another peer was there first. docs/design/sql_state.md has the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import structlog

from sardonyx.connectors.base import PositionsMoved
from sardonyx.connectors.sql import database
from sardonyx.connectors.sql.database import Address, create_table, explained
from sardonyx.connectors.sql.transaction import HeldTransaction
from sardonyx.core.errors import OutputError, SetupError
from sardonyx.core.positions import Partition, Position
from sardonyx.core.stores import SqlStore
from sardonyx.state.base import GONE, Store
from sardonyx.state.memory import divided
from sardonyx.state.sql import EntryRows, pack_schemas, unpack_schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

SHARDS, ENTRIES = "sardonyx_shards", "sardonyx_state"
_KEPT = timedelta(days=7)
"""How long the rows of a sealed task are kept: others may read its last state, and no peer can be stopped for longer than this
and then go on."""
_AT_ONCE = 10_000
"""Rows that are read at once."""

_log = structlog.get_logger()


class ShardRow(NamedTuple):
    """What the database holds of a shard beside its entries."""

    number: int
    """The number of its last commit."""
    positions: dict[Partition, Position]
    owed: bytes | None
    """What that commit owed to Kafka; None: nothing."""


class ShardCommit(NamedTuple):
    """A commit of one shard."""

    shard: int
    number: int
    """The number of this commit. The one before it, or none if this is 1, must be the last one in the database."""
    positions: Mapping[Partition, Position]
    """The positions of all the shard's partitions."""
    owed: bytes | None
    changes: Mapping[str, pa.Table]
    """By store, as :meth:`sardonyx.state.base.Store.apply` takes them."""
    schemas: Mapping[str, pa.Schema]
    """The schemas of all the shard's stores, each with the key first."""


class StateDatabase:
    """The state of one task. One commit at a time, but not always on the same thread.

    Args:
        store: where the database is.
        deployment: the deployment of the cluster.
        job: the job's id.
        task: the task's name.
    """

    def __init__(self, store: SqlStore, deployment: str, job: str, task: str) -> None:
        self._address = Address(store.url.removeprefix("jdbc:"), store.user, store.password_env)
        self._task = {"deployment": deployment, "job": job, "task": task}
        self._transaction = HeldTransaction(self._address)
        self._ready = False

    def shards(self, shards: Iterable[int]) -> dict[int, ShardRow]:
        """What is committed for these shards; those that never were are left out.

        Raises:
            SetupError: ``SX-DATABASE-UNREACHABLE``, ``SX-DATABASE-REFUSED``, ``SX-DATABASE-DENIED`` and the like.
            OutputError: ``SX-STATE-DATABASE``, ``SX-STATE-TABLE``: the tables cannot be made or are not ours.
        """
        import sqlalchemy as sa

        wanted, held = set(shards), _shards_table()
        with self._explained("tell how far the state has come"):
            self._prepare()
            with self._address.engine().connect() as connection:
                rows = connection.execute(sa.select(held).filter_by(**self._task)).all()
        return {row.shard: _shard_row(row) for row in rows if row.shard in wanted}

    def committed(self) -> dict[int, ShardRow]:
        """What is committed for all shards of the task, for a process that only reads: it creates no tables.

        Raises:
            SetupError: as :meth:`shards`.
        """
        import sqlalchemy as sa

        held = _shards_table()
        with self._explained("tell how far the state has come"):
            engine = self._address.engine()
            self._ready = {SHARDS, ENTRIES} <= set(sa.inspect(engine).get_table_names())
            if not self._ready:
                return {}
            with engine.connect() as connection:
                rows = connection.execute(sa.select(held).filter_by(**self._task)).all()
        return {row.shard: _shard_row(row) for row in rows}

    def load(self, shard: int, number: int | None, store: Callable[[str, pa.Schema], Store]) -> None:
        """Read the entries of a shard.

        Args:
            shard: which one.
            number: of its last commit, as the positions say; None: whichever is the last one.
            store: gives the store of a name and a schema, which is empty.

        Raises:
            PositionsMoved: another commit is the last one; without a number, the columns of the entries have changed meanwhile.
            SetupError: as :meth:`shards`.
        """
        import sqlalchemy as sa

        held, entries = _shards_table(), _entries_table()
        place = {**self._task, "shard": shard}
        last = sa.select(held.c.number, held.c.schemas).filter_by(**place)
        with self._explained("read the state"):
            self._prepare()
            with self._address.engine().connect() as connection:
                row = connection.execute(last).one_or_none()
                if number is not None:
                    _expect(shard, number, row)
                if row is None:
                    return
                readers = {
                    name: (store(name, schema), EntryRows(schema))
                    for name, schema in unpack_schemas(row.schemas).items()
                }
                # One statement sees one state of the database. The number says afterwards which one it was.
                query = sa.select(entries.c.store, entries.c.key, entries.c.data).filter_by(**place)
                found = connection.execution_options(yield_per=_AT_ONCE).execute(query)
                for part in found.partitions():
                    for name, (into, rows) in readers.items():
                        own = [each for each in part if each.store == name]
                        if own:
                            table = rows.decode([bytes(each.key) for each in own], [bytes(each.data) for each in own])
                            into.apply(table.append_column(GONE, pa.repeat(False, len(own))))
                found.close()
                connection.rollback()
                after = connection.execute(last).one_or_none()
                if number is not None:
                    _expect(shard, number, after)
                elif after is None or after.schemas != row.schemas:
                    raise PositionsMoved(f"the columns of the entries of shard {shard} have changed")

    def begin(self, commit: ShardCommit) -> None:
        """Write a commit in a transaction, and leave it open for :meth:`commit` or :meth:`abandon`.

        Raises:
            PositionsMoved: another commit is the last one, or the database ended this transaction to resolve a deadlock.
            InputError: ``SX-STATE-TYPE``.
            OutputError: ``SX-STATE-DATABASE``: the database does not take the entries.
            SetupError: as :meth:`shards`.
        """
        rows = {
            name: (divided(table)[0], EntryRows(commit.schemas[name]).encode(divided(table)[1]))
            for name, table in commit.changes.items()
        }

        def write(connection: sa.Connection) -> None:
            self._move(connection, commit)
            for name, (gone, put) in sorted(rows.items()):
                self._change(connection, {**self._task, "shard": commit.shard, "store": name}, gone, put)

        with self._explained("take the state"):
            self._prepare()
            self._transaction.begin(write)

    def commit(self) -> None:
        """Commit what was begun. If this raises, it may be committed or not: :meth:`shards` tells.

        Raises:
            PositionsMoved: it was rolled back before.
            SetupError: as :meth:`shards`.
        """
        with self._explained("commit"):
            self._transaction.commit()

    def abandon(self) -> None:
        """Roll back what is open, if anything is. Any thread may call this, also while :meth:`begin` runs."""
        self._transaction.abandon()

    def seal(self) -> None:
        """The task has ended: nothing is owed any more. Remove the state of tasks that ended a week ago. Idempotent."""
        import sqlalchemy as sa

        now = datetime.now(UTC)
        held, entries = _shards_table(), _entries_table()
        with self._explained("seal"):
            self._prepare()
            with self._address.engine().begin() as connection:
                mark = held.update().filter_by(**self._task).where(held.c.sealed.is_(None))
                connection.execute(mark.values(sealed=now.isoformat(), owed=None))
                old = held.c.sealed < (now - _KEPT).isoformat()
                same = [held.c[name] == entries.c[name] for name in (*self._task, "shard")]
                connection.execute(entries.delete().where(sa.exists().where(old, *same)))
                connection.execute(held.delete().where(old))
        _log.info("state_sealed", database=self._address.url, **self._task)

    def remove(self) -> None:
        """Remove all rows of the task: its job is purged.

        Raises:
            SetupError: as :meth:`shards`.
        """
        import sqlalchemy as sa

        with self._explained("remove the state"):
            engine = self._address.engine()
            there = sa.inspect(engine).get_table_names()
            with engine.begin() as connection:
                # As commits lock them. A commit that is under way ends before its entries are looked for.
                for table in (_shards_table(), _entries_table()):
                    if table.name in there:
                        connection.execute(table.delete().filter_by(**self._task))

    def reach(self) -> None:
        """Return if the database answers. Raises ``SetupError``."""
        with self._explained("answer"), self._address.engine().connect():
            return

    # --- In a transaction ---------------------------------------------------------------------------------------------

    def _move(self, connection: sa.Connection, commit: ShardCommit) -> None:
        """The compare-and-set. It locks the row of the shard until the end of the transaction."""
        import sqlalchemy as sa

        held = _shards_table()
        place = {**self._task, "shard": commit.shard}
        values = {
            "number": commit.number,
            "positions": _written(commit.positions),
            "schemas": pack_schemas(dict(commit.schemas)),
            "owed": commit.owed,
        }
        if commit.number == 1:
            try:
                connection.execute(held.insert().values(**place, **values))
            except sa.exc.IntegrityError as error:
                raise PositionsMoved(f"shard {commit.shard} has a first commit already") from error
            return
        before = held.c.number == commit.number - 1
        moved = connection.execute(held.update().filter_by(**place).where(before).values(values))
        if moved.rowcount != 1:
            raise PositionsMoved(f"commit {commit.number - 1} is not the last one of shard {commit.shard} any more")

    def _change(
        self, connection: sa.Connection, place: dict[str, Any], gone: Sequence[bytes], put: Sequence[Any]
    ) -> None:
        import sqlalchemy as sa
        from sqlalchemy.dialects import postgresql, sqlite

        entries = _entries_table()
        if gone:
            one = entries.delete().filter_by(**place).where(entries.c.key == sa.bindparam("one"))
            connection.execute(one, [{"one": key} for key in gone])
        if put:
            insert: Any = sqlite.insert(entries) if self._address.is_sqlite else postgresql.insert(entries)
            new = {"entry": insert.excluded.entry, "data": insert.excluded.data}
            keys = [column.name for column in entries.primary_key]
            rows = [{**place, **row._asdict()} for row in put]
            connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=new), rows)

    def _prepare(self) -> None:
        """Create the tables if they are missing.

        Raises:
            OutputError: ``SX-STATE-TABLE``: there are others with these names.
        """
        import sqlalchemy as sa

        if self._ready:
            return
        engine = self._address.engine()
        for table in (_shards_table(), _entries_table()):
            create_table(engine, table)
            missing = {column.name for column in table.columns} - {
                column["name"] for column in sa.inspect(engine).get_columns(table.name)
            }
            if missing:
                raise OutputError(
                    "SX-STATE-TABLE",
                    f"the table {table.name} of the database is not one that Sardonyx keeps state in",
                    cause=f"it has no column {', '.join(sorted(missing))}",
                    fix="rename that table, or give the job another database or schema",
                    where={"database": self._address.url, "table": table.name},
                )
        self._ready = True

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            with explained(self._address, OutputError, "SX-STATE-DATABASE", what):
                yield
        except SetupError as error:
            if database.lost_to_rival(error):
                raise PositionsMoved(error.message) from error
            raise


def _expect(shard: int, number: int, row: Any) -> None:
    """Raise PositionsMoved unless this is the last commit."""
    found = 0 if row is None else row.number
    if found != number:
        raise PositionsMoved(f"the last commit of shard {shard} is {found}, not {number}")


def _written(positions: Mapping[Partition, Position]) -> str:
    rows = [(*partition, position.offset, position.metadata()) for partition, position in sorted(positions.items())]
    return msgspec.json.encode(rows).decode()


def _shard_row(row: Any) -> ShardRow:
    rows = msgspec.json.decode(row.positions, type=list[tuple[str, int, int, str]])
    positions = {Partition(topic, part): Position.read(offset, text) for topic, part, offset, text in rows}
    return ShardRow(row.number, positions, None if row.owed is None else bytes(row.owed))


def _place() -> list[sa.Column[Any]]:
    import sqlalchemy as sa

    names = [sa.Column(name, sa.String(100), primary_key=True) for name in ("deployment", "job", "task")]
    return [*names, sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False)]


def _shards_table() -> sa.Table:
    import sqlalchemy as sa

    return sa.Table(
        SHARDS,
        sa.MetaData(),
        *_place(),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("positions", sa.Text, nullable=False),
        sa.Column("schemas", sa.LargeBinary, nullable=False),
        sa.Column("owed", sa.LargeBinary),
        sa.Column("sealed", sa.String(40)),
    )


def _entries_table() -> sa.Table:
    import sqlalchemy as sa

    return sa.Table(
        ENTRIES,
        sa.MetaData(),
        *_place(),
        sa.Column("store", sa.String(100), primary_key=True),
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )


__all__ = ["ENTRIES", "SHARDS", "ShardCommit", "ShardRow", "StateDatabase"]
