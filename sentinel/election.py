"""Elects the sentinel of a link that counts: the first one that a reader writes to ZooKeeper."""

from __future__ import annotations

from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.errors import ParentMissing
from sardonyx.zookeeper.session import ZooKeeperSession
from sentinel.sentinel_metrics import VOTES


class ElectionClosed(SardonyxError):
    """The election of a job's sentinels is closed: the job has ended, and its peers will read so in their state nodes."""


class SentinelElection:
    """The elected sentinels (leaders) of a job's links, as one reader knows them. Not thread-safe.

    The first reader that meets a sentinel creates the link's node with the sentinel's uuid. The node never changes, so every
    reader reads it once. The result stays valid if the reader that wrote it dies. The coordinator creates and deletes the parent
    node, so no election takes place after the job's end.
    """

    def __init__(self, zk: ZooKeeperSession, job: str) -> None:
        self._zk = zk
        self._job = job
        self._leaders: dict[str, str] = {}

    def leader(self, link: str, uuid: str) -> str:
        """The uuid of the link's elected sentinel. If there is none yet, ``uuid``, a sentinel met on the link, is elected.

        Raises:
            ElectionClosed: the job has ended.
        """
        known = self._leaders.get(link)
        if known is not None:
            return known
        path = node_paths.sentinel(self._job, link)
        failpoint("vote")
        try:
            self._zk.create(path, uuid.encode())  # has no effect after an earlier vote
            elected = self._zk.read(path)
        except ParentMissing:
            elected = None
        if elected is None:
            VOTES.add(outcome="closed")
            raise ElectionClosed(
                "SX-SENTINEL-ELECTION",
                f"the election of a sentinel for link {link} is closed",
                cause="the job has ended, or a user deleted nodes below /sentinel by hand",
                fix="do nothing if the job has ended; otherwise submit the job again",
                where={"job": self._job, "link": link},
            )
        failpoint("voted")
        leader = self._leaders[link] = elected.decode()
        VOTES.add(outcome="won" if leader == uuid else "lost")
        return leader
