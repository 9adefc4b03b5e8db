"""A store on disk, in RocksDB: for state larger than memory, and for a quick start after a crash.

Changes stay in memory until :meth:`RocksStore.flush`, so RocksDB gets only the last value of each key, and not in a batch's way.
There is no write-ahead log: the state log is one. What is flushed says how the state log stood. After a restart only what came
later is read from there.
"""

from __future__ import annotations

import contextlib
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.errors import OutputError, SardonyxError, SetupError
from sardonyx.state.base import GONE, KEY
from sardonyx.state.memory import MemoryStore, key_list
from sardonyx.state.row_bytes import RowBytes
from sardonyx.state.shape import shape_of

if TYPE_CHECKING:
    from rocksdict import Rdict

PENDING = 500_000
"""Entries that may wait for a flush. More are written at once."""
_FEW = 100
"""Entries to look at, at least, in a scan with a limit."""
_ENTRY = b"\1"
"""How the key of an entry begins."""
_NOTE = b"\2"
"""The key of what the store says about itself. It comes after all entries, so each scan must find it, or reach its bound: an
iterator of rocksdict that meets a damaged block ends as if nothing came after it."""
_BROKEN = "rebuild"
"""A file of this name in the folder: RocksDB has found it damaged."""
_REMOVED = "\0removed"
"""A column of the entries in memory: whether the entry is removed on disk too."""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    shape: bytes
    entries: int
    saved: bytes | None
    """See :meth:`sardonyx.state.log.ShardLog.saved`."""


class RocksStore:
    """The entries of one shard's store, in a folder: see :class:`sardonyx.state.base.Store`.

    A folder that is damaged, or holds other columns, is emptied. Then ``saved`` is None, and the store is read from the state
    log.

    Args:
        schema: the columns of an entry, the key first.
        path: the folder; it is made if it is missing.
        pending: see :data:`PENDING`.

    Raises:
        SetupError: ``SX-STATE-DRIVER``, rocksdict is not installed; ``SX-STATE-HELD``, another process holds the folder;
            ``SX-STATE-DISK``, it cannot be used.
        OutputError: ``SX-STATE-FULL``, the disk is full.
        InputError: ``SX-STATE-TYPE``.
    """

    _floor: bytes
    """No entry has a lesser key. After windows have closed, no scan passes by all that they have removed."""

    def __init__(self, schema: pa.Schema, path: Path, pending: int = PENDING) -> None:
        self.schema = schema
        self._path = path
        self._most = pending
        self._rows = RowBytes(schema.remove(0))
        self._cached = schema.append(pa.field(_REMOVED, pa.bool_(), nullable=False))
        self._shape = shape_of(schema)
        self._db, self.rebuilt = self._opened()
        """Why the folder was emptied; None if it was not."""
        self._begin()

    @property
    def saved(self) -> bytes | None:
        """What was given to the last :meth:`flush`. None: nothing was flushed yet."""
        return self._note.saved

    def __len__(self) -> int:
        return self._entries

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
            # They are ahead of what was saved. To apply them once more, in order, changes nothing.
            self._write(self._note.saved)

    def flush(self, saved: bytes) -> None:
        """Write to disk what is pending, with what the log says of it, as one.

        Args:
            saved: see :meth:`sardonyx.state.log.ShardLog.saved`.

        Raises:
            OutputError: ``SX-STATE-FULL``.
            SetupError: ``SX-STATE-CORRUPT``, the folder was deleted or damaged; ``SX-STATE-DISK``. The store cannot be used any
                more then; made again, it is read from the log.
        """
        self._write(saved)
        with self._disk():
            self._db.flush()

    def clear(self) -> None:
        with self._disk():
            self._db.close()
        self._empty()
        self._db, _ = self._opened()
        self._begin()

    def close(self) -> None:
        with contextlib.suppress(Exception):  # what was not flushed stands in the log
            self._db.close()

    # --- What is in memory --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._pending = MemoryStore(self._cached)
        """Entries that were changed and not written yet."""
        self._read = MemoryStore(self._cached)
        """Entries as they are on disk."""
        self._note = self._read_note()
        self._entries = self._note.entries
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
        if not self._note.entries:
            return pa.array([], pa.int64()), self._cached.empty_table()
        wanted = key_list(keys)
        with self._disk():
            values = self._db.get([_ENTRY + key for key in wanted]) or []
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
        keys, values = self._from_disk(first, before, size)
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

    def _from_disk(self, first: bytes, before: bytes | None, size: int | None) -> tuple[list[bytes], list[bytes]]:
        if not self._note.entries:
            return [], []
        start, end = _ENTRY + first, _NOTE if before is None else _ENTRY + before
        with self._disk():
            found = list(islice(self._between(start, end), size))
        return [key[1:] for key, _ in found], [value for _, value in found]

    def _between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for item in self._db.items(from_key=start):
            if item[0] >= end:
                return
            yield item
        raise OSError("Corruption: entries end before the note that comes after them")

    def _table(self, keys: pa.Array, values: list[bytes]) -> pa.Table:
        return pa.table([keys, *self._rows.decode(values)], schema=self.schema)

    def _write(self, saved: bytes | None) -> None:
        """Write all that is pending, and the note, in one batch of RocksDB: after a crash either both are there or neither."""
        from rocksdict import WriteBatch, WriteOptions

        batch, options = WriteBatch(raw_mode=True), WriteOptions()
        options.disable_wal = True
        pending = self._pending.scan()
        removed = pending.column(_REMOVED)
        for key in key_list(pending.column(KEY).filter(removed)):
            batch.delete(_ENTRY + key)
        put = pending.filter(pc.invert(removed)).drop_columns([_REMOVED])
        keys = key_list(put.column(KEY))
        for key, value in zip(keys, self._rows.encode(put.drop_columns([KEY])), strict=True):
            batch.put(_ENTRY + key, value)
        note = _Note(self._shape, self._entries, saved)
        batch.put(_NOTE, msgspec.msgpack.encode(note))
        with self._disk():
            self._db.write(batch, options)
        self._note = note
        self._read, self._pending = self._pending, MemoryStore(self._cached)

    def _read_note(self) -> _Note:
        with self._disk():
            data = self._db.get(_NOTE)
        return _Note(self._shape, 0, None) if data is None else msgspec.msgpack.decode(data, type=_Note)

    # --- The folder ---------------------------------------------------------------------------------------------------

    def _opened(self) -> tuple[Rdict, str | None]:
        """The folder, and why it was emptied, if it was."""
        held = any(self._path.glob("*.sst"))
        if (self._path / _BROKEN).exists():
            why = "RocksDB had found the folder damaged"
        else:
            try:
                db = self._open()
            except SardonyxError as error:
                if error.code != "SX-STATE-CORRUPT":
                    raise
                why = error.cause
            else:
                found = self._unusable(db, held)
                if found is None:
                    return db, None
                why = found
                db.close()
        self._empty()
        return self._open(), why

    def _open(self) -> Rdict:
        try:
            from rocksdict import BlockBasedOptions, Options, Rdict
        except ImportError as error:
            raise SetupError(
                "SX-STATE-DRIVER",
                "rocksdict is not installed, and a task keeps its state in RocksDB",
                cause=str(error),
                fix="run `pip install 'sardonyx[rocksdb]'` where peers run, or use `store=\"memory\"`",
            ) from error
        table = BlockBasedOptions()
        table.set_bloom_filter(10, block_based=False)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(1 << 20)
        with self._disk():
            self._path.mkdir(parents=True, exist_ok=True)
            return Rdict(str(self._path), options)

    def _unusable(self, db: Rdict, held: bool) -> str | None:
        try:
            data = db.get(_NOTE)
            if data is None:
                return "RocksDB has lost what the folder held" if held else None
            shape = msgspec.msgpack.decode(data, type=_Note).shape
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing narrower
            return str(error)
        return None if shape == self._shape else "the columns of the state have changed"

    def _empty(self) -> None:
        try:
            if self._path.exists():
                shutil.rmtree(self._path)
        except OSError as error:
            raise self._error(error) from error

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except SardonyxError:
            raise
        except Exception as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> SardonyxError:
        said = str(error)
        where: dict[str, object] = {"path": self._path}
        if any(text in said for text in ("No space left", "Disk quota exceeded")):
            return OutputError(
                "SX-STATE-FULL",
                f"the disk of a task's state is full: {self._path}",
                cause=said,
                fix="free space on that disk; the task pauses and is tried again until there is room",
                where=where,
            )
        if any(text in said for text in ("Corruption", "No such file")):
            with contextlib.suppress(OSError):
                (self._path / _BROKEN).touch()
            return SetupError(
                "SX-STATE-CORRUPT",
                f"the folder of a task's state is damaged, or was deleted: {self._path}",
                cause=said,
                fix="check that disk, and let no other program change the folder; the task is tried again, and its state is made "
                "again from the state log",
                where=where,
            )
        if "/LOCK:" in said:
            return SetupError(
                "SX-STATE-HELD",
                f"another process holds the folder of a task's state: {self._path}",
                cause=said,
                fix="let no two peer daemons use the same `peer.state_dir`; if one was killed, wait until its process is gone",
                where=where,
            )
        return SetupError(
            "SX-STATE-DISK",
            f"the folder of a task's state cannot be used: {self._path}",
            cause=said,
            fix="let the user that runs the peers write there, or set `peer.state_dir` to another folder",
            where=where,
        )
