"""A peer gets a shard whose state is in a database: what it goes on from, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pyarrow as pa
import pytest

from peer.database_keeper import DatabaseKeeper
from peer.operators import Stores
from queues.messages import Outgoing
from sardonyx.connectors.sql import database
from sardonyx.connectors.sql.state import StateDatabase
from sardonyx.core.errors import InputError, InternalError, SetupError
from sardonyx.core.positions import Partition, Position
from sardonyx.core.stores import SqlStore
from sardonyx.state.base import GONE, KEY
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark

PLACE = Partition("d.j.read.count", 0)
SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("n", pa.int64())])


def keeper(folder: Path, confirmed: list[Mapping[Partition, Position | None]] | None = None) -> DatabaseKeeper:
    kept = StateDatabase(SqlStore(url=f"sqlite:///{folder}/state.db"), "d", "j", "count")
    asked = [] if confirmed is None else confirmed
    return DatabaseKeeper(kept, PLACE.topic, asked.append)


def stores(schema: pa.Schema = SCHEMA, name: str = "counts") -> Stores:
    made = Stores(lambda _name, schema: MemoryStore(schema))
    made.open(name, schema)
    return made


def committed(folder: Path) -> Position:
    """One commit of the shard, which owes a message. Returns its position."""
    one = keeper(folder)
    kept = stores()
    shard = one.restored(0, None, kept, ())
    row = [[b"a"], [1], [False]]
    schema = SCHEMA.append(pa.field(GONE, pa.bool_(), nullable=False))
    changes = pa.table([pa.array(c, kind) for c, kind in zip(row, schema.types, strict=True)], schema=schema)
    assert shard.messages({"counts": changes}, kept.all) == []
    positions = one.numbered({PLACE: Position(5)})
    one.begin({PLACE: None}, positions, [Outgoing("results", b"r")])
    one.commit()
    shard.committed()
    return positions[PLACE]


def test_a_peer_goes_on_from_the_last_commit(tmp_path: Path) -> None:
    """With what Kafka lacks, as long as Kafka lacks it; the state is that of the commit."""
    position = committed(tmp_path)
    assert position == Position(5, state=(1, 0, 0))
    next_one = keeper(tmp_path)
    assert not next_one.reached
    found = next_one.recover({PLACE: None})
    assert next_one.reached
    assert found[PLACE].position == position
    assert found[PLACE].outbox == [Outgoing("results", b"r")]
    assert next_one.recover({PLACE: position}) == {}
    kept = stores()
    next_one.restored(0, Mark(1), kept, ())
    assert kept.all["counts"].scan().to_pylist() == [{KEY: b"a", "n": 1}]


@pytest.mark.parametrize(
    ("told", "keeps", "code"),
    [
        (Position(9, state=(2, 0, 0)), True, "SX-STATE-DATABASE-LOST"),
        (Position(5, state=(1, 0, 0)), False, "SX-STATE-DATABASE-LOST"),
        (None, True, "SX-STATE-POSITIONS-LOST"),
    ],
)
def test_lost_commits_are_told(tmp_path: Path, told: Position | None, keeps: bool, code: str) -> None:
    """After Kafka was asked once more. No state is taken to be empty instead."""
    committed(tmp_path)
    with closing(connect(tmp_path / "state.db")) as database, database:
        database.execute("update sardonyx_shards set number = 2" if told is None else "select 1")
        if not keeps:
            database.execute("delete from sardonyx_shards")
    asked: list[Mapping[Partition, Position | None]] = []
    with pytest.raises(InputError) as caught:
        keeper(tmp_path, asked).recover({PLACE: told})
    assert caught.value.code == code
    assert asked == [{PLACE: told}]


@pytest.mark.parametrize(
    ("schema", "name"),
    [(SCHEMA.set(1, pa.field("n", pa.string())), "counts"), (SCHEMA, "sums")],
)
def test_state_of_another_shape_is_told(tmp_path: Path, schema: pa.Schema, name: str) -> None:
    """A task whose columns or stores have changed does not read it."""
    committed(tmp_path)
    with pytest.raises(InputError) as caught:
        keeper(tmp_path).restored(0, Mark(1), stores(schema, name), ())
    assert caught.value.code == "SX-STATE-SHAPE"


def test_what_is_owed_goes_with_one_link(tmp_path: Path) -> None:
    """A shard of two links has a position in each, and its messages are written once."""
    one, right = keeper(tmp_path), Partition("right", 0)
    one.restored(0, None, stores(), ())
    positions = one.numbered({PLACE: Position(1), right: Position(2)})
    one.begin({}, positions, [Outgoing("results", b"r")])
    one.commit()
    found = keeper(tmp_path).recover({PLACE: None, right: None})
    assert {place: each.position for place, each in found.items()} == positions
    assert found[PLACE].outbox == [Outgoing("results", b"r")]
    assert found[right].outbox == []


def test_a_batch_of_two_shards_is_a_defect(tmp_path: Path) -> None:
    """What it owes would belong to neither."""
    one = keeper(tmp_path)
    one.restored(0, None, stores(), ())
    with pytest.raises(InternalError) as caught:
        one.numbered({PLACE: Position(1), Partition(PLACE.topic, 1): Position(1)})
    assert caught.value.code == "SX-STATE-SHARDS"


def test_a_database_that_is_locked_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one that a task waits after. Then the same commit is made as if nothing had been."""
    monkeypatch.setattr(database, "_PATIENCE", 0.1)
    told = committed(tmp_path)
    one = keeper(tmp_path)
    one.restored(0, Mark(1), stores(), ())
    positions = one.numbered({PLACE: Position(9)})
    with closing(connect(tmp_path / "state.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(SetupError) as caught:
            one.begin({}, positions, [])
        other.execute("rollback")
    assert caught.value.code == "SX-DATABASE-REFUSED"
    one.begin({}, positions, [])
    one.commit()
    assert keeper(tmp_path).recover({PLACE: told})[PLACE].position == positions[PLACE]
