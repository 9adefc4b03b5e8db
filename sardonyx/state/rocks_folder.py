"""A folder of RocksDB with the entries of a store as bytes, and a note that says what they are."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sardonyx.core.errors import OutputError, SardonyxError, SetupError

if TYPE_CHECKING:
    from rocksdict import Rdict

_ENTRY = b"\1"
"""How the key of an entry begins."""
_NOTE = b"\2"
"""The key of the note. It comes after all entries, so each scan must find it, or reach its bound: an iterator of rocksdict that
meets a damaged block ends as if nothing came after it."""
_BROKEN = "rebuild"
"""A file of this name in the folder: RocksDB has found it damaged."""
_MEMORY = ("cur-size-all-mem-tables", "block-cache-usage", "estimate-table-readers-mem")
"""What RocksDB says of its memory."""
_OPEN = 8 << 20
"""Bytes that an open folder counts at least. An empty one takes 0.3 MiB, but also six open files."""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    shape: bytes
    entries: int
    saved: bytes | None


class RocksFolder:
    """The folder. One that is damaged, or holds other columns, is emptied.

    Args:
        path: it is made if it is missing.
        shape: the fingerprint of the store's columns.

    Raises:
        SetupError: ``SX-STATE-DRIVER``, ``SX-STATE-HELD``, ``SX-STATE-DISK``. All methods raise ``SX-STATE-DISK``, and
            ``SX-STATE-CORRUPT``.
        OutputError: ``SX-STATE-FULL``, as all methods that write.
    """

    def __init__(self, path: Path, shape: bytes) -> None:
        self._path = path
        self._shape = shape
        self._db, self.emptied = self._opened()
        """Why the folder was emptied when it was opened; None if it was not."""
        self._note = self._read_note()

    @property
    def entries(self) -> int:
        """How many there are."""
        return self._note.entries

    @property
    def saved(self) -> bytes | None:
        """See :meth:`sardonyx.state.log.ShardLog.saved`."""
        return self._note.saved

    @property
    def memory(self) -> int:
        """Bytes that RocksDB takes for it: what waits to be written, what it has read, and the indexes of its files."""
        with self._errors():
            return max(_OPEN, sum(self._db.property_int_value(f"rocksdb.{name}") or 0 for name in _MEMORY))

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of these keys; None for one that is not there."""
        with self._errors():
            found: list[bytes | None] = self._db.get([_ENTRY + key for key in keys]) or []
        return found

    def scan(self, first: bytes, before: bytes | None, limit: int | None) -> tuple[list[bytes], list[bytes]]:
        """Keys and values, in the order of the keys."""
        if not self._note.entries:
            return [], []
        start, end = _ENTRY + first, _NOTE if before is None else _ENTRY + before
        with self._errors():
            found = list(islice(self._between(start, end), limit))
        return [key[1:] for key, _ in found], [value for _, value in found]

    def write(
        self, removed: list[bytes], put: Iterable[tuple[bytes, bytes]], entries: int, saved: bytes | None
    ) -> None:
        """Write changes and the note in one batch of RocksDB: after a crash either both are there or neither.

        Args:
            removed: keys.
            put: keys and values.
            entries: how many there are then.
            saved: see :attr:`saved`.
        """
        from rocksdict import WriteBatch, WriteOptions

        batch, options = WriteBatch(raw_mode=True), WriteOptions()
        options.disable_wal = True
        for key in removed:
            batch.delete(_ENTRY + key)
        for key, value in put:
            batch.put(_ENTRY + key, value)
        note = _Note(self._shape, entries, saved)
        batch.put(_NOTE, msgspec.msgpack.encode(note))
        with self._errors():
            self._db.write(batch, options)
        self._note = note

    def flush(self) -> None:
        """Wait until all that was written is on the disk."""
        with self._errors():
            self._db.flush()

    def clear(self) -> None:
        """Begin an empty folder."""
        self.close()
        self._empty()
        self._db = self._open()
        self._note = self._read_note()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._db.close()

    def _between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for item in self._db.items(from_key=start):
            if item[0] >= end:
                return
            yield item
        raise OSError("Corruption: entries end before the note that comes after them")

    def _read_note(self) -> _Note:
        with self._errors():
            data = self._db.get(_NOTE)
        return _Note(self._shape, 0, None) if data is None else msgspec.msgpack.decode(data, type=_Note)

    def _opened(self) -> tuple[Rdict, str | None]:
        """The folder, and why it was emptied, if it was."""
        held, broken = any(self._path.glob("*.sst")), (self._path / _BROKEN).exists()
        try:
            db = self._open()  # first: what another process holds is not emptied
        except SardonyxError as error:
            if error.code != "SX-STATE-CORRUPT":
                raise
            why = error.cause
        else:
            found = "RocksDB had found the folder damaged" if broken else self._unusable(db, held)
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
        with self._errors():
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
    def _errors(self) -> Iterator[None]:
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
