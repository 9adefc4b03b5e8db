"""Graphs on real services: whatever dies, no vertex is lost, each result comes once, and all have the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime

import networkx as nx
import pytest
from pyspark.sql import DataFrame

from sardonyx import Job, event_time, kafka, tumbling
from sardonyx.testing import Cluster, Fault, kill_at, run_job
from tests.core import graph_twin as twin
from tests.waiting import until

QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def links(seed: int) -> list[dict]:
    """Edges of a few hubs and many others, with vertices that have one edge only, and parallel edges."""
    rng = random.Random(f"{seed}/graphs")
    found = [
        {"src": rng.randrange(900), "dst": int(rng.paretovariate(0.6)) % 900, "km": rng.random()} for _ in range(3_000)
    ]
    return found + [{"src": 1_000 + number, "dst": number % 300, "km": 0.5} for number in range(600)]


def inward(rows: DataFrame) -> DataFrame:
    """A step on Spark before the graph."""
    return rows.selectExpr("src", "dst", "1 - km as km")


def computing(topic: str, ranks: str, paths: str) -> Job:
    job = Job("computing", partitions=3)
    read = job.input(
        "read", kafka(topic, schema="src long, dst long, km double", start="earliest", end="latest"), batch_size=500
    )
    edges = job.task("turn", inward, after=read, batch_size=400)
    web = job.graph("web", edges=edges, source="src", target="dst", batch_size=300)
    job.output("ranks-out", kafka(ranks, key="id"), after=web.pagerank("ranks", max_supersteps=15))
    near = web.shortest_paths("near", start=1_000, weight="km")
    job.output("near-out", kafka(paths, key="id"), after=near)
    return job


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([kill_at("graph-rows", 3), kill_at("graph-rows", 5), kill_at("apply-state", 4)], id="loading"),
        pytest.param(
            [kill_at("graph-computed"), kill_at("graph-given", 3), kill_at("committed", 2)],
            id="computed",
            marks=pytest.mark.long,
        ),
    ],
)
def test_no_vertex_is_lost_whatever_dies(
    seed: int, faults: list[Fault], sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """Peers are killed while they load edges, as they have computed, and between parts of the results: what comes out are the
    results of a run in which nothing dies, to the last bit, each once.
    """
    given = links(seed)
    quiet = run_job(computing("links", "ranks", "paths"), {"read": given})
    with sardonyx_clusters(**QUICK) as cluster:
        topic, ranks, paths = cluster.topic("links", given), cluster.topic("ranks"), cluster.topic("paths")
        cluster.peers(6, faults=faults)  # all in one daemon, so each fault of the script comes to pass
        cluster.run(computing(topic, ranks, paths), timeout="6 min")
        results = {"ranks-out": cluster.records(ranks), "near-out": cluster.records(paths)}
    for task, rows in results.items():
        assert sorted(rows, key=lambda row: row["id"]) == sorted(quiet.rows(task), key=lambda row: row["id"]), (
            f"seed {seed}"
        )
    check(given, {row["id"]: row["rank"] for row in results["ranks-out"]}, results["near-out"])


def check(given: list[dict], ranks: dict[int, float], paths: list[dict]) -> None:
    """Every vertex is there, with what the definition of PageRank and Dijkstra's algorithm give."""
    vertices = sorted({row[end] for row in given for end in ("src", "dst")})
    assert sorted(ranks) == sorted(row["id"] for row in paths) == vertices
    edges = [(row["src"], row["dst"]) for row in given]
    wanted = twin.pagerank(vertices, edges, directed=True, damping=0.85, supersteps=15)
    assert max(abs(ranks[v] - wanted[v]) for v in vertices) < 1e-12
    graph = nx.MultiDiGraph()
    graph.add_weighted_edges_from((row["src"], row["dst"], 1 - row["km"]) for row in given)
    far = nx.single_source_dijkstra_path_length(graph, 1_000)
    assert {row["id"]: row["distance"] for row in paths} == {v: far.get(v) for v in vertices}


# --- Graphs that change -----------------------------------------------------------------------------------------------


def meetings(seed: int) -> list[dict]:
    """Edges that come and go for two minutes, each at a time of its own; in some of the windows nothing happens."""
    rng = random.Random(f"{seed}/versions")
    times = [at for at in sorted(rng.sample(range(120_000), 1_500)) if at // 10_000 not in (4, 9)]
    known: list[tuple[int, int]] = []
    found = []
    for at in times:
        gone = bool(known) and rng.random() < 0.4
        one, other = rng.choice(known) if gone else (rng.randrange(300), int(rng.paretovariate(0.8)) % 300)
        known.append((one, other))
        found.append({"one": one, "other": other, "at": at, "gone": gone})
    return found


def live(topic: str, circles: str, degrees: str, end: str | None = "latest") -> Job:
    job = Job("live", partitions=3)
    schema = "one long, other long, at long, gone boolean"
    read = job.input(
        "read",
        kafka(topic, schema=schema, start="earliest", end=end),
        time=event_time("at", unit="ms"),
        batch_size=150,
    )
    given = {"source": "one", "target": "other", "directed": False, "window": tumbling("10 s"), "remove": "gone"}
    now = job.graph("now", edges=read, batch_size=60, emit="changes", **given)
    job.output("circles-out", kafka(circles, key="id"), after=now.connected_components("circles"))
    whole = job.graph("whole", edges=read, batch_size=60, **given)
    job.output("degrees-out", kafka(degrees, key="id"), after=whole.degrees("degrees"))
    return job


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(
            [kill_at("graph-computed", 2), kill_at("graph-computed", 3), kill_at("committed", 9)],
            id="computed",
            marks=pytest.mark.long,
        ),
        pytest.param([kill_at("graph-rows", 4), kill_at("graph-given", 5), kill_at("apply-state", 6)], id="between"),
    ],
)
def test_each_version_comes_once_whatever_dies(
    seed: int, faults: list[Fault], sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """Peers are killed between versions, as they have computed one, and between parts of its results: each version comes once,
    and is the graph of all rows up to it.
    """
    given = meetings(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, circles, degrees = cluster.topic("meetings", given), cluster.topic("circles"), cluster.topic("degrees")
        cluster.peers(6, faults=faults)
        cluster.run(live(topic, circles, degrees), timeout="6 min")
        check_versions(seed, given, cluster.records(circles), cluster.records(degrees))


def test_a_job_that_resumes_a_stopped_one_goes_on_with_its_graph(
    seed: int, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """With the edges that there were, the rows of the window that was open, and what the last version has given."""
    given = meetings(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic = cluster.topic("meetings", given[:800])
        circles, degrees = cluster.topic("circles"), cluster.topic("degrees")
        cluster.peers(6, faults=[kill_at("graph-rows", 3)])
        first = cluster.submit(live(topic, circles, degrees, end=None))
        ended = max({row["at"] // 10_000 for row in given[:780]} - {given[780]["at"] // 10_000})
        until(lambda: ended in map(window_of, cluster.records(degrees)), what=f"version {ended}")
        first.stop()
        assert first.await_completion(300).status == "stopped"
        cluster.fill(topic, given[800:])
        second = cluster.client.submit(live(topic, circles, degrees), resume=first.id)
        assert second.await_completion(300).status == "completed"
        check_versions(seed, given, cluster.records(circles), cluster.records(degrees))


def window_of(row: dict) -> int:
    return int(datetime.fromisoformat(row["window_start"]).timestamp()) // 10


def check_versions(seed: int, given: list[dict], of_circles: list[dict], of_degrees: list[dict]) -> None:
    graph, known = nx.MultiGraph(), {}
    for start in range(0, 120_000, 10_000):
        rows = [row for row in given if start <= row["at"] < start + 10_000]
        for row in rows:
            if not row["gone"]:
                graph.add_edge(row["one"], row["other"])
            elif graph.has_edge(row["one"], row["other"]):
                graph.remove_edges_from([(row["one"], row["other"])] * graph.number_of_edges(row["one"], row["other"]))
        at = f"1970-01-01T00:0{start // 60_000}:{start // 1_000 % 60:02d}.000000Z"
        here = sorted((row["id"], row["degree"]) for row in of_degrees if row["window_start"] == at)
        assert here == (sorted(graph.degree()) if rows else []), f"seed {seed}, version {at}"
        now = {v: min(part) for part in nx.connected_components(graph) for v in part}
        wanted = sorted((v, part) for v, part in now.items() if known.get(v) != part)
        here = sorted((row["id"], row["component"]) for row in of_circles if row["window_start"] == at)
        assert here == wanted, f"seed {seed}, version {at}"
        known = now
    assert {row["window_start"] for row in of_degrees} >= {row["window_start"] for row in of_circles}
