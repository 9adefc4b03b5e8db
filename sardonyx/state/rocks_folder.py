"""A folder of RocksDB with the entries of a store as bytes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.state.disk import full, unusable

if TYPE_CHECKING:
    from rocksdict import Rdict

_ENTRY = b"\1"
"""How the key of an entry begins."""
_END = b"\2"
"""A key after all entries, so each scan must find it, or reach its bound: an iterator of rocksdict that meets a damaged block
ends as if nothing came after it."""
_MEMORY = ("cur-size-all-mem-tables", "block-cache-usage", "estimate-table-readers-mem")
"""What RocksDB says of its memory."""
_OPEN = 8 << 20
"""Bytes that an open folder counts at least. An empty one takes 0.3 MiB, but also six open files."""


class RocksFolder:
    """The folder.

    Args:
        path: it is made if it is missing, and holds nothing yet.

    Raises:
        SetupError: ``SX-STATE-DRIVER``, ``SX-STATE-HELD``, ``SX-STATE-DISK``. All methods raise ``SX-STATE-DISK``, and
            ``SX-STATE-CORRUPT``.
        OutputError: ``SX-STATE-FULL``, as all methods that write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = self._open()
        self.entries = 0
        """How many there are."""

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
        if not self.entries:
            return [], []
        start, end = _ENTRY + first, _END if before is None else _ENTRY + before
        with self._errors():
            found = list(islice(self._between(start, end), limit))
        return [key[1:] for key, _ in found], [value for _, value in found]

    def write(self, removed: list[bytes], put: Iterable[tuple[bytes, bytes]], entries: int) -> None:
        """Write changes in one batch of RocksDB.

        Args:
            removed: keys.
            put: keys and values.
            entries: how many there are then.
        """
        from rocksdict import WriteBatch, WriteOptions

        batch, options = WriteBatch(raw_mode=True), WriteOptions()
        options.disable_wal = True
        for key in removed:
            batch.delete(_ENTRY + key)
        for key, value in put:
            batch.put(_ENTRY + key, value)
        with self._errors():
            self._db.write(batch, options)
        self.entries = entries

    def clear(self) -> None:
        """Begin an empty folder."""
        self.close()
        with self._errors():
            if self._path.exists():
                shutil.rmtree(self._path)
        self._db = self._open()
        self.entries = 0

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._db.close()

    def _between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for item in self._db.items(from_key=start):
            if item[0] >= end:
                return
            yield item
        raise OSError("Corruption: entries end before the key that comes after them")

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
            db = Rdict(str(self._path), options)
            db[_END] = b""
            return db

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
            return full(self._path, said)
        if any(text in said for text in ("Corruption", "No such file")):
            return SetupError(
                "SX-STATE-CORRUPT",
                f"the folder of a task's state is damaged, or was deleted: {self._path}",
                cause=said,
                fix="check that disk, and let no other program change the folder; the task is tried again, and its state is made "
                "again from the state log",
                where=where,
            )
        if "/LOCK" in said:
            return SetupError(
                "SX-STATE-HELD",
                f"another process has the folder of a task's state open: {self._path}",
                cause=said,
                fix="end the process that has it open (`fuser` on the file LOCK names it); the task pauses and is tried again",
                where=where,
            )
        return unusable(self._path, said)
