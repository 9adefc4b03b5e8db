"""Whether the files that a job names are there, as far as it can be seen from here, before anything is started."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from glob import glob, has_magic
from itertools import islice
from pathlib import Path
from typing import Any

from sardonyx.document import near
from sardonyx.errors import InputError, JobInvalid, OutputError, SardonyxError
from sardonyx.media import paths_of
from sardonyx.schema import arrow_schema
from sardonyx.spec import JobSpec, TaskSpec

_HEADERS_READ = 100
"""Of how many files the header is looked at; the rest is found out when it is read."""


def check_places(spec: JobSpec) -> None:
    """Check a valid job against the file system.

    Raises:
        JobInvalid: with every problem: ``SX-INPUT-MISSING``, ``SX-INPUT-SCHEMA``, ``SX-OUTPUT-NOT-EMPTY``,
            ``SX-OUTPUT-NOT-DIRECTORY``.
    """
    problems: list[SardonyxError] = []
    for task in spec.catalog:
        if task.medium == "files" and task.type == "input":
            problems += _input(task)
        elif task.medium == "files" and task.type == "output":
            problems += _output(task)
    if problems:
        raise JobInvalid(problems)


def found_files(path: str) -> list[str]:
    """The files that a path, a directory or a glob stands for, sorted; hidden ones and those with ``_`` left out."""
    found: list[str] = []
    for root in _matches(path):
        if not Path(root).is_dir():
            found.append(root)
            continue
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not _hidden(name))
            found += [str(Path(folder, name)) for name in sorted(names) if not _hidden(name)]
    return list(dict.fromkeys(found))


def _matches(path: str) -> list[str]:
    if Path(path).exists():
        return [path]
    return sorted(glob(path, recursive=True)) if has_magic(path) else []  # noqa: PTH207 - the pattern is absolute


def _hidden(name: str) -> bool:
    """What Spark leaves out when it reads a directory."""
    return name.startswith((".", "_"))


def _input(task: TaskSpec) -> Iterator[SardonyxError]:
    for path in paths_of(task.options):
        if not _matches(path):
            yield InputError(
                "SX-INPUT-MISSING",
                f"task {task.name!r}: there is no file {path}",
                cause=_how_far(Path(path)),
                fix="correct the path (relative ones are relative to the spec), or put the file there",
                where={"task": task.name, "path": path},
            )
        elif task.options.get("format") == "csv" and task.options.get("header") and "schema" in task.options:
            for file in islice(found_files(path), _HEADERS_READ):
                yield from _header(task, file)


def _header(task: TaskSpec, file: str) -> Iterator[SardonyxError]:
    columns = csv_columns(file, task.options)
    if not columns:  # an empty file has no rows, and needs no header
        return
    wanted = arrow_schema(str(task.options["schema"])).names
    missing = [name for name in wanted if name not in columns]
    if missing:
        yield InputError(
            "SX-INPUT-SCHEMA",
            f"task {task.name!r}: {file} has no column {', '.join(map(repr, missing))}{near(missing[0], columns)}",
            cause=f"its columns are {', '.join(columns)}",
            fix="name columns in schema as they stand in the file's first line",
            where={"task": task.name, "path": file},
        )


def csv_columns(file: str, options: dict[str, Any]) -> list[str] | None:
    """The names in a CSV file's first line; None if it is empty, compressed or not to be read from here."""
    if file.endswith((".gz", ".bz2", ".zst", ".xz", ".lz4", ".snappy", ".deflate")):
        return None
    encoding = str(options.get("encoding", "utf-8"))
    if encoding.lower().replace("-", "") == "utf8":
        encoding = "utf-8-sig"  # a byte order mark is no part of a name
    sep = {"\\t": "\t"}.get(str(options.get("sep", ",")), str(options.get("sep", ",")))
    quote = str(options.get("quote", '"'))
    try:
        with Path(file).open(encoding=encoding, newline="") as lines:
            if len(sep) > 1 or len(quote) > 1:
                return next(lines, "").rstrip("\r\n").split(sep)
            if not quote:
                return next(csv.reader(lines, delimiter=sep, quoting=csv.QUOTE_NONE), [])
            return next(csv.reader(lines, delimiter=sep, quotechar=quote), [])
    except (OSError, LookupError, UnicodeError, csv.Error):
        return None


def _output(task: TaskSpec) -> Iterator[SardonyxError]:
    path = Path(str(task.options.get("path")))
    where = {"task": task.name, "path": str(path)}
    parent = next((parent for parent in (path, *path.parents) if parent.exists()), path)
    if not parent.is_dir():
        yield OutputError(
            "SX-OUTPUT-NOT-DIRECTORY",
            f"task {task.name!r}: {parent} is a file, and results go into a directory",
            fix="give another path, or move the file away",
            where=where,
        )
    elif path.is_dir() and task.options.get("mode", "error") == "error":
        there = sorted(
            entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.name != "_sardonyx"
        )
        if there:
            yield OutputError(
                "SX-OUTPUT-NOT-EMPTY",
                f"task {task.name!r}: {path} is not empty",
                cause=f"it holds {', '.join(there[:3])}{f' and {len(there) - 3} more' if len(there) > 3 else ''}",
                fix='give mode="append" to add to it, mode="overwrite" to replace it, or another path',
                where=where,
            )


def _how_far(path: Path) -> str:
    """Which part of a path is there, and what lies beside the part that is not."""
    known = next(parent for parent in path.parents if parent.exists())
    missing = path.relative_to(known).parts[0]
    try:
        beside = [entry.name for entry in islice(known.iterdir(), 1000)] if known.is_dir() else []
    except OSError:
        beside = []
    return f"{known} is there, but holds no {missing}{near(missing, beside)}"
