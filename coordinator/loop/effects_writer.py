"""Writes the effects of decided entries to the tree, several transactions in flight at once.

What must be durable first:

- the effects of an entry are written in one transaction with the checkpoint that covers it. If they are too many for one, each
  transaction sets the checkpoint, and only the last one gives it the entry's number;
- each transaction sets ``/checkpoint`` on condition of the version that the one before it left, so transactions in flight
  succeed only in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.loop import event_log
from coordinator.loop.leader_metrics import EFFECTS_SECONDS
from coordinator.loop.limits import DEFAULT, Limits
from coordinator.loop.pipeline import WritePipeline
from sardonyx.core.effects import TreeEffect
from sardonyx.zookeeper.transactions import TRANSACTION_LIMIT, Operation, WriteCoalescer, chunked, weight

if TYPE_CHECKING:
    from coordinator.loop.election import Leadership

_FEW = 3
"""Changes of one entry that fit into a transaction beside what was gathered before, however large each of them is."""


class CheckpointChain:
    """Each transaction sets the checkpoint, from the version that the one before it left.

    Args:
        version: how many times the checkpoint has been set.
    """

    def __init__(self, version: int = 0) -> None:
        self._version = version

    def link(self, operations: list[Operation], n: int) -> list[Operation]:
        linked = [*operations, event_log.checkpoint(n, self._version)]
        self._version = event_log.next_version(self._version)
        return linked


class EffectsWriter:
    """Gathers the effects of decided entries into transactions of a good size, and writes them.

    Args:
        leadership: whose epoch each write checks.
        checkpoint: the entry up to which the effects are in the tree.
        version: the version of ``/checkpoint``.
        limits: sizes.
    """

    def __init__(self, leadership: Leadership, checkpoint: int = 0, version: int = 0, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._pipeline = WritePipeline(
            leadership,
            "effects",
            CheckpointChain(version),
            durable=checkpoint,
            in_flight=limits.in_flight,
            seconds=EFFECTS_SECONDS,
        )
        self._gathered = WriteCoalescer()
        self._last = checkpoint

    @property
    def durable(self) -> int:
        """The entry up to which all effects are known to be in the tree."""
        return self._pipeline.durable

    @property
    def in_flight(self) -> int:
        """Transactions whose answers are still awaited."""
        return self._pipeline.in_flight

    def add(self, n: int, effects: Sequence[TreeEffect]) -> None:
        """Take in the effects of entry ``n``, all that it has on the tree. Sends a transaction whenever one is full.

        Raises:
            LeadershipEnded, Deposed, SessionLost, TransactionFailed, OutcomeUnknown: as :meth:`WritePipeline.submit`.
        """
        gathered = self._gathered
        # So few are never too many for one transaction, and most entries have fewer.
        if gathered and len(effects) > _FEW and gathered.size + sum(map(weight, effects)) > TRANSACTION_LIMIT:
            self.flush()
            gathered = self._gathered
        gathered.add(effects)
        self._last = n
        if gathered.size > self._limits.transaction:
            self.flush()

    def flush(self) -> None:
        """Send what was taken in and not sent yet, and the checkpoint with it. Raises as :meth:`add`."""
        if self._last == self._pipeline.submitted and not self._gathered:
            return
        gathered, self._gathered = self._gathered, WriteCoalescer()
        operations: list[Operation] = [*gathered.operations()]
        # Effects of several entries are at most this large together: those gathered before, and a few more.
        fits = gathered.size <= self._limits.transaction + TRANSACTION_LIMIT
        *parts, last = [operations] if fits else list(chunked([operation] for operation in operations))
        for part in parts:
            self._pipeline.submit(part)  # the checkpoint is set to what it was
        self._pipeline.submit(last, self._last)

    def drain(self) -> None:
        """Wait until everything sent is in the tree. Raises as :meth:`PendingCommit.wait`."""
        self._pipeline.drain()
