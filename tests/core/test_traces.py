"""Batches as traces of OpenTelemetry: what a collector gets, which batches it gets, and that nothing happens unless asked."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from peer import telemetry, traces
from peer.traces import TraceTeller
from sardonyx.core.errors import SetupError
from sardonyx.core.telemetry import BatchTold
from sardonyx.runtime.settings import Settings, load_settings
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("threads_end")

COMMITTED = BatchTold(
    job="flights-k3x9qa",
    task="label",
    peer="h-0",
    slot=2,
    assignment=17,
    at=1000.0,
    outcome="committed",
    rows_in=50,
    rows_out=49,
    dead=1,
    seconds={"wait": 1.0, "function": 2.0, "commit": 0.5},
)
DROPPED = BatchTold(
    job="flights-k3x9qa",
    task="label",
    peer="h-0",
    slot=2,
    assignment=17,
    at=9.0,
    outcome="dropped",
    cause="the group moved",
)


def settings_of(share: float) -> Settings:
    return load_settings(**{"deployment": "test", "metrics.traces": share})


class Collector:
    """Takes spans over HTTP, as OpenTelemetry's own does."""

    def __init__(self) -> None:
        self.got: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                plain = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                assert self.path == "/v1/traces"
                collector.got.append(ExportTraceServiceRequest.FromString(plain))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the last spans take longer than a daemon waits for them."""
    monkeypatch.setattr(traces, "LAST", PATIENCE)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", f"{PATIENCE:g}")  # after that it would send them once more


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.mark.usefixtures("patient")
def test_a_batch_is_a_span_and_its_steps_are_spans_within_it() -> None:
    """It ends when the batch ended. The steps follow one another, with their durations, and fill it."""
    exporter = InMemorySpanExporter()
    teller = TraceTeller(settings_of(1), exporter)
    teller.tell(COMMITTED)
    teller.close()
    *steps, batch = exporter.get_finished_spans()
    assert (batch.name, batch.kind, batch.parent) == ("process label", SpanKind.CONSUMER, None)
    assert (batch.start_time, batch.end_time) == (996_500_000_000, 1_000_000_000_000)
    assert batch.status.status_code == StatusCode.UNSET
    assert [(step.name, step.start_time, step.end_time) for step in steps] == [
        ("wait", 996_500_000_000, 997_500_000_000),
        ("function", 997_500_000_000, 999_500_000_000),
        ("commit", 999_500_000_000, 1_000_000_000_000),
    ]
    assert {step.parent.span_id for step in steps} == {batch.context.span_id}
    told = batch.attributes
    assert told["messaging.system"] == "kafka"
    assert told["messaging.batch.message_count"] == 50
    assert told["messaging.consumer.group.name"] == "test.flights-k3x9qa.label"
    assert (told["sardonyx.job"], told["sardonyx.job_id"]) == ("flights", "flights-k3x9qa")
    assert (told["sardonyx.rows_out"], told["sardonyx.dead"], told["sardonyx.outcome"]) == (49, 1, "committed")


@pytest.mark.usefixtures("patient")
def test_a_share_of_batches_is_traced_and_every_one_that_was_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cause stands in the status of its span."""
    exporter = InMemorySpanExporter()
    teller = TraceTeller(settings_of(0.25), exporter)
    drawn = iter([0.0, 0.24, 0.25, 0.99])
    monkeypatch.setattr(traces.random, "random", lambda: next(drawn))
    for _ in range(4):
        teller.tell(COMMITTED)
    teller.tell(DROPPED)
    teller.close()
    batches = [span for span in exporter.get_finished_spans() if span.name == "process label"]
    assert [span.attributes["sardonyx.outcome"] for span in batches] == ["committed", "committed", "dropped"]
    assert (batches[-1].status.status_code, batches[-1].status.description) == (StatusCode.ERROR, "the group moved")


@pytest.mark.usefixtures("patient")
def test_a_collector_gets_them_over_http(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    """Where OpenTelemetry's variables say, under the name that they say; a daemon that ends sends the last ones."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "peers-of-ana")
    with telemetry.telling(settings_of(1)):
        for teller in telemetry._tellers:
            teller.tell(COMMITTED)
    assert telemetry._tellers == []
    spans = [
        span
        for request in collector.got
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert sorted(span.name for span in spans) == ["commit", "function", "process label", "wait"]
    (resource,) = {str(each.resource) for request in collector.got for each in request.resource_spans}
    assert "peers-of-ana" in resource
    assert "service.namespace" in resource


def test_a_collector_that_is_away_holds_up_nothing() -> None:
    """No call raises, and the end does not wait for it: it comes while spans are still being sent.

    In a process of its own: the exporter's thread goes on for half a minute, and draws from `random`, which others have seeded.
    """
    code = """
import threading
from tests.core.test_traces import COMMITTED, TraceTeller, settings_of
teller = TraceTeller(settings_of(1))
for _ in range(1_000):
    teller.tell(COMMITTED)
teller.close()
assert "last traces" in [thread.name for thread in threading.enumerate()]
"""
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=Path(__file__).parents[2])


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is to trace does not begin without."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SetupError) as caught:
        TraceTeller(settings_of(0.5))
    assert caught.value.code == "SX-TRACES-MISSING"
    assert "sardonyx[otel]" in caught.value.fix


def test_nothing_of_it_is_imported_unless_asked() -> None:
    """A daemon that does not trace does no work for it."""
    code = """
import sys
from peer.telemetry import telling
from sardonyx.runtime.settings import load_settings
with telling(load_settings()):
    sys.exit(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
