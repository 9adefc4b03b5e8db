"""Who leads: the election, the epoch that fences, and the deadline after which a leader stops by itself.

No timeout makes a leader safe: a process that was paused wakes up and still believes that it leads. Two checks make it safe.
Every write of a leader checks ``/epoch`` (:meth:`sardonyx.zookeeper.session.ZooKeeperSession.commit`). The winner of an
election raises the epoch in the same transaction that proves that its own election node still exists. The deadline only saves
a leader that is cut off from working for nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog

from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import EpochNote
from sardonyx.runtime.clock import Signal
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.errors import Deposed, OutcomeUnknown, SessionLost, TransactionFailed
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import Check, Operation, SetIf

DEADLINE = 2 / 3
"""Part of the session timeout after which a leader without an answer stops: well before a successor can be elected."""

RENEW = 1 / 4
"""Part of the session timeout after which an idle leader asks ZooKeeper for an answer."""

log = structlog.get_logger()


class LeadershipEnded(SardonyxError):
    """The leader had no answer from ZooKeeper for too long, and stops before another one is elected."""


def identity() -> str:
    """The name of this process for people: ``host:pid``."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Leadership:
    """A won epoch. Everything that the leader writes goes through :attr:`zk` with :attr:`version`."""

    def __init__(self, zk: ZooKeeperSession, note: EpochNote, version: int) -> None:
        self.zk = zk
        self.epoch = note.epoch
        self.version = version
        """The version of ``/epoch`` that every write checks."""
        self.unlogged_leader = note.leader
        """The leader's ``host:pid``, until it is sent to the log with the first entry that is appended."""

    @property
    def deadline(self) -> float:
        """When to stop if ZooKeeper gives no answer, by the monotonic clock; it moves on with every answer."""
        return self.zk.last_answer + DEADLINE * self.zk.session_timeout

    @property
    def renewal_due(self) -> float:
        """When an idle leader should call :meth:`renew`, by the monotonic clock."""
        return self.zk.last_answer + RENEW * self.zk.session_timeout

    def check(self) -> None:
        """To be called before anything is done as leader.

        While the connection is down it waits, up to the deadline. If this process was too busy or was paused, so that the
        deadline passed with the connection standing, it asks ZooKeeper before it goes on.

        Raises:
            LeadershipEnded: the deadline passed without a connection.
            Deposed: another coordinator leads.
            SessionLost: the session ended.
        """
        if not self.zk.connected and not self.zk.wait_connected(self.deadline - self.zk.runtime.now()):
            raise LeadershipEnded(
                "SX-COORDINATOR-CUT-OFF",
                f"no answer from ZooKeeper at {self.zk.hosts} for {DEADLINE * self.zk.session_timeout:.1f} s",
                cause="the connection is down",
                fix="nothing: it stands for election again",
            )
        if self.zk.runtime.now() > self.deadline:
            self.renew()

    def commit(self, operations: Iterable[Operation]) -> None:
        """A transaction under this epoch: :meth:`check`, then :meth:`ZooKeeperSession.commit`, with the errors of both."""
        self.begin(operations)()

    def begin(self, operations: Iterable[Operation]) -> Callable[[], None]:
        """Like :meth:`commit`, without waiting: what it gives waits, and raises what :meth:`commit` raises."""
        self.check()
        failpoint("before-write")
        return self.zk.begin(operations, epoch_version=self.version)

    def renew(self) -> None:
        """Get an answer from ZooKeeper, and with it more time. Raises ``Deposed`` if the epoch is another's."""
        found = self.zk.read_version(node_paths.EPOCH)
        if found is None or found[1] != self.version:
            raise Deposed("SX-COORDINATOR-DEPOSED", "another coordinator leads now", cause="the epoch has moved on")


class Candidate:
    """One coordinator's place in the line of those who would lead. It lasts as long as the tree's session.

    Args:
        zk: the session.
        wake: makes :meth:`wait` look again; set by this object, and by whoever sets its ``stop``.
    """

    def __init__(self, zk: ZooKeeperSession, wake: Signal) -> None:
        self._zk = zk
        self._wake = wake
        self._token = zk.runtime.token()
        self._node = zk.create_sequential(node_paths.election_prefix(self._token), identity().encode(), ephemeral=True)

    def wait(self, stop: Signal) -> bool:
        """Wait until this is the first in the line; False if ``stop`` was set before.

        Raises:
            SessionLost: our place is gone.
            ZooKeeperAway: no answer for too long.
        """
        while True:
            self._wake.clear()
            if stop.is_set():
                return False
            line = sorted(self._zk.children(node_paths.ELECTION), key=_turn)
            if self._node not in line:
                raise SessionLost("SX-ZOOKEEPER-SESSION-LOST", "the place in the election is gone with its session")
            place = line.index(self._node)
            if place == 0:
                return True
            # Only the one in front is watched: when it goes, one candidate looks, not all of them.
            if self._zk.read(f"{node_paths.ELECTION}/{line[place - 1]}", watch=self._on_change) is not None:
                self._wake.wait()

    def take(self) -> Leadership:
        """Raise the epoch, in one transaction with the check that our election node still stands.

        A lost reply is not guessed at: what stands in the epoch afterwards tells whether it was us.

        Raises:
            SessionLost: our election node is gone.
            Deposed: somebody else took the epoch at the same time.
        """
        self._zk.sync()
        data, version = self._zk.read_version(node_paths.EPOCH) or (b"", 0)
        before = msgspec.json.decode(data, type=EpochNote).epoch if data else 0
        note = EpochNote(before + 1, identity(), self._token)
        encoded = msgspec.json.encode(note)
        try:
            self._zk.commit([Check(f"{node_paths.ELECTION}/{self._node}"), SetIf(node_paths.EPOCH, encoded, version)])
        except OutcomeUnknown:
            self._zk.sync()
            if self._zk.read_version(node_paths.EPOCH) != (encoded, version + 1):
                raise
        except TransactionFailed as error:
            if isinstance(error.operation, Check):
                raise SessionLost("SX-ZOOKEEPER-SESSION-LOST", "the place in the election is gone") from error
            raise Deposed("SX-COORDINATOR-DEPOSED", "another coordinator took the epoch first") from error
        log.info("leads", epoch=note.epoch, leader=note.leader)
        return Leadership(self._zk, note, version + 1)

    def _on_change(self, event: Any) -> None:
        """In kazoo's thread: only signals."""
        del event
        self._wake.set()


def _turn(node: str) -> int:
    return int(node.rpartition("-")[2])
