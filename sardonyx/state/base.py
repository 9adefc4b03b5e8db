"""What all parts of keyed state share: the shard, its entries, and where they are kept.

A *shard* is the state of one task for one partition number. It is an ordered map from bytes to rows: its *entries*. A batch
changes it in two phases. A plan reads the store and makes a table of changes. The table goes into the state log, in the
transaction of the batch. Only after that has committed does the store apply it. A store is therefore never ahead of the log.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

KEY = "k"
"""The first column of every table of entries: binary, not null, each value once."""
GONE = "gone"
"""The last column of a table of changes: bool, not null. A row with true removes its entry; its other columns are null."""


class Store(Protocol):
    """The entries of one shard, as they are after the last commit. Not thread-safe.

    ``schema`` has :data:`KEY` first, then the columns of the entry's value, of any Arrow type, nullable.
    """

    schema: pa.Schema

    def __len__(self) -> int:
        """The number of entries."""
        ...

    def read(self, keys: pa.BinaryArray) -> tuple[pa.Int64Array, pa.Table]:
        """The entries of these keys.

        Args:
            keys: each once, not null.

        Returns:
            The positions in ``keys`` of those that have an entry, ascending, and these entries in that order.
        """
        ...

    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        """Entries in the order of their keys as bytes.

        Args:
            first: the least key.
            before: all keys are less than this; None: no bound.
            limit: at most so many entries; None: all.
        """
        ...

    def apply(self, changes: pa.Table) -> None:
        """Put and remove entries.

        Args:
            changes: the columns of ``schema`` and :data:`GONE`, in this order.
        """
        ...

    def clear(self) -> None:
        """Forget everything: the state is read again from the log."""
        ...

    def close(self) -> None:
        """Give back files and memory."""
        ...
