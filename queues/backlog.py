"""How many records of a link are unread, and for how long, estimated from a short scan. Pure.

Offsets alone do not give the number. Transaction markers and aborted records use offsets too, and a message of an
internal
link holds many rows. So we scan the first unread messages and estimate the rest. :data:`Precision` says how good the
number is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sardonyx.core.events import LinkFacts
from sardonyx.core.positions import Position
from sentinel.rules import WITHOUT_SENTINEL

Precision = Literal["exact", "at-most", "estimate", "unknown"]


class PartitionScan(NamedTuple):
    """What the scan of one partition found from the committed position on, in offsets."""

    start: int
    """The committed position."""
    end: int
    """The offset after the last one that counts and that a reader could have read by now."""
    reached: int
    """The offset after the last one scanned. It is ``end`` once we know that no more records come before ``end``."""
    records: int = 0
    """Number of records in the scanned part."""
    since: float | None = None
    """When the first of these records began to wait, in seconds since 1970."""

    @property
    def left(self) -> int:
        """Number of offsets that the scan did not reach."""
        return max(self.end - self.reached, 0)


class Backlog(NamedTuple):
    """The unread part of a link. ``seconds`` is how long its oldest record has waited; None means unknown."""

    records: int | None = None
    precision: Precision = "unknown"
    seconds: float | None = None


NO_BACKLOG = Backlog(0, "exact", 0.0)


def unscanned(number: int, facts: LinkFacts, position: Position | None, end: int) -> PartitionScan:
    """The part of a partition that its reader has not read, before any of it is scanned.

    Args:
        number: the partition's number.
        facts: the facts of the link.
        position: the position that the reader committed there.
        end: the offset after everything that is committed or aborted.
    """
    planned = number < facts.partitions  # a partition added to the topic later is read whole or not at all
    begin = facts.start[number] if facts.start and planned else 0
    start = begin if position is None else position.offset
    if facts.end is not None:
        end = min(end, facts.end[number]) if planned else start
    elif position is not None and position.drained in WITHOUT_SENTINEL:
        end = start
    return PartitionScan(start, max(start, end), start)


def estimate_backlog(seen: Sequence[PartitionScan], now: float, *, blocks: bool, counted: int | None = None) -> Backlog:
    """Combine the scans of a link's partitions.

    Args:
        seen: one scan for each partition.
        now: seconds since 1970.
        blocks: whether a message may hold many rows; otherwise it is one record.
        counted: the number of unread records, if the counts of the writer and the reader give it.
    """
    records, precision = (counted, "exact") if counted is not None else _estimated(seen, blocks=blocks)
    if records == 0:
        return NO_BACKLOG
    waiting = [each.since for each in seen if each.left or each.records]
    known = [since for since in waiting if since is not None]
    seconds = round(max(now - min(known), 0.0), 3) if known and len(known) == len(waiting) else None
    return Backlog(records, precision, seconds)


def _estimated(seen: Sequence[PartitionScan], *, blocks: bool) -> tuple[int | None, Precision]:
    records, left = sum(each.records for each in seen), sum(each.left for each in seen)
    if not left:
        return records, "exact"
    if not blocks:
        return records + left, "at-most"
    looked = sum(each.reached - each.start for each in seen)
    if not records:  # no basis for an estimate: no answer, or only sentinels so far
        return None, "unknown"
    return records + round(left * records / looked), "estimate"
