"""A task that is ready to run. A virtual peer prepares all that the task needs before it accepts the assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from peer import gc_policy
from peer.batch_result import Result
from peer.database_keeper import DatabaseKeeper
from peer.failed_records import Failed, error_of, late_letters, sort_out, takes_failed, unfit
from peer.lifecycle import Context, Hooks
from peer.position_keeper import PositionKeeper
from peer.positioned_sink import PositionedSink
from peer.provenance import Provenance
from peer.rolling_sink import RollingSink
from peer.shards import LATE_PREFIX, Shards, StateTopic
from peer.sinks import ConnectorSink, LinkSink, Sink, TopicSink
from peer.stage_shards import shards_of
from peer.step_timer import StepTimer
from peer.topic_rows import read_topic
from queues import block
from queues.batch import Batch
from queues.lost import ReaderLost
from sardonyx.connectors import registry
from sardonyx.connectors.base import PositionedOutput, PositionsMoved, Split, SplitInput, read_split
from sardonyx.connectors.files.rolling import RollingFiles
from sardonyx.connectors.sql.state import StateDatabase
from sardonyx.core import node_paths
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.errors import InputError, InternalError, SetupError
from sardonyx.core.events import TOO_OLD, LinkFacts
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.notes import Assignment, LinksNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import TaskSpec, database_of, decode_spec, is_custom
from sardonyx.core.version import VERSION
from sardonyx.runtime.clock import REAL, Runtime
from sardonyx.runtime.functions import import_function
from sardonyx.runtime.lazy import lazy_module
from sardonyx.runtime.settings import Settings
from spark_tasks.applied import Applied, Function, NoFunction
from spark_tasks.code import CodeBundle, free_unused

if TYPE_CHECKING:
    from queues import admin, group_clocks, marked_topics, state_topics, totals
    from sardonyx.zookeeper.session import ZooKeeperSession
    from spark_tasks import apply, read_splits, session, workarounds
    from spark_tasks import keyed as keyed_functions
    from spark_tasks.keyed import KeyedFunctions
    from spark_tasks.session import SparkSession
else:  # Kafka's client and Spark: a job that a test runs in its own process needs neither, if it has no functions
    admin, group_clocks, marked_topics = map(
        lazy_module, ("queues.admin", "queues.group_clocks", "queues.marked_topics")
    )
    state_topics, totals = map(lazy_module, ("queues.state_topics", "queues.totals"))
    apply, read_splits = map(lazy_module, ("spark_tasks.apply", "spark_tasks.read_splits"))
    session, workarounds = map(lazy_module, ("spark_tasks.session", "spark_tasks.workarounds"))
    keyed_functions = lazy_module("spark_tasks.keyed")


@dataclass
class _Rows:
    """The messages of a batch, decoded to rows."""

    table: pa.Table
    provenance: Provenance
    unread: list[Failed]
    clocks: dict[Partition, SourceClock]
    in_force: int


@dataclass
class _Done:
    """The results and failed records of a batch, from the task's function."""

    table: pa.Table
    rows_in: int
    failed: list[Failed]
    clocks: Mapping[Partition, SourceClock] = field(default_factory=dict)
    in_force: int = NEVER


@dataclass
class PreparedTask:
    """A task as one virtual peer runs it. :func:`prepare` creates it."""

    settings: Settings
    peer: str
    assignment: Assignment
    stage: Stage
    facts: dict[str, LinkFacts]
    function: Function
    spark: SparkSession | None
    """None: the task has no function."""
    sinks: list[Sink]
    source: SplitInput | None
    """The connector of an input task that reads splits; None for other tasks."""
    isolate: bool = False
    """Whether the task finds each failed record separately; otherwise the first failure ends the job."""
    hooks: Hooks | None = None
    """The hooks of the task's lifecycle, if it has one."""
    timed: bool = False
    """Whether the job has clocks."""
    shards: Shards | None = None
    """The state of the task, if it has any."""
    keyed: KeyedFunctions | None = None
    """The functions of a task with keyed state; ``function`` is then only of the tasks that are fused to it."""
    keeper: PositionKeeper | None = None
    """What keeps its positions beside Kafka, if anything does."""
    writers: Mapping[str, Stage] = field(default_factory=dict)
    """By internal link that it reads, the task that writes it."""
    runtime: Runtime = REAL
    """Tells the time of rows that have none of their own."""

    def written(self) -> dict[str, int | None]:
        """Return how many rows were written to each internal link that the task reads: see :func:`queues.totals.written_to`."""
        return totals.written_to(self.settings, self.assignment.job, self.writers, self.facts)

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
        """Whether the Spark session still works."""
        return self.spark is None or session.is_alive(self.spark)

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
        (self.keyed or self.function).give(more)

    def begin(self) -> None:
        """Register the calling thread, so that :meth:`abandon` can cancel its work. Call it before :meth:`apply`."""
        if self.spark is not None:
            session.enter_group(self.spark, self._spark_group)

    def abandon(self) -> None:
        """Cancel the Spark work of this task: its result is not needed, and other tasks need the cores."""
        self.function.abandon()
        if self.keyed is not None:
            self.keyed.abandon()
        if self.spark is not None:
            session.cancel_group(self.spark, self._spark_group)

    @property
    def _spark_group(self) -> str:
        return f"{self.peer}/{self.assignment.id}"

    def apply(self, batch: Batch, clock: StepTimer) -> Result:
        """Decode messages to rows and run the task's function. It changes nothing outside this process and Spark.

        Raises:
            InputError: the messages do not have the format that the job declares.
            FunctionError: the user's function raised, and the task's ``on_error`` is to fail.
        """
        if self.shards is not None:
            return self._through_shards(self.shards, batch, clock)
        done = self._read_and_apply(batch, clock) or self._decode_and_apply(batch, clock)
        ways = sort_out(self.stage, self.sinks, done.failed)
        return Result(
            done.table,
            done.rows_in,
            ways.skipped,
            ways.first_error,
            ways.failed,
            ways.letters,
            done.clocks,
            done.in_force,
        )

    def _through_shards(self, shards: Shards, batch: Batch, clock: StepTimer) -> Result:
        """Let the task's operator have the rows. Functions are given its results: of windows, what those that close hold."""
        keyed = self.keyed
        if keyed is not None and self.hooks is not None and batch.rows:  # its function runs while the state is planned
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
        if keyed is not None:
            parts |= {"function": keyed.worked, "spark": keyed.waited}
            if keyed.worked:
                self._after_function()
        elif rows_in and self.hooks is not None:
            self.hooks.before_batch(rows_in)
        clock.share_out("state", parts, rest="state")
        applied = Applied(planned.results)
        if planned.results.num_rows:
            with clock("function"):
                applied = self.function.apply(planned.results)
                self._after_function()
            clock.share_out("function", {"function": applied.worked}, rest="spark")
        failed = [*planned.failed, *unfit(applied, planned.origins)]
        ways = sort_out(self.stage, self.sinks, failed)
        letters = [*ways.letters, *late_letters(self.stage, planned.late, LATE_PREFIX, planned.late_from)]
        return Result(
            _table(applied, planned.results.schema),
            rows_in,
            ways.skipped,
            ways.first_error,
            ways.failed,
            letters,
            in_force=_in_force(batch),
            planned=planned,
        )

    def _read_and_apply(self, batch: Batch, clock: StepTimer) -> _Done | None:
        """Let the workers that apply the function also read the splits.

        Return None if the messages are not splits, there are none, or a hook needs the number of rows beforehand.
        For further reasons see :meth:`TaskFunction.read_and_apply`.
        """
        if self.source is None or (
            self.hooks is not None and self.hooks.hears_of_batches
        ):  # the hook needs the number of rows beforehand
            return None
        messages = [message for link in self.stage.ingress for message in batch.messages.get(link.name, ())]
        if not messages:
            return None
        with clock("function"):
            read = self.function.read_and_apply(self.source, [_split(message) for message in messages])
            if read is None:
                return None
            self._after_function()
        applied = read.applied
        clock.share_out("function", {"decode": read.seconds, "function": applied.worked}, rest="spark")
        provenance = Provenance()
        provenance.add(messages, read.rows)
        return _Done(_table(applied, read.schema), sum(read.rows), unfit(applied, provenance))

    def _decode_and_apply(self, batch: Batch, clock: StepTimer) -> _Done:
        with clock("decode"):
            rows = self._rows(batch)
        rows_in = rows.table.num_rows + len(rows.unread)
        applied = Applied(rows.table)
        if rows_in and self.hooks is not None:  # like after_batch, also if no record could be decoded
            self.hooks.before_batch(rows_in)
        if rows.table.num_rows:
            with clock("function"):
                applied = self.function.apply(rows.table)
                self._after_function()
            clock.share_out("function", {"function": applied.worked}, rest="spark")
        failed = [*rows.unread, *unfit(applied, rows.provenance)]
        return _Done(_table(applied, rows.table.schema), rows_in, failed, rows.clocks, rows.in_force)

    def _after_function(self) -> None:
        if self.spark is not None and gc_policy.after_batch():
            workarounds.forget_sockets(self.spark)

    def _read_splits(self, source: SplitInput, splits: list[dict[str, Any]]) -> list[pa.Table]:
        """Read splits on Spark's workers. Without Spark, a task has no function, and a test has given it the rows."""
        return (
            [source.read(data) for data in splits]
            if self.spark is None
            else read_splits.read_splits(self.spark, source, splits)
        )

    def _rows(self, batch: Batch) -> _Rows:
        """Return the rows of a batch's messages, their provenance, and the messages that could not be decoded.

        Raises InputError for the first message that could not be decoded, if ``on_error`` is to fail and the task has
        no failed edge.
        """
        tables: list[pa.Table] = []
        in_force = _in_force(batch)
        provenance, failed, clocks = Provenance(), list[Failed](), dict[Partition, SourceClock]()
        for link in self.stage.ingress:
            messages = batch.messages.get(link.name)
            if not messages:
                continue
            if link.kind == "splits":
                assert self.source is not None  # noqa: S101 (for the type checker: splits have a source)
                pieces = self._read_splits(self.source, [_split(message).data for message in messages])
                provenance.add(messages, [piece.num_rows for piece in pieces])
                tables.append(read_splits.joined_splits(pieces) if self.spark else block.concat(pieces))
            elif link.kind == "internal":
                blocks = [block.decode([message.value()]) for message in messages]
                provenance.add(messages, [piece.num_rows for piece in blocks])
                tables.append(block.concat(blocks))
            else:
                registry_url = self.settings.kafka.schema_registry
                read = read_topic(link, messages, registry_url, batch, self.runtime.wall())
                clocks |= read.clocks
                in_force = max(in_force, read.in_force)
                provenance.add(read.messages, None)
                tables.append(read.table)
                failed += read.unread
        if failed and not self.isolate:
            raise error_of(failed[0])
        return _Rows(block.concat(tables) if tables else pa.table({}), provenance, failed, clocks, in_force)


def _split(message: Any) -> Split:
    return read_split(message.value())


def _table(applied: Applied, schema: pa.Schema) -> pa.Table:
    """Return the function's results. If it returned no rows, return an empty table with the schema of its input."""
    return applied.table if applied.table is not None else schema.empty_table()


def _in_force(batch: Batch) -> int:
    """The greatest clock that was stated before a block of a batch."""
    return max((clock for clocks in batch.in_force.values() for clock in clocks), default=NEVER)


def prepare(
    settings: Settings, zk: ZooKeeperSession, spark: SparkSession, peer: str, assignment: Assignment, code_cache: Path
) -> PreparedTask:
    """Fetch the job and its code, and do every preparation that can fail because of the job itself.

    Raises:
        SardonyxError: the task cannot run here. The peer declines the assignment with this error.
    """
    job = assignment.job
    try:
        spec = decode_spec(_must(zk, node_paths.job_spec(job)))
        facts = msgspec.json.decode(_must(zk, node_paths.job_links(job)), type=LinksNote).links
    except msgspec.ValidationError as error:
        raise _too_old(error) from error
    free_unused(spark)
    code = CodeBundle.open(_must(zk, node_paths.code(spec.code)), spec.code, code_cache) if spec.code else None
    graph = graph_of(spec, settings.deployment, job)
    return assemble(settings, spark, peer, assignment, graph, facts, code, state_folder=code_cache / "state")


def assemble(
    settings: Settings,
    spark: SparkSession | None,
    peer: str,
    assignment: Assignment,
    graph: Graph,
    facts: dict[str, LinkFacts],
    code: CodeBundle | None,
    state_topic: Callable[[Link], StateTopic] | None = None,
    state_folder: Path | None = None,
    runtime: Runtime = REAL,
) -> PreparedTask:
    """Build a task that is ready to run from its job's data. It needs no cluster (:mod:`sardonyx.testing`).

    ``state_topic``: gives the log of a task's state, for its link; None: in Kafka. ``state_folder``: for stores on disk; None:
    the one for temporary files. ``spark``: None only for a task without functions.

    Raises:
        SardonyxError: the task cannot run here.
    """
    stage = graph.stage(assignment.task)
    splits = any(link.kind == "splits" for link in stage.ingress)
    isolate = stage.task.on_error.then != "fail" or takes_failed(stage)
    load = import_function if code is None else code.load
    keyed = None if stage.task.keyed is None else _keyed(spark, stage.task, code, isolate=isolate)
    context = Context(settings.deployment, assignment.job, assignment.task, peer, assignment.slot)
    sinks = list(_sinks(settings, graph, stage, facts, peer, assignment, code))
    database = _database(settings, stage, facts, assignment.job)
    return PreparedTask(
        settings=settings,
        peer=peer,
        assignment=assignment,
        stage=stage,
        facts=facts,
        function=_function(spark, stage, code, isolate=isolate),
        spark=spark,
        sinks=sinks,
        source=_source(spark, stage, code) if splits else None,
        isolate=isolate,
        hooks=None if stage.task.lifecycle is None else Hooks(stage.task.lifecycle, load, context),
        timed=graph.timed,
        shards=shards_of(
            stage,
            graph,
            keyed,
            state_topic or partial(state_topics.StateTopic, settings),
            state_folder,
            runtime,
            database,
            load,
        ),
        keeper=database or next((sink for sink in sinks if isinstance(sink, PositionedSink)), None),
        keyed=keyed,
        writers={link.name: graph.stage(link.source) for link in stage.ingress if link.kind == "internal"},
        runtime=runtime,
    )


def _database(settings: Settings, stage: Stage, facts: Mapping[str, LinkFacts], job: str) -> DatabaseKeeper | None:
    """The database that keeps the state of a task; None: none does."""
    store = database_of(stage.task)
    if store is None:
        return None
    sizes = {link.topic: facts[link.name].partitions for link in stage.ingress}

    def confirm(told: Mapping[Partition, Position | None]) -> None:
        now = group_clocks.committed_by(settings, stage, job, sizes)
        if any(now.get(partition) != position for partition, position in told.items()):
            raise ReaderLost("another peer has gone on with partitions of this one")

    state = StateDatabase(store, settings.deployment, job, stage.name)
    return DatabaseKeeper(state, stage.ingress[0].topic, confirm)


def _task_of_results(task: TaskSpec) -> TaskSpec:
    """The task as its results meet it: a function with keyed state has made them."""
    return task if task.keyed is None else msgspec.structs.replace(task, fn=None, keyed=None)


def _keyed(spark: SparkSession | None, task: TaskSpec, code: CodeBundle | None, *, isolate: bool) -> KeyedFunctions:
    assert spark is not None  # noqa: S101 (for the type checker: the task has a function)
    return keyed_functions.KeyedFunctions(spark, task, code, isolate=isolate)


def _function(spark: SparkSession | None, stage: Stage, code: CodeBundle | None, *, isolate: bool) -> Function:
    if spark is None:
        return NoFunction()
    return apply.TaskFunction(spark, _task_of_results(stage.task), code, isolate=isolate, fused=stage.fused)


def _sinks(
    settings: Settings,
    graph: Graph,
    stage: Stage,
    facts: dict[str, LinkFacts],
    peer: str,
    assignment: Assignment,
    code: CodeBundle | None,
) -> Iterator[Sink]:
    load = import_function if code is None else code.load
    for link in stage.egress:
        if link.kind == "output":
            form = registry.topic_format(link.options, settings.kafka.schema_registry)
            yield TopicSink(link, form, load, assignment.job, partial(_partitions_of, settings, link.topic))
        elif link.kind == "internal":
            rows = graph.stage(link.target).task.batch_size  # else its small batch_size has no effect on large blocks
            yield LinkSink(link, facts[link.name].partitions, peer, load, assignment.slot, rows)
    if stage.last.type == "output" and stage.last.connector != "kafka":
        parts = next((link for link in stage.egress if link.kind == "parts"), None)
        made = registry.output(stage.last, assignment.job, settings.deployment, load, bounded=graph.bounded)
        if isinstance(made, PositionedOutput):
            yield PositionedSink(made)
        elif isinstance(made, RollingFiles) and parts is not None:
            yield RollingSink(made, parts, _listing(settings, parts))
        else:
            yield ConnectorSink(made, parts, _listing(settings, parts))


def _partitions_of(settings: Settings, topic: str) -> int:
    return marked_topics.partitions(settings, topic)


def _source(spark: SparkSession | None, stage: Stage, code: CodeBundle | None) -> SplitInput:
    """Return the connector of an input task. Spark's workers read the job's own connectors, so they get its modules."""
    if code is None:
        return registry.split_input(stage.task)
    if spark is not None and is_custom(stage.task.connector):
        code.ship(spark)
    return registry.split_input(stage.task, code.load)


def _listing(settings: Settings, parts: Link | None) -> Callable[[], list[bytes]]:
    if parts is None:
        return list
    return lambda: admin.read_all(settings, parts.topic)


def _must(zk: ZooKeeperSession, path: str) -> bytes:
    data = zk.read(path)
    if data is None:
        raise InternalError("SX-TREE-MISSING", f"{path} is not there, though a task was offered that needs it")
    return data


def _too_old(error: msgspec.ValidationError) -> SetupError:
    return SetupError(
        TOO_OLD,
        f"release {VERSION} of this peer cannot read the task: {error}",
        cause="a newer release of Sardonyx wrote it",
        fix="upgrade the peers; `sardonyx upgrade --check` shows who runs which release",
    )
