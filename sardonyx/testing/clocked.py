"""A job that a test leads step by step: rows, clocks, crashes. No service, no thread, no sleep.

It is the engine of :func:`sardonyx.testing.run_job`, stopped between its steps. What a peer loses in a crash is lost here too,
and its successor begins with what was written: positions, state logs, blocks on the links.
"""

from __future__ import annotations

import time as machine
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from sardonyx.core.errors import SardonyxError
from sardonyx.core.units import seconds
from sardonyx.state.times import times_of
from sardonyx.testing.engine import Engine, Point
from sardonyx.testing.local import AnyJob, begun, no_input, results_of
from sardonyx.testing.result import JobResult
from sardonyx.testing.rows import Rows

if TYPE_CHECKING:
    from spark_tasks.session import SparkSession


class ClockedRun(JobResult):
    """A job that runs as far as a test lets it. Its results are those so far.

    After each step the job has done all that there is to do.

    Args:
        job: as for :meth:`sardonyx.client.client.Client.submit`, or the job as data.
        partitions: of every link between tasks; None: as in the job.
        topics: number of partitions of the topics that Kafka inputs read, by input; 1 if it is not said.
        batch_size: rows of every task's batches; None: as in the job.
        now: what the machine's clock says at the start; a moment without a zone counts as UTC. None: the present. It stands
            still until :meth:`advance`.
        spark: a session to use; None: the active one, or else one that is started and kept for later runs. A job without
            functions needs none.

    Raises:
        JobInvalid: everything that is wrong with the job.
    """

    def __init__(
        self,
        job: AnyJob,
        *,
        partitions: int | None = None,
        topics: Mapping[str, int] | None = None,
        batch_size: int | None = None,
        now: datetime | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        wall = machine.time() if now is None else _in_utc(now).timestamp()
        self._engine: Engine = begun(
            job, places=False, batch_size=batch_size, partitions=partitions, spark=spark, now=wall, topics=topics
        )
        super().__init__(self._engine.spec, results_of(self._engine))

    def give(self, source: str, rows: Rows, partition: int = 0) -> None:
        """Rows come to an input.

        Args:
            source: the input task.
            rows: as for :func:`sardonyx.testing.run_job`.
            partition: of the topic, if it reads one.

        Raises:
            JobFailed: the error that would have failed the job on a cluster, with the user's traceback.
            SardonyxError: ``SX-TEST-INPUT``, ``SX-TEST-ROWS``.
        """
        self._check(source)
        self._engine.give(source, rows, partition)
        self._settle()

    def clock(self, source: str, time: datetime | str | int) -> None:
        """Bring the clock of an input to a moment, as rows would do. A clock that is past it stays.

        Args:
            source: an input that reads a Kafka topic and has ``time=``.
            time: a moment, also as ISO text; without a zone it counts as UTC. A whole number means what it would in the column.

        Raises:
            JobFailed: as for :meth:`give`.
            SardonyxError: ``SX-TEST-INPUT``: the input has no clock.
        """
        self._check(source)
        spec = self._spec.task(source).time
        if spec is None or not self._engine.reads_topic(source):
            raise SardonyxError(
                "SX-TEST-INPUT",
                f"input {source!r} has no clock that a test can move",
                cause="it has no `time=`" if spec is None else "it reads splits, which have a clock only at their end",
                fix="give `time=` to an input that reads a Kafka topic, or end the input",
                where={"job": self._spec.name, "task": source},
            )
        value = datetime.fromisoformat(time) if isinstance(time, str) else time
        column = pa.array([_in_utc(value) if isinstance(value, datetime) else value])
        times, _ = times_of(column, spec.unit, ordinal=spec.kind == "ordinal")
        self._engine.reach(source, int(times[0]))
        self._settle()

    def advance(self, duration: str | float) -> None:
        """Let time pass by the machine's clock: partitions become idle, and what waits for that clock becomes due.

        Args:
            duration: seconds, or text such as ``"90 s"``.
        """
        self._engine.time.advance(seconds(duration) if isinstance(duration, str) else duration)
        self._settle()

    def crash(self, task: str, at: Point = "settled") -> None:
        """The peer of a task crashes, and another takes over. What was not written is lost.

        Args:
            task: a task that has a peer; of fused tasks any of them.
            at: ``settled``: at once, with nothing to do. ``applied``: in its next batch, before anything is written.
                ``committed``: in its next batch, when everything is written and it does not know of that yet.
        """
        self._engine.run_of(task).crash(at)
        self._settle()

    def end(self, *sources: str) -> None:
        """Inputs end with the rows that they were given; one that was given none reads its own. No name: all inputs.

        Raises:
            JobFailed: as for :meth:`give`.
        """
        for source in sources or self._engine.inputs:
            self._check(source)
            self._engine.end(source)
        self._settle()

    def close(self) -> None:
        """Let all peers of the run go."""
        self._engine.close()

    def _check(self, source: str) -> None:
        if source not in self._engine.inputs:
            raise no_input(self._spec, source, self._engine.inputs)

    def _settle(self) -> None:
        self._engine.settle()
        self._tasks = results_of(self._engine)


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
