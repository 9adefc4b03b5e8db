"""The fixtures of ``sardonyx.testing`` on real services, as ``docs/testing.md`` shows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sardonyx import Job, kafka
from sardonyx.testing import Cluster, kill_at, pause_at

pytestmark = pytest.mark.long


def doubled(row: dict) -> dict:
    return {**row, "twice": row["n"] * 2}


def through_kafka(orders: str, results: str) -> Job:
    job = Job("through-kafka", partitions=2)
    read = job.input("read", kafka(orders, start="earliest", end="latest"), batch_size=50)
    job.output("write", kafka(results), after=job.task("twice", doubled, after=read, batch_size=50))
    return job


def test_a_job_on_the_cluster_that_a_session_shares(sardonyx_cluster: Cluster) -> None:
    """The fixture as it is documented."""
    orders = sardonyx_cluster.topic("orders", [{"n": n} for n in range(1000)])
    results = sardonyx_cluster.topic("results")
    view = sardonyx_cluster.run(through_kafka(orders, results))
    assert view.task("twice").rows_in == 1000
    assert sorted(row["n"] for row in sardonyx_cluster.records(results)) == list(range(1000))


def test_a_peer_that_dies_after_its_third_commit_and_then_stands_still(
    sardonyx_clusters: Callable[..., Cluster],
) -> None:
    """The fault script as it is documented: the result is exact all the same."""
    with sardonyx_clusters(**{"zookeeper.session_timeout": "2 s"}) as cluster:
        orders = cluster.topic("orders", [{"n": n} for n in range(1000)])
        results = cluster.topic("results")
        daemon = cluster.peers(2, faults=[kill_at("committed", 3), pause_at("begin", seconds=10)])
        cluster.run(through_kafka(orders, results))
        assert len(daemon.happened) == 2
        assert sorted(row["n"] for row in cluster.records(results)) == list(range(1000))
