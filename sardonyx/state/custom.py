"""A user's own store: a class, named as ``module:Class``. Its exceptions become errors that name it.

It is made as ``Class(schema, folder)``, and has the methods of :class:`sardonyx.state.base.Store`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from sardonyx.core.errors import OutputError
from sardonyx.core.stores import check_store
from sardonyx.core.tracebacks import user_errors
from sardonyx.state.base import Store


class CustomStore:
    """Calls a user's store for Sardonyx: see :class:`sardonyx.state.base.Store`.

    Args:
        reference: its class, as ``module:Class``.
        load: finds the class.
        schema: the columns of an entry, the key first.
        folder: an empty folder of its own, if it needs one. It is deleted after the store is closed.

    Raises:
        FunctionError: ``SX-STATE-CLASS``, the class lacks a method; ``SX-FN-IMPORT``; ``SX-STATE-RAISED``, also from each method.
        OutputError: ``SX-STATE-FULL``, the same.
    """

    def __init__(self, reference: str, load: Callable[[str], Any], schema: pa.Schema, folder: Path) -> None:
        self.schema = schema
        self._reference = reference
        kind = load(reference)
        check_store(kind, reference)
        with self._explained("it was made"):
            self._inner: Store = kind(schema, folder)

    def __len__(self) -> int:
        with self._explained("its entries were counted"):
            return len(self._inner)

    def read(self, keys: pa.BinaryArray) -> tuple[pa.Int64Array, pa.Table]:
        with self._explained("read was called"):
            return self._inner.read(keys)

    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        with self._explained("scan was called"):
            return self._inner.scan(first, before, limit)

    def apply(self, changes: pa.Table) -> None:
        with self._explained("apply was called"):
            self._inner.apply(changes)

    def clear(self) -> None:
        with self._explained("clear was called"):
            self._inner.clear()

    def close(self) -> None:
        with self._explained("close was called"):
            self._inner.close()

    @contextmanager
    def _explained(self, when: str) -> Iterator[None]:
        store, where = f"store {self._reference}", {"store": self._reference}
        fix = "correct the line that the traceback shows, and test the class with `sardonyx.testing.store_conformance`"
        with user_errors("SX-STATE-RAISED", store, when, fix=fix, where=where):
            try:
                yield
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                fix = "free space on that disk; the task pauses and is tried again until there is room"
                message = f"{store} has no room on its disk"
                raise OutputError("SX-STATE-FULL", message, cause=str(error), fix=fix, where=where) from error
