"""Ends at once what lost peers left open on Kafka.

A peer that dies or is stopped inside a transaction leaves it open. Until it ends, no reader can read past it, and no
peer
can learn what its task has committed. The peer also leaves its place in the task's consumer group, with partitions that
no peer reads. A peer that takes the slot ends the transaction by opening a producer with the slot's transactional id.
It
takes the place in the group by joining as the slot's member. If no peer takes the slot, the broker waits for the
transaction's timeout and the group for the member's timeout. So the leader does both, in threads apart from its loop,
on
a best-effort basis.

Correctness does not depend on it. If the leader is late and a peer has just taken the slot, that peer is fenced and
restarts from the committed positions. If the leader does not do it at all, the broker does it after the timeouts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from coordinator.loop.leader_metrics import FENCES
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.retrying_worker import RetryingWorker

THREADS = 4
"""Slots that are fenced at a time."""

log = structlog.get_logger()


class Fencing(Protocol):
    """Ends the open transaction of a slot, and its place in the group. Each call is safe at any time, from any thread."""

    def fence(self, slot: Slot, spec: JobSpec) -> None: ...

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None: ...


class SlotFencer:
    """Fences slots that lost peers left.

    Args:
        fencing: performs both steps on Kafka.
        vacant: whether no peer holds a slot; called directly before each step, from any of the threads.
        lasting: seconds after which the broker has ended any open transaction by itself.
        runtime: time and threads.
    """

    def __init__(
        self, fencing: Fencing, vacant: Callable[[Slot], bool], lasting: float, runtime: Runtime = REAL
    ) -> None:
        self._fencing = fencing
        self._vacant = vacant
        self._lasting = lasting
        self._runtime = runtime
        self._worker = RetryingWorker("fence", threads=THREADS, runtime=runtime)

    @property
    def pending(self) -> int:
        """How many slots are still to be fenced."""
        return self._worker.pending

    def submit(self, n: int, slot: Slot, spec: JobSpec) -> None:
        """Fence a slot that no peer has held since entry ``n``. Does not wait."""
        self._worker.submit(slot, partial(self._fence, self._runtime.now(), n, slot, spec))

    def close(self) -> None:
        """Begin nothing more."""
        self._worker.close()

    def _fence(self, since: float, n: int, slot: Slot, spec: JobSpec, _attempt: int) -> bool:
        """Tried once: after its timeouts the broker ends whatever this could not."""
        if self._runtime.now() - since > self._lasting:
            return True
        for what, end in (("transaction", self._fencing.fence), ("membership", self._fencing.remove_static_member)):
            if not self._vacant(slot):  # checked each time, because each step may take seconds
                break
            failpoint("fence")
            try:
                end(slot, spec)
            except Exception as error:  # noqa: BLE001 - see above
                FENCES.add(outcome="failed")
                log.warning("slot_not_fenced", what=what, n=n, **slot._asdict(), error=str(error))
            else:
                FENCES.add(outcome="done")
                log.info("slot_fenced", what=what, n=n, **slot._asdict())
        return True
