"""The exactly-once batch: read, apply, commit, and what to do when any of it goes wrong.

A batch goes through eight steps, numbered as in :meth:`TaskLoop.step`:

1. Read what is there, up to ``batch_size`` rows, or more where much is unread (:mod:`queues.batch_growth`), with positions per
   partition. If there are fewer, a batch begins no sooner than ``batch_timeout`` after the one before it. None begins while a
   queue that the task writes is full (:mod:`peer.back_pressure`).
2. Take out the sentinels; vote on each, then drop or keep it.
3. Check that ZooKeeper is connected, that the state node still grants this assignment, and that the group still gives us the
   partitions. If not, drop the batch.
4. Apply the function as a Spark micro-batch. Meanwhile serve the group and read the next batch.
5. Begin the transaction. Write the results to every sink, and again the sentinels that records have overtaken.
6. Send the positions to the transaction, with our membership in the group at this moment.
7. Commit. Nothing is visible before the commit, everything is after it. Then publish what was staged.
8. After a retriable error, repeat the call. After an abortable one, go back to the committed positions and read again. After
   any other, make a new producer and a new consumer, which learn from the broker what was committed.

An output that keeps positions itself (a database) takes rows and positions in one transaction of its own, between 5 and 6. From
then on its positions count, whatever becomes of Kafka's transaction: :mod:`sardonyx.connectors.sql.output`.

What must be durable first: splits before what is read from them; staged files before the transaction that lists them; the
drained positions before "seal?"; the sentinels before "complete!".

Steps 3 to 7 are in :mod:`peer.batch_commit`, the beginning of an input in :mod:`peer.input_split`, the end of a task in
:mod:`peer.sealing`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from peer.assignment import TICK, AssignmentHandle, RunnerLost
from peer.back_pressure import BackPressure
from peer.batch_commit import BatchCommit
from peer.batch_result import BatchDropped, Result
from peer.input_split import InputSplitter
from peer.late_publishing import LatePublisher
from peer.peer_metrics import Busy, count_failure, count_rebuild, count_uncommitted
from peer.prepared_task import PreparedTask
from peer.retry_policy import Reaction, may_pass, policy
from peer.rolling import Roller
from peer.sealing import Sealing
from peer.slot_clients import open_clients
from peer.task_session import OpenClients, TaskSession, result_of
from peer.telemetry import tell_uncommitted
from queues.batch import Batch
from queues.connectivity import reach_kafka
from queues.lost import NotLetIn
from queues.messages import Outgoing, Records
from queues.transaction_errors import RecordsRefused, TransactionAborted
from sardonyx.connectors.base import PositionsMoved
from sardonyx.core.errors import SetupError, failure_of
from sardonyx.core.events import TaskFailed, Yielded
from sardonyx.core.notes import BatchInHand, ServiceAway
from sardonyx.core.positions import Partition
from sardonyx.core.telemetry import Outcome
from sardonyx.core.text import shorten
from sardonyx.core.units import seconds
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.full_disks import without_room
from sardonyx.runtime.secret_values import unquoted
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession

log = structlog.get_logger()

_HEARD_SOON = 10.0
"""Seconds within which a peer hears that its job has ended."""

_STOPPED_WITHIN = 8.0
"""Seconds that a task's lifecycle may take to stop, before its peer goes on without waiting. It is stopped all the same."""

_PAUSE = 1.0
"""Seconds between attempts while something that the task needs is away."""
_MOST_TOLD = 500
"""Characters that a pulse holds of an error."""


class TaskLoop:
    """One virtual peer's work on one assignment, from the first batch to the seal.

    Args:
        work: the task, ready to run.
        handle: what the coordinator allows; asked before every commit.
        zk: where votes and requests go.
        open_slot: makes the Kafka clients; tests put others in their place.
    """

    def __init__(
        self, work: PreparedTask, handle: AssignmentHandle, zk: ZooKeeperSession, open_slot: OpenClients = open_clients
    ) -> None:
        self.session = TaskSession(work, handle, zk, open_slot)
        self._work = work
        self._job, self._task = work.assignment.job, work.stage.name
        self._handle = handle
        self._zk = zk
        self._retries = self.session.retries
        self._splitter = InputSplitter(self.session)
        self._batch = BatchCommit(self.session)
        self._sealing = Sealing(self.session)
        self._roller = Roller(self.session)
        self._late_publisher = LatePublisher(self.session)
        self._pressure = BackPressure(work, zk)
        self._batch_timeout = seconds(work.stage.task.batch_timeout)
        self._batch_size = work.stage.task.rows_per_batch
        self._idle_since = time.monotonic()
        self._busy = Busy(self._job, self._task)
        store = self.session.store
        self._by_shard = store is not None and store.publishes_first
        """Whether a batch, and so what it owes to Kafka, is of one shard: another peer may have each of them next."""

    def run(self) -> None:
        """Work until the assignment is revoked or drained. Report a failure to the coordinator.

        Raises:
            RunnerLost: Spark has ended. That is not a failure of the task: others take it over when this daemon's session ends.
        """
        try:
            self._start_hooks()
            while self.session.may_open():
                reason: Exception | None = None
                try:
                    self.session.open()
                    while not self.session.over:
                        self.step()
                        self._no_batch()
                except Exception as error:  # noqa: BLE001 (dealt with below, see `queues.guarded_producer`)
                    reason = error
                finally:
                    self._no_batch()
                    self.session.close()  # before anything else: otherwise its partitions would wait with us
                if reason is not None:
                    if self._policy(reason, may_restart=True) is not Reaction.RESTART:
                        raise reason
                    self._restart(reason)
            if self._handle.gives_up:
                failpoint("yield")
                self._report(Yielded(peer=self._work.peer, assignment=self._work.assignment.id))
                log.info("task_given_up")
        except Exception as error:  # noqa: BLE001 (whatever it is, the coordinator must hear of it)
            self._end(error)
        finally:
            self._busy.close()
            self._roller.close()
            self._pressure.close()
            self._work.abandon()
            self._stop_hooks()
            if self._work.shards is not None:
                self.session.background.submit(self._work.close)
            self.session.background.close()

    def step(self) -> None:
        """One batch, by the steps above. Returns also when there is nothing to do for a moment."""
        session, reader = self.session, self.session.reader
        pause: float | None = None
        failed: tuple[Outcome, str] = ("dropped", "")
        try:
            self._before_batches()
            reader.poll(0)  # what came since the last look goes with this batch, and waits for no other
            self._batch.publish_owed()
            pending = self._work.shards.due(reader.incarnations) if self._work.shards is not None else set()
            due_in = 0.0 if pending else reader.batch_due_in(self._batch_size, self._batch_timeout)
            held = self._pressure.holds
            if due_in > 0 or held:
                reader.poll(TICK if held else min(due_in, TICK))
                self._batch.between()
                self._sealing.look()
                self._give_up_if_idle(held=held)
                return
            failpoint("read")  # 1
            number = reader.number_due(pending) if self._by_shard else None
            batch = reader.cut(self._batch_size, number)  # 2
            self._add_shards(batch, [place for place in pending if number in (None, place.number)])
            self._begin(batch)
            failpoint("cut")
            if not batch.positions:  # only ends of partitions that say nothing new
                return
            self._batch.check(batch)  # 3
            failpoint("checked")
            result = session.meanwhile(lambda: self._batch.apply(batch))  # 4
            failpoint("applied")
            self._commit(batch, *result)  # 5, 6, 7
            self._handle.worked, self._handle.away = True, None
        except (TransactionAborted, RecordsRefused, BatchDropped, PositionsMoved, ZooKeeperAway) as reason:  # 8
            if isinstance(reason, RecordsRefused) and not self._work.refused.learn(reason.refusals):
                raise
            log.info("batch_dropped", cause=str(reason) or type(reason).__name__)
            failed = "dropped", str(reason) or type(reason).__name__
            refused = isinstance(reason, TransactionAborted) and not reason.passing
            pause = self._retries.refused(reason) if refused else 0.0
        except SetupError as reason:
            if not self._retries.should_retry_batch(reason, session.store_reached):
                raise
            log.warning("batch_delayed", code=reason.code, error=reason.message)
            self._waits_for(reason)
            failed = "delayed", f"{reason.code}: {reason.message}"
            pause = _PAUSE
        if pause is not None:  # not in the handlers, see `queues.guarded_producer`
            self._uncommitted(*failed)
            failpoint("rewind")
            self._drop(pause)

    def _before_batches(self) -> None:
        """What a peer has to do beside its batches."""
        self._splitter.split_if_due()
        self._roller.look()
        self._late_publisher.look()

    def _commit(self, batch: Batch, result: Result, messages: list[Outgoing | Records]) -> None:
        """Steps 5, 6 and 7."""
        try:
            self._batch.check(batch)
            self._batch.commit(batch, result, messages)
        except (TransactionAborted, RecordsRefused, BatchDropped):
            # Nothing was written, for certain; unless a database holds the batch, and owes to Kafka what lists the files.
            for sink in self._work.sinks if self.session.store is None else ():
                sink.refused()
            raise

    def _add_shards(self, batch: Batch, pending: Sequence[Partition]) -> None:
        """Have a batch also move the positions of partitions that share a shard with its own, or with those in ``pending``."""
        shards = self._work.shards
        if shards is not None and not self.session.reader.add(batch, shards.together([*batch.positions, *pending])):
            raise BatchDropped("the group has not given all partitions of its keys to this peer")

    def _begin(self, batch: Batch) -> None:
        """From here on the batch takes its time."""
        self.session.clock.start()
        self._busy.set(True)
        rows, work = sum(batch.rows.values()), self._work
        self._handle.in_hand = BatchInHand(work.assignment.id, rows, time.time(), work.starts_spark)

    def _no_batch(self) -> None:
        self._handle.in_hand = None
        self._busy.set(False)

    def _uncommitted(self, outcome: Outcome, cause: str) -> None:
        count_uncommitted(self._job, self._task, outcome)
        tell_uncommitted(self._work.peer, self._work.assignment, outcome, cause, self.session.clock.seconds)

    def _give_up_if_idle(self, *, held: bool = False) -> None:
        """Let other tasks of the job have this peer, if they have none and all that there is to read here is committed, or must
        wait until another task has read: maybe one of those.
        """
        if self._handle.away is not None and self.session.reader.worked_off:  # another peer has worked what waited
            self._handle.away = None
        now = time.monotonic()
        if not (self._handle.yields_when_idle and (held or self.session.reader.worked_off)):
            self._idle_since = now
        elif now - self._idle_since > self._handle.patience:
            self._handle.give_up()

    def _drop(self, pause: float) -> None:
        """Leave nothing of the batch, and go back to the committed positions."""
        if self.session.store is not None:
            self.session.store.abandon()
        if pause:
            self._handle.pause(pause)
        self.session.reader.recover()

    # --- when something goes wrong -------------------------------------------------------------------------------

    def _policy(self, error: Exception, *, may_restart: bool) -> Reaction:
        return policy(
            error,
            may_restart=may_restart,
            store_reached=self.session.store_reached,
            runner_alive=lambda: self._work.is_alive,
            retries_task=self._work.stage.task.on_error.then == "retry_task",
        )

    def _restart(self, reason: Exception) -> None:
        """Go on with a new producer and consumer. While Kafka is away that is not a failure: it keeps what it holds."""
        self._handle.check()
        try:
            reach_kafka(self._work.settings, explain=False)
            if self.session.store is not None:
                self.session.store.reach()
        except SetupError as away:
            log.warning("task_waits_for_service", code=away.code, error=away.message)
            self._waits_for(away)
            self._handle.pause(_PAUSE)
            return
        self._handle.away = None
        pause = _PAUSE if isinstance(reason, NotLetIn) else self._retries.rebuilt(reason)
        log.warning("task_restarted", cause=str(reason))
        count_rebuild(self._job, self._task)
        self._handle.pause(pause)

    def _waits_for(self, away: SetupError) -> None:
        """For the pulse: it tells of the first error of a code, since texts tell how long an attempt took."""
        known = self._handle.away
        if known is None or known.code != away.code:
            message = shorten(unquoted(failure_of(away)).message, _MOST_TOLD)
            since = time.time() if known is None else known.since
            self._handle.away = ServiceAway(self._work.assignment.id, away.code, message, since)

    def _end(self, error: Exception) -> None:
        """The assignment ends with this error. Raises RunnerLost if it is not the task's."""
        error = without_room(error)
        match self._policy(error, may_restart=False):
            case Reaction.STOP:
                log.debug("task_stopped", cause=type(error).__name__)
            case Reaction.LOSE_RUNNER:
                raise RunnerLost(failure_of(error).message) from error
            case Reaction.FAIL_UNLESS_ENDED:
                self._handle.pause(_HEARD_SOON)
                self._fail(error, fatal=False)
            case Reaction.FAIL_JOB:
                self._fail(error, fatal=True)
            case _:
                self._fail(error, fatal=False)

    def _fail(self, error: Exception, *, fatal: bool) -> None:
        """Report to the coordinator that the task failed. ``fatal``: the job fails at once, without another attempt."""
        if self._handle.revoked:
            log.debug("late_failure_ignored", error=str(error))
            return
        assignment = self._work.assignment
        where = {"job": assignment.job, "task": assignment.task, "peer": self._work.peer}
        failure = unquoted(failure_of(error, where=where))
        log.error("task_failed", code=failure.code, error=failure.message, fatal=fatal, exc_info=not failure.traceback)
        count_failure(self._job, self._task, failure.code, fatal=fatal)
        passing = not fatal and may_pass(error)
        self._report(
            TaskFailed(peer=self._work.peer, assignment=assignment.id, error=failure, fatal=fatal, passing=passing)
        )

    def _report(self, report: TaskFailed | Yielded) -> None:
        """Have the coordinator take the task away from this peer; without this report it would stay ours permanently."""
        while not self._handle.revoked:
            try:
                self._zk.request(report)
                return
            except ZooKeeperAway as away:
                log.warning("report_delayed", error=away.message)
                self._handle.pause(1.0)
            except SessionLost:  # then the peer itself is lost, and the task with it
                return

    # --- the task's own lifecycle --------------------------------------------------------------------------------

    def _start_hooks(self) -> None:
        """Start the task's lifecycle, on the thread on which its function runs, before anything is read."""
        hooks = self._work.hooks
        if hooks is None:
            return
        started = self.session.background.submit(lambda: self._work.give(hooks.start()))
        while not started.done():
            self._handle.check()
            self._handle.pause(TICK)
        result_of(started)
        failpoint("started")

    def _stop_hooks(self) -> None:
        """Stop it on the same thread, after what that thread still does. What never ends is not waited for."""
        hooks = self._work.hooks
        if hooks is None:
            return
        try:
            self.session.background.submit(hooks.stop).result(_STOPPED_WITHIN)
        except TimeoutError:
            log.warning("lifecycle_stop_timed_out", seconds=_STOPPED_WITHIN)
