"""Avro's types as Arrow's, and the other way round. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sardonyx.core.errors import OutputError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.null(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
}


def to_arrow(schema: Any) -> pa.Schema:
    """The columns of an Avro record.

    Raises:
        ValueError: it is not a record, or holds a type that a column cannot have (a union of several types, say).
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise ValueError("only records have columns")
    return pa.schema(list(_to_arrow(schema, {})))


def _to_arrow(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) > 1:
            raise ValueError(f"a union of {len(kinds)} types has no one type of a column")
        return _to_arrow(kinds[0], named) if kinds else pa.null()
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema.rpartition(".")[2] in named:
            return named[schema.rpartition(".")[2]]
        raise ValueError(f"type {schema!r} refers to itself or to nothing")
    kind = schema["type"]
    found = _complex(schema, kind, named)
    if "name" in schema:
        named[str(schema["name"]).rpartition(".")[2]] = found
    return found


def _complex(schema: Mapping[str, Any], kind: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        return pa.struct([_field(field, named) for field in schema["fields"]])
    if kind == "array":
        items = _to_arrow(schema["items"], named)
        if _takes_no_bytes(items):
            raise ValueError("an array of what takes no bytes: a few bytes of a record would be any number of items")
        return pa.list_(pa.field("element", items))
    if kind == "fixed" and schema["size"] == 0:
        raise ValueError("a type of no bytes holds nothing")
    if kind == "map":
        return pa.map_(pa.string(), _to_arrow(schema["values"], named))
    return _to_arrow(kind, named)


def _takes_no_bytes(kind: pa.DataType) -> bool:
    """Whether values of this type are nothing in a record."""
    return pa.types.is_null(kind) or (pa.types.is_struct(kind) and all(_takes_no_bytes(field.type) for field in kind))


def _field(field: Mapping[str, Any], named: dict[str, pa.DataType]) -> pa.Field:
    try:
        return pa.field(field["name"], _to_arrow(field["type"], named))
    except ValueError as error:
        raise ValueError(f"field {field['name']!r}: {error}") from None


_WRITTEN: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.int64(): "long",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.null(): "string",
}


def of_arrow(schema: pa.Schema, name: str) -> dict[str, Any]:
    """An Avro record for rows of these columns; each may be null.

    Args:
        schema: the columns.
        name: of the record; what Avro has no letters for becomes ``_``.

    Raises:
        OutputError: ``SX-OUTPUT-SCHEMA``, a name that Avro does not have; ``SX-OUTPUT-TYPE``, a type without one in Avro.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return _record(list(schema), name if _NAME.fullmatch(name) else f"_{name}")


def _record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise OutputError(
                "SX-OUTPUT-SCHEMA",
                f"Avro does not allow the column name {field.name!r}",
                fix="rename the column: use letters, digits and _, and do not begin with a digit",
                where={"column": field.name},
            )
    written = [
        {
            "name": field.name,
            "type": ["null", _of_arrow(field.type, f"{name}_{field.name}", field.name)],
            "default": None,
        }
        for field in fields
    ]
    return {"type": "record", "name": name, "fields": written}


def _of_arrow(kind: pa.DataType, name: str, column: str) -> Any:
    if kind in _WRITTEN:
        return _WRITTEN[kind]
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_decimal(kind) and kind.scale >= 0:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _record(list(kind), name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "items": ["null", _of_arrow(kind.value_type, name, column)]}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _of_arrow(kind.item_type, name, column)]}
    raise OutputError(
        "SX-OUTPUT-TYPE",
        f"column {column!r}: Avro cannot hold values of type {kind}",
        fix="cast the column in the task before, or give the schema: value_schema=...",
        where={"column": column},
    )
