"""When a batch of a graph that several peers compute is due: at once when its superstep is whole, and not before."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from queues.messages import BARRIER_HEADER, ROWS_HEADER, Outgoing
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition
from sardonyx.job.parse import read
from sardonyx.runtime.clock import Runtime
from sardonyx.testing.memory import MemoryReader, Topics
from tests.core.test_graph_durable_jobs import club

SHARDS = 3
LATER = 3600.0


class Still(Runtime):
    """Time that stands still until the test lets it go on."""

    time = 100.0

    def now(self) -> float:
        return self.time


@dataclass
class Between:
    """The link of a graph to itself, its shards' senders, and a reader of all its partitions."""

    clock: Still = field(default_factory=Still)
    steps: list[int] = field(default_factory=lambda: [0] * SHARDS)

    def __post_init__(self) -> None:
        stage = graph_of(read(club(2).data())[0], "d", "j").stage("ranks")
        link = stage.between_shards
        assert link is not None
        self.link, self.topics = link, Topics(self.clock)
        self.reader = self.open()

    def open(self, committed: dict[Partition, Any] | None = None) -> MemoryReader:
        facts = {self.link.name: (self.link, LinkFacts(SHARDS))}
        reader = MemoryReader(
            self.topics, committed or {}, facts, lambda _, uuid: uuid, 10_000, timed=True, runtime=self.clock
        )
        self.cut(reader)  # of the ends of the empty partitions
        return reader

    def sends(self, shard: int, blocks: int) -> None:
        """A shard does its next superstep: its messages to each partition, and behind them its marker."""
        step, self.steps[shard] = self.steps[shard], self.steps[shard] + 1
        for partition in range(SHARDS):
            for number in range(blocks + 1):
                barrier = [(BARRIER_HEADER, str(step).encode())] if number == blocks else []
                headers = [(ROWS_HEADER, b"1"), *barrier]
                self.topics.write(Outgoing(self.link.topic, f"{step}/{shard}".encode(), partition, headers=headers))

    def due(self, size: int = 1_000) -> float:
        """Seconds until a batch with rows."""
        self.reader.poll()
        while (
            (due := self.reader.batch_due_in(size, LATER)) == 0 and self.reader._buffer and not self.reader._buffer.rows
        ):
            self.reader.cut(size)  # nothing but ends
        return due

    def cut(self, reader: MemoryReader | None = None, size: int = 1_000) -> set[int]:
        """A batch, committed; gives the supersteps that its messages are of."""
        found = self.reader if reader is None else reader
        found.poll()
        batch = found.cut(size)
        found.committed(batch.positions)
        messages = [message for some in batch.messages.values() for message in some]
        return {int(message.value().partition(b"/")[0]) for message in messages}


@pytest.mark.parametrize("seed", range(50))
def test_a_superstep_is_one_batch(seed: int) -> None:
    """It is due when the last marker has come, and no earlier. What others have sent of the next superstep waits for that one."""
    chance = random.Random(seed)
    between = Between()
    for step in range(6):
        senders = [shard for shard in range(SHARDS) if between.steps[shard] == step]
        chance.shuffle(senders)
        for shard in senders:
            due = between.due()
            if step:
                assert due == math.inf
            elif any(between.steps):
                assert 0 < due <= LATER
            between.sends(shard, chance.randrange(3))
        for shard in range(SHARDS - 1):
            if chance.random() < 0.4:  # it has done the next superstep already
                between.sends(shard, chance.randrange(3))
        assert between.due() == 0
        assert between.cut() == {step}
    assert between.due() == math.inf


def test_who_takes_over_waits_for_nothing_that_it_may_have_missed() -> None:
    """Markers may have been read by the former holder. So rows wait no longer than those of any task, until a superstep was seen
    as a whole.
    """
    between = Between()
    between.sends(0, 0)
    assert 0 < between.due() <= LATER
    assert between.cut() == {0}
    between.reader = between.open({place: held for place, held in between.reader.held.items() if held is not None})
    between.sends(1, 0)
    assert 0 < between.due() <= LATER
    between.sends(2, 0)
    assert 0 < between.due() <= LATER  # two markers: whether that is all, the reader cannot know
    assert between.cut() == {0}
    for shard in range(SHARDS):
        between.sends(shard, 0)
    assert between.due() == 0
    assert between.cut() == {1}
    between.sends(0, 0)
    assert between.due() == math.inf


def test_so_many_messages_that_they_fill_a_batch_do_not_wait() -> None:
    """They go into the state, or nothing more would be read."""
    between = Between()
    for shard in range(SHARDS):
        between.sends(shard, 0)
    assert between.cut() == {0}
    between.sends(0, 9)
    assert between.due() == math.inf
    assert between.due(30) == 0
    assert between.cut(size=30) == {1}
    between.sends(1, 0)
    between.sends(2, 0)
    assert between.due() == 0
    assert between.cut() == {1}


def test_messages_of_half_a_superstep_go_into_the_state_after_a_while() -> None:
    """If a peer is gone, or a marker is lost, nothing waits in the memory of the others for long."""
    between = Between()
    for shard in range(SHARDS):
        between.sends(shard, 0)
    assert (between.due(), between.cut()) == (0, {0})
    between.sends(0, 1)
    between.reader.poll()
    assert between.reader.batch_due_in(1_000, 0.1) == math.inf
    between.clock.time += 1.5
    assert between.reader.batch_due_in(1_000, 0.1) == 0
    assert between.cut() == {1}
    between.sends(1, 0)
    between.reader.poll()
    assert between.reader.batch_due_in(1_000, 0.1) == math.inf
    between.sends(2, 0)
    assert (between.due(), between.cut()) == (0, {1})
