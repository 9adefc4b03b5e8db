"""Graphs in a job: what users write, what ``check`` finds, what comes out, and that crashes change nothing of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx
import pyarrow as pa
import pytest

from peer.graph_operator import GraphOperator
from peer.operators import Asked, Read, Stores
from sardonyx import Job, JobFailed, blackhole, files, generator, kafka, tumbling
from sardonyx.cli.graph_text import computed_text
from sardonyx.client.task_state import _readable
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import InternalError, SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.plan import plan_of
from sardonyx.core.redoing import redo_spec
from sardonyx.job.graphing import GraphView
from sardonyx.job.parse import read
from sardonyx.state.base import GONE
from sardonyx.state.graph_rows import EDGES, PAIRS, VERTICES, GraphShard, has_rows
from sardonyx.state.memory import MemoryStore
from sardonyx.state.planned import Piece
from sardonyx.state.release import holds_rows
from sardonyx.state.window_rows import SCHEMA
from sardonyx.testing import ClockedRun, run_job
from tests import sizes
from tests.core.window_jobs import each, found, only

KARATE = nx.karate_club_graph()
LINKS = [{"src": a, "dst": b, "km": float(1 + (a * b) % 5)} for a, b in KARATE.edges()]
FOLLOWS = "src long, dst long, km double"


def a_job(add: Callable[[GraphView], Any] | None = None, *, end: str | None = "latest", **given: Any) -> Job:
    """A good job with a graph, for tests to spoil."""
    job = Job("web")
    links = job.input("links", kafka("links", schema=FOLLOWS, start="earliest", end=end))
    graph = job.graph("web", **{"edges": links, "source": "src", "target": "dst", **given})
    task = (add or (lambda view: view.pagerank("ranks")))(graph)
    job.output("out", blackhole(), after=task)
    return job


def values(rows: list[dict[str, Any]], column: str) -> dict[Any, Any]:
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row[column] for row in rows}


def of_all(graph: GraphView, pairs: Any) -> list[Any]:
    return [
        graph.pagerank("ranks", tolerance=1e-13),
        graph.pagerank("preferred", tolerance=1e-13, start={0: 1.0, 33: 3.0}),
        graph.bfs("depths", start=16),
        graph.k_hop("near", start=[16], hops=2),
        graph.shortest_paths("distances", start=16, weight="km"),
        graph.connected_components("components"),
        graph.k_core("cores"),
        graph.label_propagation("labels", max_supersteps=5),
        graph.triangles("corners"),
        graph.clustering("clusters"),
        graph.degrees("degrees"),
        graph.common_neighbors("common", pairs=pairs),
    ]


@pytest.mark.parametrize("batch_size", [3, 50_000])
def test_all_algorithms_of_a_job(batch_size: int) -> None:
    """Each task gives what networkx gives, however few rows its batches have; a vertex without edges has its row."""
    job = Job("club")
    links = job.input("links", files("links.csv", format="csv", schema=FOLLOWS))
    people = job.input("people", files("people.csv", format="csv", schema="id long"))
    club = job.graph("club", edges=links, source="src", target="dst", vertices=people, directed=False)
    for task in of_all(club, links):
        job.output(f"out-{task.name}", blackhole(), after=task)
    members = [{"id": number} for number in range(36)]
    result = run_job(job, {"links": LINKS, "people": members}, batch_size=batch_size)
    graph = KARATE.copy()
    graph.add_nodes_from(range(36))
    nx.set_edge_attributes(graph, {(row["src"], row["dst"]): row["km"] for row in LINKS}, "km")
    depths = nx.single_source_shortest_path_length(graph, 16)
    distances = nx.single_source_dijkstra_path_length(graph, 16, weight="km")
    exact = {
        "depths": ("depth", {v: depths.get(v) for v in graph}),
        "near": ("depth", {v: depth for v, depth in depths.items() if depth <= 2}),
        "distances": ("distance", {v: distances.get(v) for v in graph}),
        "components": ("component", {v: 0 if v < 34 else v for v in graph}),
        "cores": ("core", nx.core_number(graph)),
        "corners": ("triangles", nx.triangles(graph)),
        "clusters": ("clustering", nx.clustering(graph)),
        "degrees": ("degree", dict(graph.degree())),
    }
    for task, (column, wanted) in exact.items():
        assert values(result.rows(f"out-{task}"), column) == wanted, task
    for task, start in (("ranks", None), ("preferred", {0: 1.0, 33: 3.0})):
        ranks = values(result.rows(f"out-{task}"), "rank")
        wanted = nx.pagerank(graph, weight=None, personalization=start, tol=1e-14, max_iter=999)
        assert ranks.keys() == wanted.keys()
        assert max(abs(ranks[v] - wanted[v]) for v in wanted) < 1e-10
    labels = values(result.rows("out-labels"), "label")
    assert (len(labels), labels[34]) == (36, 34)
    common = result.rows("out-common")
    assert sorted((row["src"], row["dst"], row["common"]) for row in common) == sorted(
        (a, b, len(list(nx.common_neighbors(graph, a, b)))) for a, b in graph.edges()
    )


def test_texts_as_vertices_and_an_edge_with_a_condition() -> None:
    """Only the rows that meet a condition are edges; vertices are texts as they are; a task may read what a graph gives."""
    job = Job("names")
    links = job.input("links", files("links.csv", format="csv", schema="a string, b string, kind string"))
    graph = job.graph("names", edges=links.where(is_x), source="a", target="b", id="name")
    job.output("out", blackhole(), after=graph.connected_components("components"))
    rows = [{"a": "é", "b": "z", "kind": "x"}, {"a": "z", "b": "q", "kind": "y"}, {"a": "", "b": "é", "kind": "x"}]
    assert run_job(job, {"links": rows}).rows() == [
        {"name": "", "component": ""},
        {"name": "z", "component": ""},
        {"name": "é", "component": ""},
    ]


def is_x(row: dict) -> bool:
    return row["kind"] == "x"


def test_no_start_in_an_empty_graph() -> None:
    """A graph without edges in which paths are to begin fails the job: no row would say less than that."""
    job = a_job(lambda graph: graph.bfs("depths", start=1))
    with pytest.raises(JobFailed) as failure:
        run_job(job, {"links": []})
    assert failure.value.code == "SX-GRAPH-VERTEX"


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([{"src": 1, "dst": None, "km": 1.0}], "SX-GRAPH-ID"),
        ([{"src": 1, "dst": 2, "km": None}], "SX-GRAPH-WEIGHT"),
        ([{"src": 1, "dst": 2, "km": math.nan}], "SX-GRAPH-WEIGHT"),
        ([{"src": 1, "dst": 2, "km": -1.0}], "SX-GRAPH-WEIGHT"),
        ([{"src": 5, "dst": 2, "km": 1.0}], "SX-GRAPH-VERTEX"),
    ],
)
def test_a_bad_row_fails_the_job(rows: list[dict[str, Any]], code: str) -> None:
    """It gives no result at all, and says which task and row it is about."""
    job = Job("bad")
    links = job.input("links", files("links.csv", format="csv", schema=FOLLOWS))
    graph = job.graph("bad", edges=links, source="src", target="dst")
    job.output(
        "out",
        blackhole(),
        after=graph.shortest_paths("paths", start=1 if code != "SX-GRAPH-VERTEX" else 77, weight="km"),
    )
    schema = pa.schema({"src": pa.int64(), "dst": pa.int64(), "km": pa.float64()})
    with pytest.raises(JobFailed) as failure:
        run_job(job, {"links": pa.Table.from_pylist([LINKS[0], *rows], schema)})
    assert failure.value.code == code
    assert failure.value.where["task"] == "paths"


# --- Crashes ----------------------------------------------------------------------------------------------------------


def club() -> Job:
    job = Job("club", partitions=3)
    links = job.input("links", kafka("links", schema=FOLLOWS, start="earliest", end="latest"))
    graph = job.graph("club", edges=links, source="src", target="dst", directed=False)
    for task in (graph.pagerank("ranks"), graph.shortest_paths("distances", start=0, weight="km")):
        job.output(f"out-{task.name}", kafka(task.name), after=task)
    return job


def histories(count: int) -> Iterator[random.Random]:
    return (random.Random(f"graphs/{number}") for number in range(count))


def messages(run: ClockedRun) -> dict[str, list[Any]]:
    return {task: sorted(run.messages(task)) for task in ("out-ranks", "out-distances")}


def test_crashes_change_no_bit() -> None:
    """Peers die while edges are loaded, as all are computed, and between parts of the results: each comes once, the same."""
    run = ClockedRun(club(), batch_size=4, topics={"links": 2})
    for number, row in enumerate(LINKS):
        run.give("links", [row], number % 2)
    run.end()
    wanted = messages(run)
    assert {task: len(rows) for task, rows in wanted.items()} == {"out-ranks": 34, "out-distances": 34}
    run.close()
    for chance in histories(sizes.histories(6, whole=30)):
        run = ClockedRun(club(), batch_size=chance.choice([1, 4, 11, 1000]), topics={"links": 2})
        order = chance.sample(LINKS, len(LINKS))
        while order:
            if chance.random() < 0.4:
                run.crash(chance.choice(["ranks", "distances"]), chance.choice(["settled", "applied", "committed"]))
            count = chance.randint(1, 20)
            run.give("links", order[:count], chance.randrange(2))
            del order[:count]
        for task in ("ranks", "distances"):
            run.crash(task, chance.choice(["settled", "applied", "committed"]))
        run.end()
        assert messages(run) == wanted
        run.close()


def test_a_shard_gives_all_results_once_whoever_goes_on() -> None:
    """Plans are made again, given up, and made by others from what is committed: results come in parts, each once, and all of
    one computation.
    """
    spec = GraphSpec(algorithm="common_neighbors", edges="e", source="src", target="dst", pairs="p", vertices="v")
    pairs = [(row["src"], row["dst"]) for row in LINKS]
    wanted = [(a, b, len(list(nx.common_neighbors(KARATE, a, b)))) for a, b in pairs]
    for chance in histories(sizes.histories(20, whole=50)):
        store, limit = MemoryStore(SCHEMA), chance.choice([1, 7, 30, 1000])
        given = [(EDGES, row) for row in LINKS] + [(PAIRS, row) for row in LINKS] + [(VERTICES, {"id": 99})]
        chance.shuffle(given)
        while given:
            count = chance.randint(1, 30)
            pieces = [(kind, pa.Table.from_pylist([row])) for kind, row in given[:count]]
            del given[:count]
            found = GraphShard(spec, store).plan(pieces, 0, limit)
            if chance.random() < 0.5:
                found = GraphShard(spec, store).plan(pieces, 0, limit)
            assert (found.results.num_rows, found.more, found.computed) == (0, False, None)
            store.apply(found.changes)
            assert has_rows(store)
        results, parts, more = [], 0, True
        while more:
            found = GraphShard(spec, store).plan([], END, limit)
            again = GraphShard(spec, store).plan([], END, limit)
            assert (found.results, found.more) == (again.results, again.more)
            assert (found.computed is None) == (parts > 0)
            store.apply(found.changes)
            results += found.results.to_pylist()
            parts, more = parts + 1, found.more
        assert sorted((row["src"], row["dst"], row["common"]) for row in results) == sorted(wanted)
        assert parts >= len(wanted) / (limit + len(wanted) * (limit == 1000))
        assert not has_rows(store)
        last = GraphShard(spec, store).plan([], END, limit)
        assert (last.results.num_rows, last.computed, last.changes.num_rows) == (0, None, 0)


def test_no_row_is_left_out_that_comes_where_the_graph_is_not() -> None:
    """All rows are in partition 0. A defect that brings them in another one fails the task, and loses nothing in silence."""
    spec = a_job().spec()
    operator = GraphOperator(graph_of(spec, "d", "j-1").stage("ranks"), 100)
    stores = Stores(lambda name, schema: MemoryStore(schema))
    read = Read(0, Piece(pa.Table.from_pylist(LINKS), NEVER), None)
    with pytest.raises(InternalError, match=f"{len(LINKS)} rows") as raised:
        operator.plan([Asked(1, stores, [read], NEVER, NEVER, 0)])
    assert raised.value.code == "SX-GRAPH-PARTITION"
    assert operator.plan([Asked(1, stores, [], NEVER, NEVER, 0)])[0].results.num_rows == 0


def test_a_large_batch_is_cut_into_entries_that_fit_a_message() -> None:
    """No entry is larger than a message of the state log, whatever the rows."""
    store, names = MemoryStore(SCHEMA), [f"{number:0200x}" for number in range(20_000)]
    spec = GraphSpec(algorithm="degrees", edges="e", source="a", target="b")
    changes = GraphShard(spec, store).plan([(EDGES, pa.table({"a": names, "b": names[::-1]}))], 0, 1000).changes
    assert max(len(value or b"") for value in changes["sx_ipc"].to_pylist()) < 500_000
    assert changes.num_rows > 2
    assert not any(changes[GONE].to_pylist())
    store.apply(changes)
    found = GraphShard(spec, store).plan([], END, 1000)
    assert (found.computed is not None and found.computed.rows.num_rows, found.more) == (20_000, True)


# --- What check says --------------------------------------------------------------------------------------------------


def test_the_same_job_as_data() -> None:
    """A job file says the same as the builder."""
    job = a_job(lambda graph: graph.pagerank("ranks", start={1: 2, 7: 1}), directed=False)
    task = job.spec().task("ranks")
    assert task.graph == GraphSpec(
        algorithm="pagerank",
        graph="web",
        edges="links",
        source="src",
        target="dst",
        directed=False,
        start=[1, 7],
        preferences=[2.0, 1.0],
    )
    assert (task.type, task.max_peers) == ("function", 1)
    data = job.data()
    graph = {
        "algorithm": "pagerank",
        "graph": "web",
        "edges": "links",
        "source": "src",
        "target": "dst",
        "directed": False,
    }
    written = [
        each if each["name"] != "ranks" else {"name": "ranks", "type": "function", "max_peers": 1}
        for each in data["catalog"]
    ]
    for start in ({1: 2, 7: 1.0}, None):
        extra = {"start": start} if start else {"start": [1, 7], "preferences": [2, 1]}
        catalog = [each | ({"graph": graph | extra} if each["name"] == "ranks" else {}) for each in written]
        assert read({**data, "catalog": catalog}) == (job.spec(), [])
    assert read(data)[0].task("ranks").graph == task.graph
    one = a_job(lambda view: view.bfs("depths", start="Berlin")).spec().task("depths").graph
    assert one is not None
    assert one.start == ["Berlin"]


def test_the_plan_shows_a_graph() -> None:
    """It is an operator of its own kind, with one peer and its state; all its rows go to one partition."""
    plan = plan_of(a_job().spec())
    ranks = next(each for each in plan.operators if each.name == "ranks")
    assert (ranks.kind, ranks.most_peers, ranks.store) == ("iterator", 1, "memory")
    assert next(each for each in plan.exchanges if each.target == "ranks").kind == "one"


@pytest.mark.parametrize(
    ("add", "given", "text"),
    [
        (
            lambda graph: graph.pagerank("x", tolerance=1e-8),
            {},
            "pagerank of the graph web; edges links from src to dst; until moved 1e-08; at most 1,000 supersteps",
        ),
        (
            lambda graph: graph.k_hop("x", start=[1, 2], hops=1),
            {"directed": False, "store": "rocksdb"},
            "k hop of the undirected graph web; edges links from src to dst; start 1, 2; within 1 hop; in rocksdb",
        ),
        (
            lambda graph: graph.shortest_paths("x", start="a", weight="km"),
            {},
            "shortest paths of the graph web; edges links from src to dst; weights km; start a",
        ),
        (
            lambda graph: graph.common_neighbors("x", pairs="links"),
            {},
            "common neighbors of the graph web; edges links from src to dst; pairs links",
        ),
    ],
)
def test_the_text_of_a_graph(add: Callable[[GraphView], Any], given: dict[str, Any], text: str) -> None:
    """What a task computes stands in one line."""
    spec = a_job(add, **given).spec().task("x").graph
    assert spec is not None
    assert " ".join(computed_text(spec)) == text
    assert found(a_job(add, **given)) == []


BAD: list[tuple[str, Callable[[GraphView], Any], dict[str, Any], str]] = [
    ("SX-GRAPH-ENDLESS", lambda graph: graph.degrees("x"), {"end": None}, "'links' has no end"),
    ("SX-GRAPH-NUMBER", lambda graph: graph.pagerank("x", damping=1.5), {}, "damping cannot be 1.5"),
    ("SX-GRAPH-NUMBER", lambda graph: graph.pagerank("x", damping=math.nan), {}, "damping"),
    ("SX-GRAPH-NUMBER", lambda graph: graph.pagerank("x", tolerance=0), {}, "tolerance"),
    ("SX-GRAPH-NUMBER", lambda graph: graph.pagerank("x", max_supersteps=0), {}, "max_supersteps cannot be 0"),
    ("SX-GRAPH-NUMBER", lambda graph: graph.k_hop("x", start=1, hops=-1), {}, "hops cannot be -1"),
    ("SX-GRAPH-START", lambda graph: graph.bfs("x", start=[]), {}, "no vertex"),
    ("SX-GRAPH-START", lambda graph: graph.bfs("x", start=[1, "1"]), {}, "numbers and others texts"),
    ("SX-GRAPH-START", lambda graph: graph.bfs("x", start=2**63), {}, "64 bits"),
    ("SX-GRAPH-START", lambda graph: graph.pagerank("x", start={1: -1.0, 2: 3.0}), {}, "not shares"),
    ("SX-GRAPH-START", lambda graph: graph.pagerank("x", start={1: 0.0}), {}, "not shares"),
    ("SX-GRAPH-COLUMN", lambda graph: graph.degrees("x"), {"target": "src"}, "two columns of an edge"),
    ("SX-GRAPH-COLUMN", lambda graph: graph.degrees("x"), {"id": "degree"}, "'degree'"),
    ("SX-GRAPH-COLUMN", lambda graph: graph.degrees("x"), {"id": ""}, "empty"),
    ("SX-GRAPH-INPUT", lambda graph: graph.degrees("x"), {"vertices": "links"}, "both its edges and its vertices"),
    ("SX-WINDOW-STORE", lambda graph: graph.degrees("x"), {"state_limit": 0}, "state_limit"),
    ("SX-WINDOW-STORE", lambda graph: graph.degrees("x"), {"store": blackhole()}, "not a store"),
    ("SX-JOB-FIELD", lambda graph: graph.degrees("x", dox=""), {}, "graph.degrees() has no argument 'dox'"),
    ("SX-JOB-FIELD", lambda graph: graph.bfs("x", start=1.5), {}, "start cannot be 1.5"),
    ("SX-JOB-FIELD", lambda graph: graph.degrees("x"), {"directed": "no"}, "directed cannot be 'no'"),
]


@pytest.mark.parametrize(("code", "add", "given", "said"), BAD)
def test_what_is_wrong_with_a_graph(
    code: str, add: Callable[[GraphView], Any], given: dict[str, Any], said: str
) -> None:
    """One mistake is one problem, with its task, and what to do."""
    problem = only(a_job(add, **given))
    assert problem.code == code
    assert said in f"{problem.message} {problem.cause}"
    assert problem.where["task"] == "x"
    assert problem.fix


def test_a_mistyped_argument_of_the_graph() -> None:
    """It is collected with the other problems, as those of tasks are."""
    problem = only(a_job(lambda graph: graph.degrees("x"), sorce="src"))
    assert problem.code == "SX-JOB-FIELD"
    assert "'sorce'; did you mean 'source'?" in problem.message


WRITTEN: list[tuple[str, dict[str, Any], str]] = [
    ("SX-GRAPH-TASK", {"fn": f"{__name__}:a_job"}, "a function as well"),
    ("SX-GRAPH-TASK", {"group_by": ["src"]}, "no key"),
    ("SX-GRAPH-TASK", {"consumption": "sequential"}, "sequential"),
    ("SX-GRAPH-TASK", {"on_error": "skip"}, "on_error"),
    ("SX-GRAPH-TASK", {"graph": {"hops": 3}}, "pagerank has no hops"),
    ("SX-GRAPH-TASK", {"graph": {"algorithm": "bfs"}}, "bfs needs start"),
    ("SX-GRAPH-START", {"graph": {"start": [1], "preferences": [1.0, 2.0]}}, "2 preferences for 1"),
    ("SX-GRAPH-INPUT", {"graph": {"pairs": "other", "algorithm": "common_neighbors"}}, "comes before it"),
    ("SX-JOB-FIELD", {"graph": {"algorithm": "page_rank"}}, "did you mean 'pagerank'?"),
    ("SX-JOB-FIELD", {"graph": {"damping": "much"}}, "damping cannot be 'much'"),
]


@pytest.mark.parametrize(("code", "changes", "said"), WRITTEN)
def test_what_is_wrong_with_a_graph_in_a_job_file(code: str, changes: dict[str, Any], said: str) -> None:
    """So it is in a job file, where more can be written."""
    data = a_job().data()
    task = next(each for each in data["catalog"] if each["name"] == "ranks")
    graph = {**task["graph"], **changes.get("graph", {})}
    entry = {**task, **changes, "graph": graph}
    problem = next(
        each for each in found({**data, "catalog": [entry if each is task else each for each in data["catalog"]]})
    )
    assert problem.code == code, problem
    assert said in problem.message


def test_a_graph_that_is_none() -> None:
    """What a graph needs is asked for by name."""
    data = a_job().data()
    catalog = [{**each, "graph": 5} if each["name"] == "ranks" else each for each in data["catalog"]]
    messages = [problem.message for problem in found({**data, "catalog": catalog})]
    assert any("graph cannot be 5" in message for message in messages)
    assert sum("graph needs" in message for message in messages) == 4


def test_what_cannot_come_after_a_graph() -> None:
    """Its results have no times, so no windows by time; and they come at its end, so nothing is fused to it."""
    job = a_job()
    job.output("out2", blackhole(), after=job.window("w", tumbling("1 s"), after="ranks", aggregate={}, fn=each_table))
    assert {problem.code for problem in found(job)} == {"SX-TIME-MISSING"}
    job = Job("fused")
    links = job.input("links", generator(10))
    graph = job.graph("g", edges=links, source="id", target="key")
    job.output("out", blackhole(), after=job.task("t", each, after=graph.degrees("d"), fuse=True))
    assert [problem.code for problem in found(job)] == ["SX-JOB-FUSE"]


def each_table(rows: pa.Table) -> pa.Table:
    return rows


def test_letters_of_a_graph_are_not_redone_and_its_state_is_not_shown() -> None:
    """A redo would compute over the letters alone; and edges that wait are nothing to look at."""
    job = Job("web")
    links = job.input("links", kafka("links", schema=FOLLOWS, end="latest"), on_error="dead_letter")
    graph = job.graph("web", edges=links, source="src", target="dst")
    job.output("out", blackhole(), after=graph.degrees("d"))
    with pytest.raises(SardonyxError) as caught:
        redo_spec(job.spec(), "links", "again", "letters", 0, 9)
    assert caught.value.code == "SX-DLQ-GRAPH"
    assert holds_rows(job.spec().task("d"))
    with pytest.raises(SardonyxError) as caught:
        _readable(job.spec(), "d", graph_of(job.spec(), "d", "web").stage("d"), counts=False)
    assert caught.value.code == "SX-STATE-NONE"


def test_how_a_graph_is_shown() -> None:
    """It says which it is."""
    job = Job("web")
    links = job.input("links", kafka("links", schema=FOLLOWS, end="latest"))
    assert repr(job.graph("g", edges=links, source="a", target="b")) == "<graph 'g' of the edges of 'links'>"
