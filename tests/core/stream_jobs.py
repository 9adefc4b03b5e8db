"""Functions and sources of pipelines, and the spec of a pipeline and of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sardonyx import (
    Job,
    JobInvalid,
    State,
    files,
    kafka,
)
from sardonyx.core.spec import JobSpec
from sardonyx.job.load import load_job
from sardonyx.pipeline import Pipeline

OURS = "sardonyx.pipeline.functions"
SCHEMA = "shop string, at timestamp, amount double"


def clean(row: dict) -> dict:
    return row


def words(row: dict) -> list[dict]:
    return [row]


def label(row: dict) -> dict:
    return row


def whole(rows: pa.Table) -> pa.Table:
    return rows


def frame(rows: Any) -> Any:
    return rows


frame.__annotations__["rows"] = "pyspark.sql.DataFrame"


def is_large(row: dict) -> bool:
    return row["amount"] > 10


def is_small(rows: pa.Table) -> pa.ChunkedArray:
    return pc.less(rows["amount"], 10)


def add(one: dict, other: dict) -> dict:
    return {**one, "amount": one["amount"] + other["amount"]}


def spend(row: dict, total: State[float]) -> dict:
    return row


def topic(name: str = "orders", **options: Any) -> Any:
    return kafka(name, **{"schema": SCHEMA, "start": "earliest", "end": "latest", **options})


def lines() -> Any:
    return files("in.json", format="json", schema=SCHEMA)


def of_pipeline(build: Callable[[Pipeline], object]) -> JobSpec:
    made = Pipeline("j")
    build(made)
    return load_job(made, places=False).spec


def of_job(build: Callable[[Job], object]) -> JobSpec:
    made = Job("j")
    build(made)
    return load_job(made, places=False).spec


def codes(made: Pipeline) -> list[str]:
    with pytest.raises(JobInvalid) as raised:
        load_job(made, places=False)
    return [each.code for each in raised.value.problems]
