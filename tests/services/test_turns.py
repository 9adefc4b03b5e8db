"""An unbounded job on fewer virtual peers than it has tasks: they take turns, and each record comes out once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sardonyx import Job, kafka
from sardonyx.testing import Cluster, Fault, kill_at
from tests.waiting import until

STEPS = 5
RECORDS = 600


def same(row: dict) -> dict:
    return row


@pytest.mark.parametrize(
    ("peers", "script"),
    [
        pytest.param(1, [], id="one", marks=pytest.mark.long),
        pytest.param(2, [kill_at("yield", 2), kill_at("committed", 3)], id="two, under kills"),
    ],
)
def test_an_unbounded_job_runs_on_fewer_peers_than_tasks(
    peers: int, script: list[Fault], sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """Five tasks on one peer, and on two whose daemon dies again and again: what is sent in one piece, and what comes later, is
    there once. When the job is stopped, it ends.
    """
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s", "coordinator.quantum": "2 s"}
    with sardonyx_clusters(**quick) as cluster:
        topic = cluster.topic("in", ({"n": n} for n in range(RECORDS)))
        sent = cluster.topic("sent")
        job = Job("turns", partitions=2)
        task = job.input("read", kafka(topic, start="earliest"))
        for number in range(STEPS):
            task = job.task(f"step{number}", same, after=task, batch_size=100)
        job.output("sent", kafka(sent), after=task)
        cluster.peers(peers, faults=script)
        handle = cluster.submit(job)
        until(lambda: len(cluster.records(sent)) >= RECORDS, what="all records", timeout=400)

        def reasons() -> set[str]:
            return {reason.code for reason in handle.explain(look=False).explanation.reasons}

        until(lambda: "takes-turns" in reasons(), what="it to say that its peers take turns")
        cluster.fill(topic, ({"n": n} for n in range(RECORDS, RECORDS + 20)))
        until(lambda: len(cluster.records(sent)) >= RECORDS + 20, what="the records that came later")
        handle.stop()
        assert handle.await_completion(300).status == "stopped"
        assert sorted(row["n"] for row in cluster.records(sent)) == list(range(RECORDS + 20))
