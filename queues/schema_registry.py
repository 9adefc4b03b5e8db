"""The client of a Confluent schema registry, with the serializers that need it.

It is a part of the Kafka client's package, and optional: imported where it is used, so that a missing one is a clear error.
"""

from __future__ import annotations

import copy
import functools
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sardonyx.core.errors import SetupError
from sardonyx.runtime.settings_sections import SchemaRegistry

_DEBIAN_CA = "/etc/ssl/certs/ca-certificates.crt"


@functools.lru_cache(maxsize=8)
def client(registry: SchemaRegistry, _pid: int) -> Any:
    """The process's one client of a registry, which remembers schemas.

    Unless its options say otherwise, it trusts whom this machine trusts, and not a list that some package brought along.

    Raises:
        SetupError: ``SX-REGISTRY-DRIVER``, nothing here talks to registries; ``SX-CONFIG-VALUE``, it does not take its options.
    """
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: F401 - asked for here, to tell their absence
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer  # noqa: F401 - likewise
    except ImportError as error:
        raise SetupError(
            "SX-REGISTRY-DRIVER",
            "this machine has nothing that talks to schema registries",
            cause=str(error),
            fix="install it where peers run: pip install 'sardonyx[registry]'",
        ) from error
    trusted = ssl.get_default_verify_paths()
    ca = next((path for path in (trusted.cafile, _DEBIAN_CA, trusted.capath) if path and Path(path).exists()), None)
    usual = {} if ca is None else {"ssl.ca.location": ca}
    try:
        made = SchemaRegistryClient({**usual, **dict(registry.options), "url": registry.url})
    except (ValueError, TypeError, OSError) as error:  # (a file of certificates that is not there, or holds none)
        raise SetupError(
            "SX-CONFIG-VALUE",
            "a setting below kafka.schema.registry. is not one that the schema registry's client takes",
            cause=f"{error}",
            fix="see the options of confluent_kafka's SchemaRegistryClient for names and values",
        ) from error
    # Its connections are closed when it has left the cache and the last reader or writer that holds it is gone. The copy has the
    # same connections, and does not keep the client alive.
    weakref.finalize(made, copy.copy(made).close)
    return made


def subject_of_values(strategy: str, topic: str) -> tuple[Callable[..., str | None], Any]:
    """How the subject of a topic's values is named, and the context that a serializer wants with each of them.

    Args:
        strategy: ``topic``, ``record`` or ``topic_record``.
        topic: the topic's name.
    """
    from confluent_kafka import schema_registry
    from confluent_kafka.serialization import MessageField, SerializationContext

    named: Callable[..., str | None] = getattr(schema_registry, f"{strategy}_subject_name_strategy")
    return named, SerializationContext(topic, MessageField.VALUE)


def avro_deserializer(registry: Any) -> Callable[[bytes], Any]:
    """Reads Avro records by the schemas of a registry."""
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    made: Callable[[bytes], Any] = AvroDeserializer(registry)
    return made


def avro_serializer(registry: Any, schema: str, conf: dict[str, Any]) -> Callable[[dict[str, Any], Any], bytes]:
    """Writes Avro records of one schema. Raises whatever the library raises if it is not a schema."""
    from confluent_kafka.schema_registry.avro import AvroSerializer

    made: Callable[[dict[str, Any], Any], bytes] = AvroSerializer(registry, schema, conf=conf)
    return made


def protobuf_serializer(registry: Any, message: Any, conf: dict[str, Any]) -> Callable[[Any, Any], bytes]:
    """Writes Protobuf messages of one type."""
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

    made: Callable[[Any, Any], bytes] = ProtobufSerializer(
        message, registry, conf={**conf, "use.deprecated.format": False}
    )
    return made


def registry_error() -> type[Exception]:
    """What the client raises when the registry refuses."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    found: type[Exception] = SchemaRegistryError
    return found
