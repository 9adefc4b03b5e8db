"""Jobs go back to a checkpoint on real services: an ended one by another job, a running one by rollback. Processes die."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import Interrupted, JobFailed, SardonyxError
from sardonyx.testing import Cluster, kill_at
from tests.services.house import called
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

Closed = Counter[tuple[int, datetime, int]]
"""User, start and number of rows of windows."""


def a_job(topic: str, sums: str, every: str | None = "1 min") -> Job:
    """A function with state, and windows behind it that lie across the checkpoints."""
    job = Job("back", partitions=3, checkpoint_every=every)
    schema = "user long, n long, at timestamp"
    read = job.input("read", kafka(topic, schema=schema, start="earliest"), time=event_time("at", delay="20 s"))
    kept = job.keyed("keep", keep, after=read, group_by="user", batch_size=20)
    window = job.window("count", tumbling("90 s"), after=kept, group_by="user", aggregate={"hits": Count()})
    job.output("out", kafka(sums), after=window)
    return job


def feed(
    cluster: Cluster,
    handle: JobHandle,
    topic: str,
    given: list[dict[str, Any]],
    first: int,
    last: int,
    portion: int = PORTION,
) -> None:
    """Write rows in portions, mostly of 40 s, each when the clocks of all tasks have come to where the one before brings them."""

    def clock() -> int:
        with contextlib.suppress(SardonyxError):  # its topics are made a moment later
            return min(-1 if task.clock is None else task.clock for task in handle.clock().tasks)
        return -1

    for begin in range(first, last, portion):
        end = min(begin + portion, last)
        cluster.fill(topic, given[begin:end])
        wanted = clock_after(given[:end])
        until(lambda: clock() >= wanted, what=f"all clocks to come to {wanted}")  # noqa: B023


def states(handle: JobHandle, **at: Any) -> dict[int, tuple[int, list[int]]]:
    """By user: the total, and what was seen."""
    found = {each.key[0]: each.states for each in handle.state("keep", **at)}
    return {user: (kept["total"], sorted(kept["seen"])) for user, kept in found.items()}


def states_of(given: list[dict[str, Any]]) -> dict[int, tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for row in given:
        found.setdefault(row["user"], []).append(row["n"])
    return {user: (sum(own), sorted(own)) for user, own in found.items()}


def closed(given: list[dict[str, Any]], after: datetime, by: datetime) -> Closed:
    """The windows of these rows that close after one time, by another."""
    found: Counter[tuple[int, datetime]] = Counter()
    for row in given:
        found[row["user"], datetime.fromtimestamp(at_of(row).timestamp() // 90 * 90, UTC)] += 1
    return Counter((user, start, hits) for (user, start), hits in found.items() if after < start + WINDOW <= by)


def given_by(cluster: Cluster, sums: str) -> Closed:
    return Counter(
        (row["user"], datetime.fromisoformat(row["window_start"]).replace(tzinfo=UTC), row["hits"])
        for row in cluster.records(sums)
    )


def kill(handle: JobHandle) -> None:
    """Kill a job, and wait until its topics are deleted."""
    handle.kill()
    with pytest.raises(Interrupted, match="SX-JOB-KILLED"):
        handle.await_completion(300)
    assert handle.await_resumable(300)


def test_a_job_goes_on_from_a_checkpoint_of_a_killed_one(sardonyx_clusters: Callable[..., Cluster], seed: int) -> None:
    """With the state of that time, and with the rows from then on: its state, and the windows that close after that time, are
    those of a job that was never stopped. Peers die before and after. What is not kept is refused.
    """
    given = rows(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, sums, again = (
            cluster.topic("given", [], partitions=PARTITIONS),
            cluster.topic("sums"),
            cluster.topic("b"),
        )
        early = cluster.peers(3, faults=[kill_at("committed", 6)])
        first = cluster.submit(a_job(topic, sums))
        feed(cluster, first, topic, given, 0, 320)
        time = START + timedelta(minutes=3)
        before = [row for row in given[:320] if at_of(row) < time]
        assert states(first, at=time) == states_of(before)
        with pytest.raises(SardonyxError, match="SX-JOB-NAME-TAKEN"):
            cluster.client.submit(a_job(topic, again), resume=first.id, at=time)
        kill(first)
        assert not early.missing
        early.stop(180)
        cluster.peers(3, faults=[kill_at("begin", 4)])  # so that it dies at the work of the next job
        assert time in first.checkpoints().times
        back = first.going_back(time + timedelta(seconds=30))
        assert (back.at, back.publishes_again) == (time, [f"out (kafka {sums})"])
        assert 0 < back.reads_again[topic] < 320
        with pytest.raises(SardonyxError, match="SX-CHECKPOINT-UNKNOWN"):
            first.going_back(START - timedelta(hours=1))
        with pytest.raises(JobFailed, match="SX-CHECKPOINT-UNKNOWN"):
            cluster.client.submit(a_job(topic, again), resume=first.id, at=START - timedelta(hours=1))
        second = cluster.client.submit(a_job(topic, again), resume=first.id, at=time)
        feed(cluster, second, topic, given, 320, len(given))
        assert states(second) == states_of(given)
        by = datetime.fromtimestamp(clock_after(given) / 1e6, UTC)
        wanted = closed(given, time, by)
        until(lambda: given_by(cluster, again) == wanted, what="the windows that close after that time")
        later = second.checkpoints().times
        assert later[0] > time
        assert states(second, at=later[-1]) == states_of([row for row in given if at_of(row) < later[-1]])
        second.kill()


def test_a_running_job_goes_back(sardonyx_clusters: Callable[..., Cluster], seed: int) -> None:
    """`job rollback`: the job ends, and one of the same spec goes on from the checkpoint, though the leader dies at each step,
    and peers do. It asks first, and refuses a time that is not kept; then nothing has happened to the job.
    """
    given = rows(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, sums = cluster.topic("given", [], partitions=PARTITIONS), cluster.topic("sums")
        (leader,) = cluster.daemons
        cluster.peers(3, faults=[kill_at("committed", 12), kill_at("begin", 6)])
        first = cluster.submit(a_job(topic, sums))
        feed(cluster, first, topic, given, 0, 320)
        leader.process.kill()
        leaders = cluster.coordinator(
            faults=[kill_at("in-delete-links"), kill_at("after-side-effect"), kill_at("in-create-links", 2)]
        )
        env = cluster.settings.environment()
        for arguments, code in [
            (("--to", "2026-11-26T09:00:00Z", "--yes"), "SX-CHECKPOINT-UNKNOWN"),
            (("--to", "2026-11-26T10:03:00Z"), "SX-GO-BACK-ASK"),
        ]:
            refused = called("job", "rollback", "back", *arguments, env=env)
            assert refused.exit_code != 0
            assert code in refused.stderr
        assert first.status(live=False).status == "running"
        done = called("job", "rollback", "back", "--to", "2026-11-26T10:03:30Z", "--yes", env=env)
        assert done.exit_code == 0, done.output
        assert "goes on from the checkpoint at 2026-11-26T10:03:00Z" in done.stderr
        assert (
            f"publishes again what the job has given for rows of that time or later: out (kafka {sums})" in done.stderr
        )
        time = START + timedelta(minutes=3)
        second = cluster.client.job(done.stdout.strip())
        assert second.id != first.id
        by = datetime.fromtimestamp(clock_after(given[:320]) / 1e6, UTC)
        before = closed(given[:320], START - timedelta(days=1), by)
        view = first.status(live=False)
        assert (view.status, view.resumed_by) == ("killed", second.id)
        feed(cluster, second, topic, given, 320, len(given))
        assert states(second) == states_of(given)
        with pytest.raises(SardonyxError, match="SX-REPLAY-RANGE"):  # it has left out rows before that checkpoint
            second.replaying(START + timedelta(seconds=90), START + timedelta(seconds=360))
        by = datetime.fromtimestamp(clock_after(given) / 1e6, UTC)
        wanted = before + closed(given, time, by)
        until(lambda: given_by(cluster, sums) == wanted, what="the windows that close after that time")
        assert not leaders.missing
        second.kill()


def test_a_restarted_job_goes_on_with_its_state(sardonyx_clusters: Callable[..., Cluster], seed: int) -> None:
    """Windows that were open close in the next job with the rows of both, and the states of keys go on, in other partitions: each
    row counts once. Peers die before, meanwhile and after, and so does the leader that has taken the restart in. The old job
    cannot be purged while the next one runs.
    """
    given = rows(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, sums, next_sums = (cluster.topic(name, [], partitions=PARTITIONS) for name in ("given", "sums", "next"))
        cluster.peers(3, faults=[kill_at("committed", 6), kill_at("exhausted"), kill_at("begin", 4)])
        first = cluster.submit(a_job(topic, sums, every=None))
        feed(cluster, first, topic, given, 0, 240)
        cluster.fill(topic, given[240:320])
        with pytest.raises(SardonyxError, match="SX-JOB-RESUME"):  # nothing is done
            first.restart(a_job(next_sums, sums, every=None))
        (leader,) = cluster.daemons[:1]
        leader.process.kill()
        leaders = cluster.coordinator(
            faults=[kill_at("in-delete-links"), kill_at("after-side-effect"), kill_at("in-create-links")]
        )
        second = first.restart(a_job(topic, next_sums, every=None), partitions=5, timeout=300)
        assert not leaders.missing
        assert (first.status().status, second.spec().partitions) == ("stopped", 5)
        feed(cluster, second, topic, given, 320, len(given))
        assert states(second) == states_of(given)
        by = datetime.fromtimestamp(clock_after(given) / 1e6, UTC)
        wanted = closed(given, START - timedelta(days=1), by)

        def both() -> Closed:
            return given_by(cluster, sums) + given_by(cluster, next_sums)

        until(lambda: both() == wanted, what="all windows, each once")
        assert given_by(cluster, next_sums)
        with pytest.raises(SardonyxError, match="SX-JOB-STATE-NEEDED"):
            first.purge()
        kill(second)
        first.purge(300)
