"""What the coordinator allows a virtual peer to do right now; the one thing its two threads share."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.core.events import Assignment, PeerState
from sardonyx.runtime.clock import REAL, Runtime

WORKING: frozenset[str] = frozenset({"active", "waiting", "sealing"})
"""States in which a peer may commit for its task."""


class AssignmentRevoked(Exception):
    """The assignment was taken away, or the peer is to leave: stop without committing anything more."""


class RunnerLost(Exception):
    """What tasks are run with has ended (Spark's JVM): no fault of the task, and this daemon can run none before it is back."""


class AssignmentHandle:
    """One assignment, for as long as the peer's state node says that it stands.

    The follower sets it, the task loop asks. It is an optimisation and a courtesy, never the fence: what keeps a peer
    that has lost its task from committing is its slot's transactional id and its place in the consumer group.

    Args:
        assignment: what was granted.
        connected: whether ZooKeeper is connected; while it is not, the grant stands but nothing may be committed on it.
        clockwork: time and threads.
    """

    def __init__(self, assignment: Assignment, connected: Callable[[], bool], runtime: Runtime = REAL) -> None:
        self.assignment = assignment
        self._connected = connected
        self._changed = runtime.condition()
        self._state: PeerState = "active"
        self._revoked = False
        self._draining = False

    @property
    def state(self) -> PeerState:
        """active, waiting or sealing."""
        return self._state

    @property
    def revoked(self) -> bool:
        return self._revoked

    @property
    def may_commit(self) -> bool:
        """Whether something may be committed now."""
        return not self._revoked and self._connected()

    @property
    def draining(self) -> bool:
        """Whether the peer leaves after the batch in hand."""
        return self._draining

    def update(self, state: PeerState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def drain(self) -> None:
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def revoke(self) -> None:
        with self._changed:
            self._revoked = True
            self._changed.notify_all()

    def pause(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds, less if the grant changes."""
        with self._changed:
            if not self._revoked:
                self._changed.wait(timeout)

    def check(self) -> None:
        """Raises :class:`AssignmentRevoked` if it is."""
        if self._revoked:
            raise AssignmentRevoked
