"""The one rule for columns of different types that come together: what is widened, and what is refused. Pure.

Rows of one column come with several types where nothing declares it: in batches whose types were inferred, in blocks of a link,
in what a state holds. A column takes the narrowest type that holds every value of both (:func:`common`), and becomes it only if
no value changes (:func:`converted`). So what comes of rows does not depend on where batches were cut. A column without any
value says nothing about its type, and takes each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.errors import FunctionError

EXACT = 2**53
"""Integers up to this, and down to its negative, are exact in floating point."""
_MOST_DIGITS = 76
_UNITS = ("s", "ms", "us", "ns")
_Of = Callable[[pa.DataType], bool]


class UnfitTypes(FunctionError):
    """``SX-COLUMN-TYPE``: two types of a column do not go together.

    Args:
        column: its name.
        had: the type that it has in the rows before.
        given: the type that it has in these rows.
        reason: which value is in the way, if the types alone would go together.
        who: what gave the rows.
        fix: what to do, if not to declare the column.
        where: what gave the rows, as data.
    """

    def __init__(
        self,
        column: str,
        had: pa.DataType,
        given: pa.DataType,
        reason: str = "",
        *,
        who: str = "rows that come together",
        fix: str = "",
        where: Mapping[str, object] | None = None,
    ) -> None:
        self.column, self.had, self.given, self.reason = column, had, given, reason
        super().__init__(
            "SX-COLUMN-TYPE",
            f"column {column!r} of {who} has the types {type_name(had)} and {type_name(given)}",
            cause=reason or "no type holds the values of both unchanged",
            fix=fix
            or f'declare the column where it comes from: schema="{column} {type_name(had)}", of the task with the function or '
            "of the input; or let the function give one type in all rows, and None where there is no value",
            where={"column": column, **(where or {})},
        )

    def of(self, who: str, where: Mapping[str, object]) -> UnfitTypes:
        """The same, of rows from there."""
        return UnfitTypes(self.column, self.had, self.given, self.reason, who=who, where=where)


_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def type_name(kind: pa.DataType) -> str:
    """A type as ``schema=`` has it; as Arrow has it if Spark lacks it."""
    if kinds.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kinds.is_list(kind):
        return "array" if kinds.is_null(kind.value_type) else f"array<{type_name(kind.value_type)}>"
    if kinds.is_struct(kind) and not kind.num_fields:
        return "struct"
    if kinds.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in kind)}>"
    return _NAMES.get(kind, str(kind))


def common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds all values of both; None if there is none.

    Of integers of 64 bits and floating point it is ``double``, which holds integers up to :data:`EXACT`; :func:`converted` looks
    at the values.
    """
    if one == other or kinds.is_null(other):
        return one
    if kinds.is_null(one):
        return other
    if kinds.is_dictionary(one) or kinds.is_dictionary(other):
        return common(*(kind.value_type if kinds.is_dictionary(kind) else kind for kind in (one, other)))
    for family, wider in _FAMILIES:
        if family(one) and family(other):
            return wider(one, other)
    return None


def _of_numbers(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    both = (one, other)
    if all(map(kinds.is_floating, both)):
        return max(both, key=lambda kind: kind.bit_width)
    if any(map(kinds.is_floating, both)):
        whole = other if kinds.is_floating(one) else one
        if kinds.is_decimal(whole) or kinds.is_uint64(whole):
            return None
        is_small = whole.bit_width <= 16 and not any(map(kinds.is_float64, both))
        return pa.float32() if is_small else pa.float64()
    if all(map(kinds.is_integer, both)):
        return _of_integers(one, other)
    places = max(_places(kind) for kind in both)
    digits = max(_digits(kind) - _places(kind) for kind in both) + places
    return None if digits > _MOST_DIGITS else _decimal(digits, places)


def _of_integers(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    signed = [kind for kind in (one, other) if kinds.is_signed_integer(kind)]
    if len(signed) != 1:
        return max(one, other, key=lambda kind: kind.bit_width)
    unsigned = other if signed[0] == one else one
    if unsigned.bit_width == 64:
        return _decimal(20, 0)
    return _SIGNED[max(signed[0].bit_width, 2 * unsigned.bit_width)]


_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _digits(kind: pa.DataType) -> int:
    """Narrow integers count as those of 64 bits: so it makes no difference whether they become wider before or after."""
    return int(kind.precision) if kinds.is_decimal(kind) else 19 + kinds.is_uint64(kind)


def _places(kind: pa.DataType) -> int:
    return int(kind.scale) if kinds.is_decimal(kind) else 0


def _decimal(digits: int, places: int) -> pa.DataType:
    return pa.decimal128(digits, places) if digits <= 38 else pa.decimal256(digits, places)


def _of_texts(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    return pa.large_string() if kinds.is_large_string(one) or kinds.is_large_string(other) else pa.string()


def _of_bytes(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    return pa.large_binary() if kinds.is_large_binary(one) or kinds.is_large_binary(other) else pa.binary()


def _of_moments(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Moments of different zones are UTC. A local time is no moment."""
    if (one.tz is None) != (other.tz is None):
        return None
    return pa.timestamp(_finer(one, other), one.tz if one.tz == other.tz else "UTC")


def _of_clock_times(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    unit = _finer(one, other)
    return pa.time32(unit) if unit in _UNITS[:2] else pa.time64(unit)


def _finer(one: pa.DataType, other: pa.DataType) -> str:
    return _UNITS[max(map(_UNITS.index, (one.unit, other.unit)))]


def _of_lists(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    inner = common(one.value_type, other.value_type)
    if inner is None:
        return None
    sizes = {kind.list_size if kinds.is_fixed_size_list(kind) else None for kind in (one, other)}
    if len(sizes) == 1 and None not in sizes:
        return pa.list_(inner, sizes.pop())
    is_large = kinds.is_large_list(one) or kinds.is_large_list(other)
    return pa.large_list(inner) if is_large else pa.list_(inner)


def _of_structs(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A field that one of them lacks is null there."""
    found: dict[str, pa.DataType] = {}
    for field in (*one, *other):
        kind = common(found.get(field.name, pa.null()), field.type)
        if kind is None:
            return None
        found[field.name] = kind
    return pa.struct(list(found.items()))


def _of_maps(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    key, item = common(one.key_type, other.key_type), common(one.item_type, other.item_type)
    return None if key is None or item is None else pa.map_(key, item)


def _is_number(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


_FAMILIES: tuple[tuple[_Of, Callable[[pa.DataType, pa.DataType], pa.DataType | None]], ...] = (
    (_is_number, _of_numbers),
    (_is_text, _of_texts),
    (_is_bytes, _of_bytes),
    (kinds.is_timestamp, _of_moments),
    (kinds.is_date, lambda *_: pa.date64()),
    (kinds.is_time, _of_clock_times),
    (kinds.is_duration, lambda one, other: pa.duration(_finer(one, other))),
    (_is_list, _of_lists),
    (kinds.is_struct, _of_structs),
    (kinds.is_map, _of_maps),
)
"""Types that go together, and how the common one is found. No type is in two families, and ``bool`` is in none."""


# --- Values -----------------------------------------------------------------------------------------------------------


def converted(column: pa.Array | pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.Array | pa.ChunkedArray:
    """A column as another type, with the same values.

    Narrower types are allowed if every value fits: a ``double`` that holds only 0.5 becomes a ``float``.

    Raises:
        UnfitTypes: a value would change, or the types have nothing in common.
    """
    if column.type == kind:
        return column
    if column.null_count == len(column):
        nulls = pa.nulls(len(column), kind)
        return pa.chunked_array([nulls]) if isinstance(column, pa.ChunkedArray) else nulls
    wide = common(known_part(column), kind)
    if wide is None:
        raise UnfitTypes(name, kind, column.type)
    try:
        found = _cast(column, kind)
        same = wide == kind or _equal(_cast(found, wide), _cast(column, wide))
    except (pa.ArrowException, ValueError) as error:
        raise UnfitTypes(name, kind, column.type, str(error).splitlines()[0]) from error
    if not same:
        raise UnfitTypes(name, kind, column.type, "a value would change")
    return found


def _cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if kinds.is_decimal(kind) and kinds.is_integer(column.type):
        # Arrow looks at the digits that the type may have, and not at those of the values.
        column = column.cast(pa.decimal256(_MOST_DIGITS, max(kind.scale, 0)))
    return column.cast(kind)


def _equal(one: pa.Array | pa.ChunkedArray, other: pa.Array | pa.ChunkedArray) -> bool:
    if one.equals(other):
        return True
    if not kinds.is_floating(one.type):
        return False
    alike = pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return bool(one.null_count == other.null_count and pc.all(alike, min_count=0).as_py())


def known_part(column: pa.Array | pa.ChunkedArray) -> pa.DataType:
    """The type of a column as far as its values show it: ``null`` where there is none."""
    kind = column.type
    if column.null_count == len(column):
        return pa.null()
    if not (kinds.is_struct(kind) or kinds.is_list(kind)):
        return kind
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if kinds.is_list(kind):
        return pa.list_(known_part(pa.chunked_array([chunk.flatten() for chunk in chunks], kind.value_type)))
    fields = []
    for place, field in enumerate(kind):
        inner = pa.chunked_array([chunk.flatten()[place] for chunk in chunks], field.type)
        fields.append((field.name, known_part(inner)))
    return pa.struct(fields)


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables in one, with columns matched by name; null where a table lacks a column.

    Raises:
        UnfitTypes: a column has types that do not go together.
    """
    first = tables[0]
    if all(table.schema.equals(first.schema) for table in tables[1:]):
        return pa.concat_tables(tables) if len(tables) > 1 else first
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    schema = pa.schema([(name, _type_of(name, tables)) for name in names])
    return pa.concat_tables([as_schema(table, schema) for table in tables])


def _type_of(name: str, tables: Iterable[pa.Table]) -> pa.DataType:
    columns = [table.column(name) for table in tables if name in table.column_names]
    shown = [column for column in columns if column.null_count < len(column)] or columns
    distinct = list(dict.fromkeys(column.type for column in shown))
    found = reduce(lambda one, other: None if one is None else common(one, other), distinct)
    if found is not None:
        return found
    kind = pa.null()
    for column in shown:
        wider = common(kind, known_part(column))
        if wider is None:
            raise UnfitTypes(name, kind, column.type)
        kind = wider
    return distinct[0] if kinds.is_null(kind) else kind


def common_schema(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of both, each in the narrowest type that holds all values of both.

    Raises:
        UnfitTypes: a column has types that do not go together.
    """
    found = {field.name: field.type for field in one}
    for field in other:
        known = found.get(field.name, pa.null())
        kind = common(known, field.type)
        if kind is None:
            raise UnfitTypes(field.name, known, field.type)
        found[field.name] = kind
    return pa.schema(list(found.items()))


def as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with these columns in these types; null where it lacks one.

    Raises:
        UnfitTypes: a value would change.
    """
    columns = [
        converted(table.column(field.name), field.type, field.name)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
