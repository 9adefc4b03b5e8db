"""Windows of rows, for functions over all rows of the windows that close."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.column_types import together
from sardonyx.core.timing import WindowSpec
from sardonyx.state.base import KEY, Store
from sardonyx.state.closing import ended
from sardonyx.state.columns import ROWS
from sardonyx.state.entry_keys import MARK, ordered, starts_of
from sardonyx.state.groups import Mask, Numbers, numpy, one
from sardonyx.state.kinds import ordinal, windows_of
from sardonyx.state.overlay import Overlay
from sardonyx.state.planned import Piece, Planned, bounds_columns, late_rows, once, too_late
from sardonyx.state.waits import WindowWaits

IPC = "sx_ipc"
"""The column of entries with rows, as an Arrow stream."""
_LARGEST = 500_000
"""Bytes of an entry: it must fit into a message of the state log."""
SCHEMA = pa.schema([pa.field(KEY, pa.binary(), nullable=False), (IPC, pa.large_binary()), (ROWS, pa.int64())])


class WindowRows:
    """Windows by time without aggregates. Their results are the rows of the windows that close, of all keys, in the
    order of the log within each window, with ``window_start`` and ``window_end``.

    Windows close whole: a plan that has given ``limit`` rows closes no further one. There is an entry for each window
    and plan that had rows for it, or several if they are large. The key of an entry has the start of its window and a
    number, which rises. The shard's one other entry has the last number.
    """

    def __init__(
        self,
        window: WindowSpec,
        _keys: Sequence[str],
        store: Store,
        times: Callable[[pa.Table], Numbers | None],
        *,
        same: bool = False,
    ) -> None:
        once(window)
        self._same = same
        self._store, self._times = store, times
        self._windows = windows_of(window)
        self._ordinal, self._boundless = ordinal(window), window.kind == "everything"
        self._waits = WindowWaits(window)

    def plan(self, pieces: Sequence[Piece], clock: int, limit: int | None, now: int) -> Planned:  # noqa: ARG002
        """See :meth:`~sardonyx.state.windows.WindowShard.plan`."""
        state = Overlay(self._store)
        self._waits.begin(state, pieces, clock)
        late: list[pa.Table] = []
        taken = [self._taken(number, piece, late) for number, piece in enumerate(pieces) if piece.rows.num_rows]
        taken = [(rows, starts) for rows, starts in taken if rows.num_rows]
        if taken:
            self._add(state, together([rows for rows, _ in taken]), np.concatenate([starts for _, starts in taken]))
        results, more = self._close(state, clock, limit)
        return Planned(results, state.changes(), late_rows(late), more)

    def wake(self) -> None:
        """None: results come when windows close."""

    def _taken(self, number: int, piece: Piece, late: list[pa.Table]) -> tuple[pa.Table, Numbers]:
        """The rows of a piece, once for each of their windows that have not closed; and the starts of these."""
        rows, times = piece.rows, self._times(piece.rows)
        slices = self._windows.slices(np.zeros(rows.num_rows, np.int64) if times is None else times)
        clocks, within = piece.before_rows, self._in_any(slices)
        waits = self._waits.now
        bound = ended(self._windows, clocks, waits.grace, waits.closed)
        last = self._windows.last(slices)
        gone = (last < bound) & within
        if gone.any():
            ends = self._windows.ends(last[gone])
            late.append(too_late(number, gone, last[gone], ends, clocks[gone], waits.grace, closed=waits.closed))
        starts, where = self._windows.windows(slices)
        keep = (starts >= bound[where]) & within[where]
        return rows.take(pa.array(where[keep])), starts[keep]

    def _in_any(self, slices: Numbers) -> Mask:
        covered = self._windows.covered(slices)
        return np.ones(len(slices), np.bool_) if covered is None else covered

    def _add(self, state: Overlay, rows: pa.Table, starts: Numbers) -> None:
        mark = state.scan(MARK, None, 1)
        number = int(numpy(one(mark[ROWS]))[0]) + 1 if mark.num_rows else 0
        entries: list[tuple[bytes, bytes | None, int]] = []
        last = number
        for start in np.unique(starts).tolist():
            for place, (data, count) in enumerate(_streams(rows.filter(pa.array(starts == start))), number):
                entries.append((ordered(start) + ordered(place), data, count))
                last = max(last, place)
        columns = [list(column) for column in zip(*entries, (MARK, None, last), strict=True)]
        state.put(pa.table(columns, schema=SCHEMA))

    def _close(self, state: Overlay, clock: int, limit: int | None) -> tuple[pa.Table, bool]:
        before = ordered(self._windows.ended(self._waits.now.closing(clock)))
        parts, starts, given, first, more = list[pa.Table](), list[Numbers](), 0, b"", False
        while not more:
            least = state.scan(first, before, 1)
            if not least.num_rows:
                break
            start = int(starts_of(least[KEY])[0])
            entries = state.scan(ordered(start), ordered(start + 1))
            first = ordered(start + 1)
            parts += [pa.ipc.open_stream(chunk.as_py()).read_all() for chunk in one(entries[IPC])]
            here = int(pc.sum(entries[ROWS]).as_py())
            starts.append(np.full(here, start))
            state.remove(one(entries[KEY]))
            given += here
            more = limit is not None and given >= limit
        rows = together(parts) if parts else pa.table({})
        of_rows = np.concatenate(starts) if starts else np.zeros(0, np.int64)
        ends = self._windows.ends(of_rows)
        bounded = bounds_columns(rows, of_rows, ends, ordinal=self._ordinal, boundless=self._boundless, same=self._same)
        return bounded, more


def _streams(rows: pa.Table) -> Iterator[tuple[bytes, int]]:
    """The rows as streams, each with its number of rows. A stream is larger than :data:`_LARGEST` only if one row is."""
    data, half = stream(rows), rows.num_rows // 2
    if len(data) <= _LARGEST or not half:
        yield data, rows.num_rows
        return
    yield from _streams(rows.slice(0, half))
    yield from _streams(rows.slice(half))


def stream(rows: pa.Table) -> bytes:
    """The rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
