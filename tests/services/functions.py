"""Functions of all kinds as a job's bundle, and how a test applies one of them to a batch by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sardonyx.core.errors import FunctionError
from sardonyx.core.spec import OnError, TaskSpec
from sardonyx.job.bundle import build
from spark_tasks.applied import Applied
from spark_tasks.apply import TaskFunction
from spark_tasks.code import CodeBundle
from spark_tasks.on_demand import SparkOnDemand, TaskSpark

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


def bundled(folder: Path, job: str, helpers: str, cache: Path) -> CodeBundle:
    """Both modules, written into a folder, as a job's bundle."""
    (folder / "job.py").write_text(job)
    (folder / "helpers.py").write_text(helpers)
    bundle = build(folder)
    return CodeBundle.open(bundle.data, bundle.sha256, cache)


def on(spark: SparkSession, code: CodeBundle | None = None, group: str = "test") -> TaskSpark:
    """Spark for an assignment, of a session that runs."""
    return TaskSpark(SparkOnDemand(lambda: spark), group, code)


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
        return TaskFunction(on(self.spark, self.code), task)

    def fails(self, fn: str, table: pa.Table, *, skip: bool = False, **params: Any) -> FunctionError:
        with pytest.raises(FunctionError) as raised:
            self(fn, table, skip=skip, **params)
        error = raised.value
        shown = f"{error} {error.traceback} {error.where}"
        for noise in ("_sx_", "Py4J", "py4j", "\tat ", "spark_tasks", "SQLSTATE: 42703;"):
            assert noise not in shown
        assert error.where.items() <= {"task": "label", "function": f"job:{fn}"}.items()
        return error


def ids(rows: int, start: int = 0) -> pa.Table:
    """A batch with ids and delays, some of them null."""
    numbers = range(start, start + rows)
    return pa.table(
        {"id": pa.array(numbers, pa.int64()), "delay": [None if n % 10 == 9 else n % 40 / 1 for n in numbers]}
    )
