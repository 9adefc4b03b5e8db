"""A simulated ZooKeeper ensemble and kazoo client, as far as Sardonyx uses them, with what really goes wrong.

Writes are ordered by the one that leads the ensemble; each server applies them later, and clients read from their server,
so reads can be stale. A session lives as long as it is heard of; ephemeral nodes go with it; watches fire once and are lost
with the connection. Connections break with requests on their way (done or not, the reply is lost), or fall silent before.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from tests.simulation.engine import Process, SimClockwork, SimSignal, Simulation, Waiter

LATENCY = (0.0003, 0.004)
"""Seconds between client and server, one way."""


class Node:
    __slots__ = ("children", "counter", "data", "owner", "version")

    def __init__(self, data: bytes, owner: int) -> None:
        self.data = data
        self.version = 0
        self.owner = owner
        self.children: set[str] = set()
        self.counter = 0


class Stat(NamedTuple):
    """Of kazoo's ZnodeStat what is asked for."""

    version: int
    ephemeralOwner: int  # noqa: N815 - kazoo's name
    mtime: int = 0


class Replica:
    """One server's copy of the tree."""

    def __init__(self, sim: Simulation, lag: float) -> None:
        self.sim = sim
        self.lag = lag
        self.nodes: dict[str, Node] = {"/": Node(b"", 0)}
        self.applied = 0
        self.busy_until = 0.0
        self.data_watches: dict[str, set[tuple[SimClient, int]]] = {}
        self.child_watches: dict[str, set[tuple[SimClient, int]]] = {}
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._tickets = 0

    def when(self, index: int, what: Callable[[], None]) -> None:
        """Do something as soon as so many commits have been applied here."""
        if self.applied >= index:
            what()
        else:
            self._tickets += 1
            bisect.insort(self._waiting, (index, self._tickets, what))

    def receive(self, changes: list[tuple[str, str, bytes, int]]) -> None:
        """A commit arrives, in order."""
        if not self.lag:
            self.apply(changes)
            return
        self.busy_until = max(self.busy_until, self.sim.now + self.sim.rng.random() * self.lag)
        self.sim.on(self.busy_until, lambda: self.apply(changes))

    def apply(self, changes: list[tuple[str, str, bytes, int]]) -> None:
        for kind, path, data, owner in changes:
            parent, _, name = path.rpartition("/")
            if kind == "+":
                self.nodes[path] = Node(data, owner)
                self.nodes[parent or "/"].children.add(name)
                self.nodes[parent or "/"].counter += 1
                self._fire(self.data_watches, path, EventType.CREATED)
                self._fire(self.child_watches, parent or "/", EventType.CHILD)
            elif kind == "=":
                node = self.nodes[path]
                node.data = data
                node.version += 1
                self._fire(self.data_watches, path, EventType.CHANGED)
            else:
                del self.nodes[path]
                self.nodes[parent or "/"].children.discard(name)
                self._fire(self.data_watches, path, EventType.DELETED)
                self._fire(self.child_watches, path, EventType.DELETED)
                self._fire(self.child_watches, parent or "/", EventType.CHILD)
        self.applied += 1
        while self._waiting and self._waiting[0][0] <= self.applied:
            self._waiting.pop(0)[2]()

    def _fire(self, watches: dict[str, set[tuple[SimClient, int]]], path: str, kind: str) -> None:
        for client, connection in sorted(watches.pop(path, ()), key=lambda who: who[0].number):
            client.told(connection, kind, path)


class Session:
    def __init__(self, number: int, timeout: float) -> None:
        self.number = number
        self.timeout = timeout
        self.alive = True
        self.silent_since: int = 0
        """Raised whenever it is heard of again, so that an expiry that was planned before comes to nothing."""


class SimZooKeeper:
    """The ensemble.

    Args:
        sim: time and chance.
        servers: one, or several that lag behind.
    """

    def __init__(self, sim: Simulation, servers: int) -> None:
        self.sim = sim
        self.replicas = [Replica(sim, 0.0 if servers == 1 else 0.03) for _ in range(servers)]
        self.nodes: dict[str, Node] = {"/": Node(b"", 0)}
        """The truth, as the ensemble's leader has it."""
        self.commits = 0
        self.sessions: dict[int, Session] = {}
        self._numbers = 0
        self.clients = 0
        self.doubled = 0.0
        """How often a request is put in twice."""
        self.lost_replies = 0
        self.writes: Counter[str] = Counter()
        """By process."""
        self.crashes: dict[str, int] = {}
        """Processes that are to die at a write: the half of the number counts writes, its lowest bit says on which side."""
        self.on_commit: list[Callable[[SimClient | None, list[tuple[str, str, bytes, int]], list[Any]], None]] = []
        self.on_refused: list[Callable[[SimClient, list[Any], Exception], None]] = []

    # Sessions

    def open(self, timeout: float) -> Session:
        self._numbers += 1
        self.sessions[self._numbers] = session = Session(self._numbers, timeout)
        return session

    def silent(self, session: Session) -> None:
        """Nothing is heard of it from now on: it ends by and by."""
        session.silent_since += 1
        silent = session.silent_since
        heard = self.sim.rng.random() * session.timeout / 3  # a ping may have been due

        def end() -> None:
            if session.silent_since == silent:
                self.expire(session)

        self.sim.at(session.timeout - heard, end)

    def heard(self, session: Session) -> None:
        session.silent_since += 1

    def expire(self, session: Session) -> None:
        """The session ends, and with it its ephemeral nodes."""
        if not session.alive:
            return
        session.alive = False
        owned = sorted(path for path, node in self.nodes.items() if node.owner == session.number)
        if owned:
            self._commit(None, [self._do("-", path, b"", 0) for path in owned], [])

    # Writes

    def write(self, client: SimClient, operations: list[Any]) -> list[Any]:
        """Do all or nothing; gives kazoo's results of a transaction."""
        undo: list[tuple[str, str, bytes, int, Node | None]] = []
        changes: list[tuple[str, str, bytes, int]] = []
        results: list[Any] = []
        for at, operation in enumerate(operations):
            try:
                result, change = self._try(client, operation, undo)
            except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError) as error:
                for entry in reversed(undo):
                    self._undo(entry)
                for told in self.on_refused:
                    told(client, operations, error)
                behind = len(operations) - at - 1
                return [RolledBackError() for _ in range(at)] + [error] + [RuntimeInconsistency()] * behind
            results.append(result)
            if change is not None:
                changes.append(change)
        if changes:
            self._commit(client, changes, operations)
        return results

    def _try(self, client: SimClient, operation: Any, undo: list[Any]) -> tuple[Any, Any]:
        kind, path, data, version = operation[:4]
        node = self.nodes.get(path)
        if kind == "create":
            ephemeral, sequence = operation[4:]
            parent = self.nodes.get(path.rpartition("/")[0] or "/")
            if parent is None:
                raise NoNodeError
            if sequence:
                path = f"{path}{parent.counter:010d}"
                node = self.nodes.get(path)
            if node is not None:
                raise NodeExistsError
            owner = client.session.number if ephemeral else 0
            undo.append(("+", path, b"", 0, None))
            return path, self._do("+", path, data, owner)
        if node is None:
            raise NoNodeError
        if version not in (-1, node.version):
            raise BadVersionError
        if kind == "check":
            return True, None
        if kind == "set":
            undo.append(("=", path, node.data, node.version, node))
            return Stat(node.version + 1, node.owner), self._do("=", path, data, 0)
        if node.children:
            raise NotEmptyError
        undo.append(("-", path, b"", 0, node))
        return True, self._do("-", path, b"", 0)

    def _do(self, kind: str, path: str, data: bytes, owner: int) -> tuple[str, str, bytes, int]:
        parent, _, name = path.rpartition("/")
        if kind == "+":
            self.nodes[path] = Node(data, owner)
            self.nodes[parent or "/"].children.add(name)
            self.nodes[parent or "/"].counter += 1
        elif kind == "=":
            self.nodes[path].data = data
            self.nodes[path].version += 1
        else:
            del self.nodes[path]
            self.nodes[parent or "/"].children.discard(name)
        return kind, path, data, owner

    def _undo(self, entry: tuple[str, str, bytes, int, Node | None]) -> None:
        kind, path, data, version, node = entry
        parent, _, name = path.rpartition("/")
        if kind == "+":
            del self.nodes[path]
            self.nodes[parent or "/"].children.discard(name)
            self.nodes[parent or "/"].counter -= 1
        elif kind == "=" and node is not None:
            node.data, node.version = data, version
        elif node is not None:
            self.nodes[path] = node
            self.nodes[parent or "/"].children.add(name)

    def _commit(
        self, client: SimClient | None, changes: list[tuple[str, str, bytes, int]], operations: list[Any]
    ) -> None:
        self.commits += 1
        for told in self.on_commit:
            told(client, changes, operations)
        for replica in self.replicas:
            replica.receive(changes)


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
        self.clockwork = SimClockwork(process)
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
        self._cut_at: dict[int, float] = {}
        process.on_kill.append(self._gone)
        process.on_pause.append(self._silent)
        process.on_resume.append(self._resumed)

    # What kazoo's client offers

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

    def get_many_async(self, paths: list[str]) -> SimResult:
        return self.ask("many", paths)

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
    """An order of children that is nobody's expectation, but the same in every run."""
    return name[::-1]


__all__ = ["SimClient", "SimSignal", "SimZooKeeper"]
