"""Watches a reader's group: it must let the reader in, and assign every partition to a member."""

from __future__ import annotations

import time
from collections.abc import Callable

from queues.lost import NotLetIn, ReaderLost
from queues.membership import AssignmentAudit

JOIN = 20.0
"""Seconds that a group has to let a consumer in; then a new one tries. A consumer never finds a coordinator that was missing from
the cluster's metadata for a moment, as a broker is that has just restarted (seen with librdkafka 2.16)."""


class GroupWatch:
    """Watches one consumer's group.

    Args:
        begin_audit: makes an audit of the assignment.
    """

    def __init__(self, begin_audit: Callable[[], AssignmentAudit]) -> None:
        self._begin_audit = begin_audit
        self._audit: AssignmentAudit | None = None
        self._outside_since: float | None = None

    def assigned(self) -> None:
        """The group has given partitions to the reader, or none."""
        self._outside_since = None
        self._audit = self._audit or self._begin_audit()

    def check_assignment(self) -> None:
        """Raises ReaderLost if some partitions have no holder: the group assigns them when this reader joins again."""
        missing = self._audit and self._audit.missing()
        if missing:
            raise ReaderLost(f"no member holds {', '.join(f'{p.topic}[{p.number}]' for p in sorted(missing))}")

    def check_membership(self, *, inside: bool) -> None:
        """Raises NotLetIn if the reader has been outside of its group for too long.

        ``inside``: it holds partitions, or the group knows it at least.
        """
        if inside:
            self._outside_since = None
        elif self._outside_since is None:
            self._outside_since = time.monotonic()
        elif time.monotonic() - self._outside_since > JOIN:
            raise NotLetIn(f"the group has not let the consumer in for {JOIN:.0f} s")
