"""A store on disk, in RocksDB: for state larger than memory.

Changes stay in memory until there are many, so RocksDB gets only the last value of each key. There is no write-ahead log: the
state log is one. The folder goes with the shard, and the next one is made from that log.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.state.base import GONE, KEY
from sardonyx.state.memory import MemoryStore, key_list
from sardonyx.state.rocks_folder import RocksFolder
from sardonyx.state.row_bytes import RowBytes

PENDING = 500_000
"""Entries that may wait in memory. More are written at once."""
_FEW = 100
"""Entries to look at, at least, in a scan with a limit."""
_REMOVED = "\0removed"
"""A column of the entries in memory: whether the entry is removed on disk too."""


class RocksStore:
    """The entries of one shard's store, in a folder: see :class:`sardonyx.state.base.Store`.

    Args:
        schema: the columns of an entry, the key first.
        path: the folder; it is made if it is missing, and holds nothing yet.
        pending: see :data:`PENDING`.

    Raises:
        SetupError: ``SX-STATE-DRIVER``, rocksdict is not installed; ``SX-STATE-DISK``, the folder cannot be used. All methods
            raise that, and ``SX-STATE-CORRUPT``: it was deleted or damaged. Made again, the store is read from the log.
        OutputError: ``SX-STATE-FULL``, the disk is full.
        InputError: ``SX-STATE-TYPE``.
    """

    _floor: bytes
    """No entry has a lesser key. After windows have closed, no scan passes by all that they have removed."""

    def __init__(self, schema: pa.Schema, path: Path, pending: int = PENDING) -> None:
        self.schema = schema
        self._most = pending
        self._rows = RowBytes(schema.remove(0))
        self._cached = schema.append(pa.field(_REMOVED, pa.bool_(), nullable=False))
        self._folder = RocksFolder(path)
        self._begin()

    def __len__(self) -> int:
        return self._entries

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes, roughly: of what is pending, of what was read, and RocksDB's own.

        Raises:
            SetupError: the store cannot be used any more.
        """
        return self._folder.memory + self._pending.memory + self._read.memory

    def read(self, keys: pa.BinaryArray) -> tuple[pa.Int64Array, pa.Table]:
        places, entries = self._look_up(keys)
        there = np.flatnonzero(~entries.column(_REMOVED).to_numpy())
        return pa.array(places[there], pa.int64()), entries.drop_columns([_REMOVED]).take(pa.array(there))

    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        size = None if limit is None else max(limit, _FEW)
        parts, count, start = [self.schema.empty_table()], 0, max(first, self._floor)
        while limit is None or count < limit:
            part, end = self._piece(start, before, size)
            parts.append(part)
            count += part.num_rows
            if end is None:
                break
            start, size = end + b"\0", 2 * (size or 0)
        found = pa.concat_tables(parts).slice(0, limit).combine_chunks()
        if first <= self._floor and len(found):
            self._floor = found.column(KEY)[0].as_py()
        return found

    def apply(self, changes: pa.Table) -> None:
        if not changes.num_rows:
            return
        gone = changes.column(GONE)
        existed = self._exist(changes.column(KEY))
        self._entries += int((~gone.to_numpy()).sum()) - int(existed.sum())
        least = pc.min(changes.column(KEY).filter(pc.invert(gone))).as_py()
        self._floor = self._floor if least is None else min(self._floor, least)
        self._keep(self._pending, changes.drop_columns([GONE]), gone)
        if len(self._pending) > self._most:
            self._write()

    def clear(self) -> None:
        self._folder.clear()
        self._begin()

    def close(self) -> None:
        self._folder.close()

    # --- What is in memory --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._pending = MemoryStore(self._cached)
        """Entries that were changed and not written yet."""
        self._read = MemoryStore(self._cached)
        """Entries as they are on disk."""
        self._entries = 0
        self._floor = b""

    def _look_up(self, keys: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Positions, ascending, of the keys that were found, with the entries: in memory, then on disk."""
        places = np.arange(len(keys))
        found: list[tuple[npt.NDArray[np.int64], pa.Table]] = []
        for look in (self._pending.read, self._read.read, self._fetch):
            if len(places):
                at, entries = look(keys.take(pa.array(places)))
                at = at.to_numpy()
                found.append((places[at], entries))
                places = np.delete(places, at)
        if not found:
            return places, self._cached.empty_table()
        positions = np.concatenate([at for at, _ in found])
        order = np.argsort(positions, kind="stable")
        entries = pa.concat_tables([entries for _, entries in found]).combine_chunks()
        return positions[order], entries.take(pa.array(order))

    def _exist(self, keys: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """Of the keys that were found in memory or on disk, whether there is an entry."""
        if not self._entries and not len(self._pending):
            return np.zeros(0, np.bool_)
        _, entries = self._look_up(keys.combine_chunks())
        found: npt.NDArray[np.bool_] = ~entries.column(_REMOVED).to_numpy()
        return found

    def _keep(self, store: MemoryStore, entries: pa.Table, removed: pa.Array | pa.ChunkedArray) -> None:
        rows = entries.append_column(self._cached.field(_REMOVED), removed)
        store.apply(rows.append_column(GONE, pa.repeat(False, len(rows))))

    # --- What is on disk ----------------------------------------------------------------------------------------------

    def _fetch(self, keys: pa.Array) -> tuple[pa.Int64Array, pa.Table]:
        """Entries from disk; of those that are not there, that they are removed. Keeps them for the next time."""
        if not self._folder.entries:
            return pa.array([], pa.int64()), self._cached.empty_table()
        values = self._folder.read(key_list(keys))
        there = np.fromiter((value is not None for value in values), np.bool_, len(values))
        found = self._table(keys.filter(pa.array(there)), [value for value in values if value is not None])
        absent = keys.filter(pa.array(~there))
        nothing = [pa.nulls(len(absent), kind) for kind in self.schema.types[1:]]
        missing = pa.table([absent, *nothing], schema=self.schema)
        if len(self._read) > self._most:
            self._read.clear()
        both = pa.concat_tables([found, missing]).combine_chunks()
        self._keep(self._read, both, pa.array(np.arange(len(keys)) >= len(found)))
        entries = self._read.read(keys)[1]
        return pa.array(np.arange(len(keys)), pa.int64()), entries

    def _piece(self, first: bytes, before: bytes | None, size: int | None) -> tuple[pa.Table, bytes | None]:
        """Entries in order, from memory and from disk. All up to the second value; None: all that there are."""
        changed = self._pending.scan(first, before, size)
        names = key_list(changed.column(KEY))
        keys, values = self._folder.scan(first, before, size)
        ends = [found[-1] for found in (names, keys) if size is not None and len(found) == size]
        end = min(ends, default=None)
        if end is not None:
            changed = changed.slice(0, bisect_right(names, end))
            keys = keys[: bisect_right(keys, end)]
        other = set(names)
        kept = [(key, value) for key, value in zip(keys, values, strict=False) if key not in other]
        disk = self._table(pa.array([key for key, _ in kept], pa.binary()), [value for _, value in kept])
        added = changed.filter(pc.invert(changed.column(_REMOVED))).drop_columns([_REMOVED])
        if not len(added) or not len(disk):
            return (added if len(added) else disk), end
        found = pa.concat_tables([added, disk]).combine_chunks()
        return found.take(pc.sort_indices(found.column(KEY))), end

    def _table(self, keys: pa.Array, values: list[bytes]) -> pa.Table:
        return pa.table([keys, *self._rows.decode(values)], schema=self.schema)

    def _write(self) -> None:
        pending = self._pending.scan()
        removed = pending.column(_REMOVED)
        put = pending.filter(pc.invert(removed)).drop_columns([_REMOVED])
        self._folder.write(
            key_list(pending.column(KEY).filter(removed)),
            zip(key_list(put.column(KEY)), self._rows.encode(put.drop_columns([KEY])), strict=True),
            self._entries,
        )
        self._read, self._pending = self._pending, MemoryStore(self._cached)
