"""A store in memory: a dictionary from keys to row numbers, and the rows in Arrow.

After a restart the store is read from the state log.
"""

from __future__ import annotations

from itertools import pairwise, repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.state.base import GONE, KEY
from sardonyx.state.key_order import KeyOrder

KEY_MEMORY = 250
"""Bytes that a key takes beside its columns."""
_FEW = 1_000
"""So many rows may be dead, however few entries there are."""
_MUCH = 1 << 25
"""So many bytes may be dead, however small the entries are together. Some entries have half a megabyte each."""
_LARGEST = 1 << 25
"""Bytes above which chunks are not merged, so that no batch waits for a copy of everything."""
_MOST_TAKEN = 1 << 30
"""Bytes that are put into one chunk, at most: the offsets of a column of bytes have 32 bits."""

Rows = npt.NDArray[np.int64]


class MemoryStore:
    """The entries of one shard, in memory: see :class:`sardonyx.state.base.Store`.

    Args:
        schema: the columns of an entry, the key first.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.clear()

    def clear(self) -> None:
        self._row_of: dict[bytes, int] = {}
        self._chunks: list[pa.RecordBatch] = []
        """The rows in the order in which they came. Chunks grow as neighbours are merged."""
        self._rows = 0
        self._bytes = 0
        """The bytes of all rows, dead ones too."""
        self._whole = (0, 0)
        """Rows and bytes when no row was dead."""
        self._order: KeyOrder | None = None

    def close(self) -> None:
        self.clear()

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def memory(self) -> int:
        """Bytes that it takes, roughly."""
        columns: int = sum(chunk.nbytes for chunk in self._chunks)
        return columns + KEY_MEMORY * len(self._row_of)

    def read(self, keys: pa.BinaryArray) -> tuple[pa.Int64Array, pa.Table]:
        wanted = key_list(keys)
        rows = np.fromiter(map(self._row_of.get, wanted, repeat(-1)), np.int64, len(wanted))
        found = np.flatnonzero(rows >= 0)
        return pa.array(found, pa.int64()), self._take(rows[found])

    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        if self._order is None:
            self._order = KeyOrder(self._row_of)
        keys = self._order.between(first, before, limit)
        return self._take(np.fromiter(map(self._row_of.__getitem__, keys), np.int64, len(keys)))

    def apply(self, changes: pa.Table) -> None:
        gone, put = divided(changes)
        self._remove(gone)
        self._put(put)
        if self._rows > 2 * len(self._row_of) + _FEW or self._is_large():
            self._compact()

    def _is_large(self) -> bool:
        """Whether it takes far more bytes than when no row was dead, and most of the rows that came since are dead."""
        rows, size = self._whole
        return self._bytes > 2 * size + _MUCH and 2 * (self._rows - len(self._row_of)) > self._rows - rows

    def _remove(self, keys: list[bytes]) -> None:
        row_of = self._row_of
        keys = [key for key in keys if row_of.pop(key, None) is not None]
        if keys and self._order is not None:
            self._order.remove(keys)

    def _put(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        keys = key_list(rows.column(0))
        if self._order is not None:
            self._order.add([key for key in keys if key not in self._row_of])
        self._row_of.update(zip(keys, range(self._rows, self._rows + len(keys)), strict=True))
        self._rows += len(keys)
        chunks = rows.combine_chunks().to_batches()
        self._chunks += chunks
        self._bytes += sum(chunk.nbytes for chunk in chunks)
        while len(self._chunks) > 1 and 2 * self._chunks[-1].num_rows >= self._chunks[-2].num_rows:
            last, one_before = self._chunks[-1], self._chunks[-2]
            if last.nbytes + one_before.nbytes > _LARGEST:
                break
            self._chunks[-2:] = [pa.concat_batches([one_before, last])]

    def _compact(self) -> None:
        """Keep only the rows of entries."""
        entries = np.fromiter(self._row_of.values(), np.int64, len(self._row_of))
        self._chunks = self._take(entries).to_batches()
        self._row_of = dict(zip(self._row_of, range(len(entries)), strict=True))
        self._rows = len(entries)
        self._bytes = sum(chunk.nbytes for chunk in self._chunks)
        self._whole = self._rows, self._bytes

    def _take(self, rows: Rows) -> pa.Table:
        """The rows of these numbers, in this order. Arrow's own ``take`` of chunks costs 0.5 ms a column, however few rows."""
        if not len(rows):
            return self.schema.empty_table()
        starts = np.cumsum([0, *(chunk.num_rows for chunk in self._chunks)])
        chunk_of = np.searchsorted(starts, rows, side="right") - 1
        least, most = int(chunk_of.min()), int(chunk_of.max())
        if least == most:
            batch = self._chunks[least].take(pa.array(rows - starts[least]))
            return pa.Table.from_batches([batch], self.schema)
        order = np.argsort(chunk_of, kind="stable")
        chunk_of = chunk_of[order]
        within = rows[order] - starts[chunk_of]
        cuts = np.searchsorted(chunk_of, np.arange(least, most + 2))
        parts = [
            self._chunks[least + place].take(pa.array(within[low:high]))
            for place, (low, high) in enumerate(pairwise(cuts))
            if low < high
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        if sum(part.nbytes for part in parts) > _MOST_TAKEN:
            return pa.Table.from_batches(parts, self.schema).take(pa.array(back))
        return pa.Table.from_batches([pa.concat_batches(parts).take(pa.array(back))], self.schema)


def key_list(keys: pa.Array | pa.ChunkedArray) -> list[bytes]:
    """The keys as bytes."""
    found: list[bytes] = keys.to_numpy(zero_copy_only=False).tolist()
    return found


def divided(changes: pa.Table) -> tuple[list[bytes], pa.Table]:
    """The keys of entries to remove, and the entries to put."""
    gone = changes.column(GONE)
    put = changes.drop_columns([GONE])
    if not pc.any(gone).as_py():
        return [], put
    return key_list(changes.column(KEY).filter(gone)), put.filter(pc.invert(gone))


__all__ = ["MemoryStore", "divided", "key_list"]
