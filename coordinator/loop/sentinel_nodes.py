"""Creates and deletes the nodes of :mod:`sentinel.nodes` for the leader, while it does other work.

A leader knows what earlier leaders did with these nodes: when it takes over, it lets its ZooKeeper server catch up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from coordinator.loop.election import Leadership
from coordinator.loop.pipeline import WritePipeline
from sardonyx.core import node_paths
from sardonyx.zookeeper.errors import TransactionFailed
from sardonyx.zookeeper.transactions import Operation
from sentinel import nodes

CLOSE_ATTEMPTS = 100
"""How often the deletion of a job's nodes is tried. Each failure means that a peer cast another vote meanwhile."""

log = structlog.get_logger()


class SentinelNodes:
    """Opens the election of sentinels for some jobs, and closes it for others.

    Begins at once. Both must be finished (:meth:`finish`) before it is logged that the links of these jobs are created, or
    deleted: so if this leader dies before that, the next one does it again.

    Args:
        leadership: whose epoch each write checks.
        opened: jobs whose links were created.
        closed: jobs whose links were deleted.
    """

    def __init__(self, leadership: Leadership, *, opened: Sequence[str], closed: Sequence[str]) -> None:
        self._leadership = leadership
        self._zk = leadership.zk
        self._opened = opened
        self._closed = [node_paths.sentinels(job) for job in closed]
        self._creates = WritePipeline(leadership, "sentinels-opened")
        self._deletes = WritePipeline(leadership, "sentinels-closed")
        self._votes = self._zk.begin_children_of(self._closed) if closed else None
        self._failed: dict[WritePipeline, TransactionFailed] = {}
        self._submit(self._creates, nodes.opening(opened))

    def advance(self) -> None:
        """Go on with what can be sent now. To be called when ZooKeeper had some time since this was created.

        Raises:
            LeadershipEnded, Deposed, SessionLost, OutcomeUnknown: as :meth:`Leadership.commit`.
        """
        if self._votes is not None:
            votes, self._votes = self._votes(), None
            self._closed = list(votes)
            self._submit(self._deletes, nodes.closing(votes))

    def finish(self) -> None:
        """Wait until the nodes are created and deleted. Raises as :meth:`advance`."""
        self.advance()
        self._drain(self._creates)
        if self._creates in self._failed:  # an earlier leader had created some of the nodes
            self._create_missing()
        for _ in range(CLOSE_ATTEMPTS):
            self._drain(self._deletes)
            if self._failed.pop(self._deletes, None) is None:
                return
            # A peer has voted meanwhile; it does so once for each link.
            self._zk.sync()  # the server that we read from may not know of it yet
            self._votes = self._zk.begin_children_of(self._closed)
            self.advance()
        log.warning("sentinel_nodes_not_deleted", nodes=self._closed)

    def _submit(self, pipeline: WritePipeline, transactions: Iterable[list[Operation]]) -> None:
        try:
            for operations in transactions:
                pipeline.submit(operations)
        except TransactionFailed as error:
            self._note(pipeline, error)

    def _drain(self, pipeline: WritePipeline) -> None:
        while pipeline.in_flight:
            try:
                pipeline.drain()
            except TransactionFailed as error:
                self._note(pipeline, error)

    def _note(self, pipeline: WritePipeline, error: TransactionFailed) -> None:
        log.debug("sentinel_nodes_refused", error=error.message)
        self._failed[pipeline] = error

    def _create_missing(self) -> None:
        existing = self._zk.read_many(map(node_paths.sentinels, self._opened))
        for operations in nodes.opening(job for job in self._opened if node_paths.sentinels(job) not in existing):
            self._leadership.commit(operations)
