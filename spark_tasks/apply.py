"""Applies a task's function to one batch, as a Spark micro-batch.

``pyspark.sql.DataFrame`` functions see the whole batch as one DataFrame. ``pyarrow.Table`` and ``pandas.DataFrame``
functions see it in slices, one for each of Spark's cores. ``dict`` functions see it record by record. The rows keep
their order if the function keeps it.

Types. A DataFrame function gets a ``timestamp`` with a time zone as Spark's ``timestamp``, and one without as
``timestamp_ntz``. It returns Spark's types, so the identity function changes no type that Spark has. We widen types
that Spark lacks on the way in (unsigned integers, nanoseconds, dictionaries). pandas functions get Arrow-backed
columns. For records see :mod:`sardonyx.connectors.records`. A column keeps the type that the same task has given it before,
or takes a wider one (:mod:`sardonyx.core.column_types`). A column that contains only nulls keeps Arrow's ``null`` type until
then.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from pyspark import InheritableThread
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from sardonyx.connectors.base import Split, SplitInput
from sardonyx.connectors.records import rows_at
from sardonyx.core.errors import FunctionError
from sardonyx.core.settled_types import SettledTypes
from sardonyx.core.spec import TaskSpec
from sardonyx.core.units import seconds
from sardonyx.runtime.functions import import_function, takes, with_functions
from spark_tasks.applied import Applied, ReadAndApplied
from spark_tasks.code import CodeBundle
from spark_tasks.convert import to_spark
from spark_tasks.failures import Bad, spark_lost, types_of, wrong_result
from spark_tasks.isolate import DataFault, search
from spark_tasks.on_demand import TaskSpark
from spark_tasks.read_splits import SMALLEST_SLICE, shared_out
from spark_tasks.session import is_alive
from spark_tasks.slices import DealtOut, ReadFirst, ReadThere, Slices
from spark_tasks.units import Units, together
from spark_tasks.worker import (
    USER_ERRORS,
    Done,
    Plan,
    Slice,
    as_declared,
    bad_of,
    checked,
    fault_of,
    joined,
    run,
    run_each,
)
from spark_tasks.worker_pool import from_buffer, on_workers, to_buffer

SEARCHES = 4
"""How many Spark jobs run at a time in the search for the rows that a DataFrame function raises for. Such a job spends
most of its time on planning, and Spark can plan several jobs at a time."""

MOST_CULPRITS = 10_000
"""How many rows of one batch a DataFrame function may raise for. The search needs about a dozen Spark jobs for each,
and also new worker processes if a UDF raises. Without a limit, a function that raises for all rows would run for
hours."""


_Found: TypeAlias = tuple[list[pa.Table], list[Bad], pa.Table | None, list[int] | None]
"""The results in their order, the rows that raise, and these rows; and of each result the index of its record, if known."""


class Abandoned(Exception):
    """The caller gave up the batch and no longer needs its result."""


class TaskFunction:
    """The function of one task, ready for batch after batch.

    Each virtual peer has its own object. Several threads must not share one.

    Args:
        spark: of the assignment. It is asked for the session when the first batch comes.
        task: the task from the job's spec. Without ``fn``, batches pass unchanged.
        isolate: whether to find the records that the function raises for. By default the task's ``on_error`` decides.
        fused: the tasks after it. We apply their functions to its results. All functions take DataFrames, or none does.
        retried: called before each further attempt.

    Raises:
        FunctionError: ``SX-FN-NAME``, ``SX-FN-IMPORT``, ``SX-FN-ANNOTATION`` or ``SX-FN-PARAMS``.
    """

    def __init__(
        self,
        spark: TaskSpark,
        task: TaskSpec,
        *,
        isolate: bool | None = None,
        fused: Sequence[TaskSpec] = (),
        retried: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark, self._task, self._retried = spark, task, retried
        self._types = SettledTypes()
        self._isolate = task.on_error.leaves_out if isolate is None else isolate
        self._abandoned = threading.Event()
        self._worked = 0.0
        self._objects: dict[str, Any] = {}
        self._reads_there = True
        self._read_before: pa.Schema | None = None
        self._functions = [
            fused_function(each, spark.code, may_skip=not task.on_error.leaves_out)
            for each in (task, *fused)
            if each.fn is not None
        ]
        if not self._functions:
            return
        self._takes = self._functions[0].plan.takes
        self._named = _named([step.plan for step in self._functions])

    def give(self, more: Mapping[str, Any]) -> None:
        """Give the function further keyword arguments, which come from its lifecycle.

        Raises:
            FunctionError: ``SX-FN-PARAMS``, the function does not take them, or they cannot travel to a Spark worker.
        """
        if self._task.fn is None:
            return
        plan, fn = self._functions[0]
        params = {**self._task.params, **more}
        _check_params(self._task, fn, params, whole=True)
        if self._takes == "dataframe":
            self._objects = dict(more)
        else:
            self._functions[0] = FusedFunction(
                msgspec.structs.replace(plan, params=plain_params(self._task, params)), fn
            )

    def abandon(self) -> None:
        """End a wait between two attempts. Any thread may call it. :meth:`apply` then raises :class:`Abandoned`."""
        self._abandoned.set()

    def apply(self, table: pa.Table, *, traced: bool = False) -> Applied:
        """Apply the function to one batch.

        If a batch raises, this method runs it again as often as the task's ``on_error`` says. It pauses before each new
        attempt, and doubles the pause each time. With ``isolate``, the last run finds the records that the function
        raises for. ``traced``: :attr:`Applied.origins` is asked for.

        Raises:
            FunctionError: ``SX-FN-RAISED``, ``SX-FN-RESULT``, ``SX-COLUMN-TYPE``, ``SX-FN-INPUT``: the batch cannot go on.
            SetupError: ``SX-SPARK-LOST``, not the function's fault. The caller may try the batch again.
            Abandoned: see :meth:`abandon`.
        """
        if not self._functions:
            return Applied(table)
        self._worked = 0.0
        if self._takes == "dataframe":
            return self._found(table, *self._as_dataframe(table))
        # Rows with the same key stay together, and those of a window, which has one key if the task has no `group_by`.
        whole = self._task.group_by or self._task.window is not None
        if not whole or self._by_record:
            return self._applied(*self._in_slices(DealtOut(self._run, self._cut(table), traced=traced)))
        tables, bad, *_ = self._in_slices(DealtOut(self._run, [table]))
        return self._found(table, tables, bad)

    def read_and_apply(
        self, connector: SplitInput, splits: Sequence[Split], now: float, *, of_calendar: bool = False
    ) -> ReadAndApplied | None:
        """Apply the function to one batch of splits. The worker that applies the function also reads each split.

        None means that this is not possible or not worth it, and that the batch has had no effect. There are four
        reasons. A DataFrame function gets the whole batch from Spark SQL. A few splits that we cannot divide would keep
        only a few workers busy. Splits of different types, or of others than those before, need one common type before the
        function sees them. A row with a bad time must be left out before. If this method returns None, read the rows first
        and call :meth:`apply`.

        Args:
            connector: reads the splits. It travels to the workers.
            splits: at least one.
            now: seconds since 1970, by this machine.
            of_calendar: whether times that no calendar has are bad.

        Raises:
            SardonyxError: the error that the connector's ``read`` raised.
            FunctionError, SetupError, Abandoned: as in :meth:`apply`.
        """
        if not self._functions or self._takes == "dataframe" or self._task.group_by or not self._reads_there:
            return None
        shares = shared_out(connector, splits, self._spark.cores)
        if shares is None:
            return None
        self._worked = 0.0
        slices = ReadThere(
            self._run, connector, shares, self._task.time, now, self._read_before, of_calendar=of_calendar
        )
        try:
            applied = self._applied(*self._in_slices(slices))
        except ReadFirst:
            self._reads_there = False  # the next batches will have such splits too
            return None
        self._read_before = slices.schema if len(slices.schema) else None
        if not sum(rows := slices.split_rows(len(splits))):
            applied = Applied(slices.schema.empty_table())
        # The slowest worker to read and the slowest worker to apply may be different ones.
        worked = max(applied.worked - slices.seconds, 0.0)
        return ReadAndApplied(applied._replace(worked=worked), rows, slices.schema, slices.seconds)

    def _found(self, table: pa.Table, tables: list[pa.Table], bad: list[Bad]) -> Applied:
        """What came of a whole batch. If a row is bad, so are those that stay together with it."""
        if not bad:
            return self._applied(tables, [], None)
        units = Units(table, self._functions[0].plan.together)
        indexes, which = (found.tolist() for found in units.whole([each.index for each in bad]))
        each_row = [msgspec.structs.replace(bad[n], index=index) for index, n in zip(indexes, which, strict=True)]
        return self._applied(tables, each_row, rows_at(table, indexes))

    def _applied(
        self, tables: list[pa.Table], bad: list[Bad], bad_rows: pa.Table | None, origins: list[int] | None = None
    ) -> Applied:
        task, fn = self._named.task, self._named.fn
        with types_of(task, fn):
            result = self._types.settle(joined(task, fn, tables))
        return Applied(result if result.num_columns else None, tuple(bad), bad_rows, self._worked, origins)

    # --- retries, and then isolation ---

    def _again(self, left: Callable[[], Sequence[int]]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the number of each attempt, from 1, and the items left to run, until none is left.

        It waits before each attempt except the first.
        """
        on_error = self._task.on_error
        pause = seconds(on_error.backoff)
        for attempt in range(1, on_error.retries + 2):
            now = left()
            if not now:
                return
            if attempt > 1:
                if self._abandoned.wait(pause):
                    raise Abandoned
                pause *= 2
                self._retried()
            yield attempt, now

    def _run(self, work: Any, items: Sequence[Any]) -> list[Any]:
        plans = [step.plan for step in self._functions]
        return on_workers(self._spark.session(), f"task {self._task.name}", partial(work, plans), items, self._took)

    def _took(self, seconds: float) -> None:
        self._worked += seconds

    @property
    def _by_record(self) -> bool:
        """Whether we can run single records that raised again by themselves."""
        return self._takes == "record" and len(self._functions) == 1

    def _in_slices(self, slices: Slices) -> _Found:
        return self._records_again(slices) if self._by_record else self._slices_again(slices)

    def _slices_again(self, slices: Slices) -> _Found:
        """For functions of tables, and for several: run failed slices again; then halve them where they run."""
        retries = bool(self._task.on_error.retries)
        done = slices.run(isolate=self._isolate and not retries, keep=retries)
        for attempt, left in self._again(lambda: [n for n, each in enumerate(done) if each.fault]):
            if attempt == 1:  # that was the run of all
                continue
            isolate = self._isolate and attempt > self._task.on_error.retries
            items = [Slice(slices.rows(n), isolate, attempt - 1, slices.traced) for n in left]
            again = self._run(run, items)
            for n, each in zip(left, again, strict=True):
                done[n] = each
        _refuse(done)
        bad = [
            msgspec.structs.replace(each, index=start + each.index)
            for start, part in zip(slices.starts(), done, strict=True)
            for each in part.bad
        ]
        bad_rows = [slices.bad_rows(n, each) for n, each in enumerate(done) if each.bad]
        tables, bad_table = [from_buffer(each.data) for each in done], pa.concat_tables(bad_rows) if bad_rows else None
        return tables, bad, bad_table, _origins(done, slices.starts())

    def _records_again(self, slices: Slices) -> _Found:
        """For functions of one record: run again only the records that raised. Their results keep their place."""
        done = slices.run(isolate=self._isolate or bool(self._task.on_error.retries), keep=False)
        _refuse(done)
        starts = slices.starts()
        found = [(start, each) for start, part in zip(starts, done, strict=True) for each in part.bad]
        if not found:
            return [from_buffer(part.data) for part in done], [], None, _origins(done, starts)
        bad_rows = pa.concat_tables([slices.bad_rows(n, part) for n, part in enumerate(done) if part.bad])
        given: dict[int, Done] = {n: Done(bad=[each]) for n, (_, each) in enumerate(found)}
        rows = [start + each.index for start, each in found]
        for attempt, left in self._again(lambda: [n for n, one in given.items() if one.bad]):
            if attempt == 1:  # that was the run of the whole
                continue
            item = Slice(to_buffer(rows_at(bad_rows, left)), True, attempt - 1)
            given.update(zip(left, self._run(run_each, [item])[0], strict=True))
        still = [n for n in given if given[n].bad]
        bad = [msgspec.structs.replace(given[n].bad[0], index=rows[n]) for n in still]
        if bad and not self._isolate:
            raise FunctionError.from_failure(bad[0].failure)
        saved = {rows[n]: from_buffer(one.data) for n, one in given.items() if not one.bad}
        tables = [piece for part, start in zip(done, starts, strict=True) for piece in _spliced(part, start, saved)]
        origins = _origins(done, starts)
        if origins is not None and saved:
            origins = sorted([*origins, *(row for row, again in saved.items() for _ in range(again.num_rows))])
        return tables, bad, rows_at(bad_rows, still), origins

    def _as_dataframe(self, table: pa.Table) -> tuple[list[pa.Table], list[Bad]]:
        """For functions of a DataFrame: run the whole batch again, then halve it with several Spark jobs at a time."""
        fault: DataFault | None = None
        raised = 0
        for _ in self._again(lambda: [0]):
            try:
                return [self._dataframe(table)], []
            except DataFault as error:
                fault = error
                raised += 1
        assert fault is not None  # noqa: S101 (for the type checker: there is at least one attempt)
        if not self._isolate:
            raise fault.error from fault.__cause__
        limit = FailureLimit(MOST_CULPRITS)
        units = Units(table, self._functions[0].plan.together)

        def part(start: int, stop: int) -> pa.Table:
            if self._abandoned.is_set():
                raise Abandoned
            try:
                return self._dataframe(units.rows(start, stop))
            except DataFault as error:
                if stop - start == 1:
                    limit.count(error)
                raise

        found = search(len(units), part, raised=raised, thread=InheritableThread, threads=SEARCHES)
        return found.results, [bad_of(each._replace(row=units.first(each.row))) for each in found.bad]

    def _cut(self, table: pa.Table) -> list[pa.Table]:
        """Cut the rows into even slices, at most as many as Spark has cores."""
        most = max(1, table.num_rows // SMALLEST_SLICE)
        slices = min(most, self._spark.cores)
        edges = [table.num_rows * n // slices for n in range(slices + 1)]
        return [table.slice(start, end - start) for start, end in itertools.pairwise(edges)]

    def _dataframe(self, table: pa.Table) -> pa.Table:
        plan, session = self._functions[0].plan, self._spark.session()
        result: Any = to_spark(session, plan.task, plan.fn, self._cut(table))
        objects = self._objects
        try:
            session.sparkContext.setJobDescription(f"task {self._task.name}")
            for plan, fn in self._functions:
                result = fn(result, **with_functions(plan.params, self._spark.load), **objects)
                objects = {}
                if not isinstance(result, DataFrame):
                    break
            else:
                last, plan = plan, self._named  # Spark does not run any of them before this point
                return as_declared(last, checked(plan.task, plan.fn, result.toArrow()))
        except DataFault:
            raise
        except FunctionError:
            raise
        except USER_ERRORS as error:
            lost = spark_lost(error, is_alive(session))
            if lost is not None:
                raise lost from error
            of_data = not isinstance(
                error, AnalysisException
            )  # a missing column is missing in every half of the batch too
            fault = fault_of(plan, error, table, of_data=of_data)
            if not of_data:
                raise fault.error from error
            raise fault from error
        kind = "None" if result is None else f"{type(result).__module__}.{type(result).__qualname__}"
        raise wrong_result(
            plan.task, plan.fn, f"it takes a pyspark.sql.DataFrame and gave {kind}", "return a pyspark.sql.DataFrame"
        )


class FusedFunction(NamedTuple):
    """A function of the micro-batch."""

    plan: Plan
    fn: Callable[..., Any]


def fused_function(task: TaskSpec, code: CodeBundle | None, *, may_skip: bool) -> FusedFunction:
    name = str(task.fn)
    fn = code.load(name) if code is not None else import_function(name)
    _check_params(task, fn, task.params, whole=task.lifecycle is None)
    bundle = None if code is None else code.package
    plan = Plan(task.name, name, bundle, takes(fn), task.params, may_skip, together(task), task.schema)
    return FusedFunction(plan, fn)


def _named(plans: Sequence[Plan]) -> Plan:
    """Make the plan that errors name if we do not know which of the functions raised."""
    first, rest = plans[0], plans[1:]
    task = ", ".join(plan.task for plan in plans)
    return msgspec.structs.replace(first, task=task, fn=", ".join([first.fn, *(p.fn.partition(":")[2] for p in rest)]))


class FailureLimit:
    """Counts the rows that raise by themselves, and raises if there are too many."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._most = most

    def count(self, fault: DataFault) -> None:
        self._left -= 1
        if self._left < 0:
            error = fault.error
            raise FunctionError(
                error.code,
                error.message,
                cause=f"it raised for more than {self._most:,} records of one batch, and each costs several Spark jobs to find",
                fix="let the function handle such rows itself (try_cast, try_divide, where), or take records one at a "
                "time (dict)",
                traceback=error.traceback,
                where=error.where,
            )


def _origins(done: Sequence[Done], starts: Sequence[int]) -> list[int] | None:
    """For each result of slices the index in the batch of the record that it was made of, if all slices say it."""
    if any(part.origins is None for part in done):
        return None
    return [start + each for part, start in zip(done, starts, strict=True) for each in part.origins or ()]


def _spliced(done: Done, start: int, saved: Mapping[int, pa.Table]) -> Iterator[pa.Table]:
    """Yield the results of a slice. Records that raised at first and then succeeded have their results in place."""
    table = from_buffer(done.data)
    before = 0
    for each, place in zip(done.bad, done.places, strict=True):
        if start + each.index in saved:
            yield table.slice(before, place - before)
            yield saved[start + each.index]
            before = place
    yield table.slice(before)


def _refuse(done: Iterable[Done]) -> None:
    """If a slice failed as a whole, raise the error of the first such slice."""
    fault = next((part.fault for part in done if part.fault is not None), None)
    if fault is not None:
        raise FunctionError.from_failure(fault.failure)


def plain_params(task: TaskSpec, params: dict[str, Any]) -> dict[str, Any]:
    """Return the same parameters if we can send them to Spark's workers."""
    try:
        msgspec.json.encode(params)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise FunctionError(
            "SX-FN-PARAMS",
            f"the lifecycle of task {task.name} gives its function a value that cannot be sent to a Spark worker",
            cause=str(error),
            fix="give plain data (text, numbers, lists, dicts), or let the function take a pyspark.sql.DataFrame: it "
            "runs in the peer's process and can get any object",
            where={"task": task.name, "lifecycle": str(task.lifecycle)},
        ) from error
    return params


def _check_params(task: TaskSpec, fn: Any, params: Mapping[str, Any], *, whole: bool) -> None:
    """Check the parameters once. Otherwise a wrong one would raise for every record, and the task would skip them all.

    ``whole``: these are all parameters; otherwise the lifecycle gives more.
    """
    try:
        signature = inspect.signature(fn)
        (signature.bind if whole else signature.bind_partial)(None, **params)
    except TypeError as error:
        raise FunctionError(
            "SX-FN-PARAMS",
            f"the task's params do not fit function {str(task.fn).partition(':')[2]} of task {task.name}",
            cause=str(error),
            fix=f"give params that fit its signature, {inspect.signature(fn)}; they are passed as keyword arguments",
            where={"task": task.name, "function": str(task.fn)},
        ) from error
    except ValueError:  # a builtin without a known signature
        return
