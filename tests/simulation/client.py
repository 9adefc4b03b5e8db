"""A simulated kazoo client: one session of a process with the simulated ensemble, over a connection that breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from tests.simulation.engine import Process, SimRuntime, Waiter
from tests.simulation.zookeeper import Session, SimZooKeeper, Stat

LATENCY = (0.0003, 0.004)
"""Seconds between client and server, one way."""


class SimResult:
    """As kazoo's AsyncResult."""

    __slots__ = ("_client", "_done", "_error", "_value", "_waiter")

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self._done = False
        self._value: Any = None
        self._error: Exception | None = None
        self._waiter: Waiter | None = None

    def set(self, value: Any) -> None:
        self._settle(value, None)

    def set_exception(self, error: Exception) -> None:
        self._settle(None, error)

    def _settle(self, value: Any, error: Exception | None) -> None:
        if not self._done:
            self._done, self._value, self._error = True, value, error
            if self._waiter is not None:
                self._waiter.fire(True)

    def get(self, timeout: float | None = None) -> Any:
        if not self._done:
            self._waiter = Waiter(self._client.process)
            self._waiter.park(timeout)
        if not self._done:
            raise KazooTimeoutError("timed out")
        if self._error is not None:
            raise self._error
        return self._value


class SimTransaction:
    """As kazoo's TransactionRequest."""

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self._operations: list[Any] = []

    def create(self, path: str, value: bytes = b"") -> None:
        self._operations.append(("create", path, value, -1, False, False))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._operations.append(("set", path, value, version))

    def delete(self, path: str, version: int = -1) -> None:
        self._operations.append(("delete", path, b"", version))

    def check(self, path: str, version: int) -> None:
        self._operations.append(("check", path, b"", version))

    @property
    def size(self) -> int:
        return sum(len(path) + len(data) for _, path, data, *_ in self._operations)

    def commit_async(self) -> SimResult:
        return self._client.ask("transaction", self._operations)


class SimClient:
    """As kazoo's client, one for each session of a process.

    Args:
        zookeeper: the ensemble.
        process: whose it is.
        timeout: of its session, in seconds.
    """

    chroot = ""

    def __init__(self, zookeeper: SimZooKeeper, process: Process, timeout: float) -> None:
        self.zookeeper = zookeeper
        self.sim = zookeeper.sim
        self.process = process
        self.runtime = SimRuntime(process)
        zookeeper.clients += 1
        self.number = zookeeper.clients
        self.timeout = timeout
        self.session: Session = zookeeper.open(timeout)
        self.replica = zookeeper.replicas[0]
        self.seen = 0
        """The last commit that it has seen: no server that is behind it is good enough."""
        self.connection = 0
        """Counts connections; odd while there is one."""
        self.muted = False
        self.away = False
        """Whether no connection can be made."""
        self.closed = False
        self._listeners: list[Callable[[str], Any]] = []
        self._queue: list[tuple[SimResult, str, Any, Any]] = []
        self._pending: list[SimResult] = []
        self._data_watchers: dict[str, list[Any]] = {}
        self._child_watchers: dict[str, list[Any]] = {}
        self._arrival = self._delivery = 0.0
        self.dropped = False
        """Whether a connection broke, and requests were lost with it perhaps."""
        self._cut_at: dict[int, float] = {}
        process.on_kill.append(self._gone)
        process.on_pause.append(self._silent)
        process.on_resume.append(self._resumed)

    # What kazoo's client offers

    login_refused = None

    @property
    def client_id(self) -> tuple[int, bytes]:
        return self.session.number, b""

    def add_listener(self, listener: Callable[[str], Any]) -> None:
        self._listeners.append(listener)

    def start_async(self) -> None:
        self._try_to_connect()

    def stop(self) -> None:
        if self.closed or not self.process.alive:
            return
        self.closed = True
        self._fail(ConnectionClosedError("closed"))
        if self.connected:
            session = self.session
            self.sim.at(self._latency(), lambda: self.zookeeper.expire(session))
        else:
            self.zookeeper.silent(self.session)
        self.connection += self.connection % 2
        self._tell(KazooState.LOST)

    def close(self) -> None:
        self._queue.clear()

    def get_async(self, path: str, watch: Any = None) -> SimResult:
        return self.ask("get", path, watch)

    def get_many_async(self, paths: list[str], *, names: bool = False) -> SimResult:
        return self.ask("many names" if names else "many", paths)

    def exists_async(self, path: str, watch: Any = None) -> SimResult:
        return self.ask("exists", path, watch)

    def get_children_async(self, path: str, watch: Any = None) -> SimResult:
        return self.ask("children", path, watch)

    def sync_async(self, path: str) -> SimResult:
        return self.ask("sync", path)

    def create_async(self, path: str, data: bytes = b"", ephemeral: bool = False, sequence: bool = False) -> SimResult:
        return self.ask("write", ("create", path, data, -1, ephemeral, sequence))

    def set_async(self, path: str, data: bytes, version: int = -1) -> SimResult:
        return self.ask("write", ("set", path, data, version))

    def delete_async(self, path: str, version: int = -1) -> SimResult:
        return self.ask("write", ("delete", path, b"", version))

    def transaction(self) -> SimTransaction:
        return SimTransaction(self)

    # The connection

    @property
    def connected(self) -> bool:
        return self.connection % 2 == 1

    def ask(self, kind: str, what: Any, watch: Any = None) -> SimResult:
        """Send a request; the reply settles the result."""
        result = SimResult(self)
        if not self.process.alive:
            return result
        writes = kind in ("write", "transaction")
        self.zookeeper.writes[self.process.name] += writes
        countdown = self.zookeeper.crashes.get(self.process.name, -1) if writes else -1
        if countdown >= 2:
            self.zookeeper.crashes[self.process.name] -= 2
        elif countdown == 0:
            self.process.crash()
        if self.closed:
            result.set_exception(ConnectionClosedError("closed"))
        elif self.connected:
            self._send(result, kind, what, watch)
        else:
            self._queue.append((result, kind, what, watch))
        if countdown == 1:
            self.process.crash()
        return result

    def break_off(self) -> None:
        """The connection breaks; of what is on its way some still arrives, but no reply."""
        if not self.connected:
            return
        self.dropped = True
        self._cut_at[self.connection] = self.sim.now + self.sim.rng.choice((0.0, self.sim.rng.random() * 0.006, 1.0))
        self.connection += 1
        self.muted = False
        if self.process.alive and not self.process.paused:
            self.zookeeper.silent(self.session)
        self.process.run(self._suspended)
        self._try_to_connect()

    def mute(self, seconds: float) -> None:
        """Replies and pings are lost for so long; then the connection breaks."""
        if self.connected and not self.muted:
            self.muted = True
            self.zookeeper.silent(self.session)
            connection = self.connection
            self.sim.at(seconds, lambda: self.break_off() if self.connection == connection else None)

    def cut_off(self, seconds: float) -> None:
        """No connection for so long."""
        self.away = True
        self.break_off()
        self.sim.at(seconds, self._back)

    def _back(self) -> None:
        self.away = False

    def _gone(self) -> None:
        """Its process was killed: packets that are on their way may still arrive."""
        self._cut_at[self.connection] = self.sim.now + self.sim.rng.choice((0.0, 0.002, 1.0))
        self.connection += self.connection % 2
        self.closed = True
        if self.session.alive:
            self.zookeeper.silent(self.session)

    def _silent(self) -> None:
        if not self.closed:
            self.zookeeper.silent(self.session)

    def _resumed(self) -> None:
        if self.closed:
            return
        if not self.connected or self.muted:
            return
        if self.session.alive and self.sim.rng.random() < 0.7:
            self.zookeeper.heard(self.session)
        else:  # it finds its connection closed, a moment after its threads went on
            self.sim.at(self.sim.rng.random() * 0.05, self.break_off)

    def _suspended(self) -> None:
        if self.closed:
            return
        self._fail(ConnectionLoss())
        self._tell(KazooState.SUSPENDED)
        watchers = [*self._data_watchers.values(), *self._child_watchers.values()]
        self._data_watchers, self._child_watchers = {}, {}
        event = WatchedEvent(EventType.NONE, KeeperState.CONNECTING, None)
        for told in [watch for some in watchers for watch in some]:
            told(event)

    def _try_to_connect(self) -> None:
        self.sim.at(self.sim.rng.uniform(0.05, 0.3), lambda: self.process.run(self._connect))

    def _connect(self) -> None:
        if self.closed or self.connected:
            return
        replica = self.sim.rng.choice(self.zookeeper.replicas)
        if self.away or replica.applied < self.seen:
            self._try_to_connect()
            return
        if not self.session.alive:
            self._fail(SessionExpiredError())
            self._tell(KazooState.LOST)
            self.session = self.zookeeper.open(self.timeout)
        self.zookeeper.heard(self.session)
        self.replica = replica
        self.connection += 1
        self._arrival = self._delivery = self.sim.now
        self._tell(KazooState.CONNECTED)
        queued, self._queue = self._queue, []
        for result, kind, what, watch in queued:
            self._send(result, kind, what, watch)

    def _tell(self, state: str) -> None:
        for listener in self._listeners:
            listener(state)

    def _fail(self, error: Exception) -> None:
        for result in [*self._pending, *(entry[0] for entry in self._queue)]:
            result.set_exception(error)
        self._pending, self._queue = [], []

    # Requests

    def _latency(self) -> float:
        low, high = LATENCY
        return low + (high - low) * self.sim.rng.random() ** 2

    def _send(self, result: SimResult, kind: str, what: Any, watch: Any) -> None:
        self._pending.append(result)
        connection = self.connection
        self._arrival = max(self._arrival, self.sim.now + self._latency())
        self.sim.on(self._arrival, lambda: self._arrives(connection, result, kind, what, watch))

    def _arrives(self, connection: int, result: SimResult, kind: str, what: Any, watch: Any) -> None:
        if not self.session.alive:
            return
        if connection != self.connection and self.sim.now >= self._cut_at.get(connection, 0.0):
            return
        zookeeper, replica = self.zookeeper, self.replica
        if kind in ("write", "transaction"):
            results = zookeeper.write(self, [what] if kind == "write" else what)
            if kind == "write" and "/inbox/" in what[1] and self.sim.rng.random() < zookeeper.doubled:
                zookeeper.write(self, [what])
            index = zookeeper.commits
            answer = results if kind == "transaction" else results[0]

            self.seen = max(self.seen, index)  # a write that is refused passes through the ensemble like any other
            replica.when(self.seen, lambda: self._reply(connection, result, answer))
        elif kind == "sync":
            replica.when(zookeeper.commits, lambda: self._reply(connection, result, what))
        else:
            replica.when(self.seen, lambda: self._read(connection, result, kind, what, watch))

    def _read(self, connection: int, result: SimResult, kind: str, path: Any, watch: Any) -> None:
        replica = self.replica
        self.seen = max(self.seen, replica.applied)
        if kind == "many":
            found = [replica.nodes.get(each) for each in path]
            self._reply(connection, result, [NoNodeError() if node is None else node.data for node in found])
            return
        if kind == "many names":
            nodes = map(replica.nodes.get, path)
            names = [NoNodeError() if node is None else sorted(node.children, key=hash_of) for node in nodes]
            self._reply(connection, result, names)
            return
        node = replica.nodes.get(path)
        if watch is not None and connection == self.connection and (node is not None or kind == "exists"):
            watches = replica.child_watches if kind == "children" else replica.data_watches
            watches.setdefault(path, set()).add((self, connection))
        answer: Any
        if node is None:
            answer = None if kind == "exists" else NoNodeError()
        elif kind == "get":
            answer = node.data, Stat(node.version, node.owner)
        elif kind == "exists":
            answer = Stat(node.version, node.owner)
        else:
            answer = sorted(node.children, key=hash_of)
        self._reply(connection, result, answer, (kind, path, watch))

    def _reply(self, connection: int, result: SimResult, answer: Any, watched: Any = None) -> None:
        if connection != self.connection or self.muted or not self.process.alive:
            self.zookeeper.lost_replies += 1
            return
        self._delivery = max(self._delivery, self.sim.now + self._latency())
        self.sim.on(
            self._delivery,
            lambda: self.process.run(lambda: self._delivered(connection, result, answer, watched)),
        )

    def _delivered(self, connection: int, result: SimResult, answer: Any, watched: Any) -> None:
        if connection != self.connection or self.muted:
            self.zookeeper.lost_replies += 1
            return
        self._pending.remove(result)
        if watched is not None and watched[2] is not None:
            kind, path, watch = watched
            # As kazoo does: a watch that was asked for stands once the reply is there, and only if it could be set.
            if not isinstance(answer, Exception):
                watchers = self._child_watchers if kind == "children" else self._data_watchers
                watchers.setdefault(path, []).append(watch)
        if isinstance(answer, Exception):
            result.set_exception(answer)
        else:
            result.set(answer)

    def told(self, connection: int, kind: str, path: str) -> None:
        """A watch has fired at the server."""
        if connection != self.connection or self.muted or not self.process.alive:
            return
        self._delivery = max(self._delivery, self.sim.now + self._latency())

        def deliver() -> None:
            if connection != self.connection or self.muted:
                return
            watchers = [] if kind == EventType.CHILD else self._data_watchers.pop(path, [])
            if kind in (EventType.CHILD, EventType.DELETED):
                watchers = watchers + self._child_watchers.pop(path, [])
            event = WatchedEvent(kind, KeeperState.CONNECTED, path)
            for watch in watchers:
                watch(event)

        self.sim.on(self._delivery, lambda: self.process.run(deliver))


def hash_of(name: str) -> str:
    """An order of children on which no caller relies, the same in every run."""
    return name[::-1]
