"""The functions by which a user declares a job's inputs and outputs: ``files``, ``kafka``, ``sql`` and the others.

Here a connector is only a name with options, plain data in the job's spec. :mod:`sardonyx.connectors.options` says which
options each connector accepts, and :mod:`sardonyx.connectors.registry` finds the code that reads and writes. An option that is
not given is left out of the spec, so that the connector's own default applies.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec

import msgspec

from sardonyx.connectors.options import CODECS, LOGIN, OPTIONS, SCHEME, Option, Use, together
from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.errors import JobInvalid, SardonyxError
from sardonyx.core.spec import LETTERS_FORMAT, LETTERS_ORIGINS, is_custom
from sardonyx.core.text import near, nearest
from sardonyx.runtime.arguments import match_arguments

P = ParamSpec("P")

Position = str | datetime | Mapping[int, int]
"""Where in a topic: ``earliest`` (start), ``latest``, a time with its zone, or an offset for each partition."""


class Connector(msgspec.Struct, frozen=True):
    """A connector as declared: its name and the options that were given."""

    name: str
    options: dict[str, Any] = {}
    problems: tuple[SardonyxError, ...] = ()
    """Arguments that the declaring function does not have; the job reports them with its other problems."""


def _declares(function: Callable[P, Connector]) -> Callable[P, Connector]:
    """Let a declaring function collect wrong arguments in ``problems`` of what it gives, instead of raising for the first."""
    signature = inspect.signature(function)

    @wraps(function)
    def declared(*args: P.args, **kwargs: P.kwargs) -> Connector:
        called = f"{function.__name__}()"
        values, problems = match_arguments(signature, args, kwargs, called=called, code="SX-JOB-CONNECTOR")
        made = function(**values)  # type: ignore[call-arg]  # all parameters, by name
        return msgspec.structs.replace(made, problems=problems) if problems else made

    return declared


@_declares
def files(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str,  # noqa: A002 - what everybody calls it
    schema: str | None = None,
    header: bool | None = None,
    sep: str | None = None,
    quote: str | None = None,
    escape: str | None = None,
    nullValue: str | None = None,  # noqa: N803 - Spark's own name, as in every Spark job
    encoding: str | None = None,
    multiLine: bool | None = None,  # noqa: N803 - Spark's own name
    split_size: str | None = None,
    mode: Literal["error", "append", "overwrite"] | None = None,
    compression: str | None = None,
    roll: str | None = None,
) -> Connector:
    """Files as input, or a directory of files as output. Relative paths are relative to the spec.

    Args:
        path: a file, a directory or a glob, or several; as output the directory.
        format: input: ``csv``, ``json`` (a record a line), ``parquet`` or ``text``; output: all but text.
        schema: input: columns and their Spark types, ``"carrier string, dep_delay double"``; may name just some of a
            file's columns. Needed for json; without it csv gives strings, and parquet what the files say.
        header: csv: whether the first line names the columns. Input: false by default; output: true.
        sep: csv input: the separator between two values, ``,`` by default; this and the next five are as in Spark's reader.
        quote: csv input: the character around values that contain a separator.
        escape: csv input: the character before a quote within quotes.
        nullValue: csv input: how a missing value is written.
        encoding: input: of csv, json and text; UTF-8 by default.
        multiLine: csv input: whether a value may contain line breaks; each file is then one split.
        split_size: input: the size of a split, such as ``"4 MiB"``.
        mode: output: what to do if the directory is not empty: ``error`` (the default), ``append``, ``overwrite``.
        compression: output: the codec of the format, such as ``zstd`` or ``gzip``.
        roll: output: how large or old a file gets before readers see it: ``"128 MiB or 5 min"``, ``"5 min"``, or
            ``"batch"`` for a file from each batch. By default ``"128 MiB or 1 min"`` in a job that never ends, and a file
            from each batch in others.
    """
    return _connector("files", locals())


@_declares
def kafka(
    topic: str,
    *,
    format: str = "json",  # noqa: A002 - what everybody calls it
    schema: str | None = None,
    start: Position | None = None,
    end: Position | None = None,
    key: str | None = None,
    key_partitioner: Literal["crc32", "murmur2"] | None = None,
    partitions: int | None = None,
    registry: str | None = None,
    subject: Literal["topic", "record", "topic_record"] | None = None,
    value_schema: str | None = None,
    register: bool | None = None,
    end_marker: bool | None = None,
    independent: bool | None = None,
    lineage: bool | None = None,
) -> Connector:
    """A Kafka topic of the user's, one record a message; it is read and written in place.

    Args:
        topic: its name. An output topic is created if it is missing.
        format: ``json`` (an object a record), ``raw`` (the bytes), ``avro`` or ``protobuf`` (with a schema registry).
        schema: input, all but raw: columns and their Spark types. Without it, json: the records settle the types, in their
            order; avro and protobuf: they are those of the schemas that the records were written with.
        start: input, required: ``"earliest"``, ``"latest"``, a time with its zone, or offsets by partition.
        end: input: where the job ends: ``"latest"`` (as it is at submission), a time, offsets, or ``"marker"``: at the first
            end marker of each partition, which another job writes with ``end_marker``. None: it never ends.
        key: output: the column that becomes the record's key.
        key_partitioner: output: what chooses a record's partition by its key: ``crc32`` (the default), as other clients on
            librdkafka, or ``murmur2``, as producers in Java. A record without a key goes to any partition.
        partitions: output: how many the topic gets if it has to be created.
        registry: avro and protobuf: address of the schema registry, such as ``"http://registry:8081"``. Without it the
            setting ``kafka.schema_registry`` of the peer that runs the task.
        subject: output, avro and protobuf: the name under which a schema is registered: the topic's (the default), the
            record's, or both.
        value_schema: output, avro: the schema as JSON. Without it, it follows from the types of the rows.
        register: output, avro and protobuf: whether to register a schema that the registry does not have; true by
            default. False: it must be there already.
        end_marker: output: whether the job writes a message without key and value, with the header ``sx-end``, to the end of
            each partition when it completes or is stopped. A job with ``end="marker"`` reads up to there.
        independent: output: whether it runs as a task of its own, with a queue, a consumer group and transactions of its own.
            Then a topic that cannot be written stops only this output. An output with ``on_error`` always does.
        lineage: output of a job with ``lineage=True``: whether each record has the header ``sx-from``, which says from which
            offsets its batch was made. Then ``sardonyx job trace`` names the records that may hold something of one.
    """
    return _connector("kafka", locals())


@_declares
def generator(
    count: int,
    *,
    seed: int | None = None,
    rate: float | None = None,
    columns: Mapping[str, Any] | None = None,
) -> Connector:
    """Generated rows, the same ones for the same seed: for trials and measurements.

    Args:
        count: how many rows.
        seed: 0 by default.
        rate: rows a second; None: as fast as they are read.
        columns: what each row holds: a kind, or a mapping with ``kind`` and its settings, by name; see ``GENERATED``.
    """
    return _connector("generator", locals())


@_declares
def sql(
    url: str,
    *,
    table: str | None = None,
    query: str | None = None,
    schema: str | None = None,
    split_by: str | None = None,
    splits: int | None = None,
    mode: Literal["append", "upsert"] | None = None,
    key: str | Sequence[str] | None = None,
    user: str | None = None,
    password_env: str | None = None,
) -> Connector:
    """A table of a database: PostgreSQL or SQLite. Needs ``sardonyx[sql]`` where peers run.

    Args:
        url: ``postgresql://host:5432/name`` or ``sqlite:////path/to/file``, with or without ``jdbc:`` in front. No
            password in it: everyone who can read ZooKeeper could read it.
        table: its name, with its schema in front if need be (``sales.orders``).
        query: input, instead of table: one SELECT.
        schema: input: columns and their Spark types, as in ``files``; may name just some of them. Without it, what the
            database says.
        split_by: input: the column by whose values the input is split, to read it in parallel.
        splits: input: how many splits; by default each has about 50,000 rows.
        mode: output: ``append`` (the default) or ``upsert``: a row replaces the one with the same key.
        key: output, upsert: the column or columns that identify a row; the table must declare them unique.
        user: the database user, unless the URL names it.
        password_env: the environment variable that holds the password, where peers and Spark workers run.
    """
    return _connector("sql", locals())


@_declares
def console(rows: int | None = None) -> Connector:
    """An output that prints rows where the peer runs, to watch a job. What it prints is not exactly once.

    Args:
        rows: how many of a batch, at most; 20 by default.
    """
    return _connector("console", locals())


@_declares
def blackhole() -> Connector:
    """An output that discards its rows: for measurements."""
    return Connector("blackhole")


def _connector(name: str, given: Mapping[str, Any]) -> Connector:
    return Connector(name, normal(name, {key: value for key, value in given.items() if value is not None}))


def normal(connector: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the form that a spec has, whatever they were written in (Python, YAML, TOML, JSON)."""
    found = {str(key): _plain(value) for key, value in options.items()}
    if connector == "kafka":
        found.setdefault("format", "json")
    if connector == "sql" and isinstance(found.get("key"), str):
        found["key"] = [found["key"]]
    return found


def absolute(connector: str, options: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The same options with relative paths made absolute against ``base``."""
    found = dict(options)
    if connector == "files" and "path" in found:
        path = found["path"]
        found["path"] = [_absolute(one, base) for one in path] if isinstance(path, list) else _absolute(path, base)
    if connector == "sql" and isinstance(url := found.get("url"), str):
        scheme, mark, path = url.removeprefix("jdbc:").partition(":///")
        if scheme == "sqlite" and mark:
            found["url"] = f"sqlite:///{_absolute(path, base)}"
    return found


def paths_of(options: Mapping[str, Any]) -> list[str]:
    """The path or paths of a files connector, as a list."""
    path = options.get("path", [])
    return [str(one) for one in path] if isinstance(path, list) else [str(path)]


def _absolute(path: Any, base: Path) -> Any:
    if not isinstance(path, str) or SCHEME.match(path) or not path:
        return path
    return os.path.normpath(base / path)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def problems_of(connector: str | None, use: Use, options: Mapping[str, Any]) -> list[SardonyxError]:
    """Everything that is wrong with the connector of an input or output; the caller adds the task."""
    if is_custom(connector):  # only the user's class knows its options
        return []
    if connector not in OPTIONS:
        known = [name for name, uses in OPTIONS.items() if use in uses]
        wrong = f"there is no connector {connector!r}" if connector else f"an {use} needs a connector"
        return [_problem(f"{wrong}{near(connector or '', known)}", f"choose from {', '.join(known)}")]
    if options.get("format") == LETTERS_FORMAT and LETTERS_ORIGINS in options and use == "input":
        return _problems_of_letters(options)
    if use not in OPTIONS[connector]:
        known = [name for name, uses in OPTIONS.items() if use in uses]
        return [_problem(f"{connector} cannot be an {use}", f"choose from {', '.join(known)}")]
    known_options = OPTIONS[connector][use]
    unknown = [name for name in options if name not in known_options]
    meant = {nearest(name, known_options) for name in unknown}  # a mistyped option is not also a missing one
    found = [_unknown(connector, use, name) for name in unknown]
    for name, option in known_options.items():
        if name in options:
            found += _value_problems(connector, name, option, options)
        elif name in meant:
            continue
        elif option.required or options.get("format") in option.required_by:
            found.append(_problem(f"{connector} as an {use} needs {name}", f"add {name}: {option.wanted}"))
    if not found and (clash := together(connector, use, options)):
        found.append(_problem(*clash))
    return found


def login_problems(given: Mapping[str, Any]) -> list[SardonyxError]:
    """What is wrong with the address of a database, and who logs in there; both are of the right types."""
    return [problem for name in LOGIN if name in given for problem in _value_problems("sql", name, LOGIN[name], given)]


def _problems_of_letters(options: Mapping[str, Any]) -> list[SardonyxError]:
    """The same for an input of dead letters, which only a redo declares. Each topic of origin has the options of an input."""
    origins = options[LETTERS_ORIGINS]
    if not isinstance(origins, dict) or not all(isinstance(origin, dict) for origin in origins.values()):
        return [_problem(f"kafka: {LETTERS_ORIGINS} cannot be {origins!r}", "submit the job by `sardonyx dlq redo`")]
    own = {name: value for name, value in options.items() if name != LETTERS_ORIGINS} | {"format": "json"}
    return [problem for each in (own, *origins.values()) for problem in problems_of("kafka", "input", each)]


def _unknown(connector: str, use: Use, name: str) -> SardonyxError:
    known = list(OPTIONS[connector][use])
    other: Use = "output" if use == "input" else "input"
    if name in OPTIONS[connector].get(other, {}):
        return _problem(f"{connector} takes {name} only as an {other}", f"remove {name}")
    fix = f"choose from its options as an {use}: {', '.join(known)}" if known else "remove it"
    return _problem(f"{connector} has no option {name!r}{near(name, known)}", fix)


def _value_problems(connector: str, name: str, option: Option, options: Mapping[str, Any]) -> list[SardonyxError]:
    value = options[name]
    format_ = options.get("format")
    if option.formats and isinstance(format_, str) and format_ not in option.formats:
        fix = f"remove {name}; it belongs to {', '.join(option.formats)}"
        return [_problem(f"{connector}: format {format_} has no {name}", fix)]
    try:
        msgspec.convert(value, option.type)
    except msgspec.ValidationError:
        words = getattr(option.type, "__args__", ())
        hint = near(value, words) if isinstance(value, str) else ""
        return [_problem(f"{connector}: {name} cannot be {value!r}{hint}", f"give {option.wanted}")]
    if name == "schema":
        try:
            arrow_schema(value)
        except JobInvalid as error:
            return error.problems
        return []
    wrong = option.check(value)
    codecs = CODECS.get(str(format_), ())
    if name == "compression" and codecs and value not in codecs:
        wrong = f"{format_} has {', '.join(codecs)}"
    fix = f"give {option.wanted}"
    shown = "what it is" if option.secret else repr(value)
    return [_problem(f"{connector}: {name} cannot be {shown}", fix, cause=wrong)] if wrong else []


def _problem(message: str, fix: str, cause: str = "") -> SardonyxError:
    return SardonyxError("SX-JOB-CONNECTOR", message, cause=cause, fix=fix)
