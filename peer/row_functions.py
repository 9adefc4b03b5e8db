"""Call the user's functions that decide per row: whether it goes over a link, and which key assigns its partition.

The functions run in the peer's process. Several tasks of a job run at the same time, each in its own thread. A function
that takes a ``pyarrow.Table`` is called once per batch; a function that takes a ``dict`` is called once per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from peer.window_split import Part, parts
from queues.keys import Checksums, Column, checksums, checksums_of
from sardonyx.connectors import frames
from sardonyx.connectors.records import to_records
from sardonyx.core import conditions
from sardonyx.core.errors import FunctionError
from sardonyx.core.text import shorten
from sardonyx.runtime.functions import takes_rows
from sardonyx.state.times import Times
from spark_tasks.failures import MESSAGE_LIMIT, shown_traceback

Load = Callable[[str], Callable[..., Any]]
"""Resolves ``module:function`` to the function, from the job's own modules or the installed ones."""

_RAISED = (Exception, SystemExit)


class RowFunction:
    """A user's function that returns a result for each row.

    Args:
        task: name of the task whose rows the function gets.
        what: the function's role, for error messages: "condition", "group function".
        reference: the function, as ``module:function``.
        load: finds the function.
        params: keyword arguments for it.

    Raises:
        FunctionError: ``SX-FN-NAME``, ``SX-FN-IMPORT``, ``SX-FN-ANNOTATION``, ``SX-FN-PARAMS``.
    """

    def __init__(
        self, task: str, what: str, reference: str, load: Load, params: Mapping[str, Any] | None = None
    ) -> None:
        self._task = task
        self._what = what
        self._reference = reference
        self._params = params or {}
        self._fn = load(reference)
        self.takes = takes_rows(self._fn, self._params)

    def __call__(self, rows: pa.Table) -> Any:
        """Return the function's result for a table; if it takes records, return a list with one result per record.

        Raises:
            FunctionError: ``SX-FN-RAISED``, with the record if the function takes one record at a time.
        """
        if self.takes == "arrow":
            return self._ask(rows)
        return [self._ask(record) for record in to_records(rows)]

    def _ask(self, given: Any) -> Any:
        try:
            return self._fn(given, **self._params)
        except _RAISED as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without our own frame
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise FunctionError(
                "SX-FN-RAISED",
                f"{self._named} raised {shorten(said, MESSAGE_LIMIT)}",
                cause=f"the record was {shorten(repr(given), 1_000)}" if self.takes == "record" else "",
                fix="correct the function: its answer decides where these rows go",
                traceback=shown_traceback(error),
                where={"task": self._task, "function": self._reference},
            ) from error

    @property
    def _named(self) -> str:
        return f"{self._what} {self._reference.partition(':')[2]} of task {self._task}"

    def wrong(self, cause: str, fix: str) -> FunctionError:
        """Build the error for an invalid result of the function."""
        return FunctionError(
            "SX-FN-RESULT",
            f"{self._named} gave something that is not an answer",
            cause=cause,
            fix=fix,
            where={"task": self._task, "function": self._reference},
        )

    def column(self, answer: Any, rows: int, fix: str) -> Column:
        """Convert a result to a column with one value for each row.

        Raises:
            FunctionError: ``SX-FN-RESULT``, the result is not a column, or its length is not ``rows``.
        """
        if isinstance(answer, np.ndarray | list | tuple) or type(answer).__module__.partition(".")[0] == "pandas":
            try:
                answer = pa.array(answer, from_pandas=True)
            except (pa.ArrowException, ValueError, TypeError, KeyError, OverflowError) as error:
                raise self.wrong(str(error), fix) from error
        if not isinstance(answer, pa.Array | pa.ChunkedArray):
            raise self.wrong(f"it gave {type(answer).__name__} for {rows} rows", fix)
        if len(answer) != rows:
            raise self.wrong(f"it gave {len(answer)} values for {rows} rows", fix)
        return answer


class Condition(Protocol):
    """Selects the rows that go over a link."""

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        """Return for each row whether the condition holds, without nulls.

        Raises:
            FunctionError: ``SX-FN-RAISED``, ``SX-FN-RESULT``.
        """
        ...


def condition_of(task: str, where: conditions.Where, load: Load) -> Condition:
    """Return the condition of a link out of a task. Raises as :class:`RowFunction`."""
    if isinstance(where, str):
        return FunctionCondition(task, where, load)
    if where.fn is not None:
        return FunctionCondition(task, where.fn, load, where.params)
    return CombinedCondition([condition_of(task, part, load) for part in conditions.parts_of(where)], where)


class CombinedCondition:
    """Holds where all of its parts do, or any, or where its one part does not.

    A part is asked only about the rows for which the parts before it leave the answer open, as ``and`` and ``or`` do in Python.
    """

    def __init__(self, parts: list[Condition], where: conditions.Condition) -> None:
        self._parts = parts
        self._opposite = where.not_ is not None
        self._open = where.all_of is not None
        """The answer of a part that leaves the whole open."""

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        if self._opposite:
            return pc.invert(self._parts[0].holds(rows))
        found = np.full(rows.num_rows, self._open)
        for part in self._parts:
            left = np.flatnonzero(found == self._open)
            if not len(left):
                break
            asked = rows if len(left) == rows.num_rows else rows.take(pa.array(left))
            found[left] = part.holds(asked).to_numpy(zero_copy_only=False)
        return pa.array(found)


class FunctionCondition:
    """Asks a user's function. Null counts as false. Any result but true, false and null is an error."""

    _FIX = "let it give true or false for each row: a boolean array of the table's length, or a bool for a record"

    def __init__(self, task: str, reference: str, load: Load, params: Mapping[str, Any] | None = None) -> None:
        self._ask = RowFunction(task, "condition", reference, load, params)

    def holds(self, rows: pa.Table) -> pa.BooleanArray:
        answer = self._ask(rows)
        if self._ask.takes == "record":
            for value in answer:
                if not isinstance(value, bool | np.bool_ | None):
                    raise self._ask.wrong(f"it gave {shorten(repr(value), 100)} for a record", self._FIX)
            return pa.array([bool(value) for value in answer], pa.bool_())
        column = self._ask.column(answer, rows.num_rows, self._FIX)
        if kinds.is_null(column.type):
            column = column.cast(pa.bool_())
        if not kinds.is_boolean(column.type):
            raise self._ask.wrong(f"it gave values of type {column.type}", self._FIX)
        filled = pc.fill_null(column, False)
        return filled.combine_chunks() if isinstance(filled, pa.ChunkedArray) else filled


class Grouping:
    """Assigns each row to a partition of a link by its key.

    Args:
        task: name of the task that groups.
        group_by: the columns of the key, or the ``module:function`` that computes it.
        load: finds the function.
    """

    _FIX = "let it give one key for each row: an array (or a table of several), or a value (or a tuple) for a record"

    def __init__(self, task: str, group_by: Sequence[str] | str, load: Load) -> None:
        self._task = task
        self._columns = () if isinstance(group_by, str) else tuple(group_by)
        self._ask = RowFunction(task, "group function", group_by, load) if isinstance(group_by, str) else None

    def split(self, rows: pa.Table, partitions: int, clocks: Times | None = None) -> Iterator[Part]:
        """Split a table by partition. Yield each partition that gets rows, with these in their original order.

        Args:
            rows: with the columns of the key.
            partitions: of the link.
            clocks: the clock in force before each row, if the blocks are to say it.

        Raises:
            FunctionError: ``SX-KEY-COLUMN``, the rows lack a column of the key; ``SX-KEY-TYPE``, its type cannot be
                a key; ``SX-FN-RAISED``, ``SX-FN-RESULT``, from the function.
        """
        return parts(rows, self._checksums(rows) % partitions, clocks)

    def _checksums(self, rows: pa.Table) -> Checksums:
        try:
            return self._of_columns(rows) if self._ask is None else self._of_function(self._ask, rows)
        except FunctionError as error:
            raise FunctionError(
                error.code,
                error.message if "task" in error.where else f"task {self._task}, group_by: {error.message}",
                cause=error.cause,
                fix=error.fix,
                traceback=error.traceback,
                where={"task": self._task, **error.where},
            ) from error

    def _of_columns(self, rows: pa.Table) -> Checksums:
        for column in self._columns:
            if column not in rows.column_names:
                raise FunctionError(
                    "SX-KEY-COLUMN",
                    f"there is no column {column!r} in the rows that are to be grouped by it",
                    cause=f"they have {', '.join(rows.column_names)}",
                    fix="name one of these, or let the task before give the column with every batch",
                )
        return checksums([rows.column(column) for column in self._columns])

    def _of_function(self, ask: RowFunction, rows: pa.Table) -> Checksums:
        answer = ask(rows)
        if ask.takes == "record":
            return checksums_of(answer)
        if isinstance(answer, pa.Table | pa.RecordBatch):
            if not answer.num_columns or answer.num_rows != rows.num_rows:
                cause = f"it gave {answer.num_columns} columns with {answer.num_rows} keys for {rows.num_rows} rows"
                raise ask.wrong(cause, self._FIX)
            return checksums(answer.columns)
        values = _single_values(answer)
        if values is not None and len(values) == rows.num_rows:
            return checksums_of(values)
        return checksums([ask.column(answer, rows.num_rows, self._FIX)])


def _single_values(answer: Any) -> list[Any] | None:
    """The keys of an answer that holds them one by one, such as a list; None: it is a column of one type. Arrow would take the
    type of all keys from the first, and so make a date of a moment: a key's partition would depend on its neighbours.
    """
    if isinstance(answer, list | tuple):
        return frames.without_missing(list(answer))
    return frames.objects(answer) if hasattr(answer, "dtype") else None
