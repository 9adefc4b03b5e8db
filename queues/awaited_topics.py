"""Waits for topics: that those which were made have leaders, and that those which are to be read exist."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from queues.admin_client import CALL, refusal_to_show
from queues.connectivity import kafka_unreachable
from queues.denied import denied
from sardonyx.core.errors import InputError
from sardonyx.core.text import near
from sardonyx.runtime.settings import Settings


def await_topics(
    admin: AdminClient, settings: Settings, made: Collection[str], expected: Collection[str] = ()
) -> dict[str, int]:
    """Wait until the topics just made are known and all their partitions have leaders. Return partition counts by topic.

    Args:
        admin: a client of the cluster.
        settings: connection to Kafka.
        made: topics that were made just now; a broker may not know them yet.
        expected: topics that exist already.

    Raises:
        InputError: ``SX-KAFKA-TOPIC-MISSING``, an expected topic does not exist.
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """
    began = time.monotonic()
    deadline = began + CALL
    while True:
        try:
            known = admin.list_topics(timeout=settings.kafka.connect_timeout).topics
        except KafkaException as error:
            raise kafka_unreachable(settings, began, str(error)) from error
        refuse_missing(admin, settings, expected, set(known), beside=made)
        if set(made) <= set(known) and all(p.leader >= 0 for t in made for p in known[t].partitions.values()):
            return {topic: len(known[topic].partitions) for topic in (*made, *expected)}
        if time.monotonic() > deadline:
            raise kafka_unreachable(
                settings, began, f"topics without a leader: {', '.join(sorted(set(made) - set(known)))}"
            )
        time.sleep(0.05)


def refuse_missing(
    admin: AdminClient, settings: Settings, expected: Iterable[str], known: set[str], *, beside: Iterable[str]
) -> None:
    """Check that the topics which a job reads are among those that are known.

    Args:
        admin: asks whether one is hidden from this client.
        settings: connection to Kafka.
        expected: the topics that are to be read.
        known: the topics that Kafka tells of.
        beside: topics that the job writes itself: the user means none of them.

    Raises:
        InputError: ``SX-KAFKA-TOPIC-MISSING``.
        SetupError: ``SX-KAFKA-DENIED``, a topic is not shown to this client. Whether it exists is not told then.
    """
    missing = sorted(set(expected) - known)
    if missing:
        if (hidden := refusal_to_show(admin, missing)) is not None:
            raise denied(settings, "Describe", f"topic {hidden[0]}", hidden[1])
        raise InputError(
            "SX-KAFKA-TOPIC-MISSING",
            f"the input topic {missing[0]!r} does not exist{near(missing[0], known - set(beside))}",
            cause=f"Kafka at {settings.kafka.bootstrap_servers} has no topic of that name",
            fix=f"create it with `sardonyx topic create {missing[0]}` and fill it, or correct its name in the job",
            where={"topic": missing[0]},
        )
