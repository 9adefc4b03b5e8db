"""Rows that were written to an internal link, and rows that were read from it, by committed positions. Pure.

The positions of the task that writes a link say how many rows each partition's batches wrote to it (``Position.told``); those of
the task that reads it say how many rows were read from each of its partitions. Both are committed in the transactions that write
and read the rows. So they are exact, whatever crashed.

Rows are *unknown* where a release that does not count them has written. Then no total is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass
class LinkTally:
    """What is known of one link while it is looked at, although its job goes on.

    Ask first for what was read, then for what was written, then for where the link ends, and then count the unread rows up to
    there (:meth:`look`). Rows that were committed in between make a loss look smaller, never greater. So the greatest loss of all
    looks is the best; and it is exact if the writer had committed nothing more by the end of the look.
    """

    read: int
    written: int | None
    unread: int | None = None
    lost: int | None = None
    twice: int | None = None

    @property
    def settled(self) -> bool:
        """Whether there is nothing to look for: all that was written is read, or it is unknown how much was written."""
        return self.written is None or self.written == self.read

    def look(self, written: int | None, present: int) -> None:
        """One look.

        Args:
            written: rows that were committed as written when the look began.
            present: unread rows that stand on the link.
        """
        self.written = written
        if written is not None:
            self.lost = max(self.lost or 0, written - self.read - present)
            self.unread = max(0, written - self.read - self.lost)

    def close(self, present: int | None, *, exact: bool) -> None:
        """The end of the last look.

        Args:
            present: unread rows that stand on the link; None: they were not counted.
            exact: nothing more was written during the look.
        """
        if self.written is None:
            return
        if present is None:
            if self.settled:
                self.unread = self.lost = self.twice = 0
        elif exact:
            found = self.read + present
            self.unread, self.lost = present, max(0, self.written - found)
            self.twice = max(0, found - self.written)
