"""What may stand at the ends of a job: how a user declares it, and what each medium accepts.

Here a medium is only a name with options, plain data in the job's spec; the code that reads and writes is in
``queues/media``. Options that are not given are left out of the spec, and the medium's own defaults hold.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from sardonyx import units
from sardonyx.errors import JobInvalid, SardonyxError
from sardonyx.schema import arrow_schema

Use = Literal["input", "output"]
Position = str | datetime | Mapping[int, int]
"""Where in a topic: ``earliest`` (start), ``latest``, a time with its zone, or an offset for each partition."""


class Medium(msgspec.Struct, frozen=True):
    """A medium as declared: its name and the options that were given."""

    name: str
    options: dict[str, Any] = {}


def files(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str,  # noqa: A002 - what everybody calls it
    schema: str | None = None,
    header: bool | None = None,
    sep: str | None = None,
    quote: str | None = None,
    escape: str | None = None,
    nullValue: str | None = None,  # noqa: N803 - Spark's own name, in which it stands in every Spark job
    encoding: str | None = None,
    multiLine: bool | None = None,  # noqa: N803 - likewise
    split_size: str | None = None,
    mode: Literal["error", "append", "overwrite"] | None = None,
    compression: str | None = None,
) -> Medium:
    """Files as input, or a directory of files as output. Relative paths are relative to the spec.

    Args:
        path: a file, a directory or a glob, or several; as output the directory.
        format: input: ``csv``, ``json`` (a record a line), ``parquet`` or ``text``; output: all but text.
        schema: input: columns and their Spark types, ``"carrier string, dep_delay double"``; may name just some of a
            file's columns. Needed for json; without it csv gives strings, and parquet what the files say.
        header: csv: whether the first line names the columns. Input: false by default; output: true.
        sep: csv input: what stands between two values, ``,`` by default; this and the next five are as in Spark's reader.
        quote: csv input: what values are put in that hold a separator.
        escape: csv input: what stands before a quote within quotes.
        nullValue: csv input: how a missing value is written.
        encoding: input: of csv, json and text; UTF-8 by default.
        multiLine: csv input: whether a value may hold line breaks; each file is then read at one go.
        split_size: input: how much is read at one go, such as ``"4 MiB"``.
        mode: output: what to do if the directory holds something: ``error`` (the default), ``append``, ``overwrite``.
        compression: output: the codec of the format, such as ``zstd`` or ``gzip``.
    """
    return _medium("files", locals())


def kafka(
    topic: str,
    *,
    format: str = "json",  # noqa: A002 - what everybody calls it
    schema: str | None = None,
    start: Position | None = None,
    end: Position | None = None,
    key: str | None = None,
    partitions: int | None = None,
) -> Medium:
    """A Kafka topic that belongs to the user, one record a message; it is read and written in place.

    Args:
        topic: its name. As output it is created if it is missing.
        format: ``json`` (an object a record) or ``raw`` (the bytes).
        schema: input, json: columns and their Spark types. Without it they are inferred.
        start: input, required: ``"earliest"``, ``"latest"``, a time with its zone, or offsets by partition.
        end: input: where the job ends: ``"latest"`` (as it is at submission), a time, offsets. None: it never ends.
        key: output: the column that becomes the record's key.
        partitions: output: how many the topic gets if it has to be created.
    """
    return _medium("kafka", locals())


def generator(
    count: int,
    *,
    seed: int | None = None,
    rate: float | None = None,
    columns: Mapping[str, Any] | None = None,
) -> Medium:
    """Rows made up on the spot, the same ones for the same seed: for trying and measuring.

    Args:
        count: how many rows.
        seed: 0 by default.
        rate: rows a second; None: as fast as they are taken.
        columns: what each row holds: a kind, or a mapping with ``kind`` and its settings, by name; see ``GENERATED``.
    """
    return _medium("generator", locals())


def blackhole() -> Medium:
    """An output that forgets what it is given: for measuring."""
    return Medium("blackhole")


def is_own(medium: str | None) -> bool:
    """Whether a medium is a class of the user's, named as ``module:Class``."""
    return medium is not None and ":" in medium


def _medium(name: str, given: Mapping[str, Any]) -> Medium:
    return Medium(name, normal(name, {key: value for key, value in given.items() if value is not None}))


def normal(medium: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the one form in which they stand in a spec, however they were written (Python, YAML, TOML)."""
    found = {str(key): _plain(value) for key, value in options.items()}
    if medium == "kafka":
        found.setdefault("format", "json")
    return found


def absolute(medium: str, options: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The same options with relative paths of files laid against ``base``."""
    found = dict(options)
    if medium == "files" and "path" in found:
        path = found["path"]
        found["path"] = [_absolute(one, base) for one in path] if isinstance(path, list) else _absolute(path, base)
    return found


def paths_of(options: Mapping[str, Any]) -> list[str]:
    """The path or paths of a files medium, as a list."""
    path = options.get("path", [])
    return [str(one) for one in path] if isinstance(path, list) else [str(path)]


def _absolute(path: Any, base: Path) -> Any:
    if not isinstance(path, str) or _SCHEME.match(path) or not path:
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


# --- What each medium accepts -----------------------------------------------------------------------------------------

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Option(msgspec.Struct, frozen=True):
    """One option of a medium."""

    type: Any
    """What msgspec takes as a type."""
    wanted: str
    """What it may be, in words."""
    required: bool = False
    formats: tuple[str, ...] = ()
    """The formats that know it; empty: all."""
    required_by: tuple[str, ...] = ()
    """The formats that cannot do without."""
    check: Callable[[Any], str] = lambda _: ""
    """What is wrong with a value of the right type; empty: nothing."""


def _one_path(path: str) -> str:
    if _SCHEME.match(path):
        return "only paths of the file system can be read and written so far (a mounted one will do)"
    return "" if path else "it is empty"


def _paths(path: str | list[str]) -> str:
    if not path:
        return "it is empty"
    return next(filter(None, map(_one_path, [path] if isinstance(path, str) else path)), "")


def _topic(topic: str) -> str:
    return "" if _TOPIC.fullmatch(topic) and topic not in (".", "..") else "Kafka has no such topic names"


def _position(*words: str) -> Callable[[Any], str]:
    def check(position: str | dict[str, int]) -> str:
        if isinstance(position, dict):
            good = position and all(key.isdecimal() and offset >= 0 for key, offset in position.items())
            return "" if good else "offsets are numbers from 0 on, by the number of their partition"
        if position in words:
            return ""
        try:
            moment = datetime.fromisoformat(position)
        except ValueError:
            return "it is neither a known word nor a time"
        return "" if moment.tzinfo else "a time needs its zone, such as Z or +01:00"

    return check


def _size(text: str | int) -> str:
    try:
        return "" if units.size(text) > 0 else "it must be more than nothing"
    except ValueError as error:
        return str(error)


def _column(name: str) -> str:
    return "" if name else "it is empty"


def _character(text: str) -> str:
    return "" if len(text.encode()) == 1 else "it must be one character that takes one byte (a tab as an actual tab)"


def _character_or_none(text: str) -> str:
    return _character(text) if text else ""


def _columns(columns: dict[str, Any]) -> str:
    """Kinds and settings of generated columns; whether the settings fit is found out when rows are made."""
    for name, given in columns.items():
        settings = {"kind": given} if isinstance(given, str) else given
        kind = settings.get("kind") if isinstance(settings, dict) else None
        if kind not in GENERATED:
            return f"column {name!r}: its kind is one of {', '.join(GENERATED)}{_near(str(kind), list(GENERATED))}"
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
"""Kinds of columns that the generator makes, and their settings."""

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
        },
    },
    "kafka": {
        "input": {
            "topic": Option(str, "the name of a topic", required=True, check=_topic),
            "format": Option(*_words("json", "raw"), required=True),
            "schema": msgspec.structs.replace(_SCHEMA, formats=("json",)),
            "start": Option(
                str | dict[str, int],
                f'"earliest", "latest", {_OFFSETS}',
                required=True,
                check=_position("earliest", "latest"),
            ),
            "end": Option(
                str | dict[str, int],
                f'"latest" (as it is at submission), {_OFFSETS}; without it the job never ends',
                check=_position("latest"),
            ),
        },
        "output": {
            "topic": Option(str, "the name of a topic", required=True, check=_topic),
            "format": Option(*_words("json", "raw"), required=True),
            "key": Option(str, "the name of a column", check=_column),
            "partitions": Option(int, "a number from 1 on", check=_from(1)),
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
    "blackhole": {"output": {}},
}
"""Medium -> what it can be used as -> the options that it then has."""


def problems_of(medium: str | None, use: Use, options: Mapping[str, Any]) -> list[SardonyxError]:
    """Everything that is wrong with a medium as it stands at one end of a job; the caller adds where."""
    if is_own(medium):  # what it takes, only its class knows
        return []
    if medium not in OPTIONS:
        known = [name for name, uses in OPTIONS.items() if use in uses]
        wrong = f"there is no medium {medium!r}" if medium else f"an {use} needs a medium"
        return [_problem(f"{wrong}{_near(medium or '', known)}", f"an {use} can be {', '.join(known)}")]
    if use not in OPTIONS[medium]:
        known = [name for name, uses in OPTIONS.items() if use in uses]
        return [_problem(f"{medium} cannot be an {use}", f"an {use} can be {', '.join(known)}")]
    known_options = OPTIONS[medium][use]
    found = [_unknown(medium, use, name) for name in options if name not in known_options]
    for name, option in known_options.items():
        if name in options:
            found += _value_problems(medium, name, option, options)
        elif option.required or options.get("format") in option.required_by:
            found.append(_problem(f"{medium} as an {use} needs {name}", f"{name} is {option.wanted}"))
    return found


def _unknown(medium: str, use: Use, name: str) -> SardonyxError:
    known = list(OPTIONS[medium][use])
    other: Use = "output" if use == "input" else "input"
    if name in OPTIONS[medium].get(other, {}):
        return _problem(f"{medium} takes {name} only as an {other}", f"leave {name} out")
    fix = f"as an {use} it has {', '.join(known)}" if known else "leave it out"
    return _problem(f"{medium} has no option {name!r}{_near(name, known)}", fix)


def _value_problems(medium: str, name: str, option: Option, options: Mapping[str, Any]) -> list[SardonyxError]:
    value = options[name]
    format_ = options.get("format")
    if option.formats and isinstance(format_, str) and format_ not in option.formats:
        fix = f"leave {name} out; it belongs to {', '.join(option.formats)}"
        return [_problem(f"{medium}: format {format_} has no {name}", fix)]
    try:
        msgspec.convert(value, option.type)
    except msgspec.ValidationError:
        words = getattr(option.type, "__args__", ())
        hint = _near(value, words) if isinstance(value, str) else ""
        return [_problem(f"{medium}: {name} cannot be {value!r}{hint}", f"{name} is {option.wanted}")]
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
    fix = f"{name} is {option.wanted}"
    return [_problem(f"{medium}: {name} cannot be {value!r}", fix, cause=wrong)] if wrong else []


def _problem(message: str, fix: str, cause: str = "") -> SardonyxError:
    return SardonyxError("SX-JOB-MEDIUM", message, cause=cause, fix=fix)


def _near(name: str, known: Sequence[Any]) -> str:
    near = difflib.get_close_matches(name, [one for one in known if isinstance(one, str)], 1)
    return f"; did you mean {near[0]!r}?" if near else ""
