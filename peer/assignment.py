"""What the coordinator allows a virtual peer to do right now. The two threads of the peer share nothing else."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.core.events import PeerState, Yields
from sardonyx.core.notes import Assignment, BatchInHand, ServiceAway
from sardonyx.runtime.clock import REAL, Runtime

WORKING: frozenset[str] = frozenset({"active", "waiting", "sealing"})
"""States in which a peer may commit for its task."""


PATIENCE = 0.5
"""Seconds without anything to read after which a peer gives its task up, if another task of its job has no peer."""


TICK = 0.05
"""Seconds between looks at the assignment while there is nothing to do."""


class AssignmentRevoked(Exception):
    """The assignment was taken away: stop without committing anything more."""


class RunnerLost(Exception):
    """Spark's JVM has ended. The task is not at fault, and this daemon can run none that needs Spark before Spark is back."""


class AssignmentHandle:
    """One assignment, for as long as the peer's state node grants it.

    The virtual peer sets it, the task loop asks it. It is an optimisation, never the fence: the slot's transactional id and the
    place in the consumer group are what keeps a peer that has lost its task from committing.

    Args:
        assignment: what was granted.
        connected: whether ZooKeeper is connected; while it is not, the assignment stands but nothing may be committed for it.
        runtime: time and threads.
        patience: seconds without anything to read after which the peer gives the task up, if another task has no peer.
        stands: asks ZooKeeper whether the state node grants the assignment, up to the last write; None: ZooKeeper is away.
    """

    def __init__(
        self,
        assignment: Assignment,
        connected: Callable[[], bool],
        runtime: Runtime = REAL,
        *,
        patience: float = PATIENCE,
        stands: Callable[[], bool | None] = lambda: True,
    ) -> None:
        self.assignment = assignment
        self.patience = patience
        self.worked = False
        """Whether a batch was committed for it."""
        self._connected = connected
        self._stands = stands
        self._changed = runtime.condition()
        self._state: PeerState = "active"
        self._revoked = False
        self._draining = False
        self._yields: Yields = ""
        self._gives_up = False
        self.in_hand: BatchInHand | None = None
        """The batch on which the task loop works. That thread sets it; the peer's own thread tells of it if it takes long."""
        self.away: ServiceAway | None = None
        """What the task loop waits for, in the same way."""

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
        """Whether the peer leaves after the present batch."""
        return self._draining

    @property
    def yields_when_idle(self) -> bool:
        """Whether the peer is to give the task up as soon as it has nothing to read."""
        return self._yields == "idle" and self._state != "sealing"

    @property
    def gives_up(self) -> bool:
        """Whether the peer gives the task up after the present batch, so that it can work elsewhere. It never takes that back:
        the task's loop ends by it.
        """
        if self._yields in ("turn", "share") and self._state != "sealing":
            self._gives_up = True
        return self._gives_up

    def give_up(self) -> None:
        """Give the task up, because there is nothing to read."""
        self._gives_up = True

    def update(self, state: PeerState, yields: Yields = "") -> None:
        with self._changed:
            self._state = state
            self._yields = yields
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
        """Wait up to ``timeout`` seconds, less if the assignment changes."""
        with self._changed:
            if not self._revoked:
                self._changed.wait(timeout)

    def confirm(self) -> None:
        """Make sure that the assignment still stands, now that the peer holds a producer. Waits while ZooKeeper is away.

        A coordinator that changes a job takes the assignments away first, and then fences the slots. So a producer that was there
        when its assignment still stood is fenced, and no other one commits anything.

        Raises:
            AssignmentRevoked: it was taken away, even if the peer has not read that yet.
            SessionLost: the session has ended.
        """
        while True:
            self.check()
            stands = self._stands()
            if stands:
                return
            if stands is False:
                raise AssignmentRevoked
            self.pause(TICK)

    def check(self) -> None:
        """Raises :class:`AssignmentRevoked` if it was."""
        if self._revoked:
            raise AssignmentRevoked
