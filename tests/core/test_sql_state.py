"""State in a database: what is committed is read back exactly, and only one commit follows another."""

from __future__ import annotations

import itertools
import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from sardonyx.client.state_rows import remove_state_rows
from sardonyx.connectors.base import PositionsMoved
from sardonyx.connectors.sql.state import ShardCommit, StateDatabase
from sardonyx.core.errors import OutputError, SetupError
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, TaskSpec, encode_spec
from sardonyx.core.stores import SqlStore
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.memory import MemoryStore
from sardonyx.state.sql import EntryRows
from sardonyx.testing.store_conformance import StoreSuite

PLACE = Partition("d.j.read.count", 0)
SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("n", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    return SqlStore(url=f"sqlite:///{tmp_path}/state.db")


def database(store: SqlStore, task: str = "count") -> StateDatabase:
    return StateDatabase(store, "d", "j", task)


def changes(put: dict[bytes, int], *gone: bytes) -> pa.Table:
    rows = [(key, n, False) for key, n in put.items()] + [(key, None, True) for key in gone]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    schema = SCHEMA.append(pa.field(GONE, pa.bool_(), nullable=False))
    return pa.table([pa.array(c, kind) for c, kind in zip(columns, schema.types, strict=True)], schema=schema)


def commit(number: int, put: dict[bytes, int], *gone: bytes, owed: bytes | None = None, shard: int = 0) -> ShardCommit:
    positions = {Partition(PLACE.topic, shard): Position(number * 10, state=(number, 0, 0))}
    return ShardCommit(shard, number, positions, owed, {"counts": changes(put, *gone)}, {"counts": SCHEMA})


def entries(found: StateDatabase, number: int, shard: int = 0) -> dict[bytes, int]:
    stores: dict[str, Store] = {}
    found.load(shard, number, lambda name, schema: stores.setdefault(name, MemoryStore(schema)))
    return {row[KEY]: row["n"] for store in stores.values() for row in store.scan().to_pylist()}


class Reread:
    """A store whose changes go into the database, and that is read from there after each."""

    def __init__(self, schema: pa.Schema, store: SqlStore, shard: int) -> None:
        self.schema = schema
        self._database, self._shard, self._number = database(store), shard, 0
        self._held = MemoryStore(schema)
        self.read, self.scan = self._held.read, self._held.scan

    def __len__(self) -> int:
        return len(self._held)

    def apply(self, changes: pa.Table) -> None:
        self._number += 1
        positions = {PLACE: Position(0)}
        self._database.begin(
            ShardCommit(self._shard, self._number, positions, None, {"it": changes}, {"it": self.schema})
        )
        self._database.commit()
        self._held.clear()
        self._database.load(self._shard, self._number, self._same)

    def clear(self) -> None:
        if len(self):
            keys = self.scan().column(KEY)
            rest = [pa.nulls(len(keys), kind) for kind in self.schema.types[1:]]
            self.apply(pa.table([keys, *rest, pa.repeat(True, len(keys))], names=[*self.schema.names, GONE]))

    def close(self) -> None:
        self._held.clear()

    def _same(self, name: str, schema: pa.Schema) -> Store:
        assert (name, schema) == ("it", self.schema)
        return self._held


class TestConformance(StoreSuite):
    histories = 5

    @pytest.fixture(autouse=True)
    def _database(self, store: SqlStore) -> None:
        self.store, self.shards = store, itertools.count()

    def make(self, schema: pa.Schema) -> Store:
        return Reread(schema, self.store, next(self.shards))


def test_a_commit_is_there_as_a_whole(store: SqlStore) -> None:
    """Entries, positions and what is owed, once it is committed and not before."""
    writing, reading = database(store), database(store)
    assert reading.shards([0]) == {}
    assert entries(reading, 0) == {}
    writing.begin(commit(1, {b"a": 1, b"b": 2}, owed=b"message"))
    assert reading.shards([0]) == {}
    writing.commit()
    row = reading.shards([0, 1])[0]
    assert (row.number, row.owed) == (1, b"message")
    assert row.positions == {PLACE: Position(10, state=(1, 0, 0))}
    writing.begin(commit(2, {b"b": 3, b"c": 4}, b"a"))
    writing.abandon()
    assert entries(reading, 1) == {b"a": 1, b"b": 2}
    with pytest.raises(PositionsMoved):
        writing.commit()
    writing.begin(commit(2, {b"b": 3, b"c": 4}, b"a"))
    writing.commit()
    assert entries(reading, 2) == {b"b": 3, b"c": 4}
    assert reading.shards([0])[0].owed is None


def test_one_commit_follows_another(store: SqlStore) -> None:
    """Of two peers that go on from the same commit one writes, and the other writes nothing; a first one is no exception."""
    one, other = database(store), database(store)
    for number in (1, 2):
        one.begin(commit(number, {b"a": number}))
        one.commit()
        with pytest.raises(PositionsMoved):
            other.begin(commit(number, {b"a": 99}))
    with pytest.raises(PositionsMoved):
        other.begin(commit(4, {b"a": 99}))
    assert entries(other, 2) == {b"a": 2}
    with pytest.raises(PositionsMoved):
        entries(other, 1)
    with pytest.raises(PositionsMoved):
        entries(other, 0)


def test_shards_and_tasks_do_not_see_each_other(store: SqlStore) -> None:
    """They share tables."""
    for task, shard, n in (("count", 0, 1), ("count", 1, 2), ("other", 0, 3)):
        writing = database(store, task)
        writing.begin(commit(1, {b"a": n}, shard=shard))
        writing.commit()
    assert entries(database(store), 1, 0) == {b"a": 1}
    assert entries(database(store), 1, 1) == {b"a": 2}
    assert entries(database(store, "other"), 1) == {b"a": 3}


def test_others_read_the_entries_in_sql(store: SqlStore) -> None:
    """As JSON, with texts for what JSON has no word for."""
    writing = database(store)
    writing.begin(commit(1, {b"a": 7}))
    writing.commit()
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as connection:
        found = connection.execute(
            "select entry ->> '$.n' from sardonyx_state where job = 'j' and task = 'count' and store = 'counts'"
        ).fetchall()
    assert found == [(7,)]
    schema = pa.schema([(KEY, pa.binary()), ("d", pa.decimal128(9, 2)), ("t", pa.timestamp("ns")), ("f", pa.float64())])
    row = [[b"a"], [Decimal("1.50")], [1], [float("nan")]]
    table = pa.table([pa.array(c, kind) for c, kind in zip(row, schema.types, strict=True)], schema=schema)
    (encoded,) = EntryRows(schema).encode(table)
    said = json.loads(encoded.entry)
    assert (said["d"], said["f"], said["t"][:4]) == ("1.50", None, "1970")


def test_an_ended_task_is_removed_a_week_later(store: SqlStore) -> None:
    """By the seal of a later one. Until then its state can be read, and owes nothing."""
    old = database(store, "old")
    old.begin(commit(1, {b"a": 1}, owed=b"message"))
    old.commit()
    old.seal()
    assert old.shards([0])[0].owed is None
    assert entries(old, 1) == {b"a": 1}
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("update sardonyx_shards set sealed = '2020-01-01T00:00:00+00:00' where task = 'old'")
    later = database(store)
    later.begin(commit(1, {b"a": 2}))
    later.commit()
    later.seal()
    assert old.shards([0]) == {}
    assert entries(old, 0) == {}
    assert entries(later, 1) == {b"a": 2}


@pytest.mark.parametrize("other", [("e", "j", "count"), ("d", "k", "count"), ("d", "j", "sum")])
def test_only_the_rows_of_a_purged_task_are_removed(store: SqlStore, other: tuple[str, str, str]) -> None:
    """Those of another deployment, job or task stay. Nothing is made in a database that has no such tables."""
    database(store).remove()
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as connection:
        assert connection.execute("select count(*) from sqlite_master").fetchone() == (0,)
    for each in (database(store), StateDatabase(store, *other)):
        each.begin(commit(1, {b"a": 1}))
        each.commit()
    database(store).remove()
    assert (database(store).shards([0]), entries(database(store), 0)) == ({}, {})
    assert entries(StateDatabase(store, *other), 1) == {b"a": 1}


def test_state_that_cannot_be_removed_is_told(tmp_path: Path) -> None:
    """For each task, with the reason and what to run; no file is made for it. A spec that cannot be read is named, too."""
    file = tmp_path / "state.db"
    keyed = KeyedSpec(store=SqlStore(url=f"sqlite:///{file}"))
    tasks = [TaskSpec(name=name, type="function", fn="m:f", keyed=keyed) for name in ("one", "two")]
    spec = encode_spec(JobSpec(name="j", workflow=[], catalog=[*tasks, TaskSpec(name="three", type="function")]))
    told = list(remove_state_rows(spec, "d", "j-1"))
    assert [(each.code, each.where["task"]) for each in told] == [
        ("SX-WARN-STATE-ROWS", name) for name in ("one", "two")
    ]
    assert f"there is no file {file}" in told[0].cause
    assert "where deployment = 'd' and job = 'j-1' and task = 'one'" in told[0].fix
    assert not file.exists()
    assert [each.code for each in remove_state_rows(b"{}", "d", "j-1")] == ["SX-WARN-STATE-ROWS"]


def test_a_table_of_somebody_else_is_told(store: SqlStore) -> None:
    """Nothing is written there."""
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("create table sardonyx_state (deployment text, it text)")
    with pytest.raises(OutputError) as caught:
        database(store).shards([0])
    assert caught.value.code == "SX-STATE-TABLE"
    assert "data, entry, job" in caught.value.cause


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("sqlite:////proc/none/state.db", "SX-DATABASE-UNREACHABLE"),
        ("postgresql://nobody@127.0.0.1:1/none", "SX-DATABASE-UNREACHABLE"),
    ],
)
def test_a_database_that_is_away_is_told(url: str, code: str) -> None:
    """With the code of a wait."""
    with pytest.raises(SetupError) as caught:
        database(SqlStore(url=url)).shards([0])
    assert caught.value.code == code
