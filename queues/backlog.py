"""How much of a link is unread, and for how long, from what a short look at it shows. Pure.

Offsets do not tell it: the ends of transactions and aborted records take some too, and a message of an internal link holds many
rows. So what stands first is looked at, and of what lies behind that it is said how well it is known (:data:`Precision`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sardonyx.core.events import LinkFacts
from sardonyx.core.positions import Position

Precision = Literal["exact", "at-most", "estimate", "unknown"]


class PartitionScan(NamedTuple):
    """What was seen of one partition from its committed position on, in offsets."""

    start: int
    """The committed position."""
    end: int
    """Behind the last offset that counts and that a reader could have by now."""
    reached: int
    """Behind the last one looked at; ``end`` when it is known that no more records stand before that."""
    records: int = 0
    """In what was looked at."""
    since: float | None = None
    """Since when the first of them waits, in seconds since 1970."""

    @property
    def left(self) -> int:
        """Offsets that were not looked at."""
        return max(self.end - self.reached, 0)


class Backlog(NamedTuple):
    """What of a link is unread. ``seconds``: how long the oldest record of it has waited; None: not known."""

    records: int | None = None
    precision: Precision = "unknown"
    seconds: float | None = None


NO_BACKLOG = Backlog(0, "exact", 0.0)


def unscanned(number: int, facts: LinkFacts, position: Position | None, end: int) -> PartitionScan:
    """What a reader has still before it in a partition, nothing of it looked at yet.

    Args:
        number: of the partition.
        facts: of the link.
        position: what the reader has committed there.
        end: the offset behind everything that is decided.
    """
    planned = number < facts.partitions  # one that was added to a user's topic since is read whole, or not at all
    begin = facts.start[number] if facts.start and planned else 0
    start = begin if position is None else position.offset
    if facts.end is not None:
        end = min(end, facts.end[number]) if planned else start
    return PartitionScan(start, max(start, end), start)


def estimate_backlog(
    seen: Sequence[PartitionScan], now: float, *, blocks: bool, counted: int | None = None, most: int | None = None
) -> Backlog:
    """Put what was seen of a link's partitions together.

    Args:
        seen: one for each partition.
        now: seconds since 1970.
        blocks: whether a message may hold many rows; otherwise it is one record.
        counted: how many records are unread, where the counts of writer and reader tell.
        most: that they are no more than that, where the counts tell only this.
    """
    records, precision = (counted, "exact") if counted is not None else _estimated(seen, most, blocks=blocks)
    if records == 0:
        return NO_BACKLOG
    waiting = [each.since for each in seen if each.left or each.records]
    known = [since for since in waiting if since is not None]
    seconds = round(max(now - min(known), 0.0), 3) if known and len(known) == len(waiting) else None
    return Backlog(records, precision, seconds)


def _estimated(seen: Sequence[PartitionScan], most: int | None, *, blocks: bool) -> tuple[int | None, Precision]:
    records, left = sum(each.records for each in seen), sum(each.left for each in seen)
    if not left:
        return records, "exact"
    if not blocks:
        return records + left, "at-most"
    looked = sum(each.reached - each.start for each in seen)
    if not records:  # nothing to reckon with: no answer, or nothing but sentinels so far
        return (None, "unknown") if most is None else (most, "at-most")
    estimate = records + round(left * records / looked)
    return estimate if most is None else max(records, min(estimate, most)), "estimate"
