"""A dead letter: a record that a task could not process, unchanged, with all that is known about the reason. Pure.

The value of the message is the record. If the task could not decode the record, the value is the bytes from the user's
topic; otherwise it is an Arrow block of one row. A record that is too large for a message stays in the topic that it
came from. The headers say what happened, so that programs can list dead letters without Arrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from queues import block
from sardonyx.core.errors import Failure, OutputError
from sardonyx.core.wire_types import ready_for_threads

NO_LETTER = Failure("SX-LETTER-UNREADABLE", "a message on a topic of dead letters is not one that this version knows")

TRACEBACK_KEPT = 4_000
"""Number of characters kept of a traceback: its end, which names the reason."""
TEXT_KEPT = 1_000
"""Number of characters kept of each of message, cause and fix."""

_HEADER = "sx-letter"

LETTER_FORMAT = 2
"""Version of the form of a letter: its header, and what its value is. Version 2 has the kind ``made``."""


Kind = Literal["row", "raw", "large", "made"]
"""What the value of a dead letter is: a row that the task read, as an Arrow block; the bytes from a user's topic; nothing (too
large); or a row that the task made itself: the result of a window or a timer, or one that Kafka refused.
"""

LARGEST = 950_000
"""Limit in bytes for a letter's value, key and header together. Brokers accept 1,000,000 with their own overhead."""

NO_VALUE = Failure(
    "SX-LETTER-LARGE",
    "the record of this dead letter was too large to be kept in it, and cannot be redone from there",
    fix="read it where it came from: the letter names topic, partition and offset",
)
"""The failure of a dead letter of kind ``large`` that is redone."""

MADE = Failure(
    "SX-LETTER-MADE",
    "this dead letter is a row that the task made, and cannot be redone: the task would take it for one that it reads",
    cause="it is the result of a window or a timer, or a result of a function that Kafka refused",
    fix="correct the function, and run the rows that it was made of again; then `sardonyx dlq drop` closes the letter",
)
"""The failure of a dead letter of kind ``made`` that is redone."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a record came from: the message that held it."""

    topic: str
    partition: int
    offset: int
    row: int | None = None
    """Number of the record within a message that holds several."""


@ready_for_threads
class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header of a dead letter, which describes the failure."""

    task: str
    kind: Kind
    error: str
    """Class name of the exception that was raised."""
    attempts: int
    failure: Failure
    origin: Origin
    format: int = 1
    """The lowest version of the form that has such a letter. Letters of version 1 do not say it."""


class Message(Protocol):
    """The part of a Kafka message that this module reads."""

    def value(self) -> bytes | None: ...

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...


def headers(letter: Letter) -> list[tuple[str, bytes]]:
    """Encode a letter as the headers of its message. Its texts are shortened to their limits."""
    failure = letter.failure
    cut = msgspec.structs.replace(
        failure,
        message=failure.message[:TEXT_KEPT],
        cause=failure.cause[:TEXT_KEPT],
        fix=failure.fix[:TEXT_KEPT],
        traceback=failure.traceback[-TRACEBACK_KEPT:],
    )
    return [(_HEADER, msgspec.json.encode(msgspec.structs.replace(letter, failure=cut)))]


class Packed(NamedTuple):
    """The value, key and headers of a dead letter's message."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]


def packed(letter: Letter, record: pa.Table | bytes | None, key: bytes | None) -> Packed:
    """Build the message of a dead letter. If it would be too large for Kafka, omit the record and its key.

    Args:
        letter: the header of the dead letter.
        record: a table of one row, or the bytes from a user's topic.
        key: the key of the user's message.
    """
    told = headers(letter)
    with suppress(OutputError):  # a row too large for a message
        value = row_value(record) if isinstance(record, pa.Table) else record
        if sum(len(part) for part in (value, key, told[0][1]) if part is not None) <= LARGEST:
            return Packed(value, key, told)
    return Packed(None, None, headers(msgspec.structs.replace(letter, kind="large")))


def row_value(row: pa.Table) -> bytes:
    """Encode a table of one row as the value of a dead letter. Raises OutputError ``SX-RECORD-TOO-LARGE``."""
    (only,) = block.encode(row)
    return only.value


def told(message: Message) -> Letter | None:
    """Read the header of a dead letter. Return None if the message is not a dead letter, or has another version."""
    data = dict(message.headers() or ()).get(_HEADER)
    try:
        letter = None if data is None else msgspec.json.decode(data, type=Letter)
    except msgspec.DecodeError:
        return None
    return letter if letter is not None and letter.format <= LETTER_FORMAT else None


def row_of(value: bytes) -> pa.Table:
    """Decode the row from the value of a dead letter whose kind is ``row`` or ``made``."""
    return block.decode([value])


def left_by(jobs: Collection[str], deployment: str, names: Iterable[str]) -> list[str]:
    """Select the names of topics or groups that belong to the jobs with these ids.

    A job id is never used twice. Job ids, deployment names and task names contain no dots.
    So a name of the form ``<deployment>.<job>.<...>`` belongs to that job only.
    """
    ours = {f"{deployment}.{job}" for job in jobs}
    return sorted(name for name in names if name.count(".") in (2, 3) and ".".join(name.split(".")[:2]) in ours)
