"""State in a database, as a client counts it: what the log of the same state would give, and no number that may be wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

import queues
from sardonyx import State
from sardonyx.client.task_state import Held, counted_in_database, state_of, task_state
from sardonyx.connectors.sql.state import ShardCommit, StateDatabase
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import Stage
from sardonyx.core.joining import RelationSpec
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.stores import SqlStore
from sardonyx.core.timing import TimeSpec
from sardonyx.runtime.settings import Settings
from sardonyx.state.base import GONE
from tests.core.test_checkpoint_shards import WINDOWS, Rows
from tests.core.test_keyed_shards import KeyedPeer, row, stage_of
from tests.core.test_shards import MINUTE, Peer

SECOND = 1_000_000
Positions = dict[Partition, Position | None]


def count(_row: dict, seen: State[int]) -> None:
    seen.value += 1


def windows(kind: str) -> Peer:
    peer = Peer(WINDOWS[kind])
    for n in range(9):
        peer.give([{"user": f"u{n % 4}", "at": 100 * MINUTE + n * 20 * SECOND, "ms": 1.0}], NEVER)
    return peer


def keyed() -> Peer:
    peer = KeyedPeer(stage_of(), count)
    peer.give([row(f"u{n}", 6_000) for n in range(5)], NEVER)
    return peer


def of(peer: Peer) -> Positions:
    """The positions of a task, of which a shard without a commit has none."""
    topic = peer.stage.ingress[0].topic
    return {place: position for place, position in peer.positions.items() if place.topic == topic}


def in_sql(stage: Stage, store: SqlStore) -> Stage:
    """The same task, with its state in a database."""
    task = stage.task
    if task.window is not None:
        return replace(stage, task=replace(task, window=replace(task.window, store=store)))
    assert task.keyed is not None
    return replace(stage, task=replace(task, keyed=replace(task.keyed, store=store)))


def total(parts: Any) -> Held:
    return Held(*map(sum, zip(*parts, strict=True)))


def write(peer: Peer, store: SqlStore, ahead: int = 0) -> Held:
    """Write the state of a task into a database, and return how much that is, by its log. ``ahead``: commits that Kafka lacks."""
    link = next(link for link in peer.stage.egress if link.kind == "state")
    database = StateDatabase(store, "d", "j-1", peer.stage.name)
    found = of(peer)

    def state() -> Any:
        return state_of(peer.stage, link, Rows(peer), lambda: found, lambda: None)

    for shard in state().shards:
        position = next(each for place, each in found.items() if place.number == shard.number)
        assert position is not None
        if position.state is None:
            continue
        entries = {name: each.scan() for name, each in shard.stores.all.items()}
        changes = {name: each.append_column(GONE, pa.repeat(False, len(each))) for name, each in entries.items()}
        schemas = {name: each.schema for name, each in shard.stores.all.items()}
        place = {Partition(link.topic, shard.number): position}
        for number in range(1, position.state[0] + ahead + 1):
            database.begin(ShardCommit(shard.number, number, place, None, changes, schemas))
            database.commit()
    return total(state().held())


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    "make",
    [*(lambda kind=kind: windows(kind) for kind in ("tumbling", "hopping", "session", "everything")), keyed],
    ids=["tumbling", "hopping", "session", "everything", "keyed"],
)
def test_it_is_what_the_log_of_the_same_state_gives(make: Callable[[], Peer], ahead: int, tmp_path: Path) -> None:
    """Windows, their rows, and keys; also if the database has a commit that Kafka has not heard of yet."""
    peer, store = make(), SqlStore(url=f"sqlite:///{tmp_path}/state.db")
    wanted = write(peer, store, ahead)
    assert any(wanted)
    stage = in_sql(peer.stage, store)
    assert total(counted_in_database(stage, "d", "j-1", lambda: of(peer), lambda: None).held()) == wanted


def test_a_handle_counts_it_for_a_job_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the positions that Kafka has, while what is shown of the state is still read from Kafka only."""
    peer, store = windows("tumbling"), SqlStore(url=f"sqlite:///{tmp_path}/state.db")
    wanted, task = write(peer, store), in_sql(peer.stage, store).task
    read = TaskSpec(name="read", type="input", connector="kafka", options={"topic": "t"}, time=TimeSpec(column="at"))
    out = TaskSpec(name="out", type="output", connector="blackhole")
    spec = JobSpec(name="j", workflow=[("read", "count"), ("count", "out")], catalog=[read, task, out])
    admin = SimpleNamespace(held_positions=lambda *_: {"count": of(peer)})
    monkeypatch.setattr(queues, "admin", admin, raising=False)
    monkeypatch.setitem(sys.modules, "queues.admin", admin)
    monkeypatch.setitem(sys.modules, "queues.state_topics", SimpleNamespace(StateTopic=None))
    settings = Settings(deployment="d", kafka={"bootstrap_servers": "none:1"})
    note = JobNote(name="j", status="running", n=1, submitted_at=0.0, links="made")
    assert total(task_state(settings, "j-1", spec, lambda: note, "count", counts=True).held()) == wanted
    with pytest.raises(SardonyxError, match="is not a log in Kafka"):
        task_state(settings, "j-1", spec, lambda: note, "count")


def test_another_database_is_not_taken_for_an_empty_state(tmp_path: Path) -> None:
    """A file of SQLite is another one on each machine: one that lacks commits, or is missing, is an error; none is made."""
    peer, other = windows("tumbling"), tmp_path / "other.db"
    write(peer, SqlStore(url=f"sqlite:///{tmp_path}/state.db"))

    def refused() -> SardonyxError:
        stage = in_sql(peer.stage, SqlStore(url=f"sqlite:///{other}"))
        with pytest.raises(SardonyxError) as raised:
            list(counted_in_database(stage, "d", "j-1", lambda: of(peer), lambda: None).held())
        return raised.value

    assert refused().code == "SX-DATABASE-UNREACHABLE"
    assert not other.exists()
    other.touch()
    assert refused().code == "SX-STATE-NONE"
    assert other.stat().st_size == 0, "no tables are made by a process that only reads"


def test_before_the_first_commit_nothing_is_held(tmp_path: Path) -> None:
    """Neither Kafka nor the database knows one."""
    file = tmp_path / "state.db"
    file.touch()
    stage = in_sql(windows("tumbling").stage, SqlStore(url=f"sqlite:///{file}"))
    places: Positions = {Partition(stage.ingress[0].topic, 0): None}
    assert list(counted_in_database(stage, "d", "j-1", lambda: places, lambda: None).held()) == []


def test_rows_that_wait_in_a_join_are_not_counted_wherever_they_are() -> None:
    """The reason is what the task keeps, and not where."""
    inputs = [TaskSpec(name=name, type="input", connector="kafka", options={"topic": name}) for name in ("a", "b")]
    for store in ("memory", SqlStore(url="sqlite:////tmp/s.db")):
        relation = RelationSpec(kind="join", store=store)
        join = TaskSpec(name="join", type="function", group_by={"a": ["k"], "b": ["k"]}, relation=relation)
        spec = JobSpec(name="j", workflow=[("a", "join"), ("b", "join")], catalog=[*inputs, join])
        with pytest.raises(SardonyxError) as raised:
            task_state(Settings(), "j-1", spec, lambda: None, "join", counts=True)
        assert (raised.value.code, raised.value.cause) == (
            "SX-STATE-NONE",
            "a join, a lookup and the like keep rows that wait for others",
        )
