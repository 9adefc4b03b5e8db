"""What goes to a function with keyed state, and what comes back: plain data, which may travel to another process and back.

Work holds all that the function may see: rows, the entries of their keys, and the timers that are due. So a function needs no
store. One that dies has changed nothing, and the same work can be done again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sardonyx.core.column_types import together
from sardonyx.core.errors import Failure
from sardonyx.state.base import KEY
from sardonyx.state.groups import Numbers
from sardonyx.state.handles import Cell
from sardonyx.state.keyed_entries import read_state_key
from sardonyx.state.timers import Setting


class KeyedPiece(NamedTuple):
    """A block of a link: its rows, the clock before it or before each row, and the times of its rows; all in microseconds."""

    rows: pa.Table
    in_force: int | Numbers
    times: Numbers | None = None


class Due(NamedTuple):
    """A timer that is due: of which key (its number in :class:`Work`), and how it was set."""

    code: int
    name: str
    setting: Setting


class Work(NamedTuple):
    """What one shard gives to the function in a batch."""

    rows: pa.Table
    codes: Numbers
    """The number of each row's key."""
    in_force: Numbers
    """The clock before each row: its own, or that before its block."""
    times: Numbers | None
    keys: list[bytes]
    """By number: the canonical bytes of the key. Keys with timers that are due, too."""
    values: list[tuple[Any, ...]]
    """By number: the values of the key's columns."""
    key_columns: list[str]
    entries: pa.Table
    """All entries of the states of these keys."""
    due: list[Due]
    """In the order in which they are due. Of the others that the store has, none may fire in this work."""
    clock: int
    """The clock after the batch. Timers up to it fire."""
    before: int
    """At the end of the input, the last clock before it; else the same."""
    bound: tuple[int, bytes, str] | None
    """If there are too many timers for a batch: the last one that may fire at its end: when it is due, its key, its name."""
    most: int
    """No more timers fire at the end of the batch than this."""

    @property
    def ended(self) -> bool:
        """Whether the input has ended."""
        return self.clock > self.before


class Failed(NamedTuple):
    """A row or a timer for which a function raised."""

    row: int | None
    timer: Due | None
    kind: str
    """The class of the exception."""
    failure: Failure


class Done(NamedTuple):
    """What a function made of work."""

    results: list[dict[str, Any]] | pa.Table
    origins: list[int]
    """Where each result comes from: the number of the row, or ``-1 - n`` for the timer ``fired[n]``. Of tables: empty."""
    writes: dict[bytes, Cell | None]
    """By entry: what it becomes; None: it goes."""
    timers: dict[tuple[int, str], Setting | None]
    """By the number of the key and the name: how they are set now; None: they are deleted, or have fired."""
    fired: list[Due]
    failed: list[Failed]
    state: pa.Table | None = None
    """Of functions of tables: a column ``code``, a column ``at``, and the declared ones: the new state of keys. What is in
    ``replaced`` and not here goes."""
    replaced: Sequence[int] = ()
    """Of functions of tables: the numbers of the keys whose state the function has given."""


def split(work: Work, parts: int) -> list[tuple[Work, Numbers]]:
    """The work in at most so many parts of about as many keys each, and the numbers of the rows of each part.

    Rows, entries and timers of a key stay together, in order.
    """
    count = min(parts, len(work.keys))
    if count <= 1:
        return [(work, np.arange(work.rows.num_rows))]
    code_of = {key: code for code, key in enumerate(work.keys)}
    of_entries = np.array([code_of[read_state_key(entry).key] for entry in work.entries[KEY].to_pylist()], np.int64)
    found: list[tuple[Work, Numbers]] = []
    for part in range(count):
        rows = np.flatnonzero(work.codes % count == part)
        taken = pa.array(rows)
        found.append(
            (
                work._replace(
                    rows=work.rows.take(taken),
                    codes=work.codes[rows],
                    in_force=work.in_force[rows],
                    times=None if work.times is None else work.times[rows],
                    entries=work.entries.filter(pa.array(of_entries % count == part)),
                    due=[each for each in work.due if each.code % count == part],
                ),
                rows,
            )
        )
    return found


def joined(parts: Sequence[tuple[Work, Numbers]], dones: Sequence[Done]) -> Done:
    """What came of the parts that :func:`split` made, as if the work had been done as a whole. Results are in order by part."""
    if len(dones) == 1:
        return dones[0]
    results: list[dict[str, Any]] = []
    origins: list[int] = []
    fired: list[Due] = []
    failed: list[Failed] = []
    writes: dict[bytes, Cell | None] = {}
    timers: dict[tuple[int, str], Setting | None] = {}
    tables = [done.results for done in dones if isinstance(done.results, pa.Table)]
    states = [done.state for done in dones if done.state is not None]
    for (_, rows), done in zip(parts, dones, strict=True):
        if not isinstance(done.results, pa.Table):
            results += done.results
        origins += [int(rows[each]) if each >= 0 else each - len(fired) for each in done.origins]
        fired += done.fired
        failed += [each if each.row is None else each._replace(row=int(rows[each.row])) for each in done.failed]
        writes |= done.writes
        timers |= done.timers
    failed.sort(key=lambda each: (each.row is None, each.row or 0))
    return Done(
        together(tables) if tables else results,
        origins,
        writes,
        timers,
        fired,
        failed,
        pa.concat_tables(states) if states else None,
        [each for done in dones for each in done.replaced],
    )


# --- The values of a key ----------------------------------------------------------------------------------------------

_AS_TEXT: dict[str, type] = {
    "moment": dt.datetime,
    "date": dt.date,
    "time": dt.time,
    "duration": dt.timedelta,
    "decimal": Decimal,
}


def pack_key(values: Sequence[Any]) -> list[Any]:
    """The values of a key so that MessagePack gives back the same types."""
    return [_packed(value) for value in values]


def unpack_key(packed: Sequence[Any]) -> tuple[Any, ...]:
    """The opposite of :func:`pack_key`."""
    return tuple(msgspec.convert(each[1], _AS_TEXT[each[0]]) if isinstance(each, list) else each for each in packed)


def _packed(value: Any) -> Any:
    word = next((word for word, kind in _AS_TEXT.items() if isinstance(value, kind)), None)
    return value if word is None else [word, msgspec.to_builtins(value)]


__all__ = ["Done", "Due", "Failed", "KeyedPiece", "Work", "joined", "pack_key", "split", "unpack_key"]
