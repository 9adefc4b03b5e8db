"""How a reader finds the end of a partition: sentinel reduction, sentinel in the middle, drained, exhausted. Pure.

A sentinel is a message that says: the writers of this link have sealed it. A sealing peer may die and another one seals again, so
a link can carry several sentinels, and records can come after one. The readers of a link elect one sentinel, the leader
(:mod:`sentinel.election`). They drop all others, and write the leader again at the end of its partition whenever records come
after it. So each partition ends with one sentinel. The idea comes from Onyx 0.x (sentinel reduction, "sentinel in the middle").
Onyx's broker could count its messages; Kafka's offsets also count transaction markers. Therefore only the client's
end-of-partition event marks the end, never arithmetic on offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

BOUND_END = "end"
"""Used in place of a sentinel's uuid where the end position of a bound input marks the end, or that at which it was stopped."""
END_MARKER = "marker"
"""Used in place of a sentinel's uuid where an end marker of the user's topic marks the end."""
WITHOUT_SENTINEL = (BOUND_END, END_MARKER)
"""The proofs of a partition that ended where no sentinel is: what comes after its position is not read."""


@dataclass
class PartitionView:
    """What a reader knows of one partition, from its first position to the last message that it took.

    Feed it everything the partition gives, in order: :meth:`record`, :meth:`sentinel`, :meth:`end_of_partition`.
    """

    position: int
    """The next offset to read; or the offset of the leader, while that is the last message seen."""
    end: int | None = None
    """A bound input's end: records at this offset and after it are not read."""
    bound: str = BOUND_END
    """Why there is such an end: one of :data:`WITHOUT_SENTINEL`."""
    leader: str | None = None
    """uuid of the leader, while that is the last message seen; None otherwise."""
    at_end: bool = False
    """Whether the client has reported that no message follows."""
    displaced: str | None = field(default=None)
    """uuid of the leader, if records came after it and no later copy of it was seen since."""

    def record(self, offset: int) -> bool:
        """A message with records. Returns whether to process it: False after a bound end."""
        if self.end is not None and offset >= self.end:
            self.position = self.end
            return False
        if self.leader is not None:
            self.displaced, self.leader = self.leader, None
        self.position = offset + 1
        self.at_end = False
        return True

    def sentinel(self, offset: int, uuid: str, leader: str) -> None:
        """A sentinel, and the elected leader of its link.

        A sentinel that is not the leader is skipped. If it comes after the leader, the position stays at the leader, and the
        next reader drops the sentinel again.
        """
        self.at_end = False
        if uuid == leader:
            self.position, self.leader, self.displaced = offset, uuid, None
        elif self.leader is None:
            self.position = offset + 1

    def end_of_partition(self, offset: int) -> None:
        """The client has delivered every committed message before ``offset``."""
        self.at_end = True
        if self.end is not None:
            self.position = max(self.position, min(offset, self.end))

    def take_displaced(self) -> str | None:
        """The leader's uuid, if the next commit must write it again at the end of this partition."""
        uuid, self.displaced = self.displaced, None
        return uuid

    @property
    def drained(self) -> str | None:
        """The proof that all records of this partition were read: the leader's uuid, or :attr:`bound`; None: not proven."""
        if self.end is not None:
            return self.bound if self.position >= self.end else None
        return self.leader if self.at_end else None


def exhausted(held: Iterable[str | None], committed: Mapping[object, str | None] | None) -> bool:
    """Whether a peer may ask "seal?".

    Args:
        held: for each partition that it holds, the COMMITTED proof that it is drained (None: no proof).
        committed: the same for all partitions of the task, from its group; needed only if the peer holds no partition.
    """
    own = list(held)
    if own:
        return all(proof is not None for proof in own)
    return committed is not None and sealable(committed)


def sealable(committed: Mapping[object, str | None]) -> bool:
    """Whether the sentinels may be written: every partition of every ingress link is drained, as committed."""
    return bool(committed) and all(proof is not None for proof in committed.values())
