"""Checkpoints of real tasks: windows, keyed functions and joins, as peers plan them and as the log of their state has them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from peer.operators import Stores
from sardonyx import ListState, MapState, State, Timer, Timers
from sardonyx.client.task_state import AtTime, TaskState, state_of
from sardonyx.core.checkpoints import complete
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import Link
from sardonyx.core.joining import RelationSpec
from sardonyx.core.positions import Partition
from sardonyx.core.timing import AggregateSpec, WindowSpec
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, about
from sardonyx.state.restore import Restore
from sardonyx.state.timers import EPOCH
from tests.core.relation_histories import Block
from tests.core.test_keyed_shards import KeyedPeer, stage_of
from tests.core.test_relation_shards import Peer as RelationPeer
from tests.core.test_shards import COUNTED, MINUTE, PARTITIONS, Peer
from tests.sizes import histories

HISTORIES = histories(1, whole=2)
MOST = HISTORIES + 10
"""Further histories are played until one has a checkpoint that all shards have: one of a hundred has none."""
SECOND = 1_000_000
SUMS = {"hits": AggregateSpec(of="count"), "sum": AggregateSpec(of="sum", column="ms")}
LAST = {"last": AggregateSpec(of="last", column="ms"), "all": AggregateSpec(of="collect", column="ms")}
WINDOWS = {
    "tumbling": COUNTED,
    "across": WindowSpec(kind="tumbling", size="90 s", aggregate=SUMS),
    "hopping": WindowSpec(kind="hopping", size="3 min", every="50 s", aggregate=LAST, grace="20 s"),
    "corrected": WindowSpec(kind="tumbling", size="40 s", aggregate=SUMS, allowed_lateness="2 min"),
    "changes": WindowSpec(kind="tumbling", size="90 s", aggregate=SUMS, emit="changes", accumulate=False),
    "often": WindowSpec(kind="tumbling", size="5 min", aggregate=SUMS, emit="every 30 s"),
    "session": WindowSpec(kind="session", gap="30 s", most="4 min", aggregate=LAST),
    "calendar": WindowSpec(kind="calendar", unit="hour", zone="Asia/Kathmandu", aggregate=SUMS),
    "everything": WindowSpec(kind="everything", aggregate=LAST, emit="changes"),
    "counted": WindowSpec(kind="counted", size=3, aggregate=LAST),
}

Given = list[tuple[list[dict], int]]
"""Batches: rows, and the clock after them."""


class OnMinutes(Peer):
    every = "1 min"


class KeyedOnMinutes(KeyedPeer):
    every = "1 min"


class RelationsByTen(RelationPeer):
    every = 10


def checkpoints(peer: Any, every: int) -> dict[int, list[Any]]:
    """The times of which all shards have a checkpoint, and their bookmarks."""
    first = peer.stage.ingress[0].topic
    known = [peer.positions[Partition(first, number)].checkpoints for number in range(PARTITIONS)]
    return {time: [each.at(time) for each in known] for time in complete(known, every)}


def entries(stores: Stores) -> dict[str, list[dict]]:
    return {name: store.scan().to_pylist() for name, store in stores.all.items() if len(store)}


def state_at(peer: Any, number: int, time: int, mark: Any) -> dict[str, list[dict]]:
    """The entries of a shard at a checkpoint, as the log has them."""
    stores = Stores(lambda _, schema: MemoryStore(schema))
    names = ("windows", "keyed", "relation")
    restore = Restore(
        Mark(mark.seq, mark.low, mark.base), {}, topic="t", partition=number, others=names, make=stores.open
    )
    messages = peer.topic.read(number, restore.start, peer.topic.end(number))
    restore.read(message for message in messages if about(message, {}).seq <= mark.seq)
    restore.finish()
    for name, undo in restore.undo.get(time, {}).items():
        stores.all[name].apply(undo)
    return entries(stores)


def check(peer: Any, every: int, until: Callable[[int], Any]) -> int:
    """Each checkpoint is the state of a peer that was given only what came before it. Returns how many there are."""
    found = checkpoints(peer, every)
    for time, marks in found.items():
        other = until(time)
        for number, mark in enumerate(marks):
            assert state_at(peer, number, time, mark) == entries(other.shards._shards[number].stores), time
        other.shards.close()
    return len(found)


def disordered(rng: random.Random, users: str = "abcdef") -> Iterator[tuple[list[tuple[str, int]], int]]:
    """Batches of users and times, with a clock after each; some rows are late."""
    ahead, clock, spread = 100 * MINUTE, NEVER, rng.choice([5, 30, 100]) * SECOND
    for _ in range(histories(10, whole=20)):
        rows = []
        for _ in range(rng.randint(0, 8)):
            ahead += rng.randint(0, 12) * SECOND
            behind = spread * (3 if rng.random() < 0.05 else 1)
            rows.append((rng.choice(users), ahead - rng.randint(0, behind)))
        if rng.random() < 0.6:
            clock = max(clock, ahead - spread - rng.randint(0, 5) * SECOND)
        yield rows, clock


def before(given: Given, time: int, of: Callable[[dict], int]) -> Given:
    """What a run is given that sees only rows before a time, and whose clock stops there."""
    found, reached = [], NEVER
    for rows, clock in given:
        found.append(([row for row in rows if of(row) < time] if reached < time else [], min(clock, time)))
        reached = max(reached, clock)
    return found


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("store", ["memory", "rocksdb"][: histories(1, whole=2)])
def test_checkpoints_of_windows(kind: str, store: str, seed: int, tmp_path: Path) -> None:
    """Of each kind, combined before the link or not, in both stores, while peers take over and plans are dropped."""
    count = 0
    for history in range(MOST):
        if count and history >= (HISTORIES if store == "memory" else 1):
            break
        rng = random.Random(f"{seed}/checkpoints/{kind}/{history}")
        window = msgspec.structs.replace(WINDOWS[kind], store=store)
        peer = OnMinutes(window, most=rng.choice([2, 1000]))
        peer.folder = tmp_path
        peer.take_over()
        given: Given = []
        for number, (batch, clock) in enumerate(disordered(rng)):
            rows = [{"user": user, "at": at, "ms": float(number)} for user, at in batch]
            if rng.random() < 0.2:
                peer.shards.plan(peer.batch(rows, clock))
                peer.shards.dropped() if rng.random() < 0.5 else peer.take_over()
            peer.give(rows, clock)
            given.append((rows, clock))

        def until(time: int, given: Given = given, link: Link = peer.link) -> Peer:
            other = Peer(WINDOWS[kind])
            other.link = link  # it combines the same rows
            for rows, clock in before(given, time, lambda row: row["at"]):
                other.give(rows, clock)
            return other

        count += check(peer, MINUTE, until)
        peer.shards.close()
    assert count


def watch(row: dict, total: State[int], seen: ListState[int], by: MapState[int, int], timers: Timers) -> dict | None:
    total.value = total.value * 31 % 1_000_007 + row["n"]
    seen.append(row["n"])
    if len(seen) > 3:
        seen.remove_first()
    by[row["n"] % 3] = row["n"]
    if row["n"] % 4 == 0:
        timers.set(row["at"] + timedelta(seconds=45), f"t{row['n'] % 2}")
    if row["n"] % 7 == 0:
        raise ValueError(row["n"])
    return {"user": row["user"], "total": total.value}


def due(timer: Timer, total: State[int], timers: Timers) -> dict:
    total.value += 1
    if timer.name == "t0":
        timers.set(timer.at + timedelta(seconds=25), "t1")
    return {"user": timer.key, "total": total.value}


@pytest.mark.parametrize("ttl", [{}, {"*": "70 s"}], ids=["kept", "ttl"])
@pytest.mark.parametrize("store", ["memory", "rocksdb"][: histories(1, whole=2)])
def test_checkpoints_of_keyed_state(store: str, ttl: dict[str, str], seed: int, tmp_path: Path) -> None:
    """Values, lists and mappings, that expire or not, timers that set timers, and rows for which the function raises."""
    count = 0
    for history in range(MOST):
        if count and history >= (HISTORIES if store == "memory" else 1):
            break
        rng = random.Random(f"{seed}/checkpoints/keyed/{ttl}/{history}")
        peer = KeyedOnMinutes(stage_of(on_timer="m:t", ttl=ttl, store=store), watch, due, most=rng.choice([2, 1000]))
        peer.folder = tmp_path
        given: Given = []
        number = 0
        for batch, clock in disordered(rng):
            rows = []
            for user, at in batch:
                number += 1
                rows.append({"user": user, "at": EPOCH + timedelta(microseconds=at), "n": number})
            peer.give(rows, clock, lost=lambda rng=rng: rng.random() < 0.1)
            given.append((rows, clock))

        def until(time: int, given: Given = given) -> KeyedPeer:
            other = KeyedPeer(stage_of(on_timer="m:t", ttl=ttl), watch, due)
            for rows, clock in before(given, time, lambda row: (row["at"] - EPOCH) // timedelta(microseconds=1)):
                other.give(rows, clock)
            return other

        count += check(peer, MINUTE, until)
        peer.shards.close()
    assert count


RELATIONS = {
    "inner": RelationSpec(kind="join", left="views", right="orders", prefix="r_", within=[-5, 10]),
    "left": RelationSpec(kind="join", left="views", right="orders", prefix="r_", within=[0, 7], how="left"),
    "lookup": RelationSpec(kind="lookup", left="views", right="orders", prefix="r_", how="left"),
    "distinct": RelationSpec(kind="distinct", within=15),
    "latest": RelationSpec(kind="latest", emit="every 10", within=40),
}


@pytest.mark.parametrize("kind", RELATIONS)
def test_checkpoints_of_joins_and_the_like(kind: str, seed: int) -> None:
    """The clocks of both sides stop at the checkpoint, however far one is ahead of the other."""
    relation, count = RELATIONS[kind], 0
    for history in range(MOST):
        if count and history >= HISTORIES:
            break
        rng = random.Random(f"{seed}/checkpoints/relation/{kind}/{history}")
        most = rng.choice([2, 1000])
        peer = RelationsByTen(relation, most=most)
        sides = [0, 1] if relation.two_sided else [0]
        ahead, clocks, given = dict.fromkeys(sides, 100), dict.fromkeys(sides, NEVER), []
        for _ in range(40):
            side = rng.choice(sides)
            ahead[side] += rng.randint(0, 8)
            rows = [
                {"k": rng.choice("abc"), "t": ahead[side] - rng.randint(0, 12), "v": rng.randint(0, 99)}
                for _ in range(rng.randint(0, 4))
            ]
            if rng.random() < 0.6:
                clocks[side] = max(clocks[side], ahead[side] - 12)
            if rng.random() < 0.2:
                peer.take_over()
            peer.give(Block(side, rows, NEVER, clocks[side]))
            given.append((side, rows, clocks[side]))

        def until(time: int, given: list = given, sides: list[int] = sides, most: int = most) -> RelationPeer:
            other = RelationPeer(
                relation, most=most
            )  # a lookup forgets old values only in batches that leave nothing to do
            reached = dict.fromkeys(sides, NEVER)
            for side, rows, clock in given:
                mine = [row for row in rows if row["t"] < time] if min(reached.values()) < time else []
                other.give(Block(side, mine, NEVER, min(clock, time)))
                reached[side] = max(reached[side], clock)
            return other

        count += check(peer, 10, until)
        peer.shards.close()
    assert count


class Rows:
    """The log of a peer's state, as the client reads it."""

    def __init__(self, peer: Peer) -> None:
        self.end, self.end_beyond, self.read = peer.topic.end, peer.topic.end_beyond, peer.topic.read


def test_the_client_reads_the_state_at_a_time() -> None:
    """Also of a time that has a checkpoint in each partition, of which most have had no row; and no other time."""
    peer = OnMinutes(WINDOWS["across"])
    for second in range(0, 600, 20):
        at = 100 * MINUTE + second * SECOND
        peer.give([{"user": "a", "at": at, "ms": 1.0}, {"user": "a", "at": at + 50 * SECOND, "ms": 100.0}], at - SECOND)
    first = peer.stage.ingress[0].topic
    link = next(link for link in peer.stage.egress if link.kind == "state")

    def positions() -> dict[Partition, Any]:
        return {place: position for place, position in peer.positions.items() if place.topic == first}

    def shown(minute: int) -> list[tuple[int, float]]:
        at = AtTime((100 * MINUTE) + minute * MINUTE, MINUTE)
        found = list(state_of(peer.stage, link, Rows(peer), positions, lambda: None, None, at).rows())
        return [(row["hits"], row["sum"]) for row in found]

    # At 6,240 s the window from 6,210 s on is open, with the rows of 6,210, 6,220 and 6,230 s.
    assert shown(4) == [(3, 201.0)]
    with pytest.raises(SardonyxError) as raised:
        shown(60)
    assert raised.value.code == "SX-CHECKPOINT-UNKNOWN"
    assert "the last ones are" in raised.value.cause


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session", "everything", "rows"])
def test_the_client_counts_open_windows_and_their_rows(kind: str) -> None:
    """Each row once, also where a window keeps its rows for a function, or where windows overlap."""
    window = WindowSpec(kind="tumbling", size="90 s") if kind == "rows" else WINDOWS[kind]
    peer = OnMinutes(window)
    rows = [{"user": user, "at": 100 * MINUTE + n * SECOND, "ms": 1.0} for n in range(7) for user in "ab"]
    peer.give(rows[:9], NEVER)
    peer.give(rows[9:], NEVER)
    first = peer.stage.ingress[0].topic
    link = next(link for link in peer.stage.egress if link.kind == "state")

    def state() -> TaskState:
        found = {place: position for place, position in peer.positions.items() if place.topic == first}
        return state_of(peer.stage, link, Rows(peer), lambda: found, lambda: None)

    held = list(state().held())
    shown = list(state().rows())
    assert sum(each.rows for each in held) == len(rows)
    windows = {(row.get("user"), row.get("window_start")) for row in shown}
    assert sum(each.windows for each in held) == len(windows)
    assert {each.keys for each in held} == {0}
