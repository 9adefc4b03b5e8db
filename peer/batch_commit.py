"""Steps 3 to 7 of a batch (:mod:`peer.task_loop`): check, apply the function, write and commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from peer.assignment import TICK
from peer.batch_result import BatchDropped, Result, positions_after
from peer.made_from import origin_of, saying, worked_by
from peer.peer_metrics import count_batch, count_restore
from peer.position_keeper import PositionKeeper
from peer.sinks import sentinel_message
from peer.telemetry import tell_committed
from queues.batch import Batch
from queues.lost import ReaderLost
from queues.messages import Outgoing, Records
from sardonyx.core.batch_origins import Origin, encode
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.failpoints import failpoint
from sardonyx.state.release import holds_rows
from sardonyx.state.times import InForce

if TYPE_CHECKING:
    from peer.task_session import TaskSession

log = structlog.get_logger()


class BatchCommit:
    """From a batch that was read to its commit.

    Args:
        session: of the assignment.
    """

    def __init__(self, session: TaskSession) -> None:
        self._session = session
        self._work = session.work
        self._clock = session.clock

    def check(self, batch: Batch) -> None:
        """Step 3. While ZooKeeper is away the batch waits, and its peer stays in the group; the fences do not depend on it.

        It waits no longer than a ZooKeeper session lives: after that others may have the task, and must get the partitions.

        Raises:
            AssignmentRevoked: the task is another peer's.
            BatchDropped: the partitions are.
            ReaderLost: ZooKeeper was away for too long.
        """
        session = self._session
        deadline = time.monotonic() + self._work.settings.zookeeper.session_timeout
        while not session.handle.may_commit:
            session.handle.check()
            if time.monotonic() > deadline:
                raise ReaderLost("ZooKeeper is away for longer than a session lives")
            session.reader.poll(TICK)
        if not session.reader.holds(batch):
            raise BatchDropped("its partitions were given to another peer")

    def apply(self, batch: Batch) -> tuple[Result, list[Outgoing | Records]]:
        """Step 4: the results, and the messages that carry them. Runs on the background thread.

        The messages are made here, before the transaction begins, so that it stays open for the writes only.
        """
        result = self._work.apply(batch, self._clock)
        with self._clock("encode"):
            messages = [message for sink in self._work.sinks for message in sink.messages(*_parts(result))]
            if self._work.loop is not None:
                messages = self._work.loop.leaving(messages, batch.hops)
        state = [] if result.planned is None else result.planned.messages
        made = [*messages, *result.letters, *state]
        if self._work.sources is not None:
            work, origin = self._work, self._made_from(batch, result)
            results = self._made_from(batch, result, held=True) if holds_rows(work.stage.task) else None
            made = saying(made, work.stage, origin, work.assignment.job, results)
        return result, made

    def commit(self, batch: Batch, result: Result, messages: list[Outgoing | Records]) -> None:
        """Steps 5, 6 and 7: write everything in one transaction, commit it, then publish what was staged."""
        links = {link.topic: link for link in self._work.stage.ingress}
        displaced = [
            sentinel_message(
                links[partition.topic], partition.number, leader, self._work.peer, stopped=partition in batch.stopped
            )
            for partition, leader in batch.displaced.items()
        ]
        work = self._work
        positions = positions_after(work.stage, batch, result, messages, work.facts, work.checkpoint_every)
        times = self._session.times
        statements = [] if times is None else times.after_batch(positions)
        failpoint("begin")  # 5
        outgoing = [*batch.outbox, *messages, *displaced, *statements]
        if self._changes_nothing(batch, positions, outgoing):
            self._work.state_committed()
            self._committed(batch, result)
            return
        if self._session.store is not None:
            positions = self._session.store.numbered(positions)
            with self._clock("write"):
                self._commit_to_store(self._session.store, batch, positions, outgoing)
        self._session.write(outgoing, positions)  # 5, 6, 7
        if times is not None:
            times.committed()
        failpoint("apply-state")
        if self._work.shards is not None:  # a task without state has no such step
            with self._clock("state"):
                self._work.state_committed()
        failpoint("committed")
        self._work.refused.committed()
        self._committed(batch, result)

    def _changes_nothing(self, batch: Batch, positions: dict[Partition, Position], outgoing: Sequence[Any]) -> bool:
        """Whether a batch that only brought the state of its partitions up has found nothing to do."""
        held = self._session.reader.held
        nothing = self._work.shards is not None and not batch.rows and not outgoing
        return nothing and all(held.get(partition) == position for partition, position in positions.items())

    def between(self) -> None:
        """Commit what the clocks of the task call for while there is nothing to read."""
        times, session = self._session.times, self._session
        if times is None or not (session.handle.may_commit and session.reader.member):
            return
        if session.store is not None and not session.store.publishes_first:
            return
        due = times.between_batches()
        if due is not None:
            session.write(*due)
            times.committed()

    def publish_owed(self) -> None:
        """Write what earlier batches still owe to Kafka, where that comes before anything else: each shard with its positions.

        Raises:
            BatchDropped: the group has not given all partitions of a shard to this peer.
        """
        session = self._session
        owed = session.reader.owed() if session.store is not None and session.store.publishes_first else {}
        links = [link.topic for link in self._work.stage.ingress]
        for number in sorted({partition.number for partition in owed}):
            shard = [Partition(topic, number) for topic in links]
            if not all(partition in session.reader.held for partition in shard):
                raise BatchDropped("the group has not given all partitions of its keys to this peer")
            if not (session.handle.may_commit and session.reader.member):
                raise BatchDropped("nothing may be committed at this moment")
            starts = [(partition, owed[partition]) for partition in shard if partition in owed]
            messages = [message for _, start in starts for message in start.outbox]
            failpoint("owed")
            session.write(messages, {p: start.position for p, start in starts if start.position is not None})
            failpoint("paid")

    def _commit_to_store(
        self,
        store: PositionKeeper,
        batch: Batch,
        positions: dict[Partition, Position],
        outgoing: Sequence[Outgoing | Records],
    ) -> None:
        """Commit the batch, its positions and the outbox where they are kept beside Kafka, and before Kafka does."""
        self._session.meanwhile(lambda: store.begin(batch.started, positions, outgoing))
        # Otherwise others would wait for the locks of this transaction for as long as ZooKeeper is away.
        if not self._session.handle.may_commit:
            raise BatchDropped("nothing may be committed at this moment")
        self.check(batch)
        failpoint("store")
        # What is slow to answer, such as a database that waits for its replica, must not put this peer out of the group.
        self._session.meanwhile(store.commit)
        failpoint("stored")
        # The next holder of its partitions, maybe this peer again, writes what the batch owes to Kafka.
        if not self._session.reader.holds(batch):
            raise BatchDropped("its partitions were given to another peer after its commit")

    def _made_from(self, batch: Batch, result: Result, *, held: bool = False) -> Origin:
        """What a batch was made from, of a job that keeps its lineage. ``held``: and of rows that its shards held before."""
        work = self._work
        since = result.planned.since if held and result.planned is not None else None
        return origin_of(work.stage, batch, work.facts, result.rows_in, worked_by(work), since)

    def _publish(self) -> None:
        for sink in self._work.sinks:
            if sink.may_hang:
                self._session.meanwhile(sink.committed)
            else:
                sink.committed()

    def _committed(self, batch: Batch, result: Result) -> None:
        """After the commit: publish, count, and tell the hooks."""
        job, task = self._work.assignment.job, self._work.stage.name
        rows_out, dead = result.table.num_rows, len(result.letters)
        if result.rows_in or rows_out:
            self._session.reader.made(batch, rows_out, result.size)
            with self._clock("publish"):
                self._publish()
            count_batch(job, task, result, self._clock.seconds, batch.oldest)

            def made_from() -> str:
                origin = None if self._work.sources is None else encode(self._made_from(batch, result))
                return "" if origin is None else origin.decode()

            tell_committed(self._work.peer, self._work.assignment, result, self._clock.seconds, made_from)
            log.debug("batch_committed", rows_in=result.rows_in, rows_out=rows_out, **self._clock.milliseconds())
        else:
            count_restore(job, task, self._clock.seconds)
        if result.first_error:
            error = result.first_error
            log.warning("records_failed", skipped=result.skipped, dead=dead, code=error.code, error=error.message)
        hooks = self._work.hooks
        if hooks is not None and result.rows_in and hooks.hears_of_commits:
            self._session.meanwhile(lambda: hooks.after_batch(rows_out))


def _parts(result: Result) -> tuple[pa.Table, pa.Table | None, pa.Table | None, InForce]:
    """What sinks are given of a result."""
    return result.table, result.failed, None if result.planned is None else result.planned.late_results, result.in_force
