"""The state of a slot that comes back to its process is there; another process reads it from its log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.testing import Cluster
from sardonyx.testing.faults import Daemon
from tests.waiting import until

USERS = 4


def hits(minute: int, count: int) -> list[dict[str, str]]:
    """So many rows of one minute, of one user after the other."""
    return [{"user": f"u{n % USERS}", "at": f"2026-11-24T10:{minute:02}:{n % 60:02}Z"} for n in range(count)]


def test_a_peer_that_takes_turns_reads_no_state_log_again(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """One peer works on three tasks in turn. When it comes back to the windows, their state is there as it left it. The peer of
    another process reads the log. Each row counts once.
    """
    with sardonyx_clusters(**{"coordinator.quantum": "2 s"}) as cluster:
        topic, counted = cluster.topic("hits"), cluster.topic("counted")
        job = Job("kept", partitions=1)
        read = job.input(
            "read", kafka(topic, schema="user string, at timestamp", start="earliest"), time=event_time("at")
        )
        window = job.window(
            "count", tumbling("1 min"), after=read, group_by="user", aggregate={"hits": Count()}, batch_timeout="10 ms"
        )
        job.output("counted", kafka(counted), after=window)
        first = cluster.peers(1)
        handle = cluster.submit(job)

        def counted_rows() -> int:
            return next(task.rows_in or 0 for task in handle.status().tasks if task.name == "count")

        for given in (20, 40, 60):
            cluster.fill(topic, hits(minute=1, count=20))
            until(lambda: counted_rows() == given, what=f"{given} rows in windows")  # noqa: B023
        until(lambda: said(first, "state_kept"), what="a slot that came back to its process")
        assert not said(first, "state_restored")
        first.stop(180)
        second = cluster.peers(1)
        cluster.fill(topic, [*hits(minute=1, count=20), *hits(minute=5, count=4)])
        until(lambda: len(cluster.records(counted)) >= USERS, what="the windows to close")
        assert said(second, "state_restored")
        rows = cluster.records(counted)
        assert Counter({row["user"]: row["hits"] for row in rows}) == dict.fromkeys({f"u{n}" for n in range(USERS)}, 20)
        assert len(rows) == USERS
        handle.kill()


def said(daemon: Daemon, event: str) -> bool:
    """Whether a daemon has logged an event."""
    return any(event in process.log_tail(100_000) for process in daemon.processes)
