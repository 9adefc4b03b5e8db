"""Whether ZooKeeper and Kafka answer, asked in the way that the daemons will use them: same addresses, same credentials."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sardonyx.core.errors import SetupError
from sardonyx.runtime.settings import Settings


class _Heard(logging.Handler):
    """Collects what a client says while it tries, for the error's cause; shown as it comes it would be noise."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._sentences: Counter[str] = Counter()
        self.logger = logging.Logger("reachable")  # noqa: LOG001 (outside the hierarchy: nothing goes on from here)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._sentences[_LIBRDKAFKA_DECORATION.sub("", record.getMessage())] += 1

    def most(self) -> str:
        """What was said most often."""
        return max(self._sentences, key=self._sentences.__getitem__, default="")


_LIBRDKAFKA_DECORATION = re.compile(r"^.*/bootstrap: | \(after .*")


def check_reachable(settings: Settings) -> None:
    """Make sure that both services answer, within ``zookeeper.connect_timeout`` and ``kafka.connect_timeout``.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-ZOOKEEPER-UNREACHABLE`` or ``SX-KAFKA-UNREACHABLE``.
    """
    settings.require("zookeeper", "kafka")
    reach_zookeeper(settings)
    reach_kafka(settings)


def reach_zookeeper(settings: Settings) -> str:
    """Open a session and close it again; gives the server's version, "" if it does not tell.

    Raises:
        SetupError: ``SX-ZOOKEEPER-UNREACHABLE`` with the address and how long it waited.
    """
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException

    started = time.monotonic()
    heard = _Heard()
    client = KazooClient(**settings.zookeeper.client(), logger=heard.logger)
    try:
        client.start(timeout=settings.zookeeper.connect_timeout)
    except Exception as error:
        raise zookeeper_unreachable(settings, time.monotonic() - started, heard.most() or str(error)) from error
    else:
        try:
            said: str = client.command(b"srvr")
        except (KazooException, OSError):  # the word may be forbidden there, and goes without TLS
            return ""
        return said.partition("Zookeeper version: ")[2].partition("-")[0]
    finally:
        client.stop()
        client.close()


def zookeeper_unreachable(settings: Settings, waited: float, cause: str = "") -> SetupError:
    """The error ``SX-ZOOKEEPER-UNREACHABLE`` for whoever tried to connect with these settings."""
    hosts = settings.zookeeper.hosts
    return SetupError(
        "SX-ZOOKEEPER-UNREACHABLE",
        f"ZooKeeper at {hosts} did not answer, waited {waited:.1f} s",
        cause=cause or "no session could be opened",
        fix="is it running, and is this its address? (zookeeper.hosts, from "
        f"{settings.origins.get('zookeeper.hosts', 'default')}; time allowed: zookeeper.connect_timeout)",
        where={"zookeeper": hosts},
    )


def reach_kafka(settings: Settings) -> int:
    """Ask for the cluster's metadata; gives the number of brokers.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE`` with the address and how long it waited; ``SX-CONFIG-VALUE`` when librdkafka
            does not take one of its settings.
    """
    from confluent_kafka import KafkaError, KafkaException

    started = time.monotonic()
    servers = settings.kafka.bootstrap_servers
    heard = _Heard()
    try:
        return kafka_brokers(settings.kafka.client(), timeout=settings.kafka.connect_timeout, logger=heard.logger)
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() == KafkaError._INVALID_ARG:  # noqa: SLF001 (the library's public name for it)
            raise SetupError(
                "SX-CONFIG-VALUE",
                f"a setting below kafka. is not one that the Kafka client takes: {reason.str()}",
                cause="keys below kafka. with a dot of their own go to librdkafka as they are",
                fix="see librdkafka's list of configuration properties for names and values",
            ) from error
        raise SetupError(
            "SX-KAFKA-UNREACHABLE",
            f"Kafka at {servers} did not answer, waited {time.monotonic() - started:.1f} s",
            cause=heard.most() or reason.str(),
            fix="is it running, is this its address, and does it advertise one that works from here? "
            f"(kafka.bootstrap_servers, from {settings.origins.get('kafka.bootstrap_servers', 'default')}; "
            "time allowed: kafka.connect_timeout)",
            where={"kafka": servers},
        ) from error


def kafka_brokers(client: Mapping[str, Any], *, timeout: float, logger: logging.Logger | None = None) -> int:
    """How many brokers the cluster has.

    Args:
        client: librdkafka settings.
        timeout: seconds.
        logger: gets what librdkafka says meanwhile; nobody does if not given.

    Raises:
        KafkaException: when nobody answers in time, or a setting is one that librdkafka does not take.
    """
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(dict(client), logger=logger or _Heard().logger)
    try:
        return len(admin.list_topics(timeout=timeout).brokers)
    finally:
        admin.poll(0)  # hands over what was said
