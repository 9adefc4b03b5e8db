"""How a reader treats the end of a partition: reduce, in the middle, drained, exhausted. Pure.

A sentinel is a message that says: the writers of this link have sealed it. Since a sealer may die and another seal again,
a link can carry several, and one can have records behind it. The readers of a link agree on one of them, its leader
(:mod:`sentinel.election`), drop all others, and move the leader to the end of its partition whenever records stand behind it. So
each partition converges on one sentinel, at its end. The idea is that of Onyx 0.x (sentinel reduction, "sentinel in the
middle"), carried over from a broker that could count its messages to one whose offsets also count transaction markers:
therefore the end is told by the client's end-of-partition event, never by arithmetic on offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

BOUND_END = "end"
"""What stands for a sentinel's uuid where a bound input's end position tells the end."""


@dataclass
class PartitionView:
    """What a reader knows of one partition, from the position it began at to the last message it took.

    Feed it everything the partition gives, in order: :meth:`record`, :meth:`sentinel`, :meth:`end_of_partition`.
    """

    position: int
    """The next offset to read, or the offset of the leader's sentinel while that is the last thing seen."""
    end: int | None = None
    """A bound input's end: records at this offset and behind it are not read."""
    leader: str | None = None
    """uuid of the leader's sentinel, while that is the last thing seen; None otherwise."""
    at_end: bool = False
    """Whether the client has said that nothing stands behind what was seen."""
    displaced: str | None = field(default=None)
    """uuid of the leader's sentinel, if records came behind it and no later copy of it was seen since."""

    def record(self, offset: int) -> bool:
        """A message with records. Returns whether it is to be worked on: False behind a bound end."""
        if self.end is not None and offset >= self.end:
            self.position = self.end
            return False
        if self.leader is not None:
            self.displaced, self.leader = self.leader, None
        self.position = offset + 1
        self.at_end = False
        return True

    def sentinel(self, offset: int, uuid: str, leader: str) -> None:
        """A sentinel, and the leader that the vote gave for its link.

        One that is not the leader's is read past. Behind the leader's it changes nothing: the position stays at the
        leader's, and the next reader drops it again.
        """
        self.at_end = False
        if uuid == leader:
            self.position, self.leader, self.displaced = offset, uuid, None
        elif self.leader is None:
            self.position = offset + 1

    def end_of_partition(self, offset: int) -> None:
        """Nothing committed stands before ``offset`` that was not given yet."""
        self.at_end = True
        if self.end is not None:
            self.position = max(self.position, min(offset, self.end))

    def take_displaced(self) -> str | None:
        """The leader's uuid, if its sentinel must be written again at the end of this partition with the coming commit."""
        uuid, self.displaced = self.displaced, None
        return uuid

    @property
    def drained(self) -> str | None:
        """What proves that all records of this partition were read: the leader's uuid, or ``"end"``; None if nothing does."""
        if self.end is not None:
            return BOUND_END if self.position >= self.end else None
        return self.leader if self.at_end else None


def exhausted(held: Iterable[str | None], committed: Mapping[object, str | None] | None) -> bool:
    """Whether a peer may ask "seal?".

    Args:
        held: for each partition that it holds, what was COMMITTED as drained there (None: nothing was).
        committed: the same for all partitions of the task, as the group has it; only asked for when it holds none.
    """
    own = list(held)
    if own:
        return all(proof is not None for proof in own)
    return committed is not None and sealable(committed)


def sealable(committed: Mapping[object, str | None]) -> bool:
    """Whether the sentinels may be written: every partition of every ingress link is drained, as committed."""
    return bool(committed) and all(proof is not None for proof in committed.values())
