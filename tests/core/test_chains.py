"""Blocks that are lost or doubled on a link are found by their numbers, and nothing else is taken for a loss."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sardonyx.core import chains
from sardonyx.core.chains import MOST, Broken, ChainCheck, Heard, WriterChains
from sardonyx.core.events import Counts
from sardonyx.core.positions import Position
from tests.sizes import histories

HISTORIES = histories(600, whole=5_000)
PARTITIONS = 2


@dataclass
class Block:
    """A message of a link as it stands in Kafka. ``link``: what its header says; None: the release before wrote it."""

    link: bytes | None
    offset: int


@dataclass
class Writer:
    slot: int
    assignment: int
    life: int
    peer: str
    chains: Any = None

    def open(self, make: Callable[..., WriterChains]) -> None:
        self.life += 1
        self.chains = make(self.assignment, self.slot, self.life, self.peer)


@dataclass
class History:
    """Writers of one link with transactions of every outcome, and readers that take over, rewind and hand on.

    Args:
        rng: decides everything.
        make: makes the numbers of a producer.
        check: makes what a reader keeps.
        old: peers of the release before take part, and coordinators that are restored from a backup.
    """

    rng: random.Random
    make: Callable[..., WriterChains] = WriterChains
    check: Callable[..., ChainCheck] = ChainCheck
    old: bool = True
    keeps_life: bool = False
    rewinds: bool = True
    log: list[list[Block]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    text: list[tuple[int, str] | None] = field(default_factory=lambda: [None] * PARTITIONS)
    writers: dict[int, Writer] = field(default_factory=dict)
    n: int = 0
    peers: int = 0

    def __post_init__(self) -> None:
        self.slots = [*range(self.rng.randint(1, 4)), *([MOST + 3] if self.rng.random() < 0.1 else [])]
        self.old_peers = self.old and self.rng.random() < 0.3
        self.readers = [self._reader(p) for p in range(PARTITIONS)]

    def write(self) -> None:
        """Something happens to a slot: a new holder, or a transaction of its present one."""
        slot = self.rng.choice(self.slots)
        writer = self.writers.get(slot)
        self.n += self.rng.randint(1, 3)
        if writer is None or self.rng.random() < 0.15:
            self.peers += 1
            if self.old and self.rng.random() < 0.05:
                self.n = max(1, self.n - self.rng.randint(1, 9))  # the coordinator was restored
            writer = self.writers[slot] = Writer(slot, self.n, 0, f"peer-{self.peers}.1")
            writer.open(self.make)
        if self.old_peers and self.rng.random() < 0.1:  # the slot's holder is of the release before
            self._append([Block(None, 0) for _ in range(2)], [0, 1])
            del self.writers[slot]
            return
        writer.chains.begin()
        places = [self.rng.randrange(PARTITIONS) for _ in range(self.rng.randint(1, 4))]
        blocks = [Block(writer.chains.number("link", place), 0) for place in places]
        outcome = self.rng.choices(["commit", "abort", "unknown", "killed"], [8, 2, 1, 1])[0]
        if outcome == "commit" or (outcome in ("unknown", "killed") and self.rng.random() < 0.5):
            self._append(blocks, places)
        else:
            self.ends = [end + 3 for end in self.ends]  # what was aborted takes offsets, too
        if outcome == "commit":
            writer.chains.committed()
        elif outcome == "unknown" and not self.keeps_life:
            writer.open(self.make)
        elif outcome == "killed":
            del self.writers[slot]

    def _append(self, blocks: list[Block], places: list[int]) -> None:
        for block, place in zip(blocks, places, strict=True):
            block.offset = self.ends[place]
            self.log[place].append(block)
            self.ends[place] += 1
        self.ends = [end + 1 for end in self.ends]  # the marker

    def read(self) -> Broken | None:
        """A reader takes some blocks into a batch, and commits it, rewinds, or loses the partition."""
        p = self.rng.randrange(PARTITIONS)
        start = Position.read(*self.text[p]) if self.text[p] is not None else None
        unread = [block for block in self.log[p] if start is None or block.offset >= start.offset]
        batch = unread[: self.rng.randint(0, 6)]
        rows = start.counts.rows_in if start else 0
        if batch and self.old_peers and self.rng.random() < 0.3 and (start is None or start.heard is None):
            self._commit(p, Position(batch[-1].offset + 1, Counts(rows + len(batch))))  # a peer of the release before
            self.readers[p] = self._reader(p)
            return None
        for block in batch:
            broken = None if block.link is None else self.readers[p].hear(block.link, block.offset)
            if broken is not None:
                return broken
        if batch and self.rng.random() < 0.7:
            heard = self.readers[p].heard()
            self._commit(p, Position(batch[-1].offset + 1, Counts(rows + len(batch)), heard=heard))
            if self.rng.random() < 0.2:
                self.readers[p] = self._reader(p)  # the partition is handed to another reader
        elif self.rewinds:
            self.readers[p] = self._reader(p)
        return None

    def _commit(self, p: int, position: Position) -> None:
        self.text[p] = position.offset, position.metadata()
        if self.rng.random() < 0.2:
            self.log[p] = [block for block in self.log[p] if block.offset >= position.offset]  # trimmed

    def _reader(self, p: int) -> ChainCheck:
        start = Position.read(*self.text[p]) if self.text[p] is not None else Position(0)
        return self.check(start.heard, start.counts.rows_in)

    def run(self, turns: int = 60) -> Broken | None:
        for _ in range(turns):
            broken = self.write() if self.rng.random() < 0.5 else self.read()
            if broken is not None:
                return broken
        return self.read_on()

    def read_on(self) -> Broken | None:
        for p in range(PARTITIONS):
            while self.log[p] and (self.text[p] is None or self.log[p][-1].offset >= self.text[p][0]):
                if broken := self.read():
                    return broken
        return None


def test_no_history_without_a_loss_raises_an_alarm():
    """Whatever becomes of writers, transactions and readers: a link that has lost nothing is never said to have."""
    for seed in range(HISTORIES):
        assert History(random.Random(f"chains {seed}")).run() is None, seed


def _planted(seed: int) -> tuple[History, int, int] | None:
    """A history with unread blocks, and a block among them that another one of its chain follows; None: there is none."""
    history = History(random.Random(f"planted {seed}"), old=False)
    assert history.run(40) is None
    history.rng = random.Random(f"more {seed}")
    for _ in range(12):
        history.write()
    found = []
    for p in range(PARTITIONS):
        position = history.text[p]
        names = [block.link.split()[0] for block in history.log[p] if position is None or block.offset >= position[0]]
        first = len(history.log[p]) - len(names)
        found += [
            (p, first + at)
            for at, name in enumerate(names)
            if name in names[at + 1 :] and chains.slot_of(name.decode()) < MOST
        ]
    return (history, *history.rng.choice(found)) if found else None


def test_every_block_that_is_lost_before_another_of_its_chain_is_found():
    """The alarm says which chain it is and how many blocks are missing, and the offset of the block after them."""
    found = 0
    for seed in range(HISTORIES):
        planted = _planted(seed)
        if planted is None:
            continue
        history, p, at = planted
        lost = history.log[p].pop(at)
        broken = history.read_on()
        assert broken is not None, seed
        chain, k = lost.link.decode().split()
        assert (broken.chain, broken.expected, broken.lost) == (chain, int(k), 1), seed
        assert broken.after is None or broken.after < lost.offset
        found += 1
    assert found > HISTORIES / 2, "there was too little to be lost"


def test_every_block_that_comes_twice_is_found():
    """A block that stands in Kafka once more, anywhere after the first, has a number that was heard."""
    found = 0
    for seed in range(HISTORIES // 5):
        planted = _planted(seed)
        if planted is None:
            continue
        history, p, at = planted
        again = history.log[p][at]
        later = [Block(block.link, block.offset + 1) for block in history.log[p][at:]]
        history.log[p][at:] = [again, *later]
        broken = history.read_on()
        assert broken is not None, seed
        assert broken.lost < 0, seed
        found += 1
    assert found > HISTORIES / 20


class _Hasty(WriterChains):
    """Counts what it writes, whether or not it commits."""

    def number(self, topic: str, partition: int) -> bytes:
        link = super().number(topic, partition)
        self.committed()
        return link


class _Whole(ChainCheck):
    """Believes that all that was read was heard."""

    def __init__(self, heard: Heard | None = None, rows_read: int = 0) -> None:
        super().__init__(heard, rows_read * 0)


@pytest.mark.parametrize(
    "spoilt",
    [{"make": _Hasty}, {"check": _Whole}, {"keeps_life": True}, {"rewinds": False}],
    ids=["counts before the commit", "no partial", "the same life after an unknown outcome", "does not rewind"],
)
def test_each_part_of_the_rule_is_needed(spoilt):
    """The control: with one part of the rule taken out, links without a loss raise alarms."""
    alarms = sum(History(random.Random(f"chains {seed}"), **spoilt).run() is not None for seed in range(500))
    assert alarms > 0


def test_a_chain_whose_beginning_is_missing_is_a_loss():
    """What is not known at all must begin at 0: three blocks are missing before this one."""
    assert ChainCheck().hear(b"7.0.1.ab 3", 10) == Broken("7.0.1.ab", 0, 3, None)
    assert ChainCheck(Heard({"7.0.1.ab": 3})).hear(b"7.0.1.ab 3", 10) is None
    assert ChainCheck(Heard({"7.1.1.ab": 3})).hear(b"7.0.1.ab 3", 10) is not None


def test_what_may_have_begun_unheard_is_no_loss():
    """Rows that the release before has read, a holder that was fenced, and slots that are not kept."""
    assert ChainCheck(None, rows_read=5).hear(b"7.0.1.ab 3", 10) is None
    assert ChainCheck(Heard({"8.0.1.cd": 1})).hear(b"7.0.1.ab 3", 10) is None
    assert ChainCheck().hear(b"7.%d.1.ab 3" % MOST, 10) is None


def test_what_is_heard_after_a_part_was_not_is_checked():
    """A reader that follows one of the release before hears a chain from where it comes in."""
    check = ChainCheck(None, rows_read=5)
    assert check.hear(b"7.0.1.ab 3", 10) is None
    assert check.heard() == Heard({"7.0.1.ab": 4}, partial=True)
    assert check.hear(b"7.0.1.ab 5", 14) == Broken("7.0.1.ab", 4, 5, 10)


def test_a_position_keeps_one_chain_for_each_slot():
    """However often the holders of slots change, the text of a position stays within what brokers take."""
    check = ChainCheck()
    for assignment in range(1_000_000_000, 1_000_000_400):
        for slot in range(2 * MOST):
            assert check.hear(b"%d.%d.1.aabbccdd 0" % (assignment, slot), assignment) is None
    assert len(check.heard().chains) == MOST
    position = Position(2**60, Counts(2**40, 2**40, 2**40, 2**40), "u" * 36, heard=check.heard(), told=(2**33,) * 64)
    assert Position.read(2**60, position.metadata()) == position
