"""Entries that hold several rows each: rows are added to them, and taken out of them, many entries at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.state.base import KEY
from sardonyx.state.groups import Groups, Mask, Numbers, grouped, listed, numpy, one
from sardonyx.state.overlay import Overlay
from sardonyx.state.row_pack import DONE, ROWS, SCHEMA, TIMES


class Opened(NamedTuple):
    """The rows of some entries.

    ``at``: for each row the number of its entry. ``times``, ``rows``, ``done``: see :mod:`sardonyx.state.row_pack`.
    """

    at: Numbers
    times: Numbers
    rows: pa.Array
    done: Mask

    def of(self, chosen: Mask | Numbers) -> Opened:
        """These rows only."""
        return Opened(self.at[chosen], self.times[chosen], self.rows.take(_positions(chosen)), self.done[chosen])


def opened(entries: pa.Table, numbers: Numbers | None = None) -> Opened:
    """The rows of entries.

    Args:
        entries: with the columns of :data:`~sardonyx.state.row_pack.SCHEMA`.
        numbers: of the entries; None: from 0.
    """
    times, rows, done = (one(entries[name]) for name in (TIMES, ROWS, DONE))
    lengths = numpy(times.value_lengths()).astype(np.int64)
    numbers = np.arange(entries.num_rows) if numbers is None else numbers
    return Opened(
        np.repeat(numbers, lengths),
        numpy(times.flatten()).astype(np.int64),
        rows.flatten(),
        numpy(done.flatten()).astype(np.bool_),
    )


def entries_of(keys: pa.Array, groups: Groups, times: Numbers, rows: pa.Array, done: Mask) -> pa.Table:
    """Entries with rows.

    Args:
        keys: of the entries.
        groups: the number of each row's entry.
        times: of the rows.
        rows: packed.
        done: whether each has given a result.
    """
    columns = [listed(column, groups) for column in (pa.array(times, pa.int64()), rows, pa.array(done, pa.bool_()))]
    return pa.table([keys, *columns], schema=SCHEMA)


def add(state: Overlay, keys: pa.Array, times: Numbers, rows: pa.Array, done: Mask | None = None) -> None:
    """Add rows to entries, after those that are there.

    Args:
        state: the entries.
        keys: for each row the key of its entry.
        times: of the rows.
        rows: packed.
        done: whether each has given a result; None: none has.
    """
    if not len(keys):
        return
    done = np.zeros(len(keys), np.bool_) if done is None else done
    groups = grouped(keys)
    distinct = keys.take(pa.array(groups.heads()))
    at, found = state.read(distinct)
    old = opened(found, at)
    if len(old.at):
        groups = Groups(np.concatenate([old.at, groups.ids]), groups.count)
        times, done = np.concatenate([old.times, times]), np.concatenate([old.done, done])
        rows = pa.concat_arrays([old.rows, rows])
    state.put(entries_of(distinct, groups, times, rows, done))


def keep(state: Overlay, keys: pa.Array, found: Opened, stays: Mask) -> None:
    """Take rows out of entries; an entry without rows goes.

    Args:
        state: the entries.
        keys: of the entries, each once, by the numbers in ``found``.
        found: all rows of these entries.
        stays: which of the rows stay.
    """
    left = found.of(stays)
    sizes = np.bincount(left.at, minlength=len(keys))
    empty = sizes == 0
    state.remove(keys.filter(pa.array(empty)))
    if not empty.all():
        numbers = np.cumsum(~empty) - 1
        groups = Groups(numbers[left.at], int(np.count_nonzero(~empty)))
        state.put(entries_of(keys.filter(pa.array(~empty)), groups, left.times, left.rows, left.done))


def prefixed(prefix: bytes, canonical: pa.Array) -> pa.Array:
    """The keys of entries that are found by their key."""
    return pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), canonical, pa.scalar(b"", pa.binary()))


def unprefixed(prefix: bytes, entry_keys: pa.Array) -> pa.Array:
    """The canonical bytes in such keys."""
    return pc.binary_slice(entry_keys, len(prefix), 2**31 - 1)  # without a bound, Arrow 26.0 fails on short values


def forget(state: Overlay, first: bytes, before: bytes) -> None:
    """Remove the entries between two keys."""
    state.remove(one(state.scan(first, before)[KEY]))


def _positions(chosen: Mask | Numbers) -> pa.Array:
    return pa.array(np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen)
