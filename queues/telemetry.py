"""The telemetry topic: peer daemons write to it without waiting, and lose what cannot be written; pages read its end."""

from __future__ import annotations

import time
from contextlib import closing

import msgspec
import structlog
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import admin, topic_log
from queues.admin_client import admin_client, failed
from queues.client import CLIENT_LOG, RECONNECT_MS, client_config
from queues.denied import refuse_denied
from sardonyx.core.errors import SetupError
from sardonyx.core.positions import Partition
from sardonyx.core.telemetry import PARTITION, BatchTold, read, topic_of
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

LOOK_BACK = 15 * 60
"""Seconds of the past that we read when a user begins to look."""
WHOLE = 3600.0
"""Seconds for which the topic is kept."""
_QUIET = 1.0
"""Seconds without a message after which all has come."""
_WAITING = 1_000
"""Messages that wait at most; of more, the newest are lost."""
_AT_ONCE = 10_000
_COMMITTED = IsolationLevel.READ_COMMITTED


class TelemetryProducer:
    """Writes what happens. No call waits, and none raises: telemetry holds up no batch. Threads may share it.

    Args:
        settings: connection to Kafka.
    """

    def __init__(self, settings: Settings) -> None:
        self._topic = topic_of(settings.deployment)
        self._lost = 0
        self._producer = Producer(
            {
                **client_config(settings),
                "reconnect.backoff.max.ms": RECONNECT_MS,
                "acks": 1,
                "enable.idempotence": False,
                "linger.ms": 5,  # a peer that is killed leaves what it told before
                "queue.buffering.max.messages": _WAITING,
                "message.timeout.ms": 5000,
                "compression.type": "lz4",
            },
            logger=CLIENT_LOG,
        )

    def tell(self, told: BatchTold) -> None:
        """Write one batch, or lose it."""
        value = msgspec.json.encode(told)
        try:
            self._producer.produce(self._topic, value, partition=PARTITION)
        except (BufferError, KafkaException):  # Kafka is away, or slow
            self._lost += 1
        self._producer.poll(0)

    def close(self) -> None:
        """Wait a moment until the last messages are written."""
        self._producer.flush(1.0)
        if self._lost:
            log.info("telemetry_lost", batches=self._lost)


class TelemetryReader:
    """Reads the last minutes of the topic, and then what is added. Not thread-safe.

    Args:
        settings: connection to Kafka.
        back: seconds of the past that are read.

    Raises:
        SetupError: ``SX-TELEMETRY-OFF``: there is no such topic; ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``,
            ``SX-KAFKA-DENIED``.
    """

    def __init__(self, settings: Settings, back: float = LOOK_BACK) -> None:
        topic = topic_of(settings.deployment)
        place, began = TopicPartition(topic, PARTITION), time.monotonic()
        if topic not in admin.topics(settings):
            raise SetupError(
                "SX-TELEMETRY-OFF",
                "peers do not tell about their batches",
                cause=f"there is no topic {topic}",
                fix="set metrics.telemetry = true for coordinators and peers; the topic comes with the next job",
            )
        since = OffsetSpec.for_timestamp(int((time.time() - back) * 1000))
        try:
            begin, end = (
                topic_log.offsets_of(admin_client(settings), settings, [place], spec, _COMMITTED)
                for spec in (since, OffsetSpec.latest())
            )
        except KafkaException as error:
            raise failed(settings, began, f"read topic {topic}", error.args[0], ("Read", f"topic {topic}")) from error
        self._settings, self._topic = settings, topic
        first = begin[Partition(topic, PARTITION)]
        self._consumer = Consumer(
            {
                **client_config(settings),
                "reconnect.backoff.max.ms": RECONNECT_MS,
                "group.id": f"{settings.deployment}.nobody",
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            },
            logger=CLIENT_LOG,
        )
        start = end[Partition(topic, PARTITION)] if first < 0 else first  # no message is as late as that
        self._consumer.assign([TopicPartition(topic, PARTITION, start)])

    def read(self, timeout: float) -> list[BatchTold]:
        """What has come, after waiting at most so many seconds for the first of it.

        Raises:
            SetupError: the consumer cannot continue.
        """
        began = time.monotonic()
        try:
            first = self._consumer.poll(timeout)
            messages = [] if first is None else [first, *self._consumer.consume(_AT_ONCE, timeout=0)]
        except KafkaException as error:
            needs = ("Read", f"topic {self._topic}")
            raise failed(self._settings, began, f"read topic {self._topic}", error.args[0], needs) from error
        for message in messages:
            refuse_denied(self._settings, message)
        found = [read(message.value()) for message in messages if message.error() is None]
        return [told for told in found if told is not None]

    def close(self) -> None:
        self._consumer.close()


def batches_of(settings: Settings, job: str, seconds: float, back: float = WHOLE) -> list[BatchTold] | None:
    """What peers have told of the committed batches of a job, as far as it can be read in so many seconds; None if peers of this
    deployment do not tell.

    Args:
        settings: connection to Kafka.
        job: its id.
        seconds: for which it reads.
        back: seconds of the past that are read, the oldest first.

    Raises:
        SetupError: as of :class:`TelemetryReader`.
    """
    try:
        reader = TelemetryReader(settings, back)
    except SetupError as error:
        if error.code == "SX-TELEMETRY-OFF":
            return None
        raise
    found: list[BatchTold] = []
    until = time.monotonic() + seconds
    with closing(reader):
        while time.monotonic() < until and (told := reader.read(_QUIET)):
            found += [each for each in told if each.job == job and each.outcome == "committed"]
    return found
