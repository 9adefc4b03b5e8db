"""A task's function applied to one batch, as a Spark micro-batch.

``pyspark.sql.DataFrame`` functions see the whole batch as one DataFrame. ``pyarrow.Table`` and ``pandas.DataFrame``
functions see it in slices, one for each of Spark's cores, and ``dict`` functions record by record. Order is kept as far as
the function keeps it.

Types. A DataFrame function gets ``timestamp`` with a time zone as Spark's ``timestamp`` and without one as
``timestamp_ntz``, and gives back what Spark makes of them; so the identity changes no type that Spark has. Types that Spark
lacks are widened on the way in (unsigned integers, nanoseconds, dictionaries). pandas functions get Arrow-backed
columns. For records see :mod:`spark_tasks.records`. A column of nothing but nulls stays Arrow's ``null`` type until the
same task has given it a type once; from then on it has that type.
"""

from __future__ import annotations

import inspect
import itertools
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from sardonyx.errors import Failure, FunctionError
from sardonyx.functions import import_function, takes
from sardonyx.spec import TaskSpec
from spark_tasks.blocks import from_bytes, on_workers, to_bytes
from spark_tasks.code import CodeBundle
from spark_tasks.convert import to_spark
from spark_tasks.failures import function_raised, spark_lost, wrong_result
from spark_tasks.session import is_alive
from spark_tasks.worker import USER_ERRORS, DataFault, Plan, checked, halving, joined, run

SMALLEST_SLICE = 2_000
"""Rows below which a slice is not worth a Spark task of its own (about 10 ms)."""

MOST_SKIPPED = 100
"""Records of one batch that a DataFrame function may have skipped: each costs about log2(batch) Spark jobs to find, and
where it is a UDF that raises, also a new worker process."""


class Applied(NamedTuple):
    """What a function made of a batch."""

    table: pa.Table | None
    """None if no row came out, so that not even the columns are known."""
    skipped: int = 0
    """Records left out because the function raised for them."""
    first_error: Failure | None = None
    """Why the first of them was left out."""


class TaskFunction:
    """The function of one task, ready to be applied to batch after batch. One per virtual peer; not for several threads.

    Args:
        spark: the session, which may be shared by many.
        task: as in the job's spec; without ``fn`` batches pass unchanged.
        code: the job's code bundle, if it has one.

    Raises:
        FunctionError: ``SX-FN-NAME``, ``SX-FN-IMPORT``, ``SX-FN-ANNOTATION`` or ``SX-FN-PARAMS``.
    """

    def __init__(self, spark: SparkSession, task: TaskSpec, code: CodeBundle | None) -> None:
        self._spark = spark
        self._task = task
        self._fn: Any = None
        self._cores: int = spark.sparkContext.defaultParallelism
        self._known: dict[str, pa.DataType] = {}
        if task.fn is None:
            return
        self._fn = code.load(task.fn) if code is not None else import_function(task.fn)
        self._takes = takes(self._fn)
        _check_params(task, self._fn)
        self._plan = Plan(
            task=task.name,
            fn=task.fn,
            bundle=None if code is None else code.package,
            takes=self._takes,
            params=task.params,
            skip=task.on_error.then == "skip",
        )
        if code is not None:
            code.ship(spark)

    def apply(self, table: pa.Table) -> Applied:
        """The function's result for one batch.

        Raises:
            FunctionError: ``SX-FN-RAISED``, ``SX-FN-RESULT``, ``SX-FN-INPUT``: the function and this batch cannot go on.
            SetupError: ``SX-SPARK-LOST``, it is not the function's fault; the batch may be tried again.
        """
        if self._fn is None:
            return Applied(table)
        if self._takes == "dataframe":
            most = MOST_SKIPPED
            tables, skipped, first = halving(table, self._dataframe, skip=self._plan.skip, most=most)
        else:
            what = f"task {self._task.name}"
            done = on_workers(
                self._spark, what, partial(run, self._plan), [to_bytes(part) for part in self._cut(table)]
            )
            tables = [from_bytes(part.data) for part in done]
            skipped = sum(part.skipped for part in done)
            first = next((part.first for part in done if part.first is not None), None)
        result = self._settled(joined(self._plan.task, self._plan.fn, tables))
        return Applied(result if result.num_columns else None, skipped, first)

    def _cut(self, table: pa.Table) -> list[pa.Table]:
        """Even slices, as many as Spark has cores."""
        most = max(1, table.num_rows // SMALLEST_SLICE)
        slices = min(most, self._cores)
        edges = [table.num_rows * n // slices for n in range(slices + 1)]
        return [table.slice(start, end - start) for start, end in itertools.pairwise(edges)]

    def _dataframe(self, table: pa.Table) -> pa.Table:
        plan = self._plan
        given = to_spark(self._spark, plan.task, plan.fn, self._cut(table))
        try:
            self._spark.sparkContext.setJobDescription(f"task {plan.task}")
            result = self._fn(given, **plan.params)
            if isinstance(result, DataFrame):
                return checked(plan.task, plan.fn, result.toArrow())
        except FunctionError:
            raise
        except USER_ERRORS as error:
            lost = spark_lost(error, is_alive(self._spark))
            if lost is not None:
                raise lost from error
            raised = function_raised(plan.task, plan.fn, error)
            if isinstance(error, AnalysisException):  # a missing column is missing in every half of the batch too
                raise raised from error
            raise DataFault(raised) from error
        kind = "None" if result is None else f"{type(result).__module__}.{type(result).__qualname__}"
        raise wrong_result(
            plan.task, plan.fn, f"it takes a pyspark.sql.DataFrame and gave {kind}", "return a pyspark.sql.DataFrame"
        )

    def _settled(self, table: pa.Table) -> pa.Table:
        """Columns of nothing but nulls get the type that this task gave them before."""
        for index, field in enumerate(table.schema):
            known = self._known.get(field.name)
            if not pa.types.is_null(field.type):
                self._known[field.name] = field.type
            elif known is not None:
                nulls = pa.nulls(table.num_rows, known)
                table = table.set_column(index, pa.field(field.name, known), nulls)
        return table


def _check_params(task: TaskSpec, fn: Any) -> None:
    """Raised once here, a wrong parameter is not raised for every record, and skipped for every record."""
    try:
        inspect.signature(fn).bind(None, **task.params)
    except TypeError as error:
        raise FunctionError(
            "SX-FN-PARAMS",
            f"function {str(task.fn).partition(':')[2]} of task {task.name} cannot be called with the task's params",
            cause=str(error),
            fix=f"its signature is {inspect.signature(fn)}; params are passed as keyword arguments",
            where={"task": task.name, "function": str(task.fn)},
        ) from error
    except ValueError:  # a builtin that tells no signature
        return
