"""Slots that were left by peers that may never be heard of again: what they left open on Kafka is ended at once.

A peer that dies or is stopped inside a transaction leaves it open, and until it ends nobody can read past it, nor learn what
its task has committed. It leaves its place in the task's group, too, and with it partitions that nobody reads. Whoever takes the
slot ends the one by opening under the slot's transactional id, and has the other by joining as the slot's member. If nobody
does, the broker would wait for the transaction's timeout, and the group for the member's; so the leader does it, aside from
its loop and as well as it can.

Nothing rests on it. If it is done late, while somebody has just taken the slot, he is fenced and begins afresh from the
committed positions. If it is not done at all, the broker does it in the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.failpoints import failpoint

THREADS = 4
"""Slots that are fenced at a time."""

log = structlog.get_logger()


class Fencing(Protocol):
    """Ends what is open under a slot's transactional id, and its place in the group; each at any time, from any thread."""

    def fence(self, slot: Slot, spec: JobSpec) -> None: ...

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None: ...


class Fences:
    """Fences slots that were left, in threads of its own, which are begun when there is a first one.

    Args:
        fencing: how it is done.
        vacant: whether nobody holds a slot; asked right before each step, from any of the threads.
        lasting: seconds after which the broker has ended by itself whatever was open.
        clockwork: time and threads.
    """

    def __init__(
        self, fencing: Fencing, vacant: Callable[[Slot], bool], lasting: float, runtime: Runtime = REAL
    ) -> None:
        self._fencing = fencing
        self._vacant = vacant
        self._lasting = lasting
        self._runtime = runtime
        self._changed = runtime.condition()
        self._left: deque[tuple[float, int, Slot, JobSpec]] = deque()
        self._threads = 0
        self._closed = False

    def left(self, n: int, slot: Slot, spec: JobSpec) -> None:
        """By event ``n`` nobody holds the slot any more."""
        with self._changed:
            self._left.append((self._runtime.now(), n, slot, spec))
            if self._threads < min(THREADS, len(self._left)):
                self._runtime.spawn(f"fence-{self._threads}", self._work)
                self._threads += 1
            self._changed.notify()

    def close(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> tuple[float, int, Slot, JobSpec] | None:
        with self._changed:
            while not self._closed:
                if self._left:
                    return self._left.popleft()
                self._changed.wait()
            return None

    def _work(self) -> None:
        while (found := self._next()) is not None:
            since, n, slot, spec = found
            if self._runtime.now() - since > self._lasting:
                continue
            for what, end in (("transaction", self._fencing.fence), ("membership", self._fencing.remove_static_member)):
                if not self._vacant(slot):  # asked each time, since each may take seconds
                    break
                failpoint("fence")
                try:
                    end(slot, spec)
                except Exception as error:  # noqa: BLE001 - the broker ends it in its own time
                    log.warning(
                        "what a lost peer left is not ended yet", what=what, n=n, **slot._asdict(), reason=str(error)
                    )
                else:
                    log.info("ended what a lost peer may have left", what=what, n=n, **slot._asdict())
