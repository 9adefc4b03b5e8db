"""When the rows of several batches become one file, and how the ``parts`` link lists that. Pure.

With ``roll``, a batch stages its rows as a chunk, and its transaction lists the chunk as an :class:`Entry`. One peer merges
chunks into a file. A transaction of its own lists the merge as a :class:`Rolled`, before the file is published and the chunks
are removed. So the listing alone says what is in published files, and what is not yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from sardonyx.core import units
from sardonyx.core.errors import InternalError, refuse_newer
from sardonyx.core.wire_types import ready_for_threads

BATCH = "batch"
"""The value of ``roll`` that gives each batch a file of its own."""

DEFAULT = "128 MiB or 1 min"
"""``roll`` of an unbounded job that does not set it. A bounded job then writes a file for each batch, and lists all of them."""

WANTED = '"128 MiB or 5 min", "5 min", or "batch" for a file from each batch'
"""The values of ``roll``, in words."""

FORMAT = 1
"""Version of the form of a listing. Those of version 1 do not say it."""

SWEEP = 5.0
"""Seconds after which files that batches publish one by one leave the listing."""


class Roll(NamedTuple):
    """A file is complete when it is this large, or when its oldest rows are this old."""

    size: int | None
    """Bytes before compression (of Parquet: after it); None: any size."""
    seconds: float
    merges: bool = True
    """False: each batch publishes a file of its own, and only the listing is cut."""

    @classmethod
    def parse(cls, text: str) -> Roll:
        """Read the option ``roll``. Raises ``ValueError`` that says what is wrong."""
        if text.strip() == BATCH:
            return cls(None, SWEEP, merges=False)
        first, _, second = text.partition(" or ")
        if not second and _is_size(first):
            raise ValueError("it has no time, and rows would wait without end for a file to fill")
        size, seconds = (units.size(first), units.seconds(second)) if second else (None, units.seconds(first))
        if seconds <= 0 or size == 0:
            raise ValueError("size and time must be more than 0")
        return cls(size, seconds)


@ready_for_threads
class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One staged file, as the transaction carries it. It takes about 150 bytes."""

    staged: str
    """Its name below the task's staging folder."""
    final: str
    """Its name in the output folder."""
    rows: int
    columns: str = ""
    """csv: a digest of the column names, which the file itself may not hold."""
    size: int = 0
    """Bytes, of a chunk that is to be merged."""
    header: int = 0
    """Bytes of the line with the column names, of a chunk that is to be merged."""
    format: int = FORMAT


@ready_for_threads
class Rolled(msgspec.Struct, frozen=True, omit_defaults=True):
    """Chunks that are merged: the oldest ones in the listing, up to ``last``."""

    file: str
    """The name of the merged file in the output folder; empty if there is none: the chunks were published one by one."""
    last: str
    """The staged name of the last of the chunks."""
    files: int
    """Files that the task has published so far, this one included."""
    rows: int
    """Rows in all of these files."""
    format: int = FORMAT


class Chunk(NamedTuple):
    """A chunk that is not merged yet."""

    entry: Entry
    offset: int = 0
    """Its place on the ``parts`` link."""
    since: float = 0.0
    """When its batch wrote it, in seconds since 1970."""


class Listing:
    """What the ``parts`` link lists: chunks in their order, and what became of them."""

    def __init__(self, entries: Sequence[bytes] = ()) -> None:
        self.pending: deque[Chunk] = deque()
        """Chunks that no committed merge holds."""
        self.last: Rolled | None = None
        """The last committed merge."""
        self.merged: list[Entry] = []
        """Its chunks."""
        for data in entries:
            self.add(data)

    def add(self, data: bytes, offset: int = 0, since: float = 0.0) -> None:
        """Take the next message of the link."""
        found = decode(data)
        if isinstance(found, Entry):
            self.pending.append(Chunk(found, offset, since))
        else:
            self.roll(found)

    def roll(self, rolled: Rolled) -> None:
        """Take a merge. One whose chunks are not pending is an earlier one, or known: it changes nothing."""
        names = [chunk.entry.staged for chunk in self.pending]
        if rolled.last in names:
            self.last = rolled
            self.merged = [self.pending.popleft().entry for _ in range(names.index(rolled.last) + 1)]

    def due(self, roll: Roll, now: float, *, ended: bool) -> list[Chunk]:
        """Return the chunks that make the next file; none if it is not complete yet.

        Args:
            roll: when a file is complete.
            now: seconds since 1970.
            ended: whether no more chunks are expected, so that nothing is worth waiting for.
        """
        chosen: list[Chunk] = []
        size = 0
        for chunk in self.pending:
            chosen.append(chunk)
            size += chunk.entry.size
            if roll.size is not None and size >= roll.size:
                return chosen
        old = bool(chosen) and now - chosen[0].since >= roll.seconds
        return chosen if ended or old else []

    def totals(self) -> tuple[int, int]:
        """How many files the committed merges have made, and the rows in them."""
        return (self.last.files, self.last.rows) if self.last is not None else (0, 0)


def _is_size(text: str) -> bool:
    try:
        units.seconds(text)
    except ValueError:
        units.size(text)
        return True
    return False


def decode(data: bytes) -> Entry | Rolled:
    """One message of the ``parts`` link.

    Raises:
        InternalError: ``SX-BUG-ENTRY``: it names a file outside its folder.
        SetupError: ``SX-BLOCK-FORMAT``: a newer release wrote it.
    """
    found: Entry | Rolled
    try:
        found = msgspec.json.decode(data, type=Entry)
    except msgspec.ValidationError:
        found = msgspec.json.decode(data, type=Rolled)
    refuse_newer("lists of files", found.format, FORMAT)
    if any(Path(name).name != name for name in _names(found)):
        raise InternalError("SX-BUG-ENTRY", f"an entry names a file outside its folder: {found}")
    return found


def _names(entry: Entry | Rolled) -> Iterator[str]:
    if isinstance(entry, Entry):
        yield from (entry.staged, entry.final)
    elif entry.file:
        yield entry.file
