"""Records whose schema stands in a schema registry, in the form that Confluent's serialisers write: ``avro``.

A record is a zero byte, the number of its schema in four bytes, and the data. What is read follows the schema that the record
was written with; what is written is registered under the topic's subject first, unless the job says that it must be there.
"""

from __future__ import annotations

import functools
import json
import os
import ssl
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from queues.media import avro_types
from queues.media.base import Decoded
from queues.media.formats import keys_of
from queues.media.values import shortened
from sardonyx.errors import Failure, InputError, OutputError, SetupError
from sardonyx.schema import arrow_schema

_HEAD = struct.Struct(">bI")


class AvroFormat:
    """Avro records of one topic.

    Args:
        options: of the ``kafka`` medium: topic, schema, key, registry, subject, value_schema, register.
        registry: the address that the settings give, if the options give none.

    Raises:
        SetupError: ``SX-REGISTRY-MISSING``, no address; ``SX-REGISTRY-DRIVER``, what talks to registries is not installed.
    """

    def __init__(self, options: dict[str, Any], registry: str | None) -> None:
        self._topic: str = options["topic"]
        self._key: str | None = options.get("key")
        ddl = options.get("schema")
        self._declared = None if ddl is None else arrow_schema(ddl)
        self._given: str | None = options.get("value_schema")
        self._conf = {"auto.register.schemas": options.get("register", True)}
        self._subject: str = options.get("subject", "topic")
        self._address = _address(options.get("registry") or registry)
        self._client = _client(self._address, os.getpid())
        self._schemas: dict[int, pa.Schema | str] = {}
        self._writers: dict[str, Any] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Rows of the records that can be read, in order, with the columns of all schemas that they were written with.

        Raises:
            SetupError: ``SX-REGISTRY-UNREACHABLE``: without it nobody knows whether a record is bad.
            InputError: ``SX-INPUT-SCHEMA``, two schemas have one column in types that do not go together.
        """
        from confluent_kafka.schema_registry.avro import AvroDeserializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        read = AvroDeserializer(self._client)
        context = SerializationContext(self._topic, MessageField.VALUE)
        rows: list[dict[str, Any]] = []
        bad: list[tuple[int, Failure]] = []
        places: list[int] = []
        schemas: dict[int, pa.Schema] = {}
        for index, value in enumerate(values):
            number, schema = self._schema_of(value)
            if isinstance(schema, str):
                bad.append((index, _undecodable(value, schema)))
                continue
            try:
                rows.append(_plain(read(value, context)))
            except Exception as error:  # noqa: BLE001 (whatever a decoder meets in bytes that are none of its own)
                bad.append((index, _undecodable(value, f"{type(error).__name__}: {error}")))
                continue
            schemas[number] = schema
            places.append(index)
        wanted = self._declared or self._unified(list(schemas.values()))
        table, unfit = _table(rows, wanted)
        bad += [(places[at], _undecodable(values[places[at]], reason)) for at, reason in unfit]
        return Decoded(table, sorted(bad, key=lambda item: item[0]))

    def _schema_of(self, value: bytes | None) -> tuple[int, pa.Schema | str]:
        """Number and columns of the schema that a record was written with; a text says why there are none."""
        if value is None or len(value) < _HEAD.size or value[0] != 0:
            return -1, "it has no value" if value is None else "it does not begin with the number of a schema"
        (_, number) = _HEAD.unpack_from(value)
        if number not in self._schemas:
            self._schemas[number] = self._fetched(number)
        return number, self._schemas[number]

    def _fetched(self, number: int) -> pa.Schema | str:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            found = self._client.get_schema(number)
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                return f"the registry has no schema {number}"
            raise self._unreachable(error) from error
        except Exception as error:
            raise self._unreachable(error) from error
        if found.schema_type != "AVRO":
            return f"schema {number} is {found.schema_type}, not Avro"
        try:
            return avro_types.to_arrow(json.loads(found.schema_str))
        except (ValueError, KeyError) as error:
            return f"schema {number} cannot be read as columns: {error}"

    def _unified(self, schemas: list[pa.Schema]) -> pa.Schema:
        try:
            return pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
        except pa.ArrowException as error:
            raise InputError(
                "SX-INPUT-SCHEMA",
                f"records of topic {self._topic} were written with schemas that do not go together",
                cause=str(error),
                fix="declare the columns: schema=...",
                where={"topic": self._topic},
            ) from error

    # --- writing ------------------------------------------------------------------------------------------------------

    def encode(self, table: pa.Table) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Key and value of each row, in order.

        Raises:
            OutputError: ``SX-OUTPUT-REGISTRY``, the registry refuses the schema or does not have it; ``SX-OUTPUT-TYPE``, a
                row that does not fit it; ``SX-OUTPUT-KEY``.
            SetupError: ``SX-REGISTRY-UNREACHABLE``.
        """
        from confluent_kafka.serialization import MessageField, SerializationContext

        schema = self._given or json.dumps(avro_types.of_arrow(table.schema, self._topic))
        keys = keys_of(table, self._key)
        context = SerializationContext(self._topic, MessageField.VALUE)
        write = self._writer(schema)
        rows = table.to_pylist(maps_as_pydicts="strict")
        for key, row in zip(keys, rows, strict=True):
            try:
                yield key, write(row, context)
            except Exception as error:
                raise self._refused(error, row) from error

    def _writer(self, schema: str) -> Any:
        from confluent_kafka import schema_registry
        from confluent_kafka.schema_registry.avro import AvroSerializer

        if schema not in self._writers:
            strategy = getattr(schema_registry, f"{self._subject}_subject_name_strategy")
            conf = {**self._conf, "subject.name.strategy": strategy}
            try:
                self._writers[schema] = AvroSerializer(self._client, schema, conf=conf)
            except Exception as error:
                raise OutputError(
                    "SX-OUTPUT-REGISTRY",
                    f"value_schema of topic {self._topic} cannot be used: {error}",
                    fix="give an Avro schema of type record, as JSON",
                ) from error
        return self._writers[schema]

    def _refused(self, error: Exception, row: dict[str, Any]) -> SetupError | OutputError:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        where = {"topic": self._topic, "registry": self._address}
        if isinstance(error, SchemaRegistryError) and error.http_status_code < 500:
            return OutputError(
                "SX-OUTPUT-REGISTRY",
                f"the schema registry did not take the schema of topic {self._topic}: {error.error_message}",
                cause="it is not compatible with an earlier one, or it is not registered and register is false",
                fix="make the rows fit the schema that is there, or register a new one",
                where=where,
            )
        if isinstance(error, SchemaRegistryError) or "httpx" in type(error).__module__ or isinstance(error, OSError):
            return self._unreachable(error)
        return OutputError(
            "SX-OUTPUT-TYPE",
            f"a row does not fit the schema of topic {self._topic}: {shortened(str(error), 300)}",
            cause=f"the row is {shortened(str(row), 300)}",
            fix="make the rows fit in the task before, or give another value_schema",
            where=where,
        )

    def _unreachable(self, error: Exception) -> SetupError:
        return SetupError(
            "SX-REGISTRY-UNREACHABLE",
            f"the schema registry does not answer: {shortened(str(error), 300)}",
            fix="look at its address and whether it runs",
            where={"registry": self._address},
        )


def _address(given: str | None) -> str:
    if given:
        return given
    raise SetupError(
        "SX-REGISTRY-MISSING",
        "no address of a schema registry is given",
        fix='give the medium registry="http://HOST:PORT", or set kafka.schema_registry where peers run',
    )


@functools.lru_cache(maxsize=8)
def _client(address: str, _pid: int) -> Any:
    """The process's one client of a registry, which remembers schemas.

    It trusts whom this machine trusts, and not a list that some package brought along.
    """
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroSerializer  # noqa: F401 - asked for here, to tell its absence
    except ImportError as error:
        raise SetupError(
            "SX-REGISTRY-DRIVER",
            "this machine has nothing that talks to schema registries",
            cause=str(error),
            fix="install it where peers run: pip install 'sardonyx[registry]'",
        ) from error
    trusted = ssl.get_default_verify_paths()
    ca = next((path for path in (trusted.cafile, _DEBIAN_CA, trusted.capath) if path and Path(path).exists()), None)
    secure = address.startswith("https") and ca is not None
    return SchemaRegistryClient({"url": address, **({"ssl.ca.location": ca} if secure else {})})


_DEBIAN_CA = "/etc/ssl/certs/ca-certificates.crt"


def _plain(value: Any) -> dict[str, Any]:
    """A record as Arrow takes it: maps as pairs are made where the type is known; texts of UUIDs."""
    if not isinstance(value, dict):
        raise TypeError("it is no record")
    return value


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> tuple[pa.Table, list[tuple[int, str]]]:
    """Rows as a table, and those that do not fit its types, by their index."""
    try:
        return pa.table([_column(rows, field) for field in schema], schema), []
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    good: list[dict[str, Any]] = []
    bad: list[tuple[int, str]] = []
    for index, row in enumerate(rows):
        try:
            pa.table([_column([row], field) for field in schema], schema)
            good.append(row)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            bad.append((index, str(error)))
    return pa.table([_column(good, field) for field in schema], schema), bad


def _column(rows: list[dict[str, Any]], field: pa.Field) -> pa.Array:
    return pa.array([_value(row.get(field.name), field.type) for row in rows], field.type)


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _value(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _value(value.get(field.name), field.type) for field in kind}
    if pa.types.is_string(kind) and not isinstance(value, str):
        return str(value)
    return value


def _undecodable(value: bytes | None, reason: str) -> Failure:
    shown = "" if value is None else shortened(value[:100].hex(), 60)
    return Failure(
        "SX-RECORD-UNDECODABLE",
        f"a record could not be read as Avro: {shortened(reason, 300)}",
        cause=f"the record begins with the bytes {shown}" if shown else "",
        fix='mend its writer, or let the task leave such records out with on_error "skip"',
    )
