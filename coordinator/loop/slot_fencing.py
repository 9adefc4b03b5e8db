"""Ends at once what lost peers left open on Kafka.

A peer that dies or is stopped inside a transaction leaves it open. Until it ends, nobody can read past it, nor learn what its
task has committed. The peer leaves its place in the task's consumer group, too, and with it partitions that nobody reads. A peer
that takes the slot ends the transaction by opening under the slot's transactional id, and takes the place by joining as the
slot's member. If no peer takes it, the broker would wait for the transaction's timeout, and the group for the member's. So the
leader does both, in threads beside its loop, as well as it can.

Nothing depends on it. If it comes late, when a peer has just taken the slot, that peer is fenced and restarts from the committed
positions. If it is not done at all, the broker does it in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.retrying_worker import RetryingWorker

THREADS = 4
"""Slots that are fenced at a time."""

log = structlog.get_logger()


class Fencing(Protocol):
    """Ends what is open under a slot's transactional id, and its place in the group; each at any time, from any thread."""

    def fence(self, slot: Slot, spec: JobSpec) -> None: ...

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None: ...


class SlotFencer:
    """Fences slots that lost peers left.

    Args:
        fencing: how it is done.
        vacant: whether no peer holds a slot; asked right before each step, from any of the threads.
        lasting: seconds after which the broker has ended by itself whatever was open.
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

    def submit(self, n: int, slot: Slot, spec: JobSpec) -> None:
        """Fence a slot that no peer holds since entry ``n``. Does not wait."""
        self._worker.submit(slot, partial(self._fence, self._runtime.now(), n, slot, spec))

    def close(self) -> None:
        """Begin nothing more."""
        self._worker.close()

    def _fence(self, since: float, n: int, slot: Slot, spec: JobSpec, _attempt: int) -> bool:
        """Tried once: the broker ends in its own time what this could not."""
        if self._runtime.now() - since > self._lasting:
            return True
        for what, end in (("transaction", self._fencing.fence), ("membership", self._fencing.remove_static_member)):
            if not self._vacant(slot):  # asked each time, because each step may take seconds
                break
            failpoint("fence")
            try:
                end(slot, spec)
            except Exception as error:  # noqa: BLE001 - see above
                log.warning("slot_not_fenced", what=what, n=n, **slot._asdict(), error=str(error))
            else:
                log.info("slot_fenced", what=what, n=n, **slot._asdict())
        return True
