"""Find blocks that Kafka has lost or doubled on an internal link, by numbers that their writers give them. Pure.

A *chain* is what one opening of one slot's producer writes into one partition. Its name is
``<assignment>.<slot>.<life>.<mark>``: ``life`` rises with each producer that the assignment opens, and ``mark`` stands for
the peer, because a coordinator that was restored from a backup may give an assignment's number again. Each block says its
chain and ``k``: so many blocks of this chain stand committed in this partition before it. The writer counts when a
transaction has committed.

- After an abort the numbers go back, and the chain stays the same: nothing of the transaction is visible. If it were
  visible after all, its rows would be there twice, and so would its numbers.
- After an outcome that is unknown, the peer gives the producer up, and the next one has the next life. Whether the transaction
  was committed or not, no number of the old chain is missing or used again.
- Messages that an output with positions of its own keeps (the outbox) get their numbers when they are written to Kafka,
  from the peer that writes them.

**The rule.** A reader keeps, for each slot, the chain that it heard last in the partition and the number that comes next.
It commits them with its position (:class:`Heard`), so a peer that takes the partition over continues with them.

1. A block of a chain that is kept must have the next number. A greater one is a loss, a smaller one a repeat.
2. A block of another chain with the number 0 begins that chain, which takes the place of the slot's last one.
3. A block of another chain with a greater number is a loss: the beginning of its chain is missing. Three cases are
   excepted, in which the reader may not have had to hear the beginning:

   - The slot was never heard here, and a release that keeps no chains has read a part of the partition (``partial``).
   - The chain is older than the slot's last one. A fenced holder can write nothing after its successor (see below), so this
     is not a loss, whatever else it is. Rows that are doubled in this way are found by the totals.
   - The slot's number is :data:`MOST` or above: such slots are not kept, so that a position stays short.

Nothing else is ever forgotten, because a slot has one chain at a time. The holders of a slot share a transactional id. When
the next producer opens, the broker ends the transaction of the one before it and refuses its later ones. So all blocks of
the old chain stand in the log before the first block of the new one, and readers get them in the order of the log.

Trimming deletes only what the link's reader has committed as read, and :class:`Heard` stands in the same commit. Blocks
without a chain were written by the release before, and are not checked. The last blocks of a chain have no successor that
could show a gap: :mod:`queues.totals` finds those when the task is sealed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

MOST = 64
"""Slots whose chains a reader keeps for a partition. A chain takes about 30 bytes of a position."""


class Heard(NamedTuple):
    """What a position says about the chains in its partition."""

    chains: Mapping[str, int]
    """By chain, the number of its next block; one chain for each slot."""
    partial: bool = False
    """Whether the beginning of the partition was read by a release that keeps no chains."""


class Broken(NamedTuple):
    """A chain that does not go on as it must."""

    chain: str
    expected: int
    found: int
    after: int | None
    """The offset of the block of this chain that was heard last; None: not known here."""

    @property
    def lost(self) -> int:
        """How many blocks are missing; negative: so many blocks come again."""
        return self.found - self.expected


class ChainCheck:
    """What a reader has heard in one partition: committed, and since.

    Args:
        heard: what the committed position says; None: nothing.
        rows_read: rows that were read up to the committed position.
    """

    def __init__(self, heard: Heard | None = None, rows_read: int = 0) -> None:
        self._known = heard is not None
        self._next = dict(heard.chains) if heard is not None else {}
        self._partial = heard.partial if heard is not None else rows_read > 0
        self._at: dict[str, int] = {}
        """The offset of the last block of each chain."""

    def hear(self, link: bytes | str, offset: int) -> Broken | None:
        """Check a block.

        Args:
            link: what its header says: chain and number.
            offset: its place.

        Returns:
            None: it is the block that must come, or it cannot be checked. After anything else the check cannot be used any more.
        """
        text = link.decode() if isinstance(link, bytes) else link
        chain, _, number = text.partition(" ")
        k = int(number)
        self._known = True
        expected = self._next.get(chain)
        if expected == k or (expected is None and self._begins(chain, k)):
            self._next[chain] = k + 1
            self._at[chain] = offset
            return None
        if expected is None and self._unchecked(chain):
            return None
        return Broken(chain, expected or 0, k, self._at.get(chain))

    def heard(self) -> Heard | None:
        """What to commit with a position after these blocks; None: no block with a chain was ever heard."""
        return Heard(dict(self._next), self._partial) if self._known else None

    def _begins(self, chain: str, k: int) -> bool:
        """Let a chain take the place of its slot's last one, if it may begin here."""
        slot = slot_of(chain)
        before = self._of_slot(slot)
        if slot >= MOST or (k and (before is not None or not self._partial)):
            return False
        if before is not None:
            del self._next[before]
            self._at.pop(before, None)
        return True

    def _unchecked(self, chain: str) -> bool:
        """Whether a chain that is not kept, and does not begin here, is no proof of a loss."""
        slot = slot_of(chain)
        before = self._of_slot(slot)
        return slot >= MOST or (before is not None and _age(chain) < _age(before))

    def _of_slot(self, slot: int) -> str | None:
        return next((chain for chain in self._next if slot_of(chain) == slot), None)


class WriterChains:
    """The chains of one producer: the numbers of what it writes.

    Args:
        assignment: number of the assignment.
        slot: the slot that the producer holds.
        life: how many producers the assignment has opened, with this one.
        peer: id of the peer.
    """

    def __init__(self, assignment: int, slot: int, life: int, peer: str) -> None:
        self.name = f"{assignment}.{slot}.{life}.{crc32(peer.encode()):x}"
        self._header = f"{self.name} %d".encode()
        self._next: dict[tuple[str, int], int] = {}
        self._open: dict[tuple[str, int], int] = {}

    def begin(self) -> None:
        """Begin a transaction. Numbers of the last one that did not commit are free again."""
        self._open = {}

    def number(self, topic: str, partition: int) -> bytes:
        """The header of the next block of the transaction in this partition."""
        place = topic, partition
        k = self._open.get(place)
        if k is None:
            k = self._next.get(place, 0)
        self._open[place] = k + 1
        return self._header % k

    def committed(self) -> None:
        """The transaction has committed."""
        self._next.update(self._open)
        self._open = {}


def slot_of(chain: str) -> int:
    """The slot of a chain's writer."""
    return int(chain.split(".", 2)[1])


def _age(chain: str) -> tuple[int, int]:
    assignment, _, life, *_ = chain.split(".")
    return int(assignment), int(life)
