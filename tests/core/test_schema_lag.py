"""A schema registry of several servers, one of which has yet to hear of a schema that records were written with."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sardonyx.connectors.topics import registry_formats
from sardonyx.runtime.settings_sections import SchemaRegistry


class Unknown(Exception):
    """What the client raises."""

    error_code = 40403


class Registry:
    """Knows a schema from a time on."""

    def __init__(self, since: dict[int, float]) -> None:
        self.since = since
        self.now = 100.0
        self.asked: list[int] = []

    def get_schema(self, number: int, fmt: str | None = None) -> Any:
        del fmt
        self.asked.append(number)
        if self.now < self.since.get(number, float("inf")):
            raise Unknown(f"schema {number} not found")
        return SimpleNamespace(schema_type="TEST")

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Form(registry_formats._Registered):
    """Records as JSON, after the number of their schema."""

    kind = "Test"

    def _written(self, schema: Any) -> registry_formats.Written:
        del schema
        return registry_formats.Written(
            lambda _: pa.schema([("n", pa.int64())]), lambda data: dict(json.loads(data[5:]))
        )

    def _serializer(self, schema: pa.Schema, conf: dict[str, Any]) -> Any:
        raise NotImplementedError


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry({1: 0.0, 2: 101.0})
    monkeypatch.setattr(registry_formats.schema_registry, "client", lambda *_: found)
    monkeypatch.setattr(registry_formats, "time", found)
    return found


def record(schema: int, n: int) -> bytes:
    return struct.pack(">bI", 0, schema) + json.dumps({"n": n}).encode()


def test_a_record_whose_schema_a_server_has_not_heard_of_yet_is_read(registry: Registry):
    """It is no bad record: with `on_error="skip"` it would be left out for good."""
    form = Form({"topic": "t"}, SchemaRegistry("http://registry"))
    table, bad = form.decode([record(1, 1), record(2, 2)])
    assert (table.to_pylist(), bad) == ([{"n": 1}, {"n": 2}], [])


def test_records_that_are_none_hold_up_a_batch_now_and_then(registry: Registry):
    """Each may bring another number: a batch waits for all of them together, and those of the next minute do not wait."""
    form = Form({"topic": "t"}, SchemaRegistry("http://registry"))
    for first in (50, 60, 70):
        _, bad = form.decode([record(number, 1) for number in range(first, first + 10)])
        assert [failure.code for _, failure in bad] == ["SX-RECORD-UNDECODABLE"] * 10
    assert 102.9 < registry.now < 103.5
    assert len(registry.asked) < 60
    registry.now = 200.0
    registry.since[80] = 201.0
    assert form.decode([record(80, 1)]).bad == []
