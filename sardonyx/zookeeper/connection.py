"""One session with ZooKeeper: its life, and calls that are sent again after a lost reply.

kazoo's defaults are unsafe for Sardonyx. The traps that concern every call are closed here:

- After an expired session kazoo goes on in a new one, in which our ephemeral nodes are gone. A :class:`Connection` is one
  session: after its end every call raises :class:`sardonyx.zookeeper.errors.SessionLost`, unless ``survive_expiry`` is set.
- A reply may never come. Every call has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.daemon_metrics import REQUEST_SECONDS, SESSIONS_LOST
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper import errors
from sardonyx.zookeeper.bulk import BulkClient

LOST_REPLY = (ConnectionLoss, OperationTimeoutError, KazooTimeoutError)
"""Errors after which the client does not know whether the server carried the call out."""

log = structlog.get_logger()


class Connection:
    """A session with ZooKeeper that many threads may use.

    Args:
        client: not started yet.
        settings: address, timeouts and deployment.
        survive_expiry: go on in a new session when this one expires.
        runtime: time and threads, for everything that uses this session.
    """

    def __init__(
        self, client: BulkClient, settings: Settings, *, survive_expiry: bool = False, runtime: Runtime = REAL
    ) -> None:
        self.client = client
        self.runtime = runtime
        """Users of this session take time and threads from here."""
        self.root = node_paths.root(settings.deployment)
        self.hosts = str(settings.zookeeper.hosts)
        self._zookeeper = settings.zookeeper
        self.patience = max(settings.zookeeper.connect_timeout, settings.zookeeper.session_timeout)
        """Seconds that a call waits for ZooKeeper before it raises."""
        self.session_timeout = settings.zookeeper.session_timeout
        """Seconds after which ZooKeeper ends a silent session, as negotiated with the server."""
        self.last_answer = runtime.now()
        """When the latest answered request had been *sent*, by the monotonic clock: the session was alive then."""
        self._survive_expiry = survive_expiry
        self._connected = runtime.signal()
        self._lost = False
        self._closing = False
        self.many_at_once = hasattr(client, "get_many_async")
        """Whether the server takes requests for many nodes."""
        client.add_listener(self._on_state)

    def close(self) -> None:
        """End the session. Its ephemeral nodes vanish at once, or after the session timeout if ZooKeeper is away."""
        self._closing = True
        try:
            self.client.stop()
            self.client.close()
        except KazooException as error:  # a connection attempt to a silent server hangs: leave it
            log.warning("zookeeper_close_failed", zookeeper=self.hosts, error=repr(error))

    @property
    def connected(self) -> bool:
        """Whether the session exists and is connected now, as far as this side knows."""
        return self._connected.is_set() and (self._survive_expiry or not self._lost)

    def wait_connected(self, timeout: float) -> bool:
        """Wait at most so many seconds for the connection; returns whether it exists."""
        return self._connected.wait(max(timeout, 0))

    def path(self, path: str) -> str:
        """The whole path in ZooKeeper of a path below the deployment's root."""
        return self.root + path

    # Calls

    def call(
        self,
        send: Callable[[], Any],
        *,
        first: tuple[Any, float] | None = None,
        instead: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Send a request and return its answer; after a lost reply send it again, until ``patience`` ends.

        Args:
            send: sends the request.
            first: the request that was sent already, and when.
            instead: called after a lost reply, to find out whether the request was carried out after all; a result other
                than None is the answer.

        Raises:
            ZooKeeperAway: no answer within ``patience``.
            SessionLost: the session ended.
            SardonyxError: ZooKeeper refused the request. ``NoNodeError``, ``NodeExistsError`` and ``UnimplementedError`` of
                kazoo are passed on.
        """
        until = self.runtime.now() + self.patience
        while True:
            self.require_alive()
            asked, sent = first or (None, self.runtime.now())
            try:
                answering = send() if asked is None else asked
                answer = answering.get(timeout=max(until - self.runtime.now(), 0.001))
            except (NoNodeError, NodeExistsError, UnimplementedError):
                self.answered(sent)
                raise
            except (*LOST_REPLY, SessionExpiredError) as error:
                closed = isinstance(error, ConnectionClosedError)
                if closed or (isinstance(error, SessionExpiredError) and not self._survive_expiry):
                    raise self._session_lost() from error
                if not self.wait_connected(until - self.runtime.now()) or self.runtime.now() >= until:
                    raise errors.away(self.hosts, self.patience) from error
                done = instead()
                if done is not None:
                    return done
            except KazooException as error:
                raise self.translated(error) from error
            else:
                self.answered(sent)
                REQUEST_SECONDS.observe(self.runtime.now() - sent)
                return answer
            first = None

    def answered(self, sent: float) -> None:
        self.last_answer = max(self.last_answer, sent)

    def require_alive(self) -> None:
        if self.client.login_refused is not None:
            raise errors.login_denied(self._zookeeper, self.client.login_refused)
        if self._lost and not self._survive_expiry:
            raise self._session_lost()

    def _session_lost(self) -> errors.SessionLost:
        return errors.session_lost(self.hosts, self.session_timeout)

    def translated(self, error: Exception) -> SardonyxError:
        """A kazoo error as one of ours."""
        asked = getattr(error, "asked", None)
        path = "" if asked is None or not hasattr(asked, "path") else self.client.unchroot(asked.path)
        operation = type(asked).__name__
        return errors.refused(error, self._zookeeper, self.root, self.session_timeout, operation, path)

    def denied(self, operation: str, path: str) -> SardonyxError:
        """The error for what an ACL does not allow; the path is relative to the root."""
        return errors.denied(self._zookeeper, self.root, operation, self.root + path)

    def _on_state(self, state: str) -> None:
        """Runs on the connection's own thread and must not block."""
        if state == KazooState.CONNECTED:
            self._connected.set()
            return
        self._connected.clear()
        if state == KazooState.LOST:
            self._lost = True
            if not self._closing:
                SESSIONS_LOST.add()
            if self.client.login_refused is not None:  # the thread that connects need not wait any longer
                self._connected.set()

    def _negotiated(self, timeout: float) -> None:
        self.session_timeout = timeout
