"""The options that each connector accepts as an input and as an output, and the values that each option may have. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec

from sardonyx.connectors.files import roll
from sardonyx.core import units
from sardonyx.core.text import near

Use = Literal["input", "output"]

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Option(msgspec.Struct, frozen=True):
    """One option of a connector."""

    type: Any
    """A type as msgspec takes it."""
    wanted: str
    """The values that it may have, in words."""
    required: bool = False
    formats: tuple[str, ...] = ()
    """The formats that have this option; empty: all."""
    required_by: tuple[str, ...] = ()
    """The formats that need it."""
    check: Callable[[Any], str] = lambda _: ""
    """What is wrong with a value of the right type; empty: nothing."""
    secret: bool = False
    """Whether a wrong value may contain a secret, so that messages must not show it."""


def _one_path(path: str) -> str:
    if SCHEME.match(path):
        return "only paths of the file system can be read and written so far (a mounted one works)"
    return "" if path else "it is empty"


def _paths(path: str | list[str]) -> str:
    if not path:
        return "it is empty"
    return next(filter(None, map(_one_path, [path] if isinstance(path, str) else path)), "")


def _topic(topic: str) -> str:
    return (
        ""
        if _TOPIC.fullmatch(topic) and topic not in (".", "..")
        else "the name of a topic has at most 249 letters, digits, dots, - and _"
    )


def _position(*words: str) -> Callable[[Any], str]:
    def check(position: str | dict[str, int]) -> str:
        if isinstance(position, dict):
            good = position and all(key.isdecimal() and offset >= 0 for key, offset in position.items())
            return "" if good else "offsets are whole numbers of at least 0, by the number of their partition"
        if position in words:
            return ""
        try:
            moment = datetime.fromisoformat(position)
        except ValueError:
            return f"it is neither a time nor one of {', '.join(words)}"
        return "" if moment.tzinfo else "a time needs its zone, such as Z or +01:00"

    return check


def _size(text: str | int) -> str:
    try:
        return "" if units.size(text) > 0 else "it must be more than 0"
    except ValueError as error:
        return str(error)


def _roll(text: str) -> str:
    try:
        roll.Roll.parse(text)
    except ValueError as error:
        return str(error)
    return ""


def _database(url: str) -> str:
    parts = urlsplit(url.removeprefix("jdbc:"))
    if parts.scheme not in ("postgresql", "postgres", "sqlite"):
        return "the databases are PostgreSQL (postgresql://) and SQLite (sqlite:///)"
    if parts.password or {"password", "sslpassword"} & {name.lower() for name in parse_qs(parts.query)}:
        return "it contains a password, and anyone may read a job's spec; put the name of a variable into password_env instead"
    if parts.scheme == "sqlite" and (parts.netloc or parts.path in ("", "/", "/:memory:")):
        return "SQLite needs the path of a file after three slashes"
    return ""


def _registry(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return "it is not the address of a web server"
    return "it contains a password; set kafka.schema_registry where peers run instead" if parts.password else ""


def _variable(name: str) -> str:
    return (
        ""
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        else "it is not the name of a variable (write the name, not the password)"
    )


def _columns_given(names: list[str]) -> str:
    return "" if names and all(names) else "it names no column"


def _column(name: str) -> str:
    return "" if name else "it is empty"


def _character(text: str) -> str:
    return "" if len(text.encode()) == 1 else "it must be one character that takes one byte (a tab as an actual tab)"


def _character_or_none(text: str) -> str:
    return _character(text) if text else ""


def _columns(columns: dict[str, Any]) -> str:
    """Kinds and settings of generated columns; the generator checks the values of the settings when it starts."""
    for name, given in columns.items():
        settings = {"kind": given} if isinstance(given, str) else given
        kind = settings.get("kind") if isinstance(settings, dict) else None
        if kind not in GENERATED:
            return f"column {name!r}: its kind is one of {', '.join(GENERATED)}{near(str(kind), list(GENERATED))}"
        for setting in settings:
            if setting not in ("kind", *GENERATED[kind]):
                return f"column {name!r}: kind {kind} has {', '.join(GENERATED[kind])}, not {setting}"
    return ""


def _from(least: int) -> Callable[[Any], str]:
    return lambda number: "" if number >= least else f"it must be at least {least}"


def _words(*words: str) -> tuple[Any, str]:
    return Literal[words], ", ".join(words[:-1]) + " or " + words[-1]


GENERATED = {
    "sequence": ("start", "step"),
    "key": ("distinct", "prefix"),
    "number": ("min", "max"),
    "integer": ("min", "max"),
    "boolean": ("share",),
    "choice": ("of",),
    "moment": ("start", "step"),
}
"""The kinds of columns that the generator makes, and their settings."""

CODECS = {
    "parquet": ("snappy", "zstd", "gzip", "lz4", "brotli", "none"),
    "json": ("gzip", "bz2", "zstd", "lz4", "none"),
    "csv": ("gzip", "bz2", "zstd", "lz4", "none"),
}
"""Compressions of output files, by format."""

_TEXT = "a text"
_CHARACTER = "a single character"
_CSV = ("csv",)
_SCHEMA = Option(str, 'columns and types, such as "carrier string, dep_delay double"')
_REGISTERED = ("avro", "protobuf")
_REGISTRY = Option(
    str,
    'the address of a schema registry, such as "http://registry:8081"',
    formats=_REGISTERED,
    check=_registry,
    secret=True,
)
LOGIN = {
    "url": Option(
        str,
        "postgresql://host/name or sqlite:////path, without a password",
        required=True,
        check=_database,
        secret=True,
    ),
    "user": Option(str, "the name of a database user", check=_column),
    "password_env": Option(str, "the name of an environment variable", check=_variable, secret=True),
}
"""Where a database is, and who logs in: as an input, an output, and a store of state."""
_OFFSETS = 'a time with its zone ("2026-01-31T08:00:00Z") or {partition: offset}'

OPTIONS: dict[str, dict[Use, dict[str, Option]]] = {
    "files": {
        "input": {
            "path": Option(str | list[str], "a path, a glob, or a list of them", required=True, check=_paths),
            "format": Option(*_words("csv", "json", "parquet", "text"), required=True),
            "schema": msgspec.structs.replace(_SCHEMA, formats=("csv", "json", "parquet"), required_by=("json",)),
            "header": Option(bool, "true or false", formats=_CSV),
            "sep": Option(str, _CHARACTER, formats=_CSV, check=_character),
            "quote": Option(str, f"{_CHARACTER}, or empty for none", formats=_CSV, check=_character_or_none),
            "escape": Option(str, f"{_CHARACTER}, or empty for none", formats=_CSV, check=_character_or_none),
            "nullValue": Option(str, _TEXT, formats=_CSV),
            "encoding": Option(str, _TEXT, formats=("csv", "json", "text")),
            "multiLine": Option(bool, "true or false", formats=_CSV),
            "split_size": Option(str | int, 'a size such as "4 MiB"', check=_size),
        },
        "output": {
            "path": Option(str, "the path of a directory", required=True, check=_one_path),
            "format": Option(*_words("parquet", "json", "csv"), required=True),
            "mode": Option(*_words("error", "append", "overwrite")),
            "header": Option(bool, "true or false", formats=_CSV),
            "compression": Option(str, "the name of a codec that the format has"),
            "roll": Option(str, roll.WANTED, check=_roll),
        },
    },
    "kafka": {
        "input": {
            "topic": Option(str, "the name of a topic", required=True, check=_topic),
            "format": Option(*_words("json", "raw", "avro", "protobuf"), required=True),
            "schema": msgspec.structs.replace(_SCHEMA, formats=("json", *_REGISTERED)),
            "registry": _REGISTRY,
            "start": Option(
                str | dict[str, int],
                f'"earliest", "latest", {_OFFSETS}',
                required=True,
                check=_position("earliest", "latest"),
            ),
            "end": Option(
                str | dict[str, int],
                f'"latest" (as it is at submission), "marker" (an end marker), {_OFFSETS}; without it the job never ends',
                check=_position("latest", "marker"),
            ),
        },
        "output": {
            "topic": Option(str, "the name of a topic", required=True, check=_topic),
            "format": Option(*_words("json", "raw", "avro", "protobuf"), required=True),
            "registry": _REGISTRY,
            "subject": Option(*_words("topic", "record", "topic_record"), formats=_REGISTERED),
            "value_schema": Option(str, "an Avro schema as JSON", formats=("avro",), check=_column),
            "register": Option(bool, "true or false", formats=_REGISTERED),
            "key": Option(str, "the name of a column", check=_column),
            "key_partitioner": Option(*_words("crc32", "murmur2")),
            "partitions": Option(int, "a number from 1 on", check=_from(1)),
            "end_marker": Option(bool, "true or false"),
            "independent": Option(bool, "true or false"),
            "lineage": Option(bool, "true or false"),
        },
    },
    "generator": {
        "input": {
            "count": Option(int, "a number of rows", required=True, check=_from(0)),
            "seed": Option(int, "a whole number"),
            "rate": Option(int | float, "rows a second", check=lambda rate: "" if rate > 0 else "it must be above 0"),
            "columns": Option(dict[str, Any], "kinds (or kinds with their settings) by column", check=_columns),
        },
    },
    "sql": {
        "input": {
            **LOGIN,
            "table": Option(str, "the name of a table", check=_column),
            "query": Option(str, "one SELECT", check=_column),
            "schema": _SCHEMA,
            "split_by": Option(str, "the name of a column", check=_column),
            "splits": Option(int, "a number from 1 on", check=_from(1)),
        },
        "output": {
            **LOGIN,
            "table": Option(str, "the name of a table", required=True, check=_column),
            "mode": Option(*_words("append", "upsert")),
            "key": Option(list[str], "a column or a list of columns", check=_columns_given),
        },
    },
    "blackhole": {"output": {}},
    "console": {"output": {"rows": Option(int, "a number from 1 on", check=_from(1))}},
}
"""Connector -> its uses -> the options that it has in each."""


def together(connector: str | None, use: Use, options: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with options that do not fit together, and the fix; None: nothing."""
    if connector == "files" and use == "output" and "roll" in options and options.get("mode") == "overwrite":
        return (
            'files: roll publishes files while the job runs, and mode="overwrite" only when it has ended',
            "remove roll, or give another mode",
        )
    if connector != "sql":
        return None
    if use == "input" and ("table" in options) == ("query" in options):
        return "sql as an input reads either a table or a query", "give one of the two"
    if use == "input" and "splits" in options and "split_by" not in options:
        return "sql: splits needs split_by", "name the column by whose values the input is split"
    if use == "output" and (options.get("mode") == "upsert") != ("key" in options):
        return 'sql: key and mode="upsert" belong together', 'give both, or neither (mode="append")'
    return None
