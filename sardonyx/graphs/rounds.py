"""A function that is called with all rows, round after round, until nothing changes any more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import Until, read_columns, read_until
from sardonyx.core.iterating import AGGREGATES, IterateSpec
from sardonyx.core.text import shorten
from sardonyx.graphs.combine import by_place
from sardonyx.graphs.compute import Computed, Reason
from sardonyx.graphs.program import TYPES, Wrong
from sardonyx.graphs.programs import Program, bound, name_of
from sardonyx.graphs.shards import Numbers
from sardonyx.graphs.tables import different, of_64_bits, one_array

_NOWHERE = -1
"""The group of a row whose key is null."""


def run_rounds(spec: IterateSpec, rows: pa.Table, program: Program) -> Computed:
    """Call a function with all rows, until an end.

    Args:
        spec: the task.
        rows: all that it reads. Their order changes no bit of the result, unless they differ in nested columns only.
        program: the function, and its params.

    Raises:
        FunctionError: ``SX-ITERATE-ROWS``, ``SX-ITERATE-RESULT``, ``SX-ITERATE-NAN``; what the guard makes of others.
    """
    running = _Rounds(spec, in_order(rows).combine_chunks(), program)
    rounds, reason = running.run()
    last = {name: running.told[name].to_pylist() for name in spec.aggregate} if not spec.group_by else {}
    aggregates = {name: values[0] for name, values in last.items() if values}
    return Computed(running.results(), rows.num_rows, 0, rounds, reason, aggregates=aggregates)


def _plain(rows: pa.Table) -> pa.Table:
    """Rows with columns that Arrow can order and join with those of other rows."""
    for number, column in enumerate(rows.columns):
        type_ = column.type.value_type if kinds.is_dictionary(column.type) else column.type
        type_ = pa.string() if kinds.is_string_view(type_) else pa.binary() if kinds.is_binary_view(type_) else type_
        if type_ != column.type:
            rows = rows.set_column(number, rows.column_names[number], column.cast(type_))
    return rows


def joined_plain(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables in one. A column that some do not have is null there; whole numbers and floats become floats.

    Raises:
        FunctionError: ``SX-ITERATE-ROWS``, a column has several types.
    """
    try:
        return pa.concat_tables(map(_plain, tables), promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise FunctionError(
            "SX-ITERATE-ROWS",
            "the rows that come to rounds do not fit into one table",
            cause=str(error).splitlines()[0],
            fix="give each column one type in the tasks before",
        ) from error


def in_order(rows: pa.Table) -> pa.Table:
    """Rows in an order that follows from what they hold, column by column. Columns of lists and the like do not count."""
    keys = [name for name in rows.column_names if _is_ordered(rows[name].type)]
    if not keys or rows.num_rows < 2:
        return rows
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in keys]))


def _is_ordered(type_: pa.DataType) -> bool:
    told = (kinds.is_primitive, kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_decimal)
    return any(of(type_) for of in told) and not (kinds.is_interval(type_) or kinds.is_float16(type_))


class _Rounds:
    def __init__(self, spec: IterateSpec, rows: pa.Table, program: Program) -> None:
        self._spec, self._rows = spec, rows
        self._wrong = Wrong(name_of(program.update), "SX-ITERATE-RESULT", "state=, aggregate= or group_by=")
        self._call = bound(program, program.update, AGGREGATES)
        types = {name: TYPES[type_] for name, type_ in (read_columns(spec.state or "") or {}).items()}
        self._state = {name: self._first(name, type_) for name, type_ in types.items()}
        self._until: Until | None = None if spec.until is None else read_until(spec.until)
        free: dict[str, pa.DataType | None] = dict.fromkeys((*spec.group_by, *spec.aggregate))
        self._known = {**free, **types}
        at_hand = {*rows.column_names, *types}
        self._needed = [name for name in free if name not in at_hand and spec.aggregate.get(name) != "count"]
        self.told = self._start()
        """The aggregates of the last round."""

    def run(self) -> tuple[int, Reason]:
        """All rounds. Returns how many there were, and why there was no other."""
        number = 0
        while self._rows.num_rows:
            before, changed = self.told, self._round(number)
            number += 1
            if self._holds():
                return number, "converged"
            if not changed and _equal(before, self.told):
                return number, "quiescent"
            if number == self._spec.most:
                return number, "limit"
        return number, "quiescent"

    def results(self) -> pa.Table:
        """What the task gives."""
        if self._spec.results == "rows":
            return self._table()
        return self.told if self._rows.num_rows else self.told.slice(0, 0)

    def _first(self, name: str, type_: pa.DataType) -> pa.Array:
        """A column of the state at first: what the rows have, or nulls."""
        if name not in self._rows.column_names:
            return pa.nulls(self._rows.num_rows, type_)
        column = one_array(self._rows[name])
        try:
            return column.cast(type_)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FunctionError(
                "SX-ITERATE-ROWS",
                f"column {name!r} of the rows is {column.type}, which does not fit {type_}",
                cause=str(error).splitlines()[0],
                fix="declare another type in state=, or convert the column in the task before",
            ) from error

    def _table(self) -> pa.Table:
        """The rows with their state."""
        found = self._rows
        for name, column in self._state.items():
            if name in found.column_names:
                found = found.set_column(found.column_names.index(name), name, column)
            else:
                found = found.append_column(name, column)
        return found

    def _start(self) -> pa.Table:
        """The aggregates that the first round is given."""
        spec, columns = self._spec, {}
        for name in (*spec.group_by, *spec.aggregate):
            column = pa.array(_of_one_kind([row.get(name) for row in spec.start]))
            mean = spec.aggregate.get(name) == "mean"
            columns[name] = column.cast(pa.float64()) if mean and not kinds.is_null(column.type) else column
        return pa.table(columns)

    def _round(self, number: int) -> bool:
        """One round. Returns whether it has changed the state of a row."""
        count = self._rows.num_rows
        found = self._wrong.columns(self._call(self._table(), self.told), count, self._known, self._needed)
        state = {
            name: one_array(found[name]) if name in found.column_names else old for name, old in self._state.items()
        }
        changed = any(different(old, state[name]).any() for name, old in self._state.items() if state[name] is not old)
        self._state = state
        self.told = self._aggregated(found, number)
        return changed

    def _holds(self) -> bool:
        if self._until is None:
            return False
        values = self.told[self._until.aggregate].to_pylist()
        return bool(values) and all(self._until.holds(value) for value in values)

    # --- Aggregates ---------------------------------------------------------------------------------------------------

    def _column(self, name: str, found: pa.Table) -> pa.Array | None:
        """A column that was returned, of the state, or of the rows. None: there is none."""
        if name in self._state:
            return self._state[name]
        table = next((table for table in (found, self._rows) if name in table.column_names), None)
        try:
            return None if table is None else of_64_bits(table[name])
        except pa.ArrowInvalid as error:  # an unsigned number that is too great
            fix = "give whole numbers below 2^63, or doubles"
            raise self._wrong(
                f"is to aggregate numbers of column {name!r} that are too great", str(error), fix
            ) from error

    def _aggregated(self, found: pa.Table, number: int) -> pa.Table:
        places, columns, count = self._groups(found)
        for name, how in self._spec.aggregate.items():
            values = self._column(name, found)
            if values is None:  # only a count may have no column
                values = pa.repeat(True, self._rows.num_rows)
            if how != "count" and not _has(how, values.type):
                said = f"is to aggregate column {name!r} by {how}, and it is {values.type}"
                raise self._wrong(said, "", "aggregate whole numbers or doubles; texts have min, max and count")
            try:
                columns[name] = by_place(how, places, values, count)
            except OverflowError as error:
                raise self._wrong(
                    f"gave {name!r} whose sum is too great", str(error), "return smaller numbers, or doubles"
                ) from error
        table = pa.table(columns)
        for name in self._spec.aggregate:
            if kinds.is_floating(table[name].type) and pc.any(pc.is_nan(table[name])).as_py():
                row = table.filter(pc.is_nan(table[name])).slice(0, 1).to_pylist()[0]
                raise FunctionError(
                    "SX-ITERATE-NAN",
                    f"aggregate {name!r} of round {number + 1} is NaN, not a number",
                    cause=f"the aggregates are {shorten(repr(row), 1_000)}",
                    fix="return null for rows that are not to count, and leave NaN out in the task before",
                )
        return table

    def _groups(self, found: pa.Table) -> tuple[Numbers, dict[str, pa.Array], int]:
        """For each row the number of its group, the keys of the groups in ascending order, and how many there are."""
        total, names = self._rows.num_rows, self._spec.group_by
        if not names:
            return np.zeros(total, np.int64), {}, 1
        keys = [self._key(name, found) for name in names]
        there = np.ones(total, np.bool_)
        for key in keys:
            there &= key.is_valid().to_numpy(zero_copy_only=False)
        chosen = [key.filter(pa.array(there)) for key in keys]
        own, firsts = _numbered(chosen)
        places = np.full(total, _NOWHERE, np.int64)
        places[there] = own
        return (
            places,
            {name: key.take(pa.array(firsts)) for name, key in zip(names, chosen, strict=True)},
            len(firsts),
        )

    def _key(self, name: str, found: pa.Table) -> pa.Array:
        key = self._column(name, found)
        assert key is not None  # noqa: S101 (for the type checker: a column that no one has is needed of the function)
        if kinds.is_null(key.type):
            return key.cast(pa.int64())
        if not (kinds.is_integer(key.type) or kinds.is_string(key.type) or kinds.is_boolean(key.type)):
            said = f"is to group by column {name!r}, and it is {key.type}"
            raise self._wrong(said, "", "group by whole numbers, texts or booleans")
        return key


def _numbered(keys: Sequence[pa.Array]) -> tuple[Numbers, Numbers]:
    """For each row the number of its keys in their order; and for each of these a row that has them."""
    places = np.zeros(len(keys[0]), np.int64)
    firsts = places[:1]
    for key in keys:
        encoded = key.dictionary_encode()
        order = pc.sort_indices(
            encoded.dictionary.cast(pa.int8()) if kinds.is_boolean(key.type) else encoded.dictionary
        )
        rank = np.empty(len(order), np.int64)
        rank[order.to_numpy()] = np.arange(len(order))
        merged = places * max(len(order), 1) + rank[encoded.indices.to_numpy()]
        _, firsts, places = np.unique(merged, return_index=True, return_inverse=True)
    return places, firsts


def _has(how: str, type_: pa.DataType) -> bool:
    """Whether columns of a type can be aggregated so."""
    number = kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_boolean(type_) or kinds.is_null(type_)
    return number or (how in ("min", "max") and kinds.is_string(type_))


def _of_one_kind(values: Sequence[object]) -> list[object]:
    """Values as one column has them: all numbers are floats if one is."""
    if any(isinstance(value, float) for value in values):
        return [float(value) if isinstance(value, int) else value for value in values]
    return list(values)


def _equal(some: pa.Table, other: pa.Table) -> bool:
    """Whether two tables of aggregates are equal. None of them holds NaN."""
    return some.num_rows == other.num_rows and bool(some.equals(other))


__all__ = ["in_order", "joined_plain", "run_rounds"]
