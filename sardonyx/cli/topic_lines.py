"""Lines of a file, or of standard input, as records for a topic, each with its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from sardonyx.core.errors import SardonyxError

Record = tuple[bytes | None, bytes]
"""A key, or none, and a value."""

SHOWN = 100
"""Characters of a line that an error quotes."""


def records(lines: Iterable[bytes], *, text: bool = False, key: str | None = None) -> Iterator[Record]:
    """Make a record of each line: its bytes without the end of the line.

    Args:
        lines: with their ends. A line of JSON holds one object; empty lines among them are passed over.
        text: take lines as they are, also empty ones.
        key: the field of each object whose value becomes the record's key, as the ``json`` format of topics writes it.

    Raises:
        SardonyxError: ``SX-LINE-INVALID``: a line is no JSON object, or its key cannot be one; says which line.
    """
    for number, line in enumerate(lines, 1):
        value = line.removesuffix(b"\n").removesuffix(b"\r")
        if text:
            yield None, value
        elif value.strip():
            yield _key(_object(value, number), key, number), value


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(
            number, "is not JSON", str(error), "correct it, or write lines as they are with --text"
        ) from None
    if not isinstance(found, dict):
        cause = f"it is {line.decode('utf-8', 'replace')[:SHOWN]}"
        raise _invalid(number, "holds no JSON object", cause, "write an object, or write lines as they are with --text")
    return found


def _key(found: dict[str, Any], name: str | None, number: int) -> bytes | None:
    if name is None:
        return None
    if name not in found:
        fields = ", ".join(found) or "none"
        raise _invalid(
            number, f"has no field {name!r} for the key", f"its fields are {fields}"[:SHOWN], "add it, or correct --key"
        )
    value = found[name]
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):  # with the digits that an output of a job writes
        import pyarrow as pa

        from sardonyx.connectors.topics.record_keys import keys_of

        return keys_of(pa.table({name: [value]}), name)[0]
    if isinstance(value, bool | int):
        return msgspec.json.encode(value)
    cause = f"{name} is {msgspec.json.encode(value).decode()[:SHOWN]}"
    raise _invalid(number, "has no key", cause, "name a field with a text, a number or a boolean with --key")


def _invalid(number: int, what: str, cause: str, fix: str) -> SardonyxError:
    return SardonyxError("SX-LINE-INVALID", f"line {number} {what}", cause=cause, fix=fix, where={"line": number})
