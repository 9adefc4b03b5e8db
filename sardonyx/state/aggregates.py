"""What windows aggregate, as *partials*: columns that stand for some rows, can be put together, and give a result in
the end.

All partials are made and merged for many groups at once. Merging is associative: in whatever pieces rows come, as
long as the order of the pieces is that of the log, the result is the same; of floating-point sums it differs by their
rounding.

Nulls are left out, except by ``count`` without a column, ``first`` and ``last``. Of rows without any value ``count``
and ``distinct`` are 0, ``collect`` is an empty list, and all others are null. NaN counts as a value of sums and as a
null of ``min``, ``max`` and ``quantile``, unless ``min`` and ``max`` have nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sardonyx.core.errors import FunctionError
from sardonyx.core.timing import AggregateSpec
from sardonyx.state.groups import (
    Groups,
    Numbers,
    counts,
    extremes,
    firsts,
    floats,
    lasts,
    listed,
    numbers_of,
    one,
    plain,
    present,
    sums,
    unlisted,
)
from sardonyx.state.lists import Collect, Distinct, Quantile

Columns = dict[str, pa.Array]


class Spans:
    """The times of the rows or partials that are aggregated: ``first`` and ``last`` of each, the same for a row."""

    def __init__(self, first: Numbers, last: Numbers) -> None:
        self.first, self.last = first, last


class Aggregate(Protocol):
    """One aggregate of a window. The names of its partial columns begin with its own name and a dot."""

    def lift(self, column: pa.Array | None, groups: Groups, spans: Spans) -> Columns:
        """The partials of groups of rows. ``column``: what is aggregated, None for ``count`` without one."""
        ...

    def merge(self, partials: Columns, groups: Groups, spans: Spans) -> Columns:
        """The partials of groups of partials."""
        ...

    def finish(self, partials: Columns) -> pa.Array:
        """The results."""
        ...

    def parts(self) -> list[str]:
        """The names of the partial columns."""
        ...


class _Named:
    suffixes: tuple[str, ...] = ()

    def __init__(self, name: str, spec: AggregateSpec) -> None:
        self._name, self._spec = name, spec

    def parts(self) -> list[str]:
        return [f"{self._name}.{suffix}" for suffix in self.suffixes]


class Count(_Named):
    """The number of rows, or of those where a column is not null."""

    suffixes = ("count",)

    def lift(self, column: pa.Array | None, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        return {self.parts()[0]: pa.array(groups.sizes() if column is None else counts(column, groups))}

    def merge(self, partials: Columns, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        (part,) = self.parts()
        return {part: pa.array(_totals(partials[part], groups))}

    def finish(self, partials: Columns) -> pa.Array:
        return partials[self.parts()[0]].fill_null(0)


class Sum(_Named):
    """The sum: of integers exact; of decimals a decimal; of floats a float. A sum of integers beyond 64 bits is an error, and
    so is one of a part of the window's rows.
    """

    suffixes = ("sum",)

    def lift(self, column: pa.Array | None, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        return {self.parts()[0]: sums(column, groups, self._name)}

    def merge(self, partials: Columns, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        (part,) = self.parts()
        return {part: sums(partials[part], groups, self._name)}

    def finish(self, partials: Columns) -> pa.Array:
        return partials[self.parts()[0]]


class Extreme(_Named):
    """The least or the greatest value."""

    def parts(self) -> list[str]:
        return [f"{self._name}.{self._spec.of}"]

    def lift(self, column: pa.Array | None, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        return {self.parts()[0]: extremes(column, groups, self._spec.of, self._name)}

    def merge(self, partials: Columns, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        (part,) = self.parts()
        return {part: extremes(partials[part], groups, self._spec.of, self._name)}

    def finish(self, partials: Columns) -> pa.Array:
        return partials[self.parts()[0]]


class Mean(_Named):
    """The arithmetic mean, in floating point."""

    suffixes = ("count", "sum")

    def lift(self, column: pa.Array | None, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        values = numbers_of(column, self._name)
        return self._columns(counts(values, groups), floats(values, groups))

    def merge(self, partials: Columns, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        count, total = self.parts()
        return self._columns(_totals(partials[count], groups), floats(partials[total], groups))

    def finish(self, partials: Columns) -> pa.Array:
        count, total = (plain(partials[part]) for part in self.parts())
        return _divided(total, count, count > 0)

    def _columns(self, count: Numbers, total: object) -> Columns:
        return dict(zip(self.parts(), (pa.array(count), pa.array(total)), strict=True))


class Var(_Named):
    """The sample variance, in floating point; null of fewer than two values, and not a number of values without a finite one.

    The partial is the count, the mean, and the sum of squared distances from it. Two are merged as Chan, Golub and
    LeVeque do ("Updating formulae and a pairwise algorithm for computing sample variances", 1979), which keeps the
    digits that a sum of squares would lose.
    """

    suffixes = ("count", "mean", "m2")

    def lift(self, column: pa.Array | None, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        values = numbers_of(column, self._name)
        there = present(values)
        shown = groups if there is None else groups.of(there)
        found = plain(values) if there is None else plain(values)[there]
        ones = np.ones(len(found))
        return self._merged(shown, ones, found, np.zeros(len(found)))

    def merge(self, partials: Columns, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        count, mean, m2 = (plain(partials[part]) for part in self.parts())
        return self._merged(groups, count, mean, m2)

    def finish(self, partials: Columns) -> pa.Array:
        count, _, m2 = (plain(partials[part]) for part in self.parts())
        finite = np.where(np.isfinite(m2), m2, np.nan)  # infinite or not a number: that depends on how rows were cut
        return _divided(finite, count - 1, count > 1)

    def _merged(self, groups: Groups, count: Any, mean: Any, m2: Any) -> Columns:
        total = np.bincount(groups.ids, count, minlength=groups.count)
        middle = np.bincount(groups.ids, count * mean, minlength=groups.count) / np.where(total > 0, total, 1)
        # Infinite values, and values that are too far apart, have no finite variance.
        with np.errstate(invalid="ignore", over="ignore"):
            spread = m2 + count * (mean - middle[groups.ids]) ** 2
        squares = np.bincount(groups.ids, spread, minlength=groups.count)
        return dict(
            zip(self.parts(), map(pa.array, (total.astype(np.int64), middle, squares.astype(np.float64))), strict=True)
        )


class Edge(_Named):
    """The value of the first or the last row by time, null or not. Of rows with equal times the log's order decides."""

    def parts(self) -> list[str]:
        return [f"{self._name}.{self._spec.of}"]

    def lift(self, column: pa.Array | None, groups: Groups, spans: Spans) -> Columns:
        rows = firsts(groups, spans.first) if self._spec.of == "first" else lasts(groups, spans.last)
        return {self.parts()[0]: one(column).take(pa.array(rows))}

    def merge(self, partials: Columns, groups: Groups, spans: Spans) -> Columns:
        return self.lift(partials[self.parts()[0]], groups, spans)

    def finish(self, partials: Columns) -> pa.Array:
        return partials[self.parts()[0]]


_KINDS: Mapping[str, type] = {
    "count": Count,
    "sum": Sum,
    "min": Extreme,
    "max": Extreme,
    "mean": Mean,
    "var": Var,
    "first": Edge,
    "last": Edge,
    "distinct": Distinct,
    "quantile": Quantile,
    "collect": Collect,
}


class Rows(_Named):
    """The rows themselves, as a list of structures in the order of the log: for sessions and counted windows with a
    function.
    """

    suffixes = ("rows",)

    def lift(self, column: pa.Array | None, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        return {self.parts()[0]: listed(column, groups)}

    def merge(self, partials: Columns, groups: Groups, spans: Spans) -> Columns:  # noqa: ARG002
        (part,) = self.parts()
        return {part: listed(*unlisted(partials[part], groups))}

    def finish(self, partials: Columns) -> pa.Array:
        return partials[self.parts()[0]]


class Aggregates:
    """All aggregates of a window. Of none, its rows are kept: the one result is a list of them, ``rows``.

    A table of partials has, beside their columns, ``sx_first`` and ``sx_last`` (the least and the greatest time; null
    without times) and ``sx_rows`` (the number of rows).
    """

    def __init__(self, specs: Mapping[str, AggregateSpec]) -> None:
        self._specs = dict(specs)
        self._made: dict[str, Aggregate] = {name: _KINDS[spec.of](name, spec) for name, spec in specs.items()}
        if not specs:
            self._made["rows"] = Rows("rows", AggregateSpec(of="collect"))

    def lift(self, rows: pa.Table, groups: Groups, times: Numbers | None) -> Columns:
        """The partials of groups of rows.

        Raises:
            FunctionError: ``SX-WINDOW-COLUMN``, ``SX-WINDOW-TYPE``, ``SX-WINDOW-OVERFLOW``.
        """
        at = np.zeros(len(groups.ids), np.int64) if times is None else times
        spans = Spans(at, at)
        out: Columns = {}
        for name, made in self._made.items():
            out |= made.lift(self._column(rows, name), groups, spans)
        return out | _spans(groups, None if times is None else spans) | {"sx_rows": pa.array(groups.sizes())}

    def merge(self, partials: pa.Table, groups: Groups) -> Columns:
        """The partials of groups of partials, in the order of the log within each group."""
        columns = {name: one(partials[name]) for name in self.parts()}
        first, last = one(partials["sx_first"]), one(partials["sx_last"])
        timed = first.null_count < len(first)
        spans = Spans(plain(first.fill_null(2**63 - 1)), plain(last.fill_null(-(2**63))))
        out: Columns = {}
        for made in self._made.values():
            out |= made.merge(columns, groups, spans)
        out |= _spans(groups, spans if timed else None)
        return out | {"sx_rows": pa.array(_totals(one(partials["sx_rows"]), groups))}

    def finish(self, partials: pa.Table) -> Columns:
        """The results by name."""
        columns = {name: one(partials[name]) for name in self.parts()}
        return {name: made.finish(columns) for name, made in self._made.items()}

    def parts(self) -> list[str]:
        """The names of the partial columns of all aggregates."""
        return [part for made in self._made.values() for part in made.parts()]

    def _column(self, rows: pa.Table, name: str) -> pa.Array | None:
        if name not in self._specs:
            return one(rows.to_struct_array())
        column = self._specs[name].column
        if column is None:
            return None
        if column in rows.column_names:
            return one(rows[column])
        raise FunctionError(
            "SX-WINDOW-COLUMN",
            f"the rows have no column {column!r}, of which a window makes {name!r}",
            cause=f"they have {', '.join(map(repr, rows.column_names))}",
            fix="name a column that the rows have in `aggregate=`, or keep it in the function before the window",
        )


def _spans(groups: Groups, spans: Spans | None) -> Columns:
    if spans is None:
        return {"sx_first": pa.nulls(groups.count, pa.int64()), "sx_last": pa.nulls(groups.count, pa.int64())}
    first = np.full(groups.count, 2**63 - 1)
    np.minimum.at(first, groups.ids, spans.first)
    last = np.full(groups.count, -(2**63))
    np.maximum.at(last, groups.ids, spans.last)
    empty = first > last
    return {"sx_first": pa.array(first, mask=empty), "sx_last": pa.array(last, mask=empty)}


def _totals(column: pa.Array, groups: Groups) -> Numbers:
    out = np.zeros(groups.count, np.int64)
    np.add.at(out, groups.ids, plain(column))
    return out


def _divided(values: Numbers, by: Numbers, where: Numbers) -> pa.Array:
    return pa.array(values / np.where(where, by, 1), mask=~where)
