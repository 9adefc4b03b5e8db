"""Records whose schema is in a schema registry, in the form that Confluent's serialisers write: ``avro`` and
``protobuf``.

A record is a zero byte, the number of its schema in four bytes, and the data. What is read follows the schema that the record
was written with; what is written is registered under the topic's subject first, unless the job says that it must be there.
"""

from __future__ import annotations

import json
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from queues import schema_registry
from queues.record_columns import Pair, RecordColumns
from sardonyx.connectors.base import Decoded
from sardonyx.connectors.python_values import values_of
from sardonyx.connectors.schema import arrow_schema
from sardonyx.connectors.topics import avro_types
from sardonyx.connectors.topics.record_keys import keys_of
from sardonyx.connectors.usual import usual_table
from sardonyx.connectors.values import of_python, parsed
from sardonyx.core.column_types import common_schema
from sardonyx.core.errors import Failure, OutputError, SetupError, failure_of
from sardonyx.core.settled_types import Misfit, ReadTypes, beyond_exact, places
from sardonyx.core.text import shorten
from sardonyx.runtime.settings_sections import SchemaRegistry

_HEAD = struct.Struct(">bI")

_LAGS = 3.0
"""Seconds that the servers of a registry may take to hear of a new schema: a batch waits no longer for those that it lacks."""
_ASKS_AGAIN = 0.2
"""Seconds between two questions."""
_RESTS = 60.0
"""Seconds without waiting, after it was in vain: a topic may hold many records with numbers of no schema."""


Reading = Callable[[bytes], dict[str, Any]]


class Written(NamedTuple):
    """A schema that records were written with."""

    columns: Callable[[bytes], pa.Schema]
    """The columns of a record; in Protobuf a schema may hold several messages."""
    read: Reading
    """A whole record, its head included, as a row."""


class _Columns:
    """The columns of a batch: those of the schemas that its records were written with, in the types that are settled."""

    def __init__(self, types: ReadTypes) -> None:
        self._types = types
        self._like = pa.schema([])
        self._known: dict[int, tuple[pa.Schema, Misfit | None]] = {}
        """By the identity of a schema: it, and why it does not fit."""

    @property
    def schema(self) -> pa.Schema:
        return self._types.schema(self._like)

    def add(self, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
        """Add the columns of the next record. ``rows``: those before it.

        Raises:
            Misfit: they do not go together with what is settled.
        """
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = schema, self._misfit(schema, rows)
        if known[1] is not None:
            raise known[1]

    def _misfit(self, schema: pa.Schema, rows: list[dict[str, Any]]) -> Misfit | None:
        given = dict(places(schema))
        try:
            changes = self._types.widened(given)
            if any(map(pa.types.is_floating, changes.values())):  # unless the rows hold integers that are lost by that
                self._types.take({}, beyond_exact(_table(rows, self.schema)[0], pa.int64(), self._types.large))
                changes = self._types.widened(given)
        except Misfit as error:
            return error
        self._types.take(changes)
        self._like = common_schema(self._like, schema)
        return None


class _Registered(ABC):
    """Records of one topic by schemas of a registry.

    Args:
        options: of the ``kafka`` connector: topic, schema, key, registry, subject, value_schema, register.
        registry: the one of the settings; the options' own address goes first.

    Raises:
        SetupError: ``SX-REGISTRY-MISSING``, no address; and as :func:`queues.schema_registry.client`.
    """

    kind: str
    """What it is called, and in capitals what the registry calls it."""
    asked_as: str | None = None
    """The form in which the registry is asked for schemas; None: its own."""

    def __init__(self, options: dict[str, Any], registry: SchemaRegistry) -> None:
        self._topic: str = options["topic"]
        self._key: str | None = options.get("key")
        ddl = options.get("schema")
        self._declared = None if ddl is None else arrow_schema(ddl)
        self._given: str | None = options.get("value_schema")
        self._conf = {"auto.register.schemas": options.get("register", True)}
        self._subject: str = options.get("subject", "topic")
        found = registry.at(options.get("registry") or None)
        self._address = _address(found.url)
        self._client = schema_registry.client(found, os.getpid())
        self._schemas: dict[int, Written | str] = {}
        self._waits_until = self._waits_again_at = 0.0
        """Until when this batch waits for schemas that the registry lacks, and from when on any batch does so again."""
        self._types = ReadTypes()
        self._writers: dict[str, Callable[[dict[str, Any]], bytes]] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    def decode(self, values: Sequence[bytes | None], _keys: Sequence[bytes | None] | None = None, /) -> Decoded:
        """Rows of the records that can be read, in order, with the columns of all schemas that they were written with.

        A record is bad if the types of its schema do not go together with those before it.

        Raises:
            SetupError: ``SX-REGISTRY-UNREACHABLE``, ``SX-REGISTRY-DENIED``: without it one cannot say whether a record is bad.
        """
        rows: list[dict[str, Any]] = []
        bad: list[tuple[int, Failure]] = []
        at: list[int] = []
        columns = _Columns(self._types)
        # A schema that the registry lacked may be there by now.
        self._waits_until = time.monotonic() + _LAGS
        self._schemas = {number: found for number, found in self._schemas.items() if not isinstance(found, str)}
        for index, value in enumerate(values):
            schema = self._schema_of(value)
            if isinstance(schema, str) or value is None:
                bad.append((index, _undecodable(value, str(schema))))
                continue
            try:
                read = schema.read(value)
                own = schema.columns(value)
            except Exception as error:  # (whatever a decoder meets in bytes that are none of its own)
                if _is_of_network(error):  # which says nothing about the record
                    raise self._unreachable(error) from error
                bad.append((index, _undecodable(value, f"{type(error).__name__}: {error}")))
                continue
            try:
                if self._declared is None:
                    columns.add(own, rows)
            except Misfit as error:
                held = shorten(repr(read.get(error.place[0])))
                bad.append((index, failure_of(error.of(f"topic {self._topic}", held, {"topic": self._topic}))))
                continue
            rows.append(read)
            at.append(index)
        table, unfit = _table(rows, self._declared or columns.schema)
        if self._declared is None:
            self._types.take({}, beyond_exact(table, pa.int64(), self._types.large))
        bad += [(at[row], _undecodable(values[at[row]], reason)) for row, reason in unfit]
        return Decoded(table, sorted(bad, key=lambda item: item[0]))

    def _schema_of(self, value: bytes | None) -> Written | str:
        """The schema that a record was written with; a text says why there is none."""
        if value is None or len(value) < _HEAD.size or value[0] != 0:
            return "it has no value" if value is None else "it does not begin with the number of a schema"
        (_, number) = _HEAD.unpack_from(value)
        if number not in self._schemas:
            self._schemas[number] = self._fetched(number)
        return self._schemas[number]

    def _fetched(self, number: int) -> Written | str:
        try:
            found = self._asked(number)
        except Exception as error:
            if _is_unknown(error):
                return f"the registry has no schema {number}"
            if not _is_of_network(error):
                return f"schema {number} cannot be read: {error}"
            raise self._unreachable(error) from error
        if found.schema_type != self.kind.upper():
            return f"schema {number} is {found.schema_type}, not {self.kind}"
        try:
            return self._written(found)
        except Exception as error:
            if isinstance(error, (ValueError, KeyError)) or _is_unknown(error) or not _is_of_network(error):
                return f"schema {number} cannot be read as columns: {error}"
            raise self._unreachable(error) from error

    def _asked(self, number: int) -> Any:
        """The schema, from the registry. One of its servers that has yet to hear of a new schema says that there is none, so it
        is asked again for a moment. Else ``on_error="skip"`` would leave out records that only came early.
        """
        while True:
            try:
                return self._client.get_schema(number, fmt=self.asked_as)
            except Exception as error:
                if not _is_unknown(error) or time.monotonic() < self._waits_again_at:
                    raise
                if time.monotonic() >= self._waits_until:
                    self._waits_again_at = time.monotonic() + _RESTS
                    raise
            time.sleep(_ASKS_AGAIN)

    @abstractmethod
    def _written(self, schema: Any) -> Written:
        """How records of a schema are read. Raises ``ValueError`` or ``KeyError`` if they cannot be."""

    # --- writing ------------------------------------------------------------------------------------------------------

    def encode(self, table: pa.Table) -> RecordColumns:
        """Key and value of each row, in order.

        Raises:
            OutputError: ``SX-OUTPUT-REGISTRY``, the registry refuses the schema or does not have it; ``SX-OUTPUT-TYPE``, a
                row that does not fit it; ``SX-OUTPUT-KEY``.
            SetupError: ``SX-REGISTRY-UNREACHABLE``.
        """
        return RecordColumns.of(self._encoded(usual_table(table)))

    def _encoded(self, table: pa.Table) -> Iterator[Pair]:
        keys = keys_of(table, self._key)
        table = self._writable(table)
        write = self._writer(table.schema)
        columns = [values_of(column, name) for name, column in zip(table.column_names, table.columns, strict=True)]
        rows = (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))
        for key, row in zip(keys, rows, strict=True):
            try:
                yield key, write(row)
            except Exception as error:
                raise self._refused(error, row) from error

    def _writable(self, table: pa.Table) -> pa.Table:
        """The rows in the types that records of this format are made of."""
        return table

    def _writer(self, schema: pa.Schema) -> Callable[[dict[str, Any]], bytes]:
        """What makes records of rows with these columns."""
        known = self._writers.get(str(schema))
        if known is None:
            strategy, context = schema_registry.subject_of_values(self._subject, self._topic)
            serializer = self._serializer(schema, {**self._conf, "subject.name.strategy": strategy})
            known = self._writers[str(schema)] = lambda row: serializer(row, context)
        return known

    @abstractmethod
    def _serializer(self, schema: pa.Schema, conf: dict[str, Any]) -> Callable[[dict[str, Any], Any], bytes]:
        """What makes a record of a row and its context. ``conf``: of the registry's serializer."""

    def _refused(self, error: Exception, row: dict[str, Any]) -> SetupError | OutputError:
        where = {"topic": self._topic, "registry": self._address}
        if _is_unknown(error) or getattr(error, "http_status_code", 0) in _NOT_TAKEN:
            return OutputError(
                "SX-OUTPUT-REGISTRY",
                f"the schema registry refused the schema of topic {self._topic}: {error}",
                cause="it is not compatible with an earlier one, or it is not registered and register is false",
                fix="make the rows fit the registered schema, or register a new one",
                where=where,
            )
        if _is_of_network(error):
            return self._unreachable(error)
        return OutputError(
            "SX-OUTPUT-TYPE",
            f"a row does not fit the schema of topic {self._topic}: {shorten(str(error), 300)}",
            cause=f"the row is {shorten(str(row), 300)}",
            fix="change the rows in the task before, or give another value_schema",
            where=where,
        )

    def _unreachable(self, error: Exception) -> SetupError:
        if getattr(error, "http_status_code", 0) in _DENIED:
            return SetupError(
                "SX-REGISTRY-DENIED",
                f"the schema registry does not let this user in: {shorten(str(error), 300)}",
                fix="correct kafka.schema.registry.basic.auth.user.info where peers run, or the rights there; it is sent only to "
                "the address in kafka.schema_registry",
                where={"registry": self._address.rpartition("@")[2]},
            )
        return SetupError(
            "SX-REGISTRY-UNREACHABLE",
            f"the schema registry does not answer: {shorten(str(error), 300)}",
            fix="check its address, and whether it runs",
            where={"registry": self._address},
        )


class AvroFormat(_Registered):
    """Avro: columns follow the writer's schema; what is written, ``value_schema`` or what follows from the columns."""

    kind = "Avro"

    def _written(self, schema: Any) -> Written:
        columns = avro_types.to_arrow(json.loads(schema.schema_str))
        read = schema_registry.avro_deserializer(self._client)
        # Without a context it does not ask the registry, batch after batch, for a subject that nothing here depends on.
        return Written(lambda _: columns, lambda value: _record(read(value)))

    def _serializer(self, schema: pa.Schema, conf: dict[str, Any]) -> Callable[[dict[str, Any], Any], bytes]:
        wanted = self._given or json.dumps(avro_types.of_arrow(schema, self._topic))
        try:
            return schema_registry.avro_serializer(self._client, wanted, conf)
        except Exception as error:
            raise OutputError(
                "SX-OUTPUT-REGISTRY",
                f"value_schema of topic {self._topic} cannot be used: {error}",
                fix="give an Avro schema of type record, as JSON",
            ) from error


class ProtobufFormat(_Registered):
    """Protobuf: columns are the fields of the writer's message; what is written, a message that follows from the columns."""

    kind = "Protobuf"
    asked_as = "serialized"

    def _written(self, schema: Any) -> Written:
        from sardonyx.connectors.topics import protobuf_types

        references = {each.name: self._referred(each) for each in schema.references or ()}
        messages = protobuf_types.files_of(schema.schema_str, references)
        known: dict[str, pa.Schema] = {}

        def columns(value: bytes) -> pa.Schema:
            message, _ = protobuf_types.message_at(messages, value[_HEAD.size :])
            if message.full_name not in known:
                known[message.full_name] = protobuf_types.to_arrow(message)
            return known[message.full_name]

        def read(value: bytes) -> dict[str, Any]:
            return protobuf_types.parsed(*protobuf_types.message_at(messages, value[_HEAD.size :]))

        return Written(columns, read)

    def _referred(self, reference: Any) -> str:
        found = self._client.get_version(reference.subject, reference.version, fmt=self.asked_as)
        return str(found.schema.schema_str)

    def _writable(self, table: pa.Table) -> pa.Table:
        from sardonyx.connectors.topics import protobuf_types

        return protobuf_types.writable(table)

    def _serializer(self, schema: pa.Schema, conf: dict[str, Any]) -> Callable[[dict[str, Any], Any], bytes]:
        from sardonyx.connectors.topics import protobuf_types

        message = protobuf_types.message_of(schema, self._topic)
        write = schema_registry.protobuf_serializer(self._client, message, conf)
        return lambda row, context: write(protobuf_types.filled(message(), row), context)


def _address(given: str | None) -> str:
    if given:
        return given
    raise SetupError(
        "SX-REGISTRY-MISSING",
        "the address of the schema registry is not set",
        fix='give the connector registry="http://HOST:PORT", or set kafka.schema_registry where peers run',
    )


_UNKNOWN = {40401, 40402, 40403}
"""How a registry itself says that there is no such subject, version or schema; a bare 404 may be another server's."""
_NOT_TAKEN = {409, 422}
"""HTTP statuses of a schema that is not compatible or not valid."""


_DENIED = {401, 403}
"""HTTP statuses of a registry that does not let this user in."""


def _is_unknown(error: Exception) -> bool:
    return getattr(error, "error_code", None) in _UNKNOWN


def _is_of_network(error: Exception) -> bool:
    """Whether it was raised by talking to a registry, or to what answers in its place."""
    talk = (schema_registry.registry_error(), OSError, json.JSONDecodeError)
    return isinstance(error, talk) or type(error).__module__.startswith("httpx")


def _record(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("it is not a record")
    return value


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> tuple[pa.Table, list[tuple[int, str]]]:
    """Rows as a table, and those that do not fit its types, by their index."""
    try:
        return pa.table([_column(rows, field) for field in schema], schema), []
    except ValueError:
        pass
    good: list[dict[str, Any]] = []
    bad: list[tuple[int, str]] = []
    for index, row in enumerate(rows):
        try:
            pa.table([_column([row], field) for field in schema], schema)
            good.append(row)
        except ValueError as error:
            bad.append((index, str(error)))
    return pa.table([_column(good, field) for field in schema], schema), bad


def _column(rows: list[dict[str, Any]], field: pa.Field) -> pa.Array:
    """A column of rows. Raises ``ValueError``; of one row, the text says which value does not fit which column."""
    held = [row.get(field.name) for row in rows]
    try:
        return _array(held, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        shown = shorten(repr(held[0]))
        raise ValueError(f"column {field.name!r} holds {shown}, which is not of type {field.type}: {error}") from error


def _array(held: list[Any], kind: pa.DataType) -> pa.Array:
    found = [_value(value, kind) for value in held]
    present = [value for value in found if value is not None]
    if present and not pa.types.is_string(kind) and all(isinstance(value, str) for value in present):
        return parsed(pa.array(found, pa.string()), kind)  # a declared type for values that are texts there
    return of_python(found, kind)


def _value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _inner(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_inner(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _inner(value.get(field.name), field.type) for field in kind}
    if pa.types.is_string(kind) and not isinstance(value, str):
        return str(value)
    return value


def _inner(value: Any, kind: pa.DataType) -> Any:
    """A value within another one; a text becomes what the type says."""
    if isinstance(value, str) and not pa.types.is_string(kind):
        return parsed(pa.array([value]), kind)[0].as_py()
    found = _value(value, kind)
    if isinstance(found, float | Decimal):
        of_python([found], kind)
    return found


def _undecodable(value: bytes | None, reason: str) -> Failure:
    shown = "" if value is None else shorten(value[:100].hex(), 60)
    return Failure(
        "SX-RECORD-UNDECODABLE",
        f"a record could not be read: {shorten(reason, 300)}",
        cause=f"the record begins with the bytes {shown}" if shown else "",
        fix='correct the program that writes it, or leave such records out with on_error "skip" or "dead_letter"',
    )
