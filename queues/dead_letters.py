"""A dead letter: a record that a task could not work on, as it was, with everything that is known of why. Pure.

The value of the message is the record: the bytes of a user's topic where they could not even be read, else an Arrow block of
one row; a record that is too large for a message stays where it came from. What happened stands in the headers, so that letters
are listed without Arrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from queues import block
from sardonyx.core.errors import Failure, OutputError

FORMAT = "letters"
"""The format that a ``kafka`` input has whose topic holds dead letters; only ``sardonyx dlq redo`` writes such inputs."""

FORMATS = "formats"
"""Option of such an input: for each topic whose records could not be read, the options by which to read them anew."""

NO_LETTER = Failure("SX-LETTER-UNREADABLE", "a message on a topic of dead letters is none, or another version's")

TRACEBACK_KEPT = 4_000
"""Characters kept of a traceback: its end, where the reason stands."""
TEXT_KEPT = 1_000
"""Characters kept of message, cause and fix."""

_HEADER = "sx-letter"


Kind = Literal["row", "raw", "large"]
"""Whether the value of a letter is an Arrow block, the bytes of a user's topic, or none, as it would not fit into a message."""

LARGEST = 950_000
"""Bytes that value, key and header of a letter may take together; brokers take 1,000,000 with what they add."""

NO_VALUE = Failure(
    "SX-LETTER-LARGE",
    "the record of this dead letter was too large to be kept in it, and cannot be redone from there",
    fix="read it where it came from: topic, partition and offset are told",
)
"""Why a letter of kind ``large`` fails again."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a record came from: the message that carried it."""

    topic: str
    partition: int
    offset: int
    row: int | None = None
    """Of the record within a message that holds several."""


class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is told of a dead letter, in its header."""

    task: str
    kind: Kind
    error: str
    """Class of what was raised."""
    attempts: int
    failure: Failure
    origin: Origin


class Message(Protocol):
    """What is read of a Kafka message here."""

    def value(self) -> bytes | None: ...

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...


def headers(letter: Letter) -> list[tuple[str, bytes]]:
    """What is told of a letter as the headers of its message; its texts are cut to their bounds."""
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
    """What the message of a letter holds."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]


def packed(letter: Letter, record: pa.Table | bytes | None, key: bytes | None) -> Packed:
    """A letter as a message; one that would be too large for a message goes without the record and its key.

    Args:
        letter: what is told of it.
        record: a table of one row, or the bytes of a user's topic.
        key: of the user's message.
    """
    told = headers(letter)
    with suppress(OutputError):  # a row too large for a message
        value = row_value(record) if isinstance(record, pa.Table) else record
        if sum(len(part) for part in (value, key, told[0][1]) if part is not None) <= LARGEST:
            return Packed(value, key, told)
    return Packed(None, None, headers(msgspec.structs.replace(letter, kind="large")))


def row_value(row: pa.Table) -> bytes:
    """A table of one row as the value of a letter. Raises OutputError ``SX-RECORD-TOO-LARGE``."""
    (only,) = block.encode(row)
    return only.value


def told(message: Message) -> Letter | None:
    """What is told of a letter; None for a message that is none, or of another version."""
    data = dict(message.headers() or ()).get(_HEADER)
    try:
        return None if data is None else msgspec.json.decode(data, type=Letter)
    except msgspec.DecodeError:
        return None


def row_of(value: bytes) -> pa.Table:
    """The row in the value of a letter whose kind is ``row``."""
    return block.decode([value])


def left_by(jobs: Collection[str], deployment: str, names: Iterable[str]) -> list[str]:
    """Of the names of topics or groups those that belong to jobs of these ids.

    Ids of jobs are never used twice, and neither they nor names of deployments and tasks have dots in them; so what is named
    ``<deployment>.<job>.<...>`` is the job's and nobody else's.
    """
    ours = {f"{deployment}.{job}" for job in jobs}
    return sorted(name for name in names if name.count(".") in (2, 3) and ".".join(name.split(".")[:2]) in ours)
