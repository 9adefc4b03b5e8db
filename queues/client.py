"""What all Kafka clients of this package share."""

from __future__ import annotations

import functools
import logging
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from sardonyx.core.errors import SetupError
from sardonyx.runtime.logging import Collected
from sardonyx.runtime.settings import Settings
from sardonyx.runtime.settings_sections import KafkaValue
from sardonyx.runtime.this_process import THIS

__all__ = ["CLIENT_LOG", "RECONNECT_MS", "Message", "client_config", "not_taken", "onlooker_config"]

CLIENT_LOG = logging.getLogger("librdkafka")
"""Where the Kafka client logs. At warning its lines are mostly about reconnects, which it deals with by itself."""

RECONNECT_MS = 1000
"""The most milliseconds between attempts to reach a broker that is away. With the client's own ten seconds a task would stand
still for longer than a broker takes to restart."""


def client_config(settings: Settings) -> dict[str, Any]:
    """With what every client of Kafka begins: the settings, and a name by which brokers tell whose it is. It is a new dict.

    The name is the process's, and not a virtual peer's: brokers keep figures of each name, and virtual peers come and go. A
    setting ``kafka.client.id`` takes its place.

    Raises:
        SetupError: ``SX-CONFIG-VALUE``: librdkafka takes one of the settings for no consumer, or for no producer. What is wrong
            with those of a login or of TLS shows when a client is made: to make one may ask other services for a ticket.
    """
    config = settings.kafka.client()
    usual = {key: value for key, value in config.items() if not key.startswith(_OF_CONNECTIONS)}
    if usual:
        _refuse_unusable(tuple(sorted(usual.items())), settings.peer.transaction_timeout)
    return {"client.id": THIS.client_id(settings.deployment), **config}


_OF_CONNECTIONS = ("bootstrap.servers", "sasl.", "security.", "ssl.")


@functools.lru_cache(maxsize=8)
def _refuse_unusable(config: tuple[tuple[str, KafkaValue], ...], transaction_timeout: float) -> None:
    """Make a consumer and a producer with these settings, which connect to nothing: some settings are refused by the one only,
    or beside others.
    """
    timeout = int(transaction_timeout * 1000)
    slot = {"transactional.id": "none", "transaction.timeout.ms": timeout, "delivery.timeout.ms": timeout}
    logger = Collected().logger
    try:
        Consumer({**dict(config), "bootstrap.servers": "", **_ONLOOKER, "group.id": "none"}, logger=logger).close()
        Producer({**dict(config), "bootstrap.servers": "", **slot, "enable.idempotence": True}, logger=logger)
    except KafkaException as error:
        raise not_taken(error.args[0]) from error


def not_taken(error: KafkaError) -> SetupError:
    """``SX-CONFIG-VALUE``: what librdkafka says of a setting below ``kafka.`` with which it makes no client."""
    return SetupError(
        "SX-CONFIG-VALUE",
        f"a setting below kafka. is not one that the Kafka client takes: {error.str().strip()}",
        cause="keys below kafka. with a dot of their own go to librdkafka as they are",
        fix="see librdkafka's list of configuration properties for names and values",
    )


BEGINNING = 0
"""The offset at which a consumer begins that reads all that a partition still holds; it needs ``auto.offset.reset`` to be
``earliest``. With librdkafka's ``OFFSET_BEGINNING`` the first record comes half a second later."""


_ONLOOKER = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
}


def onlooker_config(settings: Settings) -> dict[str, Any]:
    """With what each consumer begins that reads committed records outside the group of a task. It is a new dict.

    Its partitions are assigned by hand, so no group has it as a member, and it commits no positions. Where Kafka has deleted the
    records at an offset, it goes on with the first that is left.
    """
    return {
        **client_config(settings),
        "group.id": f"{settings.deployment}.nobody",
        **_ONLOOKER,
    }
