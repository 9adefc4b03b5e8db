"""Fronts as texts of a bounded length: in the headers of statements and in committed positions. Pure.

A job may read thousands of source partitions, and a text has room for some hundred offsets. A front that is too long is made
coarser: neighbouring partitions of a source get the least offset of them all. So what it says is still true, and less exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import ne

import msgspec

from sardonyx.core.clocks import END
from sardonyx.core.fronts import UNKNOWN, Front

LONGEST_FRONT = 1_500
"""Largest length of a front in the header of a statement, in bytes. Most fronts of 150 source partitions need no more. A position
has room for two of these, as a task with state needs."""


def front_text(front: Front) -> bytes:
    """A front as JSON. What :func:`told` has made short it leaves as it is."""
    return msgspec.json.encode(front)


def read_front(text: bytes) -> Front:
    """The front that a text tells."""
    return in_full(_FRONT.decode(text))


_FRONT = msgspec.json.Decoder(tuple[tuple[int, ...] | None, ...])


def told(front: Front, room: int) -> Front:
    """A front as a text of at most ``room`` bytes tells it: the same, or one in runs, and coarser if it must be.

    In a run, a negative number says how many more partitions have the offset before it. A front that finds no room although
    each source has one offset only says nothing of any source.

    Args:
        front: with an offset for each partition.
        room: bytes, at least 2.
    """
    if len(front_text(front)) <= room:
        return front
    lengths = [0 if offsets is None else len(offsets) for offsets in front]
    blocks, size = front, 1
    while True:
        if sum(_at_least(of) for of in blocks if of) <= room:  # else there is no need to try
            found = tuple(
                None if of is None else _runs(of, size, length) for of, length in zip(blocks, lengths, strict=True)
            )
            if len(front_text(found)) <= room:
                return found
        if size >= max(lengths):
            return UNKNOWN
        # Blocks begin at multiples of their size. So a front that is made coarser at each task on its way is in the end no
        # coarser than the coarsest of these fronts.
        blocks = tuple(None if of is None else tuple(map(min, of[::2], (*of[1::2], END))) for of in blocks)
        size *= 2


def in_full(front: Front) -> Front:
    """The reverse of :func:`told`: with an offset for each partition, as far as it is exact."""
    if not any(offsets and min(offsets) < 0 for offsets in front):
        return front
    return tuple(None if offsets is None else _without_runs(offsets) for offsets in front)


def fitted(front: Front, room: int = LONGEST_FRONT) -> Front:
    """What is left of a front in a text of at most ``room`` bytes: nowhere more than it says itself."""
    return in_full(told(front, room))


def _at_least(blocks: Sequence[int]) -> int:
    """Bytes that the offsets of a source need at least: those where one differs from the one before it, each with a comma."""
    different: int = 1 + sum(map(ne, blocks, blocks[1:]))
    return different * (1 + len(str(min(blocks)))) - 1


def _runs(blocks: Sequence[int], size: int, length: int) -> tuple[int, ...]:
    """The offsets of blocks of ``size`` partitions, of which there are ``length``: the last block may be shorter."""
    found: list[int] = []
    left = length
    for offset, equal in groupby(blocks):
        count = min(size * sum(1 for _ in equal), left)
        left -= count
        found += [offset, 1 - count] if count > 1 else [offset]
    return tuple(found)


def _without_runs(offsets: Sequence[int]) -> tuple[int, ...]:
    found: list[int] = []
    for number in offsets:
        found += [number] if number >= 0 else [found[-1]] * -number
    return tuple(found)
