"""What the parts of a task loop share: the task, its assignment, the clients of the slot, and a background thread.

Not thread-safe: everything runs on the task's own thread, but for what :meth:`TaskSession.meanwhile` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from peer.assignment import TICK, AssignmentHandle
from peer.position_keeper import PositionKeeper
from peer.prepared_task import PreparedTask
from peer.retry_policy import RetryPolicy
from peer.slot_clients import SlotClients, open_clients
from peer.step_timer import StepTimer
from peer.timekeeper import Timekeeper
from queues.messages import Outgoing, Records, numbered
from queues.reader import Reader
from queues.transaction import TransactionalWriter
from sardonyx.core.chains import WriterChains
from sardonyx.core.errors import InternalError
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.session import ZooKeeperSession
from sentinel.election import SentinelElection

T = TypeVar("T")

OpenClients = Callable[[PreparedTask, Callable[[str, str], str], PositionKeeper | None], SlotClients]


class TaskSession:
    """One assignment of a virtual peer, from its first batch to its end, over any number of clients.

    Args:
        work: the task, ready to run.
        handle: what the coordinator allows; asked before every commit.
        zk: where votes and requests go.
        open_slot: makes the clients.
    """

    def __init__(
        self, work: PreparedTask, handle: AssignmentHandle, zk: ZooKeeperSession, open_slot: OpenClients = open_clients
    ) -> None:
        self.work = work
        self.handle = handle
        self.zk = zk
        self.clock = StepTimer()
        self.retries = RetryPolicy(work.stage.name, work.assignment.job)
        self.background = BackgroundThread(f"batch-{work.peer}")
        self.store: PositionKeeper | None = work.keeper
        """What keeps the task's positions beside Kafka, if anything does."""
        self._votes = SentinelElection(zk, work.assignment.job)
        self._open_slot = open_slot
        self.clients: SlotClients | None = None
        self.times: Timekeeper | None = None
        """In a job with clocks, or one that keeps its lineage: what this peer states."""
        self._links = {link.topic for link in work.stage.counted}
        self._lives = 0
        self._chains: WriterChains

    # --- the slot ------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether no further batch may begin: the assignment was revoked, the peer drains, or it gives the task up."""
        return self.handle.revoked or self.handle.draining or self.handle.gives_up

    def may_open(self) -> bool:
        """Wait while ZooKeeper is away: the slot may belong to another peer by now, and opening it would fence that peer.

        Returns: False if the assignment is over.
        """
        while not self.over and not self.handle.may_commit:
            self.handle.pause(TICK)
        return not self.over

    def open(self) -> None:
        """Take the slot. Raises what :func:`peer.slot_clients.open_clients` and :meth:`AssignmentHandle.confirm` do."""
        self._chains = self._new_chains()
        self.clients = self._open_slot(self.work, self._votes.leader, self.store)
        failpoint("opened")
        self.handle.confirm()
        if self.work.timed:
            work = self.work
            self.times = Timekeeper(work.stage, work.facts, self.clients, work.peer, sources=work.sources)

    def _new_chains(self) -> WriterChains:
        """The numbers of what the next producer writes. What its predecessor wrote last may be committed or not."""
        self._lives += 1
        assignment = self.work.assignment
        return WriterChains(assignment.id, assignment.slot, self._lives, self.work.peer)

    def close(self) -> None:
        """Give the slot back, if it was taken. An open transaction is left to its next holder."""
        clients, self.clients = self.clients, None
        if clients is not None:
            clients.close()
        if self.store is not None:
            self.store.abandon()

    @property
    def reader(self) -> Reader:
        return self._taken().reader

    def _taken(self) -> SlotClients:
        if self.clients is None:
            raise InternalError("SX-SLOT-CLOSED", "The task loop used the clients of a slot that it does not hold.")
        return self.clients

    @property
    def store_reached(self) -> bool | None:
        """Whether what keeps the positions beside Kafka has ever answered; None: nothing does."""
        return None if self.store is None else self.store.reached

    # --- what all parts do ---------------------------------------------------------------------------------------

    def write(
        self,
        messages: Sequence[Outgoing | Records],
        positions: dict[Partition, Position],
        writer: TransactionalWriter | None = None,
    ) -> None:
        """One transaction: messages, and the positions that they were made from. After it, earlier failures count no more.

        Args:
            messages: in their order.
            positions: at least one.
            writer: None: that of the slot. Another one writes no rows.

        Raises:
            TransactionAborted: and the other errors of :meth:`queues.transaction.TransactionalWriter.write`.
        """
        clients = self._taken()
        messages = numbered(messages, self._chains, self._links)
        (writer or clients.writer).write(messages, positions, clients.reader.group_metadata, self.clock)
        self._chains.committed()
        clients.reader.committed(positions)
        self.retries.reset()

    def meanwhile(self, work: Callable[[], T]) -> T:
        """Run something slow on another thread while this one serves the group and reads ahead.

        Raises:
            AssignmentRevoked: the work is abandoned, and nothing of it is committed.
            RuntimeError: for what would end a thread or a process; all other errors of ``work`` as they are.
        """
        future: Future[T] = self.background.submit(work)
        while True:
            try:
                return result_of(future, TICK / 2)
            except TimeoutError:
                if future.done():  # the work itself timed out
                    return result_of(future)
            self.handle.check()
            self.reader.poll(0)


def result_of(future: Future[T], timeout: float | None = None) -> T:
    """The result of a user's code. Whatever it raised is an error of the task, even what would end a thread or a process."""
    try:
        return future.result(timeout)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__} out of the task's own code: {error}") from error
