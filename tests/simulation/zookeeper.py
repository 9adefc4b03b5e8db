"""A simulated ZooKeeper ensemble, as far as Sardonyx uses it.

Writes are ordered by the one that leads the ensemble; each server applies them later, and clients read from their server,
so reads can be stale. A session lives as long as it is heard of; ephemeral nodes go with it; watches fire once and are lost
with the connection. Connections break with requests on their way (done or not, the reply is lost), or fall silent before.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType

from tests.simulation.engine import Simulation

if TYPE_CHECKING:
    from tests.simulation.client import SimClient


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
        self.on_refused: list[Callable[[SimClient, list[Any], int, Exception], None]] = []

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
                    told(client, operations, at, error)
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
