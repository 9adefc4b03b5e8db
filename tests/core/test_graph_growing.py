"""The components of a graph that grows are made out of those of the version before: bit by bit those of all its edges."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Computed, Graph, compute
from sardonyx.graphs.growing import Parts, grown
from sardonyx.state.graph_rows import GraphPlan
from sardonyx.state.graph_versions import VersionShard
from sardonyx.state.memory import MemoryStore
from sardonyx.state.window_rows import SCHEMA
from tests.core.test_graph_versions import SIZE, Row, spec_of, timely
from tests.sizes import as_asked

HISTORIES = as_asked(8, whole=20)
NAMES: list[Callable[[int], Any]] = [int, "v{}".format, lambda number: number * 10**15]


def results(planned: GraphPlan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = planned.results.to_pylist()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_grows_has_the_components_of_all_its_edges(name: Callable[[int], Any]) -> None:
    """Edges and vertices come in parts. After each the vertices, their order, and their components are those of the whole graph;
    and what has changed is what differs.
    """
    spec = spec_of()
    for number in range(3 * HISTORIES):
        chance = random.Random(f"grown/{number}")
        most = chance.choice([3, 12, 40])
        edges: list[tuple[Any, Any]] = []
        vertices: list[Any] = []
        parts: Parts | None = None
        rows: dict[Any, Any] = {}
        for _ in range(6):
            new = [(name(chance.randrange(most)), name(chance.randrange(most))) for _ in range(chance.randrange(5))]
            alone = [name(chance.randrange(most)) for _ in range(chance.choice([0, 0, 2]))]
            edges, vertices = edges + new, vertices + alone
            table = pa.table({"source": [a for a, _ in edges], "target": [b for _, b in edges]})
            whole = compute(spec, Graph(table, pa.table({"vertex": vertices}))).rows if edges or vertices else None
            if whole is None:
                continue
            if parts is not None:
                ends = (
                    (pa.chunked_array([pa.array(each, parts.ids.type)]) for each in zip(*new, strict=True))
                    if new
                    else ()
                )
                none = pa.chunked_array([], parts.ids.type)
                sources, targets = ends or (none, none)
                found = grown(parts, sources, targets, [pa.chunked_array([pa.array(alone, parts.ids.type)])])
                assert found is not None
                ids, roots = found.parts
                assert pa.table({"id": ids, "component": ids.take(pa.array(roots))}).equals(whole)
                differs = [rows.get(row["id"]) != row["component"] for row in whole.to_pylist()]
                assert found.changed.tolist() == differs
            parts = Parts.of(whole)
            rows = {row["id"]: row["component"] for row in whole.to_pylist()}


@pytest.mark.parametrize("emit", ["all", "changes"])
def test_versions_that_go_on_are_those_that_begin_anew(emit: str) -> None:
    """A shard that knows the version before gives, row by row, what one gives that knows nothing. It computes over all edges only
    if one has gone, or if it is not known what the version before was.
    """
    spec, calls = spec_of(emit=emit), [0, 0]
    for number in range(2 * HISTORIES):
        chance = random.Random(f"going on/{number}")
        name = chance.choice(NAMES)
        shards, stores = [], [MemoryStore(SCHEMA), MemoryStore(SCHEMA)]
        for place, store in enumerate(stores):
            shards.append(VersionShard(spec, store, counting(calls, place)))
        removals = chance.choice([0.0, 0.1])
        for window in range(8):
            rows = a_window(chance, window, removals)
            if chance.random() < 0.3:  # a plan that comes to nothing, as of a peer that dies
                shards[0].plan(timely(a_window(chance, window, removals), name), (window + 1) * SIZE, 100)
            shards[1] = VersionShard(spec, stores[1], counting(calls, 1))
            both = [shard.plan(timely(rows, name), (window + 1) * SIZE, 100) for shard in shards]
            for store, planned in zip(stores, both, strict=True):
                store.apply(planned.changes)
            assert both[0].results.equals(both[1].results)
            assert [both[0].computed is None] == [not rows]
            if both[0].computed and both[1].computed:
                assert both[0].computed[1:3] == both[1].computed[1:3]
    assert 0 < calls[0] < calls[1] / 2


def counting(calls: list[int], place: int) -> Callable[[GraphSpec, Graph], Computed]:
    """Computes, and counts how often it is called."""

    def run(spec: GraphSpec, graph: Graph) -> Computed:
        calls[place] += 1
        return compute(spec, graph)

    return run


def a_window(chance: random.Random, window: int, removals: float) -> list[Row]:
    return [
        Row(window * SIZE + chance.randrange(SIZE), chance.randrange(30), chance.randrange(30), gone, window * SIZE)
        if chance.random() < 0.9
        else Row(window * SIZE, chance.randrange(40), None, False, window * SIZE)
        for gone in (chance.random() < removals for _ in range(chance.randrange(6)))
    ]


def test_what_was_planned_and_not_committed_is_not_gone_on_with() -> None:
    """Another version with the same window was committed in its place."""
    spec, store = spec_of(), MemoryStore(SCHEMA)
    one, other = VersionShard(spec, store), VersionShard(spec, store)
    one.plan(timely([Row(0, 1, 2, False, NEVER)]), SIZE, 10)
    store.apply(other.plan(timely([Row(0, 2, 3, False, NEVER)]), SIZE, 10).changes)
    planned = one.plan(timely([Row(SIZE, 3, 4, False, SIZE)]), END, 10)
    assert {row["id"]: row["component"] for row in results(planned)} == {2: 2, 3: 2, 4: 2}


def test_rows_that_remove_nothing_leave_all_as_it_was() -> None:
    """A version of them has all vertices, whatever these are."""
    for name in NAMES:
        store = MemoryStore(SCHEMA)
        shard = VersionShard(spec_of(), store)
        for at, gone in ((0, False), (SIZE, True), (2 * SIZE, True)):
            planned = shard.plan(timely([Row(at, 1, 2 + at, gone, NEVER)], name), at + SIZE, 10)
            store.apply(planned.changes)
            assert [row["id"] for row in results(planned)] == [name(1), name(2)]


def test_a_graph_of_numbers_does_not_take_texts() -> None:
    """Also if nothing but the window that came is looked at."""
    store = MemoryStore(SCHEMA)
    shard = VersionShard(spec_of(), store)
    store.apply(shard.plan(timely([Row(0, 1, 2, False, NEVER)]), SIZE, 10).changes)
    with pytest.raises(Exception, match="numbers and others texts"):
        shard.plan(timely([Row(SIZE, 3, 4, False, NEVER)], str), 2 * SIZE, 10)


def test_parts_of_a_graph_without_vertices() -> None:
    """The first vertices may come later."""
    parts = Parts.of(pa.table({"id": pa.array([], pa.int64()), "component": pa.array([], pa.int64())}))
    found = grown(parts, *(pa.chunked_array([pa.array(ends)]) for ends in ([5, 7], [5, 9])), [])
    assert found is not None
    assert found.parts.ids.to_pylist() == [5, 7, 9]
    assert found.parts.roots.tolist() == [0, 1, 1]
    assert np.all(found.changed)
