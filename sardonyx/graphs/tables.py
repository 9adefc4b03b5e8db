"""Programs of two functions of tables: ``update`` makes the states of vertices, ``send`` the messages along their edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.graphing import ACTIVE, OUT_DEGREE, SEND, GraphSpec
from sardonyx.graphs.combine import combined, reduced
from sardonyx.graphs.program import TYPES, Functions, Rules, Superstep, Wrong, first_of
from sardonyx.graphs.shards import Mask, Numbers, Once, Shard, Shards


class Inbox(NamedTuple):
    """The messages of a superstep, those to one vertex combined."""

    told: Numbers
    """The vertices that have one, ascending."""
    columns: Mapping[str, pa.Array]
    """By name, for each of them; null: it has none of this name."""


class _Part:
    """The edges of a shard as ``send`` is given them.

    Args:
        shard: the edges; their weights are the numbers of their rows.
        spec: the task.
        ids: of all vertices.
        columns: of all edges, by the user's names.
        degrees: of all vertices.
    """

    def __init__(self, shard: Shard, spec: GraphSpec, ids: pa.Array, columns: pa.Table, degrees: Numbers) -> None:
        assert shard.weights is not None  # noqa: S101 (for the type checker: the caller has given numbers)
        self._shard = shard
        self._sources = shard.spread(np.arange(len(ids)))
        self._rows = pa.table(
            {
                spec.source: ids.take(pa.array(self._sources)),
                spec.target: ids.take(pa.array(shard.targets)),
                **{name: columns[name].take(pa.array(shard.weights)) for name in columns.column_names},
                OUT_DEGREE: degrees[self._sources],
            }
        )

    def own(self, vertices: Numbers) -> Numbers:
        """Those of some vertices that are in this shard."""
        return self._shard.among(vertices)

    def out_of(self, senders: Numbers, state: Mapping[str, pa.Array]) -> tuple[Numbers, pa.Table]:
        """The targets and the rows of the edges out of some vertices, with the states of their sources."""
        places, _ = self._shard.out_of(senders)
        sources, targets, rows = self._sources, self._shard.targets, self._rows
        if len(places) < len(targets):
            sources, targets, rows = sources[places], targets[places], rows.take(pa.array(places))
        taken = pa.array(sources)
        for name, column in state.items():
            rows = rows.append_column(name, column.take(taken))
        return targets, rows


class TableProgram:
    """Runs a program on one graph.

    Args:
        spec: the task.
        functions: what the user wrote.
        names: of ``update`` and ``send``, for people.
        rules: what the task says besides.
        ids: of all vertices.
        shards: the edges; their weights are the numbers of their rows.
        columns: what else the edges bear, by the user's names.
    """

    def __init__(
        self,
        spec: GraphSpec,
        functions: Functions,
        names: tuple[str, str],
        rules: Rules,
        ids: pa.Array,
        shards: Shards,
        columns: pa.Table,
    ) -> None:
        self._spec, self._functions, self._rules, self._ids = spec, functions, rules, ids
        self._wrong_update, self._wrong_send = map(Wrong, names)
        self._degrees = shards.degrees()
        self._parts = [_Part(shard, spec, ids, columns, self._degrees) for shard in shards]
        self._once = Once(len(ids))
        self._place = np.zeros(len(ids), np.int64)
        self._state: dict[str, pa.Array] = {
            name: pa.repeat(pa.scalar(first_of(spec, name), type_), len(ids)) for name, type_ in rules.state.items()
        }
        booleans: dict[str, pa.DataType | None] = {SEND: pa.bool_(), ACTIVE: pa.bool_()}
        aggregates: dict[str, pa.DataType | None] = dict.fromkeys(rules.aggregate)
        self._known = {**rules.state, **aggregates, **booleans}

    def run(self) -> tuple[int, str]:
        """All supersteps. Returns how many there were, and why there was no other."""
        rules, most = self._rules, self._spec.most
        every = np.arange(len(self._ids))
        due, inbox, number = every, self._empty(), 0
        told: Mapping[str, Any] = {}
        while len(due):
            step = rules.step(number, told)
            senders, active, found = self._update(due, inbox, step)
            told, ended = rules.after(number, found)
            if ended is not None:
                return number + 1, ended
            again = self._spec.always or bool(len(active))
            if number + 1 == most and (again or self._degrees[senders].any()):
                return most, "limit"
            inbox = self._send(senders, step)
            due = every if self._spec.always else np.union1d(inbox.told, active)
            number += 1
        return number, "quiescent"

    def _empty(self) -> Inbox:
        columns = {name: pa.array([], self._type(name)) for name in self._rules.combine}
        return Inbox(np.zeros(0, np.int64), columns)

    def _type(self, name: str) -> pa.DataType:
        how, type_ = self._rules.combine[name]
        return pa.list_(TYPES[type_]) if how == "collect" else TYPES[type_]

    def columns(self) -> dict[str, pa.Array]:
        """The state of all vertices, by name."""
        return self._state

    # --- Update -------------------------------------------------------------------------------------------------------

    def _update(self, due: Numbers, inbox: Inbox, step: Superstep) -> tuple[Numbers, Numbers, dict[str, Any]]:
        """New states of some vertices. Returns those that send, those that are active, and the aggregates."""
        numbers: list[Numbers] = []
        tables: list[pa.Table] = []
        for part in self._parts:
            own = part.own(due)
            if len(own):
                given = self._functions.update(self._rows(own, inbox), step)
                needed = list(self._rules.aggregate)
                tables.append(self._wrong_update.columns(given, len(own), self._known, needed))
                numbers.append(own)
        vertices = np.concatenate(numbers)
        changed: Mask = np.full(len(vertices), self._spec.always)
        for name, old in self._state.items():
            if all(name not in table.column_names for table in tables):
                continue
            new = self._joined(tables, numbers, name, old)
            before = old if len(vertices) == len(old) and len(tables) == 1 else old.take(pa.array(vertices))
            changed |= different(before, new)
            self._state[name] = _replaced(old, vertices, new)
        said = [_flags(table, SEND, None) for table in tables]
        if any(each is not None for each in said):
            ends = np.cumsum([table.num_rows for table in tables])[:-1]
            was = np.split(changed, ends)
            changed = np.concatenate([now if now is not None else old for now, old in zip(said, was, strict=True)])
        active = np.concatenate([_flags(table, ACTIVE, np.zeros(table.num_rows, np.bool_)) for table in tables])
        found = {name: self._reduced(name, [table[name] for table in tables]) for name in self._rules.aggregate}
        return np.sort(vertices[changed]), vertices[active], found

    def _rows(self, vertices: Numbers, inbox: Inbox) -> pa.Table:
        whole = len(vertices) == len(self._ids)
        taken = pa.array(vertices)
        columns = {self._spec.id: self._ids if whole else self._ids.take(taken)}
        columns[OUT_DEGREE] = pa.array(self._degrees[vertices])
        for name, column in self._state.items():
            columns[name] = column if whole else column.take(taken)
        if len(inbox.told):
            places = np.minimum(np.searchsorted(inbox.told, vertices), len(inbox.told) - 1)
            where = pa.array(places, mask=inbox.told[places] != vertices)
            columns |= {name: column.take(where) for name, column in inbox.columns.items()}
        else:
            columns |= {name: pa.nulls(len(vertices), column.type) for name, column in inbox.columns.items()}
        return pa.table(columns)

    def _joined(self, tables: Sequence[pa.Table], numbers: Sequence[Numbers], name: str, old: pa.Array) -> pa.Array:
        """A column of the state for all vertices that were updated. A table without it leaves it as it was."""
        parts = [
            one_array(table[name]) if name in table.column_names else old.take(pa.array(own))
            for table, own in zip(tables, numbers, strict=True)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _reduced(self, name: str, columns: Sequence[pa.ChunkedArray]) -> Any:
        how = self._rules.aggregate[name]
        plain = [of_64_bits(column) for column in columns]
        if len({column.type for column in plain if not kinds.is_null(column.type)}) > 1:
            plain = [column.cast(pa.float64()) for column in plain]
        plain = [column for column in plain if not kinds.is_null(column.type)]
        if not plain:
            return reduced(how, pa.array([], pa.int64()))
        number = kinds.is_integer(plain[0].type) or kinds.is_floating(plain[0].type)
        countable = kinds.is_boolean(plain[0].type) or kinds.is_string(plain[0].type)
        if not number and (how in ("sum", "mean") or not countable) and how != "count":
            said = f"returned column {name!r} as {plain[0].type}, of which there is no {how}"
            raise self._wrong_update(said, "", "return whole numbers or doubles for an aggregate")
        return reduced(how, pa.chunked_array(plain))

    # --- Send ---------------------------------------------------------------------------------------------------------

    def _send(self, senders: Numbers, step: Superstep) -> Inbox:
        """The messages that vertices send."""
        send = self._functions.send
        if send is None or not len(senders):
            return self._empty()
        known = {name: TYPES[type_] for name, (_, type_) in self._rules.combine.items()}
        sent: list[tuple[Numbers, pa.Table]] = []
        for part in self._parts:
            targets, rows = part.out_of(part.own(senders), self._state)
            if len(targets):
                given = send(rows, step)
                sent.append((targets, self._wrong_send.columns(given, len(targets), known, [])))
        found = dict(self._combined(sent))
        if not found:
            return self._empty()
        told = next(iter(found.values())).told
        if len(found) > 1:
            told = np.unique(np.concatenate([each.told for each in found.values()]))
        columns = {**self._empty().columns, **{name: _aligned(told, each, name) for name, each in found.items()}}
        return Inbox(told, {name: _or_nulls(column, len(told)) for name, column in columns.items()})

    def _combined(self, sent: Sequence[tuple[Numbers, pa.Table]]) -> Iterator[tuple[str, Inbox]]:
        for name, (how, _) in self._rules.combine.items():
            having = [(targets, one_array(table[name])) for targets, table in sent if name in table.column_names]
            if not having:
                continue
            targets = np.concatenate([each for each, _ in having])
            values = having[0][1] if len(having) == 1 else pa.concat_arrays([each for _, each in having])
            if values.null_count:
                there = values.is_valid()
                targets, values = targets[there.to_numpy(zero_copy_only=False)], values.filter(there)
            if not len(targets):
                continue
            told = np.sort(self._once(targets))
            self._place[told] = np.arange(len(told))
            try:
                column = combined(how, self._place[targets], values, len(told))
            except OverflowError as error:
                fix = f'give smaller numbers, or declare them as double: combine={{"{name}": "sum double"}}'
                raise self._wrong_send(f"sent messages {name!r} whose sum is too great", str(error), fix) from error
            yield name, Inbox(told, {name: column})


def _aligned(told: Numbers, inbox: Inbox, name: str) -> pa.Array:
    """A column for other vertices than those that have a message of its name."""
    if len(told) == len(inbox.told):
        return inbox.columns[name]
    places = np.minimum(np.searchsorted(inbox.told, told), len(inbox.told) - 1)
    return inbox.columns[name].take(pa.array(places, mask=inbox.told[places] != told))


def _or_nulls(column: pa.Array, length: int) -> pa.Array:
    return column if len(column) == length else pa.nulls(length, column.type)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def of_64_bits(column: pa.ChunkedArray) -> pa.Array:
    """The column with numbers of 64 bits."""
    whole = one_array(column)
    if kinds.is_integer(whole.type):
        return whole.cast(pa.int64())
    return whole.cast(pa.float64()) if kinds.is_floating(whole.type) else whole


def _flags(table: pa.Table, name: str, default: Any) -> Any:
    if name not in table.column_names:
        return default
    return one_array(table[name]).fill_null(False).to_numpy(zero_copy_only=False)


def different(old: pa.Array, new: pa.Array) -> Mask:
    """Where two columns differ. Nulls are equal, and so are NaNs."""
    differ = pc.fill_null(pc.not_equal(old, new), False)
    if kinds.is_floating(old.type):
        both = pc.and_(pc.fill_null(pc.is_nan(old), False), pc.fill_null(pc.is_nan(new), False))
        differ = pc.and_not(differ, both)
    if old.null_count or new.null_count:
        differ = pc.or_(differ, pc.xor(pc.is_null(old), pc.is_null(new)))
    found: Mask = differ.to_numpy(zero_copy_only=False)
    return found


def _replaced(old: pa.Array, places: Numbers, new: pa.Array) -> pa.Array:
    """A column with other values at some places."""
    if len(places) == len(old) and (len(places) < 2 or bool((np.diff(places) > 0).all())):
        return new
    where = np.arange(len(old))
    where[places] = len(old) + np.arange(len(places))
    return pa.concat_arrays([old, new]).take(pa.array(where))


__all__ = ["Inbox", "TableProgram", "different", "of_64_bits", "one_array"]
