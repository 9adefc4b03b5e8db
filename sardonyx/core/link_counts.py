"""Rows that were written to an internal link, and rows that were read from it, by committed positions. Pure.

The positions of the task that writes a link say how many rows each partition's batches wrote to it (``Position.told``); those of
the task that reads it say how many rows were read from each of its partitions. Both are committed in the transactions that write
and read the rows. So they are exact, whatever crashed.

Rows are *unknown* where a release that does not count them has written. Then no total is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, Stage
from sardonyx.core.positions import COUNTED, Partition, Position

Positions = Mapping[Partition, Position | None]


class Places(NamedTuple):
    """The numbers under which a task counts the rows of its internal links, once a change has added queues to its job or removed
    some. They stand in the facts of the links.
    """

    numbers: list[int]
    """In the order of the links."""
    added: bool
    """Whether changes have added all of these links."""


def places(writer: Stage, facts: Mapping[str, LinkFacts]) -> Places | None:
    """The numbers of a task's internal links; None: they are counted in their order."""
    known = [facts[link.name] for link in writer.counted if link.name in facts]
    numbers = [each.place for each in known if each.place is not None]
    if not numbers or len(numbers) < len(writer.counted):
        return None
    return Places(numbers, all(each.revision for each in known))


def told_by(position: Position | None, links: int, places: Places | None = None) -> tuple[int, ...] | None:
    """Rows that the batches of a partition wrote, by link, in the order of the links; None: unknown.

    A position without such counts that has read no row has written none, whichever release committed it.

    Args:
        position: the committed one; None: nothing was committed.
        links: how many links the task writes to.
        places: their numbers (:func:`places`). With them, a link that the position does not know was given nothing when it was
            committed: it was added later.
    """
    if links > COUNTED:
        return None
    added = places is not None and places.added
    if position is None or (position.told is None and (added or not position.counts.rows_in)):
        return (0,) * links
    told = position.told
    if told is None or places is None:
        return told if isinstance(told, tuple) and len(told) == links else None
    known = told if isinstance(told, dict) else dict(enumerate(told))
    return tuple(known.get(number, 0) for number in places.numbers)


def with_told(position: Position, written: Sequence[int], places: Places | None = None) -> Position:
    """A position before a batch with the rows that the batch writes, by link. What is unknown stays so.

    ``places``: the numbers of the links; see :func:`places`. A list has room for small ones, and then what the position says of
    links that are gone stays. If one of them is large, the position says only what it knows of these links.
    """
    before = told_by(position, len(written), places)
    if before is None or not written:
        return position._replace(told=None)
    rows = tuple(known + more for known, more in zip(before, written, strict=True))
    if places is None:
        return position._replace(told=rows)
    found = dict(zip(places.numbers, rows, strict=True))
    if max(found) >= COUNTED:
        return position._replace(told=found)
    kept = position.told if isinstance(position.told, tuple) else ()
    size = max(len(kept), max(found) + 1)
    return position._replace(told=tuple(found.get(n, kept[n] if n < len(kept) else 0) for n in range(size)))


def written(
    writer: Stage, link: str, held: Positions, facts: Mapping[str, LinkFacts] = MappingProxyType({})
) -> int | None:
    """Rows that a task has committed as written to a link; None: unknown.

    Args:
        writer: the task.
        link: the link's name.
        held: its committed positions.
        facts: of the job's links.
    """
    carried = facts[link].carried if link in facts else 0
    rows = _counted(writer, link, held.values(), facts)
    return None if rows is None or carried is None else rows + carried


def carried_over(
    writer: Stage, gone: Collection[str], held: Positions, facts: Mapping[str, LinkFacts]
) -> dict[str, int | None]:
    """Rows that a task has written to each of its internal links, as far as they are counted on links that it reads no more:
    their positions are deleted with them.

    Args:
        writer: the task, as it has been.
        gone: the names of the links that go.
        held: its committed positions.
        facts: of the job's links, as they have been.

    Returns:
        By link, what :attr:`sardonyx.core.events.LinkFacts.carried` is from now on.
    """
    topics = {link.topic for link in writer.ingress if link.name in gone}
    lost = [position for partition, position in held.items() if partition.topic in topics]
    found: dict[str, int | None] = {}
    for link in writer.counted:
        rows, before = _counted(writer, link.name, lost, facts), facts[link.name].carried
        found[link.name] = None if rows is None or before is None else rows + before
    return found


def _counted(
    writer: Stage, link: str, positions: Iterable[Position | None], facts: Mapping[str, LinkFacts]
) -> int | None:
    names, numbers = [each.name for each in writer.counted], places(writer, facts)
    found = [told_by(position, len(names), numbers) for position in positions]
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
