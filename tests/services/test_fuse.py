"""Functions of one micro-batch, on a real Spark session. Whole jobs of them: the shape ``fused`` of the fault runs."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from sardonyx import Job, files, generator
from sardonyx.core.errors import FunctionError
from sardonyx.core.events import Counts
from sardonyx.core.spec import OnError, TaskSpec
from sardonyx.testing import run_job
from spark_tasks.applied import Applied
from spark_tasks.apply import TaskFunction
from spark_tasks.code import CodeBundle
from tests.services.functions import Runner, ids, on
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")


def fused(spark: SparkSession, code: CodeBundle, *fns: str, skip: bool = False, group: str = "test") -> TaskFunction:
    """The functions of tasks named by their numbers."""
    on_error = OnError(then="skip") if skip else OnError()
    tasks = [TaskSpec(name=f"t{n}", type="function", fn=f"job:{fn}", on_error=on_error) for n, fn in enumerate(fns)]
    return TaskFunction(on(spark, code, group), tasks[0], fused=tasks[1:])


@pytest.mark.parametrize(
    "fns",
    [
        ("arrow_same", "pandas_same", "row_label", "arrow_same"),
        ("row_label", "row_odd"),
        ("row_odd", "row_none", "arrow_count"),
        ("arrow_none", "row_label"),
        ("df_late", "df_udf"),
    ],
)
def test_fused_functions_give_what_they_give_one_after_the_other(
    run: Runner, spark: SparkSession, code: CodeBundle, fns: tuple[str, ...]
) -> None:
    """As over queues between them; also where nothing comes out half-way: then the rest is not called."""
    table: pa.Table | None = ids(5_000)
    for fn in fns:
        table = None if table is None or not table.num_rows else run(fn, table).table
    found = fused(spark, code, *fns).apply(ids(5_000)).table
    if table is None or not table.num_rows:
        assert found is None or not found.num_rows
        return
    assert found is not None
    assert found.schema == table.schema
    assert found.equals(table)


def test_functions_of_dataframes_become_one_plan(spark: SparkSession, code: CodeBundle) -> None:
    """Spark is asked once: it sees all of them as one expression."""
    function = fused(spark, code, "df_late", "df_late", "df_same", group="one-plan")
    jobs = partial(spark.sparkContext.statusTracker().getJobIdsForGroup, "one-plan")
    for calls in (1, 2, 3):  # Spark tells of its jobs a little later, in their order
        function.apply(ids(10))
        until(lambda calls=calls: len(jobs()) >= calls, what="Spark to tell of its jobs")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert len(jobs()) == 3


def test_who_raised_is_told(spark: SparkSession, code: CodeBundle) -> None:
    """The task and its function, though they ran within another's batch; of DataFrames only Spark knows, so all are named."""
    with pytest.raises(FunctionError, match="function row_ratio of task t1 raised ZeroDivisionError") as raised:
        fused(spark, code, "arrow_same", "row_ratio").apply(ids(5_000))
    assert raised.value.where["task"] == "t1"
    with pytest.raises(FunctionError, match="function df_same, df_ansi of task t0, t1 raised ArithmeticException"):
        fused(spark, code, "df_same", "df_ansi").apply(ids(61))
    with pytest.raises(FunctionError, match="function df_python of task t1 raised ZeroDivisionError"):
        fused(spark, code, "df_same", "df_python").apply(ids(3))
    with pytest.raises(FunctionError, match="df_table of task t0"):
        fused(spark, code, "df_table", "df_same").apply(ids(3))


@pytest.mark.parametrize(
    ("fns", "rows", "bad"),
    [
        (("arrow_same", "arrow_strict"), 20_000, [7, 4103, 8199, 12295, 16391]),
        (("row_label", "row_ratio"), 3_000, [0, 1000, 2000]),
        (("df_same", "df_ansi"), 61, [0, 30, 60]),
    ],
)
def test_a_bad_record_is_the_one_that_came_to_the_first(
    spark: SparkSession, code: CodeBundle, fns: tuple[str, ...], rows: int, bad: list[int]
) -> None:
    """Whichever function raises, the first one's input is what is left out, or put aside to be done again from there."""
    result: Applied = fused(spark, code, *fns, skip=True).apply(ids(rows))
    assert [each.index for each in result.bad] == bad
    assert result.table is not None
    assert result.table["id"].to_pylist() == [n for n in range(rows) if n not in bad]
    assert Counter(each.failure.where["task"] for each in result.bad).keys() <= {"t1", "t0, t1"}


def tenth(row: dict) -> dict:
    return {"id": row["id"], "tenth": 10 / row["id"]}


def rounded(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "tenth", pc.round(rows["tenth"], 1))


def test_a_whole_job_is_one_micro_batch(spark: SparkSession) -> None:
    """Input, two functions and output without a queue: what comes out, and what could not be worked on, is all there."""
    job = Job("whole")
    read = job.input("read", generator(5, columns={"id": "sequence"}), on_error="dead_letter")
    first = job.task("first", tenth, after=read, fuse=True)
    second = job.task("second", rounded, after=first, fuse=True)
    job.output("write", files("out", format="json"), after=second, fuse=True)
    result = run_job(job, inputs={"read": [{"id": n} for n in (1, 0, 3)]}, spark=spark)
    assert result.rows() == [{"id": 1, "tenth": 10.0}, {"id": 3, "tenth": 3.3}]
    assert result.counts("read") == Counts(3, 2, dead=1)
    (letter,) = result.dead_letters("read")
    assert (letter.record, letter.error, letter.failure.where["task"]) == ({"id": 0}, "ZeroDivisionError", "first")
