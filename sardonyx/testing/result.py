"""The results of a job that a test ran: rows, counts and dead letters of every task."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from peer.batch_result import Result
from queues import dead_letters
from queues.messages import Outgoing
from sardonyx.connectors.records import to_records
from sardonyx.connectors.topics.written import tables_in
from sardonyx.core.column_types import together
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import Counts
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition, add
from sardonyx.core.spec import JobSpec
from sardonyx.testing.memory import Stored

Row = dict[str, Any]


class DeadLetter(NamedTuple):
    """A record that a task could not process, kept by ``on_error="dead_letter"``."""

    record: Row | bytes | None
    """The row; the bytes of a topic's record that could not be decoded."""
    error: str
    """Class of the exception."""
    failure: Failure
    attempts: int
    """How often the record was processed."""

    @classmethod
    def of(cls, message: Outgoing) -> DeadLetter:
        """From the message that would be on the dead-letter topic."""
        place = Partition(message.topic, max(message.partition, 0))
        letter = dead_letters.told(Stored(place, 0, message.key, message.value, message.headers))
        assert letter is not None  # noqa: S101 (for the type checker: a task writes no others)
        record: Row | bytes | None = message.value
        if letter.kind in ("row", "made") and message.value is not None:
            (record,) = to_records(dead_letters.row_of(message.value))
        return cls(record, letter.error, letter.failure, letter.attempts)


class TaskResult:
    """The results of one task: rows in batches, counts, and why records were skipped."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.counts = Counts()
        self.first_error: Failure | None = None
        self.letters: list[DeadLetter] = []
        self.messages: list[tuple[bytes | None, bytes | None]] = []
        self.late: list[pa.Table] = []
        """Rows that came after their windows had closed, as edges of late rows give them."""

    @classmethod
    def of_topic(
        cls, link: Link, messages: list[tuple[bytes | None, bytes | None]], own: TaskResult | None
    ) -> TaskResult:
        """What a Kafka output has written, as a reader of the topic finds it.

        Args:
            link: the topic.
            messages: keys and values on it.
            own: the result of the output's own task, which has the counts; None if the topic is bound in place.
        """
        result = own or cls()
        result.messages = messages
        result.tables = tables_in(link.options, messages)
        if own is None:
            result.counts = Counts(rows_in=len(result.messages), rows_out=len(result.messages))
        return result

    def add(self, result: Result) -> None:
        """Add a batch."""
        self.tables += [result.table] if result.table.num_rows else []
        planned = result.planned
        dropped = 0 if planned is None else planned.dropped
        rows_out = result.table.num_rows
        self.counts = add(self.counts, Counts(result.rows_in, rows_out, result.skipped, len(result.letters), dropped))
        if planned is not None and planned.late_results is not None:
            self.late.append(planned.late_results)
        self.first_error = self.first_error or result.first_error
        self.letters += map(DeadLetter.of, result.letters)


class JobResult:
    """The results of a job, by task."""

    def __init__(self, spec: JobSpec, tasks: dict[str, TaskResult]) -> None:
        self._spec = spec
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"<result of job {self._spec.name!r}: {', '.join(f'{k} {v.counts}' for k, v in self._tasks.items())}>"

    def rows(self, task: str | None = None) -> list[Row]:
        """The rows that came out of a task, as dicts, in order. No name: of the job's only output."""
        return [row for table in self._task(task).tables for row in to_records(table)]

    def table(self, task: str | None = None) -> pa.Table:
        """The same as a table."""
        tables = self._task(task).tables
        return together(tables) if tables else pa.table({})

    def messages(self, task: str | None = None) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of the records that a Kafka output has written; none for another task."""
        return list(self._task(task).messages)

    def counts(self, task: str | None = None) -> Counts:
        """Rows in, rows out, skipped records, dead letters and late rows, as ``sardonyx job show`` has them."""
        return self._task(task).counts

    def dead_letters(self, task: str | None = None) -> list[DeadLetter]:
        """The dead letters of a task, each with its error."""
        return list(self._task(task).letters)

    def late(self, task: str | None = None) -> list[Row]:
        """The rows of a task that came after their windows had closed, with ``window_start``, ``window_end`` and ``late_by``: how
        far the clock had passed the end and ``grace``.

        With ``late="drop"`` they are only counted: ``counts(task).late``.
        """
        return [row for table in self._task(task).late for row in to_records(table)]

    def error(self, task: str | None = None) -> Failure | None:
        """Why the first record was skipped or became a dead letter; None if none was."""
        return self._task(task).first_error

    def _task(self, name: str | None) -> TaskResult:
        if name is None:
            outputs = [task.name for task in self._spec.catalog if task.type == "output"]
            if len(outputs) != 1:
                raise no_task(self._spec, "it has several outputs", outputs)
            name = outputs[0]
        found = self._tasks.get(name)
        if found is None:
            raise no_task(self._spec, f"it has no task {name!r} that runs", list(self._tasks))
        return found


def no_task(spec: JobSpec, cause: str, names: list[str]) -> SardonyxError:
    """The error for a task that a test asks for and that is not there."""
    return SardonyxError(
        "SX-TEST-TASK",
        f"it is not clear which task of job {spec.name} is meant",
        cause=cause,
        fix=f"name one of {', '.join(names)}",
        where={"job": spec.name},
    )
