"""The HTTP endpoints of a daemon: ``/metrics`` for Prometheus, ``/livez`` and ``/readyz`` for what restarts and routes.

Nothing here is on the way of a batch or a decision: values are read when a client asks. There is no authentication, and nothing
but figures, names of jobs and tasks, and error codes is shown.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING, Any, cast

import structlog

from sardonyx.core.addresses import listening_place, reached_at
from sardonyx.core.errors import SetupError
from sardonyx.core.version import VERSION
from sardonyx.runtime.certificates import ends
from sardonyx.runtime.daemon_metrics import BUILD, CERTIFICATES, THREADS
from sardonyx.runtime.metrics import REGISTRY, Metric, Registry

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from sardonyx.runtime.settings import Settings

REQUEST_TIMEOUT = 10.0
"""Seconds that a client may take to send its request and to read the answer."""

Probe = Callable[[], str]
"""Says why the answer is no; an empty text is yes."""

log = structlog.get_logger()


@contextlib.contextmanager
def served(settings: Settings, daemon: str, live: Probe, ready: Probe) -> Iterator[str]:
    """Serve metrics and probes while the block runs, if ``metrics.listen`` is set.

    Gives ``host:port`` where others reach it; empty if it is not set.

    Args:
        settings: where to listen, and the deployment.
        daemon: ``coordinator`` or ``peer``.
        live: whether this process should go on. It must not depend on a service.
        ready: whether it does its work now.

    Raises:
        SetupError: ``SX-METRICS-LISTEN``: it cannot listen there.
    """
    place = listening_place(settings.metrics.listen or "")
    if place is None:
        yield ""
        return
    present(daemon)
    CERTIFICATES.follow(partial(ends, settings))
    try:
        server = _Server(place, rendering(settings.deployment, REGISTRY), {"/livez": live, "/readyz": ready})
    except OSError as error:
        raise SetupError(
            "SX-METRICS-LISTEN",
            f"the {daemon} cannot serve its metrics at {settings.metrics.listen}",
            cause=str(error),
            fix="set metrics.listen to an address of this machine with a free port; with port 0 each daemon takes a free one",
            where={"setting": "metrics.listen", "origin": settings.origins.get("metrics.listen", "")},
        ) from None
    listens = place[0], int(server.server_address[1])
    threading.Thread(target=server.serve_forever, name="metrics-server", daemon=True).start()
    log.info("metrics_served", address=f"http://{reached_at(listens, place[0])}/metrics")
    try:
        yield reached_at(listens, socket.gethostname(), settings.metrics.advertise or "")
    finally:
        server.shutdown()
        server.server_close()


def present(daemon: str) -> None:
    """Say in the metrics of this process which daemon it is."""
    BUILD.set(1, version=VERSION, daemon=daemon)
    THREADS.follow(lambda: {(): threading.active_count()})


def rendering(deployment: str, registry: Registry = REGISTRY) -> Callable[[str], tuple[bytes, str]]:
    """Makes the text of all metrics, in the format that the ``Accept`` header asks for, and its content type."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector

    class Ours(Collector):
        def collect(self) -> Iterable[Family]:
            return _families(deployment, registry)

        def describe(self) -> Iterable[Family]:
            return []

    collectors = CollectorRegistry()
    collectors.register(Ours())
    ProcessCollector(registry=collectors)

    def render(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(collectors), content_type

    return render


def _families(deployment: str, registry: Registry) -> list[Family]:
    return [_family(deployment, metric) for metric in registry.snapshot().metrics if metric.series]


def _family(deployment: str, metric: Metric) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names = ["deployment", *(metric.series[0].labels)]
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
        bounds = [*map(str, map(float, metric.bounds)), "+Inf"]
        for each in metric.series:
            buckets = list(zip(bounds, [*each.buckets, each.count], strict=True))
            histogram.add_metric([deployment, *each.labels.values()], buckets, each.value)
        return histogram
    made: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = made(metric.name, metric.help, labels=names)
    for each in metric.series:
        family.add_metric([deployment, *each.labels.values()], each.value)
    return cast("Family", family)


class _Server(ThreadingHTTPServer):
    """Answers each request in a thread of its own."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, place: tuple[str, int], render: Callable[[str], tuple[bytes, str]], probes: dict[str, Probe]
    ) -> None:
        self.address_family = AF_INET6 if ":" in place[0] else AF_INET
        self.render = render
        self.probes = probes
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        """Without the library's look at the name of this machine, which may wait for DNS."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth a traceback, which the library would print."""
        del request
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("metrics_request_failed", client=str(client_address), exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT
    server_version = "sardonyx"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body, content_type = self.server.render(self.headers.get("Accept", ""))
            self._answer(200, body, content_type)
        elif path in self.server.probes:
            reason = self.server.probes[path]()
            self._answer(503 if reason else 200, f"{reason or 'ok'}\n".encode())
        else:
            self._answer(404, b"there are /metrics, /livez and /readyz\n")

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged."""
