"""What an assignment leaves of its state, for the next one in the same process."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from test_shards import COUNTED, END, Peer, PlainStore, in_topic, rows

from peer.kept_shards import KeptShards
from peer.operators import WindowOperator
from peer.shards import Shards
from peer.store_setup import StoreSetup
from sardonyx.core.positions import Partition
from sardonyx.runtime.clock import Runtime
from sardonyx.runtime.functions import import_function
from sardonyx.state.messages import Mark
from tests.waiting import until


class Clock(Runtime):
    """Time goes on when the test says so; nothing runs beside the test."""

    def __init__(self) -> None:
        self.time = 0.0
        self.spawned: list[Callable[[], None]] = []

    def now(self) -> float:
        return self.time

    def spawn(self, name: str, run: Callable[[], None]) -> Any:
        self.spawned.append(run)


class Code:
    """The code of a job."""

    def load(self, reference: str) -> Any:
        return import_function(reference)


class Process(Peer):
    """One assignment after the other, in a process that keeps shards, or in two of them."""

    def __init__(self, store: str = "memory", folder: Path | None = None) -> None:
        self.clock = Clock()
        self.kept: KeptShards[Any] = KeptShards(self.clock)
        super().__init__(msgspec.structs.replace(COUNTED, store=store))
        self.folder = folder
        self.take_over()

    def take_over(self, kept: KeptShards[Any] | None = None) -> None:
        if self.shards is not None:
            self.shards.close()
        operator = WindowOperator(self.stage, self.most)
        keeper = in_topic(self.stage, self.topic)
        setup = StoreSetup(self.folder, self.load, kept or self.kept)
        self.shards = Shards(self.stage, operator, keeper, setup)
        self.incarnation += 1


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_the_next_assignment_goes_on_with_the_shard(store: str, tmp_path: Path) -> None:
    """It reads nothing, and counts what the one before counted."""
    process = Process(store, tmp_path)
    for number in range(3):
        process.give(rows(("a", 10 + number, 5.0), ("b", 20, 1.0)))
        reads = process.topic.reads
        process.take_over()
    process.give([], clock=END)
    assert process.topic.reads == reads
    assert {row["user"]: row["hits"] for row in process.results} == {"a": 3, "b": 3}


def test_a_shard_that_another_process_went_on_with_is_given_up() -> None:
    """The position is of a later commit, so the log is read; the result is that of one peer."""
    process = Process()
    other: KeptShards[Any] = KeptShards(process.clock)
    process.give(rows(("a", 10, 5.0)))
    process.take_over(other)
    process.give(rows(("a", 11, 5.0)))
    process.take_over()
    process.give(rows(("a", 12, 5.0)))
    process.give([], clock=END)
    assert [row["hits"] for row in process.results] == [3]


def test_what_was_planned_and_not_committed_is_not_kept() -> None:
    """The next assignment meets the state of the last commit."""
    process = Process()
    process.give(rows(("a", 10, 5.0)))
    process.shards.plan(process.batch(rows(("a", 11, 5.0))))
    process.take_over()
    process.give([], clock=END)
    assert [row["hits"] for row in process.results] == [1]


def test_nothing_is_kept_after_an_error(tmp_path: Path) -> None:
    """The cause may lie in a store: the next assignment makes its own, and does not fail as well."""
    process = Process("rocksdb", tmp_path)
    process.give(rows(("a", 10, 5.0)))

    def broken(*_: object) -> Any:
        raise OSError("the disk")

    process.shards._operator.plan = broken
    with pytest.raises(OSError, match="the disk"):
        process.give(rows(("a", 11, 5.0)))
    process.shards.close()
    process.shards = None
    assert list(tmp_path.iterdir()) == []
    process.take_over()
    process.give([], clock=END)
    assert [row["hits"] for row in process.results] == [1]


def test_a_store_of_a_users_own_is_not_kept(tmp_path: Path) -> None:
    """Its code may hold what ends with the assignment, so its folder goes as well."""
    process = Process("my:Store", tmp_path)
    process.load = lambda _: PlainStore
    process.take_over()
    process.give(rows(("a", 10, 5.0)))
    reads = process.topic.reads
    process.take_over()
    assert list(tmp_path.iterdir()) == []
    process.give([], clock=END)
    assert process.topic.reads > reads
    assert [row["hits"] for row in process.results] == [1]


def test_a_shard_whose_partition_went_to_another_peer_is_not_kept(tmp_path: Path) -> None:
    """The other peer has gone on with it, so it would only take room."""
    process = Process("rocksdb", tmp_path)
    process.give(rows(("a", 10, 5.0), ("b", 11, 5.0), ("c", 12, 5.0)))
    held = {place: process.incarnation for place in process.positions if place.number}
    process.shards.due(held)
    folders = len(list(tmp_path.iterdir()))
    process.shards.close()
    process.shards = None
    assert len(list(tmp_path.iterdir())) == folders - 1


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_a_kept_shard_holds_nothing_else_of_its_assignment(store: str, tmp_path: Path) -> None:
    """The function, the code and the session of an assignment that is over are free, whichever peer took its shards over."""
    process = Process(store, tmp_path)
    code = Code()
    process.load = code.load
    process.take_over()
    process.give(rows(("a", 10, 5.0)))
    first = [weakref.ref(each) for each in (process.shards, process.shards._operator, code)]
    process.load = import_function
    del code
    process.take_over()
    process.give(rows(("a", 11, 5.0)))
    gc.collect()
    assert [each() for each in first] == [None, None, None]


def test_a_shard_that_cannot_be_measured_is_given_back(tmp_path: Path) -> None:
    """The others are kept all the same: the next assignment reads the log of that one only, and nothing stays open."""
    process = Process("rocksdb", tmp_path)
    process.give(rows(("a", 10, 5.0), ("b", 11, 5.0), ("c", 12, 5.0)))
    shard = next(each for each in process.shards._shards.values() if len(each.stores))
    folders = len(list(tmp_path.iterdir()))
    assert folders > 1
    shard.stores.all["windows"].close()  # RocksDB answers nothing about it any more
    process.shards.close()
    process.shards = None
    assert not shard.folder.exists()
    assert len(list(tmp_path.iterdir())) == folders - 1
    process.take_over()
    process.give([], clock=END)
    assert {row["user"]: row["hits"] for row in process.results} == {"a": 1, "b": 1, "c": 1}


class Held(NamedTuple):
    """A shard, by its mark."""

    mark: Mark


def at(number: int) -> Partition:
    return Partition("state", number)


def test_shards_are_given_up_in_time() -> None:
    """After so many seconds, or when they take too much memory, the oldest first; each is discarded once."""
    clock, gone = Clock(), []
    kept: KeptShards[Held] = KeptShards(clock, seconds=30, memory=10)
    marks = [Held(Mark(number)) for number in range(4)]
    for number in range(3):
        kept.put(at(number), marks[number], 4, gone.append)
    assert gone == marks[:1]
    kept.put(at(2), marks[3], 4, gone.append)
    assert gone == [marks[0], marks[2]], "a later commit of the same place"
    kept.put(at(2), marks[2], 4, gone.append)
    assert gone.pop() == marks[2], "an earlier commit of the same place"
    assert kept.take(at(1), Mark(7)) is None
    assert gone == [marks[0], marks[2], marks[1]], "of another commit"
    kept.put(at(0), marks[1], 11, gone.append)
    assert gone.pop() == marks[1], "one that alone takes too much, and no other goes for it"
    clock.time = 31.0
    (sweep,) = clock.spawned
    sweep()
    assert gone == [marks[0], marks[2], marks[1], marks[3]]
    assert kept.take(at(2), Mark(3)) is None
    kept.put(at(0), marks[0], 4, gone.append)
    assert len(clock.spawned) == 2, "it is looked after again"
    assert kept.take(at(0), Mark(0)) is marks[0]
    assert len(gone) == 4


def test_nothing_is_kept_once_the_process_ends() -> None:
    """All that is kept is given back before its folder is deleted, and so is what comes after."""
    gone: list[Held] = []
    kept: KeptShards[Held] = KeptShards(Clock())
    first, second = Held(Mark(1)), Held(Mark(2))
    kept.put(at(0), first, 4, gone.append)
    kept.close()
    assert gone == [first]
    kept.put(at(0), second, 4, gone.append)
    assert gone == [first, second]
    assert kept.take(at(0), Mark(2)) is None


def test_a_shard_that_cannot_be_given_back_holds_up_no_other() -> None:
    """Each of the others is given back, at the end and when its time is over; later ones are still looked after."""
    for ends in ("close", "sweep"):
        clock, gone = Clock(), []
        kept: KeptShards[Held] = KeptShards(clock, seconds=30)
        first, second, third = (Held(Mark(number)) for number in range(3))
        kept.put(at(0), first, 4, broken)
        kept.put(at(1), second, 4, gone.append)
        clock.time = 31.0
        if ends == "close":
            kept.close()
        else:
            clock.spawned.pop()()
        assert gone == [second], ends
        kept.put(at(0), third, 4, gone.append)
        kept.close()
        assert gone == [second, third], ends


def broken(_: object) -> None:
    raise OSError("the disk")


def test_the_end_waits_for_a_shard_that_is_being_given_back() -> None:
    """Its folder would be deleted under it otherwise."""
    begun, go_on, closed, gone = (threading.Event() for _ in range(4))

    def discard(_: object) -> None:
        begun.set()
        go_on.wait()
        gone.set()

    kept: KeptShards[Held] = KeptShards(seconds=0)
    kept.put(at(0), Held(Mark(1)), 4, discard)
    begun.wait()

    def close() -> None:
        kept.close()
        assert gone.is_set()
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    until(lambda: kept._is_closed, what="the end to begin")
    go_on.set()
    closing.join()
    assert closed.is_set()
