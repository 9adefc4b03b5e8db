"""Records of a user's topic as columns: nothing is made for each record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat

import pyarrow as pa

Pair = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


class RecordColumns:
    """Keys and values of records, in their order. As a sequence it gives key and value of each.

    Args:
        values: bytes (``binary`` or ``large_binary``); null: the record has no value, it is a tombstone.
        keys: the same for the keys; None: no record has one.
    """

    def __init__(self, values: pa.ChunkedArray, keys: pa.ChunkedArray | None = None) -> None:
        self._values = values
        self._keys = keys

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> RecordColumns:
        """Put keys and values together that were made one by one."""
        keys, values = zip(*found, strict=True) if (found := list(pairs)) else ((), ())
        columns = [pa.chunked_array([pa.array(each, pa.large_binary())], pa.large_binary()) for each in (values, keys)]
        return cls(*columns)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Pair]:
        keys = repeat(None, len(self)) if self._keys is None else self._keys.to_pylist()
        return zip(keys, self._values.to_pylist(), strict=True)

    def pieces(self, most: int) -> Iterator[tuple[pa.Array | None, pa.Array]]:
        """Keys, if there are any, and values of so many records at most, in their order."""
        columns = [self._values, *([] if self._keys is None else [self._keys])]
        table = pa.table(columns, names=["values", "keys"][: len(columns)])
        for batch in table.to_batches(max_chunksize=most):
            yield (None if self._keys is None else batch.column(1)), batch.column(0)


__all__ = ["Pair", "RecordColumns"]
