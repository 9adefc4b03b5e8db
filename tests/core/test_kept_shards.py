"""What an assignment leaves of its state, for the next one in the same process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from test_shards import COUNTED, END, Peer, rows

from peer.kept_shards import KeptShards, Place
from peer.operators import WindowOperator
from peer.shards import Shards
from sardonyx.runtime.clock import Runtime
from sardonyx.state.messages import Mark


class Clock(Runtime):
    """Time goes on when it is told; nothing runs beside the test."""

    def __init__(self) -> None:
        self.time = 0.0
        self.spawned: list[Callable[[], None]] = []

    def now(self) -> float:
        return self.time

    def spawn(self, name: str, run: Callable[[], None]) -> Any:
        self.spawned.append(run)


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
        place = ("j-1", "count")
        self.shards = Shards(self.stage, operator, self.topic, self.folder, kept=kept or self.kept, place=place)
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


class Held(NamedTuple):
    """A shard with so many entries, by its mark."""

    mark: Mark
    entries: int

    def __len__(self) -> int:
        return self.entries


def test_shards_are_given_up_in_time() -> None:
    """After so many seconds, or when there are too many entries, the oldest first; each is discarded once."""
    clock, gone = Clock(), []
    kept: KeptShards[Held] = KeptShards(clock, seconds=30, entries=10)
    marks = [Held(Mark(number), 4) for number in range(4)]
    for number in range(3):
        kept.put(Place("j", "t", number), marks[number], gone.append)
    assert gone == marks[:1]
    kept.put(Place("j", "t", 2), marks[3], gone.append)
    assert gone == [marks[0], marks[2]], "the same place again"
    assert kept.take(Place("j", "t", 1), Mark(7)) is None
    assert gone == [marks[0], marks[2], marks[1]], "of another commit"
    clock.time = 31.0
    (sweep,) = clock.spawned
    sweep()
    assert gone == [marks[0], marks[2], marks[1], marks[3]]
    assert kept.take(Place("j", "t", 2), Mark(3)) is None
    kept.put(Place("j", "t", 0), marks[0], gone.append)
    assert len(clock.spawned) == 2, "it is looked after again"
    assert kept.take(Place("j", "t", 0), Mark(0)) is marks[0]
    assert len(gone) == 4
