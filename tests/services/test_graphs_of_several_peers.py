"""Graphs that several peers compute together, on real services: whatever dies in whatever superstep, all bits are the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sardonyx import Job, kafka
from sardonyx.testing import Cluster, Fault, kill_at, pause_at, run_job
from tests.services.test_graphs import QUICK, links


def computing(topic: str, ranks: str, circles: str, max_peers: int) -> Job:
    job = Job("computing", partitions=3)
    schema = "src long, dst long, km double"
    edges = job.input("read", kafka(topic, schema=schema, start="earliest", end="latest"), batch_size=500)
    web = job.graph("web", edges=edges, source="src", target="dst", batch_size=300, max_peers=max_peers)
    job.output("ranks-out", kafka(ranks, key="id"), after=web.pagerank("ranks", max_supersteps=12))
    job.output("circles-out", kafka(circles, key="id"), after=web.connected_components("circles"))
    return job


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(
            [kill_at("graph-rows", 3), kill_at("graph-superstep", 2), kill_at("apply-state", 4)],
            id="loading",
            marks=pytest.mark.long,
        ),
        pytest.param([kill_at("graph-superstep", 5), kill_at("graph-heard"), kill_at("committed", 4)], id="supersteps"),
        pytest.param(
            [kill_at("graph-computed"), kill_at("graph-given", 2), kill_at("loop-end")],
            id="the end",
            marks=pytest.mark.long,
        ),
    ],
)
def test_results_are_those_of_one_peer_whatever_dies(
    seed: int, faults: list[Fault], sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """All peers are killed while edges are loaded, in the midst of supersteps, and as results are given: what comes out are the
    results of one peer that nothing happens to, to the last bit, each once.
    """
    with sardonyx_clusters(**QUICK) as cluster:
        cluster.peers(6, faults=faults)  # all in one daemon, so each fault of the script comes to pass
        check(seed, cluster)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(kill_at("graph-superstep", 3), id="killed"),
        pytest.param(pause_at("graph-superstep", 5.0, 3), id="paused", marks=pytest.mark.long),
    ],
)
def test_others_go_on_where_a_peer_stood(seed: int, fault: Fault, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """One of two daemons is killed in a superstep, or paused for longer than its session lives and then goes on: the other one
    takes its shards at the supersteps at which they stand.
    """
    with sardonyx_clusters(**QUICK) as cluster:
        cluster.peers(3)
        cluster.peers(3, faults=[fault])
        check(seed, cluster)


def check(seed: int, cluster: Cluster) -> None:
    given = links(seed)
    quiet = run_job(computing("links", "ranks", "circles", 1), {"read": given})
    topic, ranks, circles = cluster.topic("links", given), cluster.topic("ranks"), cluster.topic("circles")
    cluster.run(computing(topic, ranks, circles, 3), timeout="6 min")
    results = {"ranks-out": cluster.records(ranks), "circles-out": cluster.records(circles)}
    for task, rows in results.items():
        wanted = sorted(quiet.rows(task), key=lambda row: row["id"])
        assert sorted(rows, key=lambda row: row["id"]) == wanted, f"seed {seed}"
