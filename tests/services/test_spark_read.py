"""Reading splits on Spark's workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sardonyx.connectors.base import Split, SplitInput
from sardonyx.connectors.registry import split_input
from sardonyx.core.errors import InputError, InternalError
from sardonyx.core.spec import TaskSpec
from spark_tasks.read_splits import joined_splits, read_splits


def numbers() -> SplitInput:
    """A connector whose split says what becomes of it; made in here, so that it travels to the workers whole."""

    class Numbers:
        def splits(self) -> Iterator[Split]:
            yield Split({"n": 0})

        def read(self, data: dict[str, Any]) -> pa.Table:
            if "error" in data:
                raise InputError("SX-SOME", "not there", cause="why", fix="do", traceback="tb", where={"path": "/x"})
            if "bug" in data:
                raise KeyError("bug")
            return pa.table({"n": pa.array([data["n"]] * data.get("rows", 1), data.get("type", "int64"))})

    return Numbers()


def test_rows_come_in_the_order_of_the_splits(spark: SparkSession) -> None:
    """Whatever worker reads them, and also when a split is empty."""
    datas = [{"n": n, "rows": n % 3} for n in range(20)]
    table = joined_splits(read_splits(spark, numbers(), datas))
    assert table == pa.table({"n": [n for n in range(20) for _ in range(n % 3)]})


def test_an_error_comes_back_as_it_was_raised(spark: SparkSession) -> None:
    """Class, code, cause, fix, traceback and place of the first split that failed; no JVM in sight."""
    with pytest.raises(InputError) as raised:
        read_splits(spark, numbers(), [{"n": 1}, {"error": 1}, {"bug": 1}])
    error = raised.value
    assert (error.code, error.message, error.cause, error.fix) == ("SX-SOME", "not there", "why", "do")
    assert (error.traceback, error.where) == ("tb", {"path": "/x"})


def test_an_error_that_is_not_ours_has_its_traceback(spark: SparkSession) -> None:
    """A bug on a worker is reported as one, with the worker's traceback."""
    with pytest.raises(InternalError) as raised:
        read_splits(spark, numbers(), [{"bug": 1}])
    assert raised.value.code == "SX-UNEXPECTED"
    assert 'raise KeyError("bug")' in raised.value.traceback


def test_splits_of_different_types_are_an_error_of_the_input(spark: SparkSession) -> None:
    """Types that one column may not have at once are said; those that widen into one another are not."""
    pieces = read_splits(spark, numbers(), [{"n": 1}, {"n": 0.5, "type": "float64"}])
    assert joined_splits(pieces)["n"].to_pylist() == [1.0, 0.5]
    with pytest.raises(InputError) as raised:
        joined_splits(read_splits(spark, numbers(), [{"n": 1}, {"n": "x", "type": "string"}]))
    assert raised.value.code == "SX-INPUT-SCHEMA"


def test_a_real_connector_is_read(spark: SparkSession) -> None:
    """The generator's splits through Spark are the generator's rows."""
    connector = split_input(TaskSpec(name="g", type="input", connector="generator", options={"count": 1000}))
    datas = [split.data for split in connector.splits()]
    assert joined_splits(read_splits(spark, connector, datas)).num_rows == 1000
