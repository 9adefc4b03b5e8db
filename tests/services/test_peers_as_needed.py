"""A daemon that chooses the number of its virtual peers: as many as jobs wait for, and no more for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coordinator.core.projection import encode_note
from peer import crew
from peer.daemon import PeerDaemon
from sardonyx import Job, kafka
from sardonyx.core import node_paths
from sardonyx.core.effects import Set
from sardonyx.core.notes import PeerNote
from sardonyx.runtime.settings import Settings
from sardonyx.testing import Cluster
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.waiting import until

LEAST, MOST = 2, 6
IDLE = 0.5
"""Seconds that a peer of these tests may be idle before it leaves, if no job waits."""
STEPS = 7


class Leader:
    """Stands in for the coordinator: says how many peers jobs wait for, and notices those that come."""

    def __init__(self, zk: ZooKeeperSession, looks: list[float]) -> None:
        self.zk = zk
        self.looks = looks
        """At each look of the daemon at the demand: seconds that each of its peers has been idle at least."""

    def say(self, missing: int) -> None:
        self.zk.commit([Set(node_paths.JOB, str(missing).encode() if missing else b"")])

    def has_noticed(self, count: int) -> bool:
        pulses = self.zk.children(node_paths.PULSE)
        for peer in pulses:
            self.zk.create(node_paths.peer_state(peer), encode_note(PeerNote("idle", 1)))
        return len(pulses) == count


@pytest.fixture
def leader(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    """With a daemon that looks often, and is impatient with idle peers."""
    monkeypatch.setattr(crew, "_LOOK_EVERY", 0.1)
    monkeypatch.setattr(crew, "_IDLE", IDLE)
    looks: list[float] = []
    follow_demand = crew.Crew.follow_demand

    def followed(found: crew.Crew) -> None:
        idle = min((peer.idle_for for peer in found._peers), default=0.0)
        follow_demand(found)
        looks.append(idle)

    monkeypatch.setattr(crew.Crew, "follow_demand", followed)
    auto = settings.model_copy(update={"peer": settings.peer.model_copy(update={"virtual_peers": "auto"})})
    runner: Any = None  # no peer gets a task
    daemon = PeerDaemon(auto, runner, between=(LEAST, MOST))
    thread = threading.Thread(target=daemon.run, daemon=True)
    zk = ZooKeeperSession.connect(settings)
    thread.start()
    yield Leader(zk, looks)
    daemon.stop()
    thread.join(30)
    assert not thread.is_alive()
    zk.close()


def test_peers_come_when_jobs_wait_and_leave_when_none_does(leader: Leader) -> None:
    """As many more as are missing, never more than the daemon may have, never fewer than it begins with."""
    until(lambda: leader.has_noticed(LEAST), what="the first peers")
    leader.say(3)
    until(lambda: leader.has_noticed(LEAST + 3), what="three more peers")
    leader.say(0)
    until(lambda: leader.has_noticed(LEAST), what="the idle peers to leave")
    leader.say(100)
    until(lambda: leader.has_noticed(MOST), what="all peers that the daemon may have")


def test_no_peer_leaves_while_a_job_waits(leader: Leader) -> None:
    """A job may need more peers than the daemon has. They stay idle, and do not come and go."""
    until(lambda: leader.has_noticed(LEAST), what="the first peers")
    leader.say(100)
    until(lambda: leader.has_noticed(MOST), what="all peers that the daemon may have")
    before = set(leader.zk.children(node_paths.PULSE))
    leader.say(101)
    leader.say(99)
    until(lambda: sum(idle > 3 * IDLE for idle in leader.looks) >= 3, what="looks at peers that are idle for long")
    assert set(leader.zk.children(node_paths.PULSE)) == before


def same(row: dict) -> dict:
    return row


def test_an_unbounded_job_with_many_tasks_runs_on_one_daemon(sardonyx_clusters: Callable[..., Cluster]) -> None:
    """It gets a peer for each task, which are more than a daemon begins with."""
    with sardonyx_clusters() as cluster:
        topic = cluster.topic("in", ({"n": n} for n in range(100)))
        sent = cluster.topic("sent")
        cluster.peers("auto")
        job = Job("chain", partitions=1)
        task = job.input("read", kafka(topic, start="earliest"))
        for number in range(STEPS):
            task = job.task(f"step{number}", same, after=task)
        job.output("sent", kafka(sent), after=task)
        handle = cluster.submit(job)
        until(lambda: len(cluster.records(sent)) == 100, what="all records")
        until(lambda: len(cluster.client.peers()) >= STEPS, what="a peer for each task")
        handle.kill()
