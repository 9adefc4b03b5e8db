"""Nothing is left behind: after every way in which a job and a peer can end, and under a script of faults."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from sardonyx import Interrupted, Job, JobFailed, files, generator, kafka
from sardonyx.cli.history_text import timeline_line
from sardonyx.client.dead_letters import DeadLetters
from sardonyx.core import node_paths
from sardonyx.testing import Cluster, kill_at
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.house import called
from tests.waiting import until

ROWS = 1_000
FEW = 100
"""Rows of a batch, so that a job has many commits."""


def same(row: dict) -> dict:
    return row


def picky(row: dict) -> dict:
    if row["n"] == 500:
        raise ValueError("not this one")
    return row


def bad(row: dict) -> dict:
    raise ValueError("no")


@pytest.fixture
def cluster(sardonyx_clusters: Callable[..., Cluster]) -> Iterator[Cluster]:
    """A deployment whose dead are noticed soon."""
    soon = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}
    with sardonyx_clusters(**soon) as made:
        yield made


def copied(topic: str, folder: Path, sent: str) -> Job:
    """Rows from a generator, through a function that puts one of them aside, to files and to a topic."""
    job = Job("copied", partitions=2)
    read = job.input("read", generator(ROWS, columns={"n": {"kind": "sequence"}}), batch_size=FEW)
    passed = job.task("pass", picky, after=read, batch_size=FEW, on_error="dead_letter")
    job.output("files", files(folder, format="json"), after=passed, batch_size=FEW)
    job.output("sent", kafka(sent), after=passed)
    return job


def endless(topic: str, folder: Path) -> Job:
    """A job that ends only if it is ended."""
    job = Job("endless", partitions=2)
    read = job.input("read", kafka(topic, start="earliest"))
    job.output("files", files(folder, format="json", roll="batch"), same, after=read, batch_size=FEW)
    return job


def failing(topic: str, folder: Path) -> Job:
    job = Job("failing", partitions=2)
    read = job.input("read", kafka(topic, start="earliest", end="latest"))
    job.output("files", files(folder, format="json"), bad, after=read)
    return job


@pytest.mark.gate
def test_nothing_is_left_behind(cluster: Cluster, tmp_path: Path) -> None:
    """Jobs that completed under SIGKILL, that failed and that were killed; then they are purged and the daemons stopped. What
    they wrote is exact and in place; of all else nothing is there any more: topics, groups, open transactions, nodes,
    processes, temporary files, files written aside. The timeline names the death and the peer that took over.
    """
    topic = cluster.topic("in", ({"n": n} for n in range(ROWS)))
    sent = cluster.topic("sent")
    peer = cluster.peers(4, faults=[kill_at("written", 9)])  # with a transaction open
    done = cluster.submit(copied(topic, tmp_path / "copied", sent))
    until(lambda: peer.happened, what="the fault")
    done.await_completion(300)
    wanted = [n for n in range(ROWS) if n != 500]
    assert sorted(row["n"] for row in cluster.records(sent)) == wanted
    assert sorted(row["n"] for row in _rows(tmp_path / "copied")) == wanted

    with pytest.raises(JobFailed):
        cluster.run(failing(topic, tmp_path / "failing"), timeout="5 min")
    ended = cluster.submit(endless(topic, tmp_path / "endless"))
    until(lambda: _rows(tmp_path / "endless"), what="rows of the job that is to be killed")
    ended.kill()
    with pytest.raises(Interrupted):
        ended.await_completion(300)

    _story_is_told(cluster, done.id)
    admin = AdminClient({**cluster.settings.kafka.client(), "log_level": 0})
    letters = f"{cluster.settings.deployment}.{done.id}.pass.dead"
    (pile,) = DeadLetters(cluster.client).piles()
    assert (pile.job, pile.task, pile.letters) == (done.id, "pass", 1)
    assert done.status().task("pass").dead == 1
    # Dead letters outlive their job, all its other topics go with its end.
    until(lambda: _topics(cluster, admin) == {topic, sent, letters}, what="only the dead letters to be left")
    for view in cluster.client.jobs():
        cluster.client.job(view.id).purge(300, with_dead_letters=True)
    until(lambda: letters not in _topics(cluster, admin), what="the dead letters to go with their job")
    folders = [tmp_path / name for name in ("copied", "failing", "endless")]
    assert [path for folder in folders for path in folder.rglob("_sardonyx")] == []
    processes = _processes(cluster)
    for daemon in reversed(cluster.daemons):
        daemon.stop(180)  # one that is killed over that leaves its temporary files, and its session for a while
    _nothing_is_there(cluster, admin, {topic, sent}, processes)


def _story_is_told(cluster: Cluster, job: str) -> None:
    """By the client and by the command: each peer that died at work, who took its place, and how long that took."""
    events = cluster.client.job(job).timeline()
    resumed = [item for item in events if item.kind == "died" and item.by]
    assert resumed, events
    assert all(item.after is not None and item.after > 0 for item in resumed)
    text = called("job", "show", job, env=cluster.settings.environment()).stdout
    assert all(timeline_line(item, ended=True) in text for item in events), text
    data = json.loads(called("job", "show", job, "--json", env=cluster.settings.environment()).stdout)
    assert [each["kind"] for each in data["timeline"]] == [item.kind for item in events]


def _topics(cluster: Cluster, admin: AdminClient) -> set[str]:
    return {name for name in admin.list_topics(timeout=60).topics if name.startswith(cluster.settings.deployment)}


def _nothing_is_there(cluster: Cluster, admin: AdminClient, own: set[str], processes: list[psutil.Process]) -> None:
    deployment = cluster.settings.deployment
    assert _topics(cluster, admin) == own
    groups = [group.group_id for group in admin.list_consumer_groups(request_timeout=30).result().valid]
    assert [group for group in groups if group.startswith(deployment)] == []
    for topic in own:
        until(lambda topic=topic: _decided(admin, topic), what=f"no transaction to be open in {topic}")
    with _zk(cluster) as zk:
        standing = {top: zk.children(top) for top in node_paths.TOP}
    # The log and its snapshots are the deployment's; code is kept for an hour, and then swept (test_node_gc.py).
    assert {top for top, children in standing.items() if children} <= {
        node_paths.LOG,
        node_paths.SNAPSHOT,
        node_paths.CODE,
    }
    until(lambda: not [p for p in processes if p.is_running()], what="the processes to be gone")
    assert sorted(path.name for path in cluster.temporary.iterdir()) == []
    for topic in own:
        admin.delete_topics([topic])[topic].result(30)


def _decided(admin: AdminClient, topic: str) -> bool:
    """Whether no transaction is open in a topic. The mark of its end is written a moment after its end was answered."""
    return _end(admin, topic, IsolationLevel.READ_COMMITTED) == _end(admin, topic, IsolationLevel.READ_UNCOMMITTED)


def _end(admin: AdminClient, topic: str, isolation: IsolationLevel) -> list[int]:
    """The offsets behind the last record that a reader gets; committed readers stop at the first open transaction."""
    places = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(2)}
    asked = admin.list_offsets(places, isolation_level=isolation)
    return [future.result(60).offset for future in asked.values()]


def _rows(folder: Path) -> list[dict]:
    """What a reader of an output folder finds."""
    parts = sorted(folder.glob("part-*")) if folder.exists() else []
    return [json.loads(line) for path in parts for line in path.read_text().splitlines()]


def _processes(cluster: Cluster) -> list[psutil.Process]:
    """Every process of the cluster's daemons that runs now: they themselves, Spark's JVM, its workers."""
    own = [psutil.Process(daemon.process.pid) for daemon in cluster.daemons]
    return [process for each in own for process in (each, *each.children(recursive=True))]


def _zk(cluster: Cluster) -> contextlib.closing[ZooKeeperSession]:
    return contextlib.closing(ZooKeeperSession.connect(cluster.settings))
