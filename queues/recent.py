"""The last committed records of a link, read without a group. Nothing is committed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import topic_log
from queues.admin_client import admin_client, failed
from queues.messages import CLOCK_HEADER, SENTINEL_HEADER, is_marker, rows_counted
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings

_FIRST = 4
"""Messages of an internal link that are read at first: each holds many rows."""
_FURTHER = 8
"""So many times more of them are read if they hold too few."""


def recent(settings: Settings, link: Link, facts: LinkFacts, rows: int) -> dict[Partition, list[Any]]:
    """The last messages with rows of each partition of a link, in order. Transactions that are open are left out.

    Args:
        settings: connection to Kafka.
        link: of kind ``internal`` or ``input``.
        facts: of the link.
        rows: how many of each partition are enough.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``, ``SX-KAFKA-DENIED``.
    """
    places = [TopicPartition(link.topic, number) for number in range(facts.partitions)]
    began = time.monotonic()
    admin = admin_client(settings)
    try:
        first, end = (
            topic_log.offsets_of(admin, settings, places, spec, IsolationLevel.READ_COMMITTED)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
    except KafkaException as error:
        needs = ("Describe", topic_log.named(places))
        raise failed(settings, began, "tell where topics end", error.args[0], needs) from error
    return {
        place: _last(settings, link, place, _within(facts, place.number, first[place], end[place]), rows)
        for place in first
    }


def _within(facts: LinkFacts, number: int, first: int, end: int) -> tuple[int, int]:
    """What of a partition the job reads."""
    low = first if facts.start is None else max(first, facts.start[number])
    return low, end if facts.end is None else min(end, facts.end[number])


def _last(settings: Settings, link: Link, place: Partition, bounds: tuple[int, int], rows: int) -> list[Any]:
    low, end = bounds
    back = _FIRST if link.kind == "internal" else rows
    while low < end:
        start = max(low, end - back)
        found = [
            message
            for message in topic_log.read_messages(settings, link.topic, start, end, place.number)
            if _rows(link, message)
        ]
        if start == low or sum(_rows(link, message) for message in found) >= rows:
            return found
        back *= _FURTHER
    return []


def _rows(link: Link, message: Any) -> int:
    if link.kind == "input":
        return 0 if is_marker(message) else 1
    headers: Mapping[str, bytes] = dict(message.headers() or ())
    return 0 if SENTINEL_HEADER in headers or CLOCK_HEADER in headers else rows_counted(headers)


__all__ = ["recent"]
