"""What a search for the rows that a function raises for may take apart: single rows, or rows that stay together.

A function over windows is promised whole windows. So the search never gives it a part of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from sardonyx.connectors.records import rows_at
from sardonyx.core.spec import TaskSpec
from sardonyx.core.timing import WINDOW_NUMBER
from sardonyx.state.combine import keys_of
from sardonyx.state.groups import Groups, Numbers, grouped


def together(task: TaskSpec) -> list[str] | None:
    """The columns of the rows that stay together: those of a key and a window. None: each row stands alone.

    With ``aggregate``, a function is given results, and each stands for its whole window.
    """
    if task.window is None or task.window.aggregate:
        return None
    keys = task.group_by if isinstance(task.group_by, list) else []
    return [*keys, WINDOW_NUMBER if task.window.kind == "counted" else "window_start"]


class Units:
    """The rows of a table in units, in the order of their first rows.

    Args:
        table: the rows.
        columns: rows with equal values in these are one unit; None: each row is one.
    """

    def __init__(self, table: pa.Table, columns: Sequence[str] | None) -> None:
        self._table = table
        self._columns = columns

    def __len__(self) -> int:
        return self._table.num_rows if self._columns is None else self._groups.count

    def rows(self, start: int, stop: int) -> pa.Table:
        """The rows of the units from ``start`` to before ``stop``, in the order of the table."""
        if self._columns is None:
            return self._table.slice(start, stop - start)
        ids = self._groups.ids
        return rows_at(self._table, np.flatnonzero((ids >= start) & (ids < stop)).tolist())

    def first(self, unit: int) -> int:
        """The index of the first row of a unit."""
        return unit if self._columns is None else int(self._heads[unit])

    def whole(self, firsts: Sequence[int]) -> tuple[Numbers, Numbers]:
        """All rows of the units with these first rows: their indexes, and for each the position of its unit in ``firsts``."""
        if self._columns is None:
            return np.array(firsts, np.int64), np.arange(len(firsts))
        position = np.full(len(self), -1, np.int64)
        position[self._groups.ids[np.array(firsts, np.int64)]] = np.arange(len(firsts))
        of_rows = position[self._groups.ids]
        indexes = np.flatnonzero(of_rows >= 0)
        return indexes, of_rows[indexes]

    @cached_property
    def _groups(self) -> Groups:
        codes, _ = keys_of(self._table, self._columns or ())
        return grouped(pa.array(codes))

    @cached_property
    def _heads(self) -> Numbers:
        return self._groups.heads()
