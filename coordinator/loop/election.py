"""Leader election: the queue of candidates, the epoch that fences, and the deadline after which a leader stops by itself.

No timeout makes a leader safe: a process that was paused wakes up and still believes that it leads. Two checks make it safe.
Every write of a leader checks ``/epoch`` (:meth:`sardonyx.zookeeper.session.ZooKeeperSession.commit`). The winner of an
election raises the epoch in the same transaction that proves that its own election node still exists. The deadline only keeps
a leader that is cut off from working in vain.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import structlog

from coordinator.loop.event_log import in_force
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import FORMAT, OLDEST, OLDEST_RULES, RULES
from sardonyx.core.notes import CandidateNote, EpochNote
from sardonyx.core.version import VERSION
from sardonyx.runtime.clock import Signal
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.errors import Deposed, OutcomeUnknown, SessionLost, TransactionFailed
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import Check, Operation, SetIf

DEADLINE = 2 / 3
"""Fraction of the session timeout after which a leader without an answer stops: well before a successor can be elected."""

RENEW = 1 / 4
"""Fraction of the session timeout after which an idle leader asks ZooKeeper for an answer."""

log = structlog.get_logger()


class LeadershipEnded(SardonyxError):
    """The leader had no answer from ZooKeeper for too long, and stops before another one is elected."""


class TooNew(SardonyxError):
    """The log is of a newer release, so this coordinator cannot lead."""


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
        """When to stop if ZooKeeper gives no answer, by the monotonic clock. Every answer moves it on."""
        return self.zk.last_answer + DEADLINE * self.zk.session_timeout

    @property
    def renewal_due(self) -> float:
        """When an idle leader should call :meth:`renew`, by the monotonic clock."""
        return self.zk.last_answer + RENEW * self.zk.session_timeout

    def check(self) -> None:
        """Must be called before anything is done as leader.

        While the connection is down it waits, up to the deadline. If this process was busy or paused until the deadline passed,
        and is connected, it asks ZooKeeper before it goes on.

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
                fix="do nothing: this coordinator stands for election again by itself",
            )
        if self.zk.runtime.now() > self.deadline:
            self.renew()

    def commit(self, operations: Iterable[Operation]) -> None:
        """Commit a transaction under this epoch: :meth:`check`, then :meth:`ZooKeeperSession.commit`, with the errors of both."""
        self.begin(operations)()

    def begin(self, operations: Iterable[Operation]) -> Callable[[], None]:
        """Like :meth:`commit`, without waiting. The function that it returns waits, and raises what :meth:`commit` raises."""
        self.check()
        failpoint("before-write")
        return self.zk.begin(operations, epoch_version=self.version)

    def renew(self) -> None:
        """Get an answer from ZooKeeper, and with it more time. Raises ``Deposed`` if another leader raised the epoch."""
        found = self.zk.read_version(node_paths.EPOCH)
        if found is None or found[1] != self.version:
            raise Deposed("SX-COORDINATOR-DEPOSED", "another coordinator leads now", cause="it has raised the epoch")


class Candidate:
    """One coordinator's place in the queue of candidates. It lasts as long as the session.

    Args:
        zk: the session.
        wake: makes :meth:`wait` look again. Set by this object, and by the code that sets its ``stop``.
        metrics: ``host:port`` where this process serves its metrics, for others to know.
    """

    def __init__(self, zk: ZooKeeperSession, wake: Signal, metrics: str = "") -> None:
        self._zk = zk
        self._wake = wake
        self._metrics = metrics
        self._token = zk.runtime.token()
        self._node = self._stand()

    def wait(self, stop: Signal) -> bool:
        """Wait until this is the first in the queue; False if ``stop`` was set before.

        Raises:
            SessionLost: our election node is gone.
            ZooKeeperAway: no answer for too long.
        """
        while True:
            self._wake.clear()
            if stop.is_set():
                return False
            queue = sorted(self._zk.children(node_paths.ELECTION), key=_turn)
            if self._node not in queue:
                raise SessionLost("SX-ZOOKEEPER-SESSION-LOST", "the place in the election is gone with its session")
            place = queue.index(self._node)
            if place == 0:
                if not self._gives_way(queue[1:]):
                    return True
                continue
            # Only the candidate before this one is watched: when it goes, one candidate looks, not all of them.
            if self._zk.read(f"{node_paths.ELECTION}/{queue[place - 1]}", watch=self._on_change) is not None:
                self._wake.wait()

    def _gives_way(self, others: Sequence[str]) -> bool:
        """Stand again, after the others, if one of them is of an older release that can still lead: what this one would write
        it could not read.

        Raises:
            TooNew: this release cannot read the log, or does not know its rules.
        """
        found = in_force(self._zk)
        if found.format > FORMAT or found.rules > RULES:
            raise TooNew(
                "SX-VERSION-COORDINATOR",
                f"this coordinator cannot lead: the log has format {found.format} and rules {found.rules}, and release {VERSION} "
                f"reads formats {OLDEST} to {FORMAT} and knows rules {OLDEST_RULES} to {RULES}",
                cause="a newer release of Sardonyx leads the deployment, or has led it",
                fix="upgrade this installation to that release; `sardonyx upgrade --check` shows who runs which",
            )
        if found.format == FORMAT:  # an older release cannot lead any more
            return False
        older = [note for note in _notes(self._zk, others) if OLDEST <= note.format < FORMAT]
        if not older:
            return False
        self._zk.delete(f"{node_paths.ELECTION}/{self._node}")
        self._node = self._stand()
        log.info("election_left_to_older_release", candidate=older[0].name, format=older[0].format)
        return True

    def _stand(self) -> str:
        prefix = node_paths.election_prefix(self._token)
        note = CandidateNote(identity(), VERSION, FORMAT, RULES, self._metrics)
        return self._zk.create_sequential(prefix, msgspec.json.encode(note), ephemeral=True)

    def take(self) -> Leadership:
        """Raise the epoch, in one transaction with the check that our election node still exists.

        If the reply is lost, the epoch is read: it holds a token that tells whether we raised it.

        Raises:
            SessionLost: our election node is gone.
            Deposed: another coordinator raised the epoch at the same time.
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
            raise Deposed("SX-COORDINATOR-DEPOSED", "another coordinator raised the epoch first") from error
        log.info("leader_elected", epoch=note.epoch, leader=note.leader)
        return Leadership(self._zk, note, version + 1)

    def _on_change(self, event: Any) -> None:
        """In kazoo's thread: only signals."""
        del event
        self._wake.set()


def known_rules(zk: ZooKeeperSession) -> int:
    """The newest rules that all coordinators know which stand for election. Those that are too old to lead do not count."""
    standing = _notes(zk, zk.children(node_paths.ELECTION))
    return min([RULES, *(note.rules for note in standing if note.rules >= OLDEST_RULES)])


def _notes(zk: ZooKeeperSession, names: Iterable[str]) -> list[CandidateNote]:
    found = zk.read_many(f"{node_paths.ELECTION}/{name}" for name in names)
    return [CandidateNote.read(data) for data in found.values()]


def _turn(node: str) -> int:
    return int(node.rpartition("-")[2])
