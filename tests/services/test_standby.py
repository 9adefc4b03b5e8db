"""A second process keeps the state of a task up to date. When the first one is killed, it goes on without a restore."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable

import pytest

from sardonyx import Job, State, kafka
from sardonyx.testing import Cluster
from sardonyx.testing.faults import Daemon
from tests.waiting import until

KEYS = 20
QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def add(row: dict, seen: State[int]) -> dict:
    seen.value += 1
    return {**row, "seen": seen.value}


def rows(first: int, last: int) -> list[dict[str, int]]:
    return [{"n": n, "key": n % KEYS} for n in range(first, last)]


@pytest.mark.parametrize("store", [pytest.param("memory", marks=pytest.mark.long), "rocksdb"])
def test_a_standby_takes_over_what_was_committed(store: str, sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Killed again and again, with a new process each time: each row comes out once, and each key counts up by one. The processes
    that take over have followed the state, and read no log from its beginning.
    """
    with sardonyx_clusters(**QUICK) as cluster:
        given, out = cluster.topic("given"), cluster.topic("out")
        job = Job("stands", partitions=3)
        read = job.input("read", kafka(given, schema="n long, key long", start="earliest"), max_peers=1)
        count = job.keyed("count", add, after=read, group_by="key", store=store, standby=1, batch_size=20, max_peers=1)
        job.output("out", kafka(out), after=count)
        daemons = [cluster.peers(3)]
        handle = cluster.submit(job)
        cluster.fill(given, rows(0, 200))
        until(lambda: len(cluster.records(out)) == 200, what="the first results")
        for turn in range(2):
            daemons.append(cluster.peers(3))
            until(lambda: said(daemons[-1], "standby_ready") >= 3, what="the state to be followed")
            cluster.fill(given, rows(200 + 200 * turn, 300 + 200 * turn))
            until(lambda: len(cluster.records(out)) == 300 + 200 * turn, what="results of the first")  # noqa: B023
            killed = daemons.pop(0)
            cluster.daemons.remove(killed)  # no test waits for one that was to end
            killed.process.signal(signal.SIGKILL)
            cluster.fill(given, rows(300 + 200 * turn, 400 + 200 * turn))
            until(lambda: len(cluster.records(out)) == 400 + 200 * turn, what="results of the next")  # noqa: B023
            assert said(daemons[0], "state_followed") == 3
            assert said(daemons[0], "state_restored") == 0
        found = cluster.records(out)
        assert sorted(row["n"] for row in found) == list(range(600))
        assert Counter((row["key"], row["seen"]) for row in found) == Counter(
            (key, seen) for key in range(KEYS) for seen in range(1, 600 // KEYS + 1)
        )
        handle.kill()


def said(daemon: Daemon, event: str) -> int:
    """How often a daemon has logged an event."""
    return sum(process.log_tail(100_000).count(f"] {event} ") for process in daemon.processes)
