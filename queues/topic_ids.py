"""Tells the topics of a name apart: one that is deleted and created again has another id."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

from confluent_kafka import KafkaException, TopicCollection, Uuid

from queues.admin_client import CALL, admin_client, within
from sardonyx.runtime.settings import Settings

_NONE = str(Uuid(0, 0))
"""What a broker before Kafka 2.8 gives."""


def topic_ids(settings: Settings, topics: Collection[str]) -> dict[str, str]:
    """The ids of topics. Those that Kafka does not tell are left out.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-DENIED``.
    """
    if not topics:
        return {}
    began, found = time.monotonic(), {}
    asked = admin_client(settings).describe_topics(TopicCollection(sorted(topics)), request_timeout=CALL)
    for topic, future in asked.items():
        with contextlib.suppress(KafkaException):
            found[topic] = str(within(settings, began, future).topic_id)
    return {topic: known for topic, known in found.items() if known != _NONE}
