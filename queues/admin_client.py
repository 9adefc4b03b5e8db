"""One admin client for each cluster, how long its answers may take, and what its errors mean."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from queues import committed
from queues.client import CLIENT_LOG, client_config
from queues.connectivity import LOGIN_SAID, check_login, kafka_unreachable, refused_setting
from queues.denied import denied, is_denial
from sardonyx.core.errors import SetupError
from sardonyx.runtime.settings import Settings

NEVER = 3600.0
"""Seconds after which the client gives up a request to a group's coordinator: the most that it takes, for one that it has given
up ends the process when the broker is back (confluentinc/librdkafka issue 4605). Callers have a patience of their own."""

RENEW_EVERY = 60.0
"""Seconds from one new client for a cluster to the next."""

CALL = 30.0
"""Seconds within which a broker answers an administrative request. If it does not, we say so."""

log = structlog.get_logger()

_RENEWING = threading.Lock()
_renewed: dict[str | None, float] = {}
"""By the addresses of a cluster, when its client was renewed last."""

_NO_ANSWER = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_WAIT_COORD"})
"""Names of the errors that say that no broker answered."""


@functools.lru_cache(maxsize=8)
def _client_for(config: tuple[tuple[str, Any], ...]) -> AdminClient:
    client = AdminClient(dict(config), logger=CLIENT_LOG)
    # Never destroyed: librdkafka can hang in that without end when the broker went away during a request, and a process that has
    # done its work would not end.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    return client


def admin_client(settings: Settings) -> AdminClient:
    """The process's one client for this cluster. Raises ``SX-CONFIG-VALUE`` if librdkafka does not take a setting."""
    try:
        return _client_for(tuple(sorted(client_config(settings).items())))
    except KafkaException as error:
        raise refused_setting(settings) or error from error


def renew_if_stuck(settings: Settings, admin: AdminClient) -> None:
    """Give later callers of :func:`admin_client` a new client, if brokers answer this one, and have not answered a request to the
    coordinator of a group.

    A client may keep waiting for the broker that was the group's coordinator when that one died, and with it all its later
    requests about the group, for as long as the process lives. A client that is given up stays (see above), so there is a new
    one every :data:`RENEW_EVERY` seconds at most, and none while no broker answers.
    """
    try:
        admin.list_topics(timeout=LOGIN_SAID)
    except KafkaException:
        return
    with _RENEWING:
        now = time.monotonic()
        if now - _renewed.get(settings.kafka.bootstrap_servers, -math.inf) >= RENEW_EVERY:
            _renewed[settings.kafka.bootstrap_servers] = now
            _client_for.cache_clear()
            log.warning("kafka_client_renewed", kafka=settings.kafka.bootstrap_servers)


def within(settings: Settings, began: float, future: Any) -> Any:
    """The answer to a request that was made at ``began``.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``. ``SX-KAFKA-DENIED``: the brokers refuse the credentials, of which the client says
            nothing here; we ask for that after :data:`LOGIN_SAID` seconds.
    """
    with contextlib.suppress(TimeoutError):
        return future.result(timeout=LOGIN_SAID)
    check_login(settings)
    try:
        return future.result(timeout=CALL - LOGIN_SAID)
    except TimeoutError as error:
        raise kafka_unreachable(settings, began, "no answer") from error


def error_of(future: Any) -> KafkaError | None:
    """Why a request failed; None if it did not."""
    try:
        future.result(timeout=CALL)
    except TimeoutError:
        return KafkaError(KafkaError._TIMED_OUT)
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        return reason
    return None


def errors_of_groups(
    settings: Settings, admin: AdminClient, asked: Mapping[str, Future[Any]]
) -> dict[str, KafkaError | None]:
    """Wait :data:`CALL` for the answers to requests about groups, which their callers made with :data:`NEVER`.

    A request that has no answer by then counts as timed out. If the client is stuck, the next caller gets a new one.

    Returns:
        By group why its request failed; None if it did not.
    """
    _, late = wait(asked.values(), timeout=CALL)
    if late:
        renew_if_stuck(settings, admin)
    return {
        group: KafkaError(KafkaError._TIMED_OUT) if future in late else error_of(future)
        for group, future in asked.items()
    }


def refusal_to_show(admin: AdminClient, topics: Iterable[str]) -> tuple[str, KafkaError] | None:
    """The first of some topics that the brokers do not show to this client, and what they say; None: they show all of them.

    Such a topic looks like one that does not exist: it is in no list, and the client finds no leader of it.
    """
    asked = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=CALL)
    told = ((topic, error_of(future)) for topic, future in asked.items())
    return next(((topic, error) for topic, error in told if error is not None and is_denial(error)), None)


Needs = tuple[str, str]
"""A right, as ACLs name it: an operation, and on what: ``("Describe", "topic orders")``."""


def failed(settings: Settings, began: float, what: str, error: KafkaError, needs: Needs) -> SetupError:
    """The error for a request that failed: no broker answered, or one refused. ``needs``: the right that it takes."""
    if error.name() in _NO_ANSWER | committed.ELSEWHERE:
        return kafka_unreachable(settings, began, f"it was to {what}: {error}")
    return refused(settings, what, error, needs)


def refused(settings: Settings, what: str, error: KafkaError | None, needs: Needs) -> SetupError:
    """The error for a request that a broker refused, or did not answer. ``needs``: the right that it takes."""
    if is_denial(error):
        return denied(settings, *needs, error)
    if error is not None and error.name() in _NO_ANSWER:
        return SetupError(
            "SX-KAFKA-UNREACHABLE",
            f"Kafka at {settings.kafka.bootstrap_servers} has not answered: it was to {what}.",
            cause=str(error),
            fix="Check that all brokers run, and that this process reaches each of them.",
        )
    return SetupError(
        "SX-KAFKA-REFUSED",
        f"Kafka at {settings.kafka.bootstrap_servers} did not {what}.",
        cause=str(error),
        fix="Check the broker's log.",
    )
