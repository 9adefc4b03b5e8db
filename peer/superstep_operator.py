"""Graphs that several peers compute together, as an operator: each shard plans with :mod:`sardonyx.state.graph_supersteps`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

import pyarrow as pa

from peer.graph_operator import kinds_of, tell
from peer.operators import Answer, Asked, Stores
from queues import block
from queues.messages import BARRIER_HEADER, ROWS_HEADER, WRITER_HEADER, Outgoing
from sardonyx.core.clocks import END
from sardonyx.core.graph import Stage
from sardonyx.core.stores import kind_of
from sardonyx.runtime.failpoints import failpoint
from sardonyx.state.graph_rows import has_rows
from sardonyx.state.graph_supersteps import SuperstepShard
from sardonyx.state.window_rows import SCHEMA


class SuperstepOperator:
    """Plans for the shards of a graph that one peer holds.

    Args:
        stage: a task that computes over a graph whose vertices are divided among partitions.
        most: about the most results of a batch, for each shard.
        shards: how many there are.
        peer: who writes the messages.
    """

    by_rows: Collection[str] = ()
    entries = "a graph has an entry for each batch of rows or messages, or for each half megabyte of them"
    _STORE = "graph"

    def __init__(self, stage: Stage, most: int, shards: int, peer: str) -> None:
        assert stage.task.graph is not None  # noqa: S101 (for the type checker: the caller asks)
        assert stage.between_shards is not None  # noqa: S101 (as above)
        self._graph, self._topic = stage.task.graph, stage.between_shards.topic
        self._most, self._count, self._peer = most, shards, peer
        self._kinds = kinds_of(stage, self._graph)
        self._feedback = [link.topic for link in stage.ingress].index(self._topic)
        self._shards: WeakKeyDictionary[Stores, SuperstepShard] = WeakKeyDictionary()
        self.store = kind_of(self._graph.store)
        self.state_limit = self._graph.state_limit

    def schemas(self) -> Mapping[str, pa.Schema]:
        return {self._STORE: SCHEMA}

    def plan(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        return [self._plan(each) for each in asked]

    def until(self, asked: Asked) -> int | None:
        return END if any(read.piece.rows.num_rows for read in asked.reads) else None

    def is_open(self, stores: Stores) -> bool:
        store = stores.get(self._STORE)
        return store is not None and has_rows(store)

    def wake(self, stores: Stores) -> int | None:  # noqa: ARG002
        return None

    def _plan(self, asked: Asked) -> Answer:
        pieces = [(kind, read.piece.rows) for read in asked.reads for kind in self._kinds[read.link]]
        messages = [read.piece.rows for read in asked.reads if read.link == self._feedback]
        ended = all(clock >= END for link, clock in enumerate(asked.clocks) if link != self._feedback)
        planned = self._shard(asked).plan(pieces, messages, self._most, ended=ended)
        if pieces:
            failpoint("graph-rows")
        if messages and not planned.sent:
            failpoint("graph-heard")
        if planned.sent:
            failpoint("graph-superstep")
        if planned.computed is not None:
            tell(self._graph, planned.computed, planned.seconds)
            failpoint("graph-computed")
        if planned.results.num_rows:
            failpoint("graph-given")
        sent = [
            Outgoing(self._topic, each.value, partition, headers=[*self._headers(each.rows), *more])
            for partition, blocks in planned.sent.items()
            for each, more in _marked(blocks, planned.step)
        ]
        return Answer(planned.results, {self._STORE: planned.changes}, planned.more, sent=sent)

    def _headers(self, rows: int) -> list[tuple[str, bytes]]:
        return [(ROWS_HEADER, str(rows).encode()), (WRITER_HEADER, self._peer.encode())]

    def _shard(self, asked: Asked) -> SuperstepShard:
        if asked.stores not in self._shards:
            store = asked.stores.open(self._STORE, SCHEMA)
            self._shards[asked.stores] = SuperstepShard(self._graph, store, asked.number, self._count)
        return self._shards[asked.stores]


def _marked(blocks: Sequence[block.Block], step: int) -> Iterator[tuple[block.Block, Sequence[tuple[str, bytes]]]]:
    """The blocks of a superstep to one partition, with what is said on the one in which the marker stands: the last."""
    yield from ((each, ()) for each in blocks[:-1])
    yield blocks[-1], [(BARRIER_HEADER, str(step).encode())]


__all__ = ["SuperstepOperator"]
