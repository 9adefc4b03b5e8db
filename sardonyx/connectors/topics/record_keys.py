"""The keys of records on users' topics, as the column of the key has them. Pure.

Equal values have equal bytes, whatever type a batch gave them: where nothing declares a column, 1.1 is a ``decimal(2,1)`` in one
batch and a ``decimal(3,2)`` beside 1.25. So a number is written in decimal digits, without an exponent and without zeros at the
end of a fraction; one in floating point with the fewest digits that give it again, as a double. Times of day have six digits
after the second, and nine if they have nanoseconds; durations are counted in microseconds.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.connectors import json_text
from sardonyx.core.errors import OutputError

_MICROSECONDS = {"s": 6, "ms": 3, "us": 0, "ns": -3}
"""How many digits the point moves from a unit to microseconds."""


def keys_of(table: pa.Table, key: str | None) -> list[bytes | None]:
    """The keys of the rows' records, one by one; see :func:`key_column`."""
    column = key_column(table, key)
    return [None] * table.num_rows if column is None else column.to_pylist()


def key_column(table: pa.Table, key: str | None) -> pa.ChunkedArray | None:
    """What becomes the key of each row's record, as bytes; None: no record has one.

    Args:
        table: the rows.
        key: the column; None: the records have no key.

    Raises:
        OutputError: ``SX-OUTPUT-KEY``, there is no such column; ``SX-OUTPUT-TYPE``, a type that cannot be written as text.
    """
    if key is None:
        return None
    if key not in table.column_names:
        raise OutputError(
            "SX-OUTPUT-KEY",
            f"the key column {key!r} is not in the task's rows",
            cause=f"they have {described(table.schema)}",
            fix="name one of these columns as key, or add the column in the task before",
            where={"column": key},
        )
    column = table[key]
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_bytes(column.type):
        return column.cast(pa.large_binary())
    texts = [_texts(chunk, key).cast(pa.large_binary()) for chunk in column.chunks]
    return pa.chunked_array(texts, pa.large_binary())


def described(schema: pa.Schema) -> str:
    """The columns of a table, for errors."""
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns at all"


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_fixed_size_binary(kind)
        or kinds.is_binary_view(kind)
        or kinds.is_string(kind)
        or kinds.is_large_string(kind)
        or kinds.is_string_view(kind)
    )


def _texts(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if kinds.is_decimal(kind):
        written = json_text.texts(column, name)
        return pc.utf8_rtrim(pc.utf8_rtrim(written, "0"), ".") if kind.scale > 0 else written
    if kinds.is_floating(kind):
        return _floats(column.cast(pa.float64()))
    if kinds.is_duration(kind) and kind.unit != "us":
        moved = _MICROSECONDS[kind.unit]
        counts = column.cast(pa.int64()).to_pylist()
        return _strings([None if count is None else _digits(Decimal(f"{count}e{moved}")) for count in counts])
    if kinds.is_time(kind) and kind.unit != "us":
        cut = column.cast(pa.time64("us"), safe=False)
        written = json_text.texts(cut, name)
        if kind.unit != "ns":
            return written
        return pc.if_else(pc.equal(cut.cast(kind), column), written, json_text.texts(column, name))
    return json_text.texts(column, name)


def _floats(column: pa.DoubleArray) -> pa.Array:
    """Arrow writes the fewest digits, but large and small numbers with an exponent, and a negative zero."""
    written = pc.cast(column, pa.string())
    strange = pc.match_substring_regex(written, "e|^-0$")
    if not pc.any(strange).as_py():
        return written
    numbers = column.filter(strange).to_pylist()
    exact = (str(int(number)) if number.is_integer() else _digits(Decimal(repr(number))) for number in numbers)
    return pc.replace_with_mask(written, pc.fill_null(strange, False), _strings(list(exact)))


def _digits(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _strings(found: list[str | None]) -> pa.Array:
    return pa.array(found, pa.string())
