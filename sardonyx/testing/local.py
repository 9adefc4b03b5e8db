"""Run a job in this process on rows: no ZooKeeper, no Kafka, one Spark session for all runs.

Every task runs as a peer of a cluster runs it (:mod:`sardonyx.testing.engine`): the same functions on the same Spark, the same
blocks on the links, the same windows and state, the same formats on users' topics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import JobSpec
from sardonyx.job.builder import Job
from sardonyx.job.load import LoadedJob, load
from sardonyx.testing.engine import Engine
from sardonyx.testing.result import JobResult, TaskResult
from sardonyx.testing.rows import Rows

if TYPE_CHECKING:
    from spark_tasks.session import SparkSession

AnyJob = Job | LoadedJob | JobSpec | str | os.PathLike[str]


def run_job(
    job: AnyJob,
    inputs: Mapping[str, Rows] | None = None,
    *,
    batch_size: int | None = None,
    spark: SparkSession | None = None,
) -> JobResult:
    """Run a job to its end in this process, and return the results of each task.

    Nothing is written: what an output task would have written is in the result. All inputs end with the rows given, so all
    windows close.

    Args:
        job: as for :meth:`sardonyx.client.client.Client.submit`, or the job as data.
        inputs: rows by input task: dicts, a ``pyarrow.Table`` or a ``pandas.DataFrame``; of a Kafka input also single records
            as ``bytes``, as they lie on the topic. An input that is not named reads its own files or generator.
        batch_size: rows of every task's batches; a small number shows mistakes at the edges of batches. None: as in the
            job.
        spark: a session to use; None: the active one, or else one that is started and kept for later runs. A job without
            functions needs none.

    Raises:
        JobInvalid: everything that is wrong with the job.
        JobFailed: the error that would have failed the job on a cluster, with the user's traceback.
        SardonyxError: ``SX-TEST-INPUT``, ``SX-TEST-ROWS``: the rows and the job do not fit together.
        SetupError: ``SX-SPARK-START``, ``SX-SPARK-LOST``.
    """
    given = dict(inputs or {})
    # One partition: the rows of a link stay in the order in which they were written.
    engine = begun(job, places=not inputs, batch_size=batch_size, partitions=1, spark=spark, now=time.time())
    try:
        check_inputs(engine.spec, given)
        for source, rows in given.items():
            engine.give(source, rows)
        for source in engine.inputs:
            engine.end(source)
        engine.settle()
        return JobResult(engine.spec, results_of(engine))
    finally:
        engine.close()


def begun(
    job: AnyJob,
    *,
    places: bool,
    batch_size: int | None,
    partitions: int | None,
    spark: SparkSession | None,
    now: float,
    topics: Mapping[str, int] | None = None,
) -> Engine:
    """A run of a job that has read nothing yet.

    Args:
        job: as for :func:`run_job`.
        places: whether the paths that it reads and writes must exist.
        batch_size: rows of every task's batches; None: as in the job.
        partitions: of every link; None: as in the job.
        spark: a session to use.
        now: seconds since 1970, by the clock of the run.
        topics: number of partitions of the topics of Kafka inputs, by input.

    Raises:
        JobInvalid: everything that is wrong with the job.
    """
    loaded = _loaded(job, places=places)
    spec = _in_process(loaded.spec, batch_size, partitions)

    def session() -> SparkSession:
        if spark is not None:
            return spark
        from sardonyx.testing.spark import shared_session  # starts what few tests need

        return shared_session()

    return Engine(spec, loaded.code, session, topics=topics, now=now)


def results_of(engine: Engine) -> dict[str, TaskResult]:
    """The results so far, by task."""
    results: dict[str, TaskResult] = {}
    for run in engine.tasks.values():
        results |= {task.name: run.result for task in (run.stage.task, *run.stage.fused)}
    for link in engine.graph.links:
        if link.kind == "output":
            written = [(each.key(), each.value()) for each in engine.topics.all_of(link.topic)]
            results[link.target] = TaskResult.of_topic(link, written, results.get(link.target))
    return results


def _loaded(job: AnyJob, *, places: bool) -> LoadedJob:
    if isinstance(job, LoadedJob):
        return job
    if isinstance(job, JobSpec):
        return LoadedJob(job, None, Path.cwd())
    return load(job if isinstance(job, Job) else os.fspath(job), places=places)


def _in_process(spec: JobSpec, batch_size: int | None, partitions: int | None) -> JobSpec:
    """The job with outputs and state that write nothing outside this process.

    Outputs that share a topic get one each, so that the records of each can be shown. State is in memory: where it is at hand
    makes no difference to results.
    """
    catalog = []
    for task in spec.catalog:
        changed: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
        if task.type == "output" and task.connector != "kafka":
            changed |= {"connector": "blackhole", "options": {}}
        elif task.type == "output":
            changed["options"] = {**task.options, "topic": f"{task.options['topic']} ({task.name})"}
        for state in ("window", "keyed", "relation", "graph", "iterate"):
            declared = getattr(task, state)
            if declared is not None and declared.store != "memory":
                changed[state] = msgspec.structs.replace(declared, store="memory")
        catalog.append(msgspec.structs.replace(task, **changed))
    return msgspec.structs.replace(spec, catalog=catalog, partitions=partitions or spec.partitions)


def check_inputs(spec: JobSpec, given: Mapping[str, Rows]) -> None:
    """Check that rows are given for inputs of the job, and for all that read a topic.

    Raises:
        SardonyxError: ``SX-TEST-INPUT``.
    """
    inputs: Sequence[str] = [task.name for task in spec.catalog if task.type == "input"]
    strange = sorted(set(given) - set(inputs))
    if strange:
        raise no_input(spec, strange[0], inputs)
    for task in spec.catalog:
        if task.type == "input" and task.connector == "kafka" and task.name not in given:
            raise SardonyxError(
                "SX-TEST-INPUT",
                f"input {task.name!r} reads a Kafka topic, and no rows are given for it",
                cause="a job that runs in this process does not read topics",
                fix=f"give them: inputs={{{task.name!r}: [...]}}",
                where={"job": spec.name, "task": task.name},
            )


def no_input(spec: JobSpec, name: str, inputs: Sequence[str]) -> SardonyxError:
    """The error for rows that are given to what is not an input."""
    return SardonyxError(
        "SX-TEST-INPUT",
        f"the job has no input task {name!r}",
        cause=f"its input tasks are {', '.join(inputs)}",
        fix="give rows under the name of an input task",
        where={"job": spec.name},
    )
