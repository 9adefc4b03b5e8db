"""A change that takes effect at a time: each row goes the old way or the new one by its own time, whatever dies meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.change import revisions
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.testing import Cluster, kill_at
from tests.waiting import until

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
FIELDS = "n long, at timestamp"


def same(row: dict) -> dict:
    return row


def at(second: int) -> datetime:
    return BEGIN + timedelta(seconds=second)


class Timed:
    """Rows of every second, out of order by up to ten seconds, and topics that get what tasks give."""

    def __init__(self, cluster: Cluster, *outputs: str) -> None:
        self.cluster = cluster
        self.given = cluster.topic("given")
        self.outputs = {name: cluster.topic(name) for name in outputs}
        self.times: dict[int, int] = {}

    def fill(self, *span: int) -> None:
        rng = random.Random(str(span))
        for n in range(*span):
            self.times[n] = n + rng.randint(0, 9)
        rows = [{"n": n, "at": at(self.times[n]).isoformat()} for n in range(*span)]
        self.cluster.fill(self.given, rows)

    def found(self, name: str) -> list[int]:
        return sorted(row["n"] for row in self.cluster.records(self.outputs[name]))

    def before(self, second: int) -> list[int]:
        return sorted(n for n, time in self.times.items() if time < second)

    def since(self, second: int) -> list[int]:
        return sorted(n for n, time in self.times.items() if time >= second)

    def input(self, job: Job) -> object:
        return job.input(
            "read", kafka(self.given, schema=FIELDS, start="earliest"), time=event_time("at", delay="10 s")
        )


def begun(handle: JobHandle, version: Job, second: int) -> int:
    """Begin a change at a time. Returns the revision that it makes."""
    revision = handle.status(live=False).revision + 1
    with pytest.raises(Interrupted, match="SX-JOB-CHANGE-PENDING"):
        handle.change(version, timeout="1 ms", at=at(second))
    return revision


def test_tasks_come_and_go_at_a_time(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """Behind a task one takes the place of another, one is added and one removed; and one takes the place of another that reads
    the topic in place. Rows come out of order, peers die and the leader is killed. Every row goes exactly one way.
    """
    names = ("all", "old", "gone", "copy", "new", "more", "again")
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    with sardonyx_clusters(**quick) as cluster:
        timed = Timed(cluster, *names)

        def version(*tasks: str) -> Job:
            job = Job("parting", partitions=2)
            read = timed.input(job)
            label = job.task("label", same, after=read, batch_size=20)
            job.output("all", kafka(timed.outputs["all"]), after=label)
            for name in tasks:
                source = read if name in ("copy", "again") else label
                job.output(
                    f"{name}-out", kafka(timed.outputs[name]), after=job.task(name, same, after=source, batch_size=20)
                )
            return job

        timed.fill(0, 200)
        (leader,) = cluster.daemons
        cluster.coordinator()
        cluster.peers(8, faults=[kill_at("committed", 6), kill_at("written", 12)])
        handle = cluster.submit(version("old", "gone", "copy"))
        until(lambda: len(timed.found("copy")) == len(timed.found("all")) == 200, what="the first rows")

        after = version("new", "more", "again")
        with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-PASSED") as passed:
            handle.change(after, timeout=300, at=at(100))
        assert "are read already" in passed.value.message
        assert handle.status(live=False).revision == 1
        assert begun(handle, after, 400) == 2
        leader.process.kill()
        until(lambda: handle.status(live=False).revision == 2, what="both versions side by side")
        with pytest.raises(SardonyxError, match="SX-JOB-CHANGE: "):
            handle.change(version("old"), drop=["gone", "gone-out", "copy", "copy-out", "new", "more", "again"])
        with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-RIVAL"):
            handle.change(after, at=at(500))
        (reason,) = [each for each in handle.explain().explanation.reasons if each.code == "changing-at"]
        assert "at 2026-01-01T00:06:40Z" in reason.text

        timed.fill(200, 600)
        assert handle.change(after, timeout=300, at=at(400)) == 4
        assert handle.change(after, timeout=300, at=at(400)) == 4, "the same command again"
        timed.fill(600, 700)
        for name in ("all", "new", "more", "again"):
            wanted = timed.since(0 if name == "all" else 400)
            until(lambda n=name, w=wanted: len(timed.found(n)) >= len(w), what=f"the rows of {name}")
            assert timed.found(name) == wanted
        assert {name: timed.found(name) == timed.before(400) for name in ("old", "gone", "copy")} == {
            "old": True,
            "gone": True,
            "copy": True,
        }
        steps = [each.at_time for each in revisions(cluster.client, handle.id) if not each.given_up]
        assert steps == [
            (
                "it begins a change at 2026-01-01T00:06:40Z: copy, gone and old get the rows before it, again, more and new "
                "get the rows from it on"
            ),
            "the clock has passed 2026-01-01T00:06:40Z: no row goes the old way any more",
            "the change at 2026-01-01T00:06:40Z is complete",
        ]


def test_windows_change_at_a_time(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """The old windows close before the task goes, and the new ones begin at the time: each window is counted once, and whole. A
    change that was given up before has lost nothing.
    """
    with sardonyx_clusters() as cluster:
        timed = Timed(cluster, "all", "old", "new")

        def version(task: str, topic: str = "new", *more: str) -> Job:
            job = Job("counting", partitions=2)
            label = job.task("label", same, after=timed.input(job))
            job.output("all", kafka(timed.outputs["all"]), after=label)
            for name, target in ((task, topic), *((each, "new") for each in more)):
                window = job.window(name, tumbling("10 s"), after=label, aggregate={"hits": Count()})
                job.output(f"{name}-out", kafka(timed.outputs[target]), after=window)
            return job

        def windows(name: str) -> dict[str, int]:
            rows = cluster.records(timed.outputs[name])
            assert len({row["window_start"] for row in rows}) == len(rows)
            return {row["window_start"]: row["hits"] for row in rows}

        timed.fill(0, 100)
        cluster.peers(5)
        first = version("first", "old")
        handle = cluster.submit(first)
        until(lambda: len(windows("old")) >= 8, what="the first windows")
        with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-AT"):
            handle.change(version("second"), timeout=300, at=1_000)  # the number of a row
        assert begun(handle, version("second"), 1_000) == 2
        until(lambda: handle.status(live=False).revision == 2, what="both versions side by side")
        assert handle.change(first, timeout=300, drop=["second", "second-out"]) == 3

        third = version("third")
        revision = begun(handle, third, 200)
        until(lambda: handle.status(live=False).revision == revision, what="both side by side again")
        timed.fill(100, 300)
        assert handle.change(third, timeout=300, at="2026-01-01T00:03:20Z") == revision + 2
        timed.fill(300, 400)
        until(lambda: len(windows("new")) >= 18, what="the windows after it")
        counts: dict[int, int] = {}
        for time in timed.times.values():
            counts[time // 10 * 10] = counts.get(time // 10 * 10, 0) + 1
        old, new = ({each: found[each] for each in sorted(found)} for found in (windows("old"), windows("new")))
        assert [*old.values()] == [counts[second] for second in range(0, 200, 10)]
        assert [*new.values()][:18] == [counts[second] for second in range(200, 380, 10)]
