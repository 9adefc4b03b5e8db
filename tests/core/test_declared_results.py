"""`schema=` of a task: its function's results have the declared types in every batch, or their records are bad ones."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from sardonyx import Count, Job, State, everything, files, generator
from sardonyx.connectors.records import to_table
from sardonyx.core.clocks import NEVER
from sardonyx.core.column_types import UnfitTypes
from sardonyx.core.errors import JobInvalid
from sardonyx.core.keyed import KeyedSpec
from sardonyx.job.load import load
from sardonyx.state.base import Store
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from spark_tasks.declared import Declared
from spark_tasks.worker import Plan, Slice, run
from spark_tasks.worker_pool import from_buffer, to_buffer
from tests.core.keyed_machine import Machine

SCHEMA = "id bigint, v decimal(10,2), at timestamp"
NOON = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)
GIVEN: list[Any] = [None, Decimal("1.10"), 7, 2.5, "x", Decimal("0.001"), Decimal("100.25")]
"""Of these, no. 3 to 5 are no ``decimal(10,2)``."""


def by_record(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "v": GIVEN[row["id"]], "more": "x"}


def by_table(rows: pa.Table) -> pa.Table:
    values = [GIVEN[place] for place in rows["id"].to_pylist()]
    kinds = {type(value) for value in values} - {type(None)}
    texts = [str(value) for value in values]
    return pa.table({"id": rows["id"], "v": values if len(kinds) < 2 else texts, "more": ["x"] * len(values)})


def by_frame(rows: pd.DataFrame) -> pd.DataFrame:
    return by_table(pa.Table.from_pandas(rows, preserve_index=False)).to_pandas()


def plan(fn: str, takes: Any) -> Plan:
    return Plan("t", f"{__name__}:{fn}", None, takes, {}, schema=SCHEMA)


@pytest.mark.parametrize(("fn", "takes"), [("by_record", "record"), ("by_table", "arrow"), ("by_frame", "pandas")])
def test_results_have_the_declared_types_and_others_are_bad_records(fn: str, takes: Any) -> None:
    """Wherever the rows are cut. A column that is declared and not given is null; one that is given and not declared stays."""
    kept: list[dict[str, Any]] = []
    bad: list[int] = []
    schemas = set()
    for start, end in ((0, 7), (0, 1), (1, 3), (3, 7)):
        rows = pa.table({"id": range(start, end)})
        done = run([plan(fn, takes)], Slice(to_buffer(rows), isolate=True))
        table = from_buffer(done.data)
        schemas.add(str(table.select(["id", "v", "at"]).schema))
        assert table.column_names[:3] == ["id", "v", "more"]
        if (start, end) == (0, 7):
            whole, whole_bad = table.select(["id", "v", "at"]).to_pylist(), [each.index for each in done.bad]
            assert {each.failure.code for each in done.bad} == {"SX-COLUMN-TYPE"}
            assert "column 'v' of what function" in done.bad[0].failure.message
            assert "decimal(10,2) and double" in done.bad[0].failure.message
        else:
            kept += table.select(["id", "v", "at"]).to_pylist()
            bad += [start + each.index for each in done.bad]
    assert whole == kept == [{"id": n, "v": GIVEN[n], "at": None} for n in (0, 1, 2, 6)]
    assert whole_bad == bad == [3, 4, 5]
    assert schemas == {"id: int64\nv: decimal128(10, 2)\nat: timestamp[us, tz=UTC]"}


def test_a_task_that_leaves_no_record_out_fails_with_the_same_error() -> None:
    """At the first record that does not fit."""
    done = run([plan("by_record", "record")], Slice(to_buffer(pa.table({"id": range(7)})), isolate=False))
    assert done.fault is not None
    assert (done.fault.index, done.fault.failure.code) == (3, "SX-COLUMN-TYPE")


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ("v double", 5, True),
        ("v double", 2**53 + 1, False),
        ("v float", 0.5, True),
        ("v float", 0.1, False),
        ("v bigint", 5.0, True),
        ("v bigint", True, False),
        ("v int", 2**40, False),
        ("v int", -(2**31), True),
        ("v int", 2**31, False),
        ("v decimal(4,2)", Decimal("99.99"), True),
        ("v decimal(4,2)", Decimal("100"), False),
        ("v decimal(4,2)", Decimal("1.100"), True),
        ("v decimal(4,2)", Decimal("1E+1"), True),
        ("v decimal(4,2)", Decimal("NaN"), False),
        ("v string", 9, False),
        ("v date", NOON, False),
        ("v timestamp", NOON.astimezone(dt.timezone(dt.timedelta(hours=2))), True),
        ("v timestamp", NOON.replace(tzinfo=None), False),
        ("v array<double>", [1, 2.5], True),
        ("v map<string, bigint>", {"a": 1}, True),
        ("v struct<a: bigint>", {"a": 1, "b": 2}, False),
        ("v string", None, True),
        ("v string NOT NULL", None, False),
        ("v bigint", 2**70, False),
        ("v string", object(), False),
    ],
)
def test_which_values_fit(schema: str, value: Any, fits: bool) -> None:
    """By the rule for types that come together: no value changes."""
    declared = Declared(schema, "t", "m:f")
    if fits:
        declared.check([{"v": value}])
        assert to_table([{"v": value}], pa.schema([]), declared.schema)["v"].type == declared.schema.field("v").type
        return
    with pytest.raises(UnfitTypes) as raised:
        declared.check([{"v": value}])
    assert raised.value.where == {"column": "v", "task": "t", "function": "m:f"}


def make_store(schema: pa.Schema) -> Store:
    return MemoryStore(schema)


def test_a_result_of_a_function_with_state_that_does_not_fit_changes_no_state() -> None:
    """The record is a bad one, as if the function had raised for it."""

    def add(row: dict[str, Any], total: State[int]) -> dict[str, Any]:
        total.value += 1
        return {"v": row["v"], "n": total.value}

    signature = signature_of(KeyedSpec(), add)
    function = KeyedFunction(signature, add, declared=Declared("v bigint, n bigint", "t", "m:add"))
    machine = Machine(signature, function, ["k"], make_store)
    rows = pa.table({"k": ["a"] * 3, "v": [1.0, 2.5, 3.0]})
    machine.batch([KeyedPiece(rows, NEVER)], NEVER)
    assert [(row["v"], row["n"]) for row, _ in machine.results] == [(1.0, 1), (3.0, 2)]
    assert machine.failed == ["UnfitTypes"]


@pytest.mark.parametrize(
    ("schema", "fn", "said"),
    [("v bigin", "by_record", "schema: "), ("v bigint", None, "it has a schema, but no function")],
)
def test_a_schema_that_cannot_be_is_a_mistake_in_the_job(schema: str, fn: str | None, said: str) -> None:
    """``check`` says it."""
    job = Job("j")
    rows = job.input("rows", generator(count=1, columns={"id": "sequence"}))
    if fn is None:
        last = job.window("w", everything(), after=rows, aggregate={"n": Count()}, schema=schema)
    else:
        last = job.task("w", by_record, after=rows, schema=schema)
    job.output("out", files("out", format="json"), after=last)
    with pytest.raises(JobInvalid) as raised:
        load(job)
    assert [(each.code, said in each.message) for each in raised.value.problems] == [("SX-JOB-SCHEMA", True)]
