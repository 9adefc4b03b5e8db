"""Protobuf's messages as Arrow's columns, and the other way round. Needs ``sardonyx[registry]``."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from sardonyx.connectors import json_text
from sardonyx.core.errors import OutputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOMENT = "google.protobuf.Timestamp"
_PLAIN = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),  # Spark has no unsigned numbers
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


def files_of(schema: str, references: Mapping[str, str]) -> list[Descriptor]:
    """The messages of a file, from what a registry gives for it: serialised descriptors in base64.

    Args:
        schema: of the file itself.
        references: of files that it imports, by the name that it imports them by.

    Raises:
        ValueError: it is something else, such as the text of a ``.proto`` file, which only a compiler reads.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    try:
        for name, text in references.items():
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            file.name = name
            pool.Add(file)
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema, validate=True))
        file.name = file.name or "schema.proto"
        pool.Add(file)
        return list(pool.FindFileByName(file.name).message_types_by_name.values())
    except Exception as error:
        raise ValueError(f"the registry does not give it as a descriptor ({error})") from error


def message_at(messages: Sequence[Descriptor], data: bytes) -> tuple[Descriptor, bytes]:
    """Which message a record is, by the path that comes before it, and its bytes.

    Raises:
        ValueError: there is no such message.
    """
    count, data = _number(data)
    path = [0]
    if count:
        path = []
        for _ in range(count):
            index, data = _number(data)
            path.append(index)
    for depth, index in enumerate(path):
        if not 0 <= index < len(messages):
            raise ValueError(f"its schema has no message {path}")
        found = messages[index]
        messages = list(found.nested_types) if depth < len(path) - 1 else messages
    return found, data


def _number(data: bytes) -> tuple[int, bytes]:
    """A zigzag varint at the beginning, and the rest."""
    value = shift = 0
    for at, byte in enumerate(data[:10]):
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), data[at + 1 :]
    raise ValueError("it ends before its message begins")


def to_arrow(message: Descriptor, inside: tuple[str, ...] = ()) -> pa.Schema:
    """A message's columns. Raises ``ValueError`` for one that holds itself."""
    if message.full_name in inside:
        raise ValueError(f"message {message.full_name} holds itself")
    return pa.schema([pa.field(field.name, _kind(field, (*inside, message.full_name))) for field in message.fields])


def _kind(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        return pa.map_(pa.string(), _single(value, inside))
    kind = _single(field, inside)
    return pa.list_(pa.field("element", kind)) if field.is_repeated else kind


def _single(field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == _MOMENT:
            return pa.timestamp("us", "UTC")
        return pa.struct(list(to_arrow(field.message_type, inside)))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    return _PLAIN[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def parsed(message: Descriptor, data: bytes) -> dict[str, Any]:
    """A record as a row. A field that can tell that it is not there, and is not, is null."""
    return _row(message_factory.GetMessageClass(message).FromString(data))


def _row(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = {str(key): _value(inner, item) for key, item in value.items()}
        elif field.is_repeated:
            found[field.name] = [_value(field, item) for item in value]
        else:
            gone = field.has_presence and not message.HasField(field.name)
            found[field.name] = None if gone else _value(field, value)
    return found


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _MOMENT:
            try:
                return value.ToDatetime(tzinfo=UTC)
            except (ValueError, OverflowError):
                raise ValueError(
                    f"field {field.name!r} holds second {value.seconds}, outside the years 1 to 9999"
                ) from None
        return _row(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value


# --- Writing ----------------------------------------------------------------------------------------------------------

_WRITTEN = {
    pa.bool_(): FieldDescriptor.TYPE_BOOL,
    pa.int8(): FieldDescriptor.TYPE_INT32,
    pa.int16(): FieldDescriptor.TYPE_INT32,
    pa.int32(): FieldDescriptor.TYPE_INT32,
    pa.int64(): FieldDescriptor.TYPE_INT64,
    pa.float32(): FieldDescriptor.TYPE_FLOAT,
    pa.float64(): FieldDescriptor.TYPE_DOUBLE,
    pa.string(): FieldDescriptor.TYPE_STRING,
    pa.large_string(): FieldDescriptor.TYPE_STRING,
    pa.binary(): FieldDescriptor.TYPE_BYTES,
    pa.large_binary(): FieldDescriptor.TYPE_BYTES,
    pa.null(): FieldDescriptor.TYPE_STRING,
}


def writable(table: pa.Table) -> pa.Table:
    """Rows with dates, decimals and moments without a zone as texts, as JSON has them; those in nested values stay.

    Raises:
        OutputError: ``SX-OUTPUT-TYPE``, a value that cannot be written as text.
    """
    columns = {
        name: json_text.column_texts(column, name) if _is_text(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pa.table(columns)


def _is_text(kind: pa.DataType) -> bool:
    has_no_zone = pa.types.is_timestamp(kind) and kind.tz is None
    return bool(has_no_zone or pa.types.is_date(kind) or pa.types.is_decimal(kind))


def message_of(schema: pa.Schema, name: str) -> Any:
    """The class of a message for rows of these columns, numbered in their order.

    Raises:
        OutputError: ``SX-OUTPUT-SCHEMA``, a name that Protobuf does not have; ``SX-OUTPUT-TYPE``.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    name = name if _NAME.fullmatch(name) else f"_{name}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    _fill(file.message_type.add(name=name), list(schema), f".{name}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _fill(message: Any, fields: Sequence[pa.Field], path: str) -> None:
    for number, column in enumerate(fields, 1):
        if not _NAME.fullmatch(column.name):
            raise OutputError(
                "SX-OUTPUT-SCHEMA",
                f"Protobuf does not allow the column name {column.name!r}",
                fix="rename the column: use letters, digits and _, and do not begin with a digit",
                where={"column": column.name},
            )
        kind = column.type
        field = message.field.add(name=column.name, number=number, label=FieldDescriptor.LABEL_OPTIONAL)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            field.label = FieldDescriptor.LABEL_REPEATED
            kind = kind.value_type
        _declare(message, field, kind, f"{path}.{column.name}_type")
        if field.label == FieldDescriptor.LABEL_OPTIONAL and not field.type_name:
            field.proto3_optional = True  # so that null differs from 0
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{column.name}")


def _declare(message: Any, field: Any, kind: pa.DataType, path: str) -> None:
    if pa.types.is_timestamp(kind) and kind.tz:
        field.type, field.type_name = FieldDescriptor.TYPE_MESSAGE, f".{_MOMENT}"
    elif pa.types.is_struct(kind):
        field.type, field.type_name = FieldDescriptor.TYPE_MESSAGE, path
        _fill(message.nested_type.add(name=path.rpartition(".")[2]), list(kind), path)
    elif kind in _WRITTEN:
        field.type = _WRITTEN[kind]
    elif _is_text(kind):
        field.type = FieldDescriptor.TYPE_STRING
    else:
        raise OutputError(
            "SX-OUTPUT-TYPE",
            f"column {field.name!r}: Protobuf cannot hold values of type {kind}",
            fix="cast the column in the task before",
            where={"column": field.name},
        )


def filled(message: Any, row: Mapping[str, Any]) -> Any:
    """A message with the values of a row; nulls are left out."""
    for field in message.DESCRIPTOR.fields:
        value = row[field.name]
        if value is None:
            continue
        if field.is_repeated:
            _extend(getattr(message, field.name), field, value)
        elif field.message_type is None:
            setattr(message, field.name, _text(field, value))
        else:
            _set(getattr(message, field.name), value)
    return message


def _extend(target: Any, field: FieldDescriptor, values: Sequence[Any]) -> None:
    for value in values:
        if value is None:
            raise ValueError(f"field {field.name!r} is repeated, and its values cannot be null")
        if field.message_type is None:
            target.append(_text(field, value))
        else:
            _set(target.add(), value)


def _set(message: Any, value: Any) -> None:
    if isinstance(value, datetime):
        message.FromDatetime(value)
    else:
        message.SetInParent()
        filled(message, value)


def _text(field: FieldDescriptor, value: Any) -> Any:
    """Dates, decimals and moments without a zone are written as in JSON."""
    if field.type != FieldDescriptor.TYPE_STRING or isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return value.isoformat() if hasattr(value, "isoformat") else f"{value:f}"
