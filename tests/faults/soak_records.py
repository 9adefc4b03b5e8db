"""The records of a soak, and whether exactly those come out, in memory that does not grow with their number. Pure."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from tests.faults.shapes import KEYS, PARTITIONS, SOURCE

BACKLOG = 1_000_000
"""Records that have gone in and not come out, at most. Kafka keeps far more of the topic that goes in."""
SEGMENT, RETENTION = 8 << 20, 40 << 20
"""Bytes of a segment and of what Kafka keeps of a partition, of the topics that go in and that come out."""
LINKS = 2
"""Internal links of that job."""
RECORD = 110
"""Bytes of a record, about; Kafka holds them compressed."""
WORDS = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(5003)]
"""Texts of records: which one a record has follows from its number."""
_SHOWN = 20


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """A record, as it goes in and as it must come out."""

    id: int
    key: str
    text: str


class Numbers:
    """Which of the numbers 0, 1, 2 ... have come. Blocks of numbers that have all come are forgotten."""

    BLOCK = 1 << 16

    def __init__(self) -> None:
        self.count = 0
        self.top = -1
        """The highest that has come."""
        self._blocks: dict[int, bytearray] = {}
        self._left: dict[int, int] = {}
        self._done: set[int] = set()
        self._low = 0
        """All blocks below have come as a whole."""

    def add(self, number: int) -> bool:
        """Whether it had not come before."""
        place, within = divmod(number, self.BLOCK)
        if place < self._low or place in self._done:
            return False
        block = self._blocks.get(place)
        if block is None:
            block = self._blocks[place] = bytearray(self.BLOCK)
            self._left[place] = self.BLOCK
        if block[within]:
            return False
        block[within] = 1
        self.count += 1
        self.top = max(self.top, number)
        self._left[place] -= 1
        if not self._left[place]:
            del self._blocks[place], self._left[place]
            self._done.add(place)
            while self._low in self._done:
                self._done.remove(self._low)
                self._low += 1
        return True

    def missing(self, end: int) -> Iterator[int]:
        """Those below ``end`` that have not come."""
        for place in range(self._low, -(-end // self.BLOCK)):
            if place in self._done:
                continue
            block = self._blocks.get(place)
            first = place * self.BLOCK
            for within in range(min(self.BLOCK, end - first)):
                if block is None or not block[within]:
                    yield first + within

    @property
    def open(self) -> int:
        """Blocks in memory."""
        return len(self._blocks)


class Tally:
    """Of each key: how many records, and a digest of their bytes that does not depend on their order."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.digests: dict[str, int] = {}

    def add(self, key: str, value: bytes) -> None:
        self.counts[key] = self.counts.get(key, 0) + 1
        self.digests[key] = (self.digests.get(key, 0) + zlib.crc32(value)) & 0xFFFF_FFFF_FFFF_FFFF

    def differs(self, other: Tally) -> list[str]:
        """Keys of which the two do not hold the same."""
        keys = self.counts.keys() | other.counts.keys()
        return sorted(
            key
            for key in keys
            if self.counts.get(key) != other.counts.get(key) or self.digests.get(key) != other.digests.get(key)
        )


def record(source: int, number: int) -> tuple[str, bytes]:
    """The key and the bytes of a record."""
    key = f"{source}-{number % KEYS}"
    return key, b'{"id":%d,"key":"%b","text":"%b"}' % (
        source * SOURCE + number,
        key.encode(),
        WORDS[number % len(WORDS)].encode(),
    )


class Sight:
    """What has come out: each record is compared with what it must be, and counted."""

    def __init__(self) -> None:
        self.numbers = [Numbers() for _ in range(PARTITIONS)]
        self.tally = Tally()
        self.count = self.doubled = self.strange = 0
        self.wrong: list[str] = []
        self._decode = msgspec.json.Decoder(Row).decode

    def record(self, value: bytes) -> None:
        self.count += 1
        try:
            row = self._decode(value)
            source, number = divmod(row.id, SOURCE)
            right = row.key == f"{source}-{number % KEYS}" and row.text == WORDS[number % len(WORDS)]
        except msgspec.DecodeError:
            right = False
        if not right or source >= PARTITIONS:
            self.strange += 1
            self._tell(f"{value!r} is not a record that went in")
            return
        if not self.numbers[source].add(number):
            self.doubled += 1
            self._tell(f"record {number} of source {source} came twice")
            return
        self.tally.add(row.key, value)

    def lost(self, ends: Sequence[int]) -> int:
        """How many records are missing of those that lie before the end of each source; tells the first of them."""
        lost = 0
        for source, (numbers, end) in enumerate(zip(self.numbers, ends, strict=True)):
            for number in itertools.islice(numbers.missing(end), _SHOWN):
                self._tell(f"record {number} of source {source} is lost")
            lost += sum(1 for _ in numbers.missing(end))
        return lost

    def beyond(self, ends: Sequence[int]) -> int:
        """How many sources have given a record that lies at or past their end."""
        return sum(numbers.top >= end for numbers, end in zip(self.numbers, ends, strict=True))

    def _tell(self, what: str) -> None:
        if len(self.wrong) < _SHOWN:
            self.wrong.append(what)
