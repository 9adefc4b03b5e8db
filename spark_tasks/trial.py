"""Runs the functions of a task on rows in this process, without a peer. Nothing is written.

Functions of records, of ``pyarrow.Table`` and of ``pandas.DataFrame`` run here as on a Spark worker, without Spark. Functions of
``pyspark.sql.DataFrame`` get a Spark session of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from sardonyx.core.errors import Failure
from sardonyx.core.graph import Stage
from sardonyx.core.spec import OnError
from spark_tasks.apply import TaskFunction, fused_function
from spark_tasks.code import CodeBundle
from spark_tasks.on_demand import SparkOnDemand, TaskSpark
from spark_tasks.worker import Plan, Slice, joined, run, run_each
from spark_tasks.worker_pool import from_buffer, to_buffer

_ALONE = OnError(then="skip")
"""Each record that raises is found, and is not tried again."""


class Tried(NamedTuple):
    """What the functions of a task made of rows."""

    table: pa.Table
    """All results; without columns if there are none."""
    failed: dict[int, Failure]
    """By index of a given row, what it raised."""
    by_record: list[pa.Table] | None = None
    """Of a function of records: the results of each given row."""


def try_functions(stage: Stage, code: CodeBundle | None, rows: pa.Table, session: Callable[[], SparkSession]) -> Tried:
    """Run the function of a task, and those of the tasks that are fused to it, on rows.

    Args:
        stage: the task; it keeps no state.
        code: the job's code bundle, if it has one.
        rows: at least one.
        session: gives a Spark session. It is asked only for functions of DataFrames.

    Raises:
        FunctionError: ``SX-FN-NAME``, ``SX-FN-IMPORT``, ``SX-FN-ANNOTATION``, ``SX-FN-PARAMS``, ``SX-FN-RESULT``.
        SetupError: of Spark.
    """
    task = msgspec.structs.replace(stage.task, on_error=_ALONE)
    plans = [fused_function(each, code, may_skip=False).plan for each in (task, *stage.fused) if each.fn is not None]
    if not plans:
        return Tried(rows, {})
    if plans[0].takes == "dataframe":
        spark = TaskSpark(SparkOnDemand(session), "trial", code)
        applied = TaskFunction(spark, task, isolate=True, fused=stage.fused).apply(rows)
        found = pa.table({}) if applied.table is None else applied.table
        return Tried(found, {bad.index: bad.failure for bad in applied.bad})
    given = Slice(to_buffer(rows), isolate=True)
    if len(plans) == 1 and plans[0].takes == "record":
        return _each_record(plans[0], given)
    done = run(plans, given)
    return Tried(from_buffer(done.data), {bad.index: bad.failure for bad in done.bad})


def _each_record(plan: Plan, given: Slice) -> Tried:
    done = run_each([plan], given)
    tables = [from_buffer(each.data) for each in done]
    failed = {index: each.bad[0].failure for index, each in enumerate(done) if each.bad}
    return Tried(joined(plan.task, plan.fn, tables), failed, tables)
