"""Queues of a running job get another number of partitions: each record is worked once, and rows of a key keep their order."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import Result

from queues import admin
from sardonyx import Job, event_time, kafka
from sardonyx.client.change import Making
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.resizing import queues
from sardonyx.core.spec import JobSpec
from sardonyx.testing import Cluster, kill_at
from tests.services.house import House, told, written
from tests.waiting import until

KEYS = 40


def label(row: dict, version: int) -> dict:
    return {**row, "version": version}


def count(row: dict) -> dict:
    return {**row, "counted": True}


class Keyed:
    """A job ``read -> label -> count -> out``, of which ``label`` and ``count`` group their rows by key."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.given, self.out = cluster.topic("given"), cluster.topic("out")
        self.filled = 0

    def version(self, partitions: int, number: int = 1, *, function: Callable[..., dict] = count) -> Job:
        job = Job("keyed", partitions=partitions)
        source = kafka(self.given, schema="n long, k string, at timestamp", start="earliest")
        read = job.input("read", source, time=event_time("at", delay="0 s"))
        labelled = job.task("label", label, after=read, group_by="k", params={"version": number}, batch_size=30)
        counted = job.task("count", function, after=labelled, group_by="k", batch_size=30)
        job.output("out", kafka(self.out, key="k"), after=counted)
        return job

    def fill(self, count: int) -> None:
        span = range(self.filled, self.filled + count)
        rows = (
            {"n": n, "k": f"k{n % KEYS}", "at": f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z"}
            for n in span
        )
        self.cluster.fill(self.given, rows)  # the records of a key are all in one partition
        self.filled = span.stop

    @contextmanager
    def load(self) -> Iterator[None]:
        """Records come all the time."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(0.05):
                self.fill(20)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def all_out(self) -> bool:
        return len(self.cluster.records(self.out)) >= self.filled

    def check(self) -> None:
        """Each record is there once, and those of a key in their order."""
        rows = self.cluster.records(self.out)
        assert sorted(row["n"] for row in rows) == list(range(self.filled))
        by_key = defaultdict(list)
        for row in rows:
            by_key[row["k"]].append(row["n"])
        assert all(numbers == sorted(numbers) for numbers in by_key.values())

    def sizes(self) -> set[int]:
        """How many partitions the topics of the queues have."""
        found = admin.topics(self.cluster.settings)
        return {len(numbers) for name, numbers in found.items() if name.endswith(("read.label", "label.count"))}


# Two changes, each of which waits for what was read; and the process of all peers begins twice.
def test_another_number_of_partitions_under_load(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """While records come, all peers die and the leader is killed: more partitions, and then fewer, with another function at once.
    All records come out once, in the order of their keys, and the clock does not fall.
    """
    quick = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    with sardonyx_clusters(**quick) as cluster:
        keyed = Keyed(cluster)
        keyed.fill(300)
        (leader,) = cluster.daemons
        cluster.coordinator()
        cluster.peers(4, faults=[kill_at("written", 9)])
        handle = cluster.submit(keyed.version(2))
        until(lambda: len(cluster.records(keyed.out)) > 40, what="the first results")
        clocks: list[dict[str, int]] = []
        with keyed.load():
            assert handle.change(keyed.version(5), timeout=300) == 3
            assert keyed.sizes() == {5}
            leader.process.kill()
            clocks.append({each.task: each.clock or 0 for each in handle.clock().tasks})
            assert handle.change(keyed.version(3, 2), timeout=300) == 5
            clocks.append({each.task: each.clock or 0 for each in handle.clock().tasks})
            assert keyed.sizes() == {5}
            until(lambda: any(row["version"] == 2 for row in cluster.records(keyed.out)), what="version 2")
        until(keyed.all_out, what="all results", timeout=240)
        keyed.check()
        assert all(
            before[task] and before[task] <= after[task] for before, after in pairwise(clocks) for task in before
        )
        assert all(audit.unread == 0 and not audit.lost and not audit.twice for audit in handle.audit())
        handle.stop()
        assert handle.await_completion(300).status == "stopped"
        keyed.check()


JOB = """
from sardonyx import Job, kafka

def same(row: dict) -> dict:
    return row

job = Job("sized", partitions={partitions})
read = job.input("read", kafka("{given}", schema="n long, k string", start="earliest"))
label = job.task("label", same, after=read, group_by="k", batch_size=20)
count = job.task("count", same, after=label, group_by="k", batch_size=20)
job.output("out", kafka("{made}", key="k"), after=count)
"""


class Sized:
    """The same job on the shared daemons, changed by commands."""

    def __init__(self, house: House, folder: Path, partitions: int) -> None:
        self.house, self.folder = house, folder
        self.given, self.made = (house.make_topic(f"{partitions}-{name}") for name in ("sized-in", "sized-out"))
        self.handle = house.submit(folder, self.text(partitions))
        self.filled = 0

    def text(self, partitions: int) -> str:
        return JOB.format(partitions=partitions, given=self.given, made=self.made)

    def fill(self, count: int) -> None:
        """Records whose keys are each in one partition."""
        span = range(self.filled, self.filled + count)
        self.house.fill(self.given, *(b'{"n": %d, "k": "k%d"}' % (n, n % KEYS) for n in span))
        self.filled = span.stop

    def check(self) -> None:
        """Each record comes out once, and those of a key in their order."""
        until(lambda: len(self.house.records(self.made)) >= self.filled, what="all results")
        rows = self.house.records(self.made)
        assert sorted(row["n"] for row in rows) == list(range(self.filled))
        by_key = defaultdict(list)
        for row in rows:
            by_key[row["k"]].append(row["n"])
        assert all(numbers == sorted(numbers) for numbers in by_key.values())

    def scale(self, partitions: int, *more: str) -> Result:
        return self.house.call("job", "scale", self.handle.id, "--partitions", str(partitions), *more)

    def sizes(self) -> set[int]:
        """How many partitions the topics of the queues have."""
        graph = graph_of(self.handle.spec(), self.house.settings.deployment, self.handle.id)
        found = admin.topics(self.house.settings)
        return {len(found[link.topic]) for link in queues(graph)}


def test_partitions_that_are_not_used_any_more_count(house: House, tmp_path: Path) -> None:
    """A queue gets fewer partitions, and what was read of the others still counts, also when its reader is sealed. Then it gets
    more, and these are used again.
    """
    sized = Sized(house, tmp_path, 4)
    sized.fill(200)
    sized.check()
    fewer = sized.scale(2, "--json")
    assert fewer.exit_code == 0, fewer.output
    assert json.loads(fewer.stdout) == {"id": sized.handle.id, "partitions": 2, "revision": 3, "changed": True}
    assert "has 2 partitions already (revision 3)" in sized.scale(2).stdout
    sized.fill(100)
    sized.check()
    assert sized.sizes() == {4}
    again = sized.scale(3)
    assert "has 3 partitions: it goes on by revision 5" in again.stdout, again.output
    sized.fill(100)
    sized.check()
    assert all(audit.unread == 0 and not audit.lost and not audit.twice for audit in sized.handle.audit())
    sized.handle.stop()
    view = sized.handle.await_completion(300)
    assert view.status == "stopped"
    assert {task.name: task.rows_in for task in view.tasks} == dict.fromkeys(
        ("read", "label", "count", "out"), sized.filled
    )
    sized.check()


def test_a_job_whose_queues_are_not_read_goes_on_as_it_was(house: House, tmp_path: Path) -> None:
    """The inputs are read again if the user does not wait for the end of the queues. What cannot be changed is said before."""
    sized = Sized(house, tmp_path, 2)
    sized.fill(100)
    sized.check()
    with pytest.raises(Interrupted, match="SX-JOB-CHANGE"):
        sized.handle.scale_partitions(4, 0.001)
    until(lambda: sized.handle.spec().next_partitions is None, what="the inputs to be read again")
    sized.fill(100)
    sized.check()
    assert sized.handle.spec().partitions == 2
    assert sized.sizes() == {2}
    more = (
        sized.text(4)
        + f'job.output("more", kafka("{house.make_topic("sized-more")}"), after=job.task("copy", same, after=label))'
    )
    refused = house.call("job", "change", sized.handle.id, written(tmp_path, more))
    told(refused, "SX-JOB-CHANGE", "tasks and queues come or go by a change of their own")
    assert "SX-JOB-PARTITIONS: a job cannot have 0 partitions" in sized.scale(0).stderr
    sized.handle.suspend()
    told(sized.scale(4), "SX-JOB-CHANGE-NOW", "it is suspended")
    sized.handle.resume()
    found = house.call("job", "change", sized.handle.id, written(tmp_path, sized.text(4)))
    assert found.exit_code == 0, found.output
    assert sized.sizes() == {4}
    sized.fill(100)
    sized.check()
    house.clear()


def test_what_another_user_changes_meanwhile_stays(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While inputs stand still, another user has records kept for longer: the number of partitions is not changed without that,
    and the inputs are read again.
    """
    sized = Sized(house, tmp_path, 3)
    sized.fill(100)
    await_read = Making.await_read

    def meanwhile(making: Making, handle: JobHandle, links: Sequence[str], rests: JobSpec | None) -> None:
        handle.keep("1 h")
        await_read(making, handle, links, rests)

    monkeypatch.setattr(Making, "await_read", meanwhile)
    with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-RIVAL"):
        sized.handle.scale_partitions(4, 120)
    until(lambda: sized.handle.spec().next_partitions is None, what="the inputs to be read again")
    assert (sized.handle.spec().keep, sized.handle.spec().partitions) == ("1 h", 3)
    sized.fill(100)
    sized.check()
    house.clear()
