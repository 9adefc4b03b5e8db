"""How splits are shared out to workers, and which rows are kept of those that raised."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sardonyx.connectors.base import Split
from sardonyx.connectors.records import rows_at
from spark_tasks.read_splits import SMALLEST_SLICE, shared_out


class Divisible:
    """An input whose splits divide into the parts that it is given."""

    def __init__(self, parts: int) -> None:
        self._parts = parts

    def splits(self) -> list[Split]:
        return []

    def read(self, data: dict[str, Any]) -> pa.Table:
        return pa.table({"n": [data["n"]]})

    def divide(self, data: dict[str, Any], most: int) -> list[dict[str, Any]] | None:
        return [{**data, "n": n} for n in range(min(most, self._parts))]


def test_a_split_is_shared_by_the_workers() -> None:
    """A split that divides well keeps every worker busy."""
    shares = shared_out(Divisible(100), [Split({"n": 0}, rows=100 * SMALLEST_SLICE)], 4)
    assert shares is not None
    assert len(shares) == 4


@pytest.mark.parametrize("parts", [0, 1])
def test_a_split_that_does_not_divide_is_read_first(parts: int) -> None:
    """No part at all, or one part with many rows, would keep one worker busy: the rows are dealt out after reading."""
    assert shared_out(Divisible(parts), [Split({"n": 0}, rows=100 * SMALLEST_SLICE)], 4) is None


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.binary_view()])
def test_rows_are_taken_of_every_type(kind: pa.DataType) -> None:
    """Rows that raised are found again also in columns that pyarrow cannot take rows of."""
    table = pa.table({"a": pa.array([b"x", b"y", b"z"], pa.binary()).cast(kind)})
    assert [row["a"] for row in rows_at(table, [2, 0]).to_pylist()] == [table["a"][2].as_py(), table["a"][0].as_py()]
    assert rows_at(table, []).num_rows == 0
