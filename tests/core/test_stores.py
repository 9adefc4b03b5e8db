"""The stores of state keep to what every store must keep to."""

from __future__ import annotations

from sardonyx.state.memory import MemoryStore
from sardonyx.testing.store_conformance import StoreSuite


class TestMemory(StoreSuite):
    histories = 300

    def make(self, schema):
        return MemoryStore(schema)
