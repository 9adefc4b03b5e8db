"""Views and runs of Arrow, which functions and connectors of users may give, are plain columns behind them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sardonyx.connectors.custom import custom_input
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.plain_types import plain_table
from sardonyx.core.settled_types import SettledTypes
from sardonyx.core.timing import AggregateSpec, WindowSpec
from sardonyx.state.windows import Piece, WindowShard, entry_schema
from tests.core.dict_store import DictStore

FORMS: dict[str, tuple[pa.Array, pa.DataType]] = {
    "texts": (pa.array(["a", None], pa.string_view()), pa.string()),
    "bytes": (pa.array([b"a", None], pa.binary_view()), pa.binary()),
    "no texts": (pa.nulls(2, pa.string_view()), pa.string()),
    "views of lists": (pa.array([[1], None], pa.list_view(pa.int64())), pa.list_(pa.int64())),
    "large views": (pa.array([["a"], []], pa.large_list_view(pa.string_view())), pa.large_list(pa.string())),
    "lists of texts": (pa.array([["a"], None], pa.list_(pa.string_view())), pa.list_(pa.string())),
    "pairs": (pa.array([["a", "b"], None], pa.list_(pa.string_view(), 2)), pa.list_(pa.string(), 2)),
    "a struct": (
        pa.array([{"x": "a"}, None], pa.struct([("x", pa.string_view())])),
        pa.struct([("x", pa.string())]),
    ),
    "a map": (
        pa.array([[("k", b"v")], None], pa.map_(pa.string_view(), pa.binary_view())),
        pa.map_(pa.string(), pa.binary()),
    ),
    "runs": (pa.RunEndEncodedArray.from_arrays([1, 2], [5, None]), pa.int64()),
    "runs of texts": (
        pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["a", "b"], pa.string_view())),
        pa.string(),
    ),
}


def two(form: str) -> pa.Table:
    return pa.table({"v": FORMS[form][0], "n": [1, 2]})


@pytest.mark.parametrize("form", FORMS)
def test_the_results_of_a_function_are_plain(form: str) -> None:
    """With the same values. So a window, whose rows Arrow must take apart, has no type that it cannot."""
    kind = FORMS[form][1]
    found = SettledTypes().settle(two(form))
    assert found.schema.field("v").type == kind
    assert found["v"].to_pylist() == FORMS[form][0].to_pylist()
    for aggregate in ({"last": AggregateSpec(of="last", column="v")}, {}):
        spec = WindowSpec(kind="everything", aggregate=aggregate)
        store = DictStore(entry_schema(spec, [], found.schema))
        results = WindowShard(spec, [], store).plan([Piece(found, NEVER)], END).results
        assert results["last" if aggregate else "v"].to_pylist()[-1] == FORMS[form][0].to_pylist()[-1]


@pytest.mark.parametrize("form", FORMS)
def test_the_rows_of_a_connector_are_plain(form: str) -> None:
    class Rows:
        def splits(self) -> list[dict[str, Any]]:
            return [{}]

        def read(self, data: dict[str, Any]) -> pa.Table:
            assert not data
            return two(form)

    found = custom_input("m:Rows", {}, lambda _: Rows).read({})
    assert found.schema.field("v").type == FORMS[form][1]


def test_other_tables_stay_as_they_are() -> None:
    """Nothing is copied."""
    nested = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), pa.array([[1, 2]], pa.list_(pa.int64(), 2))
    columns = [[1], ["a"], [[1]], [{"a": [1]}], pa.array(["a"]).dictionary_encode(), *nested]
    table = pa.table({f"c{n}": column for n, column in enumerate(columns)})
    assert plain_table(table) is table
