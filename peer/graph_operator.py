"""Graphs and rounds as an operator, which plans for its shard with what :mod:`sardonyx.state.graph_rows` has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from weakref import WeakKeyDictionary

import pyarrow as pa
import structlog

from peer.operators import Answer, Asked, Stores
from peer.window_split import row_times
from sardonyx.core.clocks import END
from sardonyx.core.errors import InternalError
from sardonyx.core.graph import Stage
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.spec import whole_of
from sardonyx.core.stores import kind_of
from sardonyx.graphs.compute import Computed, compute
from sardonyx.runtime.failpoints import failpoint
from sardonyx.state.graph_rows import EDGES, PAIRS, VERTICES, GraphShard, Run, has_rows
from sardonyx.state.graph_versions import Timely, VersionShard, is_waiting
from sardonyx.state.window_rows import SCHEMA

log = structlog.get_logger(__name__)

_HOME = 0
"""The partition of all rows: that of the key that has no columns."""


class GraphOperator:
    """Keeps the rows of a graph, or of rounds, until their end, and then computes. One shard has all: they are in one partition.

    Args:
        stage: a task that computes over a graph, or in rounds.
        most: about the most results of a batch.
        run: computes.
    """

    by_rows: Collection[str] = ()
    _STORE = "graph"

    def __init__(self, stage: Stage, most: int, run: Run = compute) -> None:
        spec = whole_of(stage.task)
        assert spec is not None  # noqa: S101 (for the type checker: the caller asks)
        self._spec, self._most, self._run = spec, most, run
        self._kinds = kinds_of(stage, spec) if isinstance(spec, GraphSpec) else [[EDGES] for _ in stage.ingress]
        self._links = stage.ingress
        self._shards: WeakKeyDictionary[Stores, GraphShard | VersionShard] = WeakKeyDictionary()
        self.store = kind_of(spec.store)
        self.state_limit = spec.state_limit
        what = "a graph has" if isinstance(spec, GraphSpec) else "rounds have"
        self.entries = f"{what} an entry for each batch of rows, or for each half megabyte of them"

    def schemas(self) -> Mapping[str, pa.Schema]:
        return {self._STORE: SCHEMA}

    def plan(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        return [self._plan(each) for each in asked]

    def until(self, asked: Asked) -> int | None:
        shard = self._shard(asked.stores) if asked.number == _HOME else None
        if isinstance(shard, VersionShard):
            return shard.until(self._timely(asked))
        return END if any(read.piece.rows.num_rows for read in asked.reads) else None

    def is_open(self, stores: Stores) -> bool:
        store = stores.get(self._STORE)
        return store is not None and (is_waiting if self._has_versions() else has_rows)(store)

    def wake(self, stores: Stores) -> int | None:  # noqa: ARG002
        return None

    def _plan(self, asked: Asked) -> Answer:
        if asked.number != _HOME:
            _check_empty(asked)
            return Answer(pa.table({}))
        shard = self._shard(asked.stores)
        if isinstance(shard, VersionShard):
            planned = shard.plan(self._timely(asked), asked.clock, self._most)
        else:
            pieces = [(kind, read.piece.rows) for read in asked.reads for kind in self._kinds[read.link]]
            planned = shard.plan(pieces, asked.clock, self._most)
        if asked.reads:
            failpoint("graph-rows")
        if planned.computed is not None:
            tell(self._spec, planned.computed, planned.seconds)
            failpoint("graph-computed")
        if planned.results.num_rows:
            failpoint("graph-given")
        return Answer(planned.results, {self._STORE: planned.changes}, planned.more)

    def _shard(self, stores: Stores) -> GraphShard | VersionShard:
        if stores not in self._shards:
            store = stores.open(self._STORE, SCHEMA)
            if isinstance(self._spec, GraphSpec) and self._has_versions():
                self._shards[stores] = VersionShard(self._spec, store, self._run)
            else:
                self._shards[stores] = GraphShard(self._spec, store, self._run)
        return self._shards[stores]

    def _has_versions(self) -> bool:
        return isinstance(self._spec, GraphSpec) and self._spec.window is not None

    def _timely(self, asked: Asked) -> list[Timely]:
        """The rows of a graph that changes, with their times."""
        found: list[Timely] = []
        for read in asked.reads:
            rows, link = read.piece.rows, self._links[read.link]
            if rows.num_rows:
                assert link.row_time is not None  # noqa: S101 (for the type checker: the job is checked)
                times = row_times(rows, link.row_time, link.source)
                found += [Timely(kind, rows, times, read.piece.before_rows) for kind in self._kinds[read.link]]
        return found


def _check_empty(asked: Asked) -> None:
    """No row is left out in silence, if a queue should ever bring it where the graph is not."""
    count = sum(read.piece.rows.num_rows for read in asked.reads)
    if count:
        raise InternalError(
            "SX-GRAPH-PARTITION",
            f"{count} rows of a graph have come in partition {asked.number}",
            cause=f"one peer computes the graph, from partition {_HOME} of each queue before it",
            fix="report it, with the spec of the job",
        )


def kinds_of(stage: Stage, graph: GraphSpec) -> list[list[bytes]]:
    """By link that a task reads, what its rows are."""
    sides = {EDGES: graph.edges, VERTICES: graph.vertices, PAIRS: graph.pairs}
    writers = [link.name.partition(".")[0] for link in stage.ingress]  # which may be fused with what runs them
    return [[kind for kind, task in sides.items() if task == writer] for writer in writers]


def tell(graph: GraphSpec | IterateSpec, found: Computed, seconds: float) -> None:
    """Say in the log what was computed, and if it did not converge."""
    if isinstance(graph, IterateSpec):
        rounds: dict[str, object] = {"rows": found.vertices, "rounds": found.supersteps, "reason": found.reason}
        rounds |= {"aggregates": dict(found.aggregates), "seconds": round(seconds, 3)}
        if found.reason == "limit":
            log.warning("rounds_not_converged", until=graph.until, **rounds)
        else:
            log.info("rounds_computed", **rounds)
        return
    said = {
        "algorithm": graph.algorithm,
        "vertices": found.vertices,
        "edges": found.edges,
        "supersteps": found.supersteps,
        "reason": found.reason,
        "seconds": round(seconds, 3),
    }
    if found.reason == "limit" and graph.converges:
        if graph.algorithm == "program":
            wanted: dict[str, object] = {"until": graph.until, "aggregates": dict(found.aggregates)}
        else:
            wanted = {"moved": found.moved, "tolerance": graph.tolerance}
        log.warning("graph_not_converged", **said, **wanted)
    else:
        log.info("graph_computed", **said)


__all__ = ["GraphOperator", "kinds_of", "tell"]
