"""What the messages that a task has written say of themselves: rows, and which batch wrote them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from queues.messages import CLOCK_HEADER, FROM_HEADER, SENTINEL_HEADER, rows_counted
from sardonyx.core.batch_origins import decode
from sardonyx.core.record_way import Written
from sardonyx.core.wire_types import ready_for_threads


def written(message: Any, *, listing: bool = False, writer: str = "") -> Written | None:
    """What a message says of itself; None: it holds no rows, or is another writer's.

    Args:
        message: of Kafka, on a link that a task writes.
        listing: the link lists files.
        writer: on a user's topic: whose records are asked for, as :func:`sardonyx.core.batch_origins.writer_of` says it. Records
            that do not say who wrote them may be any program's.
    """
    headers = dict(message.headers() or ())
    if SENTINEL_HEADER in headers or CLOCK_HEADER in headers or (message.value() is None and not writer):
        return None
    milliseconds = message.timestamp()[1]
    at = None if milliseconds < 0 else milliseconds / 1000
    origin, offset = decode(headers.get(FROM_HEADER), writer), message.offset()
    if writer and origin is None:
        return None
    entry = _entry(message.value()) if listing else None
    if entry is None:
        return Written(offset, at, rows_counted(headers), origin)
    if entry.last:
        return Written(offset, at, 0, origin, merges=(entry.last, entry.file))
    return Written(offset, at, entry.rows, origin, entry.final, entry.staged if entry.size else "")


def with_files(messages: Sequence[Written]) -> list[Written]:
    """The messages of a listing, ascending; those of chunks name the file to which a later message says that they are merged."""
    found = list(messages)
    waiting: list[int] = []
    for number, message in enumerate(messages):
        if message.merges is not None:
            last, file = message.merges
            end = next((at for at, chunk in enumerate(waiting) if found[chunk].chunk == last), -1) + 1
            for chunk in waiting[:end]:
                found[chunk] = found[chunk]._replace(file=file or found[chunk].file, chunk="")
            del waiting[:end]
        elif message.chunk:
            waiting.append(number)
    for chunk in waiting:
        found[chunk] = found[chunk]._replace(file="")  # readers do not see it yet
    return found


@ready_for_threads
class _Entry(msgspec.Struct):
    """What is read of an entry of :mod:`sardonyx.connectors.files.roll`: of a file or a chunk, or that chunks are merged."""

    staged: str = ""
    final: str = ""
    rows: int = 0
    size: int = 0
    file: str = ""
    last: str = ""


def _entry(value: bytes) -> _Entry | None:
    """An entry of a listing; None: it is one of a connector of the user's own."""
    try:
        return msgspec.json.decode(value, type=_Entry)
    except msgspec.DecodeError:
        return None


__all__ = ["with_files", "written"]
