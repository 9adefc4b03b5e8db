"""What all Kafka clients of this package share."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import Message

from sardonyx.runtime.settings import Settings
from sardonyx.runtime.this_process import THIS

__all__ = ["CLIENT_LOG", "RECONNECT_MS", "Message", "client_config", "onlooker_config"]

CLIENT_LOG = logging.getLogger("librdkafka")
"""Where the Kafka client logs. At warning its lines are mostly about reconnects, which it deals with by itself."""

RECONNECT_MS = 1000
"""The most milliseconds between attempts to reach a broker that is away. With the client's own ten seconds a task would stand
still for longer than a broker takes to restart."""


def client_config(settings: Settings) -> dict[str, Any]:
    """With what every client of Kafka begins: the settings, and a name by which brokers tell whose it is. It is a new dict.

    The name is the process's, and not a virtual peer's: brokers keep figures of each name, and virtual peers come and go. A
    setting ``kafka.client.id`` takes its place.
    """
    return {"client.id": THIS.client_id(settings.deployment), **settings.kafka.client()}


BEGINNING = 0
"""The offset at which a consumer begins that reads all that a partition still holds; it needs ``auto.offset.reset`` to be
``earliest``. With librdkafka's ``OFFSET_BEGINNING`` the first record comes half a second later."""


def onlooker_config(settings: Settings) -> dict[str, Any]:
    """With what each consumer begins that reads committed records outside the group of a task. It is a new dict.

    Its partitions are assigned by hand, so no group has it as a member, and it commits no positions. Where Kafka has deleted the
    records at an offset, it goes on with the first that is left.
    """
    return {
        **client_config(settings),
        "group.id": f"{settings.deployment}.nobody",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
