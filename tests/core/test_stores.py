"""Our stores of state, and one of a user's, keep to what every store must keep to; and one that does not is found out."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sardonyx.state.base import GONE, KEY, Store
from sardonyx.state.memory import MemoryStore
from sardonyx.state.rocks import RocksStore
from sardonyx.testing.store_conformance import StoreSuite


class TestMemory(StoreSuite):
    histories = 300

    def make(self, schema: pa.Schema) -> Store:
        return MemoryStore(schema)


class OnDisk(StoreSuite):
    pending = 500_000

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / str(number) for number in itertools.count())

    def make(self, schema: pa.Schema) -> Store:
        return RocksStore(schema, next(self.folders), self.pending)


class TestRocks(OnDisk):
    """Most of it in memory, before a flush."""

    histories = 20


class TestRocksOnDisk(OnDisk):
    """As good as nothing in memory: each change is written at once."""

    histories = 20
    pending = 0


class OfAUser:
    """A store as simple as can be: a dictionary of rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._rows: dict[bytes, pa.Table] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, keys: pa.BinaryArray) -> tuple[pa.Int64Array, pa.Table]:
        wanted = keys.to_pylist()
        places = [place for place, key in enumerate(wanted) if key in self._rows]
        return pa.array(places, pa.int64()), self._table([wanted[place] for place in places])

    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        keys = sorted(key for key in self._rows if first <= key and (before is None or key < before))
        return self._table(keys[:limit])

    def apply(self, changes: pa.Table) -> None:
        entries = changes.drop_columns([GONE])
        for place, (key, gone) in enumerate(zip(changes[KEY].to_pylist(), changes[GONE].to_pylist(), strict=True)):
            self._rows.pop(key, None)
            if not gone:
                self._rows[key] = entries.slice(place, 1)

    def clear(self) -> None:
        self._rows.clear()

    def close(self) -> None:
        pass

    def _table(self, keys: list[bytes]) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *(self._rows[key] for key in keys)])


class TestOfAUser(StoreSuite):
    histories = 20

    def make(self, schema: pa.Schema) -> Store:
        return OfAUser(schema)


class KeepsWhatIsGone(OfAUser):
    def apply(self, changes: pa.Table) -> None:
        super().apply(changes.filter(pc.invert(changes[GONE])))


class ScansAsPut(OfAUser):
    def scan(self, first: bytes = b"", before: bytes | None = None, limit: int | None = None) -> pa.Table:
        return self._table(list(self._rows)[:limit])


class ReadsInOrderOfKeys(OfAUser):
    def read(self, keys: pa.BinaryArray) -> tuple[pa.Int64Array, pa.Table]:
        places, entries = super().read(keys)
        return places, entries.sort_by(KEY)


class IncludesTheBound(OfAUser):
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
            return wrong(schema)

    failed = []
    for name in dir(StoreSuite):
        if name.startswith("test_"):
            try:
                getattr(Suite(), name)()
            except AssertionError:
                failed.append(name)
    assert failed
