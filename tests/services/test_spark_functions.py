"""A task's function on a batch, on a real Spark session: the four kinds, and what they make of values and types."""

from __future__ import annotations

import datetime as dt
import threading
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sardonyx.core.spec import OnError, TaskSpec
from spark_tasks.applied import Applied
from spark_tasks.apply import TaskFunction
from spark_tasks.code import CodeBundle
from tests.services.functions import Runner, bundled, ids, on

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

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
    assert TaskFunction(on(spark), TaskSpec(name="read", type="input")).apply(table) == Applied(table)


@pytest.mark.parametrize("fn", ["df_same", "arrow_same", "pandas_same", "row_same"])
@pytest.mark.parametrize("rows", [0, 1, 10_001])
def test_order_and_count_are_kept(run: Runner, fn: str, rows: int) -> None:
    """A batch of any size comes back row for row, however it was cut into slices and chunks."""
    whole = ids(rows)
    table = pa.concat_tables([whole.slice(0, rows // 3), whole.slice(rows // 3)])
    result = run(fn, table)
    if fn == "row_same" and rows == 0:
        assert (result.table, result.bad) == (None, ())
        return
    assert result.table is not None
    assert result.table.equals(whole)
    assert (result.skipped, result.first_error) == (0, None)


def test_a_grouped_task_sees_its_batch_whole(run: Runner, spark: SparkSession, code: CodeBundle) -> None:
    """Rows of a key are not cut apart; without keys a large batch is cut for Spark's cores."""
    task = TaskSpec(name="count", type="function", fn="job:arrow_count", group_by=["id"])
    whole = TaskFunction(on(spark, code), task).apply(ids(10_001)).table
    assert whole is not None
    assert whole["rows"].to_pylist() == [10_001]
    cut = run("arrow_count", ids(10_001)).table
    assert cut is not None
    assert len(cut) == min(spark.sparkContext.defaultParallelism, 5)


@pytest.mark.parametrize("fn", ["row_same", "arrow_same", "pandas_same", "df_same"])
def test_a_batch_that_does_not_raise_waits_for_nothing(fn: str, spark: SparkSession, code: CodeBundle) -> None:
    """Retries cost nothing where there is nothing to try again; had it waited, this function would have been abandoned."""
    on_error = OnError(retries=3, backoff="1 h", then="skip")
    function = TaskFunction(on(spark, code), TaskSpec(name="label", type="function", fn=f"job:{fn}", on_error=on_error))
    function.abandon()
    assert function.apply(ids(10)).table.num_rows == 10


@pytest.mark.parametrize("fn", ["row_same", "arrow_same", "pandas_same"])
def test_how_long_a_function_ran_on_the_workers_is_told(run: Runner, fn: str) -> None:
    """Apart from the way there and back. For a DataFrame function that is unknown: Spark runs it together with its own work."""
    began = time.perf_counter()
    worked = run(fn, ids(10_001)).worked
    assert 0 < worked < time.perf_counter() - began
    assert run("df_same", ids(10)).worked == 0


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
    none = run("row_none", table)
    assert (none.table, none.bad) == (None, ())
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
        job = "import helpers\ndef fn(row: dict) -> dict:\n    return {'who': helpers.WHO}\n"
        code = bundled(root, job, f"WHO = {who!r}\n", tmp_path / "cache")
        results.append(TaskFunction(on(spark, code), TaskSpec(name="t", type="function", fn="job:fn")))
    for _ in range(2):
        tables = [function.apply(ids(1)).table for function in results]
        assert [table and table.to_pylist() for table in tables] == [[{"who": "one"}], [{"who": "two"}]]
