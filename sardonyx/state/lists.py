"""Aggregates whose partials are lists: distinct values, quantiles, and the values themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.timing import AggregateSpec
from sardonyx.state.groups import Groups, Numbers, listed, no_order, numbers_of, numpy, one, plain, present, unlisted

ERROR = 0.01
"""The relative error of a quantile."""
_GAMMA = (1 + ERROR) / (1 - ERROR)
_MIDDLE = 40_000
"""Added to the number of a bucket, so that those of all positive floats are positive: they are from -37,300 to 35,500."""
_INFINITE = 100_000


class _Listed:
    def __init__(self, name: str, spec: AggregateSpec) -> None:
        self._name = name
        self._most: int | None = spec.options.get("most")
        self._q = float(spec.options.get("q", 0.5))

    def _merged_lists(
        self, partials: dict[str, pa.Array], groups: Groups, *parts: str
    ) -> tuple[list[pa.Array], Groups]:
        values, inner = [], groups
        for part in parts:
            flat, inner = unlisted(partials[part], groups)
            values.append(flat)
        return values, inner


class Distinct(_Listed):
    """How many different values there are: exact, by a list of them. With ``most``, it counts no further than that."""

    def parts(self) -> list[str]:
        return [f"{self._name}.distinct"]

    def lift(self, column: pa.Array | None, groups: Groups, spans: Any) -> dict[str, pa.Array]:  # noqa: ARG002
        return self._lists(*_shown(one(column), groups)[:2])

    def merge(self, partials: dict[str, pa.Array], groups: Groups, spans: Any) -> dict[str, pa.Array]:  # noqa: ARG002
        (values,), inner = self._merged_lists(partials, groups, *self.parts())
        return self._lists(values, inner)

    def finish(self, partials: dict[str, pa.Array]) -> pa.Array:
        return pc.list_value_length(partials[self.parts()[0]]).cast(pa.int64()).fill_null(0)

    def _lists(self, values: pa.Array, groups: Groups) -> dict[str, pa.Array]:
        try:
            encoded = values.dictionary_encode()
        except pa.ArrowNotImplementedError as error:
            raise no_order(self._name, values.type) from error
        pairs = groups.ids * max(len(encoded.dictionary), 1) + numpy(encoded.indices)
        rows = np.sort(np.unique(pairs, return_index=True)[1])
        return {self.parts()[0]: listed(values.take(pa.array(rows)), groups.of(rows), self._most)}


class Collect(_Listed):
    """The values as a list in the order of their rows' times; of equal times in the order of the log. With ``most``,
    the first ones.
    """

    def parts(self) -> list[str]:
        return [f"{self._name}.values", f"{self._name}.times"]

    def lift(self, column: pa.Array | None, groups: Groups, spans: Any) -> dict[str, pa.Array]:
        values, shown, there = _shown(one(column), groups)
        return self._lists(values, spans.first if there is None else spans.first[there], shown)

    def merge(self, partials: dict[str, pa.Array], groups: Groups, spans: Any) -> dict[str, pa.Array]:  # noqa: ARG002
        (values, times), inner = self._merged_lists(partials, groups, *self.parts())
        return self._lists(values, numpy(times).astype(np.int64), inner)

    def finish(self, partials: dict[str, pa.Array]) -> pa.Array:
        lists = partials[self.parts()[0]]
        return pc.coalesce(lists, pa.scalar([], lists.type)) if lists.null_count else lists

    def _lists(self, values: pa.Array, times: Numbers, groups: Groups) -> dict[str, pa.Array]:
        order = np.argsort(times, kind="stable")
        inner, moved = groups.of(order), pa.array(order)
        lists = (listed(values.take(moved), inner, self._most), listed(pa.array(times[order]), inner, self._most))
        return dict(zip(self.parts(), lists, strict=True))


class Quantile(_Listed):
    """The value below which a share ``q`` of the values lies, in floating point, with a relative error of at most one
    percent.

    The partial is a DDSketch (Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with
    relative-error guarantees", VLDB 2019): how many values are in each of the buckets whose bounds are powers of
    1.0202. The result is within 1 % of the value with rank ``floor(q * (n - 1))``, counted from 0. Values over twelve
    orders of magnitude fill at most 1,400 buckets. It does not matter in which order values come.
    """

    def parts(self) -> list[str]:
        return [f"{self._name}.buckets", f"{self._name}.counts"]

    def lift(self, column: pa.Array | None, groups: Groups, spans: Any) -> dict[str, pa.Array]:  # noqa: ARG002
        array = numbers_of(column, self._name)
        values = plain(array)
        valid = ~np.isnan(values)
        there = present(array)
        if there is not None:
            valid &= there
        shown = values[valid]
        return self._lists(_buckets(shown), np.ones(len(shown), np.int64), groups.of(valid))

    def merge(self, partials: dict[str, pa.Array], groups: Groups, spans: Any) -> dict[str, pa.Array]:  # noqa: ARG002
        (buckets, counts), inner = self._merged_lists(partials, groups, *self.parts())
        return self._lists(numpy(buckets).astype(np.int64), numpy(counts).astype(np.int64), inner)

    def finish(self, partials: dict[str, pa.Array]) -> pa.Array:
        buckets, counts = (partials[part] for part in self.parts())
        groups = Groups(np.arange(len(buckets)), len(buckets))
        flat, inner = unlisted(buckets, groups)
        if not len(flat):
            return pa.nulls(len(buckets), pa.float64())
        counted = numpy(unlisted(counts, groups)[0])
        up_to = np.cumsum(counted)
        sizes, totals = inner.sizes(), np.bincount(inner.ids, counted, minlength=len(buckets)).astype(np.int64)
        before = np.cumsum(totals) - totals
        ranks = before + np.floor(self._q * (totals - 1)).astype(np.int64)
        where = np.minimum(np.searchsorted(up_to, ranks, side="right"), len(flat) - 1)
        return pa.array(_middles(numpy(flat)[where]), mask=sizes == 0)

    def _lists(self, buckets: Numbers, counts: Numbers, groups: Groups) -> dict[str, pa.Array]:
        pairs, where = np.unique(groups.ids * (4 * _INFINITE) + buckets + 2 * _INFINITE, return_inverse=True)
        totals = np.bincount(where, counts, minlength=len(pairs)).astype(np.int64)
        inner = Groups(pairs // (4 * _INFINITE), groups.count)
        numbers = pa.array((pairs % (4 * _INFINITE) - 2 * _INFINITE).astype(np.int32))
        return dict(zip(self.parts(), (listed(numbers, inner), listed(pa.array(totals), inner)), strict=True))


def _shown(array: pa.Array, groups: Groups) -> tuple[pa.Array, Groups, Any]:
    """The values that are not null, and the groups of their rows."""
    if kinds.is_null(array.type):
        return array.slice(0, 0), Groups(np.zeros(0, np.int64), groups.count), np.zeros(0, np.int64)
    there = present(array)
    return (array, groups, None) if there is None else (array.drop_null(), groups.of(there), there)


def _buckets(values: Any) -> Numbers:
    """The buckets of numbers. They sort as the numbers do."""
    size = np.abs(values)
    regular = (size > 0) & np.isfinite(size)
    found = np.ceil(np.log(size, where=regular, out=np.zeros(len(size))) / math.log(_GAMMA)) + _MIDDLE
    found = np.where(regular, found, np.where(size > 0, _INFINITE, 0))
    signed: Numbers = (np.sign(values) * found).astype(np.int64)
    return signed


def _middles(buckets: Any) -> Any:
    """The number that is within :data:`ERROR` of all numbers in a bucket."""
    number = np.abs(buckets.astype(np.float64))
    with np.errstate(over="ignore"):
        size = 2 * np.exp((number - _MIDDLE) * math.log(_GAMMA)) / (_GAMMA + 1)
    size = np.where(number == _INFINITE, np.inf, np.where(number == 0, 0.0, size))
    return np.sign(buckets) * size
