"""A task that is ready to run. A virtual peer prepares all that the task needs before it accepts the assignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from peer import gc_policy
from peer.batch_result import Result
from peer.failed_records import Failed, error_of, late_letters, origin_of, refused, sort_out, unfit
from peer.lifecycle import Hooks
from peer.loops import Loop
from peer.operators import LATE_PREFIX
from peer.position_keeper import PositionKeeper
from peer.provenance import Provenance
from peer.refused_records import RefusedRecords
from peer.row_times import have_same_times, without_bad_times
from peer.shards import Shards
from peer.sinks import LinkSink, Sink
from peer.step_timer import StepTimer
from peer.topic_rows import Formats, read_topic
from queues import block
from queues.batch import Batch
from queues.batch_growth import MOST_ROWS
from sardonyx.connectors import registry
from sardonyx.connectors.base import PositionsMoved, Split, SplitInput, read_split
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.column_types import UnfitTypes, together
from sardonyx.core.errors import InputError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, Stage
from sardonyx.core.link_counts import LinkTally, Positions
from sardonyx.core.notes import Assignment
from sardonyx.core.positions import Partition
from sardonyx.core.settled_types import SettledTypes
from sardonyx.core.source_fronts import Sources
from sardonyx.core.topics_anew import other_topics, recreated
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.lazy import lazy_module
from sardonyx.runtime.settings import Settings
from sardonyx.state.times import NOT_KNOWN, InForce
from spark_tasks.applied import Applied, Function, NoFunction

if TYPE_CHECKING:
    from queues import audit, group_clocks, topic_ids, totals, unread_rows
    from queues.unread_rows import UnreadRows
    from spark_tasks import read_splits, workarounds
    from spark_tasks.code import CodeBundle
    from spark_tasks.graphs import GraphFunctions
    from spark_tasks.keyed import KeyedFunctions
    from spark_tasks.on_demand import TaskSpark
else:  # Kafka's client and Spark: a job that a test runs in its own process needs neither, if it has no functions
    audit, group_clocks, totals, unread_rows = map(
        lazy_module, ("queues.audit", "queues.group_clocks", "queues.totals", "queues.unread_rows")
    )
    topic_ids = lazy_module("queues.topic_ids")
    read_splits, workarounds = map(lazy_module, ("spark_tasks.read_splits", "spark_tasks.workarounds"))


@dataclass
class _Rows:
    """The messages of a batch, decoded to rows."""

    table: pa.Table
    provenance: Provenance
    unread: list[Failed]
    clocks: dict[Partition, SourceClock]
    in_force: InForce


@dataclass
class _Done:
    """The results and failed records of a batch, from the task's function."""

    table: pa.Table
    rows_in: int
    failed: list[Failed]
    provenance: Provenance
    """Where the rows came from that the function got."""
    clocks: Mapping[Partition, SourceClock] = field(default_factory=dict)
    in_force: InForce = NOT_KNOWN


@dataclass(eq=False)
class PreparedTask:
    """A task as one virtual peer runs it. :func:`peer.preparation.prepare` creates it."""

    settings: Settings
    peer: str
    assignment: Assignment
    stage: Stage
    facts: dict[str, LinkFacts]
    function: Function
    spark: TaskSpark | None
    """None: the task has no function, and reads no splits on Spark's workers."""
    sinks: list[Sink]
    source: SplitInput | None
    """The connector of an input task that reads splits; None for other tasks."""
    isolate: bool = False
    """Whether the task finds each failed record separately; otherwise the first failure ends the job."""
    hooks: Hooks | None = None
    """The hooks of the task's lifecycle, if it has one."""
    timed: bool = False
    """Whether statements go through its links: the job has clocks, or keeps its lineage."""
    bounded: bool = False
    """Whether the job ends."""
    sources: Sources | None = None
    """If the job keeps its lineage: its sources."""
    shards: Shards | None = None
    """The state of the task, if it has any."""
    within: KeyedFunctions | GraphFunctions | None = None
    """The functions that run while the state is planned; ``function`` is then only of the tasks that are fused to it."""
    keeper: PositionKeeper | None = None
    """What keeps its positions beside Kafka, if anything does."""
    writers: Mapping[str, Stage] = field(default_factory=dict)
    """By internal link that it reads, the task that writes it."""
    loop: Loop | None = None
    """The loop that it is in, if it is in one."""
    runtime: Runtime = REAL
    """Tells the time of rows that have none of their own."""
    bounds: Mapping[str, int] = field(default_factory=dict)
    """By link that it writes and that holds it when it is full: how many rows that is."""
    readers: Mapping[str, Stage] = field(default_factory=dict)
    """By such a link, the task that reads it."""
    goes_on: bool = False
    """Whether its job neither ends by itself nor is being stopped."""
    checkpoint_every: int | None = None
    """How far the checkpoints of its job are apart, in microseconds; None: it has none."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The ids of the users' topics that it reads, where they are known."""
    code: CodeBundle | None = None
    """What the job brings along: connectors, conditions and stores of its own need it in this process, also without Spark."""

    def __post_init__(self) -> None:
        if self.code is not None:
            self.code.users.add(self)
        self.refused = RefusedRecords(self.stage, self.sinks)
        self._formats = Formats(self.settings.kafka.registry)
        self._split_types = SettledTypes()

    def written(self) -> dict[str, int | None]:
        """Return how many rows were written to each internal link that the task reads: see :func:`queues.totals.written_to`."""
        return totals.written_to(self.settings, self.assignment.job, self.writers, self.facts)

    def check_topics(self) -> None:
        """Check that the topics are those that the task has read: Kafka may have been away, or the task without a peer, for long.

        Raises:
            InputError: ``SX-INPUT-RECREATED``.
        """
        now = topic_ids.topic_ids(self.settings, self.topics) if self.topics else {}
        for topic in sorted(other_topics(self.topics, now)):
            task, fix = self.stage.name, "Submit the job again with the `start=` that you want."
            raise recreated(topic, f"task {task}", fix, {"task": task, "topic": topic})

    def loop_positions(self, loop: Loop) -> dict[str, Positions]:
        """What the stages of its loop have committed: see :func:`queues.totals.loop_positions`."""
        return totals.loop_positions(self.settings, self.assignment.job, loop.graph, loop.cycle)

    def audited(self, loop: Loop) -> dict[str, LinkTally]:
        """Whether rows were lost on the links of its loop: see :func:`queues.audit.audit`."""
        return audit.audit(self.settings, loop.graph, self.assignment.job, self.facts)

    def unread_rows(self) -> UnreadRows:
        """Return what asks how many rows are unread on the links that have bounds."""
        return unread_rows.UnreadRows(self.settings, self.assignment.job, self.stage, self.readers, self.facts)

    @property
    def most_rows(self) -> int:
        """How many rows a batch has at most where much is unread. 0: no more than others, since the user has said how many.

        Otherwise one batch could fill a queue far over its bound, since a task looks at the queue before the batch.
        """
        if self.stage.task.batch_size is not msgspec.UNSET:
            return 0
        return min([MOST_ROWS, *(bound // 4 for bound in self.bounds.values())])

    @property
    def group(self) -> str:
        return self.stage.group(self.settings.deployment, self.assignment.job)

    @property
    def member(self) -> str:
        return self.stage.member(self.assignment.slot)

    @property
    def transactional_id(self) -> str:
        return self.stage.transactional_id(self.settings.deployment, self.assignment.job, self.assignment.slot)

    @property
    def is_alive(self) -> bool:
        """Whether Spark still works, as far as the task needs it."""
        return self.spark is None or self.spark.is_alive

    @property
    def starts_spark(self) -> bool:
        """Whether the task's next batch has to wait until Spark has started."""
        return self.spark is not None and self.spark.starts

    def _positions_moved(self, batch: Batch) -> bool:
        """Whether the group has committed other positions than those that a batch begins at."""
        sizes = {link.topic: self.facts[link.name].partitions for link in self.stage.ingress}
        now = group_clocks.committed_by(self.settings, self.stage, self.assignment.job, sizes)
        reached = {partition: None if position is None else position.offset for partition, position in now.items()}
        return any(reached[partition] != started for partition, started in batch.started.items())

    def state_committed(self) -> None:
        """Apply what the shards have planned: it is committed."""
        if self.shards is not None:
            self.shards.committed()

    def close(self) -> None:
        """The assignment is over. Runs on the thread that :meth:`apply` runs on, after its last call."""
        if self.shards is not None:
            self.shards.close()

    def give(self, more: Mapping[str, Any]) -> None:
        """Give the task's function further keyword arguments, which come from its lifecycle. Raises FunctionError."""
        (self.within or self.function).give(more)

    def abandon(self) -> None:
        """No batch comes any more. Cancel the Spark work of this task: no result is needed, and other tasks need the cores."""
        self.function.abandon()
        if self.within is not None:
            self.within.abandon()
        if self.spark is not None:
            self.spark.cancel()
        if self.code is not None:
            self.code.let_go(self)

    def apply(self, batch: Batch, clock: StepTimer) -> Result:
        """Decode messages to rows and run the task's function. It changes nothing outside this process and Spark.

        Raises:
            InputError: the messages do not have the format that the job declares.
            FunctionError: the user's function raised, and the task's ``on_error`` is to fail.
        """
        if self.loop is not None and self.loop.is_beyond(batch.hops):
            return self._beyond(self.loop, batch, clock)
        if self.shards is not None:
            return self._through_shards(self.shards, batch, clock)
        done = self._read_and_apply(batch, clock) or self._decode_and_apply(batch, clock)
        table, refused = self.refused.left_out(done.table, done.provenance)
        ways = sort_out(self.stage, self.sinks, [*done.failed, *refused])
        return Result(
            table,
            done.rows_in,
            ways.skipped,
            ways.first_error,
            ways.failed,
            ways.letters,
            done.clocks,
            done.in_force._replace(of_rows=None) if refused else done.in_force,
        )

    def _through_shards(self, shards: Shards, batch: Batch, clock: StepTimer) -> Result:
        """Let the task's operator have the rows. Functions are given its results: of windows, what those that close hold."""
        within = self.within
        if within is not None:
            within.worked = within.waited = 0.0
        if within is not None and self.hooks is not None and batch.rows:  # its function runs while the state is planned
            self.hooks.before_batch(sum(batch.rows.values()))
        with clock("state"):
            try:
                planned = shards.plan(batch)
            except InputError as error:  # another peer may have gone on, and what this one needs of the log is deleted
                if self._positions_moved(batch):
                    raise PositionsMoved("another peer has the state of these partitions") from error
                raise
        parts = {"restore": shards.restoring}
        rows_in = sum(planned.rows_in.values())
        if within is not None:
            parts |= {"function": within.worked, "spark": within.waited}
            if within.worked:
                self._after_spark(sum(sum(map(len, messages)) for messages in batch.messages.values()))
        elif rows_in and self.hooks is not None:
            self.hooks.before_batch(rows_in)
        clock.share_out("state", parts, rest="state")
        applied = Applied(planned.results)
        if planned.results.num_rows:
            with clock("function"):
                applied = self._apply(planned.results)
            clock.share_out("function", {"function": applied.worked}, rest="spark")
        aggregates = self.stage.task.window is not None and bool(self.stage.task.window.aggregate)
        table, refused = self.refused.left_out(_table(applied, planned.results.schema), planned.origins)
        failed = [*planned.failed, *unfit(applied, planned.origins, "made" if aggregates else "row"), *refused]
        ways = sort_out(self.stage, self.sinks, failed)
        letters = [*ways.letters, *late_letters(self.stage, planned.late, LATE_PREFIX, planned.late_from)]
        return Result(
            table,
            rows_in,
            ways.skipped,
            ways.first_error,
            ways.failed,
            letters,
            in_force=_in_force(batch),
            planned=planned,
        )

    def _beyond(self, loop: Loop, batch: Batch, clock: StepTimer) -> Result:
        """The result of rows that have come over too many feedback links: they are failed records, and no function sees them."""
        with clock("decode"):
            rows = self._rows(batch)
        failed = [
            Failed(loop.bad(index, batch.hops, self.stage.name), origin_of(*rows.provenance.message(index)), "row", row)
            for index, row in enumerate(rows.table.slice(at, 1) for at in range(rows.table.num_rows))
        ]
        failed += rows.unread
        outside = [sink for sink in self.sinks if not (isinstance(sink, LinkSink) and sink.topic in loop.links)]
        ways = sort_out(self.stage, outside, failed)
        table, planned = rows.table.schema.empty_table(), None
        if self.shards is not None:
            with clock("state"):
                planned = self.shards.plan(replace(batch, messages={}, spans={}, in_force={}))
            planned = planned._replace(rows_in=dict(batch.rows))
            table = planned.results
        return Result(table, len(failed), ways.skipped, ways.first_error, ways.failed, ways.letters, planned=planned)

    def _read_and_apply(self, batch: Batch, clock: StepTimer) -> _Done | None:
        """Let the workers that apply the function also read the splits.

        Return None if the messages are not splits, there are none, or a hook needs the number of rows beforehand.
        For further reasons see :meth:`TaskFunction.read_and_apply`.
        """
        if self.source is None or (self.hooks is not None and self.hooks.hears_of_batches):
            return None
        messages = [message for link in self.stage.ingress for message in batch.messages.get(link.name, ())]
        if not messages:
            return None
        with clock("function"):
            splits = [_split(message) for message in messages]
            now, of_calendar = self.runtime.wall(), self._of_calendar
            read = self.function.read_and_apply(self.source, splits, now, of_calendar=of_calendar)
            if read is None:
                return None
            self._after_spark(0 if read.applied.table is None else read.applied.table.nbytes)
        self._split_types.know(read.schema)
        applied = read.applied
        clock.share_out("function", {"decode": read.seconds, "function": applied.worked}, rest="spark")
        provenance = Provenance()
        provenance.add(messages, read.rows)
        return _Done(_table(applied, read.schema), sum(read.rows), unfit(applied, provenance), provenance)

    def _decode_and_apply(self, batch: Batch, clock: StepTimer) -> _Done:
        with clock("decode"):
            rows = self._rows(batch)
        rows_in = rows.table.num_rows + len(rows.unread)
        applied = Applied(rows.table)
        if rows_in and self.hooks is not None:  # like after_batch, also if no record could be decoded
            self.hooks.before_batch(rows_in)
        if rows.table.num_rows:
            with clock("function"):
                applied = self._apply(rows.table, traced=rows.in_force.of_rows is not None)
            clock.share_out("function", {"function": applied.worked}, rest="spark")
        failed = [*rows.unread, *unfit(applied, rows.provenance)]
        table = _table(applied, rows.table.schema)
        return _Done(table, rows_in, failed, rows.provenance, rows.clocks, self._in_force(rows, applied, table))

    def _in_force(self, rows: _Rows, applied: Applied, table: pa.Table) -> InForce:
        """The clock before each result, if it is known of each row, and what each result is made of: a function of records tells
        it. Of tables, there are as many results, with the same times in the same order.
        """
        known = rows.in_force
        if known.of_rows is None or table is rows.table:
            return known
        if applied.origins is not None and len(applied.origins) == table.num_rows:
            return known._replace(of_rows=known.of_rows[np.array(applied.origins, np.int64)])
        spec = next(link.time for link in self.stage.ingress if link.time is not None)
        stay = np.ones(rows.table.num_rows, np.bool_)
        stay[[bad.index for bad in applied.bad]] = False
        given = rows.table if stay.all() else rows.table.filter(pa.array(stay))
        return known.of(stay) if have_same_times(given, table, spec) else known._replace(of_rows=None)

    def _apply(self, table: pa.Table, *, traced: bool = False) -> Applied:
        applied = self.function.apply(table, traced=traced)
        if not isinstance(self.function, NoFunction):
            self._after_spark(table.nbytes + (0 if applied.table is None else applied.table.nbytes))
        return applied

    def _after_spark(self, size: int) -> None:
        """A Spark job is done, in which so many bytes took part."""
        used = None if self.spark is None else self.spark.used
        if used is not None and gc_policy.after_batch(size):
            workarounds.forget_sockets(used)

    @property
    def _of_calendar(self) -> bool:
        """Whether rows of splits are bad if no calendar has their times. If it leaves none out, that is up to the windows."""
        return self.isolate and any(link.of_calendar for link in self.stage.ingress)

    def _read_splits(self, source: SplitInput, splits: list[dict[str, Any]]) -> list[pa.Table]:
        if self.spark is None or registry.read_by_peers(self.stage.task):
            return [source.read(data) for data in splits]
        return read_splits.read_splits(self.spark.session(), source, splits)

    def _rows(self, batch: Batch) -> _Rows:
        """Return the rows of a batch's messages, their provenance, and the messages that could not be decoded.

        Raises InputError for the first message that could not be decoded, if ``on_error`` is to fail and the task has
        no failed edge.
        """
        rows = _Rows(pa.table({}), Provenance(), [], {}, _in_force(batch))
        tables: list[pa.Table] = []
        for link in self.stage.ingress:
            messages = batch.messages.get(link.name)
            if not messages:
                continue
            if link.kind == "splits":
                tables.append(self._rows_of_splits(messages, rows))
            elif link.kind == "internal":
                tables.append(_rows_of_blocks(link, messages, rows))
            else:
                tables.append(self._rows_of_topic(link, messages, batch, rows))
        if rows.unread and not self.isolate:
            raise error_of(rows.unread[0])
        rows.table = _of_links(self.stage.ingress, tables)
        return rows

    def _rows_of_splits(self, messages: Sequence[Any], found: _Rows) -> pa.Table:
        """The rows of splits. ``found`` gets where they came from, and those with bad times."""
        assert self.source is not None  # noqa: S101 (for the type checker: splits have a source)
        pieces = self._read_splits(self.source, [_split(message).data for message in messages])
        table = read_splits.joined_splits(pieces, self._split_types)
        counts = [piece.num_rows for piece in pieces]
        rows = without_bad_times(table, self.stage.task, self.runtime.wall(), of_calendar=self._of_calendar)
        if rows.bad:
            all_rows = Provenance()
            all_rows.add(messages, counts)
            found.unread += unfit(rows, all_rows)
        found.provenance.add(messages, counts, [bad.index for bad in rows.bad])
        return _table(rows, table.schema)

    def _rows_of_topic(self, link: Link, messages: Sequence[Any], batch: Batch, found: _Rows) -> pa.Table:
        """The rows of records. ``found`` gets where they came from, the records that cannot be decoded, and the clocks."""
        since, now = self.facts[link.name].since, self.runtime.wall()
        read = read_topic(link, messages, self._formats, batch, now, since, leaves_out=self.isolate)
        found.clocks |= read.clocks
        if read.in_force is not None and len(read.in_force):
            greatest = max(found.in_force.greatest, int(read.in_force.max()))
            found.in_force = InForce(greatest, read.in_force if batch.single else None)
        found.provenance.add(read.messages, None)
        found.unread += read.unread
        return read.table


def _rows_of_blocks(link: Link, messages: Sequence[Any], found: _Rows) -> pa.Table:
    """The rows of blocks of another task. ``found`` gets where they came from, and the rows that their writer has refused."""
    kept: list[Any] = []
    for message in messages:
        bad = refused(message)
        if bad is None:
            kept.append(message)
        else:
            found.unread.append(bad)
    blocks = [block.decode([message.value()]) for message in kept]
    found.provenance.add(kept, [piece.num_rows for piece in blocks])
    return _of_links([link], blocks)


def _of_links(links: Sequence[Link], tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of links in one table.

    Raises:
        FunctionError: ``SX-COLUMN-TYPE``, a column has types that do not go together: of two functions, or of one that different
            peers have run.
    """
    names = ", ".join(link.name for link in links)
    try:
        return together(tables) if tables else pa.table({})
    except UnfitTypes as error:
        raise error.of(f"the rows of {names}", {"links": names}) from error


def _split(message: Any) -> Split:
    return read_split(message.value())


def _table(applied: Applied, schema: pa.Schema) -> pa.Table:
    """Return the function's results. If it returned no rows, return an empty table with the schema of its input."""
    return applied.table if applied.table is not None else schema.empty_table()


def _in_force(batch: Batch) -> InForce:
    """What was stated before the blocks of a batch."""
    return InForce(max((clock for clocks in batch.in_force.values() for clock in clocks), default=NEVER))
