"""Values of a state as bytes (MessagePack), and which types can be kept.

A value is kept only if it comes back equal. So each value is decoded right after it was encoded, and compared. Users meet the
value that came back. Whether a value was read from the store or written a moment ago therefore makes no difference.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Generic, TypeVar, get_origin

import msgspec
import numpy as np
from msgspec import inspect as kinds

from sardonyx.core.errors import FunctionError
from sardonyx.core.text import shorten

T = TypeVar("T")


def _number(value: object) -> object:
    """What a number of numpy is to Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"no value of type {type(value).__module__}.{type(value).__qualname__} can be written as bytes")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_number)
_WORKED_OUT = threading.Lock()
"""While msgspec works out a class of a user: see :func:`sardonyx.core.wire_types.ready_for_threads`."""
_RECORDS = (kinds.StructType, kinds.DataclassType, kinds.TypedDictType, kinds.NamedTupleType)
_HASHED = (
    kinds.StrType,
    kinds.IntType,
    kinds.FloatType,
    kinds.BoolType,
    kinds.BytesType,
    kinds.DateType,
    kinds.DateTimeType,
    kinds.TimeDeltaType,
    kinds.DecimalType,
    kinds.UUIDType,
)
"""Types of the keys of a map."""
_PLAIN = (int, float, str, bytes, bool)
"""Types whose values come back from their bytes as they were, if there are bytes for them."""


class Codec(Generic[T]):
    """Values of one type.

    Args:
        kind: a type that :func:`unstorable` finds nothing wrong with.
        name: of the state, for errors.
    """

    def __init__(self, kind: Any, name: str) -> None:
        self.kind = kind
        self._name = name
        with _WORKED_OUT:
            self._decode = msgspec.msgpack.Decoder(kind).decode
        self._plain = kind if kind in _PLAIN else None

    def encode(self, value: T) -> tuple[bytes, T]:
        """The value as bytes, and as it comes back from them.

        Raises:
            FunctionError: ``SX-STATE-VALUE``.
        """
        try:
            data = _ENCODER.encode(value)
            if type(value) is self._plain:
                return data, value
            back: T = self._decode(data)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise self._wrong(value, f"{type(error).__name__}: {error}") from error
        if not same(value, back):
            raise self._wrong(value, f"it would come back as {shorten(repr(back))}")
        return data, back

    def decode(self, data: bytes) -> T:
        """The value of these bytes."""
        found: T = self._decode(data)
        return found

    def fresh(self) -> T | None:
        """What a state begins with: the type's own value without arguments, such as 0, or a struct with its defaults. None if it
        has none.
        """
        kind: Any = get_origin(self.kind) or self.kind
        required: object = getattr(kind, "__required_keys__", None)  # a TypedDict is made without them
        if not isinstance(kind, type) or required:
            return None
        try:
            made: T = kind()
        except TypeError:  # it has no such value, or a field has no default
            return None
        return made

    def _wrong(self, value: object, cause: str) -> FunctionError:
        return FunctionError(
            "SX-STATE-VALUE",
            f"the state {self._name!r} cannot keep {shorten(repr(value))}",
            cause=cause,
            fix=f"give it a value of type {type_text(self.kind)}",
            where={"state": self._name},
        )


def same(value: object, back: object) -> bool:
    """Whether two values are the same, NaN included, though they may not say so themselves."""
    try:
        if value == back:
            return True
    except ArithmeticError:  # a signaling NaN compares with nothing
        pass
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping) and isinstance(back, Mapping):
        return value.keys() == back.keys() and all(same(value[key], back[key]) for key in value)
    if type(value) is not type(back):
        return False
    if isinstance(value, float | Decimal):  # they differ, and look the same: NaN
        return str(value) == str(back)
    if isinstance(value, list | tuple) and isinstance(back, list | tuple):
        return len(value) == len(back) and all(map(same, value, back))
    names = getattr(value, "__struct_fields__", ())
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    return bool(names) and all(same(getattr(value, name), getattr(back, name)) for name in names)


# --- Types ------------------------------------------------------------------------------------------------------------


def unstorable(kind: Any) -> str:
    """Why values of a type cannot be kept; empty if they can."""
    try:
        found = next(_foreign(kinds.type_info(kind), set()), None)
        if found is None:
            with _WORKED_OUT:
                msgspec.msgpack.Decoder(kind)
    except (TypeError, ValueError, NameError, msgspec.MsgspecError) as error:
        return str(error) or type(error).__name__
    return "" if found is None else f"{found} cannot be written as bytes and read back"


def unhashed(kind: Any) -> str:
    """Why values of a type cannot be the keys of a map in a state; empty if they can."""
    wrong = unstorable(kind)
    if wrong:
        return wrong
    info = kinds.type_info(kind)
    parts = info.item_types if isinstance(info, kinds.TupleType) else (info,)
    if all(isinstance(part, _HASHED) for part in parts):
        return ""
    return "a key is a text, a number, a bool, bytes, a date, a time, a UUID, or a tuple of a fixed length of them"


def shape_of(kind: Any) -> Iterator[tuple[str, str, bool]]:
    """What a type is made of: the path of each part (empty for the whole), its type, and whether it may be added later."""
    info = kinds.type_info(kind)
    if (isinstance(info, kinds.StructType) and info.array_like) or not isinstance(info, _RECORDS[:3]):
        yield "", _text(info, ()), False
        return
    yield "", _word(info), False
    for field in info.fields:
        yield field.encode_name, _text(field.type, ()), not field.required


def type_text(kind: Any) -> str:
    """A type as one writes it."""
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _foreign(info: kinds.Type, seen: set[int]) -> Iterator[str]:
    """The types within a type that MessagePack does not know."""
    if isinstance(info, kinds.CustomType):
        yield type_text(info.cls)
    if isinstance(info, kinds.RawType | kinds.ExtType):
        yield type(info).__name__.removesuffix("Type")
    if id(info) in seen:
        return
    seen.add(id(info))
    for part in _parts(info):
        yield from _foreign(part, seen)


def _parts(info: kinds.Type) -> Iterator[kinds.Type]:
    if isinstance(info, _RECORDS):
        yield from (field.type for field in info.fields)
    for name in ("item_type", "key_type", "value_type"):
        if hasattr(info, name):
            yield getattr(info, name)
    for name in ("item_types", "types"):
        yield from getattr(info, name, ())


def _text(info: kinds.Type, within: tuple[type, ...]) -> str:
    """A type with all that decides how its values are written, names of classes apart."""
    if isinstance(info, _RECORDS):
        if info.cls in within:
            return f"<{len(within) - within.index(info.cls)} up>"
        within = (*within, info.cls)
        return f"{_word(info)}({', '.join(f'{each.encode_name}: {_text(each.type, within)}' for each in info.fields)})"
    if isinstance(info, kinds.EnumType):
        return f"enum({', '.join(repr(each.value) for each in info.cls)})"
    if isinstance(info, kinds.LiteralType):
        return f"literal({', '.join(map(repr, info.values))})"
    parts = ", ".join(_text(part, within) for part in _parts(info))
    return f"{_word(info)}[{parts}]" if parts else _word(info)


def _word(info: kinds.Type) -> str:
    if isinstance(info, kinds.StructType):
        tag = "" if info.tag is None else f" {info.tag}"
        return ("array" if info.array_like else "record") + tag
    return "record" if isinstance(info, _RECORDS[:3]) else type(info).__name__.removesuffix("Type").lower()
