"""What joins, lookups and the like are given: rows of one or two sides, of which some are late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.column_types import together
from sardonyx.state.columns import LATE
from sardonyx.state.combine import keys_of
from sardonyx.state.groups import Mask, Numbers, numpy, one
from sardonyx.state.times import late as is_late
from sardonyx.state.times import set_back

Times: TypeAlias = Callable[[pa.Table], Numbers]

LEFT, RIGHT = 0, 1


class SidedPiece(NamedTuple):
    """A block of a link.

    ``rows``: as the task before makes them. ``in_force``: the clock before it, or before each row, as its own link states it.
    ``side``: :data:`LEFT` or :data:`RIGHT`.
    """

    rows: pa.Table
    in_force: int | Numbers
    side: int = LEFT


class Taken(NamedTuple):
    """The rows of one side that are not late, in the order of the log."""

    rows: pa.Table
    times: Numbers

    def of(self, chosen: Mask) -> Taken:
        """These rows only."""
        return self if chosen.all() else Taken(self.rows.filter(pa.array(chosen)), self.times[chosen])


def taken(
    pieces: Sequence[SidedPiece],
    side: int,
    times: Times,
    grace: int,
    late: list[pa.Table],
    *,
    shaped: bool = True,
    before: int = NEVER,
) -> Taken:
    """The rows of one side that count.

    A row is late if it is older than the clock in force before it, by more than ``grace``. So what is late depends on
    the log of its own side alone.

    Args:
        pieces: of all sides.
        side: which.
        times: gives the times of rows.
        grace: microseconds.
        late: gets tables of the late rows.
        shaped: False: rows have no times that matter, and none is late.
        before: rows before this time are late whatever the clock is.

    Raises:
        FunctionError: ``SX-COLUMN-TYPE``, the pieces have columns of types that do not go together.
    """
    tables: list[pa.Table] = []
    moments: list[Numbers] = []
    for number, piece in enumerate(pieces):
        if piece.side != side or not piece.rows.num_rows:
            continue
        rows, found = piece.rows, times(piece.rows)
        clocks = np.broadcast_to(piece.in_force, len(found))
        too_late = is_late(found, clocks, grace) | (found < before) if shaped else np.zeros(len(found), np.bool_)
        if too_late.any():
            late.append(_late(number, np.flatnonzero(too_late), found[too_late], clocks[too_late], grace, before))
            rows, found = rows.filter(pa.array(~too_late)), found[~too_late]
        tables.append(rows)
        moments.append(found)
    if not tables:
        return Taken(pa.table({}), np.zeros(0, np.int64))
    return Taken(together(tables) if len(tables) > 1 else tables[0], np.concatenate(moments))


def keyed(rows: pa.Table, columns: Sequence[str]) -> tuple[Numbers, pa.Array]:
    """The number of each row's key, and the canonical bytes by number: see :func:`~sardonyx.state.combine.keys_of`."""
    if not rows.num_rows:
        return np.zeros(0, np.int64), pa.array([], pa.binary())
    return keys_of(rows, columns)


def without_key(rows: pa.Table, columns: Sequence[str]) -> Mask:
    """Which rows have a null in their key: it equals no other."""
    found = np.zeros(rows.num_rows, np.bool_)
    for name in columns:
        if rows.num_rows and rows[name].null_count:
            found |= numpy(one(rows[name]).is_null())
    return found


def renumbered(left: pa.Array, right: pa.Array) -> tuple[Numbers, Numbers, pa.Array]:
    """One numbering for the keys of two sides: the new numbers of either's, and the keys by number."""
    both = pa.concat_arrays([left, right]).dictionary_encode()
    numbers = numpy(both.indices).astype(np.int64)
    return numbers[: len(left)], numbers[len(left) :], both.dictionary


def _late(number: int, rows: Numbers, times: Numbers, clocks: Numbers, grace: int, before: int) -> pa.Table:
    by = pa.array(np.maximum(set_back(clocks, grace), before) - times, mask=clocks >= END)
    none = pa.nulls(len(rows), pa.int64())
    return pa.table([pa.array(np.full(len(rows), number)), rows, none, none, by], schema=LATE)
