"""Tasks are added to a running job and removed: each record is worked by one version, and nothing of what went is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from queues import admin
from sardonyx import Count, Job, State, event_time, kafka, tumbling
from sardonyx.client.change import revisions
from sardonyx.client.job_handle import JobHandle
from sardonyx.core import node_paths
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.notes import PeerNote
from sardonyx.testing import Cluster, kill_at
from tests.waiting import until


def label(row: dict, version: int) -> dict:
    return {**row, "version": version}


def same(row: dict) -> dict:
    return row


def add(row: dict, seen: State[int]) -> dict:
    seen.value += 1
    return {**row, "seen": seen.value}


def held(row: dict, opened: str) -> dict:
    """Waits until a file is there. Then it is slow."""
    while not Path(opened).exists():
        time.sleep(0.02)
    return slow(row)


def slow(row: dict) -> dict:
    time.sleep(0.02)  # so that a change which reads this task to its end has something to wait for
    return row


class Growing:
    """A job ``read -> label -> out``, to which versions add tasks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.given, self.out, self.audited = (cluster.topic(name) for name in ("given", "out", "audited"))
        self.filled = 0

    def version(self, number: int, *, audit: bool = False, copied: str = "") -> Job:
        job = Job("growing", partitions=2, lineage=True)
        read = job.input("read", kafka(self.given, schema="n long", start="earliest"))
        labelled = job.task("label", label, after=read, params={"version": number}, batch_size=20)
        job.output("out", kafka(self.out), after=labelled)
        if audit:
            checked = job.task("check", same, after=labelled, batch_size=20)
            job.output("audited", kafka(self.audited), after=job.keyed("audit", add, after=checked, batch_size=20))
        if copied:
            job.output("copied", kafka(copied), after=job.task("copy", same, after=read))
        return job

    def unread_of(self, handle: JobHandle, name: str) -> tuple[int | None, str]:
        """How much of a link is unread, and how exact that is."""
        return next((link.records, link.precision) for link in handle.lag() if link.link == name)

    def fill(self, count: int) -> None:
        span = range(self.filled, self.filled + count)
        self.cluster.fill(self.given, ({"n": n} for n in span))
        self.filled = span.stop

    def all_out(self) -> bool:
        return len(self.cluster.records(self.out)) >= self.filled

    def by(self, version: int) -> list[int]:
        """The numbers that a version has labelled."""
        return sorted(row["n"] for row in self.cluster.records(self.out) if row["version"] == version)

    def left_of(self, handle: JobHandle, *tasks: str) -> list[str]:
        """Topics and groups in Kafka that bear the names of tasks."""
        settings = self.cluster.settings
        names = [*admin.topics(settings), *admin.groups(settings)]
        return [name for name in names if handle.id in name and {*tasks} & {*name.split(".")}]


def test_tasks_come_and_go_under_load(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """While records come in, peers die and the leader is killed, three tasks with a state are added and removed again. The new
    ones get exactly the records of the version that has added them, and no others count as unread. A task that is added after
    an input begins where its others stand. Of what is removed nothing stays in Kafka, and its names are not used again.
    """
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    with sardonyx_clusters(**quick) as cluster:
        growing = Growing(cluster)
        growing.fill(600)
        (leader,) = cluster.daemons
        cluster.coordinator()
        cluster.peers(4, faults=[kill_at("committed", 3), kill_at("written", 9)])
        handle = cluster.submit(growing.version(1))
        until(lambda: len(cluster.records(growing.out)) > 40, what="the first results")
        with pytest.raises(Interrupted, match="SX-JOB-CHANGE-PENDING"):
            handle.change(growing.version(2, audit=True), timeout="1 ms")
        leader.process.kill()
        growing.fill(300)
        until(lambda: handle.status(live=False).revision == 2, what="the change")
        growing.fill(300)
        until(growing.all_out, what="all results")
        found = growing.by(2)
        until(lambda: len(cluster.records(growing.audited)) >= len(found), what="what was added")
        rows = cluster.records(growing.audited)
        assert sorted(row["n"] for row in rows) == found
        until(lambda: growing.unread_of(handle, "label.check") == (0, "exact"), what="nothing to be unread")
        assert sorted(row["seen"] for row in rows) == list(range(1, len(found) + 1))
        assert sorted(found + growing.by(1)) == list(range(growing.filled))
        assert growing.left_of(handle, "audit")

        with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-DROP") as refused:
            handle.change(growing.version(3))
        assert "--drop audit" in refused.value.fix
        growing.fill(200)
        assert handle.change(growing.version(3), timeout=300, drop=["audit", "audited", "check"]) == 3
        until(lambda: not growing.left_of(handle, "audit", "check"), what="what was removed to go")
        growing.fill(200)
        until(growing.all_out, what="all results")
        rows = cluster.records(growing.audited)
        assert {row["n"] for row in rows} <= {*growing.by(2)}
        assert len({row["n"] for row in rows}) == len(rows)
        with pytest.raises(SardonyxError, match="was removed from the job before"):
            handle.change(growing.version(4, audit=True))

        copied = cluster.topic("copied")
        before = growing.filled
        assert handle.change(growing.version(5, copied=copied), timeout=300) == 4
        growing.fill(100)
        until(lambda: len(cluster.records(copied)) >= 100, what="what was copied")
        until(growing.all_out, what="all results")
        assert sorted(row["n"] for row in cluster.records(copied)) == list(range(before, growing.filled))
        handle.stop()
        assert handle.await_completion(300).status == "stopped"
        assert sorted(row["n"] for row in cluster.records(growing.out)) == list(range(growing.filled))


def test_inputs_come_and_go_under_load(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """While records come in and a peer dies, a change adds an input, which a task that stays reads, too, and with it a task of
    its own; a later one removes both. Then only a function changes. Each record is worked once, by one version, and the offsets
    on record say by which.
    """
    with sardonyx_clusters() as cluster:
        growing = Growing(cluster)
        more, noted = cluster.topic("more"), cluster.topic("noted")
        far, stop, given = 1_000_000, threading.Event(), 0

        def version(number: int, *, wide: bool = False) -> Job:
            job = Job("growing", partitions=2)
            sources = [job.input("read", kafka(growing.given, schema="n long", start="earliest"))]
            if wide:
                sources.append(job.input("more", kafka(more, schema="n long", start="earliest")))
                job.output("noted", kafka(noted), after=job.task("note", same, after="more"))
            labelled = job.task("label", label, after=sources, params={"version": number}, batch_size=20)
            job.output("out", kafka(growing.out), after=labelled)
            return job

        def load() -> None:
            nonlocal given
            while not stop.wait(0.05):
                growing.fill(20)
                cluster.fill(more, ({"n": far + n} for n in range(given, given + 20)))
                given += 20

        def worked(count: int) -> bool:
            return len(cluster.records(growing.out)) >= count

        feeder = threading.Thread(target=load)
        feeder.start()
        try:
            cluster.peers(4, faults=[kill_at("written", 9)])
            handle = cluster.submit(version(1))
            until(lambda: worked(40), what="the first results")
            assert handle.change(version(2, wide=True), timeout=300) == 2
            until(lambda: len(cluster.records(noted)) > 40, what="what the new input gives")
            until(lambda: any(row["n"] >= far for row in cluster.records(growing.out)), what="both inputs")
            with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-DROP"):
                handle.change(version(3))
            assert handle.change(version(3), timeout=300, drop=["more", "note", "noted"]) == 3
            before = growing.filled
            until(lambda: worked(before + 40), what="results without it")
            assert handle.change(version(4), timeout=300) == 4
        finally:
            stop.set()
            feeder.join()
        until(
            lambda: {*range(growing.filled)} <= {row["n"] for row in cluster.records(growing.out)}, what="all results"
        )
        rows = {row["n"]: row["version"] for row in cluster.records(growing.out)}
        assert len(rows) == len(cluster.records(growing.out)), "each once"
        made = revisions(cluster.client, handle.id)
        assert [each.revision for each in made] == [2, 3, 4]

        def at(revision: int, task: str, topic: str) -> list[int]:
            return [offset or 0 for offset in made[revision - 2].since[task][topic]]

        starts = [at(revision, "label", growing.given) for revision in (2, 3, 4)]
        for n in range(growing.filled):  # in turn to the two partitions
            assert rows.pop(n) == 1 + sum(n // 2 >= start[n % 2] for start in starts), n
        for task, found in (("label", sorted(rows)), ("note", sorted(row["n"] for row in cluster.records(noted)))):
            end = at(3, task, more)
            assert found == [far + n for n in range(given) if n // 2 < end[n % 2]], task
        assert {*rows.values()} == {2}
        until(lambda: not growing.left_of(handle, "note"), what="what was removed to go")
        handle.stop()
        assert handle.await_completion(300).status == "stopped"


def test_what_goes_is_read_to_its_end_first(sardonyx_clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    """If the user wants that: a task that is far behind gives all that was written for it before it goes. What feeds it goes
    on. The task was added while the job ran, so the one who has submitted the job did not know it.
    """
    opened = tmp_path / "opened"
    with sardonyx_clusters() as cluster:
        growing = Growing(cluster)

        def version(*, behind: bool) -> Job:
            job = Job("growing", partitions=2)
            read = job.input("read", kafka(growing.given, schema="n long", start="earliest"))
            labelled = job.task("label", label, after=read, params={"version": 1})
            job.output("out", kafka(growing.out), after=labelled)
            if behind:
                late = job.task("slow", held, after=labelled, params={"opened": str(opened)}, batch_size=10)
                job.output("kept", kafka(growing.audited), after=job.task("again", same, after=late))
            return job

        growing.fill(100)
        cluster.peers(4)
        handle = cluster.submit(version(behind=False))
        until(growing.all_out, what="the first results")
        assert handle.change(version(behind=True), timeout=300) == 2
        assert [task.name for task in handle.status(live=False).tasks if task.name == "slow"]
        growing.fill(400)
        until(growing.all_out, what="all that feeds it")
        assert cluster.records(growing.audited) == []
        opened.touch()
        assert handle.change(version(behind=False), timeout=300, drain=["slow", "again", "kept"]) == 4
        assert sorted(row["n"] for row in cluster.records(growing.audited)) == list(range(100, 500))
        closed = revisions(cluster.client, handle.id)[1]
        assert (closed.revision, [*closed.since]) == (3, ["label"]), "what writes to it is fenced before it is counted"
        until(lambda: not growing.left_of(handle, "slow", "again"), what="what was removed to go")
        growing.fill(100)
        until(growing.all_out, what="the rest")
        assert len(cluster.records(growing.audited)) == 400


def test_a_change_that_kafka_refuses_is_given_up(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """If a topic that the new version reads does not exist, the user gets the reason, and the job goes on as it was."""
    with sardonyx_clusters() as cluster:
        growing = Growing(cluster)
        growing.fill(100)
        cluster.peers(3)
        handle = cluster.submit(growing.version(1))
        until(growing.all_out, what="the first results")
        wanted = growing.version(2)
        missing = wanted.input("missing", kafka("no-such-topic", schema="n long", start="earliest"))
        wanted.output("more", kafka(growing.audited), after=wanted.task("copy", same, after=missing))
        with pytest.raises(SardonyxError, match="SX-KAFKA-TOPIC-MISSING"):
            handle.change(wanted, timeout=300)
        growing.fill(100)
        until(growing.all_out, what="the rest")
        assert handle.status(live=False).revision == 1
        assert growing.by(1) == list(range(200))


def test_windows_are_added_to_a_job_that_runs(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """They get the clock of the task before them, and hold exactly the rows since."""
    with sardonyx_clusters() as cluster:
        given, out, counted = (cluster.topic(name) for name in ("given", "out", "counted"))

        def version(*, windows: bool) -> Job:
            job = Job("timed", partitions=2)
            source = kafka(given, schema="n long, at timestamp", start="earliest")
            read = job.input("read", source, time=event_time("at", delay="0 s"))
            passed = job.task("pass", same, after=read)
            job.output("out", kafka(out), after=passed)
            if windows:
                window = job.window("count", tumbling("10 s"), after=passed, aggregate={"hits": Count()})
                job.output("counted", kafka(counted), after=window)
            return job

        def fill(*span: int) -> None:
            times = ((n, f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z") for n in range(*span))
            cluster.fill(given, ({"n": n, "at": at} for n, at in times))

        cluster.peers(4)
        fill(200)
        handle = cluster.submit(version(windows=False))
        until(lambda: len(cluster.records(out)) >= 200, what="the rows before")
        handle.change(version(windows=True), timeout=300)
        fill(200, 400)
        until(lambda: len(cluster.records(counted)) >= 19, what="the windows")
        found = cluster.records(counted)
        assert [row["hits"] for row in found] == [10] * 19
        assert len({row["window_start"] for row in found}) == 19
        assert sorted(row["n"] for row in cluster.records(out)) == list(range(400))


def test_tasks_that_are_not_touched_go_on(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """They keep their peers, and the numbers of their assignments. Tasks that are touched get others. A reader of what such a
    task writes is touched by the first change of that, and not by the next one.
    """
    with sardonyx_clusters() as cluster:
        growing = Growing(cluster)
        beside = cluster.topic("beside")

        def version(number: int, *taps: str) -> Job:
            job = growing.version(number)
            job.output("beside", kafka(beside), after=job.task("side", same, after="read"))
            job.output("after-out", kafka(growing.audited), after=job.task("after", same, after="label"))
            for tap in taps:
                job.output(f"{tap}-out", kafka(growing.audited), after=job.task(tap, same, after="label"))
            return job

        def held() -> dict[str, list[int]]:
            zk = cluster.client.zk
            notes = [zk.read(node_paths.peer_state(name)) for name in zk.children(node_paths.PEER_STATE)]
            found = [msgspec.json.decode(note, type=PeerNote).assignment for note in notes if note is not None]
            return {
                task: sorted(each.id for each in found if each is not None and each.task == task)
                for task in ("label", "side", "after")
            }

        growing.fill(100)
        cluster.peers(4)
        cluster.peers(4)
        handle = cluster.submit(version(1))
        until(lambda: growing.all_out() and all(held().values()), what="peers on all tasks")
        first = held()
        handle.change(version(1, "tap"), timeout=300)
        until(lambda: all(held().values()), what="peers on all tasks again")
        second = held()
        assert second["side"] == first["side"]
        assert not {*second["label"]} & {*first["label"]}
        assert not {*second["after"]} & {*first["after"]}
        handle.change(version(1, "tap", "other"), timeout=300)
        until(lambda: all(held().values()), what="peers on all tasks again")
        third = held()
        assert (third["side"], third["after"]) == (second["side"], second["after"])
        assert not {*third["label"]} & {*second["label"]}
        handle.change(version(2, "tap", "other"), timeout=300)
        growing.fill(100)
        until(growing.all_out, what="all results")
        assert held()["side"] == first["side"]
        assert held()["after"] == second["after"]
        handle.stop()
        assert handle.await_completion(300).status == "stopped"
        assert sorted(row["n"] for row in cluster.records(beside)) == list(range(growing.filled))


@pytest.mark.gate
def test_a_task_takes_the_place_of_another_and_no_row_is_left_out(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """While the old one is read to its end, rows take the way through the new one. Then that goes, too."""
    with sardonyx_clusters() as cluster:
        growing = Growing(cluster)

        def version(*between: str) -> Job:
            job = Job("growing", partitions=2)
            read = job.input("read", kafka(growing.given, schema="n long", start="earliest"))
            last = job.task("label", label, after=read, params={"version": 1}, batch_size=20)
            for name in between:
                last = job.task(name, slow, after=last, batch_size=20)
            job.output("out", kafka(growing.out), after=last)
            return job

        growing.fill(200)
        cluster.peers(4)
        handle = cluster.submit(version())
        until(lambda: len(cluster.records(growing.out)) > 40, what="the first results")
        handle.change(version("first"), timeout=300)
        growing.fill(100)
        handle.change(version("second"), timeout=300, drain=["first"])
        growing.fill(100)
        assert handle.change(version(), timeout=300, drain=["second"]) == 6
        assert handle.change(version(), timeout=300, drain=["second"]) == 6, "the same command again"
        growing.fill(100)
        until(growing.all_out, what="all results")
        assert sorted(row["n"] for row in cluster.records(growing.out)) == list(range(growing.filled))
