"""A topic as a log: where its partitions begin and end, and what is committed in them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import structlog
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from queues.admin_client import CALL, admin_client, failed, refusal_to_show, within
from queues.client import CLIENT_LOG, onlooker_config
from queues.connectivity import kafka_unreachable
from queues.denied import refuse_denied
from sardonyx.core.errors import InputError
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

LEADERLESS = {
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
}
"""Names of the errors that mean: the partition's leader is moving, does not know yet that it was elected, or where the end is."""

_UNKNOWN = {"UNKNOWN_TOPIC_OR_PART", "_NOENT"}
"""Names of the errors for a topic that does not exist, and for one so new that the broker asked knows of no leader yet."""

_NEW = 5.0
"""Seconds within which every broker knows a new topic and its leaders."""


def ends(settings: Settings, topic: str) -> tuple[int, int]:
    """Return two end offsets of a topic's first partition: before all open transactions, and after them.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """
    began = time.monotonic()
    ask = functools.partial(_list_offsets, admin_client(settings), settings, topic, 1, OffsetSpec.latest())
    try:
        return ask(IsolationLevel.READ_COMMITTED)[0], ask(IsolationLevel.READ_UNCOMMITTED)[0]
    except KafkaException as error:
        raise kafka_unreachable(settings, began, str(error)) from error


def named(places: Iterable[TopicPartition | Partition]) -> str:
    """The topics of these partitions, as text for an error: the first few of them."""
    names = sorted({place.topic for place in places})
    return f"topic {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


def stable_ends(settings: Settings, places: list[TopicPartition]) -> dict[Partition, int]:
    """Return the last stable offset of each partition: everything before it is committed or aborted.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    if not places:
        return {}
    began = time.monotonic()
    try:
        return offsets_of(admin_client(settings), settings, places, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
    except KafkaException as error:
        raise failed(settings, began, "tell where topics end", error.args[0], ("Describe", named(places))) from error


def stable_end(settings: Settings, place: Partition) -> int:
    """The same of one partition."""
    return stable_ends(settings, [TopicPartition(*place)])[place]


def read_messages(settings: Settings, topic: str, start: int, end: int, partition: int = 0) -> Iterator[Any]:
    """Yield the committed messages of one partition in [start, end), or of what is left of it. It waits for open transactions.

    A start of 0 is the first record that is left.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, nothing came for longer than a transaction may be open; ``SX-KAFKA-DENIED``.
    """
    if end <= start:  # nothing, and a client would take a tenth of a second to find that
        return
    consumer = Consumer(
        {
            **onlooker_config(settings),
            "fetch.wait.max.ms": 20,  # a caller waits for the end, which comes with an answer of its own
        },
        logger=CLIENT_LOG,
    )
    reached = start
    began = last = time.monotonic()
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        while reached < end:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                reached = message.offset() + 1
                if reached <= end:
                    yield message
                last = time.monotonic()
            elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
                reached = message.offset()
            elif message is not None:
                refuse_denied(settings, message)
            if time.monotonic() > last + CALL + settings.peer.transaction_timeout:
                raise kafka_unreachable(settings, began, f"topic {topic} stopped at offset {reached} of {end}")
    except KafkaException as error:
        raise kafka_unreachable(settings, began, str(error)) from error
    finally:
        consumer.close()


def resolve_offsets(admin: AdminClient, settings: Settings, topic: str, partitions: int, what: Any) -> list[int]:
    """Resolve "earliest", "latest", an ISO time or {partition: offset} to the present offset in each partition.

    "latest" is the last stable offset: records of an open transaction come after it.
    """
    if isinstance(what, Mapping):
        given = {int(number): int(offset) for number, offset in what.items()}
        unknown = sorted(set(given) ^ set(range(partitions)))
        if unknown:
            raise InputError(
                "SX-KAFKA-OFFSETS",
                f"topic {topic!r} has partitions 0 to {partitions - 1}, and the offsets given do not name each once",
                cause=f"in one but not the other: {', '.join(map(str, unknown))}",
                fix="give one offset for every partition",
                where={"topic": topic},
            )
        return [given[number] for number in range(partitions)]
    named = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}
    spec = named[what]() if what in named else OffsetSpec.for_timestamp(int(_time(what).timestamp() * 1000))
    found = _list_offsets(admin, settings, topic, partitions, spec)
    if any(offset < 0 for offset in found):  # no record is as late as that time: use the end
        latest = _list_offsets(admin, settings, topic, partitions, OffsetSpec.latest())
        found = [last if offset < 0 else offset for offset, last in zip(found, latest, strict=True)]
    return found


def _list_offsets(
    admin: AdminClient,
    settings: Settings,
    topic: str,
    partitions: int,
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> list[int]:
    places = [TopicPartition(topic, number) for number in range(partitions)]
    found = offsets_of(admin, settings, places, spec, isolation)
    return [found[Partition(topic, number)] for number in range(partitions)]


def offsets_of(
    admin: AdminClient, settings: Settings, places: list[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[Partition, int]:
    """Return the offset that ``spec`` means in each partition.

    It waits while a partition's leader moves, and a moment for a topic whose leader no broker knows yet.

    librdkafka 2.16 may answer without an error and without an offset while brokers come back. And it goes on asking the leader
    that it knows, although that one says that it leads no more: it learns of another leader only if a caller asks for metadata.

    Raises:
        KafkaException: the brokers do not say it.
    """
    began = time.monotonic()
    while True:
        asked = admin.list_offsets(dict.fromkeys(places, spec), isolation_level=isolation)
        try:
            found = {Partition(p.topic, p.partition): within(settings, began, f).offset for p, f in asked.items()}
        except KafkaException as error:
            reason: KafkaError = error.args[0]
        else:
            if OFFSET_INVALID not in found.values():
                return found
            reason = KafkaError(KafkaError.OFFSET_NOT_AVAILABLE)
        name = reason.name()
        if name in _UNKNOWN and (hidden := refusal_to_show(admin, {place.topic for place in places})) is not None:
            raise KafkaException(hidden[1])
        patience = CALL if name in LEADERLESS else _NEW if name in _UNKNOWN else 0.0
        if time.monotonic() > began + patience:
            raise KafkaException(reason)
        log.debug("offsets_asked_again", topic=places[0].topic, error=str(reason))
        time.sleep(0.1)
        with contextlib.suppress(KafkaException):
            admin.list_topics(timeout=settings.kafka.connect_timeout)


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.astimezone()
