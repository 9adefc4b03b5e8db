"""What a shard of windows is given and what it plans; and the tables that results, late rows and entries are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.column_types import UnfitTypes, converted
from sardonyx.core.errors import FunctionError
from sardonyx.core.timing import WINDOW_NUMBER, WindowSpec, panes
from sardonyx.state.aggregates import Aggregates
from sardonyx.state.base import KEY
from sardonyx.state.columns import KEY_PART, LAST, LATE, NEW, PANE, ROWS, START, with_columns
from sardonyx.state.groups import Column, Groups, Mask, Numbers, one, unlisted
from sardonyx.state.kinds import ordinal
from sardonyx.state.roomy import of_state
from sardonyx.state.times import set_back

INSTANT = pa.timestamp("us", "UTC")
_NOT_LATE = LATE.empty_table()


class Piece(NamedTuple):
    """A block of a link.

    ``rows``: partial rows (they have a column ``sx_slice``), or rows as the user's functions make them, with the
    column of their time. ``in_force``: the clock before it, in microseconds. ``clocks``: the clock before each row, if
    the block says it; it never falls, and is not below ``in_force``.
    """

    rows: pa.Table
    in_force: int
    clocks: Numbers | None = None

    @property
    def before_rows(self) -> Numbers:
        """The clock in force before each row."""
        return np.broadcast_to(self.in_force, self.rows.num_rows) if self.clocks is None else self.clocks


class Planned(NamedTuple):
    """What a batch makes of a shard.

    ``results``: the key's columns, ``window_start``, ``window_end``, the aggregates, ``pane`` (from 0 for each window
    and key), ``final``, ``window_time``. ``changes``: for :meth:`~sardonyx.state.base.Store.apply`. ``late``: a row
    for each late one: the piece, the row in it, the start and end of the latest window it would be in, and how far
    before, by the clock in force, that window had closed (null after the end of the input). ``more``: windows remain
    to be closed; a further plan, without pieces and with the same clock, must follow before anything else is planned.
    ``waits``: of lookups, how many rows more wait, less those that do no longer.
    """

    results: pa.Table
    changes: pa.Table
    late: pa.Table
    more: bool
    waits: int = 0


def stretches(clocks: Numbers) -> list[tuple[int, int, int]]:
    """Where the same clock is in force before rows: the first of them, the one after the last, and the clock."""
    if not len(clocks):
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(clocks)) + 1])
    return list(zip(starts.tolist(), [*starts[1:].tolist(), len(clocks)], clocks[starts].tolist(), strict=True))


def too_late(
    number: int,
    which: Mask,
    starts: Numbers,
    ends: Numbers,
    clocks: Numbers,
    grace: int,
    before: int = 0,
    closed: int = NEVER,
) -> pa.Table:
    """The table of late rows.

    Args:
        number: of their piece.
        which: of these rows of the piece are late.
        starts: of the latest window that each late row would be in.
        ends: of the same windows.
        clocks: in force before the late rows.
        grace: of the windows.
        before: how many rows of the piece come before these.
        closed: windows that end at this time or before have closed in any case.
    """
    rows = np.flatnonzero(which) + before
    by = pa.array(np.maximum(set_back(clocks, grace), closed) - ends, mask=clocks >= END)
    return pa.table([pa.array(np.full(len(rows), number)), rows, starts, ends, by], schema=LATE)


class Layout:
    """The tables of one window's shard.

    Args:
        window: what is aggregated, by which windows.
        key_columns: the columns of the key.
        schema: of the store's entries.
        same: whether the rows are results of windows with the same bounds, so that these need not be kept beside them.
    """

    def __init__(
        self, window: WindowSpec, key_columns: Sequence[str], schema: pa.Schema, *, same: bool = False
    ) -> None:
        self._same = same
        self.keys = list(key_columns)
        self.held = [KEY_PART + name for name in key_columns]
        self.schema = schema
        self.aggregates = Aggregates(window.aggregate)
        self.ordinal = ordinal(window)
        self.boundless = window.kind in {"everything", "counted"}
        self._step = int(window.every or window.size or 1) if window.kind == "counted" else None
        self.panes = panes(window)
        self._rows = not window.aggregate
        self._nothing: pa.Table | None = None

    def key_columns(self, rows: pa.Table, chosen: pa.Array) -> dict[str, Column]:
        """The columns of entries with the keys of these rows."""
        return {held: rows[name].take(chosen) for name, held in zip(self.keys, self.held, strict=True)}

    def entries(self, columns: Mapping[str, Column]) -> pa.Table:
        """Entries with these columns; null in those that are missing.

        Raises:
            FunctionError: ``SX-COLUMN-TYPE``, the values do not fit the types that the state has.
        """
        count = len(columns[KEY])
        return pa.table(
            [fit(columns[f.name], f) if f.name in columns else pa.nulls(count, f.type) for f in self.schema],
            schema=self.schema,
        )

    def blank(self, entries: pa.Table) -> pa.Table:
        """Entries that have had no row: what ``accumulate=False`` leaves after each result."""
        kept = {name: entries[name] for name in [KEY, *self.held, PANE, START] if name in self.schema.names}
        zeros = pa.array(np.zeros(entries.num_rows, np.int64))
        return self.entries(kept | {ROWS: zeros, NEW: zeros})

    def results(
        self, entries: pa.Table, starts: Numbers, ends: Numbers, pane: Column | None, *, final: bool
    ) -> pa.Table:
        """The results of windows with these entries."""
        if self._rows:
            flat, inner = unlisted(*self._lists(entries))
            rows = self._bounded(pa.Table.from_struct_array(flat), starts[inner.ids], ends[inner.ids])
            return rows if self._step is None else _numbered(rows, starts[inner.ids] // self._step)
        count = entries.num_rows
        keys = pa.table({name: entries[held] for name, held in zip(self.keys, self.held, strict=True)})
        bounded = self._bounded(keys, starts, ends)
        columns: dict[str, Column] = dict(zip(bounded.column_names, bounded.columns, strict=True))
        time: Column = entries[LAST] if self.boundless else pa.array(ends - 1)
        columns |= self.aggregates.finish(entries)
        columns["pane"] = pa.array(np.zeros(count, np.int64)) if pane is None else pane
        columns["final"] = pa.array(np.full(count, final))
        columns["window_time"] = time if self.ordinal else one(time).cast(INSTANT)
        return pa.table(columns)

    def _lists(self, entries: pa.Table) -> tuple[pa.Array, Groups]:
        return self.aggregates.finish(entries)["rows"], Groups(np.arange(entries.num_rows), entries.num_rows)

    def _bounded(self, rows: pa.Table, starts: Numbers, ends: Numbers) -> pa.Table:
        return bounds_columns(rows, starts, ends, ordinal=self.ordinal, boundless=self.boundless, same=self._same)

    def all_results(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Tables of results in one; an empty one of the right columns if there are none."""
        if tables:
            return pa.concat_tables(tables)
        if self._nothing is None:
            none = np.zeros(0, np.int64)
            self._nothing = self.results(self.schema.empty_table(), none, none, None, final=True)
        return self._nothing


def undictionaried(rows: pa.Table) -> pa.Table:
    """Rows without dictionaries, each column in one piece."""
    return pa.table([one(column) for column in rows.columns], names=rows.column_names)


def once(window: WindowSpec) -> None:
    """Check a window with a function over its rows.

    Raises:
        FunctionError: ``SX-WINDOW-EMIT``, it would give its rows more than once.
    """
    if panes(window):
        raise FunctionError(
            "SX-WINDOW-EMIT",
            "a window with a function over its rows gives them once, when it closes",
            cause="it has another `emit=` than final, or `allowed_lateness=`",
            fix="leave them out, and use `grace=` to wait for late rows; or use `aggregate=` in place of the function",
        )


def fit(column: Column, field: pa.Field) -> pa.Array:
    """A column with the type that the state has.

    Raises:
        FunctionError: ``SX-COLUMN-TYPE``, a value would change.
    """
    try:
        return converted(one(column), field.type, field.name)
    except UnfitTypes as error:
        raise of_state(error) from error


def bounds_columns(
    rows: pa.Table, starts: Numbers, ends: Numbers, *, ordinal: bool, boundless: bool, same: bool
) -> pa.Table:
    """Rows with their windows' bounds: instants, or integers on an ordinal time; nulls for windows that have no
    bounds in time. Rows that come from other windows keep the bounds of these, see :func:`with_columns`; from the ``same``
    windows, by the specs of both, they have them once.
    """
    bounds: dict[str, Column] = {}
    for name, times in (("window_start", starts), ("window_end", ends)):
        bounds[name] = pa.nulls(len(times), INSTANT) if boundless else pa.array(times)
        if not boundless and not ordinal:
            bounds[name] = bounds[name].cast(INSTANT)
    if same and bounds.keys() <= set(rows.column_names):
        rows = rows.drop_columns(list(bounds))
    return with_columns(rows, bounds)


def _numbered(rows: pa.Table, numbers: Numbers) -> pa.Table:
    """Rows of counted windows, which no times tell apart, with the numbers of these."""
    return with_columns(rows, {WINDOW_NUMBER: pa.array(numbers)})


def late_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of late rows in one."""
    return pa.concat_tables(tables) if tables else _NOT_LATE
