"""The stable hash that assigns a row to a partition of a grouped link. Pure; the same on every machine, in every run.

The partition is ``crc32(key) % partitions``, with the CRC-32 of zlib and PNG (``zlib.crc32``) over the canonical bytes
of the key. A key is one value, or several in a given order. Its canonical bytes are those of its values, concatenated.
Equal values have equal bytes, whatever type held them. The bytes of one value are a tag of one byte, the length of
the payload as four bytes (unsigned, most significant first), and the payload:

========= === ======================================================================================================
value     tag payload
========= === ======================================================================================================
null      n   nothing
boolean   b   the byte 00 (false) or 01 (true)
number    #   ASCII: the exact value in decimal digits, with no exponent, no leading zeros, no plus sign, and no
              zeros at the end of a fraction: ``0``, ``-12``, ``0.5``. So 1 (of any width), 1.0 and decimal 1.00 are
              one key, and so are 0 and -0.0; a float counts with the value that it has exactly (as 0.1 has
              0.1000000000000000055511151231257827021181583404541015625). Also ``nan`` (all of them), ``inf``, ``-inf``
text      s   UTF-8, as it is
bytes     x   the bytes
date      d   ASCII: days since 1970-01-01
moment    z   a timestamp with a zone. ASCII: nanoseconds since 1970-01-01 UTC; the zone itself does not count
timestamp t   one without a zone. ASCII: nanoseconds since 1970-01-01, as its own clock shows it
time      h   a time of day. ASCII: nanoseconds since midnight
duration  u   ASCII: nanoseconds
========= === ======================================================================================================

Payloads that hold an integer write it as in "number". No other value can be a key: not lists, structs, maps, nor
intervals of months.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sardonyx.core.errors import FunctionError

Checksums = np.ndarray[Any, np.dtype[np.uint32]]
Column: TypeAlias = "pa.Array | pa.ChunkedArray"

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - it is for timestamps without a zone
_DAY = dt.date(1970, 1, 1)
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def checksums(columns: Sequence[Column]) -> Checksums:
    """Return the CRC-32 of the canonical bytes of each row's key.

    Python encodes every distinct value once. Arrow and numpy do the work that is needed per row.

    Args:
        columns: the values of the key, one column per part of the key, in its order; at least one column.

    Raises:
        FunctionError: ``SX-KEY-TYPE``, values of this type cannot be a key.
    """
    codes, uniques = coded(columns)
    sums: Checksums = np.fromiter(map(zlib.crc32, uniques), np.uint32, len(uniques))[codes]
    return sums


def coded(columns: Sequence[Column]) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[bytes]]:
    """Number the distinct keys. Return the number of each row's key, and the canonical bytes by number, each once.

    Args:
        columns: as for :func:`checksums`.

    Raises:
        FunctionError: ``SX-KEY-TYPE``.
    """
    codes, uniques = _distinct(columns[0])
    for column in columns[1:]:
        more, values = _distinct(column)
        pairs = pa.array(codes * len(values) + more).dictionary_encode()
        codes = pairs.indices.to_numpy().astype(np.int64)
        uniques = [uniques[pair // len(values)] + values[pair % len(values)] for pair in pairs.dictionary.to_pylist()]
    return codes, uniques


def numbered(columns: Sequence[Column]) -> tuple[np.ndarray[Any, np.dtype[np.int64]], pa.BinaryArray]:
    """Like :func:`coded`, with the canonical bytes in an Arrow array. Texts and integers are encoded without Python.

    Raises:
        FunctionError: ``SX-KEY-TYPE``.
    """
    codes, keys = _numbered(columns[0])
    for column in columns[1:]:
        more, values = _numbered(column)
        pairs = pa.array(codes * len(values) + more).dictionary_encode()
        codes = pairs.indices.to_numpy().astype(np.int64)
        left, right = np.divmod(pairs.dictionary.to_numpy(), max(len(values), 1))
        keys = _joined(keys.take(pa.array(left)), values.take(pa.array(right)))
    return codes, keys


def checksums_of_canonical(keys: Column) -> Checksums:
    """Like :func:`checksums`, for keys that are given as their canonical bytes."""
    return np.fromiter(map(zlib.crc32, keys.to_numpy(zero_copy_only=False)), np.uint32, len(keys))


def canonical(*values: object) -> bytes:
    """Return the canonical bytes of a key that consists of Python values.

    Raises:
        FunctionError: ``SX-KEY-TYPE``, a value of this type cannot be part of a key.
    """
    return b"".join(map(_value, values))


def checksums_of(keys: Sequence[object]) -> Checksums:
    """Like :func:`checksums`, for keys that are Python values. A tuple is a key of several values.

    Raises:
        FunctionError: ``SX-KEY-TYPE``.
    """
    if not any(isinstance(key, tuple) for key in keys):
        column = _as_array(keys)
        return (
            np.array([zlib.crc32(canonical(key)) for key in keys], np.uint32) if column is None else checksums([column])
        )
    several = [key if isinstance(key, tuple) else (key,) for key in keys]
    if len(set(map(len, several))) == 1:
        columns = [_as_array(values) for values in zip(*several, strict=True)]
        if columns and all(column is not None for column in columns):
            return checksums(columns)
    return np.array([zlib.crc32(canonical(*values)) for values in several], np.uint32)


def _as_array(values: Sequence[object]) -> Column | None:
    """Convert the values to an Arrow array. Return None if the conversion could change a value."""
    held = set(map(type, values)) - {type(None)}
    if len(held) > 1 or not held <= {str, bool, int, float}:
        return None
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):  # integers of more than 64 bits
        return None


# --- One column -------------------------------------------------------------------------------------------------------


def _distinct(column: Column) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[bytes]]:
    """As :func:`_coded`, with one number for values that differ for Arrow and have the same bytes, such as 0.0 and -0.0."""
    codes, encoded = _coded(column)
    first: dict[bytes, int] = {}
    if not kinds.is_floating(_plain(column.slice(0, 0)).type) or len(encoded) == len(set(encoded)):
        return codes, encoded
    same = np.array([first.setdefault(value, len(first)) for value in encoded], np.int64)
    return same[codes], list(first)


def _numbered(column: Column) -> tuple[np.ndarray[Any, np.dtype[np.int64]], pa.BinaryArray]:
    plain = _plain(column)
    kind = plain.type
    tag = b"#" if kinds.is_integer(kind) else b"s" if kinds.is_string(kind) else b""
    if not tag or not len(plain):
        codes, keys = _distinct(column)
        return codes, pa.array(keys, pa.binary())
    encoded = _encoded(plain)
    values = encoded.dictionary.cast(pa.string()).cast(pa.binary())
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    values = values.fill_null(b"") if values.null_count else values
    lengths = pc.binary_length(values).to_numpy()
    heads = np.empty((len(values), 5), np.uint8)
    heads[:, 0] = np.where(nulls, ord("n"), ord(tag))
    heads[:, 1:] = lengths.astype(">u4").view(np.uint8).reshape(-1, 4)
    fixed = pa.Array.from_buffers(pa.binary(5), len(values), [None, pa.py_buffer(heads.tobytes())])
    return encoded.indices.to_numpy().astype(np.int64), _joined(fixed.cast(pa.binary()), values)


def _joined(left: pa.BinaryArray, right: pa.BinaryArray) -> pa.BinaryArray:
    return pc.binary_join_element_wise(left, right, pa.scalar(b"", pa.binary()))


def _coded(column: Column) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[bytes]]:
    """Number the distinct values of a column. Return the number for each row, and the canonical bytes by number."""
    plain = _plain(column)
    if kinds.is_null(plain.type):
        return np.zeros(len(plain), np.int64), [_value(None)]
    encode = _encoder(plain.type)
    encoded = _encoded(plain)
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), _each(encoded.dictionary, encode)


def _encoded(plain: Column) -> pa.DictionaryArray:
    """The column with each distinct value once. Its pieces are joined before that: Arrow cannot join dictionaries with nulls."""
    if isinstance(plain, pa.ChunkedArray):
        plain = pa.concat_arrays(plain.chunks) if plain.num_chunks else pa.array([], plain.type)
    return plain.dictionary_encode(null_encoding="encode")


_SIMPLER: list[tuple[Callable[[pa.DataType], bool], pa.DataType]] = [
    (kinds.is_float16, pa.float32()),
    (kinds.is_string_view, pa.large_string()),
    (kinds.is_binary_view, pa.large_binary()),
]
"""Types whose distinct values Arrow cannot find, each with the type to cast to."""


def _plain(column: Column) -> Column:
    """Return the column as plain values: without dictionary encoding, run-end encoding or extension types."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(_storage(column))
    if kinds.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if kinds.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(column))
    simpler = next((simpler for is_kind, simpler in _SIMPLER if is_kind(kind)), None)
    return column if simpler is None else column.cast(simpler)


def _storage(column: Column) -> Column:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column.storage


def _encoder(kind: pa.DataType) -> Callable[[pa.Array], list[bytes]]:
    """Return the function that gives the canonical bytes for values of this type. It does not handle nulls."""
    for is_kind, encode in _KINDS:
        if is_kind(kind):
            return encode
    raise _no_key(str(kind))


def _each(values: pa.Array, encode: Callable[[pa.Array], list[bytes]]) -> list[bytes]:
    """Return the canonical bytes of each value of an array, nulls included."""
    if not values.null_count:
        return encode(values)
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    present = iter(encode(values.drop_null()))
    return [_value(None) if null else next(present) for null in nulls.tolist()]


def _tagged(tag: bytes, values: Iterable[bytes]) -> list[bytes]:
    length = struct.Struct(">I").pack
    return [tag + length(len(value)) + value for value in values]


def _bytes(values: pa.Array, tag: bytes) -> list[bytes]:
    """Encode text or bytes."""
    return _tagged(tag, values.cast(pa.large_binary()).to_numpy(zero_copy_only=False).tolist())


def _digits(values: pa.Array, tag: bytes) -> list[bytes]:
    """Encode integers."""
    return _bytes(values.cast(pa.string()), tag)


def _nanoseconds(values: pa.Array, tag: bytes) -> list[bytes]:
    """Encode times as nanoseconds. Arrow counts them in the unit of their type; nanoseconds may exceed 64 bits."""
    factor = _NANOSECONDS[values.type.unit]
    numbers = values.cast(pa.int32() if kinds.is_time32(values.type) else pa.int64()).to_numpy(zero_copy_only=False)
    return _tagged(tag, [str(number * factor).encode() for number in numbers.tolist()])


def _floats(values: pa.Array, tag: bytes) -> list[bytes]:
    return _tagged(
        tag, [_float(number).encode() for number in values.cast(pa.float64()).to_numpy(zero_copy_only=False).tolist()]
    )


def _decimals(values: pa.Array, tag: bytes) -> list[bytes]:
    return _tagged(tag, [_decimal(number).encode() for number in values.to_pylist()])


def _booleans(values: pa.Array, tag: bytes) -> list[bytes]:
    return _tagged(tag, [b"\1" if value else b"\0" for value in values.to_pylist()])


def _days(values: pa.Array, tag: bytes) -> list[bytes]:
    return _digits(values.cast(pa.date32()).cast(pa.int32()), tag)


def _any(*is_kind: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(one(kind) for one in is_kind)


def _with(tag: bytes, encode: Callable[[pa.Array, bytes], list[bytes]]) -> Callable[[pa.Array], list[bytes]]:
    return lambda values: encode(values, tag)


_KINDS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[bytes]]]] = [
    (_any(kinds.is_string, kinds.is_large_string, kinds.is_string_view), _with(b"s", _bytes)),
    (kinds.is_integer, _with(b"#", _digits)),
    (kinds.is_floating, _with(b"#", _floats)),
    (kinds.is_decimal, _with(b"#", _decimals)),
    (kinds.is_boolean, _with(b"b", _booleans)),
    (kinds.is_date, _with(b"d", _days)),
    (lambda kind: kinds.is_timestamp(kind) and kind.tz is not None, _with(b"z", _nanoseconds)),
    (kinds.is_timestamp, _with(b"t", _nanoseconds)),
    (kinds.is_time, _with(b"h", _nanoseconds)),
    (kinds.is_duration, _with(b"u", _nanoseconds)),
    (
        _any(kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary),
        _with(b"x", _bytes),
    ),
]


# --- One of Python's own values ---------------------------------------------------------------------------------------


def _value(value: object) -> bytes:
    tag, payload = _said(value.as_py() if isinstance(value, pa.Scalar) else value)
    return tag + struct.pack(">I", len(payload)) + payload


def _said(value: object) -> tuple[bytes, bytes]:
    if isinstance(value, np.generic):
        value = pa.scalar(value).as_py() if isinstance(value, np.datetime64 | np.timedelta64) else value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # null values of pandas
        return b"n", b""
    for kind, tag, encode in _TYPES:
        if isinstance(value, kind):
            return tag(value) if callable(tag) else tag, encode(value)
    raise _no_key(type(value).__name__)


def _moment(value: dt.datetime) -> bytes:
    plain = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
    return _duration(plain - _EPOCH)


def _time(value: dt.time) -> bytes:
    if value.tzinfo is not None:
        raise _no_key("time with a zone")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return b"%d" % (seconds * 1_000_000_000 + value.microsecond * 1_000)


def _duration(value: dt.timedelta) -> bytes:
    further: int = getattr(value, "nanoseconds", 0)  # pandas' durations are timedeltas with nanoseconds
    microseconds = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
    return b"%d" % (microseconds * 1_000 + further)


_TYPES: list[tuple[Any, Any, Callable[[Any], bytes]]] = [  # the order matters: a bool is an int, a datetime is a date
    (str, b"s", str.encode),
    (bool, b"b", lambda value: b"\1" if value else b"\0"),
    (int, b"#", lambda value: b"%d" % value),
    (float, b"#", lambda value: _float(value).encode()),
    (Decimal, b"#", lambda value: _decimal(value).encode()),
    (bytes | bytearray | memoryview, b"x", bytes),
    (UUID, b"x", lambda value: value.bytes),
    (dt.datetime, lambda value: b"t" if value.tzinfo is None else b"z", _moment),
    (dt.date, b"d", lambda value: b"%d" % (value - _DAY).days),
    (dt.time, b"h", _time),
    (dt.timedelta, b"u", _duration),
]


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return str(int(value)) if value.is_integer() else _decimal(Decimal(value))


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        return _float(float(value))
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _no_key(kind: str) -> FunctionError:
    return FunctionError(
        "SX-KEY-TYPE",
        f"a value of type {kind} cannot be a key",
        cause="keys are compared by value: numbers, texts, bytes, booleans, dates, times, moments, durations and nulls",
        fix="group by single fields of it, or by a function that makes a text or a number of it",
    )
