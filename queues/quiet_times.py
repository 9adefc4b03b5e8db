"""Since when partitions have had nothing to read, kept from one reader of a process to its next."""

from __future__ import annotations

import threading
from typing import NamedTuple

from sardonyx.core.positions import Partition

_MOST = 10_000
"""Partitions that are kept; the one that was said longest ago goes first. One that is forgotten is quiet later, and never too
soon."""


class _Quiet(NamedTuple):
    offset: int
    since: float


class QuietTimes:
    """What the readers of one process have seen of partitions without rows. Thread-safe.

    Peers that take turns at the tasks of a job hold a partition for a second or two at a time, and after a rebalance it has
    another reader. If each reader counted from its own first look, no partition would ever be idle. A reader that finds nothing
    at the very offset where an earlier one found nothing knows that no row came in between, no matter which reader had
    the partition meanwhile: a row would have moved the committed position, or it would be there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, Partition], _Quiet] = {}

    def keep(self, group: str, partition: Partition, offset: int, since: float) -> None:
        """A reader of this group has found nothing at this offset since then, in seconds by the clock of the process."""
        with self._lock:
            self._known.pop((group, partition), None)
            self._known[group, partition] = _Quiet(offset, since)
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]

    def since(self, group: str, partition: Partition, offset: int) -> float | None:
        """Since when nothing has come at this offset, if nothing is there now. None: it is not known."""
        with self._lock:
            known = self._known.get((group, partition))
        return known.since if known is not None and known.offset == offset else None


OF_PROCESS = QuietTimes()
"""Those of all peers of this process."""
