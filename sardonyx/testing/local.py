"""Run a job in this process on rows: no ZooKeeper, no Kafka, one Spark session for all runs.

Every task runs as a peer of a cluster runs it (:class:`peer.prepared_task.PreparedTask`): the same functions on the same
Spark, the same blocks on the links, the same formats on users' topics. Little replaces the cluster: a link is a list of
messages in the order in which they were written, and one peer runs the tasks one after the other, in the order of the graph.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from peer.batch_result import Result
from peer.prepared_task import PreparedTask, assemble
from peer.step_timer import StepTimer
from queues.batch import Batch
from queues.client import Message
from queues.messages import ROWS_HEADER, Logged, Outgoing, Records
from sardonyx.core.clocks import END, NEVER, SourceClock
from sardonyx.core.errors import JobFailed, SardonyxError, SetupError, failure_of
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.notes import Assignment
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, stateful
from sardonyx.job.builder import Job
from sardonyx.job.load import LoadedJob, load
from sardonyx.runtime.settings import load_settings
from sardonyx.testing.result import JobResult, TaskResult
from sardonyx.testing.rows import GivenRows, Rows, messages_of, table_of
from sardonyx.testing.spark import shared_session
from spark_tasks.code import CodeBundle

if TYPE_CHECKING:
    from spark_tasks.session import SparkSession

DEPLOYMENT = "test"


def run_job(
    job: Job | LoadedJob | JobSpec | str | os.PathLike[str],
    inputs: Mapping[str, Rows] | None = None,
    *,
    batch_size: int | None = None,
    spark: SparkSession | None = None,
) -> JobResult:
    """Run a job to its end in this process, and return the results of each task.

    Nothing is written: what an output task would have written is in the result.

    Args:
        job: as for :meth:`sardonyx.client.client.Client.submit`, or the job as data.
        inputs: rows by input task: dicts, a ``pyarrow.Table`` or a ``pandas.DataFrame``; of a Kafka input also single records
            as ``bytes``, as they lie on the topic. An input that is not named reads its own files or generator.
        batch_size: rows of every task's batches; a small number shows mistakes at the edges of batches. None: as in the
            job.
        spark: a session to use; None: the active one, or else one that is started and kept for later runs.

    Raises:
        JobInvalid: everything that is wrong with the job.
        JobFailed: the error that would have failed the job on a cluster, with the user's traceback.
        SardonyxError: ``SX-TEST-INPUT``, ``SX-TEST-ROWS``: the rows and the job do not fit together.
        SetupError: ``SX-SPARK-START``, ``SX-SPARK-LOST``.
    """
    loaded = _loaded(job, places=not inputs)
    spec = _in_process(loaded.spec, batch_size)
    given = dict(inputs or {})
    _check_inputs(spec, given)
    session = shared_session() if spark is None else spark
    with tempfile.TemporaryDirectory(prefix="sardonyx-test-") as cache:
        code = None
        if loaded.code is not None and spec.code is not None:
            code = CodeBundle.open(loaded.code, spec.code, Path(cache))
        return _Run(session, spec, code, given).to_end()


class _Written(NamedTuple):
    """A message on a link."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    rows: int | None
    """None: known only after it is read."""


class _Run:
    """One run: the links by topic, and the tasks one after the other."""

    def __init__(self, spark: SparkSession, spec: JobSpec, code: CodeBundle | None, given: dict[str, Rows]) -> None:
        self._spark = spark
        self._spec = spec
        self._code = code
        self._given = given
        self._graph: Graph = graph_of(spec, DEPLOYMENT, spec.name)
        self._facts = {link.name: LinkFacts(_partitions(link, spec)) for link in self._graph.links}
        self._topics: dict[str, list[_Written]] = {}
        self._results: dict[str, TaskResult] = {}
        self._settings = load_settings(deployment=DEPLOYMENT)

    def to_end(self) -> JobResult:
        for stage in self._graph.stages:
            where = {"job": self._spec.name, "task": stage.name}
            try:
                self._run_stage(stage)
            except SetupError:
                raise
            except SardonyxError as error:
                raise JobFailed.from_failure(failure_of(error, where=where)) from error
        for link in self._graph.links:
            if link.kind == "output":
                written = [(each.key, each.value) for each in self._topics.get(link.topic, ())]
                self._results[link.target] = TaskResult.of_topic(link, written, self._results.get(link.target))
        return JobResult(self._spec, self._results)

    def _run_stage(self, stage: Stage) -> None:
        assignment = Assignment(id=1, job=self._spec.name, task=stage.name, slot=0)
        work = assemble(
            self._settings, self._spark, "test-0", assignment, self._graph, self._facts, self._code, _NoStateLog
        )
        clock = StepTimer()
        result = TaskResult()
        self._results |= {task.name: result for task in (stage.task, *stage.fused)}
        for link in stage.ingress:
            self._topics.setdefault(link.topic, self._fill(link, work))
        with _lifecycle(work):
            for batch in itertools.chain(self._batches(stage), _last_batches(stage, work)):
                clock.start()
                done = work.apply(batch, clock)
                self._write(work, done)
                work.state_committed()
                result.add(done)
                if work.hooks is not None:
                    work.hooks.after_batch(done.table.num_rows)

    def _fill(self, link: Link, work: PreparedTask) -> list[_Written]:
        """The messages on a link before the job begins: records of a user's topic, or the splits of a bounded input."""
        if link.kind == "input":
            records = messages_of(link.source, link.options, self._given[link.source])
            return [_Written(key, value, [], 1) for key, value in records]
        if link.kind != "splits":
            return []
        if link.source in self._given:
            task = self._spec.task(link.source)
            work.source = GivenRows(table_of(task, self._given[link.source]), task.batch_size)
        assert work.source is not None  # noqa: S101 (for the type checker: splits have a source)
        return [_Written(None, msgspec.json.encode(split), [], split.rows) for split in work.source.splits()]

    def _batches(self, stage: Stage) -> list[Batch]:
        """Everything that the stage reads, batched as a peer's reader does: whole messages until there are enough rows."""
        size = stage.task.batch_size
        batches: list[Batch] = []
        rows = size
        for link in stage.ingress:
            for offset, written in enumerate(self._topics[link.topic]):
                if rows >= size:
                    batches.append(Batch())
                    rows = 0
                count = size if written.rows is None else written.rows
                rows += count
                _put(batches[-1], link, offset, written, count)
        if stateful(stage.task):
            for batch in batches:
                _touch(batch, stage, NEVER)
        return batches

    def _write(self, work: PreparedTask, result: Result) -> None:
        """Write the results to the links, as the transaction of a batch does."""
        for sink in work.sinks:
            late = None if result.planned is None else result.planned.late_results
            for message in sink.messages(result.table, result.failed, late, result.in_force):
                topic = self._topics.setdefault(message.topic, [])
                if isinstance(message, Records):
                    topic += [_Written(key, value, [], 1) for key, value in message.records]
                else:
                    topic.append(_written(message))
        for letter in result.letters:
            self._topics.setdefault(letter.topic, []).append(_written(letter))


@contextlib.contextmanager
def _lifecycle(work: PreparedTask) -> Iterator[None]:
    """Start the task's hooks, and stop them in any case, as a peer does."""
    if work.hooks is None:
        yield
        return
    try:
        work.give(work.hooks.start())
        yield
    finally:
        work.hooks.stop()


def _put(batch: Batch, link: Link, offset: int, written: _Written, rows: int) -> None:
    message = Message(
        topic=link.topic,
        partition=0,
        offset=offset,
        key=written.key,
        value=written.value,
        headers=written.headers or None,
    )
    partition = Partition(link.topic, 0)
    batch.messages.setdefault(link.name, []).append(message)
    batch.spans.setdefault(link.name, []).append((partition, 1))
    batch.in_force.setdefault(link.name, []).append(NEVER)
    batch.rows[partition] = batch.rows.get(partition, 0) + rows
    counts = batch.positions[partition].counts if partition in batch.positions else Counts(rows_in=offset)
    batch.positions[partition] = Position(offset + 1, counts)


def _touch(batch: Batch, stage: Stage, clock: int) -> None:
    """Let a batch of a task with state have all its partitions, with this clock after it."""
    for link in stage.ingress:
        partition = Partition(link.topic, 0)
        batch.positions[partition] = batch.positions.get(partition, Position(0))._replace(
            clock=SourceClock(value=clock)
        )
        batch.clocks[partition] = SourceClock()
        batch.incarnations[partition] = 1
        batch.started[partition] = None


def _last_batches(stage: Stage, work: PreparedTask) -> Iterator[Batch]:
    """The batches after the end of the inputs: windows close, timers fire."""
    incarnations = {Partition(link.topic, 0): 1 for link in stage.ingress}
    first = True
    while work.shards is not None and (first or work.shards.due(incarnations)):
        first = False
        batch = Batch()
        _touch(batch, stage, END)
        yield batch


class _NoStateLog:
    """Nothing is restored in a run that does not outlive its process."""

    def __init__(self, link: Link) -> None:
        pass

    def end(self, partition: int) -> int:  # noqa: ARG002
        return 0

    def read(self, partition: int, start: int, end: int) -> Iterator[Logged]:  # noqa: ARG002
        return iter(())


def _written(message: Outgoing) -> _Written:
    headers = message.headers or []
    rows = dict(headers).get(ROWS_HEADER)
    return _Written(message.key, message.value, headers, None if rows is None else int(rows))


def _partitions(link: Link, spec: JobSpec) -> int:
    return spec.partitions if link.owned else 1


def _loaded(job: Job | LoadedJob | JobSpec | str | os.PathLike[str], *, places: bool) -> LoadedJob:
    if isinstance(job, LoadedJob):
        return job
    if isinstance(job, JobSpec):
        return LoadedJob(job, None, Path.cwd())
    return load(job if isinstance(job, Job) else os.fspath(job), places=places)


def _in_process(spec: JobSpec, batch_size: int | None) -> JobSpec:
    """The job with outputs that write nothing outside this process.

    Outputs that share a topic get one each, so that the records of each can be shown.
    """
    catalog = []
    for task in spec.catalog:
        changed: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
        if task.type == "output" and task.connector != "kafka":
            changed |= {"connector": "blackhole", "options": {}}
        elif task.type == "output":
            changed["options"] = {**task.options, "topic": f"{task.options['topic']} ({task.name})"}
        catalog.append(msgspec.structs.replace(task, **changed))
    return msgspec.structs.replace(spec, catalog=catalog)


def _check_inputs(spec: JobSpec, given: Mapping[str, Rows]) -> None:
    inputs: Sequence[str] = [task.name for task in spec.catalog if task.type == "input"]
    strange = sorted(set(given) - set(inputs))
    if strange:
        raise SardonyxError(
            "SX-TEST-INPUT",
            f"the job has no input task {strange[0]!r}",
            cause=f"its input tasks are {', '.join(inputs)}",
            fix="give rows under the name of an input task",
            where={"job": spec.name},
        )
    for task in spec.catalog:
        if task.type == "input" and task.connector == "kafka" and task.name not in given:
            raise SardonyxError(
                "SX-TEST-INPUT",
                f"input {task.name!r} reads a Kafka topic, and no rows are given for it",
                cause="a job that runs in this process does not read topics",
                fix=f"give them: inputs={{{task.name!r}: [...]}}",
                where={"job": spec.name, "task": task.name},
            )
