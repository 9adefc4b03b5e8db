"""Publish what other peers have committed to a connector, and did not publish before they died.

A peer publishes a batch after its commit, and before its next one. If it dies between, or its connector raises, the entries stand
in the ``parts`` link, and no reader sees the rows. A peer that gets a partition of that one publishes what the link lists, since
publishing is idempotent. Otherwise the rows would be missing until the task is sealed, which in an unbounded job may be never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from peer.connector_sink import ConnectorSink

if TYPE_CHECKING:
    from peer.task_session import TaskSession
    from sardonyx.core.positions import Partition

log = structlog.get_logger()


class LatePublisher:
    """One peer's part in it. Does nothing for tasks without such a connector.

    Args:
        session: of the assignment.
    """

    def __init__(self, session: TaskSession) -> None:
        self._session = session
        self._sinks = [
            sink for sink in session.work.sinks if isinstance(sink, ConnectorSink) and sink.publishes_for_others
        ]
        self._known: dict[Partition, int] = {}
        """The partitions whose earlier peers are taken care of, each with the number of its assignment to this peer."""

    def look(self) -> None:
        """Publish what is listed, if this peer has got partitions that others have worked on.

        Raises:
            FunctionError: ``SX-CONNECTOR-RAISED``.
            OutputError: files cannot be published.
            SetupError: ``SX-KAFKA-UNREACHABLE``.
        """
        reader = self._session.reader
        if not self._sinks or not reader.member:
            return
        held = dict(reader.incarnations)
        new = dict(held.items() - self._known.items())
        if any(reader.held.get(partition) is not None for partition in new):
            count = sum(self._session.meanwhile(sink.publish_for_others) for sink in self._sinks)
            log.info("listed_published", count=count)
        self._known = held
