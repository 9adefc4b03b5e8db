"""The leader's write pipeline: transactions that ZooKeeper gets one after the other, several of them in flight at once.

What must be durable first is decided by the order of :meth:`WritePipeline.submit`: with a :class:`Chain`, ZooKeeper refuses each
transaction unless the one submitted before it succeeded. So whatever fails, is lost or is cut off, what is in ZooKeeper is a
prefix of what was submitted. Without a chain the transactions are independent of each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from coordinator.loop.limits import DEFAULT
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.transactions import Operation

if TYPE_CHECKING:
    from coordinator.loop.election import Leadership
    from sardonyx.runtime.metrics import Histogram


class Chain(Protocol):
    """Makes each transaction of a pipeline depend on the one before it."""

    def link(self, operations: list[Operation], n: int) -> list[Operation]:
        """The operations, with a condition that holds only if the transaction linked before this one succeeded.

        Args:
            operations: of the next transaction.
            n: the entry up to which the pipeline is durable once this transaction succeeds.
        """


class PendingCommit:
    """A transaction in flight. Made by :meth:`WritePipeline.submit`."""

    __slots__ = ("_finish", "_pipeline", "done", "n", "sent")

    def __init__(self, pipeline: WritePipeline, n: int, finish: Callable[[], None], sent: float) -> None:
        self.n = n
        """The entry up to which the pipeline is durable once this transaction succeeds."""
        self.done = False
        """Whether it is known to have succeeded."""
        self.sent = sent
        """When it was sent, by the monotonic clock."""
        self._pipeline = pipeline
        self._finish = finish

    def wait(self) -> None:
        """Wait for this transaction and all that were submitted before it.

        Raises:
            Deposed, TransactionFailed, OutcomeUnknown, SessionLost: as :meth:`ZooKeeperSession.commit`.
        """
        while not self.done:
            self._pipeline.wait_for_oldest()


class WritePipeline:
    """Transactions under one epoch, in the order in which they are submitted. Used by the leader's thread only.

    Args:
        leadership: whose epoch each transaction checks.
        name: of its two failpoints, ``before-<name>`` and ``after-<name>``.
        chain: makes each transaction depend on the one before it; None: they are independent.
        durable: the entry up to which everything was durable before.
        in_flight: how many may be in flight at once.
        seconds: observes how long each transaction takes.
    """

    def __init__(
        self,
        leadership: Leadership,
        name: str,
        chain: Chain | None = None,
        *,
        durable: int = 0,
        in_flight: int = DEFAULT.in_flight,
        seconds: Histogram | None = None,
    ) -> None:
        self._leadership = leadership
        self._seconds = seconds
        self._chain = chain
        self._before, self._after = f"before-{name}", f"after-{name}"
        self._most = in_flight
        self._in_flight: deque[PendingCommit] = deque()
        self.durable = durable
        """The entry up to which everything submitted is known to have succeeded."""
        self.submitted = durable
        """What :attr:`durable` is once everything submitted has succeeded."""

    @property
    def in_flight(self) -> int:
        """Transactions whose answers are still awaited."""
        return len(self._in_flight)

    @property
    def full(self) -> bool:
        """Whether :meth:`submit` would have to wait first."""
        return len(self._in_flight) >= self._most

    def submit(self, operations: Iterable[Operation], n: int = 0) -> PendingCommit:
        """Send a transaction; waits for the oldest one first if too many are in flight.

        Args:
            operations: done all together or not at all.
            n: the entry up to which the pipeline is durable once this transaction succeeds, if that is further than before.

        Raises:
            LeadershipEnded, Deposed, SessionLost: as :meth:`Leadership.check`.
            TransactionFailed, OutcomeUnknown: of the transaction that it waits for.
        """
        while self.full:
            self.wait_for_oldest()
        failpoint(self._before)
        self.submitted = max(self.submitted, n)
        wanted = list(operations)
        if self._chain is not None:
            wanted = self._chain.link(wanted, self.submitted)
        sent = self._leadership.zk.runtime.now()
        pending = PendingCommit(self, self.submitted, self._leadership.begin(wanted), sent)
        self._in_flight.append(pending)
        return pending

    def wait_for_oldest(self) -> None:
        """Wait for the transaction that has been in flight longest; nothing happens if there is none."""
        if not self._in_flight:
            return
        pending = self._in_flight.popleft()
        pending._finish()  # noqa: SLF001 - the two are one thing
        pending.done = True
        self.durable = pending.n
        if self._seconds is not None:
            self._seconds.observe(self._leadership.zk.runtime.now() - pending.sent)
        failpoint(self._after)

    def drain(self) -> None:
        """Wait until nothing is in flight. Raises what :meth:`PendingCommit.wait` raises."""
        while self._in_flight:
            self.wait_for_oldest()
