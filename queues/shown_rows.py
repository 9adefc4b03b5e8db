"""The rows of a link's messages as they are shown: plain values, cut where they are long. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from queues import block
from queues.messages import CLOCK_HEADER, ROWS_HEADER, SENTINEL_HEADER, WRITER_HEADER, is_marker
from queues.shown_values import records
from sardonyx.core.graph import LinkKind
from sardonyx.core.text import shorten

CELL = 1_000
"""Characters of a text that are shown."""
ITEMS = 100
"""Items of a list that are shown."""
EXACT = 2**53
"""Greater whole numbers are shown as text, since many readers of JSON would round them."""


class Row(NamedTuple):
    """One row, or one message that cannot be read as rows."""

    offset: int
    row: int | None
    """Its number in a message that holds several."""
    at: float | None
    """When it was written, seconds since 1970."""
    by: str | None
    """The peer that wrote it; None on topics that others write."""
    key: str | None
    record: Any
    """Plain values, as JSON has them; long texts and lists are cut."""


def row_count(message: Any) -> int:
    """How many rows a message holds."""
    headers = dict(message.headers() or ())
    return 0 if _holds_none(message, headers) else int(headers.get(ROWS_HEADER) or 1)


def _holds_none(message: Any, headers: Mapping[str, bytes]) -> bool:
    return SENTINEL_HEADER in headers or CLOCK_HEADER in headers or is_marker(message)


def rows(kind: LinkKind, message: Any) -> list[Row]:
    """The rows of a message; none of a sentinel, a statement of the clock, or an end marker.

    Raises:
        SetupError: ``SX-BLOCK-FORMAT``.
    """
    return list(_rows(kind, message))


def _rows(kind: LinkKind, message: Any) -> Iterator[Row]:
    headers = dict(message.headers() or ())
    if _holds_none(message, headers):
        return
    milliseconds, writer, key = message.timestamp()[1], headers.get(WRITER_HEADER), message.key()
    at = None if milliseconds < 0 else milliseconds / 1000
    by = None if writer is None else writer.decode("utf-8", "backslashreplace")
    if kind == "internal":
        for number, record in enumerate(records(block.decode([message.value()]))):
            yield Row(message.offset(), number, at, by, None, plain(record))
    else:
        shown = None if key is None else plain(key)
        yield Row(message.offset(), None, at, by, shown, _record(message.value()))


def _record(value: bytes | None) -> Any:
    """A record of a user's topic, or a split: JSON where it is an object in JSON, otherwise text or bytes."""
    if value is not None and value[:1] == b"{":
        try:
            return plain(msgspec.json.decode(value))
        except msgspec.DecodeError:
            pass
    return plain(value)


def plain(value: Any) -> Any:
    """A value as JSON can hold it, cut where it is long."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, str | bytes):
        return shorten(value if isinstance(value, str) else _text(value), CELL)
    if isinstance(value, Sequence):
        items = [plain(item) for item in value[:ITEMS]]
        return items if len(value) <= ITEMS else [*items, f"and {len(value) - ITEMS:,} more"]
    kept = (
        value is None
        or isinstance(value, bool)
        or (isinstance(value, float) and math.isfinite(value))
        or (isinstance(value, int) and abs(value) <= EXACT)
    )
    return value if kept else str(value)


def _text(value: bytes) -> str:
    """Bytes as text, if they are text; else as hexadecimal numbers."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    shown = all(character.isprintable() or character.isspace() for character in text)
    return text if shown and (text or not value) else f"0x{value[:CELL].hex()}"
