"""Which of a link's sentinels counts: the first vote in ZooKeeper, for ever."""

from __future__ import annotations

from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.errors import ParentMissing
from sardonyx.zookeeper.session import ZooKeeperSession


class VotesGone(SardonyxError):
    """The votes of a job are removed: it has ended, and whoever works for it will hear of that."""


class Votes:
    """The leaders of a job's links, as this reader knows them. Not shared between threads.

    The first reader to meet a sentinel creates the link's node with its uuid; everybody reads that node, and since it never
    changes, once. The vote stands even if its voter dies at once. What the votes stand below is made and removed by the
    coordinator, so there are none after the job's end.
    """

    def __init__(self, zk: ZooKeeperSession, job: str) -> None:
        self._zk = zk
        self._job = job
        self._leaders: dict[str, str] = {}

    def leader(self, link: str, uuid: str) -> str:
        """The uuid of the link's leader; ``uuid``, a sentinel just met on it, stands for election if there is none yet."""
        known = self._leaders.get(link)
        if known is not None:
            return known
        path = node_paths.sentinel(self._job, link)
        failpoint("vote")
        try:
            self._zk.create(path, uuid.encode())  # loses against an earlier vote, which is as good
            elected = self._zk.read(path)
        except ParentMissing:
            elected = None
        if elected is None:
            raise VotesGone(
                "SX-SENTINEL-VOTE",
                f"the vote on link {link} is gone",
                cause="the job has ended; or somebody removed nodes below /sentinel by hand",
                fix="nothing, if the job has ended",
                where={"job": self._job, "link": link},
            )
        failpoint("voted")
        self._leaders[link] = elected.decode()
        return self._leaders[link]
