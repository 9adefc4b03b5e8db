"""Topics in Avro and Protobuf by a real schema registry: what is written comes back, whichever program wrote it."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pyarrow as pa
import pytest

from sardonyx.connectors.registry import topic_format
from sardonyx.core.errors import OutputError, SardonyxError, SetupError
from tests.proxy import Proxy
from tests.registry import schema_registry

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MOMENT = dt.datetime(2026, 1, 31, 8, 30, 0, 250_000, dt.UTC)
PLAIN = {
    "id": pa.array([1, 0, None], pa.int64()),
    "small": pa.array([1, None, -1], pa.int32()),
    "share": pa.array([0.5, None, 0.0]),
    "text": pa.array(["a", None, ""]),
    "good": pa.array([True, None, False]),
    "data": pa.array([b"\x00\xff", None, b""]),
    "at": pa.array([MOMENT, None, MOMENT], pa.timestamp("us", "UTC")),
    "inner": pa.array(
        [{"a": 1, "b": "z"}, None, {"a": None, "b": None}], pa.struct({"a": pa.int64(), "b": pa.string()})
    ),
    "many": pa.array([[1, 2], [], [3]], pa.list_(pa.field("element", pa.int64()))),
}
"""Columns that both formats give back in the types that they had."""
MORE = {
    "day": pa.array([dt.date(2026, 1, 31), None, dt.date(1969, 12, 31)]),
    "price": pa.array([Decimal("12.50"), None, Decimal("-0.01")], pa.decimal128(9, 2)),
    "local": pa.array([MOMENT.replace(tzinfo=None), None, None], pa.timestamp("us")),
}
"""Columns that Protobuf keeps as texts."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with schema_registry() as address:
        yield address


@pytest.fixture
def options(registry: str) -> dict:
    return {"topic": f"orders-{uuid.uuid4().hex[:8]}", "registry": registry}


def records(form: str, options: dict, table: pa.Table) -> list[bytes]:
    return [value for _, value in topic_format({**options, "format": form}).encode(table)]


@pytest.mark.gate
@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_rows_come_back_as_they_were(form: str, options: dict):
    """Values and types, nulls told from nought; with a schema declared, exactly its columns in its types."""
    table = pa.table(PLAIN | (MORE if form == "avro" else {}))
    assert topic_format({**options, "format": form}).decode(records(form, options, table)).table.equals(table)
    table = pa.table(PLAIN | MORE)
    declared = "price decimal(9,2), id bigint, day date"
    decoded = topic_format({**options, "format": form, "schema": declared}).decode(records(form, options, table))
    assert (decoded.table.to_pylist(), decoded.bad) == (table.select(["price", "id", "day"]).to_pylist(), [])


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_records_of_several_schemas_are_one_table(form: str, options: dict):
    """Each record is read by the schema that it was written with; a column that it lacks is null."""
    old = records(form, options, pa.table({"id": [1, 2]}))
    new = records(form, options, pa.table({"id": [3], "name": ["three"]}))
    decoded = topic_format({**options, "format": form}).decode([old[0], new[0], old[1]])
    assert decoded.table.to_pylist() == [{"id": 1, "name": None}, {"id": 3, "name": "three"}, {"id": 2, "name": None}]


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_what_cannot_be_read_is_a_bad_record_and_takes_no_other_along(form: str, options: dict):
    """No value, no head, an unknown schema, data that ends too soon, the other format: each by its index."""
    good = records(form, options, pa.table({"id": [7], "text": ["seven"]}))[0]
    other = records("protobuf" if form == "avro" else "avro", {**options, "topic": "o"}, pa.table({"id": [7]}))[0]
    values = [good, None, b"", b'{"id": 7}', b"\x00\x00\x0f\xff\xff\x02", good[:-3], other, good]
    decoded = topic_format({**options, "format": form}).decode(values)
    assert decoded.table.to_pylist() == [{"id": 7, "text": "seven"}] * 2
    assert [index for index, _ in decoded.bad] == [1, 2, 3, 4, 5, 6]
    assert {failure.code for _, failure in decoded.bad} == {"SX-RECORD-UNDECODABLE"}


def test_a_schema_that_is_given_is_what_is_written(options: dict):
    """Names, types and defaults are the user's; a row that does not fit is refused, with the row."""
    schema = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "kind", "type": "string", "default": "plain"}],
    }
    given = {**options, "format": "avro", "value_schema": json.dumps(schema), "subject": "record", "key": "id"}
    ((key, value),) = topic_format(given).encode(pa.table({"id": [5]}))
    assert key == b"5"
    assert topic_format(given).decode([value]).table.to_pylist() == [{"id": 5, "kind": "plain"}]
    with pytest.raises(OutputError) as refused:
        list(topic_format(given).encode(pa.table({"id": ["five"]})))
    assert refused.value.code == "SX-OUTPUT-TYPE"


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_nothing_is_registered_if_the_job_says_so(form: str, options: dict):
    """Then the schema must be there: rows of any other are refused."""
    strict = {**options, "register": False}
    table = pa.table({"id": [1]})
    with pytest.raises(OutputError) as refused:
        records(form, strict, table)
    assert refused.value.code == "SX-OUTPUT-REGISTRY"
    written = records(form, options, table)
    assert records(form, strict, table) == written


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_without_a_registry_no_record_is_called_bad(form: str, options: dict):
    """Whether it is, only the registry knows: the batch waits, both ways."""
    value = records(form, options, pa.table({"id": [1]}))[0]
    away = {**options, "format": form, "registry": "http://127.0.0.1:9"}
    for call in (
        lambda: topic_format(away).decode([value]),
        lambda: list(topic_format(away).encode(pa.table({"id": [1]}))),
    ):
        with pytest.raises(SetupError) as error:
            call()
        assert error.value.code == "SX-REGISTRY-UNREACHABLE"
    with pytest.raises(SetupError) as error:
        topic_format({"topic": "t", "format": form})
    assert error.value.code == "SX-REGISTRY-MISSING"


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_registry_that_goes_away_makes_no_good_record_bad(form: str, options: dict):
    """Records of a schema that was read before are read without it, batch after batch; others wait."""
    host = options["registry"].split("/")[2]
    topics = {name: {**options, "topic": f"{options['topic']}-{name}"} for name in ("one", "two")}
    first, second = (records(form, topic, pa.table({name: [7]})) for name, topic in topics.items())
    with Proxy(host) as proxy:
        through = {**options, "format": form, "registry": options["registry"].replace(host, proxy.address)}
        assert topic_format(through).decode(first).table.to_pylist() == [{"one": 7}]
        proxy.refuse()
        decoded = topic_format(through).decode(first)
        assert (decoded.table.to_pylist(), decoded.bad) == ([{"one": 7}], [])
        with pytest.raises(SetupError) as error:
            topic_format(through).decode([*first, *second])
        assert error.value.code == "SX-REGISTRY-UNREACHABLE"


RECORD = struct.pack(">bI", 0, 7) + b"\x02"


class Gateway(BaseHTTPRequestHandler):
    """What may stand where a registry stood: it gives one answer to everything."""

    answer = (200, b"")

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.answer[0])
        self.send_header("Content-Length", str(len(self.answer[1])))
        self.end_headers()
        self.wfile.write(self.answer[1])

    do_POST = do_GET  # noqa: N815 (the base class's name)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "read", "written"),
    [
        (404, b"<h1>Not found</h1>", "SX-REGISTRY-UNREACHABLE", "SX-REGISTRY-UNREACHABLE"),
        (200, b"<h1>Welcome</h1>", "SX-REGISTRY-UNREACHABLE", "SX-REGISTRY-UNREACHABLE"),
        (401, b'{"error_code": 401, "message": "who?"}', "SX-REGISTRY-DENIED", "SX-REGISTRY-DENIED"),
        (404, b'{"error_code": 40403, "message": "none"}', "SX-RECORD-UNDECODABLE", "SX-OUTPUT-REGISTRY"),
        (409, b'{"error_code": 409, "message": "no"}', "SX-REGISTRY-UNREACHABLE", "SX-OUTPUT-REGISTRY"),
        (422, b'{"error_code": 42201, "message": "no"}', "SX-REGISTRY-UNREACHABLE", "SX-OUTPUT-REGISTRY"),
    ],
)
@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_only_a_registrys_own_word_counts(
    form: str, status: int, body: bytes, read: str, written: str, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that knows no registry any more makes no record bad, and ends no job that writes."""
    monkeypatch.setattr(Gateway, "answer", (status, body))
    options = {"topic": "t", "format": form, "registry": gateway}

    def codes() -> Iterator[str]:
        try:
            yield from (failure.code for _, failure in topic_format(options).decode([RECORD]).bad)
        except SardonyxError as error:
            yield error.code
        with pytest.raises(SardonyxError) as refused:
            list(topic_format(options).encode(pa.table({"id": [1]})))
        yield refused.value.code

    assert list(codes()) == [read, written]
