"""Converts Arrow tables to Spark DataFrames, and keeps every type that Spark has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sardonyx.connectors.moments import cut_table
from sardonyx.core.errors import FunctionError
from sardonyx.core.text import shorten
from spark_tasks.failures import MESSAGE_LIMIT


def to_spark(spark: SparkSession, task: str, fn: str, slices: list[pa.Table]) -> DataFrame:
    """Make one DataFrame of all slices, with one partition for each slice.

    Raises:
        FunctionError: ``SX-FN-INPUT``, Spark has no type for a column.
    """
    schema = slices[0].schema
    wanted = pa.schema([pa.field(field.name, spark_type(field.type)) for field in schema])
    batches = [part.combine_chunks().to_batches() for part in slices]  # one chunk, one partition
    table = pa.Table.from_batches([batch for part in batches for batch in part], schema)
    try:
        if wanted != schema:
            table = cut_table(table).cast(wanted)
        return spark.createDataFrame(table, schema=from_arrow_schema(wanted, prefer_timestamp_ntz=True))
    except (pa.ArrowException, PySparkException) as error:
        raise FunctionError(
            "SX-FN-INPUT",
            f"Spark has no type for a column of the rows that task {task} gets",
            cause=shorten(str(error).partition("\n")[0], MESSAGE_LIMIT),
            fix="change the column in the task before, or let the function take a pyarrow.Table",
            where={"task": task, "function": fn},
        ) from error


_WIDER: list[tuple[Any, pa.DataType]] = [
    (kinds.is_uint8, pa.int16()),
    (kinds.is_uint16, pa.int32()),
    (kinds.is_uint32, pa.int64()),
    (kinds.is_uint64, pa.decimal128(20, 0)),
    (kinds.is_float16, pa.float32()),
    (kinds.is_date64, pa.date32()),
    (kinds.is_large_string, pa.string()),
    (kinds.is_string_view, pa.string()),
    (kinds.is_large_binary, pa.binary()),
    (kinds.is_binary_view, pa.binary()),
    (kinds.is_fixed_size_binary, pa.binary()),
    (kinds.is_time, pa.time64("us")),
    (kinds.is_duration, pa.duration("us")),
]


def spark_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type nearest to ``kind`` that Spark also has, or ``kind`` itself if there is none."""
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if kinds.is_nested(kind):
        return _nested(kind)
    return next((wider for is_kind, wider in _WIDER if is_kind(kind)), kind)


def _nested(kind: pa.DataType) -> pa.DataType:
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, spark_type(field.type), field.nullable) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(spark_type(kind.key_type), spark_type(kind.item_type))
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(spark_type(kind.value_type))
    return kind
