"""How many values become one, so that neither their order nor how they were divided changes a bit of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.graphs.shards import Floats, Numbers, runs

_WIDTH = 62
"""Bits of a sum of whole numbers in 64 bits, without its sign and one to spare."""
_LEAST = -1074
"""The exponent of the least double."""


def sums(places: Numbers, values: Floats, count: int) -> Floats:
    """For each place the sum of its values, with an error of less than 2**-80 of the greatest value.

    Values are cut into whole numbers, whose sums are the same in every order, once in units that just fit, and the rest in
    smaller units. (Demmel and Nguyen, 2013, show other ways to the same end.) Infinite values and NaN are as in every sum.

    Args:
        places: of each value, from 0.
        values: finite, infinite or NaN.
        count: how many places there are.
    """
    finite = np.isfinite(values)
    if not finite.all():
        return _with_infinite(places, values, finite, count)
    greatest = float(np.abs(values).max(initial=0.0))
    if greatest == 0.0:
        return np.zeros(count)
    most = int(np.bincount(places).max())
    width = _WIDTH - most.bit_length()
    exponent = int(np.frexp(greatest)[1])  # every value is less than 2**exponent
    upper, lower = max(exponent - width, _LEAST), max(exponent - 2 * width, _LEAST)
    whole = np.rint(np.ldexp(values, -upper))
    rest = np.rint(np.ldexp(values - np.ldexp(whole, upper), -lower))
    high, low = _added(places, whole.astype(np.int64), count), _added(places, rest.astype(np.int64), count)
    return np.ldexp(high.astype(np.float64), upper) + np.ldexp(low.astype(np.float64), lower)


def _with_infinite(places: Numbers, values: Floats, finite: Any, count: int) -> Floats:
    found = sums(places[finite], values[finite], count)
    strange = np.zeros((3, count), np.bool_)
    for number, which in enumerate((np.isnan(values), values == np.inf, values == -np.inf)):
        strange[number, places[which]] = True
    nan, up, down = strange
    found[up], found[down] = np.inf, -np.inf
    found[nan | (up & down)] = np.nan
    return found


def _added(places: Numbers, values: Numbers, count: int) -> Numbers:
    found = np.zeros(count, np.int64)
    np.add.at(found, places, values)
    return found


def whole_sums(places: Numbers, values: Numbers, count: int) -> Numbers:
    """For each place the sum of its whole numbers.

    Raises:
        OverflowError: one has more than 64 bits.
    """
    found = _added(places, values, count)
    if not len(values) or int(np.abs(values.astype(np.float64)).max()) * int(np.bincount(places).max()) < 2**62:
        return found
    high, low = _added(places, values >> 32, count), _added(places, values & 0xFFFFFFFF, count)
    upper = high + (low >> 32)
    if ((upper < -(2**31)) | (upper >= 2**31)).any():
        raise OverflowError("a sum has more than 64 bits")
    return found


def combined(how: str, places: Numbers, values: pa.Array, count: int) -> pa.Array:
    """For each place what its values become.

    Args:
        how: as :data:`~sardonyx.core.graphing.Combiner`.
        places: of each value, from 0; each place has one at least.
        values: without nulls, of a type of :data:`~sardonyx.core.graphing.ColumnType`.
        count: how many places there are.

    Raises:
        OverflowError: a sum of whole numbers has more than 64 bits.
    """
    if how == "collect" or kinds.is_string(values.type):
        return _by_sorting(how, places, values)
    if kinds.is_boolean(values.type):
        return combined(how, places, values.cast(pa.int64()), count).cast(pa.bool_())
    numbers = values.to_numpy()
    if how == "sum":
        return pa.array((sums if numbers.dtype == np.float64 else whole_sums)(places, numbers, count))
    if numbers.dtype == np.float64:
        numbers = _one_zero(numbers)
    found = np.empty(count, numbers.dtype)
    found[places] = numbers  # any of them, to begin with
    with np.errstate(invalid="ignore"):  # NaN is the least and the greatest
        (np.minimum if how == "min" else np.maximum).at(found, places, numbers)
    return pa.array(found)


def _one_zero(numbers: Floats) -> Floats:
    """The same with one zero and one NaN: both have several forms, and which of them is least depends on the order."""
    same = numbers + 0.0
    same[np.isnan(same)] = np.nan
    return same


def _by_sorting(how: str, places: Numbers, values: pa.Array) -> pa.Array:
    if kinds.is_floating(values.type):
        values = pa.array(_one_zero(values.to_numpy()))
    order = pc.sort_indices(
        pa.table({"place": places, "value": values}), [("place", "ascending"), ("value", "ascending")]
    )
    ordered = values.take(order)
    starts = np.flatnonzero(runs(places[order.to_numpy()]))
    if how == "collect":
        return pa.ListArray.from_arrays(pa.array(np.append(starts, len(places)), pa.int32()), ordered)
    ends = np.append(starts[1:], len(places)) - 1
    return ordered.take(pa.array(starts if how == "min" else ends))


def reduced(how: str, values: pa.Array | pa.ChunkedArray) -> Any:
    """What values become, nulls apart; None: there are none. A sum of whole numbers may have any number of bits.

    Args:
        how: as :data:`~sardonyx.core.graphing.Reducer`.
        values: numbers; with ``min``, ``max`` and ``count`` also texts and booleans.
    """
    values = values.drop_null()
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if how == "count":
        return len(values)
    if not len(values):
        return None
    if how in ("min", "max"):
        if kinds.is_floating(values.type):
            values = pa.array(_one_zero(values.to_numpy()))
            if np.isnan(values.to_numpy()).any():
                return float("nan")
        return pc.min_max(values)[how].as_py()
    numbers = values.to_numpy(zero_copy_only=False)
    if kinds.is_floating(values.type):
        total = float(sums(np.zeros(len(numbers), np.int64), numbers.astype(np.float64), 1)[0])
    else:
        total = int(_added(np.zeros(len(numbers), np.int64), numbers >> 32, 1)[0]) << 32
        total += int((numbers & 0xFFFFFFFF).sum(dtype=np.int64))
    return total / len(numbers) if how == "mean" else total


def by_place(how: str, places: Numbers, values: pa.Array, count: int) -> pa.Array:
    """For each place what its values become, nulls apart; null: it has none.

    Args:
        how: as :data:`~sardonyx.core.graphing.Reducer`.
        places: of each value, from 0; -1: it has none.
        values: whole numbers, doubles or booleans; with ``min`` and ``max`` also texts; with ``count`` anything.
        count: how many places there are.

    Raises:
        OverflowError: a sum of whole numbers has more than 64 bits.
    """
    there = values.is_valid().to_numpy(zero_copy_only=False) & (places >= 0)
    places, values = places[there], values.filter(pa.array(there))
    if how == "count":
        return pa.array(np.bincount(places, minlength=count))
    if how in ("sum", "mean") and kinds.is_boolean(values.type):
        values = values.cast(pa.int64())
    having, own = np.unique(places, return_inverse=True)
    if not len(having):
        return pa.nulls(count, pa.float64() if how == "mean" else values.type)
    found = combined("sum" if how == "mean" else how, own, values, len(having))
    if how == "mean":
        found = pa.array(found.to_numpy() / np.bincount(own))
    if len(having) == count:
        return found
    where = np.zeros(count, np.int64)
    where[having] = np.arange(len(having))
    return found.take(pa.array(where, mask=~np.isin(np.arange(count), having)))


__all__ = ["by_place", "combined", "reduced", "sums", "whole_sums"]
