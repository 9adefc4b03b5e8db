"""Ends a leadership in which nothing is decided although requests wait.

A leader that lost its session, or was cut off, stops by itself (:mod:`coordinator.loop.election`). One whose loop hangs, or that
overlooks its inbox, keeps its session, and no other coordinator can take over. So another thread looks at the inbox, and ends the
session if the same request is the oldest one all the time. What such a leader still writes is refused, because the next leader
has raised the epoch.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import structlog

from coordinator.loop.leader_metrics import INBOX, INBOX_OLDEST, STEPPED_DOWN
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.names import numbered
from sardonyx.runtime.clock import REAL, Runtime, Signal

if TYPE_CHECKING:
    from coordinator.loop.leader import Leader

EVERY = 5.0
"""Seconds between two looks."""

PATIENCE = 60.0
"""Seconds for which the same request may be the oldest. Each call of the leader to ZooKeeper ends long before."""

NOTICES = 30.0
"""Seconds within which a leader notices that its session was ended. After that the process should be started again."""

log = structlog.get_logger()


class Session(Protocol):
    """What of a session with ZooKeeper is needed."""

    def children(self, path: str) -> list[str]: ...
    def close(self) -> None: ...


class Watchdog:
    """Looks after the leaderships of one coordinator.

    Args:
        leading: gives the present leadership and its session; None if this coordinator does not lead, or is taking over.
        runtime: time.
    """

    def __init__(self, leading: Callable[[], tuple[Leader, Session] | None], runtime: Runtime = REAL) -> None:
        self._leading = leading
        self._runtime = runtime
        self._leader: Leader | None = None
        """The leadership that was seen last."""
        self._oldest = ""
        self._since = self._seen = 0.0
        self._waiting = 0
        self._ended_at: float | None = None
        """When the session of that leadership was ended."""
        STEPPED_DOWN.add(0)
        INBOX.follow(lambda: self._if_leading(self._waiting))
        INBOX_OLDEST.follow(lambda: self._if_leading(self.seconds))

    def run(self, stop: Signal) -> None:
        """Look again and again until ``stop`` is set."""
        while not stop.wait(EVERY):
            self.look()

    @property
    def seconds(self) -> float:
        """For how long the oldest request was seen waiting; 0 if there is none."""
        return self._seen - self._since

    def look(self) -> None:
        """Look once, and end the session if nothing is decided."""
        found = self._leading()
        if found is None:
            self._leader, self._ended_at = None, None
            return
        leader, zk = found
        if self._ended_at is not None and leader is self._leader:
            return
        try:
            names = zk.children(node_paths.INBOX)
        except SardonyxError:  # the leader meets it as well
            return
        self._note(leader, names)
        if self.seconds > PATIENCE:
            self._end(zk)

    def hangs(self) -> str:
        """Why this process should be started again; empty if it should not.

        A leader that does not notice the end of its session waits for something that never comes.
        """
        ended, found = self._ended_at, self._leading()
        if ended is None or found is None or found[0] is not self._leader:
            return ""
        passed = self._runtime.now() - ended
        return f"the leader hangs: its session was ended {passed:.0f} s ago" if passed > NOTICES else ""

    def _note(self, leader: Leader, names: Iterable[str]) -> None:
        """Note what is in the inbox, and since when its oldest request has been there."""
        now = self._runtime.now()
        waiting = set(names) - leader.left_in_inbox
        oldest = min(waiting, key=numbered, default="")
        # After a pause of this process the time begins anew: the leader was paused as well.
        known = leader is self._leader and now - self._seen < 3 * EVERY
        if not (known and oldest and oldest == self._oldest):
            self._since = now
        if leader is not self._leader:
            self._ended_at = None
        self._leader, self._oldest, self._seen, self._waiting = leader, oldest, now, len(waiting)

    def _end(self, zk: Session) -> None:
        STEPPED_DOWN.add()
        log.error(
            "leader_decides_nothing",
            seconds=round(self.seconds),
            requests=self._waiting,
            oldest=self._oldest,
            consequence="this coordinator ends its session, and another one can lead",
            threads=_stacks(),
        )
        self._ended_at = self._runtime.now()
        zk.close()

    def _if_leading(self, value: float) -> Mapping[tuple[str, ...], float]:
        return {} if self._leading() is None else {(): value}


def _stacks() -> str:
    """Where each thread of this process stands: what is needed to find out why."""
    return "\n".join(
        f"thread {number}:\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()  # noqa: SLF001 - the only way to them
    )
