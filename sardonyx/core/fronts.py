"""How far each partition of a job's sources has passed a place in the job. Pure.

A *front* says for each source partition of a job an offset: at the place where it stands, every row below this offset has passed,
or ended before. A peer states fronts in the links of its task as it states clocks (:mod:`sardonyx.core.clocks`), and for the same
reason they hold for all peers: a front is the least over all that the task reads, of what is committed for others and of what
this peer holds. Rows that a task drops move it, because a statement follows them. What a shard still has in open windows holds it
back. A front never falls, and no crash sets it back, because it is committed with the positions.

What a job makes of its fronts is in :mod:`sardonyx.core.progress`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from sardonyx.core.clocks import END

Front = tuple[tuple[int, ...] | None, ...]
"""By number of the source (:class:`~sardonyx.core.source_fronts.Sources`): an offset for each of its partitions; of those that
are missing, nothing is known: 0. None: no row of this source still comes."""

UNKNOWN: Front = ()


def least(fronts: Iterable[Front], count: int) -> Front:
    """What holds where all of these do, for ``count`` sources. None for a source that each of them is done with."""
    found: list[tuple[int, ...] | None] = [None] * count
    for front in fronts:
        for number in range(count):
            other = front[number] if number < len(front) else ()
            found[number] = _lesser(found[number], other)
    return tuple(found)


def greatest(one: Front, other: Front) -> Front:
    """What is known if both are true of the same place."""
    return tuple(_greater(mine, its) for mine, its in zip_longest(one, other, fillvalue=()))


def _lesser(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if one is None or other is None:
        return one if other is None else other
    return tuple(map(min, one, other))  # as long as the shorter one: of the rest nothing is known


def _greater(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if one is None or other is None:
        return None
    return tuple(max(mine, its) for mine, its in zip_longest(one, other, fillvalue=0))


def offset_of(front: Front, source: int, number: int) -> int:
    """The offset of one source partition; ``END`` if no row of the source still comes."""
    offsets = front[source] if source < len(front) else ()
    if offsets is None:
        return END
    return offsets[number] if number < len(offsets) else 0


class Held(NamedTuple):
    """A stretch of rows that a shard still holds, or a part of them.

    ``until``: the clock at which all of them are out; ``END``: at the end of the input, or when the shard holds nothing.
    ``front``: all of them were made from this offset on, of each source partition. ``since``: by number of the link that the task
    reads, the offset from which on they came, in the partition of the shard. Of links that are missing it is not known: 0.
    """

    until: int
    front: Front
    since: tuple[int, ...] = ()
