"""The exactly-once batch: read, apply, commit, and what to do when any of it goes wrong.

A batch goes through eight steps, here and in :meth:`TaskLoop.step`:

1. read: rows up to ``batch_size``, or what came within ``batch_timeout``; positions per partition.
2. take out sentinels; vote, drop or keep each.
3. check that ZooKeeper is connected and the state node still grants this assignment, and that the group still gives us the
   partitions; if not, drop the batch.
4. apply the function as a Spark micro-batch, the group served and the next batch read meanwhile.
5. begin the transaction; write the results to every way out, and sentinels that records have overtaken.
6. send the positions to the transaction, with who we are in the group at this moment.
7. commit. Nothing is visible before it, everything is after it. What was written aside is published.
8. a retriable error: the call is repeated; an abortable one: back to the committed positions, read again; anything
   else: a new producer and a new consumer, which learn from the broker what was committed.

An output that keeps positions itself (a database) takes rows and positions in one transaction of its own between 5 and 6;
then what it holds counts, whatever becomes of Kafka's transaction: :mod:`sardonyx.connectors.sql.output`.

What must be durable first: splits before what is read from them; staged files before the transaction that lists them; the
drained positions before "seal?"; the sentinels before "complete!".
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec
import structlog

from peer.assignment import AssignmentHandle, AssignmentRevoked, RunnerLost
from peer.batch_metrics import count_batch
from peer.positioned_sink import PositionedSink
from peer.prepared_task import PreparedTask, Result, StepTimer
from peer.retry_policy import RetryPolicy
from peer.sinks import sentinel_message
from queues.admin import read_all
from queues.batch import Batch
from queues.committed import NotLetIn, ReaderLost
from queues.connectivity import reach_kafka
from queues.messages import DUE_HEADER, ROWS_HEADER, Outgoing, Records
from queues.reader import Reader
from queues.transaction import ProducerLost, TransactionAborted, TransactionalWriter
from sardonyx.connectors.base import PositionsMoved, Split
from sardonyx.core.errors import FunctionError, InputError, OutputError, SetupError, failure_of
from sardonyx.core.events import Completed, Counts, Exhausted, TaskFailed
from sardonyx.core.positions import Partition, Position, add, total
from sardonyx.core.units import seconds
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sardonyx.zookeeper.session import ZooKeeperSession
from sentinel import rules
from sentinel.election import ElectionClosed, SentinelElection

log = structlog.get_logger()

T = TypeVar("T")

_TICK = 0.05
"""Seconds between looks at the grant while there is nothing to do."""

_ASK_AGAIN = 0.25
"""Seconds between questions to the broker about partitions that others hold."""

_HEARD_SOON = 10.0
"""Seconds within which a peer hears that its job has ended."""

_STOPPED_WITHIN = 8.0
"""Seconds that a task's lifecycle may take to stop before its peer goes on without waiting; it is stopped all the same."""

_REST = 1.0
"""Seconds between attempts while something that the task needs is away."""


class BatchDropped(Exception):
    """Partitions of the batch went to somebody else; its records are read again by whoever holds them."""


class TaskLoop:
    """One virtual peer's work on one assignment, from the first batch to the seal.

    Args:
        work: the task, ready to run.
        handle: what the coordinator allows; asked before every commit.
        zk: where votes and requests go.
    """

    def __init__(self, work: PreparedTask, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        self._work = work
        self._handle = handle
        self._zk = zk
        self._votes = SentinelElection(zk, work.assignment.job)
        self._patience = seconds(work.stage.task.batch_timeout)
        self._size = work.stage.task.batch_size
        self._told = False
        self._sealed = False
        self._asked_at = 0.0
        self._retries = RetryPolicy(work.stage.name, work.assignment.job)
        self._started = time.monotonic()
        self._clock = StepTimer()
        self._aside = BackgroundThread(f"batch-{work.peer}", work.begin)
        self._store = next((sink for sink in work.sinks if isinstance(sink, PositionedSink)), None)
        self._reader: Reader
        self._writer: TransactionalWriter

    def run(self) -> None:
        """Work until the handle is gone or drained. Reports a failure to the coordinator; raises nothing of the task's.

        Raises:
            RunnerLost: Spark has ended, which is no failure of the task: others take it over when this daemon's session ends.
        """
        try:
            self._start_hooks()
            while self._may_open():
                try:
                    self._open()
                    while not self._over:
                        self.step()
                except (ProducerLost, ReaderLost, SetupError) as reason:
                    if isinstance(reason, SetupError) and not self._retries.should_reconnect(reason, self._reached):
                        raise
                    self._close()  # or its partitions would wait with us
                    self._rebuild(reason)
                finally:
                    self._close()
        except (AssignmentRevoked, SessionLost) as reason:
            log.debug("stopped", reason=type(reason).__name__)
        except ElectionClosed as error:
            self._handle.pause(_HEARD_SOON)
            self._fail(error, fatal=False)  # says nothing if the job has ended, as it should have
        except (FunctionError, InputError, OutputError) as error:
            self._fail(error, fatal=error.code != "SX-OUTPUT-FULL")  # there may be room again after the task's back-off
        except Exception as error:  # (whatever it is, the coordinator must hear of it)
            if isinstance(error, SetupError) and error.code == "SX-SPARK-LOST" and not self._work.is_alive:
                raise RunnerLost(error.message) from error
            self._fail(error, fatal=False)
        finally:
            self._work.abandon()
            self._stop_hooks()
            self._aside.close()

    def step(self) -> None:
        """One batch, by the steps above; returns too when there is nothing to do for a moment."""
        try:
            if self._must_split():
                self._split()
            self._reader.poll(0)  # what came since the last look goes with this batch, and waits for no other
            if not self._reader.ready(self._size, self._patience):
                self._reader.poll(_TICK)
                self._look_at_the_end()
                return
            failpoint("read")  # 1
            batch = self._reader.cut(self._size)  # 2
            self._clock.start()
            failpoint("cut")
            if not batch.positions:  # only ends of partitions that say nothing new
                return
            self._check(batch)  # 3
            failpoint("checked")
            result = self._meanwhile(lambda: self._apply(batch))  # 4
            failpoint("applied")
            self._check(batch)
            self._commit(batch, *result)  # 5, 6, 7
        except (TransactionAborted, BatchDropped, PositionsMoved, ZooKeeperAway) as reason:  # 8
            log.info("batch dropped, reading it again", reason=str(reason) or type(reason).__name__)
            if isinstance(reason, TransactionAborted) and not reason.passing:
                self._handle.pause(self._retries.refused(reason))
                # A record that was refused leaves a gap in the producer's numbers, for which the broker refuses the next.
                raise ProducerLost(str(reason)) from reason
            failpoint("rewind")
            self._drop()
        except SetupError as reason:
            if not self._retries.should_retry_batch(reason, self._reached):
                raise
            log.warning("waits for what the task needs, and then reads the batch again", reason=reason.message)
            self._drop(_REST)

    def _drop(self, rest: float = 0.0) -> None:
        """Leave nothing of the batch behind, and go back to what is committed."""
        if self._store is not None:
            self._store.abandon()
        if rest:
            self._handle.pause(rest)
        self._reader.recover()

    # --- the batch -----------------------------------------------------------------------------------------------

    def _apply(self, batch: Batch) -> tuple[Result, list[Outgoing | Records]]:
        """Results and the messages that carry them, made before the transaction begins: it stays open for the writes only."""
        result = self._work.apply(batch, self._clock)
        with self._clock("encode"):
            messages = [message for sink in self._work.sinks for message in sink.messages(result.table, result.failed)]
        return result, [*messages, *result.letters]

    def _commit(self, batch: Batch, result: Result, messages: list[Outgoing | Records]) -> None:
        stage = self._work.stage
        links = {link.topic: link for link in stage.ingress}
        displaced = [
            sentinel_message(links[partition.topic], partition.number, leader, self._work.peer)
            for partition, leader in batch.displaced.items()
        ]
        positions = self._positions(batch, result)
        failpoint("begin")  # 5
        outgoing = [*batch.outbox, *messages, *displaced]
        if self._store is not None:
            with self._clock("write"):
                self._commit_elsewhere(self._store, batch, positions, outgoing)
        self._write(outgoing, positions)  # 5, 6, 7
        failpoint("committed")
        if result.rows_in:
            with self._clock("publish"):
                for sink in self._work.sinks:
                    sink.committed()
            count_batch(self._work.assignment.job, stage.name, result, self._clock.seconds)
            log.debug(
                "batch committed", rows_in=result.rows_in, rows_out=result.table.num_rows, **self._clock.milliseconds()
            )
        if result.first_error:
            error, dead = result.first_error, len(result.letters)
            log.warning("records failed", skipped=result.skipped, dead=dead, first=f"{error.code}: {error.message}")
        hooks = self._work.hooks
        if hooks is not None and result.rows_in and hooks.hears_of_commits:
            self._meanwhile(lambda: hooks.after_batch(result.table.num_rows))

    def _commit_elsewhere(
        self,
        store: PositionedSink,
        batch: Batch,
        positions: dict[Partition, Position],
        outgoing: Sequence[Outgoing | Records],
    ) -> None:
        """Rows, positions and what is still to be said in Kafka, in the output's own transaction."""
        self._meanwhile(lambda: store.begin(batch.started, positions, outgoing))
        if (
            not self._handle.may_commit
        ):  # others would have to wait for the transaction's locks as long as ZooKeeper is away
            raise BatchDropped("not granted at this moment")
        self._check(batch)
        failpoint("store")
        store.commit()
        failpoint("stored")

    def _write(self, messages: Sequence[Outgoing | Records], positions: dict[Partition, Position]) -> None:
        """One transaction. When it is through, earlier troubles are over."""
        self._writer.write(messages, positions, self._reader.group_metadata, self._clock)
        self._reader.committed(positions)
        self._retries.reset()

    def _positions(self, batch: Batch, result: Result) -> dict[Partition, Position]:
        """The batch's positions with the counts as they will be. What came out is booked on one partition: the sum is exact."""
        estimated = sum(batch.rows.values())
        positions = dict(batch.positions)
        for partition, rows in batch.rows.items():
            read = rows if estimated == result.rows_in else 0
            positions[partition] = positions[partition]._replace(
                counts=add(positions[partition].counts, Counts(rows_in=read))
            )
        if batch.rows:
            first = next(iter(batch.rows))
            rest = result.rows_in if estimated != result.rows_in else 0
            made = Counts(rest, result.table.num_rows, result.skipped, len(result.letters))
            positions[first] = positions[first]._replace(counts=add(positions[first].counts, made))
        return positions

    def _check(self, batch: Batch) -> None:
        """Step 3. While ZooKeeper is away the batch waits, in the group; the fences do not depend on it. For a session and no
        longer: then others may have been given the task, and shall have the partitions.
        """
        patience = time.monotonic() + self._work.settings.zookeeper.session_timeout
        while not self._handle.may_commit:
            self._handle.check()
            if time.monotonic() > patience:
                raise ReaderLost("ZooKeeper is away for longer than a session lives")
            self._reader.poll(_TICK)
        if not self._reader.holds(batch):
            raise BatchDropped("its partitions were given to another peer")

    def _meanwhile(self, work: Callable[[], T]) -> T:
        """Run something slow on another thread while this one serves the group and reads ahead.

        If the grant goes, the work is abandoned: nothing of it is committed.
        """
        future: Future[T] = self._aside.submit(work)
        while True:
            try:
                return _result(future, _TICK / 2)
            except TimeoutError:
                if future.done():  # the work itself timed out
                    return _result(future)
            self._handle.check()
            self._reader.poll(0)

    # --- the beginning of a bounded input ------------------------------------------------------------------------

    def _must_split(self) -> bool:
        """Whether the input's splits are still to be listed, by us: nothing was ever committed for the first partition."""
        if self._work.source is None:
            return False
        first = Partition(self._work.stage.ingress[0].topic, 0)
        held = self._reader.held
        return first in held and held[first] is None

    def _split(self) -> None:
        """Write all splits and a sentinel behind them onto the task's own link, and a position that says it is done."""
        source = self._work.source
        assert source is not None  # noqa: S101 (for the type checker; _must_split has looked)
        (link,) = self._work.stage.ingress
        first = Partition(link.topic, 0)
        if self._meanwhile(lambda: read_all(self._work.settings, link.topic)):
            raise InputError(
                "SX-INPUT-POSITIONS-LOST",
                f"input {link.target} was split before, and what its readers had committed since is gone",
                cause="the job was without peers for longer than the brokers keep positions (offsets.retention.minutes)",
                fix="submit the job again; results that it has published already would otherwise come twice",
                where={"topic": link.topic},
            )
        splits = self._meanwhile(lambda: list(source.splits()))
        partitions = self._work.facts[link.name].partitions
        began = time.time()
        messages = [
            Outgoing(link.topic, msgspec.json.encode(split), number % partitions, headers=_headers(split, began))
            for number, split in enumerate(splits)
        ]
        sentinel = str(uuid.uuid4())
        ends = [sentinel_message(link, number, sentinel, self._work.peer) for number in range(partitions)]
        if not self._must_split() or not self._handle.may_commit:
            raise BatchDropped("the input is for another peer to split")
        failpoint("split")
        self._write([*messages, *ends], {first: Position(0)})
        log.info("input split", splits=len(splits))

    # --- the end of a bounded task -------------------------------------------------------------------------------

    def _look_at_the_end(self) -> None:
        """Ask "seal?" when everything is drained, and seal when told to."""
        if self._sealed or not (self._reader.idle and self._reader.member and self._handle.may_commit):
            return
        if self._handle.state == "sealing":
            if committed := self._ask_all():
                self._seal(committed)
        elif not self._told and self._exhausted():
            failpoint("exhausted")
            self._zk.request(Exhausted(peer=self._work.peer, assignment=self._work.assignment.id))
            self._told = True
            log.info("exhausted: asks whether to seal")

    def _exhausted(self) -> bool:
        held = self._reader.held
        committed = None if held else self._ask_all()
        return rules.exhausted(
            (_drained(position) for position in held.values()),
            None if committed is None else {p: _drained(position) for p, position in committed.items()},
        )

    def _ask_all(self) -> dict[Partition, Position | None] | None:
        """What the group has committed everywhere; None if that was asked a moment ago."""
        if time.monotonic() - self._asked_at < _ASK_AGAIN:
            return None
        committed = self._reader.all_committed()
        self._asked_at = time.monotonic()
        return committed

    def _seal(self, committed: dict[Partition, Position | None]) -> None:
        """Write the sentinels, if everything is drained; else go on working until it is."""
        if not rules.sealable({p: _drained(position) for p, position in committed.items()}):
            return
        drained = {p: position for p, position in committed.items() if position is not None}
        own = {p: position for p, position in drained.items() if p in self._reader.held}
        sentinel = str(uuid.uuid4())
        failpoint("seal")
        # Positions always go along, if need be those of others, unchanged: they are what fences a sealer without a group.
        self._write([message for sink in self._work.sinks for message in sink.sentinels(sentinel)], own or drained)
        failpoint("sealed")
        self._meanwhile(self._seal_sinks)
        counts = total(drained.values())
        failpoint("complete")
        self._zk.request(Completed(peer=self._work.peer, assignment=self._work.assignment.id, counts=counts))
        failpoint("completed")
        self._sealed = True
        log.info("sealed", rows_in=counts.rows_in, rows_out=counts.rows_out, skipped=counts.skipped, dead=counts.dead)

    def _seal_sinks(self) -> None:
        for sink in self._work.sinks:
            sink.sealed()

    # --- opening, closing, failing -------------------------------------------------------------------------------

    def _start_hooks(self) -> None:
        """Start the task's lifecycle, on the thread that its function runs on, before anything is read."""
        hooks = self._work.hooks
        if hooks is None:
            return
        started = self._aside.submit(lambda: self._work.function.give(hooks.start()))
        while not started.done():
            self._handle.check()
            self._handle.pause(_TICK)
        _result(started)
        failpoint("started")

    def _stop_hooks(self) -> None:
        """Stop it, behind whatever that thread still does; what never ends by itself is not waited for for ever."""
        hooks = self._work.hooks
        if hooks is None:
            return
        try:
            self._aside.submit(hooks.stop).result(_STOPPED_WITHIN)
        except TimeoutError:
            log.warning("the lifecycle cannot be stopped before its task's function returns", seconds=_STOPPED_WITHIN)

    @property
    def _over(self) -> bool:
        return self._handle.revoked or self._handle.draining

    def _may_open(self) -> bool:
        """Waits for ZooKeeper if it is away: the slot may be another's by now, whom opening would fence. False: it is over."""
        while not self._over and not self._handle.may_commit:
            self._handle.pause(_TICK)
        return not self._over

    def _open(self) -> None:
        """Take the slot: opening the writer ends what its last holder left open. The reader asks to be let in meanwhile; where
        it is to begin it asks at its first poll, when nobody else can move that any more.
        """
        work = self._work
        links = {link.name: (link, work.facts[link.name]) for link in work.stage.ingress}
        recover = None if self._store is None else self._store.recover
        self._reader = Reader(work.settings, work.group, work.member, links, self._votes.leader, self._size, recover)
        self._writer = TransactionalWriter(work.settings, work.transactional_id)
        self._writer.open()

    def _close(self) -> None:
        reader = self.__dict__.pop("_reader", None)
        if reader is not None:
            reader.close()
        writer = self.__dict__.pop("_writer", None)
        if writer is not None:
            writer.close()
        if self._store is not None:
            self._store.abandon()

    @property
    def _reached(self) -> bool | None:
        """Whether the output that keeps the positions has ever answered; None: there is none."""
        return None if self._store is None else self._store.reached

    def _rebuild(self, reason: Exception) -> None:
        """Go on with a new producer and consumer. While Kafka is away that is no failure: what it holds is safe there."""
        self._handle.check()
        try:
            reach_kafka(self._work.settings)
            if self._store is not None:
                self._store.reach()
        except SetupError as away:
            log.warning("waits for what it writes to", reason=away.message)
            self._handle.pause(_REST)
            return
        rest = _REST if isinstance(reason, NotLetIn) else self._retries.rebuilt(reason)
        log.warning("begins afresh from the committed positions", reason=str(reason))
        self._handle.pause(rest)

    def _fail(self, error: Exception, *, fatal: bool) -> None:
        if self._handle.revoked:
            log.debug("failed after the grant was gone", error=str(error))
            return
        assignment = self._work.assignment
        where = {"job": assignment.job, "task": assignment.task, "peer": self._work.peer}
        failure = failure_of(error, where=where)
        log.error("task failed", code=failure.code, error=failure.message, fatal=fatal, exc_info=not failure.traceback)
        report = TaskFailed(peer=self._work.peer, assignment=assignment.id, error=failure, fatal=fatal)
        while not self._handle.revoked:
            try:
                self._zk.request(report)
                return
            except ZooKeeperAway as away:  # without this report the task would be ours for ever
                log.warning("the failure cannot be reported yet", reason=away.message)
                self._handle.pause(1.0)
            except SessionLost:  # then the peer itself is lost, and the task with it
                return


def _result(future: Future[T], timeout: float | None = None) -> T:
    """What a user's code gave; whatever it raised is an error of the task's, even what would end a thread or a process."""
    try:
        return future.result(timeout)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__} out of the task's own code: {error}") from error


def _headers(split: Split, began: float) -> list[tuple[str, bytes]]:
    """What readers must know of a split before they read it: its rows and, of a paced input, from when on it may be read."""
    headers = [] if split.rows is None else [(ROWS_HEADER, str(split.rows).encode())]
    due = split.data.get("due")
    return headers if due is None else [*headers, (DUE_HEADER, f"{began + due:.3f}".encode())]


def _drained(position: Position | None) -> str | None:
    return None if position is None else position.drained
