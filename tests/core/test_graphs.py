"""Graph algorithms against networkx: all graphs of its atlas, named graphs, and bad rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest

from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Computed, Graph, compute
from sardonyx.graphs.rows import read_rows
from tests.core import graph_twin as twin
from tests.sizes import histories

ATLAS = nx.graph_atlas_g()
NAMED = {
    "karate": nx.karate_club_graph(),
    "les miserables": nx.les_miserables_graph(),
    "davis": nx.davis_southern_women_graph(),
    "florentine": nx.florentine_families_graph(),
    "path": nx.path_graph(60),
    "cycle": nx.cycle_graph(31),
    "star": nx.star_graph(40),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(7, 9)),
    "complete": nx.complete_graph(12),
    "barbell": nx.barbell_graph(6, 9),
    "petersen": nx.petersen_graph(),
    "dodecahedron": nx.dodecahedral_graph(),
    "islands": nx.disjoint_union_all([nx.path_graph(4), nx.complete_graph(5), nx.empty_graph(6), nx.star_graph(3)]),
    "dense": nx.gnp_random_graph(60, 0.3, seed=3),
    "sparse": nx.gnp_random_graph(300, 0.006, seed=4),
    "hubs": nx.barabasi_albert_graph(200, 3, seed=5),
    "one vertex": nx.empty_graph(1),
    "self-loop alone": nx.Graph([(0, 0)]),
}

Edge = tuple[Any, Any]


class Case:
    """A graph of networkx as rows: shuffled, its vertices in a table of their own, and how networkx has it."""

    def __init__(self, graph: Any, *, directed: bool, shards: int = 1, seed: int = 0, weights: bool = False) -> None:
        self.nx, self.directed, self.shards = graph, directed, shards
        chance = random.Random(seed)
        self.vertices = list(graph)
        self.edges: list[Edge] = list(graph.edges())
        chance.shuffle(self.edges)
        if not directed:
            self.edges = [(a, b) if chance.random() < 0.5 else (b, a) for a, b in self.edges]
        self.weight = {edge: chance.choice([0, 1, 1, 2, 2.5, 7]) for edge in self.edges} if weights else None

    def run(self, algorithm: str, *, pairs: list[Edge] | None = None, **given: Any) -> Computed:
        spec = spec_of(algorithm, directed=self.directed, weight=None if self.weight is None else "w", **given)
        return compute(spec, table_of(spec, self.edges, self.vertices, self.weight, pairs), self.shards)

    def values(self, algorithm: str, **given: Any) -> dict[Any, Any]:
        rows = self.run(algorithm, **given).rows
        assert len(rows) == len(set(rows["id"].to_pylist()))
        return dict(zip(rows["id"].to_pylist(), rows.column(rows.num_columns - 1).to_pylist(), strict=True))


def spec_of(algorithm: str, **given: Any) -> GraphSpec:
    return GraphSpec(algorithm=algorithm, edges="edges", source="a", target="b", vertices="vertices", **given)  # type: ignore[arg-type]


def table_of(
    spec: GraphSpec, edges: list[Edge], vertices: list[Any], weight: Any = None, pairs: list[Edge] | None = None
) -> Graph:
    kind = pa.string() if any(isinstance(v, str) for v in vertices) else pa.int64()
    rows = pa.table({"a": pa.array([a for a, _ in edges], kind), "b": pa.array([b for _, b in edges], kind)})
    named = {"source": "a", "target": "b"}
    asked = None
    if pairs is not None:
        asked = pa.table({"a": pa.array([a for a, _ in pairs], kind), "b": pa.array([b for _, b in pairs], kind)})
        asked = read_rows(asked, named)
    if weight is not None:
        rows = rows.append_column("w", pa.array([float(weight[edge]) for edge in edges], pa.float64()))
        named["weight"] = "w"
    more = read_rows(pa.table({"id": pa.array(vertices, kind)}), {"vertex": spec.id})
    return Graph(read_rows(rows, named), more, asked)


def looped(graph: Any, seed: int) -> Any:
    """The graph with an edge from some vertices to themselves."""
    found = graph.copy()
    chance = random.Random(seed)
    found.add_edges_from((v, v) for v in graph if chance.random() < 0.5)
    return found


def directed_ways(graph: Any, seed: int) -> Iterator[Any]:
    """The graph with its edges from the lesser vertex to the greater, the reverse, and each in one or both directions."""
    up = nx.DiGraph()
    up.add_nodes_from(graph)
    up.add_edges_from((a, b) if str(a) <= str(b) else (b, a) for a, b in graph.edges())
    yield up
    yield up.reverse()
    chance = random.Random(seed)
    some = up.copy()
    some.add_edges_from((b, a) for a, b in up.edges() if chance.random() < 0.5)
    yield some


def simple(graph: Any) -> Any:
    found = nx.Graph(graph)
    found.remove_edges_from(list(nx.selfloop_edges(found)))
    return found


def components(graph: Any) -> dict[Any, Any]:
    parts = nx.connected_components(nx.Graph(graph))
    return {v: min(part) for part in parts for v in part}


def check(case: Case) -> None:
    """Every algorithm gives what networkx or the definition gives, with a row for each vertex."""
    graph, vertices, edges = case.nx, case.vertices, case.edges
    assert case.values("connected_components") == components(graph)
    assert case.values("k_core") == nx.core_number(simple(graph))
    assert case.values("triangles") == nx.triangles(simple(graph))
    assert case.values("degrees") == dict(graph.degree())
    if case.directed:
        rows = case.run("degrees").rows.to_pylist()
        assert {row["id"]: row["in_degree"] for row in rows} == dict(graph.in_degree())
        assert {row["id"]: row["out_degree"] for row in rows} == dict(graph.out_degree())
    assert case.values("clustering") == twin.clustering(vertices, edges, directed=case.directed)
    if not case.directed:
        assert case.values("clustering") == nx.clustering(simple(graph))
    assert case.values("label_propagation", max_supersteps=4) == twin.propagate(vertices, edges, 4)
    pairs = [(a, b) for a in vertices[:4] for b in vertices]
    found = case.run("common_neighbors", pairs=pairs).rows.to_pylist()
    plain = simple(graph)
    assert [(row["a"], row["b"], row["common"]) for row in found] == [
        (a, b, len(set(plain[a]) & set(plain[b]))) for a, b in pairs
    ]
    assert [row["jaccard"] for row in found if row["a"] != row["b"]] == [
        j for _, _, j in nx.jaccard_coefficient(plain, [(a, b) for a, b in pairs if a != b])
    ]
    if vertices:
        check_from(case, vertices[len(vertices) // 2])
        check_ranks(case)


def check_from(case: Case, start: Any) -> None:
    far = nx.single_source_shortest_path_length(case.nx, start)
    assert case.values("bfs", start=[start]) == {v: far.get(v) for v in case.vertices}
    near = {v: depth for v, depth in far.items() if depth <= 2}
    assert case.values("k_hop", start=[start], hops=2) == near


def check_ranks(case: Case) -> None:
    given: dict[str, Any] = {"directed": case.directed, "damping": 0.85, "supersteps": 10}
    found = case.values("pagerank", max_supersteps=10)
    close(found, twin.pagerank(case.vertices, case.edges, **given), 1e-12)
    start = {v: 1.0 + index for index, v in enumerate(case.vertices[:3])}
    asked = {"start": list(start), "preferences": list(start.values())}
    found = case.values("pagerank", max_supersteps=10, **asked)
    close(found, twin.pagerank(case.vertices, case.edges, start=start, **given), 1e-12)


def close(found: dict[Any, float], wanted: dict[Any, float], most: float) -> None:
    assert found.keys() == wanted.keys()
    assert all(abs(found[v] - wanted[v]) <= most for v in wanted)


@pytest.mark.parametrize("part", range(8))
def test_the_atlas(part: int) -> None:
    """On all graphs of up to seven vertices, directed or not, with self-loops or not, all algorithms give what networkx does."""
    for number in range(part, len(ATLAS), histories(128, whole=32)):
        plain, loops = ATLAS[number], looped(ATLAS[number], number)
        up, down, _ = directed_ways(plain, number)
        *_, some = directed_ways(loops, number)
        for way, graph in enumerate((plain, up, down, loops, some)):
            check(Case(graph, directed=graph.is_directed(), shards=1 + (number + way) % 5, seed=number))


@pytest.mark.parametrize("name", NAMED)
def test_named_graphs(name: str) -> None:
    """So do they on graphs with a name, with texts as vertices, too."""
    for graph in (NAMED[name], looped(NAMED[name], 7)):
        check(Case(graph, directed=False, shards=3, seed=1))
        for one_way in directed_ways(graph, 2):
            check(Case(one_way, directed=True, shards=2, seed=2))


@pytest.mark.parametrize("name", NAMED)
def test_ranks_that_have_converged(name: str) -> None:
    """PageRank with a tolerance is that of networkx, with and without preferred vertices, and says that it has converged."""
    for graph in (NAMED[name], next(directed_ways(NAMED[name], 1))):
        case = Case(graph, directed=graph.is_directed(), seed=5)
        found = case.run("pagerank", tolerance=1e-13)
        assert (found.reason, found.supersteps < 1_000) == ("converged", True)
        start = {v: 1.0 + index for index, v in enumerate(case.vertices[:2])}
        asked = {"start": list(start), "preferences": list(start.values())}
        for wanted, given in ((None, {}), (start, asked)):
            close(
                case.values("pagerank", tolerance=1e-13, **given),
                nx.pagerank(graph, weight=None, personalization=wanted, tol=1e-14, max_iter=2_000),
                1e-10,
            )


def weighted() -> Iterator[tuple[str, Any]]:
    yield from NAMED.items()
    yield from ((f"atlas {number}", ATLAS[number]) for number in range(1, len(ATLAS), histories(25, whole=6)))


def test_shortest_paths() -> None:
    """Distances are those of Dijkstra's algorithm, to the last bit, with weights of 0, and from several vertices at once."""
    for index, (name, graph) in enumerate(weighted()):
        for directed in (False, True):
            one = next(directed_ways(graph, index)) if directed else graph
            case = Case(one, directed=directed, shards=1 + index % 5, seed=index, weights=True)
            assert case.weight is not None
            other = nx.DiGraph() if directed else nx.Graph()
            other.add_nodes_from(case.vertices)
            other.add_weighted_edges_from((a, b, w) for (a, b), w in case.weight.items())
            for start in ({case.vertices[0]}, set(case.vertices[-2:])):
                far = nx.multi_source_dijkstra_path_length(other, start)
                found = case.values("shortest_paths", start=list(start))
                assert found == {v: far.get(v) for v in case.vertices}, (name, directed)


ALL: dict[str, dict[str, Any]] = {
    "pagerank": {"max_supersteps": 12},
    "pagerank with a tolerance": {"tolerance": 1e-9, "start": [3, 4]},
    "bfs": {"start": [5]},
    "shortest_paths": {"start": [5]},
    "connected_components": {},
    "k_core": {},
    "label_propagation": {"max_supersteps": 6},
    "triangles": {},
    "clustering": {},
    "degrees": {},
    "k_hop": {"start": [5], "hops": 3},
    "common_neighbors": {"pairs": [(a, b) for a in range(20) for b in range(20)]},
}


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("algorithm", ALL)
def test_every_number_of_shards_and_every_cut_gives_the_same_bits(algorithm: str, directed: bool) -> None:
    """Shards, the order of the edges and how they are cut into tables change no bit of a result, with parallel edges, too."""
    chance = random.Random(11)
    edges = [(int(chance.paretovariate(0.7)) % 90, chance.randrange(90)) for _ in range(900)]
    weights = [chance.random() * 10 for _ in edges]
    name, given = algorithm.partition(" ")[0], dict(ALL[algorithm])
    pairs = given.pop("pairs", None)
    spec = spec_of(name, directed=directed, weight="w" if name == "shortest_paths" else None, **given)
    columns = {"source": "a", "target": "b"} | ({"weight": "w"} if spec.weight else {})
    asked = None if pairs is None else read_rows(pa.table(_columns(pairs)), columns)
    wanted: bytes | None = None
    for shards in (1, 2, 3, 4, 5):
        order = list(range(len(edges)))
        chance.shuffle(order)
        rows = pa.table({**_columns([edges[place] for place in order]), "w": [weights[place] for place in order]})
        cuts = sorted(chance.sample(range(len(edges)), chance.randrange(6)))
        parts = [rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(edges)], strict=True)]
        read = pa.concat_tables([read_rows(part, columns) for part in parts])
        vertices = read_rows(pa.table({"id": [*range(95)]}), {"vertex": "id"})
        found = _bytes(compute(spec, Graph(read, vertices, asked), shards).rows)
        wanted = wanted or found
        assert found == wanted, shards


def _columns(edges: list[Edge]) -> dict[str, Any]:
    return {"a": pa.array([a for a, _ in edges], pa.int64()), "b": pa.array([b for _, b in edges], pa.int64())}


def _bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows.combine_chunks())
    return sink.getvalue().to_pybytes()


# --- Multigraphs, and graphs that are hardly graphs --------------------------------------------------------------------


def test_parallel_edges() -> None:
    """They count in degrees, ranks and labels, and are one edge to cores, triangles, clustering and pairs."""
    edges = [(1, 2), (1, 2), (2, 1), (2, 3), (3, 1), (1, 1), (4, 2)]
    graph = nx.MultiDiGraph(edges)
    case = Case(graph, directed=True, shards=2)
    check(case)
    assert case.values("degrees") == {1: 6, 2: 5, 3: 2, 4: 1}
    close(case.values("pagerank", tolerance=1e-13), nx.pagerank(graph, tol=1e-14, max_iter=999), 1e-10)


@pytest.mark.parametrize("algorithm", ["pagerank", *(name for name in ALL if "tolerance" not in name)])
@pytest.mark.parametrize("vertices", [0, 1, 5])
def test_a_graph_without_edges(algorithm: str, vertices: int) -> None:
    """Gives a row for each vertex that there is; and an error if it is to begin at a vertex that is not there."""
    given = dict(ALL[algorithm])
    pairs = [(0, 0)] if given.pop("pairs", None) else None
    if "start" in given:
        given["start"] = [0]
    spec = spec_of(algorithm, weight="w" if algorithm == "shortest_paths" else None, **given)
    graph = table_of(spec, [], list(range(vertices)), {} if spec.weight else None, pairs)
    if not vertices and ("start" in given or pairs):
        with pytest.raises(FunctionError) as failure:
            compute(spec, graph)
        assert failure.value.code == "SX-GRAPH-VERTEX"
        return
    rows = compute(spec, graph).rows
    assert rows.num_rows == (1 if algorithm in ("k_hop", "common_neighbors") else vertices)
    assert rows.column_names == list(spec.results)


@pytest.mark.parametrize(
    "ids", [pa.int8(), pa.uint16(), pa.int32(), pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_types_of_vertices(ids: pa.DataType) -> None:
    """Whole numbers of all types are alike, and so are texts."""
    text = not pa.types.is_integer(ids)
    values = [str(each) if text else each for each in (3, 1, 2)]
    column = pa.array(values).dictionary_encode() if pa.types.is_dictionary(ids) else pa.array(values, ids)
    read = read_rows(pa.table({"a": column, "b": column.take(pa.array([1, 2, 0]))}), {"source": "a", "target": "b"})
    rows = compute(GraphSpec(algorithm="connected_components", edges="e", source="a", target="b"), Graph(read)).rows
    least = "1" if text else 1
    assert rows["component"].to_pylist() == [least] * 3
    assert rows["id"].type == (pa.string() if text else pa.int64())


def test_numbers_far_apart() -> None:
    """Numbers that would make a table as long as the memory are vertices like others."""
    low, high = -(2**63), 2**63 - 1
    read = read_rows(pa.table(_columns([(low, high), (high, 5)])), {"source": "a", "target": "b"})
    rows = compute(GraphSpec(algorithm="connected_components", edges="e", source="a", target="b"), Graph(read)).rows
    assert rows.to_pydict() == {"id": [low, 5, high], "component": [low] * 3}


def test_the_sum_of_ranks_is_1() -> None:
    """Rounding loses no rank: their sum is 1 after many supersteps, whatever hangs nowhere."""
    case = Case(nx.gnp_random_graph(500, 0.003, seed=1, directed=True), directed=True)
    assert abs(math.fsum(case.values("pagerank", max_supersteps=300).values()) - 1) < 1e-12
    start = case.vertices[:1]
    assert abs(math.fsum(case.values("pagerank", max_supersteps=300, start=start).values()) - 1) < 1e-12


def test_all_rank_may_move() -> None:
    """Two vertices that hand all of it to each other: the sum of the moves is 2, which is more than a word holds of ranks."""
    found = Case(nx.DiGraph([(0, 1), (1, 0)]), directed=True).run("pagerank", damping=1.0, max_supersteps=2, start=[0])
    assert found.rows["rank"].to_pylist() == [0.5, 0.5]
    assert found.reason == "limit"


def test_a_long_path_takes_few_supersteps() -> None:
    """Components of a path of 20,000 vertices take fewer than twenty supersteps, in whatever order its vertices are."""
    for seed in range(3):
        names = np.random.default_rng(seed).permutation(20_000)
        columns = {"source": pa.chunked_array([names[:-1]]), "target": pa.chunked_array([names[1:]])}
        spec = GraphSpec(algorithm="connected_components", edges="e", source="a", target="b")
        found = compute(spec, Graph(pa.table(columns)))
        assert set(found.rows["component"].to_pylist()) == {0}
        assert found.supersteps < 20


def test_a_hub() -> None:
    """A vertex with an edge to each of 5,000 others has as many triangles as these have edges among them."""
    graph = nx.star_graph(5_000)
    graph.add_edges_from((a, a + 1) for a in range(1, 5_000))
    case = Case(graph, directed=False, shards=2)
    found = case.values("triangles")
    assert (found[0], found[1], found[2]) == (4_999, 1, 2)
    assert case.values("k_core") == nx.core_number(graph)


def test_pairs_of_edges_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at together is limited, and where it is cut changes nothing."""
    case = Case(NAMED["dense"], directed=False, shards=2)
    pairs = [(a, b) for a in range(30) for b in range(30)]
    wanted: list[Any] = [case.values("triangles"), case.run("common_neighbors", pairs=pairs).rows.to_pylist()]
    for most in (1, 7, 100):
        monkeypatch.setattr("sardonyx.graphs.neighbours._AT_ONCE", most)
        assert [case.values("triangles"), case.run("common_neighbors", pairs=pairs).rows.to_pylist()] == wanted


# --- Bad rows ---------------------------------------------------------------------------------------------------------


def _failed(act: Callable[[], object]) -> FunctionError:
    with pytest.raises(FunctionError) as failure:
        act()
    return failure.value


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        ([1.0, None], "null"),
        ([1.0, math.nan], "NaN"),
        ([1.0, -0.5], "negative"),
        ([1, -1], "negative"),
        ([1.0, math.inf], "infinite"),
        (["1", "2"], "weights are numbers"),
        ([True, False], "weights are numbers"),
        ([2**53 + 1, 1], "exactly"),
        ([Decimal("12345678901234567890123.45"), Decimal("1.50")], "exactly"),
        ([None, None], "null"),
    ],
)
def test_bad_weights(weights: list[Any], what: str) -> None:
    """A weight that is no length is an error with its row, and not an edge that is left out."""
    rows = pa.table({"a": [1, 2], "b": [2, 3], "w": weights})
    error = _failed(lambda: read_rows(rows, {"source": "a", "target": "b", "weight": "w"}))
    assert error.code == "SX-GRAPH-WEIGHT"
    assert what in error.message
    assert error.fix


def test_weights_that_are_too_great() -> None:
    """A path whose length is no number is an error, and not an end that is out of reach."""
    spec = GraphSpec(algorithm="shortest_paths", edges="e", source="a", target="b", weight="w", start=[1])
    rows = pa.table({"a": [1, 2], "b": [2, 3], "w": [1.5e308, 1.5e308]})
    read = read_rows(rows, {"source": "a", "target": "b", "weight": "w"})
    assert _failed(lambda: compute(spec, Graph(read))).code == "SX-GRAPH-WEIGHT"


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([1, None]),
        pa.array(["x", None]),
        pa.array([None, None]),
        pa.array([1.0, 2.0]),
        pa.array([math.nan, 2.0]),
        pa.array([True, False]),
        pa.array([[1], [2]]),
        pa.array([b"x", b"y"]),
        pa.array([2**64 - 1, 1], pa.uint64()),
    ],
)
def test_bad_vertices(ids: pa.Array) -> None:
    """What cannot be a vertex is an error that says so."""
    for rows in (pa.table({"a": ids, "b": [1, 2]}), pa.table({"a": [1, 2], "b": ids})):
        error = _failed(lambda rows=rows: read_rows(rows, {"source": "a", "target": "b"}))  # type: ignore[misc]
        assert (error.code, bool(error.fix)) == ("SX-GRAPH-ID", True)


def test_vertices_of_two_types() -> None:
    """Numbers and texts in one graph are an error, in one table or in several."""
    columns = {"source": "a", "target": "b"}
    spec = GraphSpec(algorithm="degrees", edges="e", source="a", target="b", vertices="v")
    numbers = read_rows(pa.table({"a": [1], "b": [2]}), columns)
    mixed = read_rows(pa.table({"a": [1], "b": ["2"]}), columns)
    texts = read_rows(pa.table({"id": ["1"]}), {"vertex": "id"})
    assert _failed(lambda: compute(spec, Graph(mixed))).code == "SX-GRAPH-ID"
    error = _failed(lambda: compute(spec, Graph(numbers, texts)))
    assert error.code == "SX-GRAPH-ID"
    assert "int64" in error.cause
    assert "string" in error.cause


@pytest.mark.parametrize("start", [[9], ["1"], [1, 9]])
def test_a_start_that_is_not_there(start: list[Any]) -> None:
    """A start that is not in the graph is an error that names it, and so is one of another type."""
    columns = {"source": "a", "target": "b"}
    rows = Graph(read_rows(pa.table({"a": [1], "b": [2]}), columns))
    for algorithm in ("bfs", "k_hop", "pagerank"):
        spec = GraphSpec(algorithm=algorithm, edges="e", source="a", target="b", start=start, hops=2)  # type: ignore[arg-type]
        error = _failed(lambda spec=spec: compute(spec, rows))  # type: ignore[misc]
        assert error.code == "SX-GRAPH-VERTEX"
        assert repr(start[-1]) in error.message
    spec = GraphSpec(algorithm="bfs", edges="e", source="a", target="b", start=[1, "2"])
    assert _failed(lambda: compute(spec, rows)).code == "SX-GRAPH-ID"


def test_a_column_that_is_not_there() -> None:
    """The error names the columns that there are."""
    error = _failed(lambda: read_rows(pa.table({"a": [1]}), {"source": "a", "target": "b"}))
    assert (error.code, error.cause) == ("SX-GRAPH-COLUMN", "they have a")
