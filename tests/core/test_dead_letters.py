"""Dead letters as messages: none is too large to be written."""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pytest

from queues.dead_letters import LARGEST, LETTER_FORMAT, Letter, Origin, packed, told
from sardonyx.core.errors import Failure


class Message(NamedTuple):
    """A message as it is read again."""

    told: list[tuple[str, bytes]]

    def value(self) -> bytes | None:
        return None

    def headers(self) -> list[tuple[str, bytes]]:
        return self.told


@pytest.mark.parametrize("size", [0, 940_000, 960_000, 5_000_000])
def test_a_letter_always_fits_into_a_message(size: int) -> None:
    """A record that is too large stays where it came from, and its letter keeps everything else."""
    letter = Letter("clean", "raw", "ValueError", 1, Failure("SX-C", "m", traceback="e" * 9_000), Origin("t", 1, 2))
    value, key, headers = packed(letter, b"x" * size, b"k")
    read = told(Message(headers))
    assert read is not None
    assert (read.kind, value, key) == (("raw", b"x" * size, b"k") if size < LARGEST else ("large", None, None))
    assert read.origin == letter.origin
    noise = random.Random(1).randbytes(size)
    value, _, headers = packed(msgspec.structs.replace(letter, kind="row"), pa.table({"data": [noise]}), None)
    read = told(Message(headers))
    assert read is not None
    assert (read.kind, value is None) == (("row", False) if size < 900_000 else ("large", True))


def test_a_letter_of_a_newer_release_is_not_misread() -> None:
    """A letter that says a newer version counts as unreadable, so a redo reports it and does not guess."""
    letter = Letter("clean", "raw", "ValueError", 1, Failure("SX-C", "m"), Origin("t", 1, 2), format=LETTER_FORMAT + 1)
    _, _, headers = packed(letter, b"x", None)
    assert told(Message(headers)) is None
