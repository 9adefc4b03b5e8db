"""Users' programs over graphs on Spark's workers, through ``run_job``: they run there, fail there, and die there alone."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from structlog.testing import capture_logs

from sardonyx import Job, JobFailed, SetupError, Superstep, Vertex, VertexProgram, blackhole, files, kafka
from sardonyx.testing import Cluster, kill_at, run_job
from tests.core.graph_programs import Distances, rank_send, rank_update

KARATE = nx.karate_club_graph()
LINKS = [{"src": a, "dst": b, "km": float(1 + (a * b) % 5)} for a, b in KARATE.edges()]
ROADS = files("links.csv", format="csv", schema="src long, dst long, km double")


def raising_update(v: pa.Table, step: Superstep) -> pa.Table:
    if step.number == 1:
        raise ValueError("no more")
    return pa.table({"n": v["id"]})


def n_send(e: pa.Table) -> pa.Table:
    return pa.table({"m": e["n"]})


def short_update(v: pa.Table) -> pa.Table:
    return pa.table({"n": v["id"].slice(1)})


def deadly_update(v: pa.Table, step: Superstep, mark: str) -> pa.Table:
    if step.number == 1 and not Path(mark).exists():
        Path(mark).touch()
        os._exit(3)
    return pa.table({"n": pc.coalesce(v["m"], v["id"])})


class Raising(VertexProgram):
    def compute(self, vertex: Vertex, messages: Iterator[Any]) -> None:
        raise KeyError(vertex.id)


def a_job(*added: Any, **given: Any) -> Job:
    job = Job("club")
    links = job.input("links", ROADS)
    club = job.graph("club", edges=links, source="src", target="dst", directed=False)
    job.output("out", blackhole(), after=club.compute("x", *added, **given))
    return job


def values(job: Job, column: str) -> dict[Any, Any]:
    rows = run_job(job, {"links": LINKS}).rows("out")
    assert len({row["id"] for row in rows}) == len(rows) == 34
    return {row["id"]: row[column] for row in rows}


def test_both_forms_in_a_job() -> None:
    """Functions of tables give networkx' ranks, and a class its distances; and the log says how each has ended."""
    ranks = {"aggregate": {"lost": "sum", "moved": "sum"}, "always": True, "combine": {"share": "sum double"}}
    with capture_logs() as logs:
        found = values(a_job(rank_update, rank_send, state="rank double", until="moved < 1e-13", **ranks), "rank")
        short = a_job(rank_update, rank_send, state="rank double", until="moved < 1e-13", max_supersteps=3, **ranks)
        values(short, "rank")
    wanted = nx.pagerank(KARATE, weight=None, tol=1e-14, max_iter=999)
    assert max(abs(found[v] - wanted[v]) for v in wanted) < 1e-10
    told = [line for line in logs if line["event"] in ("graph_computed", "graph_not_converged")]
    assert [(line["event"], line["log_level"], line["reason"]) for line in told] == [
        ("graph_computed", "info", "converged"),
        ("graph_not_converged", "warning", "limit"),
    ]
    assert (told[1]["supersteps"], told[1]["until"]) == (3, "moved < 1e-13")
    assert told[1]["aggregates"]["moved"] > 1e-13
    first = {"distance": math.inf}
    far = a_job(Distances, state="distance double", first=first, weight="km", params={"start": 16})
    graph = KARATE.copy()
    nx.set_edge_attributes(graph, {(row["src"], row["dst"]): row["km"] for row in LINKS}, "km")
    assert values(far, "distance") == nx.single_source_dijkstra_path_length(graph, 16, weight="km")


def test_what_a_function_raises_fails_the_job() -> None:
    """With the user's traceback and nothing of ours; so does a result that is short."""
    given = {"state": "n bigint", "combine": {"m": "min bigint"}}
    with pytest.raises(JobFailed) as failure:
        values(a_job(raising_update, n_send, **given), "n")
    assert failure.value.code == "SX-FN-RAISED"
    assert "raising_update of task x raised ValueError: no more" in failure.value.message
    assert "on_error" not in failure.value.fix
    assert failure.value.traceback.count("File ") == 1
    with pytest.raises(JobFailed) as failure:
        values(a_job(short_update, n_send, **given), "n")
    assert (failure.value.code, failure.value.where["task"]) == ("SX-GRAPH-RESULT", "x")
    assert failure.value.message == "short_update returned 33 rows for 34"
    with pytest.raises(JobFailed, match=r"Raising\.compute of task x raised KeyError: 0"):
        values(a_job(Raising, state="n bigint"), "n")


def test_programs_on_a_cluster_whatever_dies(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Peers are killed when a program has been run, and between parts of its results: what comes out are the results of a run in
    which nothing dies, to the last bit, each once.
    """

    def job(read: Any, ranks: Any, far: Any) -> Job:
        found = Job("programs", partitions=2)
        web = found.graph("web", edges=found.input("read", read), source="src", target="dst", batch_size=200)
        given: dict[str, Any] = {"aggregate": {"lost": "sum", "moved": "sum"}, "combine": {"share": "sum double"}}
        given |= {"state": "rank double", "until": "moved < 1e-9", "always": True}
        found.output("ranks-out", ranks, after=web.compute("ranks", rank_update, rank_send, **given))
        given = {"state": "distance double", "first": {"distance": math.inf}, "weight": "km", "params": {"start": 0}}
        found.output("far-out", far, after=web.compute("far", Distances, **given))
        return found

    chance = random.Random(5)
    rows = [{"src": chance.randrange(600), "dst": chance.randrange(600), "km": chance.random()} for _ in range(2_000)]
    quiet = run_job(job(ROADS, blackhole(), blackhole()), {"read": rows})
    faults = [kill_at("graph-computed"), kill_at("graph-given", 3)]
    with sardonyx_clusters(**{"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}) as cluster:
        links, ranks, far = cluster.topic("links", rows), cluster.topic("ranks"), cluster.topic("far")
        source = kafka(links, schema="src long, dst long, km double", start="earliest", end="latest")
        cluster.peers(4, faults=faults)
        cluster.run(job(source, kafka(ranks, key="id"), kafka(far, key="id")), timeout="6 min")
        results = {"ranks-out": cluster.records(ranks), "far-out": cluster.records(far)}
    for task, found in results.items():
        wanted = sorted(quiet.rows(task), key=lambda row: row["id"])
        wanted = [
            {name: None if value == math.inf else value for name, value in row.items()} for row in wanted
        ]  # as JSON
        assert sorted(found, key=lambda row: row["id"]) == wanted


def test_a_function_that_ends_its_process_ends_no_other(tmp_path: Path) -> None:
    """The peer says that the worker died, and the next attempt computes all supersteps again."""
    given = {"state": "n bigint", "combine": {"m": "min bigint"}, "max_supersteps": 9}
    job = a_job(deadly_update, n_send, params={"mark": str(tmp_path / "died")}, **given)
    with pytest.raises(SetupError) as failure:
        run_job(job, {"links": LINKS})
    assert failure.value.code == "SX-SPARK-LOST"
    assert (tmp_path / "died").exists()
    assert len(values(job, "n")) == 34
