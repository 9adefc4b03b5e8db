"""Lets a task pause while a queue that it writes is full. The rule is in :mod:`sardonyx.core.back_pressure`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import structlog

from sardonyx.core import node_paths
from sardonyx.core.back_pressure import holds, is_stopping
from sardonyx.core.notes import LinksNote, TaskNote

if TYPE_CHECKING:
    from peer.prepared_task import PreparedTask
    from sardonyx.zookeeper.session import ZooKeeperSession

log = structlog.get_logger()


class BackPressure:
    """What holds one peer's work on a task. Costs nothing where none of the task's queues has a bound.

    Args:
        work: the task.
        zk: where it stands which tasks have peers.
    """

    def __init__(self, work: PreparedTask, zk: ZooKeeperSession) -> None:
        self._work = work
        self._zk = zk
        self._unread = work.unread_rows() if work.bounds else None
        self._told: Mapping[str, int | None] = {}
        """The answer by which :attr:`_held_by` is known."""
        self._held_by = ""

    @property
    def holds(self) -> bool:
        """Whether the task is to begin no batch now. Ask before each batch.

        Raises:
            ZooKeeperAway: ZooKeeper cannot tell whether the reader of a full queue has a peer.
        """
        if self._unread is None:
            return False
        unread = self._unread.latest()
        if unread is not self._told:
            found = next((link for link in self._work.bounds if self._is_held_by(link, unread.get(link))), "")
            if found and not self._held_by:
                log.debug("task_held", link=found, unread=unread[found], bound=self._work.bounds[found])
            self._told, self._held_by = unread, found
        return bool(self._held_by)

    def close(self) -> None:
        """The assignment is over."""
        if self._unread is not None:
            self._unread.close()

    def _is_held_by(self, link: str, unread: int | None) -> bool:
        if not holds(unread, self._work.bounds[link], is_read=True, goes_on=True):
            return False
        return self._is_read(link) or self._goes_on()

    def _is_read(self, link: str) -> bool:
        task = self._work.readers[link].name
        data = self._zk.read(node_paths.job_task(self._work.assignment.job, task))
        return data is not None and bool(msgspec.json.decode(data, type=TaskNote).peers)

    def _goes_on(self) -> bool:
        """Whether the job goes on by now. Peers of tasks behind its inputs keep these when a user stops it, and from then on
        it gives the reader of a full queue a peer only when the writer is complete.
        """
        if not self._work.goes_on:
            return False
        data = self._zk.read(node_paths.job_links(self._work.assignment.job))
        return data is not None and not is_stopping(msgspec.json.decode(data, type=LinksNote).links)


__all__ = ["BackPressure"]
