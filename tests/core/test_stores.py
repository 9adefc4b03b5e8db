"""Our stores of state, and one of a user's, keep to what every store must keep to; and one that does not is found out."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sardonyx.core.errors import FunctionError, SardonyxError, SetupError
from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.custom import CustomStore
from sardonyx.state.memory import MemoryStore
from sardonyx.state.rocks import RocksStore
from sardonyx.testing.store_conformance import StoreSuite
from tests.plain_store import plain_store


class TestMemory(StoreSuite):
    histories = 300

    def make(self, schema: pa.Schema) -> Store:
        return MemoryStore(schema)


def test_memory_does_not_keep_large_entries_that_are_gone() -> None:
    """An entry of half a megabyte that is written again and again takes it a few dozen times, and not a thousand times."""
    schema = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("value", pa.large_binary())])
    store, size = MemoryStore(schema), 500_000

    def put(key: bytes) -> None:
        store.apply(
            pa.table([[key], [bytes(size)], [False]], schema=schema.append(pa.field(GONE, pa.bool_(), nullable=False)))
        )

    for _ in range(300):
        put(b"k")
    assert store.memory < 80 * size
    assert len(store.scan()) == 1
    for number in range(200):
        put(b"k%d" % number)
    assert 200 * size < store.memory < 300 * size


class OnDisk(StoreSuite):
    pending = 500_000

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / str(number) for number in itertools.count())

    def make(self, schema: pa.Schema) -> Store:
        return RocksStore(schema, next(self.folders), self.pending)


class TestRocks(OnDisk):
    """Most of it in memory."""

    histories = 20


class TestRocksOnDisk(OnDisk):
    """As good as nothing in memory: each change is written at once."""

    histories = 20
    pending = 0


PlainStore: Any = plain_store()
"""The store of docs/state.md."""


class TestOfAUser(StoreSuite):
    histories = 20

    def make(self, schema: pa.Schema) -> Store:
        return CustomStore("stores:PlainStore", lambda _: PlainStore, schema, Path("unused"))


class Broken(PlainStore):
    """Its disk fails."""

    error: Exception

    def read(self, keys: pa.BinaryArray) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyError("k"), "SX-STATE-RAISED", "store stores:Broken raised KeyError when read was called"),
        (OSError(errno.EIO, "bad"), "SX-STATE-RAISED", "OSError"),
        (OSError(errno.ENOSPC, "no room"), "SX-STATE-FULL", "store stores:Broken has no room on its disk"),
        (SetupError("SX-STATE-DISK", "said by the store"), "SX-STATE-DISK", "said by the store"),
    ],
)
def test_what_a_store_of_a_user_raises_names_it(error: Exception, code: str, says: str) -> None:
    """With the user's traceback. A full disk has a code of its own: it may pass."""
    store = CustomStore(
        "stores:Broken", lambda _: type("Broken", (Broken,), {"error": error}), StoreSuite.schema, Path("unused")
    )
    with pytest.raises(SardonyxError) as caught:
        store.read(pa.array([b"k"], pa.binary()))
    assert (caught.value.code, says in caught.value.message) == (code, True)


@pytest.mark.parametrize(("found", "says"), [(dict, "it has no read"), (len, "it is not a class")])
def test_what_is_no_store_is_refused(found: Any, says: str) -> None:
    """Before any state is made, and at `check` too."""
    with pytest.raises(FunctionError, match="SX-STATE-CLASS") as caught:
        CustomStore("stores:It", lambda _: found, StoreSuite.schema, Path("unused"))
    assert caught.value.cause == says


class KeepsWhatIsGone(PlainStore):
    def apply(self, changes: pa.Table) -> None:
        super().apply(changes.filter(pc.invert(changes[GONE])))


class ScansAsPut(PlainStore):
    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        return self._table(list(self._rows)[:limit])


class ReadsInOrderOfKeys(PlainStore):
    def read(self, keys: pa.BinaryArray) -> tuple[pa.Int64Array, pa.Table]:
        places, entries = super().read(keys)
        return places, entries.sort_by(KEY)


class IncludesTheBound(PlainStore):
    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        return super().scan(first, None if before is None else before + b"\0", limit)


class NeverPutsAgain(MemoryStore):
    """Its order forgets keys that were removed and put again."""

    def _put(self, rows: pa.Table) -> None:
        order, self._order = self._order, None
        super()._put(rows)
        self._order = order


@pytest.mark.parametrize("wrong", [KeepsWhatIsGone, ScansAsPut, ReadsInOrderOfKeys, IncludesTheBound, NeverPutsAgain])
def test_a_store_that_breaks_a_promise_is_found(wrong: type) -> None:
    """Some test of the suite fails."""

    class Suite(StoreSuite):
        histories = 5

        def make(self, schema: pa.Schema) -> Store:
            return wrong(schema) if wrong is NeverPutsAgain else wrong(schema, None)

    failed = []
    for name in dir(StoreSuite):
        if name.startswith("test_"):
            try:
                getattr(Suite(), name)()
            except AssertionError:
                failed.append(name)
    assert failed
