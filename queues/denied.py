"""The error for a right that Kafka does not give this client: who lacks which operation on what."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message

from sardonyx.core.errors import SetupError
from sardonyx.runtime.settings import Settings

LOGIN = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
"""Codes that say: the broker does not accept the credentials."""

RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
"""Codes that say: an ACL is missing. And for what."""


def is_denial(error: KafkaError | None) -> bool:
    """Whether the broker refuses because of who asks."""
    return error is not None and (error.code() in RIGHTS or error.code() in LOGIN)


def denied(settings: Settings, operation: str, resource: str, error: KafkaError | None) -> SetupError:
    """The error ``SX-KAFKA-DENIED``.

    Args:
        settings: with the credentials.
        operation: as ACLs name it, such as ``Write``.
        resource: such as ``topic orders``.
        error: what the broker, or the client, said.
    """
    who = settings.kafka.principal
    return SetupError(
        "SX-KAFKA-DENIED",
        f"Kafka at {settings.kafka.bootstrap_servers} does not let {who} do this: {operation} on {resource}.",
        cause=str(error),
        fix="Give this user the right (docs/security.md lists what each process needs), or set other credentials below kafka.",
        where={"principal": who, "operation": operation, "resource": resource},
    )


def refuse_denied(settings: Settings, message: Message) -> None:
    """Raise ``SX-KAFKA-DENIED`` if a consumer was given the broker's refusal to let it read, in place of a record."""
    error = message.error()
    if error is not None and error.code() in LOGIN:
        raise login_denied(settings, str(error))
    if is_denial(error):
        raise denied(settings, "Read", f"topic {message.topic()}", error)


def login_denied(settings: Settings, cause: str) -> SetupError:
    """The error ``SX-KAFKA-DENIED`` for credentials that the broker does not accept."""
    who = settings.kafka.principal
    return SetupError(
        "SX-KAFKA-DENIED",
        f"Kafka at {settings.kafka.bootstrap_servers} does not let {who} log in.",
        cause=cause,
        fix="Check kafka.sasl.username, kafka.sasl.password and kafka.sasl.mechanism against the users that the brokers know.",
        where={"principal": who, "operation": "log in", "resource": "cluster"},
    )
