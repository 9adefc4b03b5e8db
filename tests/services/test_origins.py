"""Functions of records tell which record each result is made of. The workers' code runs here, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sardonyx.core.spec import OnError, TaskSpec
from spark_tasks import apply
from spark_tasks.apply import TaskFunction
from tests.services.functions import on

HERE = __name__
_calls: set[int] = set()


def some(row: dict) -> list[dict]:
    """As many results as the number says, less one; 7 raises once, and 9 always."""
    n = row["n"]
    if n == 9 or (n == 7 and n not in _calls):
        _calls.add(n)
        raise ValueError(n)
    return [{"n": n}] * (n % 4)


def even(row: dict) -> dict | None:
    return row if row["n"] % 2 == 0 else None


def whole(rows: pa.Table) -> pa.Table:
    return rows


def function(names: list[str], monkeypatch: pytest.MonkeyPatch, on_error: OnError) -> TaskFunction:
    _calls.clear()
    monkeypatch.setattr(apply, "on_workers", lambda _spark, _what, work, items, _took: [work(each) for each in items])
    monkeypatch.setattr(apply, "SMALLEST_SLICE", 5)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3))
    first, *fused = (TaskSpec(name=name, type="function", fn=f"{HERE}:{name}", on_error=on_error) for name in names)
    return TaskFunction(on(spark), first, fused=fused)


@pytest.mark.parametrize("names", [["some"], ["some", "even"], ["even", "some"]])
@pytest.mark.parametrize(
    "on_error", [OnError(then="skip", retries=1, backoff="0.001 s"), OnError()], ids=["bad", "good"]
)
def test_each_result_tells_its_record(names: list[str], on_error: OnError, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all slices, of records that raise once, and behind several functions. If one of several raises, none does."""
    bad = on_error.then == "skip"
    table = pa.table({"n": [n for n in range(20) if bad or n not in (7, 9)]})
    made = function(names, monkeypatch, on_error).apply(table, traced=True)
    assert made.table is not None
    assert [each.index for each in made.bad] == ([9] if bad and names != ["even", "some"] else [])
    if bad and names == ["some", "even"]:
        assert made.origins is None
        return
    assert made.origins is not None
    assert table.take(pa.array(made.origins, pa.int64()))["n"].to_pylist() == made.table["n"].to_pylist()


def test_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of tables cannot, and a job that does not ask for them does not pay for them."""
    table = pa.table({"n": range(6)})
    assert function(["whole"], monkeypatch, OnError()).apply(table, traced=True).origins is None
    assert function(["some"], monkeypatch, OnError()).apply(table).origins is None
