"""The values of a key, given its canonical bytes (:mod:`queues.keys`), and the keys that a text may mean. Pure."""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Literal
from uuid import UUID

import numpy as np

from queues.keys import canonical
from sardonyx.core.errors import FunctionError

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - it is for timestamps without a zone
_DAY = dt.date(1970, 1, 1)


def key_values(key: bytes) -> tuple[Any, ...]:
    """Return the values of a key, given its canonical bytes: the opposite of :func:`canonical`.

    A number comes back as an ``int`` or a ``float`` if one of them is equal to it, and else as a ``Decimal``. A moment is in UTC.
    A time with nanoseconds or outside the years 1 to 9999, which Python's types do not hold, comes back as a text in ISO 8601.
    """
    found: list[Any] = []
    while key:
        end = 5 + int.from_bytes(key[1:5], "big")
        found.append(_VALUE_OF[key[:1]](key[5:end]))
        key = key[end:]
    return tuple(found)


def _number_of(payload: bytes) -> int | float | Decimal:
    text = payload.decode()
    if text.lstrip("-").isdigit():
        return int(text)
    exact = Decimal(text)
    near = float(text)
    return near if not exact.is_finite() or Decimal(near) == exact else exact


def _after_epoch(payload: bytes) -> dt.timedelta:
    return dt.timedelta(microseconds=int(payload) // 1_000)


def _date_of(payload: bytes) -> dt.date | str:
    try:
        return _DAY + dt.timedelta(days=int(payload))
    except OverflowError:
        return str(np.datetime64(int(payload), "D"))


def _to_nanosecond(make: Callable[[bytes], dt.datetime | dt.time], zone: str = "") -> Callable[[bytes], Any]:
    def value(payload: bytes) -> dt.datetime | dt.time | str:
        try:
            found = make(payload)
        except OverflowError:
            seconds, left = divmod(int(payload), 1_000_000_000)
            return f"{np.datetime64(seconds, 's')}.{left:09}{zone}"
        rest = int(payload) % 1_000
        if not rest:
            return found
        return f"{found.replace(tzinfo=None).isoformat(timespec='microseconds')}{rest:03}{zone}"

    return value


def _duration_of(payload: bytes) -> dt.timedelta | str:
    count = int(payload)
    with suppress(OverflowError):
        if not count % 1_000:
            return _after_epoch(payload)
    seconds, rest = divmod(abs(count), 1_000_000_000)
    return f"{'-' if count < 0 else ''}PT{seconds}.{rest:09}S"


_VALUE_OF: dict[bytes, Callable[[bytes], Any]] = {
    b"n": lambda _: None,
    b"b": lambda payload: payload == b"\1",
    b"#": _number_of,
    b"s": bytes.decode,
    b"x": bytes,
    b"d": _date_of,
    b"z": _to_nanosecond(lambda payload: (_EPOCH + _after_epoch(payload)).replace(tzinfo=dt.UTC), "Z"),
    b"t": _to_nanosecond(lambda payload: _EPOCH + _after_epoch(payload)),
    b"h": _to_nanosecond(lambda payload: (_EPOCH + _after_epoch(payload)).time()),
    b"u": _duration_of,
}


def key_readings(text: str) -> dict[bytes, str]:
    """Return what a text may mean as one value of a key: by canonical bytes, what it was read as.

    It finds each value that a key may have by the text that JSON has for it. Bytes are in base64; those of a UUID may also be
    written as one.
    """
    found: dict[bytes, str] = {}
    for kind, read in _READINGS:
        try:
            found.setdefault(read(text), kind)
        except (ValueError, KeyError, InvalidOperation, FunctionError):
            continue
    return found


_FAR_TEXT = re.compile(r"((?:0000|[1-9]\d{4,}|-\d{3,})-\d\d-\d\d)(?:(T\d\d:\d\d:\d\d)\.(\d{9})(Z)?)?")
"""A day or a moment outside the years 1 to 9999, as :func:`key_values` has it."""
_NANOSECONDS_TEXT = re.compile(r"(.*\.\d{6})(\d{3})(Z|[+-]\d\d:?\d\d)?")
_DURATION_TEXT = re.compile(r"(-?)P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?")
_WORDS = {"true": True, "false": False, "null": None}
_LONGEST = 400
"""Digits of the numbers that a text is read as. The greatest float has 309 before the point."""


def _read_date(text: str) -> bytes:
    found = _FAR_TEXT.fullmatch(text)
    return canonical(dt.date.fromisoformat(text)) if found is None or found[2] else _tagged(b"d", _units_of(text, "D"))


def _read_moment(text: str) -> bytes:
    found = _FAR_TEXT.fullmatch(text)
    if found is None or not found[2]:
        return _read_time(dt.datetime.fromisoformat, text)
    number = _units_of(found[1] + found[2], "s") * 1_000_000_000 + int(found[3])
    return _tagged(b"z" if found[4] else b"t", number)


def _units_of(text: str, unit: Literal["D", "s"]) -> int:
    """How many of the units a day or a moment is after 1970, also outside the years that Python has."""
    return int(np.datetime64(text, unit).astype(np.int64))


def _read_time(read: Callable[[str], dt.datetime | dt.time], text: str) -> bytes:
    fine = _NANOSECONDS_TEXT.fullmatch(text)
    if fine is None:
        return canonical(read(text))
    key = canonical(read(fine[1] + (fine[3] or "")))
    return _tagged(key[:1], int(key[5:]) + int(fine[2]))


def _read_duration(text: str) -> bytes:
    found = _DURATION_TEXT.fullmatch(text)
    if found is None or not any(found.groups()[1:]):
        raise ValueError(text)
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups()[1:5])
    count = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000_000 + int((found[6] or "").ljust(9, "0"))
    return _tagged(b"u", -count if found[1] else count)


def _tagged(tag: bytes, number: int) -> bytes:
    payload = b"%d" % number
    return tag + len(payload).to_bytes(4, "big") + payload


def _read_decimal(text: str) -> bytes:
    number = Decimal(text)
    if number.is_finite() and abs(number.adjusted()) > _LONGEST:
        raise ValueError(text)
    return canonical(number)


_READINGS: list[tuple[str, Callable[[str], bytes]]] = [
    ("a text", canonical),
    ("a number", lambda text: canonical(int(text))),
    ("a float", lambda text: canonical(float(text))),
    ("a decimal", _read_decimal),
    ("a boolean or null", lambda text: canonical(_WORDS[text])),
    ("a date", _read_date),
    ("a timestamp", _read_moment),
    ("a time of day", lambda text: _read_time(dt.time.fromisoformat, text)),
    ("a duration", _read_duration),
    ("a UUID", lambda text: canonical(UUID(text))),
    ("bytes in base64", lambda text: canonical(base64.b64decode(text, validate=True))),
]
"""What texts are read as. If two readings have the same bytes, the first one counts."""


__all__ = ["key_readings", "key_values"]
