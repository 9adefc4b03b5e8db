"""The rows that a join or a lookup gives: the columns of a left row, and those of the right row that it goes with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from sardonyx.core.errors import FunctionError
from sardonyx.state.groups import Column, Numbers
from sardonyx.state.row_pack import RowPack


class Columns:
    """Which columns the results have.

    The left columns come first, with their names. Then come the right columns but those of the key. One with the name of a left
    column is called ``prefix`` and its name.

    Args:
        left: the left columns.
        right: a table without rows, with the right columns.
        dropped: the right columns that stand among the left ones already: those of the key.
        prefix: see above.

    Raises:
        FunctionError: ``SX-JOIN-COLUMN``, two columns would have one name.
    """

    def __init__(self, left: Collection[str], right: pa.Table, dropped: Collection[str], prefix: str) -> None:
        self._names = {
            name: prefix + name if name in left else name for name in right.column_names if name not in dropped
        }
        given = list(self._names.values())
        twice = next((name for name in given if name in left or given.count(name) > 1), None)
        if twice is not None:
            raise FunctionError(
                "SX-JOIN-COLUMN",
                f"two columns of the results would be called {twice!r}",
                cause=f"both sides have columns of one name, and those of the right side get the prefix {prefix!r}",
                fix="give another `prefix=`, or other names to the columns in a task before",
            )

    def results(self, left: pa.Table, right: pa.Table, which: Numbers) -> dict[str, Column]:
        """The columns of results.

        Args:
            left: a left row for each result.
            right: right rows.
            which: for each result the number of its right row; -1: none, so these columns are null.
        """
        numbers = pa.array(which, mask=which < 0) if (which < 0).any() else pa.array(which)
        found: dict[str, Column] = dict(zip(left.column_names, left.columns, strict=True))
        return found | {given: right[name].take(numbers) for name, given in self._names.items()}


def compacted(which: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers that occur, ascending, and each as its place among these."""
    used, places = np.unique(which, return_inverse=True)
    return used, places.astype(np.int64)


def learn(packs: Sequence[RowPack], known: Sequence[pa.Schema | None], rows: Sequence[pa.Table]) -> None:
    """Keep the columns of both sides: those that the job declares, from the first row of either side on, and those that come."""
    if not any(table.num_rows for table in rows):
        return
    for pack, schema, table in zip(packs, known, rows, strict=True):
        if schema is not None:
            pack.know(schema.empty_table())
        pack.know(table)
