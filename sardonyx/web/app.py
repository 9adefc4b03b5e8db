"""The application: routes for the API, the stream, the pages and their files; and the server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import resources
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from peer.gc_policy import seldom
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.runtime.metrics_server import present, rendering
from sardonyx.web.access import Access
from sardonyx.web.actions import ACTIONS, Action
from sardonyx.web.api import ADDRESSES, Address, Api
from sardonyx.web.guard import App, Guard
from sardonyx.web.hub import STREAMS, Hub
from sardonyx.web.openapi import document
from sardonyx.web.page_metrics import STREAMS as OPEN_STREAMS
from sardonyx.web.problems import no_method, no_path, problem_of
from sardonyx.web.source import Source

FREE_PORTS = 20
"""How many ports after the wanted one are tried."""
GRACE = 3
"""Seconds that streams have to end."""
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Sardonyx</title>
<link rel="icon" href="/static/icon.svg">
<link rel="stylesheet" href="/static/app.css">
{modules}
<script type="module" src="/static/main.js"></script>
</head>
<body>
<div id="app"><p>These pages are being loaded. If this stays: reload; a script did not come, or the browser is too old.</p></div>
<noscript><p>These pages need JavaScript. The same data: <a href="/api/v1/cluster">/api/v1/cluster</a>,
or <code>sardonyx job list</code> and <code>sardonyx job show JOB</code>.</p></noscript>
</body>
</html>
"""
"""The one HTML page: what it shows is in its address. ``{modules}``: the browser gets all modules at once, and does not find one
after the other."""

PAGES = (
    "/",
    "/jobs",
    "/jobs/{job}",
    "/jobs/{job}/stream",
    "/jobs/{job}/links/{link}",
    "/dead-letters",
    "/dead-letters/{job}/{task}",
    "/capacity",
    "/log",
    "/log/{n:int}",
)


def application(source: Source, port: int, hosts: Iterable[str] = (), access: Access | None = None) -> tuple[App, Hub]:
    """The application for a source, and its hub.

    Args:
        source: what is shown.
        port: that it is served on.
        hosts: names, beside loopback, by which it may be asked for.
        access: tells who asks; None: everyone is a viewer.
    """
    api = Api(source)
    hub = Hub(api.topic, api.without_secrets)
    source.on_change(hub.changed)
    OPEN_STREAMS.follow(lambda: {(): hub.streams})

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(hub.run())
        yield
        task.cancel()

    async def stream(request: Request) -> Response:
        if hub.streams >= STREAMS:
            raise SardonyxError(
                "SX-WEB-STREAMS", f"there are {STREAMS} streams already", fix="close pages, or ask without a stream"
            )
        topics = [topic for topic in request.query_params.get("topics", "").split(",") if topic]
        for topic in topics:
            if topic != "cluster" and not (topic.startswith("job:") and topic.isprintable() and '"' not in topic):
                raise SardonyxError("SX-WEB-QUERY", f"there is no topic {topic!r}", fix="cluster, or job:ID")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would collect what comes
        return StreamingResponse(hub.stream(topics), media_type="text/event-stream", headers=headers)

    def session(request: Request) -> Response:
        answer = api.session(request.scope["visitor"])
        return Response(answer, media_type="application/json", headers={"cache-control": "no-store"})

    def targets(_request: Request) -> Response:
        return Response(api.targets(), media_type="application/json", headers={"cache-control": "no-store"})

    present("web")
    render = rendering(source.standing().deployment)

    def metrics(request: Request) -> Response:
        text, kind = render(request.headers.get("accept", ""))
        return Response(text, headers={"cache-control": "no-store", "content-type": kind})

    files = static_files()
    modules = "\n".join(f'<link rel="modulepreload" href="/static/{name}">' for name in files if name.endswith(".js"))
    shell = SHELL.replace("{modules}", modules).encode()
    routes = [
        *(Route(f"/api/v1{address.path}", _endpoint(api, address)) for address in ADDRESSES),
        *(Route(f"/api/v1{action.path}", _doing(api, action), methods=["POST"]) for action in ACTIONS),
        Route("/api/v1/stream", stream),
        Route("/api/v1/session", session),
        Route("/sd/prometheus", targets),
        Route("/metrics", metrics),
        Route("/api/v1/openapi.json", _fixed(msgspec.json.encode(document()), "application/json")),
        *(Route(f"/static/{name}", _fixed(data, KINDS[f".{name.rpartition('.')[2]}"])) for name, data in files.items()),
        *(Route(path, _fixed(shell, "text/html; charset=utf-8")) for path in PAGES),
    ]
    handlers: dict[Any, Any] = {SardonyxError: _told, HTTPException: _missing, Exception: partial(_failed, api)}
    return Guard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), port, hosts, access), hub


def static_files() -> dict[str, bytes]:
    """The pages' own files."""
    folder = resources.files("sardonyx.web") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if f".{each.name.rpartition('.')[2]}" in KINDS}


def _endpoint(api: Api, address: Address) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return _tagged(request, api.answer(address, _parameters(request), request.path_params), "application/json")

    return endpoint


def _parameters(request: Request) -> dict[str, str]:
    pairs = request.query_params.multi_items()
    if len(dict(pairs)) < len(pairs):
        raise SardonyxError("SX-WEB-QUERY", "a parameter stands there twice", fix="give each parameter once")
    return dict(pairs)


def _doing(api: Api, action: Action) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        visitor, key = request.scope["visitor"], request.headers.get("idempotency-key", "")
        raw = _parameters(request)
        status, answer = await run_in_threadpool(api.act, action, raw, request.path_params, visitor, key)
        return Response(answer, status, {"cache-control": "no-store"}, "application/json")

    return endpoint


def _fixed(data: bytes, kind: str) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        return _tagged(request, data, kind)

    return endpoint


def _tagged(request: Request, data: bytes, kind: str) -> Response:
    """An answer that a browser may keep, and asks about each time: the log of a new deployment begins at 1 again."""
    tag = f'"{hashlib.sha256(data).hexdigest()[:24]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=kind, headers=headers)


def _told(_request: Request, error: Exception) -> Response:
    if not isinstance(error, SardonyxError):
        raise error
    answer = problem_of(error)
    headers = {"cache-control": "no-store", **({"retry-after": "5"} if answer.status == 503 else {})}
    return Response(answer.encode(), answer.status, headers, "application/problem+json")


def _missing(request: Request, error: Exception) -> Response:
    wrong = isinstance(error, HTTPException) and error.status_code == 405
    return _told(request, no_method(request.method) if wrong else no_path(request.url.path))


def _failed(api: Api, request: Request, error: Exception) -> Response:
    return _told(request, api.without_secrets(error))


# The server


class _Server(uvicorn.Server):
    """A server whose streams end when it is to stop; it would wait for them."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which sends itself the signal again at the end: then a wanted end would look like a failure."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._hub.end()
        super().handle_exit(sig, frame)


def bound(host: str, port: int) -> socket.socket:
    """A socket on this port, or on the next one that is free.

    Raises:
        SetupError: ``SX-WEB-PORT``: none of them is.
    """
    last: OSError | None = None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in range(port, min(port + FREE_PORTS, 65536)) if port else (0,):
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, wanted))
            found.listen()  # who asks as soon as the address is printed waits, and is not refused
        except OSError as error:
            found.close()
            last = error
        else:
            return found
    raise SetupError(
        "SX-WEB-PORT",
        f"cannot listen on {host}, ports {port} to {port + FREE_PORTS - 1}",
        cause=str(last),
        fix="name another port with --port, or an address of this machine with --host",
    )


def serve(source: Source, listener: socket.socket, hosts: Sequence[str] = (), access: Access | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    seldom()  # the log in memory is some million objects, which Python would look through again and again
    app, hub = application(source, listener.getsockname()[1], hosts, access)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=64 * 1024,
    )
    asyncio.run(_Server(config, hub).serve(sockets=[listener]))
    sys.stdout.flush()
