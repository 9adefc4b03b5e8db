"""Users' programs over graphs: equal to the declared algorithms, the same bits however graphs are divided, and their limits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import networkx as nx
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sardonyx import Superstep, Vertex, VertexProgram
from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Computed, Graph, compute
from sardonyx.graphs.programs import Program, run_program
from sardonyx.graphs.rows import read_rows
from tests.core.graph_programs import CLASSES, depth_send, depth_update, of, rank_send, rank_update, spec
from tests.core.test_graphs import ATLAS, NAMED, Case, directed_ways, looped, table_of
from tests.sizes import histories

# --- Equal to the declared algorithms ---------------------------------------------------------------------------------


def values(computed: Computed) -> dict[Any, Any]:
    rows = computed.rows
    assert rows.num_columns == 2
    return dict(zip(rows["id"].to_pylist(), rows.column(1).to_pylist(), strict=True))


def run(case: Case, algorithm: str, params: dict[str, Any], *, of_class: bool, **given: Any) -> Computed:
    kind = "string" if case.vertices and isinstance(case.vertices[0], str) else "bigint"
    update, send, task = of(algorithm, kind, directed=case.directed, **given)
    if of_class:
        update, send = CLASSES[algorithm], None
        task = msgspec.structs.replace(task, always=False)
    graph = table_of(task, case.edges, case.vertices, case.weight)
    return run_program(task, graph, Program(update, send, params=params), case.shards)


def check(case: Case, *, of_class: bool) -> None:
    """A program gives what the declared algorithm gives on the same graph, with a row for each vertex."""
    both = Case(case.nx.to_undirected() if case.directed else case.nx, directed=False, shards=case.shards, seed=3)
    found = run(both, "connected_components", {}, of_class=of_class)
    assert values(found) == both.values("connected_components")
    if not case.vertices:
        return
    start = case.vertices[len(case.vertices) // 2]
    found = run(case, "bfs", {"start": start}, of_class=of_class)
    assert (values(found), found.reason) == (case.values("bfs", start=[start]), "quiescent")
    found = run(case, "pagerank", {}, of_class=of_class, max_supersteps=11)
    ranks = case.values("pagerank", max_supersteps=10)
    assert (found.supersteps, found.reason) == (11, "limit")
    assert max(abs(rank - ranks[v]) for v, rank in values(found).items()) < 1e-12
    if not of_class:
        found = run(both, "label_propagation", {}, of_class=False, max_supersteps=5)
        assert values(found) == both.values("label_propagation", max_supersteps=4)


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_the_atlas(part: int, of_class: bool) -> None:
    """On all graphs of up to seven vertices, with directions and self-loops or without, programs are equal to the declared
    algorithms, in both forms.
    """
    for number in range(part, len(ATLAS), histories(64, whole=16)):
        plain, loops = ATLAS[number], looped(ATLAS[number], number)
        up, *_, some = directed_ways(loops, number)
        graph = (plain, up, loops, some)[number // 4 % 4]
        check(Case(graph, directed=graph.is_directed(), shards=1 + number % 5, seed=number), of_class=of_class)


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_named_graphs(name: str, of_class: bool) -> None:
    """So they are on graphs with a name, with texts as vertices, too; and distances are to the last bit."""
    for index, graph in enumerate((NAMED[name], *directed_ways(looped(NAMED[name], 7), 2))):
        check(Case(graph, directed=graph.is_directed(), shards=1 + index, seed=index), of_class=of_class)
        case = Case(graph, directed=graph.is_directed(), shards=1 + index, seed=index, weights=True)
        start = case.vertices[0]
        found = run(case, "shortest_paths", {"start": start}, of_class=of_class)
        wanted = case.values("shortest_paths", start=[start])
        assert values(found) == {v: math.inf if far is None else far for v, far in wanted.items()}


@pytest.mark.parametrize("of_class", [False, True])
def test_ranks_that_have_converged(of_class: bool) -> None:
    """A program ends when its condition holds of an aggregate, and says so."""
    for name in ("karate", "les miserables", "islands", "star"):
        case = Case(NAMED[name], directed=False, shards=2, seed=5)
        found = run(case, "pagerank", {}, of_class=of_class, until="moved < 1e-13")
        assert (found.reason, 10 < found.supersteps < 1_000) == ("converged", True)
        wanted = nx.pagerank(NAMED[name], weight=None, tol=1e-14, max_iter=2_000)
        assert max(abs(rank - wanted[v]) for v, rank in values(found).items()) < 1e-10
        assert 0 <= found.aggregates["moved"] < 1e-13


# --- The same bits ----------------------------------------------------------------------------------------------------


def _bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows.combine_chunks())
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("algorithm", ["pagerank", "bfs", "connected_components", "shortest_paths"])
def test_every_number_of_shards_and_every_order_of_edges_gives_the_same_bits(algorithm: str, of_class: bool) -> None:
    """Also of sums of doubles, which depend on their order if they are just added up."""
    chance = random.Random(11)
    edges = [(int(chance.paretovariate(0.7)) % 90, chance.randrange(90)) for _ in range(900)]
    weight = [chance.random() * 10 for _ in edges]
    given = {"max_supersteps": 12} if algorithm == "pagerank" else {}
    update, send, task = of(algorithm, "bigint", **given)
    if of_class:
        update, send, task = CLASSES[algorithm], None, msgspec.structs.replace(task, always=False)
    params = {"start": 5} if algorithm in ("bfs", "shortest_paths") else {}
    wanted: bytes | None = None
    for shards in (1, 2, 3, 5):
        order = chance.sample(range(len(edges)), len(edges))
        rows = pa.table(
            {
                "a": [edges[place][0] for place in order],
                "b": [edges[place][1] for place in order],
                "w": [weight[place] for place in order],
            }
        )
        columns = {"source": "a", "target": "b"} | ({"weight": "w"} if task.weight else {})
        vertices = read_rows(pa.table({"id": [*range(95)]}), {"vertex": "id"})
        graph = Graph(read_rows(rows, columns), vertices)
        found = _bytes(run_program(task, graph, Program(update, send, params=params), shards).rows)
        wanted = wanted or found
        assert found == wanted, shards


# --- Supersteps, aggregates, the master -------------------------------------------------------------------------------

LINE = Graph(pa.table({"source": [0, 1, 2, 3], "target": [1, 2, 3, 4], "weight": [1.0, 1.0, 1.0, 1.0]}))
DEPTHS: dict[str, Any] = {"state": "depth bigint", "combine": {"near": "min bigint"}, "vertices": None}


def test_a_limit_is_said_when_it_is_reached_and_only_then() -> None:
    """A program that ends by itself in as many supersteps as it may has not reached a limit."""
    program = Program(depth_update, depth_send, params={"start": 0})
    for most, reason, depths in (
        (4, "limit", [0, 1, 2, 3, None]),
        (5, "quiescent", [0, 1, 2, 3, 4]),
        (None, "quiescent", [0, 1, 2, 3, 4]),
    ):
        found = run_program(spec(max_supersteps=most, **DEPTHS), LINE, program)
        assert (found.reason, found.supersteps, found.rows["depth"].to_pylist()) == (reason, most or 5, depths)
    assert spec(**DEPTHS).converges
    assert not spec(max_supersteps=4, **DEPTHS).converges
    assert spec(max_supersteps=4, until="x < 1", **DEPTHS).converges


def test_only_vertices_with_messages_are_called_again() -> None:
    """And those that say that they are active. What sends is what has changed, or what says so."""
    called: list[list[int]] = []
    sent: list[list[int]] = []

    def update(v: pa.Table, step: Superstep) -> pa.Table:
        called.append(v["id"].to_pylist())
        if step.number == 0:
            here = pc.equal(v["id"], 0)
            return pa.table({"n": pc.if_else(here, 1, v["n"]), "active": pc.equal(v["id"], 3)})
        return pa.table({"n": pc.coalesce(v["seen"], v["n"]), "send": pc.less(v["id"], 2)})

    def send(e: pa.Table) -> pa.Table:
        sent.append(e["a"].to_pylist())
        return pa.table({"seen": e["n"]})

    task = spec(state="n bigint", first={"n": 0}, combine={"seen": "max bigint"}, vertices=None)
    found = run_program(task, LINE, Program(update, send))
    assert called == [[0, 1, 2, 3, 4], [1, 3], [2]]
    assert sent == [[0], [1]]
    assert (found.rows["n"].to_pylist(), found.supersteps) == ([1, 1, 1, 0, 0], 3)


def test_the_master_sees_the_aggregates_changes_them_and_ends_the_program() -> None:
    """It is called once after each superstep, whatever the number of shards."""
    seen: list[tuple[int, Any]] = []

    def update(v: pa.Table, step: Superstep) -> pa.Table:
        added = step.aggregates.get("grow", 1)
        n = pc.add(v["n"], added)
        return pa.table({"n": n, "total": n, "mean": pc.cast(n, pa.float64()), "most": v["id"]})

    def master(step: Superstep, top: int) -> dict[str, Any]:
        seen.append((step.number, dict(step.aggregates)))
        if step.aggregates["total"] > top:
            step.finish()
        return {"grow": 10 * (step.number + 1)}

    task = spec(
        state="n bigint",
        first={"n": 0},
        always=True,
        aggregate={"total": "sum", "mean": "mean", "most": "max"},
        vertices=None,
        master="m:master",
    )
    for shards in (1, 3):
        seen.clear()
        found = run_program(task, LINE, Program(update, None, master, params={"top": 100}), shards)
        assert seen == [
            (0, {"total": 5, "mean": 1.0, "most": 4}),
            (1, {"total": 55, "mean": 11.0, "most": 4}),
            (2, {"total": 155, "mean": 31.0, "most": 4}),
        ]
        assert (found.reason, found.supersteps, found.rows["n"].to_pylist()) == ("finished", 3, [31] * 5)


def test_nulls_are_no_messages() -> None:
    """A row of nulls sends nothing along its edge; each column of the messages is combined by itself."""

    def update(v: pa.Table, step: Superstep) -> pa.Table:
        if step.number == 0:
            return pa.table({"text": pc.cast(v["id"], pa.string()), "n": v["n"]})
        return pa.table({"text": pc.coalesce(v["name"], v["text"]), "n": pc.coalesce(v["count"], v["n"])})

    def send(e: pa.Table, step: Superstep) -> pa.Table:
        even = pc.equal(pc.bit_wise_and(e["a"], 1), 0)
        name = pc.if_else(even, e["text"], None)
        return (
            pa.table({"name": name, "count": pc.if_else(pc.greater(e["b"], 3), 1, None)})
            if step.number == 0
            else (pa.table({"name": pa.nulls(len(e), pa.string())}))
        )

    task = spec(state="text string, n bigint", combine={"name": "max string", "count": "sum bigint"}, vertices=None)
    for shards in (1, 2):
        found = run_program(task, LINE, Program(update, send), shards).rows
        assert found["text"].to_pylist() == ["0", "0", "2", "2", "4"]
        assert found["n"].to_pylist() == [None, None, None, None, 1]


def test_columns_of_edges() -> None:
    """Functions are given the weight and further columns of edges, of any type, with nulls where the rows have them."""

    def update(v: pa.Table) -> pa.Table:
        return pa.table({"seen": pc.coalesce(pc.binary_join(v["said"], " "), v["seen"]), "send": pc.is_null(v["said"])})

    def send(e: pa.Table) -> pa.Table:
        assert e.column_names == ["a", "b", "w", "kind", "at", "out_degree", "seen"]
        kind = pc.fill_null(e["kind"], "?")
        return pa.table({"said": pc.binary_join_element_wise(kind, pc.cast(e["w"], pa.string()), "")})

    rows = pa.table({"a": [1, 2, 3], "b": [9, 9, 9], "w": [2, 1, 3], "kind": ["x", None, "x"], "at": [[1], [2], None]})
    columns = {"source": "a", "target": "b", "weight": "w", "column:kind": "kind", "column:at": "at"}
    task = spec(
        state="seen string", combine={"said": "collect string"}, weight="w", columns=["kind", "at"], vertices=None
    )
    found = run_program(task, Graph(read_rows(rows, columns)), Program(update, send)).rows
    assert found["seen"].to_pylist() == [None, None, None, "?1 x2 x3"]


# --- The class form ---------------------------------------------------------------------------------------------------


class Gather(VertexProgram):
    """Sends to vertices that no edge leads to, and keeps all messages, in the order of their senders."""

    def compute(self, vertex: Vertex, messages: Iterator[int]) -> None:
        if self.superstep == 0:
            self.send(0, vertex.id)
            self.send(0, -vertex.id)
        elif self.superstep == 1:
            vertex.value = ",".join(map(str, messages))
        self.aggregate("calls", 1)
        if self.superstep == 2 or vertex.id != 3:
            vertex.halt()


def test_messages_go_to_any_vertex_and_come_in_the_order_of_their_senders() -> None:
    """Without a combiner all messages come. A vertex is called until it halts, and again when a message comes."""
    task = spec(state="value string", aggregate={"calls": "sum"}, vertices=None)
    for shards in (1, 2, 5):
        found = run_program(task, LINE, Program(Gather), shards)
        assert found.rows["value"].to_pylist() == ["0,0,1,-1,2,-2,3,-3,4,-4", None, None, "", None]
        assert (found.supersteps, found.reason, found.aggregates) == (3, "quiescent", {"calls": 1})


class Several(VertexProgram):
    def __init__(self) -> None:  # and does not call that of the base
        self.factor = 2

    def compute(self, vertex: Vertex, messages: Iterator[int]) -> None:
        vertex.value = {
            "n": len(vertex.out_edges) * self.factor,
            "far": [edge.value["w"] for edge in vertex.out_edges][:1],
        }
        vertex.value["far"] = sum(vertex.value["far"])
        vertex.halt()


def test_a_state_and_edges_of_several_columns() -> None:
    """They are mappings, and a class may have attributes of its own."""
    rows = read_rows(
        pa.table({"a": [1, 1], "b": [2, 3], "w": [1.5, 1.5], "kind": ["x", "y"]}),
        {"source": "a", "target": "b", "weight": "w", "column:kind": "kind"},
    )
    task = spec(state="n bigint, far double", weight="w", columns=["kind"], vertices=None)
    found = run_program(task, Graph(rows), Program(Several)).rows
    assert found.to_pylist() == [
        {"id": 1, "n": 4, "far": 1.5},
        {"id": 2, "n": 0, "far": 0.0},
        {"id": 3, "n": 0, "far": 0.0},
    ]


# --- What functions get wrong -----------------------------------------------------------------------------------------


def table(**columns: Any) -> Callable[[pa.Table], pa.Table]:
    """A function that returns columns: values for all rows, or what a function makes of the table."""

    def made(rows: pa.Table) -> pa.Table:
        said = {name: each(rows) if callable(each) else [each] * len(rows) for name, each in columns.items()}
        return pa.table(said)

    return made


WRONG: list[tuple[str, Any, Any, dict[str, Any]]] = [
    ("update returned NoneType, and no pyarrow.Table", lambda v: None, None, {}),
    ("update returned 4 rows for 5", lambda v: v.select(["n"]).slice(1), None, {}),
    ("update returned column 'm', which stands for nothing", table(m=1), None, {}),
    ("update returned column 'n' as string, which does not fit int64", table(n="x"), None, {}),
    ("update returned column 'n' as double, which does not fit int64", table(n=1.5), None, {}),
    ("update left out column 'total'", table(n=1), None, {"aggregate": {"total": "sum"}}),
    ("'total' as string, of which there is no sum", table(n=1, total="x"), None, {"aggregate": {"total": "sum"}}),
    ("update returned column 'send' as string", table(n=1, send="x"), None, {}),
    ("send returned dict, and no pyarrow.Table", table(n=1), lambda e: {"via": [1]}, {}),
    ("send returned 3 rows for 4", table(n=1), lambda e: pa.table({"via": [1, 2, 3]}), {}),
    ("send returned column 'vai', which stands for nothing", table(n=1), table(vai=1), {}),
    ("send returned column 'via' as string, which does not fit int64", table(n=1), table(via="x"), {}),
    (
        "send sent messages 'via' whose sum is too great",
        table(n=1),
        table(via=2**62),
        {"combine": {"via": "sum bigint"}},
    ),
]


@pytest.mark.parametrize(("said", "update", "send", "given"), WRONG, ids=[each[0] for each in WRONG])
def test_what_functions_must_not_return(said: str, update: Any, send: Any, given: dict[str, Any]) -> None:
    """Rows too few, other columns and other types are errors that say what was returned and what to do; never a short result."""
    update.__name__ = "update"
    if send is not None:
        send.__name__ = "send"
    task = spec(**{"state": "n bigint", "combine": {"via": "min bigint"}, "vertices": None, **given})
    star = Graph(pa.table({"source": [0, 1, 2, 3], "target": [4, 4, 4, 4]}))
    with pytest.raises(FunctionError) as failure:
        run_program(task, star, Program(update, send))
    assert failure.value.code == "SX-GRAPH-RESULT"
    assert said in failure.value.message
    assert failure.value.fix


def test_a_master_returns_a_mapping() -> None:
    """Or nothing."""
    task = spec(state="n bigint", vertices=None)
    with pytest.raises(FunctionError, match="master returned int, and no mapping"):
        run_program(task, LINE, Program(table(n=1), None, _one_master))


def _one_master(step: Superstep) -> int:
    return 1


def class_of(compute: Callable[[Any, Any, Any], None]) -> type[VertexProgram]:
    return type("Odd", (VertexProgram,), {"compute": compute})


ODD: list[tuple[str, str, Callable[[Any, Any, Any], None], dict[str, Any]]] = [
    ("SX-GRAPH-VERTEX", "sent a message to 77", lambda self, v, m: self.send(77, 1), {}),
    ("SX-GRAPH-RESULT", "sent None as a message", lambda self, v, m: self.send(0, None), {}),
    (
        "SX-GRAPH-RESULT",
        "sent [1], which is not a number",
        lambda self, v, m: self.send(0, [1]),
        {"combine": {"x": "sum bigint"}},
    ),
    (
        "SX-GRAPH-RESULT",
        "the aggregate 'total', which is not declared",
        lambda self, v, m: self.aggregate("total", 1),
        {},
    ),
    ("SX-GRAPH-RESULT", "left values in 'n' that do not fit int64", lambda self, v, m: _set(v, "x"), {}),
    (
        "SX-GRAPH-RESULT",
        "not a state of several columns",
        lambda self, v, m: _set(v, 1),
        {"state": "n bigint, m bigint"},
    ),
]


def _set(vertex: Vertex, value: Any) -> None:
    vertex.value = value
    vertex.halt()


@pytest.mark.parametrize(("code", "said", "act", "given"), ODD, ids=[each[1] for each in ODD])
def test_what_classes_must_not_do(code: str, said: str, act: Any, given: dict[str, Any]) -> None:
    """The error names the vertex, or the value."""
    with pytest.raises(FunctionError) as failure:
        run_program(spec(**{"state": "n bigint", "vertices": None, **given}), LINE, Program(class_of(act)))
    assert failure.value.code == code
    assert said in failure.value.message
    assert failure.value.fix


def test_columns_of_several_types() -> None:
    """A column that is a number in one batch and a text in another is an error, and nulls fit every type."""
    from sardonyx.graphs.rows import joined

    columns = {"source": "a", "target": "b", "column:k": "k"}
    parts = [read_rows(pa.table({"a": [1], "b": [2], "k": pa.array([k])}), columns) for k in (None, 1, "x")]
    assert joined(parts[:2])["column:k"].to_pylist() == [None, 1]
    with pytest.raises(FunctionError, match="'k' of the edges of a graph has several types") as failure:
        joined(parts)
    assert failure.value.code == "SX-GRAPH-COLUMN"


def test_programs_and_algorithms_take_the_same_rows() -> None:
    """So that what is said of bad rows of graphs holds for programs."""
    task: GraphSpec = spec(
        state="rank double",
        combine={"share": "sum double"},
        vertices=None,
        max_supersteps=3,
        always=True,
        aggregate={"lost": "sum", "moved": "sum"},
    )
    names = Graph(pa.table({"source": ["a", "b"], "target": ["b", "c"]}))
    found = run_program(task, names, Program(rank_update, rank_send))
    wanted = compute(GraphSpec(algorithm="pagerank", edges="e", source="a", target="b", max_supersteps=2), names)
    assert found.rows["id"].to_pylist() == wanted.rows["id"].to_pylist() == ["a", "b", "c"]
    mixed = Graph(pa.table({"source": ["a"], "target": [1]}))
    with pytest.raises(FunctionError) as failure:
        run_program(task, mixed, Program(rank_update, rank_send))
    assert failure.value.code == "SX-GRAPH-ID"
