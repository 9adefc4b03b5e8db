"""The fraud example on Spark and on real services: every alert once, whatever dies. ``tests/fraud_reference.py`` says which."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec

from sardonyx.job.load import LoadedJob, importable, load
from sardonyx.testing import ClockedRun, Cluster, kill_at, run_job
from tests import fraud_reference as reference

QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def fraud(topic: str, store: Any = "memory") -> LoadedJob:
    """The example over a topic that it reads to its end."""
    with importable(reference.EXAMPLE.parent):
        job = load(importlib.import_module("job").make_job(topic, end="latest"))
    catalog = [
        msgspec.structs.replace(task, keyed=task.keyed and msgspec.structs.replace(task.keyed, store=store))
        for task in job.spec.catalog
    ]
    return job._replace(spec=msgspec.structs.replace(job.spec, catalog=catalog))


def test_fraud_in_this_process(seed: int, spark: Any) -> None:
    """On Spark's workers, with small batches: what plain loops give."""
    given = reference.payments(seed, 1_000)
    result = run_job(fraud("payments"), {"read": given}, batch_size=100, spark=spark)
    assert reference.of_results(result.rows("alerts")) == reference.alerts(given)


def test_fraud_step_by_step(spark: Any, sardonyx_clocked: Callable[..., ClockedRun]) -> None:
    """A timer fires when the clock passes it, and not before; a crash of its task takes neither timers nor state."""
    run = sardonyx_clocked(fraud("payments"), spark=spark)
    large = {"card": "c", "what": "payment", "amount": 900.0}
    run.give("read", [{"id": 1, "at": "2026-11-23T10:00:00", **large}, {"id": 2, "at": "2026-11-23T10:05:00", **large}])
    run.crash("watch")
    run.clock("read", "2026-11-23T10:14:59")
    assert run.rows("alerts") == []
    run.clock("read", "2026-11-23T10:15:00")
    assert [(row["payment"], row["why"]) for row in run.rows("alerts")] == [(1, "not confirmed")]
    run.crash("watch", "committed")
    run.give("read", [{"id": 3, "at": "2026-11-23T10:16:00", "card": "c", "what": "confirm", "amount": 0.0}])
    run.end()
    assert len(run.rows("alerts")) == 1


def test_fraud_on_a_cluster(seed: int, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """From topic to topic, under kills: timers fire with the clock of the payments, and those that are left at their end.

    State is in RocksDB here; `make faults SHAPE=keyed` has it in memory.
    """
    faults = [kill_at("apply-state", 3), kill_at("committed", 3)]
    given = reference.payments(seed, 4_000)
    with sardonyx_clusters(**QUICK) as cluster:
        topic = cluster.topic("payments", [{**row, "at": row["at"].isoformat()} for row in given], partitions=1)
        out = cluster.topic("payments-alerts")
        cluster.peers(4, faults=faults)
        cluster.run(fraud(topic, "rocksdb"))
        results = cluster.records(out)
    assert reference.of_results(results) == reference.alerts(given)
