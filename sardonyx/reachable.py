"""Whether ZooKeeper and Kafka answer, asked in the way that the daemons will use them: same addresses, same credentials."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from sardonyx.config import Settings
from sardonyx.errors import SetupError

_quiet = logging.getLogger("sardonyx.librdkafka")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False  # while nobody answers, librdkafka says so many times a second; the error says it once


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
    client = KazooClient(**settings.zookeeper.client())
    try:
        client.start(timeout=settings.zookeeper.connect_timeout)
    except Exception as error:
        raise zookeeper_unreachable(settings, time.monotonic() - started, error) from error
    else:
        try:
            said: str = client.command(b"srvr")
        except (KazooException, OSError):  # the word may be forbidden there, and goes without TLS
            return ""
        return said.partition("Zookeeper version: ")[2].partition("-")[0]
    finally:
        client.stop()
        client.close()


def zookeeper_unreachable(settings: Settings, waited: float, error: BaseException | None = None) -> SetupError:
    """The error ``SX-ZOOKEEPER-UNREACHABLE`` for whoever tried to connect with these settings."""
    hosts = settings.zookeeper.hosts
    return SetupError(
        "SX-ZOOKEEPER-UNREACHABLE",
        f"ZooKeeper at {hosts} did not answer, waited {waited:.1f} s",
        cause=f"{type(error).__name__}: {error}" if error else "no session could be opened",
        fix="is it running, and is this its address? (zookeeper.hosts, from "
        f"{settings.origins.get('zookeeper.hosts', 'default')}; time allowed: zookeeper.connect_timeout)",
        where={"zookeeper": hosts},
    )


def reach_kafka(settings: Settings) -> int:
    """Ask for the cluster's metadata; gives the number of brokers.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE`` with the address and how long it waited.
    """
    from confluent_kafka import KafkaException

    started = time.monotonic()
    servers = settings.kafka.bootstrap_servers
    heard: list[str] = []
    try:
        return kafka_brokers(settings.kafka.client(), timeout=settings.kafka.connect_timeout, heard=heard)
    except KafkaException as error:
        raise SetupError(
            "SX-KAFKA-UNREACHABLE",
            f"Kafka at {servers} did not answer, waited {time.monotonic() - started:.1f} s",
            cause="; ".join(dict.fromkeys(heard)) or str(error.args[0]),
            fix="is it running, is this its address, and does it advertise one that works from here? "
            f"(kafka.bootstrap_servers, from {settings.origins.get('kafka.bootstrap_servers', 'default')}; "
            "time allowed: kafka.connect_timeout)",
            where={"kafka": servers},
        ) from error


def kafka_brokers(client: Mapping[str, Any], *, timeout: float, heard: list[str] | None = None) -> int:
    """How many brokers the cluster has.

    Args:
        client: librdkafka settings.
        timeout: seconds.
        heard: gets what librdkafka says is wrong meanwhile.

    Raises:
        KafkaException: when nobody answers in time, or a setting is one that librdkafka does not take.
    """
    from confluent_kafka.admin import AdminClient

    def hear(error: Any) -> None:
        if heard is not None:
            heard.append(error.str())

    admin = AdminClient({**client, "error_cb": hear}, logger=_quiet)
    return len(admin.list_topics(timeout=timeout).brokers)
