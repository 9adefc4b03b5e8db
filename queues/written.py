"""Which batch wrote the last messages of a link, read backwards from its end. The time is bounded, and nothing is committed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import origins, topic_log
from queues.admin_client import admin_client, failed
from queues.peek import LimitedReader
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.core.record_way import Seen, Written
from sardonyx.runtime.settings import Settings

SECONDS = 20.0
"""Longest time to read, over all links."""
_FIRST = 32
"""Offsets before the end that are looked at first; then four times as many, and so on."""


class WrittenReader:
    """Reads what tasks have written, for one look. Close it.

    Args:
        settings: connection to Kafka.
    """

    def __init__(self, settings: Settings, seconds: float = SECONDS) -> None:
        self._settings = settings
        self._reader = LimitedReader(settings, seconds)

    def read(
        self, link: Link, partitions: int, enough: Callable[[Sequence[Written]], bool], writer: str = ""
    ) -> dict[int, Seen]:
        """Read each partition of a link backwards from its end, message by message, until there is enough, or nothing more.

        Args:
            link: a link that a task writes.
            partitions: how many it has.
            enough: told all that was read of a partition so far, ascending: whether no earlier message is needed.
            writer: on a user's topic: whose records are asked for.

        Raises:
            SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``, ``SX-KAFKA-DENIED``.
        """
        places = [Partition(link.topic, number) for number in range(partitions)]
        began = time.monotonic()
        try:
            written = self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
            ends = self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
            firsts = self._offsets(places, OffsetSpec.earliest(), IsolationLevel.READ_COMMITTED)
            says = partial(origins.written, listing=link.kind == "parts", writer=writer)
            read = self._backwards(firsts, ends, enough, says)
            left = self._offsets(places, OffsetSpec.earliest(), IsolationLevel.READ_COMMITTED)
        except KafkaException as error:
            raise failed(
                self._settings, began, "read a link", error.args[0], ("Read", f"topic {link.topic}")
            ) from error
        return {
            place.number: Seen(
                # What was deleted meanwhile may be read in part.
                [each for each in origins.with_files(messages) if each.offset >= left[place]],
                begins=max(reached, left[place]),
                deleted=left[place],
                to_end=ends[place] >= written[place],
            )
            for place, (messages, reached) in read.items()
        }

    def _offsets(
        self, places: Sequence[Partition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[Partition, int]:
        asked = [TopicPartition(*place) for place in places]
        return topic_log.offsets_of(admin_client(self._settings), self._settings, asked, spec, isolation)

    def _backwards(
        self,
        firsts: dict[Partition, int],
        ends: dict[Partition, int],
        enough: Callable[[Sequence[Written]], bool],
        says: Callable[[Any], Written | None],
    ) -> dict[Partition, tuple[list[Written], int]]:
        """Of each partition what was read, and from which offset on."""
        found: dict[Partition, tuple[list[Written], int]] = {place: ([], end) for place, end in ends.items()}
        span = _FIRST
        going = {place for place, end in ends.items() if end > firsts[place]}
        while going and not self._reader.over:
            wanted = {place: (max(firsts[place], found[place][1] - span), found[place][1]) for place in going}
            for place, (messages, whole) in self._whole(wanted, says).items():
                if not whole:  # the time is over: what is missing stands between these and what was read before
                    going.discard(place)
                    continue
                found[place] = [*messages, *found[place][0]], wanted[place][0]
                if wanted[place][0] <= firsts[place] or enough(found[place][0]):
                    going.discard(place)
            span *= 4
        return found

    def _whole(
        self, wanted: dict[Partition, tuple[int, int]], says: Callable[[Any], Written | None]
    ) -> dict[Partition, tuple[list[Written], bool]]:
        """Read stretches, in as many steps as their size takes."""
        found: dict[Partition, tuple[list[Written], bool]] = {place: ([], False) for place in wanted}
        left = dict(wanted)
        while left and not self._reader.over:
            for place, (messages, whole) in self._reader.read(left, lambda _: 0, math.inf).items():
                rows = [each for each in map(says, messages) if each is not None]
                found[place] = [*found[place][0], *rows], whole
                if whole:
                    del left[place]
                elif messages:
                    left[place] = messages[-1].offset() + 1, left[place][1]
        return found

    def values(self, link: Link, places: Mapping[int, Sequence[int]]) -> list[bytes] | None:
        """The messages at these offsets of a link's partitions; None: not all are there, or the time is over.

        Raises:
            SetupError: as of :meth:`read`.
        """
        left = {Partition(link.topic, number): sorted({*offsets}) for number, offsets in places.items()}
        found: list[bytes] = []
        try:
            while left and not self._reader.over:
                spans = {place: (offsets[0], offsets[0] + 1) for place, offsets in left.items()}
                for place, (messages, _) in self._reader.read(spans, lambda _: 0, math.inf).items():
                    if [message.offset() for message in messages] != left[place][:1]:
                        return None
                    found += [message.value() or b"" for message in messages]
                left = {place: offsets[1:] for place, offsets in left.items() if len(offsets) > 1}
        except KafkaException as error:
            needs = ("Read", f"topic {link.topic}")
            raise failed(self._settings, self._reader.began, "read a link", error.args[0], needs) from error
        return None if left else found

    def close(self) -> None:
        self._reader.close()


__all__ = ["SECONDS", "WrittenReader"]
