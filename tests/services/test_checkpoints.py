"""Checkpoints of a running job on real services: of each time the state that rows before it have made, while peers die."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.core.errors import SardonyxError
from sardonyx.testing import Cluster, kill_at
from tests.services.timed_rows import (
    PARTITIONS,
    PORTION,
    QUICK,
    START,
    WINDOW,
    at_of,
    clock_after,
    keep,
    rows,
)
from tests.waiting import until


def test_the_state_at_each_time_is_that_of_the_rows_before_it(
    sardonyx_clusters: Callable[..., Cluster], seed: int
) -> None:
    """Of a keyed function, and of windows behind it that lie across the times; the same for each partition.

    A partition takes each minute only while the rows that it has been given are less than two minutes ahead of its clock. So
    rows are written in portions of 40 s, each when the clocks of all tasks have come to where the one before brings them.
    """
    given = rows(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        job = Job("past", partitions=3, checkpoint_every="1 min")
        schema = "user long, n long, at timestamp"
        topic = cluster.topic("given", [], partitions=PARTITIONS)
        read = job.input("read", kafka(topic, schema=schema, start="earliest"), time=event_time("at", delay="20 s"))
        kept = job.keyed("keep", keep, after=read, group_by="user", batch_size=20)
        window = job.window("count", tumbling("90 s"), after=kept, group_by="user", aggregate={"hits": Count()})
        job.output("out", kafka(cluster.topic("sums")), after=window)
        cluster.peers(3, faults=[kill_at("committed", 4), kill_at("begin", 9)])
        handle = cluster.submit(job)

        def clock() -> int:
            with contextlib.suppress(SardonyxError):  # its topics are made a moment later
                return min(-1 if task.clock is None else task.clock for task in handle.clock().tasks)
            return -1

        for first in range(0, len(given), PORTION):
            cluster.fill(topic, given[first : first + PORTION])
            wanted = clock_after(given[: first + PORTION])
            until(lambda: clock() >= wanted, what=f"all clocks to come to {wanted}")  # noqa: B023
        times = [time for time in handle.checkpoints().times if time > START]
        assert times == [START + timedelta(minutes=n) for n in range(1, 7)]
        for time in times:
            before = [row for row in given if at_of(row) < time]
            found = {each.key[0]: each.states for each in handle.state("keep", at=time)}
            assert {user: (states["total"], sorted(states["seen"])) for user, states in found.items()} == {
                user: (sum(own), own)
                for user in sorted({row["user"] for row in before})
                for own in [[row["n"] for row in before if row["user"] == user]]
            }
            expected: dict[tuple[int, datetime], int] = {}
            for row in before:
                start = datetime.fromtimestamp(at_of(row).timestamp() // 90 * 90, UTC)
                if start + WINDOW > time:
                    expected[row["user"], start] = expected.get((row["user"], start), 0) + 1
            shown = handle.state("count", at=time.isoformat())
            assert {(row["user"], row["window_start"]): row["hits"] for row in shown} == expected
        with pytest.raises(SardonyxError, match="SX-CHECKPOINT-UNKNOWN"):
            list(handle.state("keep", at=times[-1] + timedelta(seconds=1)))
        handle.kill()
