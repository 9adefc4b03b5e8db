"""Rows that were written to an internal link, and rows that were read from it, by committed positions. Pure.

The positions of the task that writes a link say how many rows each partition's batches wrote to it (``Position.told``); those of
the task that reads it say how many rows were read from each of its partitions. Both are committed in the transactions that write
and read the rows. So they are exact, whatever crashed.

Rows are *unknown* where a release that does not count them has written. Then no total is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, Stage
from sardonyx.core.positions import COUNTED, Partition, Position

Positions = Mapping[Partition, Position | None]


def told_by(position: Position | None, links: int) -> tuple[int, ...] | None:
    """Rows that the batches of a partition wrote, by link; None: unknown.

    A position without such counts that has read no row has written none, whichever release committed it.

    Args:
        position: the committed one; None: nothing was committed.
        links: how many links the task writes to.
    """
    if links > COUNTED:
        return None
    if position is None or (position.told is None and not position.counts.rows_in):
        return (0,) * links
    return position.told if position.told is not None and len(position.told) == links else None


def with_told(position: Position, written: Sequence[int]) -> Position:
    """A position before a batch with the rows that the batch writes, by link. What is unknown stays so."""
    before = told_by(position, len(written))
    if before is None or not written:
        return position._replace(told=None)
    return position._replace(told=tuple(map(sum, zip(before, written, strict=True))))


def written(writer: Stage, link: str, held: Positions) -> int | None:
    """Rows that a task has committed as written to a link; None: unknown.

    Args:
        writer: the task.
        link: the link's name.
        held: its committed positions.
    """
    names = [each.name for each in writer.counted]
    found = [told_by(position, len(names)) for position in held.values()]
    at = names.index(link)
    known = [each[at] for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def all_committed(writer: Stage, facts: Mapping[str, LinkFacts], held: Positions) -> bool:
    """Whether a task has a position in each partition that it reads. A task that has ended does, unless its group is gone."""
    return all(
        held.get(Partition(link.topic, number)) is not None
        for link in writer.ingress
        for number in range(facts[link.name].partitions)
    )


def read(link: Link, held: Positions) -> int:
    """Rows that the reader of a link has committed as read.

    Args:
        link: the link.
        held: the committed positions of the task that reads it.
    """
    return sum(
        position.counts.rows_in
        for partition, position in held.items()
        if position is not None and partition.topic == link.topic
    )
