"""The stores of state keep to what every store must keep to."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from sardonyx.state.base import Store
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
