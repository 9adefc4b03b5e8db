"""Splits that are read by the workers that apply the function: the same results as in two steps, with fewer rows on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_tasks.apply
import spark_tasks.read_splits
from sardonyx.connectors.base import DivisibleInput, Split, SplitInput
from sardonyx.connectors.registry import split_input
from sardonyx.core.errors import FunctionError, InputError, SardonyxError
from sardonyx.core.spec import OnError, TaskSpec
from sardonyx.core.timing import TimeSpec
from spark_tasks.applied import Applied, ReadAndApplied
from spark_tasks.apply import TaskFunction
from spark_tasks.code import CodeBundle
from spark_tasks.read_splits import joined_splits, read_splits, shared_out
from spark_tasks.worker import ReadAndDone, Share, Slice
from tests.services.functions import on

NOW = 1_795_600_000.0

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")


def generated(rows: int, **options: Any) -> SplitInput:
    columns = {"id": "sequence", "delay": {"kind": "number", "max": 30}}
    task = TaskSpec(
        name="g", type="input", connector="generator", options={"count": rows, "columns": columns, **options}
    )
    return split_input(task)


def function(
    spark: SparkSession, code: CodeBundle, *fns: str, on_error: OnError | None = None, cores: int | None = None
) -> TaskFunction:
    tasks = [
        TaskSpec(name=f"t{n}", type="function", fn=f"job:{fn}", on_error=on_error or OnError())
        for n, fn in enumerate(fns)
    ]
    given = on(spark, code)
    given.cores = cores or given.cores
    return TaskFunction(given, tasks[0], fused=tasks[1:])


def in_two_steps(spark: SparkSession, made: TaskFunction, connector: SplitInput, splits: Sequence[Split]) -> Applied:
    return made.apply(joined_splits(read_splits(spark, connector, [split.data for split in splits])))


def same(one: Applied, other: Applied) -> None:
    assert one.table is not None
    assert other.table is not None
    assert one.table.equals(other.table)
    assert [(bad.index, bad.error, bad.attempts, bad.failure.code) for bad in one.bad] == [
        (bad.index, bad.error, bad.attempts, bad.failure.code) for bad in other.bad
    ]
    assert (one.bad_rows is None) == (other.bad_rows is None)
    if one.bad_rows is not None:
        assert one.bad_rows.equals(other.bad_rows)


def together(made: TaskFunction, connector: SplitInput, splits: Sequence[Split]) -> ReadAndApplied:
    found = made.read_and_apply(connector, splits, NOW)
    assert found is not None
    return found


FUNCTIONS = [
    ("arrow_same",),
    ("pandas_same",),
    ("row_label",),
    ("row_many",),
    ("row_odd", "arrow_same"),
    ("row_label", "row_odd", "pandas_same"),
]


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("fns", FUNCTIONS, ids="-".join)
def test_it_gives_what_two_steps_give(
    spark: SparkSession, code: CodeBundle, fns: tuple[str, ...], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows in the same order, and how many of them each split held, for any number of splits and workers."""
    monkeypatch.setattr("sardonyx.connectors.generator.SPLIT_ROWS", 10_007)
    connector = generated(24_000)
    splits = list(connector.splits())
    for some in (splits, splits[:1], splits[-1:]):
        read = together(function(spark, code, *fns, cores=cores), connector, some)
        same(read.applied, in_two_steps(spark, function(spark, code, *fns), connector, some))
        assert list(read.rows) == [split.rows for split in some]


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("fns", [("arrow_strict",), ("row_ratio",), ("row_label", "row_ratio")], ids="-".join)
def test_records_that_fail_are_the_same_ones(
    spark: SparkSession, code: CodeBundle, fns: tuple[str, ...], retries: int
) -> None:
    """With their rows, their numbers in the batch and their attempts, also where they are run again first."""
    on_error = OnError(then="skip", retries=retries, backoff="1 ms")
    connector = generated(20_000)
    splits = list(connector.splits())
    made, again = function(spark, code, *fns, on_error=on_error, cores=3), list[int]()
    made._retried = lambda: again.append(1)
    read = together(made, connector, splits)
    assert len(again) == retries, "each further attempt counts"
    assert read.applied.bad
    assert read.applied.bad_rows is not None
    assert read.applied.bad_rows["id"].to_pylist() == [bad.index for bad in read.applied.bad]
    same(read.applied, in_two_steps(spark, function(spark, code, *fns, on_error=on_error, cores=3), connector, splits))


def test_a_function_that_raises_fails_the_batch(spark: SparkSession, code: CodeBundle) -> None:
    """After its retries, with the record in the error, as when the rows were read first."""
    connector = generated(5_000)
    with pytest.raises(FunctionError, match="ZeroDivisionError") as raised:
        function(spark, code, "row_ratio").read_and_apply(connector, list(connector.splits()), NOW)
    assert "'id': 0" in raised.value.cause
    made = function(spark, code, "arrow_strict", on_error=OnError(retries=1, backoff="1 ms"))
    with pytest.raises(FunctionError, match="seven"):
        made.read_and_apply(connector, list(connector.splits()), NOW)


def files_of(folder: Path, kind: str, text: str, **options: Any) -> SplitInput:
    path = folder / f"in.{kind}"
    path.write_text(text)
    return split_input(
        TaskSpec(name="f", type="input", connector="files", options={"path": str(path), "format": kind, **options})
    )


def test_one_large_split_keeps_all_workers_busy(spark: SparkSession, code: CodeBundle, tmp_path: Path) -> None:
    """A range of a file is divided; each line is read once, and the split's rows are counted as one."""
    text = "id,delay\n" + "".join(f"{n},{n % 40}.5\n" for n in range(60_000))
    connector = files_of(tmp_path, "csv", text, header=True, schema="id long, delay double")
    splits = list(connector.splits())
    assert len(splits) == 1
    shares = shared_out(connector, splits, 3)
    assert shares is not None
    assert len(shares) == 3
    made = function(spark, code, "arrow_same", cores=3)
    read = together(made, connector, splits)
    same(read.applied, in_two_steps(spark, made, connector, splits))
    assert list(read.rows) == [60_000]


def test_an_error_of_reading_has_its_file_and_line(spark: SparkSession, code: CodeBundle, tmp_path: Path) -> None:
    """The line counts from the file's beginning, whatever part of it a worker reads."""
    text = "id,delay\n" + "".join(f"{n},{'x' if n == 50_000 else n}\n" for n in range(60_000))
    connector = files_of(tmp_path, "csv", text, header=True, schema="id long, delay double")
    with pytest.raises(InputError, match="line 50002") as raised:
        function(spark, code, "row_label", cores=3).read_and_apply(connector, list(connector.splits()), NOW)
    assert raised.value.where["line"] == "50002"


def numbers() -> SplitInput:
    """A connector whose split says what becomes of it; made in here, so that it travels to the workers whole."""

    class Numbers:
        def splits(self) -> Iterator[Split]:
            yield Split({})

        def read(self, data: dict[str, Any]) -> pa.Table:
            return pa.table({"id": pa.array(data["ids"], data.get("type", "int64"))})

    return Numbers()


def test_splits_without_rows_call_no_function(spark: SparkSession, code: CodeBundle) -> None:
    """As where they are read first; what comes out has the columns of what was read."""
    splits = [Split({"ids": []}, 0), Split({"ids": []}, 0)]
    read = together(function(spark, code, "arrow_count"), numbers(), splits)
    assert read.applied == Applied(pa.table({"id": pa.array([], "int64")}))
    some = [Split({"ids": []}, 0), Split({"ids": [5]}, 1), Split({"ids": []}, 0)]
    read = together(function(spark, code, "arrow_count"), numbers(), some)
    assert read.applied.table == pa.table({"rows": [1]})
    assert list(read.rows) == [0, 1, 0]


def test_splits_of_different_types_are_brought_to_one_type_first(spark: SparkSession, code: CodeBundle) -> None:
    """The function sees the type of the batch, so such a batch is read before it is dealt out."""
    rows = 4_000
    splits = [Split({"ids": [1] * rows}, rows), Split({"ids": [0.5] * rows, "type": "float64"}, rows)]
    made = function(spark, code, "arrow_same", cores=2)
    assert made.read_and_apply(numbers(), splits, NOW) is None
    assert made.read_and_apply(numbers(), splits[:1], NOW) is None, "the task's splits are known to differ"


def test_a_row_with_a_bad_time_reaches_no_function(spark: SparkSession, code: CodeBundle) -> None:
    """The peer must leave it out first, so its batch is read before it is dealt out, and so are the batches after it."""
    task = TaskSpec(name="t", type="input", fn="job:arrow_same", time=TimeSpec(column="id", unit="s"))
    good, bad = [Split({"ids": [5, 6]}, 2), Split({"ids": [7]}, 1)], [Split({"ids": [None]}, 1)]
    made = TaskFunction(on(spark, code), task)
    read = made.read_and_apply(numbers(), good, NOW)
    assert read is not None
    assert read.applied.table == pa.table({"id": [5, 6, 7]})
    assert made.read_and_apply(numbers(), bad, NOW) is None
    assert made.read_and_apply(numbers(), good, NOW) is None, "the task's rows are known to have bad times"
    far = msgspec.structs.replace(task, time=TimeSpec(column="id", unit="s", ahead="1 d"))
    assert (
        TaskFunction(on(spark, code), far).read_and_apply(numbers(), [Split({"ids": [int(NOW) + 86_401]}, 1)], NOW)
        is None
    )


def test_what_is_better_read_first(spark: SparkSession, code: CodeBundle, tmp_path: Path) -> None:
    """DataFrame functions, which Spark SQL runs, and a large split that only one worker could read."""
    connector = generated(10)
    assert function(spark, code, "df_same").read_and_apply(connector, list(connector.splits()), NOW) is None
    assert function(spark, code, "row_same", cores=2).read_and_apply(numbers(), [Split({"ids": [1]})], NOW) is None
    multiline = files_of(tmp_path, "csv", "a\n" * 200_000, multiLine=True)
    assert isinstance(multiline, DivisibleInput)
    assert shared_out(multiline, list(multiline.splits()), 2) is None
    assert shared_out(multiline, list(multiline.splits()), 1) is not None


def size(value: Any) -> int:
    """Bytes of the rows in what goes to a worker or comes from one."""
    if isinstance(value, pa.Buffer):
        return int(value.size)
    if isinstance(value, ReadAndDone):
        return size(value.done.data) + size(value.kept)
    if isinstance(value, Slice) or hasattr(value, "data"):
        return size(value.data)
    assert value is None or isinstance(value, dict | Share)
    return 0


def test_rows_leave_a_worker_once(spark: SparkSession, code: CodeBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is not sent to the peer and back: only the results cross between the processes, in one Spark job."""
    sent: list[int] = []
    real = spark_tasks.apply.on_workers

    def counted(session: Any, what: str, work: Any, items: Sequence[Any], *took: Any) -> list[Any]:
        results = real(session, what, work, items, *took)
        sent.append(sum(map(size, items)) + sum(map(size, results)))
        return results

    monkeypatch.setattr(spark_tasks.apply, "on_workers", counted)
    monkeypatch.setattr(spark_tasks.read_splits, "on_workers", counted)
    connector = generated(50_000)
    splits = list(connector.splits())
    results = together(function(spark, code, "arrow_same"), connector, splits).applied.table
    (jobs, crossed), sent = (len(sent), sum(sent)), []
    in_two_steps(spark, function(spark, code, "arrow_same"), connector, splits)
    assert results is not None
    assert jobs == 1
    assert len(sent) == 2
    assert results.nbytes <= crossed < 1.1 * results.nbytes
    assert sum(sent) > 2.9 * results.nbytes


def test_an_error_that_read_raises_is_its_own(spark: SparkSession, code: CodeBundle) -> None:
    """The error is the same as without a function, and no record is left out because of it."""
    made = function(spark, code, "row_same", on_error=OnError(then="skip"))
    with pytest.raises(SardonyxError) as raised:
        made.read_and_apply(numbers(), [Split({"no": 1}, 1)], NOW)
    assert raised.value.code == "SX-UNEXPECTED"
    assert "KeyError" in str(raised.value) + raised.value.traceback
