"""Graphs that change window by window: each version is the graph of all rows up to it, whichever peer computes it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.timing import WindowSpec
from sardonyx.graphs.compute import Computed, Graph, compute
from sardonyx.graphs.programs import Program, run_program
from sardonyx.state.base import GONE, KEY
from sardonyx.state.columns import ROWS
from sardonyx.state.graph_rows import EDGES, VERTICES, GraphPlan, Run
from sardonyx.state.graph_versions import Timely, VersionShard, is_waiting
from sardonyx.state.memory import MemoryStore
from sardonyx.state.window_rows import SCHEMA
from tests import sizes
from tests.core.graph_programs import depth_send, depth_update

HISTORIES = sizes.as_asked(5, whole=20)
SIZE = 10
LIMITS = [1, 3, 1000]


class Row(NamedTuple):
    """A row of a history: an edge, its removal, or a vertex; ``in_force``: the clock before its piece."""

    time: int
    source: int
    target: int | None
    gone: bool
    in_force: int


class Piece(NamedTuple):
    rows: list[Row]
    clock: int
    """After it."""


def spec_of(algorithm: str = "connected_components", **given: Any) -> GraphSpec:
    window = WindowSpec(kind="tumbling", size=SIZE)
    fields = {"directed": False, "remove": "gone", "window": window, **given}
    return GraphSpec(algorithm=algorithm, edges="e", source="a", target="b", vertices="v", **fields)  # type: ignore[arg-type]


def histories(count: int, what: str = "versions") -> Iterator[tuple[random.Random, list[Piece]]]:
    """Rows of a few vertices, most in the order of their times, some late; some windows have no row."""
    for number in range(count):
        chance = random.Random(f"{what}/{number}")
        now, clock, pieces = 0, NEVER, []
        for _ in range(chance.randint(1, 8)):
            rows = []
            for _ in range(chance.randint(0, 6)):
                now += chance.choice([0, 0, 1, 3, 15])
                time = max(0, now - chance.choice([0, 0, 1, 5, 30]))
                source, target = chance.randrange(7), chance.randrange(7)
                if chance.random() < 0.1:
                    rows.append(Row(time, source, None, False, clock))
                else:
                    rows.append(Row(time, source, target, chance.random() < 0.35, clock))
            clock = max(clock, now - chance.choice([0, 4, 12]))
            pieces.append(Piece(rows, clock))
        yield chance, [*pieces, Piece([], END)]


# --- What is promised, in plain Python --------------------------------------------------------------------------------


class Version(NamedTuple):
    edges: list[tuple[int, int]]
    vertices: set[int]

    def graph(self) -> nx.MultiGraph:
        found = nx.MultiGraph(self.edges)
        found.add_nodes_from(self.vertices)
        return found


def versions(pieces: list[Piece], *, directed: bool = False, defect: str = "") -> dict[int, Version]:
    """By the start of their window. ``defect``: one of :data:`DEFECTS`, to see whether the histories tell."""
    waiting: dict[int, list[Row]] = {}
    for row in (row for piece in pieces for row in piece.rows):
        start = row.time // SIZE * SIZE
        first = row.in_force // SIZE * SIZE if row.in_force > NEVER else start
        if start < first and defect == "late rows are lost":
            continue
        waiting.setdefault(max(start, first), []).append(row)
    edges: list[tuple[int, int]] = []
    vertices: set[int] = set()
    found = {}
    for start, rows in sorted(waiting.items()):
        for row in rows if defect == "in the order of the log" else sorted(rows, key=lambda row: row.time):
            if row.target is None:
                vertices.add(row.source)
            elif not row.gone:
                edges.append((row.source, row.target))
                vertices |= {row.source, row.target}
            else:
                removed = [(row.source, row.target)] + ([] if directed else [(row.target, row.source)])
                gone = [edge for edge in edges if edge in removed]
                for edge in gone[:1] if defect == "one of parallel edges" else gone:
                    edges.remove(edge)
                if defect == "what is removed is a vertex":
                    vertices |= {row.source, row.target}
        if defect == "vertices go with their edges":
            vertices = {v for edge in edges for v in edge}
        found[start] = Version(list(edges), set(vertices))
    return found


DEFECTS = [
    "in the order of the log",
    "late rows are lost",
    "one of parallel edges",
    "what is removed is a vertex",
    "vertices go with their edges",
]


def components(version: Version) -> dict[int, int]:
    return {v: min(part) for part in nx.connected_components(version.graph()) for v in part}


# --- The product ------------------------------------------------------------------------------------------------------


def timely(rows: list[Row], name: Callable[[int], Any] = int) -> list[Timely]:
    """``name``: makes a vertex of a number."""
    found = []
    for (alone, in_force), group in itertools.groupby(rows, lambda row: (row.target is None, row.in_force)):
        here = list(group)
        sources = [name(row.source) for row in here]
        if alone:
            kind, table = VERTICES, pa.table({"id": sources})
        else:
            targets = [name(row.target) for row in here if row.target is not None]
            flags = pa.array([row.gone or None for row in here], pa.bool_())
            kind, table = EDGES, pa.table({"a": sources, "b": targets, "gone": flags})
        found.append(Timely(kind, table, np.array([row.time for row in here]), in_force))
    return found


def run(
    spec: GraphSpec,
    pieces: list[Piece],
    chance: random.Random,
    name: Callable[[int], Any] = int,
    compute: Run = compute,
) -> dict[int, list[dict[str, Any]]]:
    """The results by version. Plans are given up, and the shard is made anew, at any time."""
    store, limit = MemoryStore(SCHEMA), chance.choice(LIMITS)
    shard = VersionShard(spec, store, compute)
    given: list[dict[str, Any]] = []

    def commit(planned: GraphPlan) -> None:
        store.apply(planned.changes)
        given.extend(planned.results.to_pylist())

    for piece in pieces:
        rows, more = timely(piece.rows, name), True
        while more:
            for _ in range(chance.choice([0, 0, 1])):
                shard.plan(rows, piece.clock, limit)
            if chance.random() < 0.3:
                shard = VersionShard(spec, store, compute)
            planned = shard.plan(rows, piece.clock, limit)
            commit(planned)
            rows, more = [], planned.more
    assert not is_waiting(store)
    found: dict[int, list[dict[str, Any]]] = {}
    for row in given:
        assert (row["window_end"], row["window_time"]) == (row["window_start"] + SIZE, row["window_start"] + SIZE - 1)
        found.setdefault(row["window_start"], []).append(row)
    assert list(found) == sorted(found), "versions come one after the other"
    return found


def by_id(rows: list[dict[str, Any]], column: str) -> dict[Any, Any]:
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row[column] for row in rows}


def test_each_version_is_the_graph_of_all_rows_up_to_it() -> None:
    """Its components and degrees are those that networkx gives of the edges that are left, however rows are cut into plans,
    and whichever peer makes these. A window without rows gives no version. The histories would tell each of some defects.
    """
    told = dict.fromkeys(DEFECTS, 0)
    for chance, pieces in histories(3 * HISTORIES):
        wanted = versions(pieces)
        found = run(spec_of(), pieces, chance)
        assert found.keys() == {start for start, version in wanted.items() if version.vertices}
        for start, rows in found.items():
            assert by_id(rows, "component") == components(wanted[start])
        degrees = run(spec_of("degrees"), pieces, chance)
        assert degrees.keys() == found.keys()
        for start, rows in degrees.items():
            assert by_id(rows, "degree") == dict(wanted[start].graph().degree())
        for defect in DEFECTS:
            told[defect] += versions(pieces, defect=defect) != wanted
    assert min(told.values()) >= HISTORIES // 8, told


def test_texts_are_vertices_too() -> None:
    """Components are named by the least text."""
    for chance, pieces in histories(HISTORIES // 2, "texts"):
        wanted = versions(pieces)
        for start, rows in run(spec_of(emit="all"), pieces, chance, name="v{}".format).items():
            assert by_id(rows, "component") == {f"v{v}": f"v{c}" for v, c in components(wanted[start]).items()}


def test_an_edge_is_removed_in_its_own_direction() -> None:
    """Of a directed graph, the edge back stays."""
    for chance, pieces in histories(HISTORIES, "directed"):
        wanted = versions(pieces, directed=True)
        for start, rows in run(spec_of("degrees", directed=True), pieces, chance).items():
            graph = nx.MultiDiGraph(wanted[start].edges)
            graph.add_nodes_from(wanted[start].vertices)
            assert by_id(rows, "out_degree") == dict(graph.out_degree())


@pytest.mark.parametrize("algorithm", ["connected_components", "bfs", "k_hop", "pagerank"])
def test_changes_are_what_differs_from_the_version_before(algorithm: str) -> None:
    """A reader that keeps the last result of each vertex has all results of each version; and none comes twice."""
    start = {} if algorithm == "connected_components" else {"start": [3]}
    more = {**start, **({"hops": 2} if algorithm == "k_hop" else {})}
    for chance, pieces in histories(HISTORIES // 2, algorithm):
        every = run(spec_of(algorithm, **more), pieces, chance)
        changes = run(spec_of(algorithm, emit="changes", **more), pieces, chance)
        kept: dict[Any, Any] = {}
        for version in versions(pieces):
            for row in changes.get(version, []):
                result = {key: value for key, value in row.items() if not key.startswith("window")}
                assert kept.get(row["id"]) != result
                kept[row["id"]] = result
            wanted = {
                row["id"]: {key: value for key, value in row.items() if not key.startswith("window")}
                for row in every.get(version, [])
            }
            reached = {v: row for v, row in kept.items() if algorithm != "k_hop" or row["depth"] is not None}
            assert reached == wanted


def test_the_state_holds_the_graph_and_little_else() -> None:
    """A thousand versions of an edge each leave few entries: small ones join. What was removed is gone."""
    spec, store = spec_of(emit="changes"), MemoryStore(SCHEMA)
    shard = VersionShard(spec, store)
    written = 0
    for number in range(500):
        row = Row(number * SIZE, number % 300, number % 7, number % 5 == 4, NEVER)
        planned = shard.plan(timely([row]), (number + 1) * SIZE, 1000)
        store.apply(planned.changes)
        written += planned.changes.num_rows - sum(planned.changes[GONE].to_pylist())
    assert len(store) < 60
    assert written < 6_000


def test_an_edge_that_is_added_is_written_a_few_times() -> None:
    """Also if rows take little room as they are written, so that entries are small: one that is full does not join others."""
    spec, store, size = spec_of("degrees"), MemoryStore(SCHEMA), 20_000
    shard = VersionShard(spec, store, lambda *_: Computed(pa.table({"id": [1], "degree": [1]}), 1, 1, 1, "quiescent"))
    written = 0
    for number in range(50):
        ends = np.arange(size * number, size * (number + 1)) // 8
        rows = pa.table({"a": ends, "b": ends + 1, "gone": pa.nulls(size, pa.bool_())})
        changes = shard.plan(
            [Timely(EDGES, rows, np.full(size, number * SIZE), NEVER)], (number + 1) * SIZE, 10
        ).changes
        store.apply(changes)
        edges = pc.and_(pc.starts_with(changes[KEY], EDGES), pc.invert(changes[GONE]))
        written += pc.sum(changes.filter(edges)[ROWS]).as_py()
    assert written < 5 * 50 * size
    assert len(store) < 60


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ({"a": [1], "b": [None], "gone": [False]}, "SX-GRAPH-ID"),
        ({"a": [1], "b": [2]}, "SX-GRAPH-COLUMN"),
        ({"a": [1], "b": [2], "gone": ["yes"]}, "SX-GRAPH-COLUMN"),
        ({"a": ["x"], "b": ["y"], "gone": [False]}, "SX-GRAPH-ID"),
    ],
)
def test_a_bad_row_fails_the_job(table: dict[str, list[Any]], code: str) -> None:
    """Without it each version from there on would be another one."""
    store = MemoryStore(SCHEMA)
    shard = VersionShard(spec_of(), store)
    store.apply(shard.plan(timely([Row(0, 1, 2, False, NEVER)]), 15, 10).changes)
    with pytest.raises(FunctionError) as caught:
        shard.plan([Timely(EDGES, pa.table(table), np.array([20]), 15)], 40, 10)
    assert caught.value.code == code


def test_a_row_that_removes_needs_no_weight() -> None:
    """Only the ends of an edge say which one is removed."""
    spec, store = spec_of("shortest_paths", weight="km", start=[1]), MemoryStore(SCHEMA)
    shard = VersionShard(spec, store)
    rows = pa.table({"a": [1, 1, 1], "b": [2, 3, 2], "km": [1.0, 2.0, None], "gone": [False, None, True]})
    planned = shard.plan([Timely(EDGES, rows, np.array([1, 2, 3]), NEVER)], END, 10)
    assert by_id(planned.results.to_pylist(), "distance") == {1: 0.0, 2: None, 3: 2.0}


def rows_of(spec: GraphSpec, store: MemoryStore, row: Row, clock: int) -> list[dict[str, Any]]:
    """What a shard gives that a peer begins with, for one row."""
    planned = VersionShard(spec, store).plan(timely([row]), clock, 1000)
    store.apply(planned.changes)
    return planned.results.to_pylist()


def test_another_version_of_the_task_gives_what_it_has_not_given() -> None:
    """A job that goes on with the state of another one may give the results other columns, or give changes only from then on. It
    does not take results for known that have not come out so.
    """
    store, few = MemoryStore(SCHEMA), spec_of("degrees", emit="changes")
    assert len(rows_of(few, store, Row(0, 1, 2, False, NEVER), 10)) == 2
    assert [row["id"] for row in rows_of(few, store, Row(10, 3, 4, False, 10), 20)] == [3, 4]
    renamed = spec_of("degrees", emit="changes", id="who")
    assert [row["who"] for row in rows_of(renamed, store, Row(20, 5, 6, False, 20), 30)] == [1, 2, 3, 4, 5, 6]
    assert [row["who"] for row in rows_of(renamed, store, Row(30, 7, 8, False, 30), 40)] == [7, 8]
    every = spec_of("degrees", id="who")
    assert len(rows_of(every, store, Row(40, 1, 8, False, 40), 50)) == 8
    assert len(rows_of(renamed, store, Row(50, 1, 8, True, 50), 60)) == 8
    assert [row["who"] for row in rows_of(renamed, store, Row(60, 2, 9, False, 60), 70)] == [2, 9]


def test_a_program_runs_over_each_version() -> None:
    """From its first superstep on, over all edges that are left: it gives what the declared algorithm gives."""
    program = Program(depth_update, depth_send, params={"start": 3})

    def compute(spec: GraphSpec, graph: Graph) -> Computed:
        return run_program(spec, graph, program)

    given = {"state": "depth bigint", "combine": {"near": "min bigint"}}
    for chance, history in histories(HISTORIES // 2, "program"):
        pieces = [Piece([Row(0, 3, None, False, NEVER)], NEVER), *history]
        found = run(spec_of("program", emit="changes", **given), pieces, chance, compute=compute)
        assert found == run(spec_of("bfs", start=[3], emit="changes"), pieces, chance)


def test_a_vertex_to_begin_at_need_not_be_there_yet() -> None:
    """It is a vertex of each version; without edges no path leads from it."""
    store = MemoryStore(SCHEMA)
    shard = VersionShard(spec_of("bfs", start=[5]), store)
    planned = shard.plan(timely([Row(0, 1, 2, False, NEVER)]), 10, 10)
    assert by_id(planned.results.to_pylist(), "depth") == {1: None, 2: None, 5: 0}


def test_versions_of_days() -> None:
    """The windows of a calendar make versions, too, and the columns that bound them are moments."""
    window = WindowSpec(kind="calendar", unit="day", zone="Europe/Berlin")
    shard = VersionShard(spec_of(window=window), MemoryStore(SCHEMA))
    moment = datetime(2026, 3, 29, 12, tzinfo=UTC)
    rows = pa.table({"a": [1], "b": [2], "gone": [False]})
    at = np.array([int(moment.timestamp() * 1_000_000)])
    (row, _) = shard.plan([Timely(EDGES, rows, at, NEVER)], END, 10).results.to_pylist()
    assert row["window_end"] - row["window_start"] == timedelta(hours=23)
