"""Reading the splits of a bounded input, in parallel on Spark's workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from sardonyx.connectors.base import SplitInput
from sardonyx.core.errors import InputError
from spark_tasks.worker_pool import from_buffer, on_workers, to_buffer


def read_splits(spark: Any, connector: SplitInput, datas: Sequence[dict[str, Any]]) -> list[pa.Table]:
    """The rows of each of some splits, in their order; one Spark task a split.

    Args:
        spark: the session.
        connector: whose ``read`` is called on the workers.
        datas: the ``data`` of each split; at least one.

    Raises:
        SardonyxError: what ``read`` raised, as it was.
        SetupError: ``SX-SPARK-LOST``.
    """
    if not datas:
        raise ValueError("there is no split to read")
    return [from_buffer(data) for data in on_workers(spark, "read splits", partial(_read, connector), list(datas))]


def joined_splits(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of several splits as one table.

    Raises:
        InputError: ``SX-INPUT-SCHEMA``, two of them have different types in one column.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise InputError(
            "SX-INPUT-SCHEMA",
            "two pieces of the input do not have the same columns",
            cause=str(error),
            fix="give the input a schema that fits all of it",
        ) from error


def _read(connector: SplitInput, data: dict[str, Any]) -> pa.Buffer:
    return to_buffer(connector.read(data))
