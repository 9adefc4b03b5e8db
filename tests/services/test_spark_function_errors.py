"""What goes wrong in a task's function, on a real Spark session: how it is reported, and which records it costs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sardonyx.core.errors import FunctionError, SetupError
from spark_tasks.apply import MOST_CULPRITS
from tests.services.functions import Runner, ids

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")


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
    monkeypatch.setattr("spark_tasks.apply.MOST_CULPRITS", 2)
    assert MOST_CULPRITS > 2
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
    ],
)
def test_a_result_of_another_kind_is_an_error(run: Runner, fn: str, cause: str) -> None:
    """The error for a result of a wrong type says what it is and what it should be."""
    error = run.fails(fn, ids(10).append_column("n", pa.array(range(10))))
    assert error.code == "SX-FN-RESULT"
    assert cause in error.cause


def test_values_without_a_common_type_are_an_error_of_the_function(run: Runner) -> None:
    """Of the class that every error of a function has, though a worker has raised it."""
    with pytest.raises(FunctionError, match="column 'x' of what function row_mixed of task label returned") as raised:
        run("row_mixed", ids(10).append_column("n", pa.array(range(10))))
    assert raised.value.code == "SX-COLUMN-TYPE"
    assert raised.value.where == {"column": "x", "task": "label", "function": "job:row_mixed"}


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


def test_the_fix_does_not_advise_what_cannot_help(run: Runner) -> None:
    """on_error is named where it would help: not where it is set already, nor where every record raises."""
    assert "on_error" in run.fails("row_ratio", ids(10)).fix
    assert "on_error" not in run.fails("df_column", ids(10)).fix
    assert "on_error" not in run.fails("df_column", ids(10), skip=True).fix
    first = run("row_ratio", ids(10), skip=True).first_error
    assert first is not None
    assert first.fix == "correct the function"
