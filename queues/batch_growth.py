"""How many rows a batch takes where much is unread. Pure.

A batch costs something however many rows it has: a Spark job, a transaction, a message for each partition that it writes. A task
that keeps up takes small batches, and what it reads is visible soon. One that has much unread takes twice as many rows each time,
until a batch takes long, or there are bytes enough. So a batch never holds more in memory, and its transaction never writes more,
than one of 50,000 rows of a kilobyte would. No results depend on it.
"""

from __future__ import annotations

MOST_ROWS = 200_000
"""Rows of a batch from which on more of them save little: what a batch itself costs is then less than 2 us a row."""

MOST_BYTES = 64 * 2**20
"""Bytes up to which a batch grows, read and written. Records count with what they take in memory."""

PER_RECORD = 256
"""Bytes that a record takes in memory besides its key and its value: its object, and what that refers to."""

QUICK = 1.0
"""Seconds within which a batch must be done for the next one to take more rows. After twice that, the next one takes fewer."""


class BatchGrowth:
    """What one reader's batches have been like, and how many rows the next one takes.

    Args:
        most: rows that no batch exceeds, unless it may have so many anyway; 0: batches do not grow.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows = 0
        """How many rows the last batch might have; 0: as many as any."""
        self._full = False
        """Whether it took them."""
        self._written = 0.0
        """Bytes of results for each row of the last batch."""

    def next(self, least: int, waiting: int, size: int, seconds: float) -> int:
        """How many rows the batch takes that is cut now, at most.

        Args:
            least: rows that each batch may have, whatever they take.
            waiting: rows that were read ahead.
            size: their bytes.
            seconds: since the last batch was cut.
        """
        if waiting <= least:
            self._rows = 0
        elif self._full and waiting >= self._rows and seconds < QUICK:
            self._rows = min(2 * max(self._rows, least), self._most)
        elif seconds > 2 * QUICK:
            self._rows //= 2
        of_each = max(size / waiting if waiting else 0, self._written)
        fits = int(MOST_BYTES / of_each) if of_each else self._most
        rows = max(least, min(self._rows, fits))
        self._full = waiting >= rows
        return rows

    def made(self, rows: int, results: int, size: int) -> None:
        """A batch of so many rows has made so many results, of so many bytes."""
        if rows:
            self._written = (size + PER_RECORD * results) / rows

    def is_enough(self, least: int, waiting: int, size: int) -> bool:
        """Whether rows of so many bytes are enough to have read ahead: for two batches, or for one that has grown."""
        if waiting < 2 * least:
            return False
        return waiting >= min(2 * self._rows, self._most) or size >= MOST_BYTES

    def restart(self) -> None:
        """A batch was not committed. The next one is small: maybe this one was too large."""
        self._rows, self._full = 0, False


__all__ = ["MOST_BYTES", "MOST_ROWS", "PER_RECORD", "QUICK", "BatchGrowth"]
