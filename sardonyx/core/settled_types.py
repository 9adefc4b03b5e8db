"""Types that nothing declares, settled by what comes first: of tables, and of the records that an input reads. Pure.

The rule is that of :mod:`sardonyx.core.column_types`. The first value settles a type, later ones may widen it. So what comes of
rows depends on those before them, and not on where batches are cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.column_types import EXACT, UnfitTypes, common, converted, known_part, type_name
from sardonyx.core.errors import InputError, SardonyxError
from sardonyx.core.plain_types import plain_table

Place = tuple[str, ...]
ITEM = "[]"
"""What a list holds, and what a map holds: no field has it beside them."""
STRUCT, LIST = pa.struct([]), pa.list_(pa.null())
"""The types of places that have others inside; those have types of their own."""


MOST_PLACES = 100_000
"""Places whose types one reader remembers: where the names of fields are data, there is no end of them."""


class Misfit(ValueError):
    """A record has a value that does not go together with what is settled.

    Args:
        place: where.
        had: the type that is settled there.
        given: the type that the value has.
        reason: why they do not go together, if the types alone would.
    """

    def __init__(self, place: Place, had: pa.DataType, given: pa.DataType, reason: str = "") -> None:
        super().__init__(f"{shown(place)} is {had} and {given}")
        self.place, self.had, self.given, self.reason = place, had, given, reason

    def of(self, who: str, value: str, where: Mapping[str, object]) -> SardonyxError:
        """As the error that a user sees.

        Args:
            who: what the record is of: "topic orders".
            value: what the record holds at the place, as a text.
            where: the same as data.
        """
        column = self.place[0]
        # Of numbers, the type that holds both; else the one that most records may have.
        wanted = "decimal(38,9)" if self.reason else type_name(self.had)
        plain = len(self.place) == 1 and column.isascii() and column.isidentifier()
        declared = (
            f'declare the column, schema="{column} {wanted}"' if plain else f"declare column {column!r} in schema="
        )
        return UnfitTypes(
            shown(self.place),
            self.had,
            self.given,
            f"a record holds {value}, and {self.reason or 'no type holds this and the values before it unchanged'}",
            who=who,
            fix=f"{declared} of the input: then the first record does not settle its type; leave out records that do not fit by "
            'on_error "skip" or "dead_letter" of the input; or read the topic as bytes, format="raw"',
            where=where,
        )


class OneTooMany(Misfit):
    """A record has a field more than the types of a reader may have."""

    def of(self, who: str, value: str, where: Mapping[str, object]) -> SardonyxError:
        column = self.place[0]
        return InputError(
            "SX-RECORD-UNDECODABLE",
            f"column {shown(self.place)!r} of {who} is one too many: the records before have {MOST_PLACES:,} columns and fields",
            cause=f"a record holds {value}; without a schema, what each column and field has held is remembered",
            fix=f'declare schema="{column} map<string,bigint>" if the names in an object are data; or leave out such records by '
            'on_error "skip" or "dead_letter" of the input',
            where=where,
        )


def shown(place: Place) -> str:
    """A place as errors name it: ``order.lines[].price``."""
    return "".join(name if name == ITEM else f".{name}" for name in place).removeprefix(".")


def places(schema: pa.Schema) -> Iterator[tuple[Place, pa.DataType]]:
    """All places of rows with these columns, with their types."""
    for field in schema:
        yield from _places(field.type, (field.name,))


def _places(kind: pa.DataType, place: Place) -> Iterator[tuple[Place, pa.DataType]]:
    if kinds.is_struct(kind):
        yield place, STRUCT
        for field in kind:
            yield from _places(field.type, (*place, field.name))
    elif _is_list(kind):
        yield place, LIST
        yield from _places(kind.value_type, (*place, ITEM))
    elif kinds.is_map(kind):
        yield place, pa.map_(kind.key_type, pa.null())
        yield from _places(kind.item_type, (*place, ITEM))
    else:
        yield place, kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def beyond_exact(table: pa.Table, kind: pa.DataType, settled: Collection[Place] = ()) -> set[Place]:
    """The places of this type that hold a number which a double does not tell from its neighbours.

    Args:
        table: the rows.
        kind: ``int64``, or ``double``: a greater integer may have become :data:`EXACT` itself there.
        settled: places that need not be looked at.
    """
    columns = zip(table.column_names, table.columns, strict=True)
    return {place for name, column in columns for place in _beyond_exact(column, (name,), kind, settled)}


def _beyond_exact(
    column: pa.Array | pa.ChunkedArray, place: Place, kind: pa.DataType, settled: Collection[Place]
) -> set[Place]:
    most = EXACT if kinds.is_integer(kind) else EXACT - 1
    return {
        inner
        for inner, values in _values(column, place)
        if values.type == kind and inner not in settled and _is_beyond(values, most)
    }


def _values(column: pa.Array | pa.ChunkedArray, place: Place) -> Iterator[tuple[Place, pa.Array | pa.ChunkedArray]]:
    kind = column.type
    if not kinds.is_nested(kind):
        yield place, column
        return
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if kinds.is_struct(kind):
            for field, inner in zip(kind, chunk.flatten(), strict=True):
                yield from _values(inner, (*place, field.name))
        elif kinds.is_map(kind):
            items = pa.ListArray.from_arrays(chunk.offsets, chunk.items)  # Arrow flattens no map
            yield from _values(items.flatten(), (*place, ITEM))
        elif _is_list(kind):
            yield from _values(chunk.flatten(), (*place, ITEM))


def _is_beyond(column: pa.Array | pa.ChunkedArray, most: int) -> bool:
    found = pc.min_max(column).as_py()
    return found["max"] is not None and bool(found["min"] < -most or found["max"] > most)


class SettledTypes:
    """The types of one sequence of tables, such as the results of one function: each column keeps the type that it has been
    given, or becomes a wider one. What was given before never changes.
    """

    def __init__(self) -> None:
        self._known: dict[str, pa.DataType] = {}
        self._large: set[Place] = set()
        """Places with integers beyond :data:`EXACT`: they cannot become floating point any more."""

    def settle(self, table: pa.Table) -> pa.Table:
        """The same rows, in the types of those before them, or in wider ones; without views and runs, as in a plain table.

        Raises:
            UnfitTypes: a column has another type than before, and the two do not go together.
        """
        table = plain_table(table)
        columns = [self._settled(name, column) for name, column in zip(table.column_names, table.columns, strict=True)]
        if all(new is old for new, old in zip(columns, table.columns, strict=True)):
            return table
        return pa.table(columns, names=table.column_names)

    def know(self, schema: pa.Schema) -> None:
        """Tables with these columns have come, and went another way."""
        for field in schema:
            if not kinds.is_null(field.type):
                self._known.setdefault(field.name, field.type)

    def _settled(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        known = self._known.get(name)
        if column.null_count == len(column):
            return column if known is None else converted(column, known, name)
        kind = column.type if known is None else common(known, column.type) or common(known, known_part(column))
        if kind is None:
            raise UnfitTypes(name, known, column.type)
        if any(kinds.is_floating(each) and place in self._large for place, each in _places(kind, (name,))):
            raise UnfitTypes(name, known, column.type, f"it has held an integer beyond {EXACT:,}")
        found = converted(column, kind, name)
        self._large |= _beyond_exact(found, (name,), pa.int64(), self._large)
        self._known[name] = kind
        return found


class ReadTypes:
    """What the records of one reader have settled so far. A record whose values fit, or fit wider types, may widen the types; any
    other one is refused, and changes nothing.

    A type belongs to a place in a record: a column, a field of a struct, what a list or a map holds. There is an entry for each
    place, not a type for each column: where the names of fields are data, such as ids, records that lack them become neither
    slower nor wider.
    """

    def __init__(self) -> None:
        self._known: dict[Place, pa.DataType] = {}
        self.large: set[Place] = set()
        """Places that have held integers beyond :data:`EXACT`: they cannot become floating point any more."""

    def widened(self, given: Mapping[Place, pa.DataType], large: Collection[Place] = ()) -> dict[Place, pa.DataType]:
        """What further records would change of the types, if they fit. Nothing is changed yet.

        Args:
            given: the places of the records, with the types of their values.
            large: places where they hold integers beyond :data:`EXACT`.

        Raises:
            Misfit: they do not fit.
        """
        changes = {}
        for place, kind in given.items():
            known = self._known.get(place)
            if known is kind or known == kind or kinds.is_null(kind):
                continue
            wider = kind if known is None else common(known, kind)
            if wider is None:
                raise Misfit(place, known, kind)
            if kinds.is_floating(wider) and place in self.large:
                raise Misfit(place, known, kind, f"there was an integer beyond {EXACT:,} before, which no double holds")
            if wider != known:
                changes[place] = wider
        if len(self._known) + len(changes) > MOST_PLACES:
            new = [place for place in changes if place not in self._known]
            if new and len(self._known) + len(new) > MOST_PLACES:
                raise OneTooMany(new[-1], pa.null(), changes[new[-1]])
        for place in large:
            kind = changes.get(place, self._known.get(place))
            if kind is not None and kinds.is_floating(kind):
                raise Misfit(place, kind, pa.int64(), f"no double holds integers beyond {EXACT:,} unchanged")
        return changes

    def take(self, changes: Mapping[Place, pa.DataType], large: Collection[Place] = ()) -> None:
        """The records are taken: their places have these types from now on."""
        self._known.update(changes)
        self.large.update(large)

    def take_rows(self, table: pa.Table) -> None:
        """Take rows whose types nothing has inferred. A column without any value says nothing.

        Raises:
            Misfit: they do not fit.
        """
        known = zip(table.column_names, map(known_part, table.columns), strict=True)
        large = beyond_exact(table, pa.int64(), self.large)
        self.take(self.widened(dict(places(pa.schema(list(known)))), large), large)

    def schema(self, like: pa.Schema, changes: Mapping[Place, pa.DataType] | None = None) -> pa.Schema:
        """Columns and fields of some records, in the types that are settled. One that never had a value is string.

        Args:
            like: what these records have.
            changes: what :meth:`widened` says, before it is taken.
        """
        changes = changes or {}
        return pa.schema([field.with_type(self._type(field.type, (field.name,), changes)) for field in like])

    def _type(self, kind: pa.DataType, place: Place, changes: Mapping[Place, pa.DataType]) -> pa.DataType:
        if kinds.is_struct(kind):
            return pa.struct([field.with_type(self._type(field.type, (*place, field.name), changes)) for field in kind])
        if kinds.is_list(kind):
            return pa.list_(kind.value_field.with_type(self._type(kind.value_type, (*place, ITEM), changes)))
        if kinds.is_map(kind):
            return pa.map_(
                kind.key_type, kind.item_field.with_type(self._type(kind.item_type, (*place, ITEM), changes))
            )
        known = changes.get(place, self._known.get(place))
        return pa.string() if known is None or kinds.is_nested(known) else known
