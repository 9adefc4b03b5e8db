"""Whole topics, for people and tests: create one, write records to it, look at the records that are committed.

Tasks use :mod:`queues.reader` and :mod:`queues.transaction`; nothing here takes part in a job.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from queues.admin import topics
from queues.admin_client import admin_client, refused
from queues.awaited_topics import await_topics
from queues.client import BEGINNING, CLIENT_LOG, client_config, onlooker_config
from queues.denied import denied, is_denial, refuse_denied
from queues.messages import is_marker
from queues.topic_log import LEADERLESS
from sardonyx.core.errors import InputError, OutputError, SardonyxError, SetupError
from sardonyx.core.text import near
from sardonyx.runtime.settings import Settings

CALL = 30.0
"""Seconds that Kafka may take to answer."""
PEEK = 5.0
"""Seconds that :func:`peek` may take."""

ENDS = (OffsetSpec.earliest(), OffsetSpec.latest())

_QUIET = {"log_level": 0}


def require(settings: Settings, topic: str) -> None:
    """Raises InputError ``SX-KAFKA-TOPIC-MISSING``, with the nearest name, if there is no such topic."""
    known = topics(settings)
    if topic not in known:
        raise InputError(
            "SX-KAFKA-TOPIC-MISSING",
            f"the topic {topic!r} does not exist{near(topic, known)}",
            fix=f"create it with `sardonyx topic create {topic}`, or correct the name",
            where={"topic": topic},
        )


def create(settings: Settings, topic: str, partitions: int, replication_factor: int = -1) -> None:
    """Create a topic, and wait until its partitions have leaders.

    Raises:
        SetupError: ``SX-KAFKA-TOPIC-EXISTS``; ``SX-KAFKA-DENIED``: it may not be created; ``SX-KAFKA-REFUSED``;
            ``SX-KAFKA-UNREACHABLE``.
    """
    admin = admin_client(settings)
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor)
    for future in admin.create_topics([new]).values():
        try:
            future.result(CALL)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise SetupError(
                    "SX-KAFKA-TOPIC-EXISTS",
                    f"the topic {topic!r} exists already",
                    fix="use it, or choose another name; `sardonyx topic list` shows all",
                    where={"topic": topic},
                ) from error
            raise refused(settings, f"create topic {topic}", error.args[0], ("Create", f"topic {topic}")) from error
    await_topics(admin, settings, [topic])


def make_quietly(
    client: Mapping[str, Any], wanted: Mapping[str, tuple[int, Mapping[str, str]]], *, timeout: float
) -> None:
    """Create the topics that do not exist yet. What does not succeed within ``timeout`` seconds is left to others.

    Args:
        client: librdkafka settings.
        wanted: the number of partitions and the settings of each, by name.
        timeout: seconds.
    """
    new = [
        NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config))
        for name, (partitions, config) in wanted.items()
    ]
    admin = AdminClient(dict(client), logger=CLIENT_LOG)  # its end would be the end of the request
    for future in admin.create_topics(new, request_timeout=timeout).values():
        with contextlib.suppress(KafkaException, TimeoutError):
            future.result(timeout)


def write(settings: Settings, topic: str, records: Iterable[bytes], partitions: int) -> None:
    """Write records, in turn over the topic's partitions, each once and in their order. Raises what :func:`append` raises."""
    _write(settings, topic, ((None, record, number % partitions) for number, record in enumerate(records)))


def append(settings: Settings, topic: str, records: Iterable[tuple[bytes | None, bytes]]) -> int:
    """Write records with their keys, each once and in their order, and count them. Equal keys go to one partition.

    If ``records`` raises, what it gave before is written. There is no transaction: a process that dies may leave a part.

    Raises:
        OutputError: ``SX-RECORD-TOO-LARGE``. What was written before stays, also after the errors below.
        SetupError: ``SX-KAFKA-DENIED``; ``SX-KAFKA-REFUSED``; ``SX-KAFKA-UNREACHABLE``: Kafka did not take all of them in time.
    """
    return _write(settings, topic, ((key, value, ANY) for key, value in records))


ANY = -1
"""The partition of a record that the client chooses, by the key if there is one."""


def _write(settings: Settings, topic: str, records: Iterable[tuple[bytes | None, bytes, int]]) -> int:
    # Without idempotence a request that is repeated, as one to a new topic may be, puts its records behind later ones.
    producer = Producer({**client_config(settings), **_QUIET, "enable.idempotence": True})
    errors: list[KafkaError] = []
    count = 0

    def heard(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error)

    def hand_over(key: bytes | None, value: bytes, partition: int) -> None:
        while not errors:
            try:
                producer.produce(topic, value, key, partition, on_delivery=heard)
            except BufferError:  # the client holds as many as it may: wait until brokers have taken some
                producer.poll(0.1)
            except KafkaException as error:  # such as a record that is too large for the client's own limit
                errors.append(error.args[0])
            else:
                producer.poll(0)
                return

    try:
        for key, value, partition in records:
            hand_over(key, value, partition)
            if errors:
                break
            count += 1
    finally:
        left = producer.flush(CALL)
        if errors:
            raise _not_taken(settings, topic, errors[0])
        if left:
            raise _silent(settings, f"accept records for topic {topic}")
    return count


def _not_taken(settings: Settings, topic: str, error: KafkaError) -> SardonyxError:
    """The error for a record that is not in the topic."""
    if error.code() == KafkaError._MSG_TIMED_OUT:
        return _silent(settings, f"accept records for topic {topic}")
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return OutputError(
            "SX-RECORD-TOO-LARGE",
            f"a record for topic {topic} is larger than a message may be",
            cause=str(error),
            fix="Write smaller records, or raise message.max.bytes on the broker, the topic's max.message.bytes and "
            '`"message.max.bytes"` under [kafka] in the settings.',
            where={"topic": topic},
        )
    return refused(settings, f"take all records for topic {topic}", error, ("Write", f"topic {topic}"))


def read_committed(settings: Settings, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values of all committed records, partition by partition. End markers are left out.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``: a partition was not read to its end in time; ``SX-KAFKA-DENIED``.
    """
    consumer = _consumer(settings)
    try:
        partitions = _partitions(settings, consumer, topic, CALL)
        found: dict[int, list[tuple[bytes | None, bytes | None]]] = {number: [] for number in partitions}
        consumer.assign([TopicPartition(topic, number, BEGINNING) for number in partitions])
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(CALL)
            if message is None:
                raise _silent(settings, f"give topic {topic} to its end (is a transaction still open on it?)")
            refuse_denied(settings, message)
            if message.error() is not None:  # the client deals with all others but the end itself
                ended += message.error().code() == KafkaError._PARTITION_EOF
                continue
            if not is_marker(message):
                found[message.partition()].append((message.key(), message.value()))
        return [record for number in sorted(found) for record in found[number]]
    finally:
        consumer.close()


def peek(settings: Settings, topic: str, count: int) -> list[str]:
    """Up to ``count`` of a topic's last committed records as text, in no order between partitions.

    Raises:
        SetupError: ``SX-KAFKA-REFUSED``: Kafka does not answer or refuses; ``SX-KAFKA-DENIED``.
    """
    consumer = _consumer(settings)
    try:
        places = []
        for partition in _partitions(settings, consumer, topic, PEEK):
            low, high = _bounds(consumer, TopicPartition(topic, partition))
            # A transaction marker follows the last record, and takes an offset too.
            places.append(TopicPartition(topic, partition, max(low, high - count - 1)))
        consumer.assign(places)
        texts: list[str] = []
        ended = 0
        deadline = time.monotonic() + PEEK
        # A partition says when it is read to its end, also where all that it holds was aborted.
        while len(texts) < count and ended < len(places) and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            refuse_denied(settings, message)
            if message.error() is None:
                texts.append((message.value() or b"").decode("utf-8", "replace"))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended += 1
        return texts
    except KafkaException as error:
        raise refused(settings, f"give records of topic {topic}", error.args[0], ("Read", f"topic {topic}")) from error
    finally:
        consumer.close()


def sizes(settings: Settings) -> dict[str, list[int]]:
    """Every topic that users see, with the number of offsets that each of its partitions holds: records and transaction ends.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    found = {topic: known for topic, known in topics(settings).items() if not topic.startswith("__")}
    places = [TopicPartition(topic, partition) for topic, known in found.items() for partition in known]
    admin = admin_client(settings)
    spec = {end: {TopicPartition(place.topic, place.partition): end for place in places} for end in ENDS}
    try:
        first, last = (
            {(p.topic, p.partition): future.result(CALL).offset for p, future in admin.list_offsets(spec[end]).items()}
            if places
            else {}
            for end in ENDS
        )
    except KafkaException as error:
        raise refused(settings, "give the sizes of its topics", error.args[0], ("Describe", "its topics")) from error
    return {
        topic: [last[topic, partition] - first[topic, partition] for partition in sorted(known)]
        for topic, known in sorted(found.items())
    }


def _consumer(settings: Settings) -> Consumer:
    return Consumer({**onlooker_config(settings), **_QUIET})


def _bounds(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """The first and the last offset of a partition. The leader of a new topic may not know at once that it leads."""
    deadline = time.monotonic() + PEEK
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=PEEK)
        except KafkaException as error:
            if error.args[0].name() not in LEADERLESS or time.monotonic() > deadline:
                raise
            consumer.list_topics(place.topic, timeout=PEEK)  # so the client hears of another leader
        else:
            return low, high


def _partitions(settings: Settings, consumer: Consumer, topic: str, timeout: float) -> list[int]:
    """The numbers of a topic's partitions; none if there is no such topic. Raises ``SX-KAFKA-DENIED`` if it may not be seen."""
    about = consumer.list_topics(topic, timeout=timeout).topics[topic]
    if is_denial(about.error):
        raise denied(settings, "Describe", f"topic {topic}", about.error)
    return list(about.partitions)


def _silent(settings: Settings, what: str) -> SetupError:
    return SetupError(
        "SX-KAFKA-UNREACHABLE",
        f"Kafka at {settings.kafka.bootstrap_servers} did not {what} within {CALL:g} s",
        cause="no answer",
        fix="check that the brokers run and that kafka.bootstrap_servers names them",
    )
