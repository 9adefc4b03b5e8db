"""Rows put together by group: sums, least and greatest values, and what else windows aggregate with. Arrow and numpy
do the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.errors import FunctionError

Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Column: TypeAlias = "pa.Array | pa.ChunkedArray"

_SAFE = 2.0**62
"""A sum of absolute values below this, counted in floating point, fits in 64 bits."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each row of a table belongs to.

    ``ids``: for each row the number of its group, from 0. ``count``: the number of groups; each has at least one row.
    """

    ids: Numbers
    count: int

    def sizes(self) -> Numbers:
        """The number of rows of each group."""
        return np.bincount(self.ids, minlength=self.count).astype(np.int64)

    def heads(self) -> Numbers:
        """The position of the first row of each group."""
        found = np.empty(self.count, np.int64)
        found[self.ids[::-1]] = np.arange(len(self.ids) - 1, -1, -1)
        return found

    def tails(self) -> Numbers:
        """The position of the last row of each group."""
        found = np.empty(self.count, np.int64)
        found[self.ids] = np.arange(len(self.ids))
        return found

    def of(self, rows: Mask | Numbers) -> Groups:
        """The same groups, of these rows only. A group may then have no row."""
        return Groups(self.ids[rows], self.count)


def grouped(column: Column) -> Groups:
    """Rows with equal values make a group. Groups are numbered in the order of their first rows."""
    encoded = one(column).dictionary_encode(null_encoding="encode")
    return Groups(numpy(encoded.indices).astype(np.int64), len(encoded.dictionary))


def one(column: Column) -> pa.Array:
    """A column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        column = (
            column.chunk(0)
            if column.num_chunks == 1
            else pa.concat_arrays(column.chunks)
            if column.num_chunks
            else pa.array([], column.type)
        )
    if kinds.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    return column


def numpy(array: pa.Array) -> Any:
    """An array without nulls, as numpy has it."""
    return array.to_numpy(zero_copy_only=False)


def present(array: pa.Array) -> Mask | None:
    """Which values are not null; None: all."""
    return numpy(array.is_valid()) if array.null_count else None


def plain(array: pa.Array, kind: pa.DataType | None = None) -> Any:
    """An array as numpy numbers, with 0 for nulls. Times become integers."""
    if kind is not None:
        array = array.cast(kind)
    elif kinds.is_temporal(array.type):
        array = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if array.null_count:
        array = array.fill_null(0)
    return numpy(array)


# --- Sums -------------------------------------------------------------------------------------------------------------


def sums(column: Column, groups: Groups, name: str) -> pa.Array:
    """The sum of each group's values; null where it has none.

    Args:
        column: of integers, floats or decimals.
        groups: of its rows.
        name: of the aggregate, for errors.

    Raises:
        FunctionError: ``SX-WINDOW-OVERFLOW``, a sum of integers exceeds 64 bits, or one of decimals its digits.
        ``SX-WINDOW-TYPE``, these values have no sum.
    """
    array = one(column)
    if kinds.is_decimal(array.type):
        return _decimals(array, groups, name)
    if kinds.is_null(array.type):
        return pa.nulls(groups.count, pa.int64())
    if kinds.is_integer(array.type) or kinds.is_boolean(array.type):
        return _integers(array, groups, name)
    if not kinds.is_floating(array.type):
        raise _no_number(name, array.type)
    return _where_present(array, groups, floats(array, groups))


def floats(array: pa.Array, groups: Groups) -> npt.NDArray[np.float64]:
    """The sum of each group's values in floating point, 0 where it has none."""
    values = plain(array, pa.float64())
    return np.bincount(groups.ids, values, minlength=groups.count).astype(np.float64)


def counts(array: pa.Array, groups: Groups) -> Numbers:
    """How many values of each group are not null."""
    there = present(array)
    return (groups if there is None else groups.of(there)).sizes()


def _decimals(array: pa.Array, groups: Groups, name: str) -> pa.Array:
    """Sums of decimals, of as many digits as their type can have. Arrow's own sum wraps around silently."""
    scale, wide = array.type.scale, kinds.is_decimal256(array.type)
    digits = 76 if wide else 38
    rough = np.bincount(groups.ids, np.abs(plain(array, pa.float64())), minlength=groups.count)
    if rough.size and rough.max() >= 0.9 * 10.0 ** (76 - scale):
        raise _overflow(name, "decimals", f"{digits} digits")
    found = by_arrow(array.cast(pa.decimal256(76, scale)), groups, "sum")
    try:
        return found if wide else found.cast(pa.decimal128(digits, scale))
    except pa.ArrowInvalid as error:
        raise _overflow(name, "decimals", f"{digits} digits") from error


def _integers(array: pa.Array, groups: Groups, name: str) -> pa.Array:
    try:
        values = plain(array, pa.int64())
    except pa.ArrowInvalid as error:
        raise _overflow(name) from error
    out = np.zeros(groups.count, np.int64)
    np.add.at(out, groups.ids, values)
    if len(values) and float(np.abs(values.astype(np.float64)).max()) * len(values) >= _SAFE:
        _check_sums(values, groups, name)
    return _where_present(array, groups, out)


def _check_sums(values: Numbers, groups: Groups, name: str) -> None:
    """Sums wrap around in 64 bits. Those that could have done so are summed again, exactly."""
    near = np.bincount(groups.ids, np.abs(values.astype(np.float64)), minlength=groups.count) >= _SAFE
    exact: dict[int, int] = {}
    rows = near[groups.ids]
    for group, value in zip(groups.ids[rows].tolist(), values[rows].tolist(), strict=True):
        exact[group] = exact.get(group, 0) + value
    if any(not -(2**63) <= total < 2**63 for total in exact.values()):
        raise _overflow(name)


def _where_present(array: pa.Array, groups: Groups, values: Any) -> pa.Array:
    there = present(array)
    return pa.array(values, mask=None if there is None else groups.of(there).sizes() == 0)


# --- Least and greatest -----------------------------------------------------------------------------------------------


def extremes(column: Column, groups: Groups, which: str, name: str) -> pa.Array:
    """The least (``which`` is "min") or greatest ("max") value of each group; null where it has none. NaN counts as null,
    unless there is nothing else. ``name``: of the aggregate, for errors.

    Raises:
        FunctionError: ``SX-WINDOW-TYPE``, these values have no order.
    """
    array = one(column)
    kind = array.type
    if kinds.is_null(kind):
        return pa.nulls(groups.count)
    if (
        not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_temporal(kind))
        or kinds.is_float16(kind)
        or kinds.is_interval(kind)
    ):
        try:
            return by_arrow(array, groups, which)
        except pa.ArrowNotImplementedError as error:
            raise no_order(name, kind) from error
    values = plain(array)
    there = present(array)
    shown = groups if there is None else groups.of(there)
    out = _extremes(values if there is None else values[there], shown, which)
    found = pa.array(out, mask=None if there is None else shown.sizes() == 0)
    return found.cast(kind) if found.type != kind else found


def _extremes(values: Any, groups: Groups, which: str) -> Any:
    if values.dtype.kind == "f":
        out = np.full(groups.count, np.nan, values.dtype)
        (np.fmin if which == "min" else np.fmax).at(out, groups.ids, values)
        return out
    bounds = np.iinfo(values.dtype)
    out = np.full(groups.count, bounds.max if which == "min" else bounds.min, values.dtype)
    (np.minimum if which == "min" else np.maximum).at(out, groups.ids, values)
    return out


def by_arrow(array: pa.Array, groups: Groups, function: str) -> pa.Array:
    """What one of Arrow's hash aggregates makes of each group."""
    made = pa.table({"g": groups.ids, "v": array}).group_by("g", use_threads=False).aggregate([("v", function)])
    where = np.empty(groups.count, np.int64)
    where[numpy(one(made["g"]))] = np.arange(groups.count)
    return one(made[f"v_{function}"]).take(pa.array(where))


# --- First and last ---------------------------------------------------------------------------------------------------


def firsts(groups: Groups, times: Numbers) -> Numbers:
    """The position of each group's earliest row; of several, the first in the order of the rows."""
    least = _extremes(times, groups, "min")
    rows = np.flatnonzero(times == least[groups.ids])
    return rows[groups.of(rows).heads()]


def lasts(groups: Groups, times: Numbers) -> Numbers:
    """The position of each group's latest row; of several, the last in the order of the rows."""
    greatest = _extremes(times, groups, "max")
    rows = np.flatnonzero(times == greatest[groups.ids])
    return rows[groups.of(rows).tails()]


# --- Lists ------------------------------------------------------------------------------------------------------------


def listed(values: pa.Array, groups: Groups, most: int | None = None) -> pa.ListArray:
    """The values of each group as a list, in the order of the rows.

    Args:
        values: one for each row.
        groups: of the rows; one without rows gets an empty list.
        most: the longest list; what comes later is left out.
    """
    order = np.argsort(groups.ids, kind="stable")
    sizes = groups.sizes()
    if most is not None and len(sizes) and int(sizes.max()) > most:
        starts = np.cumsum(sizes) - sizes
        order = order[np.arange(len(order)) - starts[groups.ids[order]] < most]
        sizes = np.minimum(sizes, most)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(order)))


def unlisted(lists: pa.Array, groups: Groups) -> tuple[pa.Array, Groups]:
    """The values in all lists, and the groups they belong to; the opposite of :func:`listed`. Groups may then be
    empty.
    """
    if kinds.is_null(lists.type):
        return pa.nulls(0), Groups(np.zeros(0, np.int64), groups.count)
    parents = numpy(pc.list_parent_indices(lists))
    return lists.flatten(), Groups(groups.ids[parents.astype(np.int64)], groups.count)


def _overflow(name: str, of: str = "integers", limit: str = "64 bits") -> FunctionError:
    return FunctionError(
        "SX-WINDOW-OVERFLOW",
        f"the sum {name!r} of {of} in a window exceeds {limit}",
        cause=f"sums of {of} are exact, and are kept in {limit}",
        fix="make floats of the column before the window, or take shorter windows",
    )


def _no_number(name: str, kind: pa.DataType) -> FunctionError:
    return FunctionError(
        "SX-WINDOW-TYPE",
        f"the aggregate {name!r} cannot be made of values of type {kind}",
        cause="sum, mean, var and quantile are made of numbers",
        fix="name another column in `aggregate=`, or make numbers of it before the window",
    )


def no_order(name: str, kind: pa.DataType) -> FunctionError:
    """``SX-WINDOW-TYPE``: values such as lists, structures and maps cannot be compared."""
    return FunctionError(
        "SX-WINDOW-TYPE",
        f"the aggregate {name!r} cannot be made of values of type {kind}",
        cause="min, max and distinct compare values, and these cannot be compared",
        fix="name another column in `aggregate=`, or make text or numbers of it before the window",
    )


def numbers_of(column: Column, name: str) -> pa.Array:
    """A column of numbers in floating point.

    Raises:
        FunctionError: ``SX-WINDOW-TYPE``.
    """
    array = one(column)
    kind = array.type
    if kinds.is_null(kind) or kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind):
        return array.cast(pa.float64(), safe=False)
    if kinds.is_decimal(kind):
        return array.cast(pa.float64())
    raise _no_number(name, kind)
