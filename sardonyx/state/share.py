"""What a shard takes of the shards of an earlier job that had another number of partitions: see :mod:`sardonyx.state.resharding`.
Pure.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sardonyx.state.base import GONE, Store
from sardonyx.state.groups import Mask


class Share(ABC):
    """What one shard takes of the state of a task.

    Args:
        number: of the shard.
        partitions: how many there are now.
    """

    turns = 1
    """How often each log is read."""

    def __init__(self, number: int, partitions: int) -> None:
        self._number, self._partitions = number, partitions

    def owns(self, key: bytes) -> bool:
        """Whether the shard has this key, given as its canonical bytes."""
        return zlib.crc32(key) % self._partitions == self._number

    def mine(self, keys: Sequence[bytes]) -> Mask:
        """Which of these keys it has."""
        return np.fromiter(map(self.owns, keys), np.bool_, len(keys))

    @abstractmethod
    def begin(self, turn: int) -> None:
        """A log is read: the next one, or the same once more. ``turn``: how often it was read before."""

    @abstractmethod
    def takes(self, changes: pa.Table) -> pa.Table:
        """What it takes of changes of a store, in the order of the log, each key once."""

    @abstractmethod
    def finish(self, stores: Mapping[str, Store]) -> None:
        """All logs are read: add what is of no single key. ``stores``: with what was taken, by name."""


def put(store: Store, entries: Sequence[Mapping[str, Any]]) -> None:
    """Put a few entries, given as rows."""
    schema = store.schema.append(pa.field(GONE, pa.bool_(), nullable=False))
    store.apply(pa.Table.from_pylist([{**each, GONE: False} for each in entries], schema))


__all__ = ["Share", "put"]
