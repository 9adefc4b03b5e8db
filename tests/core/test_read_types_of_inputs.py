"""Each reader without `schema=` settles its types by the same rule: writers' schemas, dead letters, splits."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from peer.topic_rows import Formats, read_topic
from queues import dead_letters
from queues.batch import Batch
from queues.dead_letters import Letter, Origin
from sardonyx import Job, generator, kafka
from sardonyx.connectors.records import to_records
from sardonyx.connectors.topics import registry_formats
from sardonyx.core.errors import Failure, InputError, SardonyxError
from sardonyx.core.positions import Partition
from sardonyx.core.settled_types import SettledTypes
from sardonyx.core.spec import LETTERS_FORMAT, LETTERS_ORIGINS
from sardonyx.runtime.settings_sections import SchemaRegistry
from sardonyx.testing import ClockedRun
from sardonyx.testing.memory import Stored
from spark_tasks.read_splits import joined_splits

BIG = 2**53 + 1
SCHEMAS = {
    b"i": pa.schema([("v", pa.int64())]),
    b"d": pa.schema([("v", pa.float64())]),
    b"t": pa.schema([("v", pa.string()), ("w", pa.bool_())]),
    b"w": pa.schema([("v", pa.int32()), ("w", pa.bool_())]),
    b"s": pa.schema([("v", pa.struct([("a", pa.int64())]))]),
    b"f": pa.schema([("v", pa.struct([("a", pa.float64()), ("b", pa.string())]))]),
    b"l": pa.schema([("v", pa.list_(pa.field("element", pa.int64())))]),
    b"m": pa.schema([("v", pa.map_(pa.string(), pa.int64()))]),
    b"e": pa.schema([("v", pa.map_(pa.string(), pa.string()))]),
}


class Registered(registry_formats._Registered):
    """Records that begin with the name of the schema that they were written with."""

    kind = "Test"

    def _schema_of(self, value: bytes | None) -> registry_formats.Written | str:
        assert value is not None
        columns = SCHEMAS[value[:1]]
        return registry_formats.Written(lambda _: columns, lambda data: dict(json.loads(data[1:])))

    def _written(self, schema: Any) -> registry_formats.Written:
        raise NotImplementedError

    def _serializer(self, schema: pa.Schema, conf: dict[str, Any]) -> Callable[[dict[str, Any], Any], bytes]:
        raise NotImplementedError


@pytest.fixture
def no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_formats.schema_registry, "client", lambda *_: None)
    monkeypatch.setattr(registry_formats.schema_registry, "registry_error", lambda: LookupError)


def read(records: Sequence[tuple[str, Any]], cuts: Sequence[int], schema: str | None = None) -> list[Any]:
    """What becomes of each record: its row without nulls, or the code of its error."""
    options = {"topic": "t", "registry": "http://none"} | ({"schema": schema} if schema else {})
    form, found = Registered(options, SchemaRegistry()), list[Any]()
    values = [written.encode() + json.dumps(row).encode() for written, row in records]
    for start, end in itertools.pairwise([0, *cuts, len(values)]):
        decoded = form.decode(values[start:end])
        bad, rows = dict(decoded.bad), iter(to_records(decoded.table))
        for index in range(end - start):
            if index in bad:
                assert "column 'v" in bad[index].message, bad[index]
            row = {} if index in bad else next(rows)
            found.append(
                bad[index].code if index in bad else {name: value for name, value in row.items() if value is not None}
            )
        assert next(rows, None) is None
    return found


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([("i", {"v": 1}), ("d", {"v": 0.5}), ("t", {"v": "x", "w": True})], [{"v": 1}, {"v": 0.5}, "SX-COLUMN-TYPE"]),
        ([("i", {"v": BIG}), ("d", {"v": 0.5}), ("i", {"v": 7})], [{"v": BIG}, "SX-COLUMN-TYPE", {"v": 7}]),
        ([("d", {"v": 0.5}), ("i", {"v": BIG}), ("i", {"v": 7})], [{"v": 0.5}, "SX-RECORD-UNDECODABLE", {"v": 7}]),
        (
            [("t", {"v": "x", "w": True}), ("i", {"v": 1}), ("t", {"v": "y"})],
            [{"v": "x", "w": True}, "SX-COLUMN-TYPE", {"v": "y"}],
        ),
        (
            [("w", {"v": 1, "w": False}), ("i", {"v": BIG}), ("w", {"v": 2})],
            [{"v": 1, "w": False}, {"v": BIG}, {"v": 2}],
        ),
        ([("s", {"v": {"a": BIG}}), ("f", {"v": {"a": 0.5}})], [{"v": {"a": BIG}}, "SX-COLUMN-TYPE"]),
        ([("l", {"v": [1]}), ("s", {"v": {"a": 1}}), ("l", {"v": []})], [{"v": [1]}, "SX-COLUMN-TYPE", {"v": []}]),
        ([("m", {"v": {"k": 1}}), ("e", {"v": {"k": "x"}})], [{"v": {"k": 1}}, "SX-COLUMN-TYPE"]),
    ],
)
@pytest.mark.usefixtures("no_registry")
def test_schemas_of_writers_settle_the_types(records: list[tuple[str, Any]], found: list[Any]) -> None:
    """In one batch and one by one. A record of a schema that does not go together with those before it is bad."""
    for cuts in ([], [1], list(range(1, len(records)))):
        assert read(records, cuts) == found, cuts


@pytest.mark.usefixtures("no_registry")
def test_a_declared_schema_settles_nothing() -> None:
    """Each record is read by itself."""
    assert read([("i", {"v": 1}), ("t", {"v": "2026-01-01"})], [], "v date") == [
        "SX-RECORD-UNDECODABLE",
        {"v": dt.date(2026, 1, 1)},
    ]


def letter(row: pa.Table | bytes, kind: dead_letters.Kind, offset: int) -> Stored:
    said = Letter("task", kind, "ValueError", 1, Failure("SX-FN-RAISED", "no"), Origin("orders", 0, offset))
    value, key, headers = dead_letters.packed(said, row, None)
    return Stored(Partition("letters", 0), offset, key, value, headers)


def test_dead_letters_that_do_not_go_together_are_bad_records() -> None:
    """In one batch they failed the job, and in two both passed."""
    origins = {"orders": {"format": "json", "topic": "orders"}}
    options = {"format": LETTERS_FORMAT, LETTERS_ORIGINS: origins}
    letters = [
        letter(pa.table({"v": [9]}), "row", 0),
        letter(pa.table({"v": ["x"]}), "row", 1),
        letter(b'{"v": 8}', "raw", 2),
        letter(b'{"v": "y"}', "raw", 3),
        letter(pa.table({"v": pa.nulls(1)}), "row", 4),
    ]
    for cuts in ([], [1, 2, 3, 4]):
        formats, values, unread = Formats(SchemaRegistry()), list[Any](), list[Any]()
        link: Any = SimpleNamespace(name="letters", topic="letters", options=options, time=None)
        for start, end in itertools.pairwise([0, *cuts, 5]):
            found = read_topic(link, letters[start:end], formats, Batch(), 0.0)
            values += [row["v"] for row in to_records(found.table)]
            unread += [(each.origin.offset, each.kind, each.bad.failure.code) for each in found.unread]
        assert values == [9, 8, None]
        assert unread == [(1, "row", "SX-COLUMN-TYPE"), (3, "raw", "SX-COLUMN-TYPE")]


def test_splits_that_do_not_go_together_fail_the_job_however_they_come(
    sardonyx_clocked: Callable[..., ClockedRun],
) -> None:
    """A connector of a user's own may give integers in one split and texts in the next."""
    types = SettledTypes()
    assert joined_splits([pa.table({"v": [9]})], types)["v"].type == pa.int64()
    assert joined_splits([pa.table({"v": [0.5]}), pa.table({"v": [9]})], types)["v"].type == pa.float64()
    assert joined_splits([pa.table({"v": [9]})], types)["v"].type == pa.float64()
    with pytest.raises(InputError) as raised:
        joined_splits([pa.table({"v": ["x"]})], types)
    assert raised.value.code == "SX-INPUT-SCHEMA"
    job = Job("j", partitions=1)
    rows = job.input("rows", generator(count=1, columns={"k": "key"}))
    job.output("out", kafka("out"), after=rows)
    run = sardonyx_clocked(job)
    run.give("rows", pa.table({"v": [9]}))
    with pytest.raises(SardonyxError) as failed:
        run.give("rows", pa.table({"v": ["x"]}))
    assert failed.value.code == "SX-INPUT-SCHEMA"
