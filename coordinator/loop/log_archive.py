"""Has the entries of the log written to an archive before a compaction removes them: in a thread of its own, since the archive is
a folder that may stand still, on another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.clock import Worker
from sardonyx.zookeeper.session import ZooKeeperSession

log = structlog.get_logger()

Write = Callable[[ZooKeeperSession, int, int], bool]
"""Writes a file with the entries from one number to another, which is that of a complete snapshot; or leaves one that is there.
False: that snapshot is damaged. Raises ``SardonyxError`` if the file cannot be written."""


class LogArchive:
    """What a leadership knows of the archive.

    Args:
        zk: the session that leads.
        write: writes a file.
    """

    def __init__(self, zk: ZooKeeperSession, write: Write) -> None:
        self._zk = zk
        self._write = write
        self._worker: Worker | None = None
        self._reached = 0

    def reached(self, first: int, ends: Sequence[int]) -> int:
        """The last entry up to which everything is in the archive, as far as is known; has the rest written. Does not wait.

        Args:
            first: where the log begins.
            ends: numbers of snapshots, ascending: each file ends with one.
        """
        reached = self._reached
        missing = [end for end in ends if end > reached]
        if missing and (self._worker is None or not self._worker.is_alive()):
            self._worker = self._zk.runtime.spawn("log-archive", partial(self._fill, max(first, reached + 1), missing))
        return reached

    def _fill(self, first: int, ends: Sequence[int]) -> None:
        try:
            for end in ends:
                if self._write(self._zk, first, end):
                    self._reached, first = end, end + 1
        except SardonyxError as error:  # tried again with the next snapshot; until then nothing is removed
            log.error("log_archive_failed", code=error.code, error=error.message, cause=error.cause, n=first)
