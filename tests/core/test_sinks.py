"""What goes over which link: conditions, keys, failed records."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.sinks import FAILED, LinkSink, TopicSink, taken
from queues import block
from queues.keys import canonical
from sardonyx.connectors.registry import topic_format
from sardonyx.core.conditions import Condition, Where
from sardonyx.core.errors import FunctionError
from sardonyx.core.graph import Link
from sardonyx.core.spec import Route
from sardonyx.runtime.functions import import_function

HERE = __name__
ROWS = pa.table({"id": [1, 2, 3, 4], "carrier": ["AA", None, "UA", "AA"], "late": [True, None, False, True]})


def late(rows: pa.Table) -> pa.ChunkedArray:
    return rows["late"]


def early(row: dict) -> bool | None:
    return None if row["late"] is None else not row["late"]


def in_numpy(rows: pa.Table) -> Any:
    return rows["id"].to_numpy() > 2


def in_pandas(rows: pa.Table) -> Any:
    return rows.to_pandas()["id"] > 2


def in_a_list(rows: pa.Table) -> list[bool]:
    return [value > 2 for value in rows["id"].to_pylist()]


def never(rows: pa.Table) -> pa.Array:
    return pa.nulls(rows.num_rows)


def too_short(rows: pa.Table) -> Any:
    return rows["late"][:2]


def one_for_all(rows: pa.Table) -> Any:
    return pc.any(rows["late"])


def numbers(rows: pa.Table) -> Any:
    return rows["id"]


def number(row: dict) -> int:
    return row["id"]


def muddled(rows: pa.Table) -> Any:
    return [1, "two", 3, 4]


def raises(rows: pa.Table) -> Any:
    raise ValueError("no idea")


def raises_once(row: dict) -> bool:
    return row["id"] > 2 or row["missing"]


def key_of_record(row: dict) -> Any:
    return row["carrier"], row["id"] % 2


def key_of_table(rows: pa.Table) -> pa.Table:
    return pa.table({"c": rows["carrier"], "p": pc.bit_wise_and(rows["id"], 1)})


def key_of_nothing(rows: pa.Table) -> pa.Table:
    return rows.select([])


def a_link(where: Where | None = None, *, of: str = "results", group_by: Any = None) -> Link:
    route = Route(of=of, where=f"{HERE}:{where}" if isinstance(where, str) else where)
    return Link("a.b", "d.j.a.b", "internal", "a", "b", route=route, group_by=group_by)


def a_sink(link: Link, partitions: int = 4, first: int = 0) -> LinkSink:
    return LinkSink(link, partitions, "peer-1", import_function, first)


def written(sink: LinkSink, results: pa.Table, failed: pa.Table | None = None) -> dict[int, list[dict]]:
    """Rows by partition."""
    found: dict[int, list[dict]] = {}
    for message in sink.messages(results, failed):
        found.setdefault(message.partition, []).extend(block.decode([message.value]).to_pylist())
    return found


def ids(by_partition: dict[int, list[dict]]) -> list[int]:
    return sorted(row["id"] for rows in by_partition.values() for row in rows)


def failures(count: int) -> pa.Table:
    rows = [
        {"task": "a", "code": "SX-FN-RAISED", "error": "ValueError", "attempts": n, "record": "{}"}
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, FAILED)


def many(failed: pa.Table) -> pa.Array:
    return pc.greater(failed["attempts"], 1)


# --- Conditions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, [1, 2, 3, 4]),
        ("late", [1, 4]),
        ("early", [3]),
        ("in_numpy", [3, 4]),
        ("in_pandas", [3, 4]),
        ("in_a_list", [3, 4]),
        ("never", []),
    ],
)
def test_the_rows_for_which_the_condition_holds(where, expected):
    """Null counts as false; it matters not whether Arrow, numpy, pandas or Python gives the answer."""
    assert ids(written(a_sink(a_link(where)), ROWS)) == expected


def beyond(rows: pa.Table, limit: int) -> pa.ChunkedArray:
    asked.append(rows["id"].to_pylist())
    return pc.greater(rows["id"], limit)


def known(row: dict) -> bool:
    return row["late"] is not None


def fit_for_known(row: dict) -> bool:
    return not (row["late"] < 1)


asked: list[list[int]] = []
BEYOND_2 = Condition(fn=f"{HERE}:beyond", params={"limit": 2})
LATE, EARLY, KNOWN, FIT = (f"{HERE}:{name}" for name in ("late", "early", "known", "fit_for_known"))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (BEYOND_2, [3, 4]),
        (Condition(not_=BEYOND_2), [1, 2]),
        (Condition(not_=LATE), [2, 3]),
        (Condition(all_of=[LATE, BEYOND_2]), [4]),
        (Condition(any_of=[EARLY, Condition(not_=BEYOND_2)]), [1, 2, 3]),
        (Condition(all_of=[KNOWN, FIT]), [1, 4]),
        (Condition(any_of=[Condition(not_=KNOWN), FIT]), [1, 2, 4]),
        (Condition(not_=Condition(any_of=[LATE, EARLY])), [2]),
        (Condition(all_of=[Condition(fn=EARLY), KNOWN, BEYOND_2, Condition(not_=LATE)]), [3]),
        (Condition(all_of=[f"{HERE}:never", f"{HERE}:raises"]), []),
    ],
)
def test_conditions_together(where, expected):
    """As `and`, `or` and `not` of Python: what an earlier one has decided, a later one is not asked."""
    assert ids(written(a_sink(a_link(where)), ROWS)) == expected


def test_a_condition_is_asked_about_what_is_open():
    """A condition gets its parameters, and only the rows for which the conditions before it leave the answer open."""
    asked.clear()
    written(a_sink(a_link(Condition(all_of=[LATE, BEYOND_2]))), ROWS)
    assert asked == [[1, 4]]


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("too_short", "SX-FN-RESULT", "2 values for 4 rows"),
        ("one_for_all", "SX-FN-RESULT", "BooleanScalar for 4 rows"),
        ("numbers", "SX-FN-RESULT", "values of type int64"),
        ("number", "SX-FN-RESULT", "gave 1 for a record"),
        ("muddled", "SX-FN-RESULT", ""),
        ("raises", "SX-FN-RAISED", "ValueError: no idea"),
        ("raises_once", "SX-FN-RAISED", "the record was {'id': 1"),
    ],
)
def test_an_answer_that_is_none_is_an_error(where, code, said):
    """It names the condition and its task, shows the user's own traceback, and drops no row silently."""
    with pytest.raises(FunctionError) as caught:
        written(a_sink(a_link(where)), ROWS)
    assert caught.value.code == code
    assert f"condition {where} of task a" in caught.value.message
    assert said in f"{caught.value.message} {caught.value.cause}"
    if code == "SX-FN-RAISED":
        assert caught.value.traceback.count('File "') == 1


def test_a_condition_is_not_asked_about_nothing():
    """Where no row came out, not even the columns are known."""
    assert written(a_sink(a_link("raises")), pa.table({})) == {}
    assert written(a_sink(a_link(group_by=["carrier"])), pa.table({})) == {}


def test_a_condition_that_cannot_be_found_is_told_at_once():
    """When the task is made ready, not with its first batch."""
    with pytest.raises(FunctionError) as caught:
        a_sink(a_link("nobody"))
    assert caught.value.code == "SX-FN-IMPORT"


def test_a_condition_holds_for_a_topic_too():
    """An output that is bound in place gets the rows that its edge lets through."""
    link = Link("a.out", "out", "output", "a", "out", {"format": "json"}, Route(where=f"{HERE}:late"))
    sink = TopicSink(link, topic_format(link.options), import_function)
    (records,) = sink.messages(ROWS)
    assert len(records.records) == 2
    assert list(sink.messages(ROWS.slice(1, 2))) == []


# --- Failed records ---------------------------------------------------------------------------------------------------


def test_failed_records_go_over_failed_edges_only():
    """Results and failed records never share a way; without failed records a failed-edge carries nothing."""
    plain, failed = a_sink(a_link()), a_sink(a_link(of="failed"))
    assert ids(written(plain, ROWS, failures(3))) == [1, 2, 3, 4]
    (rows,) = written(failed, ROWS, failures(3)).values()
    assert [row["attempts"] for row in rows] == [0, 1, 2]
    assert rows[0].keys() == set(FAILED.names)
    assert written(failed, ROWS) == {}


def test_who_takes_a_failed_record():
    """What no failed-edge takes is left to on_error; the condition is asked once, and its answer is what is written."""
    sinks = [a_sink(a_link()), a_sink(a_link("many", of="failed"))]
    failed = failures(4)
    assert taken(sinks, failed).tolist() == [False, False, True, True]
    assert [row["attempts"] for rows in written(sinks[1], ROWS, failed).values() for row in rows] == [2, 3]
    assert taken(sinks[:1], failed).tolist() == [False] * 4
    assert taken([*sinks, a_sink(a_link(of="failed"))], failed).all()


# --- Keys -------------------------------------------------------------------------------------------------------------


def partition_of(*key: object, partitions: int = 4) -> int:
    return zlib.crc32(canonical(*key)) % partitions


@pytest.mark.parametrize("group_by", [["carrier"], [f"{HERE}:carrier"]])
def test_rows_stand_where_their_key_says(group_by):
    """By the documented hash, nulls as a key of their own, rows of a partition in their order; a colon in a list is a name."""
    rows = ROWS if group_by == ["carrier"] else ROWS.rename_columns(["id", group_by[0], "late"])
    found = written(a_sink(a_link(group_by=group_by), first=3), rows)
    expected: dict[int, list[int]] = {}
    for row in rows.to_pylist():
        expected.setdefault(partition_of(row[group_by[0]]), []).append(row["id"])
    assert {partition: [row["id"] for row in part] for partition, part in found.items()} == expected


def test_functions_of_tables_and_of_records_agree():
    """Several values make one key, from a table of several columns or a tuple."""
    by_table = written(a_sink(a_link(group_by=f"{HERE}:key_of_table")), ROWS)
    assert by_table == written(a_sink(a_link(group_by=f"{HERE}:key_of_record")), ROWS)
    assert all(
        partition_of(row["carrier"], row["id"] % 2) == partition for partition, rows in by_table.items() for row in rows
    )


@given(st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=60), st.integers(1, 9))
def test_splitting_loses_nothing_and_keeps_the_order(keys, partitions):
    """Every row once, each key in one partition, within a partition as they came."""
    rows = pa.table({"key": pa.array(keys, pa.int64()), "id": pa.array(np.arange(len(keys)))})
    found = written(a_sink(a_link(group_by=["key"]), partitions), rows)
    assert ids(found) == list(range(len(keys)))
    for partition, part in found.items():
        assert [row["id"] for row in part] == sorted(row["id"] for row in part)
        assert {partition_of(row["key"], partitions=partitions) for row in part} == {partition}


def test_blocks_are_cut_within_a_partition():
    """A block is no larger than its reader's batch, and none holds rows of two partitions."""
    rows = pa.table({"key": [n % 3 for n in range(300)], "id": list(range(300))})
    sink = LinkSink(a_link(group_by=["key"]), 4, "peer-1", import_function, rows=40)
    blocks = [(message.partition, block.decode([message.value])) for message in sink.messages(rows)]
    assert max(part.num_rows for _, part in blocks) <= 40
    assert all({partition_of(key) for key in part["key"].to_pylist()} == {partition} for partition, part in blocks)
    assert sorted(pa.concat_tables(part for _, part in blocks)["id"].to_pylist()) == list(range(300))


def test_a_key_that_is_not_there_names_the_columns_that_are():
    """A mistyped column is an error of the task that writes, told with what there is."""
    with pytest.raises(FunctionError) as caught:
        written(a_sink(a_link(group_by=["carier"])), ROWS)
    assert caught.value.code == "SX-KEY-COLUMN"
    assert "'carier'" in caught.value.message
    assert "id, carrier, late" in caught.value.cause
    with pytest.raises(FunctionError) as caught:
        written(a_sink(a_link(group_by=["nested"])), pa.table({"nested": [{"a": 1}]}))
    assert caught.value.code == "SX-KEY-TYPE"
    assert caught.value.where["task"] == "b"
    for function in ("too_short", "key_of_nothing", "one_for_all"):
        with pytest.raises(FunctionError) as caught:
            written(a_sink(a_link(group_by=f"{HERE}:{function}")), ROWS)
        assert caught.value.code == "SX-FN-RESULT"


def test_pandas_keys_are_the_same_keys():
    """A group function may answer with a pandas column."""
    assert written(a_sink(a_link(group_by=f"{HERE}:pandas_key")), ROWS) == written(
        a_sink(a_link(group_by=["carrier"])), ROWS
    )


def pandas_key(rows: pa.Table) -> pd.Series:
    return rows["carrier"].to_pandas()
