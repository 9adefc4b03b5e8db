"""Formats of a schema registry: which of its answers are about the records, and which only about itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pyarrow as pa
import pytest

from queues.media import topic_format
from sardonyx.errors import SardonyxError

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
def address() -> Iterator[str]:
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
        (401, b'{"error_code": 401, "message": "who?"}', "SX-REGISTRY-UNREACHABLE", "SX-REGISTRY-UNREACHABLE"),
        (404, b'{"error_code": 40403, "message": "none"}', "SX-RECORD-UNDECODABLE", "SX-OUTPUT-REGISTRY"),
        (409, b'{"error_code": 409, "message": "no"}', "SX-REGISTRY-UNREACHABLE", "SX-OUTPUT-REGISTRY"),
        (422, b'{"error_code": 42201, "message": "no"}', "SX-REGISTRY-UNREACHABLE", "SX-OUTPUT-REGISTRY"),
    ],
)
@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_only_a_registrys_own_word_counts(
    form: str, status: int, body: bytes, read: str, written: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that knows no registry any more makes no record bad, and ends no job that writes."""
    monkeypatch.setattr(Gateway, "answer", (status, body))
    options = {"topic": "t", "format": form, "registry": address}

    def codes() -> Iterator[str]:
        try:
            yield from (failure.code for _, failure in topic_format(options).decode([RECORD]).bad)
        except SardonyxError as error:
            yield error.code
        with pytest.raises(SardonyxError) as refused:
            list(topic_format(options).encode(pa.table({"id": [1]})))
        yield refused.value.code

    assert list(codes()) == [read, written]
