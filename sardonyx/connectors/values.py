"""Texts as values of declared types: how CSV fields and JSON strings become numbers, dates and moments. Pure.

Both formats follow one rule. White space around a value is ignored, except in strings. A value that its type cannot
hold exactly is refused. It is never rounded, cut or turned into a null, except that a float is the nearest one to the digits,
and that the fraction of a second is cut to microseconds.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.text import shorten

_ZONED = r"^.{10}.*(?:Z|[+-]\d\d(?::?\d\d)?)$"
"""A zone after a date. The date takes ten characters, so that its dashes are not mistaken for the sign of a zone."""
_FINER_THAN_MICROSECONDS = r"(\.\d{6})\d+"

ColumnT = TypeVar("ColumnT", pa.Array, pa.ChunkedArray)


class BadValue(ValueError):
    """A text that does not hold a value of its type.

    Args:
        index: its place in the array.
        text: the text itself.
        kind: the type.
    """

    def __init__(self, index: int, text: str, kind: pa.DataType) -> None:
        form = " in base64" if pa.types.is_binary(kind) else ""
        super().__init__(f"{shorten(text)!r} is not a value of type {kind}{form}")
        self.index = index
        self.text = text
        self.kind = kind


def readable(kind: pa.DataType) -> bool:
    """Whether :func:`parsed` supports the type. A text cannot hold a nested value."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
    )


def parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array of strings to an array of ``kind``. Nulls stay nulls.

    Moments are in ISO 8601, with ``T`` or a space, and with or without a zone. A ``timestamp`` without a zone is read
    as UTC. A ``timestamp_ntz`` must not have a zone. Booleans are true and false, in upper or lower case. A binary
    value is written in base64.

    Raises:
        BadValue: for the first text that does not fit.
    """
    if pa.types.is_string(kind):
        return texts
    trimmed = pc.utf8_trim_whitespace(texts)
    try:
        return _parsed(trimmed, kind)
    except pa.ArrowInvalid:
        index = _first_bad(trimmed, kind)
        raise BadValue(index, texts[index].as_py(), kind) from None


def _first_bad(texts: pa.Array, kind: pa.DataType) -> int:
    """Find the index of the first text that fails, by halving: a prefix is good, and one more text makes it bad."""
    good, bad = 0, len(texts)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _parsed(texts.slice(good, middle - good), kind)
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return good


def _parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind):
        if _any(pc.match_substring(texts, "x", ignore_case=True)):
            raise pa.ArrowInvalid("Arrow would read 0x10 as sixteen")
        if _any(pc.starts_with(texts, "+")):
            texts = pc.replace_substring_regex(texts, r"^\+(\d)", r"\1")
    elif pa.types.is_boolean(kind):
        texts = pc.utf8_lower(texts)
        if not _all(pc.is_in(texts, pa.array(["true", "false", None]))):
            raise pa.ArrowInvalid("Arrow would read 1 as true")
    elif pa.types.is_timestamp(kind):
        return _moments(texts, kind)
    elif pa.types.is_binary(kind):
        return pa.array([None if text is None else _unbase64(text) for text in texts.to_pylist()], kind)
    found = pc.cast(texts, kind)
    if pa.types.is_floating(kind) and not _all(
        pc.match_substring(texts.filter(pc.is_inf(found)), "inf", ignore_case=True)
    ):
        raise pa.ArrowInvalid("Arrow would read 1e999 as infinity")
    return found


def narrowed(numbers: ColumnT, kind: pa.DataType) -> ColumnT:
    """Floats as the nearest ones of a type that may be narrower. Raises ``pa.ArrowInvalid`` for one beyond its largest."""
    found: ColumnT = numbers.cast(kind)
    if kind.bit_width >= numbers.type.bit_width:
        return found
    beyond = numbers.filter(pc.and_(pc.is_inf(found), pc.is_finite(numbers)))
    if len(beyond):
        raise pa.ArrowInvalid(f"{beyond[0].as_py()} is beyond the largest {kind}")
    return found


def of_python(held: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python's values as a declared type. Arrow would cut fractions off, make infinities of what a float cannot hold, and take
    any number for a moment, though it does not say its unit.

    Raises:
        Exception: of Arrow or Python, for a value that is not of the type.
    """
    if pa.types.is_float32(kind):
        return narrowed(pa.array(held, pa.float64()), kind)
    if pa.types.is_integer(kind) and any(isinstance(value, float | Decimal) and value % 1 for value in held):
        raise ValueError("it is not whole")
    if pa.types.is_temporal(kind) and any(isinstance(value, int | float | Decimal) for value in held):
        raise ValueError("a number does not say its unit of time")
    return pa.array(held, kind)


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise pa.ArrowInvalid(str(error)) from None


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if _any(pc.match_substring_regex(texts, _FINER_THAN_MICROSECONDS)):
        texts = pc.replace_substring_regex(texts, _FINER_THAN_MICROSECONDS, r"\1")
    if kind.tz is None:
        return pc.cast(texts, kind)
    zoned = pc.match_substring_regex(texts, _ZONED)
    if not _any(zoned):
        return pc.cast(pc.cast(texts, pa.timestamp(kind.unit)), kind)
    if _all(zoned):
        return pc.cast(texts, kind)
    none = pa.scalar(None, pa.string())
    with_zone = pc.cast(pc.if_else(zoned, texts, none), kind)
    without = pc.cast(pc.cast(pc.if_else(zoned, none, texts), pa.timestamp(kind.unit)), kind)
    return pc.coalesce(with_zone, without)


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())


def _all(mask: pa.Array) -> bool:
    """Whether all values that are not null are true."""
    return pc.all(mask).as_py() is not False
