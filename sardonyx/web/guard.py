"""What stands before every request: whose name it asks for, from which page it comes, who asks, and what an answer may do in a
browser.

A page elsewhere can make a browser ask us, by a name that leads to this machine (DNS rebinding) or by a plain link. So a request
must name a host that we know, before anything else is looked at. Then everything below :data:`DATA` asks for a token, if there
are any; the pages and their files hold no data. What changes something is a POST below ``/api/v1``, by an operator; every other
method but GET and HEAD is refused. A page's own files are all that its content policy allows: no script in a page, nothing from
another host, no frame around it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from sardonyx.core.errors import SardonyxError
from sardonyx.web.access import Access, login_wanted, not_allowed
from sardonyx.web.problems import problem_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)

DATA = ("/api", "/sd", "/metrics")
"""Where data is: for people and scripts, and for Prometheus."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """The outermost layer of the application.

    Args:
        app: what is behind it.
        port: that we listen on. A request to a loopback name must have it.
        hosts: other names by which we may be asked for, with any port.
        access: tells who asks.
    """

    def __init__(self, app: App, port: int, hosts: Iterable[str] = (), access: Access | None = None) -> None:
        self._app = app
        self._access = access or Access()
        self._exact = {f"{name}:{port}" for name in LOOPBACK} | ({*LOOPBACK} if port == 80 else set())
        self._names = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        error = self._refusal(str(scope["method"]), str(scope["path"]), headers) or self._login(scope, headers)
        if error is not None:
            await self._refuse(error, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_ENCODED]
            await send(message)

        await self._app(scope, receive, guarded)

    def _refusal(self, method: str, path: str, headers: dict[str, str]) -> SardonyxError | None:
        host = headers.get("host", "").lower()
        if not self._known(host):
            return SardonyxError(
                "SX-WEB-HOST",
                f"this server does not answer to the name {host!r}",
                cause="a page elsewhere may have led the browser here by a name of its own",
                fix="open the address that `sardonyx web` printed; behind a proxy, name its host with --allow-host",
            )
        origin = headers.get("origin", "")
        own = origin.partition("://")[2].lower() == host
        site = headers.get("sec-fetch-site", "none")
        arrives = headers.get("sec-fetch-mode") == "navigate" and not path.startswith("/api/")
        if (origin and not own) or (site not in ("none", "same-origin") and not arrives):
            return SardonyxError(
                "SX-WEB-ORIGIN",
                "the request comes from a page elsewhere",
                cause=f"its origin is {origin or site}",
                fix="ask from the pages of this server, or from a script without an Origin header",
            )
        changes = method == "POST" and path.startswith("/api/v1/") and not self._access.open
        if method not in ("GET", "HEAD") and not changes:
            return SardonyxError(
                "SX-WEB-METHOD",
                f"the method {method} is not allowed",
                cause="pages that ask for no token change nothing"
                if self._access.open
                else "nothing is changed by it here",
                fix="use the command line: `sardonyx job kill`, for example; or start the pages with --tokens",
            )
        return None

    def _login(self, scope: Scope, headers: dict[str, str]) -> SardonyxError | None:
        """Say in the scope who asks."""
        if not str(scope["path"]).startswith(DATA):
            return None
        visitor = self._access.visitor(headers.get("authorization", ""))
        if visitor is None:
            return login_wanted()
        if scope["method"] == "POST" and visitor.role != "operator":
            return not_allowed(visitor)
        scope["visitor"] = visitor
        return None

    def _known(self, host: str) -> bool:
        return host in self._exact or host in self._names or host.rpartition(":")[0] in self._names

    @staticmethod
    async def _refuse(error: SardonyxError, send: Send) -> None:
        answer = problem_of(error)
        allow = [(b"allow", b"GET, HEAD")] if answer.status == 405 else []
        allow += [(b"www-authenticate", b"Bearer")] if answer.status == 401 else []
        headers = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store"), *allow, *_ENCODED]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.encode()})


_ENCODED = [(key.encode(), value.encode()) for key, value in HEADERS]
