"""The fraud example on Spark and on real services: every alert once, whatever dies. ``tests/fraud_reference.py`` says which."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec

from sardonyx.job.load import LoadedJob, importable, load
from sardonyx.testing import Cluster, kill_at
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


def test_fraud_on_a_cluster(seed: int, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """From topic to topic, under kills: timers fire with the clock of the payments, and those that are left at their end.

    State is in RocksDB here; `make faults SHAPE=keyed` has it in memory.
    """
    faults = [kill_at("apply-state"), kill_at("committed")]  # early: a batch may hold all rows
    given = reference.payments(seed, 4_000)
    with sardonyx_clusters(**QUICK) as cluster:
        topic = cluster.topic("payments", [{**row, "at": row["at"].isoformat()} for row in given], partitions=1)
        out = cluster.topic("payments-alerts")
        cluster.peers(4, faults=faults)
        cluster.run(fraud(topic, "rocksdb"), timeout="6 min")
        results = cluster.records(out)
    assert reference.of_results(results) == reference.alerts(given)
