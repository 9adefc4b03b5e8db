"""Rows of a range of time are worked once more by another job, on real services. Processes die."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from confluent_kafka import TopicPartition

from coordinator.history import reader
from queues.admin import first_offsets, held_positions
from queues.admin_client import admin_client
from sardonyx import Count, Job, MapState, State, Sum, event_time, kafka, tumbling
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import Link, graph_of
from sardonyx.core.positions import Position
from sardonyx.testing import Cluster, kill_at
from tests.services.house import called
from tests.services.test_cycles import grow, tree, visit
from tests.services.test_going_back import feed, kill
from tests.services.timed_rows import PARTITIONS, QUICK, START, at_of, keep, rows
from tests.waiting import until

Windows = Counter[tuple[Any, ...]]
Totals = Counter[tuple[int, int, int]]
"""User, number and total of rows."""
FROM, TO = START + timedelta(minutes=2), START + timedelta(minutes=5)


def a_job(topic: str, sums: str, every: str | None = None) -> Job:
    """Windows, and beside them a function with state."""
    job = Job("daily", partitions=3, checkpoint_every=every)
    schema = "user long, n long, at timestamp"
    read = job.input("read", kafka(topic, schema=schema, start="earliest"), time=event_time("at", delay="20 s"))
    kept = job.keyed("keep", keep, after=read, group_by="user", batch_size=20)
    totals = {"hits": Count(), "total": Sum("n")}
    window = job.window("count", tumbling("1 min"), after=kept, group_by="user", aggregate=totals)
    job.output("out", kafka(sums), after=window)
    return job


def by_pandas(given: list[dict[str, Any]]) -> Windows:
    """What windows these rows make."""
    frame = pd.DataFrame({"user": [row["user"] for row in given], "n": [row["n"] for row in given]})
    frame["start"] = pd.to_datetime([row["at"] for row in given]).floor("min")
    grouped = frame.groupby(["user", "start"]).agg(hits=("n", "size"), total=("n", "sum")).reset_index()
    return Counter(
        (user, start.to_pydatetime(), hits, total) for user, start, hits, total in grouped.itertuples(index=False)
    )


def given_by(cluster: Cluster, sums: str) -> Windows:
    return Counter(
        (row["user"], datetime.fromisoformat(row["window_start"]).astimezone(UTC), row["hits"], row["total"])
        for row in cluster.records(sums)
    )


def within(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in given if FROM <= at_of(row) < TO]


def test_rows_of_a_range_are_worked_once_more(sardonyx_clusters: Callable[..., Cluster], seed: int) -> None:
    """Exactly those, though they are out of order and peers die: the windows are those that pandas makes of them. The job goes on
    meanwhile. To its own outputs only if that is confirmed; what cannot be is refused, and nothing is done.
    """
    given = rows(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, sums = cluster.topic("given", [], partitions=PARTITIONS), cluster.topic("sums")
        quiet = cluster.peers(2)
        first = cluster.submit(a_job(topic, sums))
        feed(cluster, first, topic, given, 0, len(given))
        env = cluster.settings.environment()
        span = ("--from", FROM.isoformat(), "--to", TO.isoformat())
        for arguments, code in [
            ((*span, "--outputs", "same"), "SX-GO-BACK-ASK"),
            ((*span, "--with-state"), "SX-CHECKPOINT-UNKNOWN"),
            (("--from", "2026-11-26T10:02:30Z", "--to", TO.isoformat()), "SX-REPLAY-RANGE"),
            (("--from", TO.isoformat(), "--to", FROM.isoformat()), "SX-REPLAY-RANGE"),
        ]:
            refused = called("job", "replay", "daily", *arguments, env=env)
            assert refused.exit_code != 0
            assert code in refused.stderr
        assert [view.id for view in cluster.client.jobs()] == [first.id]
        quiet.stop(180)  # so that the one that dies must do the work
        done = called("job", "replay", "daily", *span, env=env)
        assert done.exit_code == 0, done.output
        assert f" records of {topic}, and leaves out the rows of other times" in done.stderr
        planned = first.replaying(FROM, TO)
        assert len(within(given)) < planned.reads[topic] < len(given), "it begins where its index of times says"
        assert f"publishes: out (kafka {sums}.again)" in done.stderr
        cluster.peers(2, faults=[kill_at("committed", 2), kill_at("begin", 2)])
        again = cluster.client.job(done.stdout.strip())
        assert again.await_completion(300).status == "completed"
        assert given_by(cluster, f"{sums}.again") == by_pandas(within(given))
        assert first.status(live=False).status == "running"
        before = given_by(cluster, sums)
        first.replay(FROM, TO, outputs="same").await_completion(300)
        assert given_by(cluster, sums) == before + by_pandas(within(given))
        first.kill()


def test_a_replay_with_state_gives_what_the_job_gave(sardonyx_clusters: Callable[..., Cluster], seed: int) -> None:
    """From a checkpoint: the windows of the range, and the totals of keys that count the rows before it, are those that the job
    has given when it went past it. A time without a checkpoint is refused.
    """
    given = rows(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, sums = cluster.topic("given", [], partitions=PARTITIONS), cluster.topic("sums")
        cluster.peers(3, faults=[kill_at("committed", 8)])
        first = cluster.submit(a_job(topic, sums, every="1 min"))
        feed(cluster, first, topic, given, 0, len(given))
        kill(first)
        assert FROM in first.checkpoints().times
        with pytest.raises(SardonyxError, match="SX-CHECKPOINT-UNKNOWN"):
            first.replay(FROM + timedelta(seconds=30), TO, with_state=True)
        with pytest.raises(SardonyxError, match="SX-CHECKPOINT-UNKNOWN"):
            first.replay(START - timedelta(minutes=5), TO, with_state=True)
        planned = first.replaying(FROM, TO, with_state=True)
        assert 0 < planned.reads[topic] < len(given)
        again = first.replay(FROM, TO, with_state=True, outputs="state")
        assert again.await_completion(300).status == "completed"
        made = given_by(cluster, f"{sums}.state")
        wanted = Counter({row: n for row, n in given_by(cluster, sums).items() if FROM <= row[1] < TO})
        assert wanted
        assert made == wanted


def totalled(row: dict, total: State[int]) -> dict:
    total.value += row["n"]
    return {**row, "total": total.value}


def balances(topic: str, out: str) -> Job:
    """Each row, with the total of its user so far."""
    job = Job("balances", partitions=3, checkpoint_every="1 min")
    schema = "user long, n long, at timestamp"
    read = job.input("read", kafka(topic, schema=schema, start="earliest"), time=event_time("at", delay="20 s"))
    job.output("out", kafka(out), after=job.keyed("keep", totalled, after=read, group_by="user", batch_size=20))
    return job


def totals_by_pandas(given: list[dict[str, Any]], since: datetime, until: datetime) -> Totals:
    """The rows of a range, each with its total: what the rows before the range come to, and then one row after the other."""
    frame = pd.DataFrame(given)
    frame["at"] = pd.to_datetime(frame["at"])
    before, mine = frame[frame["at"] < since], frame[(frame["at"] >= since) & (frame["at"] < until)].copy()
    begun = mine["user"].map(before.groupby("user")["n"].sum()).fillna(0)
    mine["total"] = (begun + mine.groupby("user")["n"].cumsum()).astype(int)
    return Counter(mine[["user", "n", "total"]].itertuples(index=False, name=None))


def totals_given(cluster: Cluster, out: str) -> Totals:
    return Counter((row["user"], row["n"], row["total"]) for row in cluster.records(out))


def test_a_running_job_is_replayed_with_its_states(sardonyx_clusters: Callable[..., Cluster], seed: int) -> None:
    """By two jobs at once, while it goes on and peers die: the totals of both go on from those at the beginning of the range, as
    pandas reckons them. The job gives what it gives without them, and nothing is taken over from it.
    """
    given = rows(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, out = cluster.topic("given", [], partitions=PARTITIONS), cluster.topic("out")
        cluster.peers(6, faults=[kill_at("committed", 6), kill_at("begin", 9)])
        first = cluster.submit(balances(topic, out))
        feed(cluster, first, topic, given, 0, 360, portion=60)
        assert FROM in first.checkpoints().times
        with pytest.raises(SardonyxError, match="SX-CHECKPOINT-UNKNOWN"):
            first.replay(FROM + timedelta(seconds=30), TO, with_state=True)
        env = cluster.settings.environment()
        span = ("--from", FROM.isoformat(), "--to", TO.isoformat())
        done = called("job", "replay", "balances", *span, "--with-state", env=env)
        assert done.exit_code == 0, done.output
        assert "with the states of 2026-11-26T10:02:00Z" in done.stderr
        again = cluster.client.job(done.stdout.strip())
        later = FROM + timedelta(minutes=1)
        other = first.replay(later, TO, with_state=True, outputs="other")
        feed(cluster, first, topic, given, 360, len(given))
        for replay, since, word in ((again, FROM, "again"), (other, later, "other")):
            assert replay.await_completion(300).status == "completed"
            assert totals_given(cluster, f"{out}.{word}") == totals_by_pandas(given, since, TO)
        view = first.status(live=False)
        assert (view.status, view.resumed_by) == ("running", "")
        assert totals_given(cluster, out) == totals_by_pandas(
            given, START - timedelta(days=1), START + timedelta(days=1)
        )
        first.stop()
        first.await_completion(300)
        second = cluster.client.submit(balances(topic, out), resume=first.id)
        assert second.status(live=False).resumes == first.id
        second.kill()


def counted(row: dict, slots: MapState[int, int]) -> dict:
    """Each row changes a hundred entries, so that the log of the state is soon longer than it."""
    for n in range(100):
        slots[n] = slots.get(n, 0) + row["n"]
    return {**row, "total": slots[0]}


@pytest.mark.long
def test_the_log_of_states_stays_while_a_replay_needs_it(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """A replay that waits finds the states of its checkpoint, though the job has restated its state since, and keeps that
    checkpoint no more: nothing of the log is deleted until the replay has ended. Then it is, when the coordinators have put two
    later checkpoints into their log.
    """
    days = [0] * 200 + [1] * 560  # a checkpoint that is so much older than the others is not kept
    given = [
        {"user": n % 10, "n": n, "at": (START + timedelta(days=day, seconds=n)).isoformat()}
        for n, day in enumerate(days)
    ]
    often = {**QUICK, "coordinator.trim_every": "100 ms"}
    with sardonyx_clusters(**often) as cluster:
        topic, out = cluster.topic("given", given[:200], partitions=1), cluster.topic("out")
        job = Job("slots", partitions=1, checkpoint_every="1 min")
        schema = "user long, n long, at timestamp"
        source = kafka(topic, schema=schema, start="earliest")
        read = job.input(
            "read", source, time=event_time("at", delay="1 s"), batch_size=20
        )  # so clocks move in small steps
        job.output("out", kafka(out), after=job.keyed("keep", counted, after=read, group_by="user", batch_size=20))
        quiet = cluster.peers(2)
        first = cluster.submit(job)
        since, by = START + timedelta(minutes=2), START + timedelta(minutes=3)
        until(lambda: since in checkpoints(first), what="the checkpoint")
        quiet.stop(180)
        again = first.replay(since, by, with_state=True)
        again.suspend()
        cluster.peers(2)
        graph = graph_of(first.spec(), cluster.settings.deployment, first.id)
        keep = graph.stage("keep")
        (queue,), (log,) = keep.ingress, [link for link in keep.egress if link.kind == "state"]

        def position() -> Position:
            (found,) = held_positions(cluster.settings, [keep], first.id)["keep"].values()
            assert found is not None
            return found

        def begins(link: Link) -> int:
            ((begin,), _) = first_offsets(cluster.settings, link.topic, None)
            return begin

        def goes_on(begin: int, end: int) -> None:
            cluster.fill(topic, given[begin:end], partitions=1)
            reached = START + timedelta(days=1, seconds=end - 2)
            until(lambda: clock(first) >= reached, what=f"all clocks to come to {reached}")

        def logged() -> list[int]:
            return [point.at for point in reader.present(cluster.client.zk).jobs[first.id].checkpoints]

        for end in range(240, 601, 40):
            goes_on(end - 40, end)
        found = position()
        assert found.checkpoints is not None
        assert (found.checkpoints.low or 0) > 0, "the log was not restated, or a checkpoint from before it is kept"
        with pytest.raises(SardonyxError, match="SX-CHECKPOINT-UNKNOWN"):
            first.replay(since, by, with_state=True, outputs="late")
        until(lambda: begins(queue) >= found.offset, what="a round that trims by these positions")
        assert begins(log) == 0
        again.resume()
        assert again.await_completion(300).status == "completed"
        assert totals_given(cluster, f"{out}.again") == totals_by_pandas(given, since, by)
        leader = cluster.daemons[0]
        for end in (680, 760):
            goes_on(end - 80, end)
            before = logged()
            leader.stop(60)
            leader = cluster.coordinator()  # a new leader does not wait for ten minutes
            until(lambda: logged() != before, what="the last checkpoint to be put into the log")  # noqa: B023
        until(lambda: begins(log) > 0, what="the log to be trimmed again")
        assert first.status(live=False).status == "running"
        first.kill()


def clock(handle: JobHandle) -> datetime:
    """The least clock of all tasks."""
    return START + timedelta(
        microseconds=min(task.clock or 0 for task in handle.clock().tasks) - START.timestamp() * 1e6
    )


def checkpoints(handle: JobHandle) -> list[datetime]:
    with contextlib.suppress(SardonyxError):  # its topics are made a moment later
        return handle.checkpoints().times
    return []


def test_records_that_are_gone_are_not_left_out_in_silence(
    sardonyx_clusters: Callable[..., Cluster], seed: int
) -> None:
    """If some that the job has read are deleted, and may be of the range, the replay is refused. What is left is taken if the
    user says so.
    """
    given = rows(seed)
    with sardonyx_clusters(**QUICK) as cluster:
        topic, sums = cluster.topic("given", [], partitions=PARTITIONS), cluster.topic("sums")
        cluster.peers(2)
        first = cluster.submit(a_job(topic, sums))
        feed(cluster, first, topic, given, 0, len(given))

        def delete_before(offset: int) -> None:
            places = [TopicPartition(topic, 0, offset)]
            for future in admin_client(cluster.settings).delete_records(places).values():
                future.result(30)

        delete_before(20)
        planned = first.replaying(FROM, TO)  # these are all of earlier times, as the index of times shows
        assert planned.deleted == {}
        delete_before(90)
        with pytest.raises(SardonyxError, match="SX-REPLAY-GONE"):
            first.replay(FROM, TO)
        planned = first.replaying(FROM, TO, kept=True)
        assert 0 < planned.deleted[topic] < 70
        first.replay(FROM, TO, outputs="left", kept=True).await_completion(300)
        left = [row for n, row in enumerate(given) if n % PARTITIONS or n // PARTITIONS >= 90]
        assert given_by(cluster, f"{sums}.left") == by_pandas(within(left))
        first.kill()


def a_loop(source: str, out: str) -> Job:
    job = Job("growing", partitions=2)
    schema = "id string, left long, at timestamp"
    seeds = job.input("seeds", kafka(source, schema=schema, start="earliest", end="latest"), time=event_time("at"))
    with job.cycle("tree", after=seeds) as again:
        seen = job.task("visit", visit, after=again, batch_size=20)
        again.feedback(job.task("grow", grow, after=seen, batch_size=20))
    job.output("out", kafka(out), after=seen)
    return job


def test_rows_of_a_range_go_round_a_loop_once_more(sardonyx_clusters: Callable[..., Cluster], seed: int) -> None:
    """A replay of a job with a loop: the rows of the range go round, and what they become, though this has no time. It ends."""
    given = [{"id": f"{seed}-{n}", "left": n % 6, "at": row["at"]} for n, row in enumerate(rows(seed))]
    with sardonyx_clusters(**QUICK) as cluster:
        source, out = cluster.topic("seeds", given, partitions=PARTITIONS), cluster.topic("out")
        cluster.peers(3)
        first = cluster.submit(a_loop(source, out))
        first.await_completion(300)
        assert sorted(row["id"] for row in cluster.records(out)) == tree(given)
        with pytest.raises(SardonyxError, match="SX-CHECKPOINT-UNKNOWN"):
            first.replay(FROM, TO, with_state=True)
        first.replay(FROM, TO).await_completion(300)
        assert sorted(row["id"] for row in cluster.records(f"{out}.again")) == tree(within(given))
