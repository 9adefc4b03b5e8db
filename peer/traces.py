"""Batches as traces of OpenTelemetry, if ``metrics.traces`` asks for them: a batch is a span, and its steps are spans within it.

They are made when a batch has ended, from what the task tells of it. So a batch that is not traced costs one comparison. Nothing
of OpenTelemetry is imported where no batch is traced. OpenTelemetry's own variables, such as ``OTEL_EXPORTER_OTLP_ENDPOINT``, say
where they go.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from typing import TYPE_CHECKING, Any

from sardonyx.core.errors import SetupError
from sardonyx.core.names import job_name
from sardonyx.core.telemetry import BatchTold
from sardonyx.core.version import VERSION
from sardonyx.runtime.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

NANO = 10**9
LAST = 2.0
"""Seconds that a daemon which ends waits for the collector."""


class TraceTeller:
    """Gives spans to a collector, from a thread of OpenTelemetry: no call waits, and what cannot be sent is lost.

    Args:
        settings: which share of batches is traced, and the name of the deployment.
        exporter: takes the spans; None: OTLP over HTTP.

    Raises:
        SetupError: ``SX-TRACES-MISSING``: the packages are not installed.
    """

    def __init__(self, settings: Settings, exporter: SpanExporter | None = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as error:
            raise SetupError(
                "SX-TRACES-MISSING",
                "metrics.traces is set, and the packages that send traces are not installed",
                cause=str(error),
                fix="pip install 'sardonyx[otel]', or leave out metrics.traces",
            ) from error
        own: dict[str, str | int] = {
            "service.name": "sardonyx-peer",
            "service.version": VERSION,
            "service.namespace": settings.deployment,
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
        }
        resource = Resource(own).merge(OTELResourceDetector().detect())  # the user's own names win
        self._share = settings.metrics.traces
        self._deployment = settings.deployment
        self._trace = trace
        self._provider = TracerProvider(resource=resource, sampler=ALWAYS_ON, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("sardonyx", VERSION)

    def tell(self, told: BatchTold) -> None:
        """Trace a batch, if it is one of those that are traced. One that was not committed always is."""
        if told.outcome == "committed" and random.random() >= self._share:  # noqa: S311 - no secret
            return
        end = round(told.at * NANO)
        at = end - round(sum(told.seconds.values()) * NANO)
        span = self._tracer.start_span(
            f"process {told.task}",
            kind=self._trace.SpanKind.CONSUMER,
            start_time=at,
            attributes=self._attributes(told),
        )
        within = self._trace.set_span_in_context(span)
        for step, spent in told.seconds.items():
            child = self._tracer.start_span(step, within, start_time=at)
            at += round(spent * NANO)
            child.end(at)
        if told.outcome != "committed":
            span.set_status(self._trace.StatusCode.ERROR, told.cause)
        span.end(end)

    def close(self) -> None:
        """Wait a moment until the last traces are sent."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True, name="last traces")
        closing.start()  # it sends what is left, and tries for half a minute if the collector is away
        closing.join(LAST)

    def _attributes(self, told: BatchTold) -> dict[str, Any]:
        counts = {name: getattr(told, name) for name in ("rows_in", "rows_out", "skipped", "dead", "late")}
        return {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": f"{self._deployment}.{told.job}.{told.task}",
            "messaging.batch.message_count": told.rows_in,
            "sardonyx.deployment": self._deployment,
            "sardonyx.job": job_name(told.job),
            "sardonyx.job_id": told.job,
            "sardonyx.task": told.task,
            "sardonyx.peer": told.peer,
            "sardonyx.slot": told.slot,
            "sardonyx.assignment": told.assignment,
            "sardonyx.outcome": told.outcome,
            **{f"sardonyx.{name}": count for name, count in counts.items()},
        }
