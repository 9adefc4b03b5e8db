"""Removes what purged jobs have left: their claims on dead letters, their topics, and code that no job needs any more.

One turn later than the purge. A redo claims dead letters in a transaction that checks that their job exists, and submits its own
job in the same transaction. So when the purged job's nodes are known to be gone, every redo that was in time is in the inbox. The
inbox is read once more, what is in it is decided, and then the dead letters that no job reads are removed.
"""

from __future__ import annotations

from collections.abc import Collection

from coordinator.core.state import State
from coordinator.loop.election import Leadership
from coordinator.loop.node_gc import remove_old_claims, remove_unused_code
from coordinator.loop.topic_gc import TopicCollector, readers_of_letters
from sardonyx.core import node_paths

SWEEP = 600.0
"""Seconds between two looks for code that no job needs. A job needs its code until it has ended, and after that only if it has
dead letters that were neither redone nor dropped: a redo runs the code as it was."""


class JobCollector:
    """Removes what purged jobs have left in ZooKeeper, and has their topics removed. Removes code of ended jobs.

    Args:
        leadership: whose epoch each write checks.
        topics: removes what they left on Kafka.
    """

    def __init__(self, leadership: Leadership, topics: TopicCollector) -> None:
        self._leadership = leadership
        self._topics = topics
        self._runtime = leadership.zk.runtime
        self._sweep_due = self._runtime.now() + SWEEP
        self._purged: dict[str, int] = {}
        """Purged jobs that are not cleaned up yet -> the entry by which they were purged. The state remembers only the last
        thousand."""
        self._read: dict[str, str] = {}
        """Purged jobs whose dead letters are still read -> the job that reads them."""

    @property
    def waiting(self) -> bool:
        """Whether there are purged jobs that are not cleaned up yet."""
        return bool(self._purged)

    def purged(self, job: str, n: int) -> None:
        """A job was purged by entry ``n``; 0: before the last snapshot."""
        self._purged[job] = n

    def ready(self, durable: int) -> list[str]:
        """Purged jobs whose nodes are known to be gone.

        Args:
            durable: the entry up to which all effects are in the tree.
        """
        return [job for job, n in self._purged.items() if n <= durable]

    def collect(self, state: State, jobs: Collection[str]) -> None:
        """Remove what these jobs have left, and what the last redo of a job's dead letters has left when it ended. Now and then
        remove code that no job needs.

        Args:
            state: with all requests decided that were in the inbox when the jobs were :meth:`ready`.
            jobs: what :meth:`ready` gave.

        Raises:
            LeadershipEnded, Deposed, SessionLost, OutcomeUnknown: as :meth:`Leadership.commit`.
        """
        sweep = self._runtime.now() >= self._sweep_due
        if not jobs and not sweep and all(reader in state.plans for reader in self._read.values()):
            return
        self._sweep_due = self._runtime.now() + SWEEP
        nodes = self._leadership.zk.children_of((node_paths.CODE, node_paths.REDO))
        remove_unused_code(self._leadership, nodes.get(node_paths.CODE, ()), needed_code(state))
        remove_old_claims(self._leadership, nodes.get(node_paths.REDO, ()), state.jobs)
        gone = [job for job in dict.fromkeys((*jobs, *self._read)) if job not in state.jobs]
        readers = readers_of_letters({job: state.jobs[job].spec for job in state.plans})
        self._read = {job: readers[job] for job in gone if job in readers}
        self._topics.collect([job for job in gone if job not in readers])
        for job in jobs:
            del self._purged[job]


def needed_code(state: State) -> set[str]:
    """The code bundles that jobs may still run: by their sha256."""
    jobs = (job for job in state.jobs.values() if job.into or not job.expirable)
    specs = [spec for job in jobs for spec in (job.spec, job.next_spec, job.former, job.into_spec)]
    return {spec.code for spec in specs if spec is not None and spec.code is not None}
