"""Rows combined by key and slice of time, before they go into a link: a million rows of a thousand keys become a few
thousand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from queues.keys import numbered
from sardonyx.core.errors import FunctionError
from sardonyx.core.timing import WindowSpec
from sardonyx.state.aggregates import Aggregates
from sardonyx.state.columns import SLICE, SX_KEY
from sardonyx.state.groups import Column, Groups, Numbers, grouped, one
from sardonyx.state.kinds import windows_of


class Combiner:
    """Makes partial rows. Keep one for each link: it is quicker than :func:`combine`, which makes one for each call.

    Args:
        window: one that :func:`sardonyx.core.timing.combines`.
        key_columns: the columns of the key, in its order; none: all rows have one key.
    """

    def __init__(self, window: WindowSpec, key_columns: Sequence[str]) -> None:
        self._keys = list(key_columns)
        self._windows = windows_of(window)
        self._aggregates = Aggregates(window.aggregate)

    def __call__(self, rows: pa.Table, times: Numbers | None) -> pa.Table:
        """One row for each key and slice. The same rows give the same table.

        Args:
            rows: in the order of the log.
            times: of the rows; None for windows without time.

        Returns:
            ``sx_key`` (the canonical bytes of the key), the key's columns as its first row has them, ``sx_slice``
            (the start of the slice), the partials of the aggregates, ``sx_first`` and ``sx_last`` (the least and the
            greatest time), and ``sx_rows``.

        Raises:
            FunctionError: ``SX-KEY-TYPE``, ``SX-KEY-COLUMN``, ``SX-WINDOW-COLUMN``, ``SX-WINDOW-TYPE``,
            ``SX-WINDOW-OVERFLOW``, ``SX-WINDOW-TIME``.
        """
        slices = self._windows.slices(np.zeros(rows.num_rows, np.int64) if times is None else times)
        covered = self._windows.covered(slices)
        if covered is not None and not covered.all():
            keep = np.flatnonzero(covered)
            return self(rows.take(pa.array(keep)), None if times is None else times[keep])
        return self.partials(rows, times, *keys_of(rows, self._keys), slices)

    def partials(
        self, rows: pa.Table, times: Numbers | None, codes: Numbers, canonical: pa.Array, slices: Numbers
    ) -> pa.Table:
        """The same, of rows whose keys (see :func:`keys_of`) and slices are known."""
        groups = _pairs(codes, len(canonical), slices)
        heads = groups.heads()
        chosen = pa.array(heads)
        columns: dict[str, Column] = {SX_KEY: canonical.take(pa.array(codes[heads]))}
        columns |= {name: one(rows[name].take(chosen)) for name in self._keys}
        columns[SLICE] = pa.array(slices[heads])
        return pa.table(columns | self._aggregates.lift(rows, groups, times))


def combine(rows: pa.Table, times: Numbers | None, window: WindowSpec, key_columns: Sequence[str]) -> pa.Table:
    """Rows combined by key and slice; see :meth:`Combiner.__call__`."""
    return Combiner(window, key_columns)(rows, times)


def keys_of(rows: pa.Table, key_columns: Sequence[str]) -> tuple[Numbers, pa.Array]:
    """The number of each row's key, and the canonical bytes by number.

    Raises:
        FunctionError: ``SX-KEY-TYPE``, ``SX-KEY-COLUMN``.
    """
    missing = [name for name in key_columns if name not in rows.column_names]
    if missing:
        raise FunctionError(
            "SX-KEY-COLUMN",
            f"the rows have no column {missing[0]!r}, by which a window groups them",
            cause=f"they have {', '.join(map(repr, rows.column_names))}",
            fix="name a column that the rows have in `group_by=`, or keep it in the function before the window",
        )
    if not key_columns:
        return np.zeros(rows.num_rows, np.int64), pa.array([b""] if rows.num_rows else [], pa.binary())
    return numbered([rows[name] for name in key_columns])


def _pairs(codes: Numbers, keys: int, slices: Numbers) -> Groups:
    """Groups of rows with the same key and slice."""
    if not len(codes):
        return Groups(codes, 0)
    least, greatest = int(slices.min()), int(slices.max())
    if least == greatest:
        return _dense(codes, keys)
    starts = np.sort(np.unique(slices)) if len(slices) < 1000 else _few(slices)
    return _dense(np.searchsorted(starts, slices) * keys + codes, keys * len(starts))


def _few(values: Numbers) -> Numbers:
    return np.sort(pa.array(values).unique().to_numpy(zero_copy_only=False))


def _dense(numbers: Numbers, bound: int) -> Groups:
    """Groups of equal numbers from 0 to below ``bound``."""
    if bound > 4 * len(numbers) + 1000:
        return grouped(pa.array(numbers))
    used = np.zeros(bound, np.bool_)
    used[numbers] = True
    count = int(np.count_nonzero(used))
    if count == bound:
        return Groups(numbers, count)
    return Groups((np.cumsum(used) - 1)[numbers], count)
