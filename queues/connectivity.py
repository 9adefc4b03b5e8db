"""Whether ZooKeeper and Kafka answer, asked in the way that the daemons will use them: same addresses, same credentials."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, libversion
from confluent_kafka.admin import AdminClient

from queues.client import client_config, not_taken
from queues.denied import LOGIN, login_denied
from sardonyx.core.errors import SetupError
from sardonyx.runtime.addresses import why_unreachable
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.logging import Collected
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.connectivity import reach_zookeeper

LOGIN_SAID = 3.0
"""Seconds within which a broker that answers says whether it accepts the credentials."""

_ASKING = frozenset({"GSSAPI", "OAUTHBEARER"})
"""Mechanisms of a login for which to make a client may ask other services."""
_DECORATION = re.compile(r"^.*/bootstrap: | \(after .*")
"""What librdkafka puts around the reason."""


def check_reachable(settings: Settings) -> None:
    """Make sure that both services answer, within ``zookeeper.connect_timeout`` and ``kafka.connect_timeout``.

    Raises:
        SetupError: ``SX-CONFIG-MISSING``, ``SX-ZOOKEEPER-UNREACHABLE`` or ``SX-KAFKA-UNREACHABLE``.
    """
    settings.require("zookeeper", "kafka")
    reach_zookeeper(settings)
    reach_kafka(settings)


def reach_kafka(settings: Settings, *, explain: bool = True) -> int:
    """Ask for the cluster's metadata; gives the number of brokers.

    Args:
        settings: where Kafka is.
        explain: ask the network why, if Kafka does not answer. This takes up to a second for each of three addresses, and
            longer while DNS is away.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE`` with the address and how long it waited; ``SX-KAFKA-DENIED`` when the broker does
            not accept the credentials; ``SX-CONFIG-VALUE`` when librdkafka does not take one of its settings.
    """
    started = time.monotonic()
    servers = settings.kafka.bootstrap_servers or ""
    heard = Collected(_DECORATION)
    try:
        return kafka_brokers(client_config(settings), timeout=settings.kafka.connect_timeout, logger=heard.logger)
    except KafkaException as error:
        reason = error.args[0]
        if refusal := refused_setting(settings):
            raise refusal from error
        cause = heard.most() or reason.str()
        if reason.code() in LOGIN:
            raise login_denied(settings, cause) from error
        if explain:
            raise kafka_unreachable(settings, started, cause) from error
        raise SetupError(
            "SX-KAFKA-UNREACHABLE",
            f"Kafka at {servers} did not answer (waited {time.monotonic() - started:.1f} s).",
            cause=cause,
            fix="Check that the brokers run.",
            where={"kafka": servers},
        ) from error


def refused_setting(settings: Settings) -> SetupError | None:
    """The error ``SX-CONFIG-VALUE``: librdkafka does not take a setting below ``kafka.``; None if it takes all."""
    try:
        AdminClient({**client_config(settings), "bootstrap.servers": ""}, logger=Collected(_DECORATION).logger)
    except KafkaException as error:
        return not_taken(error.args[0])
    return None


def unusable(settings: Settings) -> SetupError | None:
    """The error ``SX-CONFIG-VALUE`` of settings with which no client of Kafka can be made; None: nothing is known against them.

    Nothing is asked of any service, so the settings of a login that gets a ticket or a token when a client is made are not tried.
    """
    try:
        config = client_config(settings)
    except SetupError as error:
        return error
    mechanisms = (str(value).upper() for key, value in config.items() if key.startswith("sasl.mechanism"))
    return None if any(each in _ASKING for each in mechanisms) else refused_setting(settings)


def kafka_unreachable(settings: Settings, began: float, cause: str) -> SetupError:
    """The error ``SX-KAFKA-UNREACHABLE``. Asks the network why, which takes a second at most for each of three addresses.

    If the brokers take connections, and not the credentials, it is ``SX-KAFKA-DENIED``. To find out takes three seconds at most.
    If no client could be made of the settings, it is ``SX-CONFIG-VALUE``.

    Args:
        settings: where Kafka is.
        began: when the wait began, by ``time.monotonic``.
        cause: what the client said.
    """
    if refused := refused_setting(settings):
        return refused
    waited = time.monotonic() - began
    servers = settings.kafka.bootstrap_servers or ""
    origin = settings.origins.get("kafka.bootstrap_servers", "default")
    why = why_unreachable("Kafka", servers, "kafka.bootstrap_servers", waited, origin)
    fix = why.fix
    if why.reason == "silent" and (refusal := _login_refused(settings)):
        return login_denied(settings, refusal)
    if why.reason == "silent":
        fix += " Check also that it advertises an address that works from here. kafka.connect_timeout sets the time allowed."
    return SetupError(
        "SX-KAFKA-UNREACHABLE",
        why.message,
        cause=cause if why.reason == "silent" else why.cause,
        fix=fix,
        where={"kafka": servers},
    )


def check_login(settings: Settings) -> None:
    """Make sure that the brokers do not refuse the credentials, when they have not answered for :data:`LOGIN_SAID` seconds: the
    client itself goes on trying. Takes at most as long again. Brokers that do not answer at all refuse nothing.

    Raises:
        SetupError: ``SX-KAFKA-DENIED``.
    """
    if refusal := _login_refused(settings):
        raise login_denied(settings, refusal)


def _login_refused(settings: Settings) -> str:
    """Why the brokers do not accept the credentials; empty if they do, or do not answer."""
    client = client_config(settings)
    if not any(key.startswith("sasl.") for key in client):
        return ""

    def ask() -> str:
        heard = Collected(_DECORATION)
        try:
            kafka_brokers(client, timeout=LOGIN_SAID, logger=heard.logger)
        except KafkaException as error:
            return heard.most() if error.args[0].code() in LOGIN else ""
        return ""

    # On a thread of its own: the caller may be handling an exception, see `queues.guarded_producer`.
    background = BackgroundThread("login")
    try:
        return background.submit(ask).result()
    finally:
        background.close()


def kafka_brokers(client: Mapping[str, Any], *, timeout: float, logger: logging.Logger | None = None) -> int:
    """How many brokers the cluster has.

    Args:
        client: librdkafka settings.
        timeout: seconds.
        logger: gets what librdkafka logs meanwhile; without one it is discarded.

    Raises:
        KafkaException: no broker answers in time, or librdkafka refuses a setting.
    """
    said: list[KafkaError] = []
    told = {**client, "error_cb": said.append}
    admin = AdminClient(told, logger=logger or Collected(_DECORATION).logger)
    deadline = time.monotonic() + timeout
    while True:
        reason, brokers = _asked(admin, min(LOGIN_SAID / 3, max(deadline - time.monotonic(), 0.1)))
        admin.poll(0)  # hands over what was said
        refusal = next((error for error in said if error.code() in LOGIN), None)
        if reason is None:
            return brokers
        if refusal is not None or time.monotonic() > deadline:
            raise KafkaException(refusal or reason)


def _asked(admin: AdminClient, timeout: float) -> tuple[KafkaError | None, int]:
    """Why no broker answered, and how many there are."""
    try:
        return None, len(admin.list_topics(timeout=timeout).brokers)
    except KafkaException as error:
        return error.args[0], 0


def answers(client: Mapping[str, Any], *, timeout: float) -> bool:
    """Whether a broker answers within ``timeout`` seconds; ``client`` holds librdkafka settings."""
    try:
        return kafka_brokers(client, timeout=timeout) > 0
    except KafkaException:
        return False


def librdkafka_version() -> str:
    """The version of the C library under the Kafka client."""
    version: str = libversion()[0]
    return version
