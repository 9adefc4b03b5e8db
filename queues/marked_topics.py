"""Topics of users to which a job writes: how many partitions they have now, and which cannot hold end markers."""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from queues.admin_client import admin_client, failed, refused, within
from queues.connectivity import kafka_unreachable
from sardonyx.core.errors import InputError
from sardonyx.runtime.settings import Settings


def partitions(settings: Settings, topic: str) -> int:
    """How many partitions a topic has now. A user may have added some since the job was planned.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``, ``SX-KAFKA-DENIED``. A marker must not be left out in
            silence.
    """
    began = time.monotonic()
    try:
        found = admin_client(settings).list_topics(topic, timeout=settings.kafka.connect_timeout).topics[topic]
    except KafkaException as error:
        raise kafka_unreachable(settings, began, str(error)) from error
    if found.error is not None or not found.partitions:
        what = f"tell the partitions of topic {topic}"
        needs = ("Describe", f"topic {topic}")
        if found.error is None:
            raise refused(settings, what, None, needs)
        raise failed(settings, began, what, found.error, needs)
    return len(found.partitions)


def refuse_compacted(settings: Settings, topics: Collection[str]) -> None:
    """Check that none of these topics is compacted.

    Raises:
        InputError: ``SX-KAFKA-COMPACTED``, one is.
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    began = time.monotonic()
    asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(set(topics))]
    for resource, future in (admin_client(settings).describe_configs(asked) if asked else {}).items():
        try:
            policy = within(settings, began, future)["cleanup.policy"].value
        except KafkaException as error:
            what, needs = f"tell the settings of topic {resource.name}", ("DescribeConfigs", f"topic {resource.name}")
            raise failed(settings, began, what, error.args[0], needs) from error
        if "compact" in policy:
            raise InputError(
                "SX-KAFKA-COMPACTED",
                f"topic {resource.name!r} is compacted, so it cannot hold end markers",
                cause=f"its cleanup.policy is {policy}: it takes no message without a key, and keeps none without a value",
                fix='use a topic with cleanup.policy=delete, or leave end_marker and end="marker" out',
                where={"topic": resource.name},
            )
