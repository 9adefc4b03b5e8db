"""A task's function on a batch, on a real Spark session: the four kinds, their types, and what goes wrong in them."""

from __future__ import annotations

import datetime as dt
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sardonyx.bundle import build
from sardonyx.errors import FunctionError, SetupError
from sardonyx.spec import OnError, TaskSpec
from spark_tasks.apply import MOST_APART, Applied, TaskFunction
from spark_tasks.code import CodeBundle

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

JOB = """
from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, pandas_udf, udf
from pyspark.sql.types import LongType

import helpers


def df_same(df: DataFrame) -> DataFrame:
    return df

def df_late(df: DataFrame, limit: int = 15) -> DataFrame:
    return df.where("delay is not null").withColumn("late", col("delay") > limit)

def df_udf(df: DataFrame) -> DataFrame:
    @udf("long")
    def inner(x):
        import helpers as again
        return again.double(x)

    return df.select("id", helpers.doubled("id").alias("module"), inner("id").alias("inner"),
                     udf(lambda x: helpers.double(x), "long")("id").alias("lambda"), per_series("id").alias("series"))

@pandas_udf(LongType())  # by name it would need a session, which the workers have not
def per_series(ids: pd.Series) -> pd.Series:
    return helpers.double(ids)

def df_column(df: DataFrame) -> DataFrame:
    return df.select("no_such_column")

def df_python(df: DataFrame) -> DataFrame:
    return df.limit(len(df.columns) // 0)

def df_ansi(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "100 / (id % 30) as share")

def df_bad_udf(df: DataFrame) -> DataFrame:
    return df.select("id", helpers.reciprocal("id").alias("r"))

def df_twice(df: DataFrame) -> DataFrame:
    return df.join(df.withColumn("delay", col("delay") + 1), "id")

def df_table(df: DataFrame) -> DataFrame:
    return df.toArrow()

def df_exit(df: DataFrame) -> DataFrame:
    return df.mapInPandas(lambda frames: os._exit(3), "id long")

def arrow_same(table: pa.Table) -> pa.Table:
    return table

def arrow_count(table: pa.Table) -> pa.Table:
    return pa.table({"rows": [table.num_rows]})

def arrow_none(table: pa.Table) -> pa.Table:
    return table.slice(0, 0)

def arrow_strict(table: pa.Table) -> pa.Table:
    if pc.any(pc.equal(pc.bit_wise_and(table["id"], 4095), 7)).as_py():
        raise ValueError("seven")
    return table

def arrow_rows(table: pa.Table) -> pa.Table:
    return table.to_pylist()

def pandas_same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame

def pandas_whole(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(n=frame["n"] + 1)

def pandas_series(frame: pd.DataFrame) -> pd.DataFrame:
    return frame["n"]

def row_same(row: dict) -> dict:
    return row

def row_label(row: dict, limit: float = 15.0) -> dict:
    return {**row, "late": None if row["delay"] is None else row["delay"] > limit}

def row_many(row: dict) -> Iterator[dict]:
    one = {}
    for n in range(row["id"] % 3):
        one["id"], one["copy"] = row["id"], n
        yield one

def row_odd(row: dict) -> dict | None:
    return row if row["id"] % 2 else None

def row_list(row: dict) -> list[dict]:
    return [row, {"id": -row["id"], "extra": "x"}]

def row_none(row: dict) -> None:
    return None

def row_ratio(row: dict) -> dict:
    row["touched"] = True
    return helpers.ratio(row)

def row_lazy(row: dict) -> Iterator[dict]:
    return ({"r": 1 / n} for n in (1, row["id"] - 5))

def row_number(row: dict) -> dict:
    return row["id"]

def row_mixed(row: dict) -> dict:
    return {"x": "odd" if row["id"] % 2 else row["id"]}

def row_exit(row: dict) -> dict:
    sys.exit(2)

def row_types(row: dict) -> dict:
    return {"small": row["small"] + 1, "ratio": 2, "whole": row["whole"] / 2, "text": row["text"], "empty": None,
            "zone": str(row["at"].utcoffset()), "at": row["at"], "tags": [*row["tags"], "new"], "map": row["map"]}

def row_rarely(row: dict) -> dict:
    return {"id": row["id"], "note": 1.5 if row["id"] == 3 else None}

def row_crash(row: dict) -> dict:
    os._exit(9)
"""

HELPERS = """
from pyspark.sql.functions import udf
from pyspark.sql.types import DoubleType, LongType

def double(x):
    return x * 2

@udf(LongType())
def doubled(x):
    import helpers
    return helpers.double(x)

@udf(DoubleType())
def reciprocal(x):
    return 1 / (x % 30)

def ratio(row):
    return {"id": row["id"], "ratio": 1 / (row["id"] % 1000)}
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> CodeBundle:
    """The functions above, as a job's bundle."""
    root = tmp_path_factory.mktemp("job")
    (root / "job.py").write_text(JOB)
    (root / "helpers.py").write_text(HELPERS)
    bundle = build(root)
    return CodeBundle.open(bundle.data, bundle.sha256, tmp_path_factory.mktemp("cache"))


class Runner:
    """Applies a function by its name."""

    def __init__(self, spark: SparkSession, code: CodeBundle) -> None:
        self.spark = spark
        self.code = code

    def __call__(self, fn: str, table: pa.Table, *, skip: bool = False, **params: Any) -> Applied:
        return self.function(fn, skip=skip, **params).apply(table)

    def function(self, fn: str, *, skip: bool = False, **params: Any) -> TaskFunction:
        on_error = OnError(then="skip") if skip else OnError()
        task = TaskSpec(name="label", type="function", fn=f"job:{fn}", params=params, on_error=on_error)
        return TaskFunction(self.spark, task, self.code)

    def fails(self, fn: str, table: pa.Table, *, skip: bool = False, **params: Any) -> FunctionError:
        with pytest.raises(FunctionError) as raised:
            self(fn, table, skip=skip, **params)
        error = raised.value
        shown = f"{error} {error.traceback} {error.where}"
        for noise in ("_sx_", "Py4J", "py4j", "\tat ", "spark_tasks", "SQLSTATE: 42703;"):
            assert noise not in shown
        assert error.where.items() <= {"task": "label", "function": f"job:{fn}"}.items()
        return error


@pytest.fixture(scope="module")
def run(spark: SparkSession, code: CodeBundle) -> Runner:
    return Runner(spark, code)


def ids(rows: int, start: int = 0) -> pa.Table:
    """A batch with ids and delays, some of them null."""
    numbers = range(start, start + rows)
    return pa.table(
        {"id": pa.array(numbers, pa.int64()), "delay": [None if n % 10 == 9 else n % 40 / 1 for n in numbers]}
    )


RICH = pa.table(
    {
        "flag": pa.array([True, None, False]),
        "small": pa.array([1, None, -3], pa.int16()),
        "whole": pa.array([1, None, 2**62 + 1], pa.int64()),
        "single": pa.array([0.5, None, float("nan")], pa.float32()),
        "text": pa.array(["a", None, "ö"]),
        "raw": pa.array([b"\x00", None, b"\xff"]),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(12, 2)),
        "day": pa.array([dt.date(2013, 1, 1), None, dt.date(1969, 12, 31)]),
        "at": pa.array([dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC), None, dt.datetime(1, 1, 1, tzinfo=dt.UTC)]),
        "local": pa.array([1_357_016_767_000_008, None, 253_370_764_800_000_000], pa.timestamp("us")),
        "tags": pa.array([["x", None], None, []], pa.list_(pa.string())),
        "map": pa.array([{"k": 1}, None, {}], pa.map_(pa.string(), pa.int64())),
        "nested": pa.array([{"a": 1, "b": [{"c": "d"}]}, None, {"a": None, "b": None}]),
        "nothing": pa.nulls(3),
    }
)


@pytest.mark.parametrize("fn", ["df_same", "arrow_same", "pandas_same", "row_same"])
def test_the_identity_changes_neither_types_nor_values(run: Runner, fn: str) -> None:
    """Every type that Spark has passes through every kind of function as it was, nulls and NaN included."""
    result = run(fn, RICH).table
    assert result is not None
    assert result.schema.names == RICH.schema.names
    assert [str(kind) for kind in result.schema.types] == [
        str(kind).replace("item", "element") for kind in RICH.schema.types
    ] or (result.schema.types == RICH.schema.types)
    assert repr(result.to_pylist()) == repr(RICH.to_pylist())


def test_without_a_function_a_batch_passes_unchanged(spark: SparkSession) -> None:
    """An input or output task without ``fn`` costs nothing."""
    table = ids(3)
    assert TaskFunction(spark, TaskSpec(name="read", type="input"), None).apply(table) == Applied(table)


@pytest.mark.parametrize("fn", ["df_same", "arrow_same", "pandas_same", "row_same"])
@pytest.mark.parametrize("rows", [0, 1, 10_001])
def test_order_and_count_are_kept(run: Runner, fn: str, rows: int) -> None:
    """A batch of any size comes back row for row, however it was cut into slices and chunks."""
    whole = ids(rows)
    table = pa.concat_tables([whole.slice(0, rows // 3), whole.slice(rows // 3)])
    result = run(fn, table)
    if fn == "row_same" and rows == 0:
        assert result == Applied(None)
        return
    assert result.table is not None
    assert result.table.equals(whole)
    assert (result.skipped, result.first_error) == (0, None)


def test_a_grouped_task_sees_its_batch_whole(run: Runner, spark: SparkSession, code: CodeBundle) -> None:
    """Rows of a key are not cut apart; without keys a large batch is cut for Spark's cores."""
    task = TaskSpec(name="count", type="function", fn="job:arrow_count", group_by=["id"])
    whole = TaskFunction(spark, task, code).apply(ids(10_001)).table
    assert whole is not None
    assert whole["rows"].to_pylist() == [10_001]
    cut = run("arrow_count", ids(10_001)).table
    assert cut is not None
    assert len(cut) == min(spark.sparkContext.defaultParallelism, 5)


@pytest.mark.parametrize("fn", ["row_same", "arrow_same", "pandas_same", "df_same"])
def test_a_batch_that_does_not_raise_waits_for_nothing(fn: str, spark: SparkSession, code: CodeBundle) -> None:
    """Retries cost nothing where there is nothing to try again; had it waited, this function would have been abandoned."""
    on_error = OnError(retries=3, backoff="1 h", then="skip")
    function = TaskFunction(spark, TaskSpec(name="label", type="function", fn=f"job:{fn}", on_error=on_error), code)
    function.abandon()
    assert function.apply(ids(10)).table.num_rows == 10


def test_a_dataframe_function_is_a_spark_expression(run: Runner) -> None:
    """Filters and new columns by Catalyst; params are keyword arguments."""
    result = run("df_late", ids(50), limit=20).table
    assert result is not None
    assert result.num_rows == 45
    assert result.to_pylist()[22] == {"id": 24, "delay": 24.0, "late": True}


def test_udfs_of_the_bundle_run_on_the_workers(run: Runner) -> None:
    """Functions of the bundle work as UDFs wherever they were made: in a module, in a function, as a lambda, over
    pandas; and imports inside them find the bundle.
    """
    result = run("df_udf", ids(100)).table
    assert result is not None
    assert result["id"].to_pylist() == list(range(100))
    for name in ("module", "inner", "lambda", "series"):
        assert result[name].to_pylist() == [2 * n for n in range(100)]


def test_types_that_spark_lacks_are_widened(run: Runner) -> None:
    """What an Arrow function may give a DataFrame function takes; what Spark has no type for is one clear error."""
    table = pa.table(
        {
            "u": pa.array([1, 2**32 - 1], pa.uint32()),
            "ns": pa.array([1_001, None], pa.timestamp("ns", "Europe/Vienna")),
            "word": pa.array(["a", "b"]).dictionary_encode(),
            "list": pa.array([[1], []], pa.large_list(pa.uint8())),
        }
    )
    result = run("df_same", table).table
    assert result is not None
    assert [str(kind) for kind in result.schema.types[:3]] == ["int64", "timestamp[us, tz=UTC]", "string"]
    assert result["ns"].to_pylist()[0] == dt.datetime(1970, 1, 1, microsecond=1, tzinfo=dt.UTC)
    error = run.fails("df_same", pa.table({"x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}))
    assert error.code == "SX-FN-INPUT"


def test_pandas_keeps_whole_numbers_whole(run: Runner) -> None:
    """A column of integers with nulls does not become floats."""
    result = run("pandas_whole", pa.table({"n": pa.array([2**60, None], pa.int64())})).table
    assert result is not None
    assert result.equals(pa.table({"n": pa.array([2**60 + 1, None], pa.int64())}))


def test_records_give_one_many_or_none(run: Runner) -> None:
    """A dict, a list, an iterator (each of whose dicts counts as it was when given), or None."""
    table = ids(6)
    assert run("row_many", table).table == pa.table({"id": [1, 2, 2, 4, 5, 5], "copy": [0, 0, 1, 0, 0, 1]})
    odd = run("row_odd", table).table
    assert odd is not None
    assert odd["id"].to_pylist() == [1, 3, 5]
    assert run("row_none", table) == Applied(None)
    listed = run("row_list", ids(2, 1)).table
    assert listed is not None
    assert listed.to_pylist() == [
        {"id": 1, "delay": 1.0, "extra": None},
        {"id": -1, "delay": None, "extra": "x"},
        {"id": 2, "delay": 2.0, "extra": None},
        {"id": -2, "delay": None, "extra": "x"},
    ]


def test_types_of_records(run: Runner) -> None:
    """A column keeps its input type if the values fit without loss, else it has the type of its values; a timestamp
    arrives with its time zone; columns stand in order of first appearance.
    """
    table = pa.table(
        {
            "small": pa.array([1, 2], pa.int16()),
            "ratio": pa.array([0.5, 0.25]),
            "whole": pa.array([1, 2]),
            "text": pa.array(["a", "b"], pa.large_string()),
            "at": pa.array([1, 2], pa.timestamp("ms", "UTC")),
            "tags": pa.array([[], ["x"]], pa.list_(pa.string())),
            "map": pa.array([{"k": 1}, {}], pa.map_(pa.string(), pa.int32())),
        }
    )
    result = run("row_types", table).table
    assert result is not None
    assert {field.name: str(field.type) for field in result.schema} == {
        "small": "int16",
        "ratio": "double",
        "whole": "double",
        "text": "large_string",
        "empty": "null",
        "zone": "string",
        "at": "timestamp[ms, tz=UTC]",
        "tags": "list<item: string>",
        "map": "map<string, int32>",
    }
    assert list(result.schema.names) == ["small", "ratio", "whole", "text", "empty", "zone", "at", "tags", "map"]
    assert result["zone"].to_pylist() == ["0:00:00", "0:00:00"]


def test_a_column_of_nulls_takes_the_type_it_once_had(run: Runner) -> None:
    """A column that is None in a whole batch is ``null`` until a value came, and has that value's type from then on;
    slices of one batch agree.
    """
    function = run.function("row_rarely")
    types = []
    for start, rows in ((10, 5), (0, 9_000), (10, 5)):
        table = function.apply(ids(rows, start)).table
        assert table is not None
        types.append(str(table.schema.field("note").type))
    assert types == ["null", "double", "double"]


def test_a_record_that_raises_is_shown(run: Runner) -> None:
    """The user's own traceback and the record as the function got it."""
    error = run.fails("row_ratio", ids(5_000))
    assert error.code == "SX-FN-RAISED"
    assert error.message == "function row_ratio of task label raised ZeroDivisionError: division by zero"
    assert error.cause == "the record was {'delay': 0.0, 'id': 0}"
    assert 'File "helpers.py", line 18, in ratio' in error.traceback
    assert error.traceback.splitlines()[1].strip() == 'File "job.py", line 107, in row_ratio'
    assert "return {" in error.traceback


def test_skipping_leaves_out_just_the_bad_records(run: Runner) -> None:
    """Records that raise are counted and left out, also when what raises is a lazy iterator that they gave; the first is
    kept for display.
    """
    result = run("row_ratio", ids(5_000), skip=True)
    assert result.table is not None
    assert (result.table.num_rows, result.skipped) == (4_995, 5)
    assert result.first_error is not None
    assert result.first_error.message.endswith("ZeroDivisionError: division by zero")
    lazy = run("row_lazy", ids(8), skip=True)
    assert lazy.table is not None
    assert (lazy.table.num_rows, lazy.skipped) == (14, 1)
    assert run("row_exit", ids(3), skip=True).skipped == 3
    assert run("row_number", ids(3), skip=True).skipped == 3


@pytest.mark.parametrize(
    ("fn", "rows", "bad", "said"),
    [
        ("arrow_strict", 20_000, [7, 4103, 8199, 12295, 16391], "ValueError: seven"),
        ("df_ansi", 61, [0, 30, 60], "ArithmeticException: [DIVIDE_BY_ZERO]"),
        ("df_bad_udf", 8, [0], "ZeroDivisionError: division by zero"),
    ],
)
def test_a_bad_batch_is_halved_until_the_bad_rows_stand_alone(
    run: Runner, fn: str, rows: int, bad: list[int], said: str
) -> None:
    """Functions of whole tables lose the rows that they raise for, and only these; order is kept."""
    result = run(fn, ids(rows), skip=True)
    assert result.table is not None
    assert result.skipped == len(bad)
    assert result.table["id"].to_pylist() == [n for n in range(rows) if n not in bad]
    assert result.first_error is not None
    assert said in result.first_error.message


def test_a_dataframe_function_that_raises_for_everything_is_not_halved_for_hours(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past a number of skipped records in one batch, each of which costs Spark jobs, the job fails and says why."""
    monkeypatch.setattr("spark_tasks.apply.MOST_APART", 2)
    assert MOST_APART > 2
    error = run.fails("df_python", ids(6), skip=True)
    assert error.code == "SX-FN-RAISED"
    assert "more than 2 records" in error.cause


@pytest.mark.parametrize("skip", [False, True])
def test_a_missing_column_is_told_in_one_sentence_of_sparks(run: Runner, skip: bool) -> None:
    """Spark's short message, the line of the user's code, and nothing of the JVM; no record can be blamed for it."""
    error = run.fails("df_column", ids(3), skip=skip)
    assert error.code == "SX-FN-RAISED"
    assert "[UNRESOLVED_COLUMN.WITH_SUGGESTION]" in error.message
    assert "`no_such_column`" in error.message
    assert 'File "job.py", line 38, in df_column\n    return df.select("no_such_column")' in error.traceback


@pytest.mark.parametrize(
    ("fn", "kind", "shown"),
    [
        ("df_python", "ZeroDivisionError", "return df.limit(len(df.columns) // 0)"),
        ("df_ansi", "ArithmeticException: [DIVIDE_BY_ZERO]", "try_divide"),
        ("df_bad_udf", "ZeroDivisionError: division by zero", "helpers.py"),
        ("arrow_strict", "ValueError: seven", 'raise ValueError("seven")'),
        ("row_exit", "SystemExit: 2", "sys.exit(2)"),
    ],
)
def test_what_a_function_raises_is_told_as_python_would(run: Runner, fn: str, kind: str, shown: str) -> None:
    """Class and message of the error itself, wherever it was raised: on the driver, by an expression, on a worker."""
    error = run.fails(fn, ids(20))
    assert error.code == "SX-FN-RAISED"
    assert f"function {fn} of task label raised {kind}" in error.message
    assert shown in error.traceback


@pytest.mark.parametrize(
    ("fn", "cause"),
    [
        ("df_table", "gave pyarrow.lib.Table"),
        ("df_twice", "more than one column named delay"),
        ("arrow_rows", "it takes a pyarrow.Table and gave list"),
        ("pandas_series", "gave pandas.Series"),
        ("row_number", "it gave int"),
        ("row_mixed", "the values of field 'x' have no type in common"),
    ],
)
def test_a_result_of_another_kind_is_an_error(run: Runner, fn: str, cause: str) -> None:
    """What cannot be passed on is said with what it is and what it should be."""
    error = run.fails(fn, ids(10).append_column("n", pa.array(range(10))))
    assert error.code == "SX-FN-RESULT"
    assert cause in error.cause


def test_params_that_do_not_fit_are_said_once(run: Runner) -> None:
    """Before any record: otherwise ``skip`` would leave out every one of them."""
    error = run.fails("row_label", ids(1), skip=True, limits=3)
    assert error.code == "SX-FN-PARAMS"
    assert "limits" in error.cause


@pytest.mark.parametrize("fn", ["row_crash", "df_exit"])
def test_a_worker_that_dies_is_no_error_of_the_function(run: Runner, fn: str) -> None:
    """When a Python worker ends in mid-batch it may be the machine's fault: the batch may be tried again, and Spark goes on."""
    with pytest.raises(SetupError) as raised:
        run(fn, ids(3))
    assert raised.value.code == "SX-SPARK-LOST"
    assert "\tat " not in str(raised.value)
    assert run("arrow_same", ids(3)).table is not None


def test_many_threads_share_one_session(run: Runner) -> None:
    """Virtual peers apply functions of all kinds at once, each to its own batches."""
    found: dict[int, list[bool]] = {}

    def peer(number: int) -> None:
        name = ("df_same", "arrow_same", "pandas_same", "row_same")[number % 4]
        function = run.function(name)
        found[number] = [function.apply(ids(3_000, 7 * n)).table == ids(3_000, 7 * n) for n in range(3)]

    threads = [threading.Thread(target=peer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [True] * 3 for number in range(8)}


def test_two_jobs_of_one_name_run_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    """Two bundles with the same module names keep apart on the workers too."""
    results = []
    for who in ("one", "two"):
        root = tmp_path / who
        root.mkdir()
        (root / "job.py").write_text("import helpers\ndef fn(row: dict) -> dict:\n    return {'who': helpers.WHO}\n")
        (root / "helpers.py").write_text(f"WHO = {who!r}\n")
        bundle = build(root)
        code = CodeBundle.open(bundle.data, bundle.sha256, tmp_path / "cache")
        results.append(TaskFunction(spark, TaskSpec(name="t", type="function", fn="job:fn"), code))
    for _ in range(2):
        tables = [function.apply(ids(1)).table for function in results]
        assert [table and table.to_pylist() for table in tables] == [[{"who": "one"}], [{"who": "two"}]]
