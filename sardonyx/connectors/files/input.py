"""Files as input: csv, json (one record a line), parquet and text. Each piece of a file can be read again.

``docs/connectors.md`` describes the options and the guarantees.
"""

from __future__ import annotations

import contextlib
import glob
import io
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from sardonyx.connectors import json_rows
from sardonyx.connectors.base import Split
from sardonyx.connectors.files import byte_ranges, csv_rows, parquet_rows
from sardonyx.connectors.files.csv_rows import Dialect, Misfit
from sardonyx.connectors.schema import arrow_schema
from sardonyx.connectors.usual import usual
from sardonyx.core import units
from sardonyx.core.errors import InputError

SPLIT_SIZE = "4 MiB"
"""This is some tens of thousands of records: one micro-batch."""

SMALLEST_PART = 128 << 10
"""A part with fewer bytes than this is not worth a worker of its own: the worker costs more than it saves."""

_TEXT = pa.schema([("value", pa.string())])


def files_of(paths: list[str]) -> list[str]:
    """List the files that paths, folders and globs name: each once, in a fixed order.

    A folder means the files in it and in its subfolders, except names that begin with ``_`` or ``.``, and ``lost+found``.

    Raises:
        InputError: ``SX-INPUT-MISSING`` if one of them matches nothing; ``SX-INPUT-UNREADABLE`` if a folder cannot be listed: its
            rows would be missing, and no user would know; ``SX-INPUT-AWAY`` if its share does not answer.
    """
    found: dict[str, None] = {}
    for path in paths:
        with byte_ranges.explained(path):
            is_there = Path(path).exists()
        if is_there:
            matches = [path]
        else:
            named = Path(path).parts
            _require_listed(named)
            matches = [
                one
                for one in sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - pathlib has no absolute patterns
                if all(_visible(part) or part in named for part in Path(one).parts)
            ]
            if not matches:
                raise byte_ranges.missing(path)
        for match in matches:
            with byte_ranges.explained(match):
                is_folder = Path(match).is_dir()
            found.update(dict.fromkeys(_below(match) if is_folder else [match]))
    return list(found)


def _require_listed(pattern: Sequence[str]) -> None:
    """Raise if a folder cannot be looked into in which a pattern looks: ``glob`` passes over it without a word.

    Args:
        pattern: its parts.
    """
    first = next((number for number, part in enumerate(pattern) if glob.has_magic(part)), len(pattern))
    for number, part in enumerate(pattern[first:], first):
        for folder in map(Path, glob.glob(str(Path(*pattern[:number])))):  # noqa: PTH207
            if not (_visible(folder.name) or folder.name in pattern):
                continue
            with byte_ranges.explained(str(folder)):
                if folder.is_dir():
                    _require_looked_into(folder, part)
        if part == "**":  # all below was looked at
            return


def _require_looked_into(folder: Path, part: str) -> None:
    """``part``: the pattern, or the name, of what is looked for in the folder."""
    if part == "**":
        deque(_below(str(folder)), maxlen=0)
    elif glob.has_magic(part):
        with os.scandir(folder):
            pass
    else:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(folder / part)


def _below(folder: str) -> Iterator[str]:
    seen: set[str] = set()
    for root, folders, names in os.walk(folder, onerror=_unlisted, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:  # a link that leads back up
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(filter(_visible, folders))
        yield from (str(Path(root, name)) for name in sorted(filter(_visible, names)))


def _unlisted(error: OSError) -> None:
    with byte_ranges.explained(str(error.filename)):
        raise error


def _visible(name: str) -> bool:
    return (
        not name.startswith(("_", ".")) and name != "lost+found"
    )  # which every file system has, and only root may list


class FilesInput:
    """A job's input files. It is sent to Spark workers, so it holds plain data only.

    Args:
        options: as in the spec: path, format, schema, split_size and, for csv, Spark's options.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        path = options["path"]
        self._paths: list[str] = [path] if isinstance(path, str) else list(path)
        self._format: str = options["format"]
        self._ddl: str | None = options.get("schema")
        self._split_size = units.size(options.get("split_size", SPLIT_SIZE))
        self._encoding: str = options.get("encoding", "utf-8")
        self._dialect = Dialect(
            header=options.get("header", False),
            sep=options.get("sep", ","),
            quote=options.get("quote", '"'),
            escape=options.get("escape", ""),
            null=options.get("nullValue"),
            multiline=options.get("multiLine", False),
        )
        if self._format == "json" and self._ddl is None:
            raise InputError(
                "SX-INPUT-SCHEMA",
                "json files need a schema",
                cause="types that are guessed from the content would differ between splits",
                fix='declare the columns: schema="name string, amount double"',
            )

    def splits(self) -> Iterator[Split]:
        """List everything there is to read, in pieces and in a fixed order: by file, then by place.

        Raises:
            InputError: ``SX-INPUT-MISSING``, ``SX-INPUT-AWAY``, ``SX-INPUT-UNREADABLE``, ``SX-INPUT-ENCODING``,
                ``SX-INPUT-LARGE``;
                ``SX-INPUT-SCHEMA`` if a file lacks a column, or if without a schema two files have different columns.
        """
        columns: tuple[str, Any] | None = None
        for path in files_of(self._paths):
            version = byte_ranges.version(path)
            data = {"path": path, **version}
            if version["size"] == 0:
                continue
            with byte_ranges.unchanged(path, data) as file:
                pieces, found = self._pieces(file, data)
            if self._ddl is None and found is not None:
                columns = columns or (path, found)
                if columns[1] != found:
                    raise _differ(columns[0], path)
            yield from pieces

    def _pieces(self, file: BinaryIO, data: dict[str, Any]) -> tuple[list[Split], Any]:
        """Return the pieces of one file, and its columns if the file names them."""
        path, size = data["path"], data["size"]
        if self._format == "parquet":
            found = parquet_rows.opened(file, path)
            schema = self._schema()
            if schema is not None:
                parquet_rows.check(found, schema, path)
            pieces = [
                Split({**data, "start": first, "end": end}, rows)
                for first, end, rows in parquet_rows.groups(found, self._split_size, schema, path)
            ]
            return pieces, usual(found.schema_arrow)
        columns = None
        if self._format == "csv":
            source, encoding = self._beginning(file, path)
            first, _ = self._first(source, encoding, path)
            if first is None:
                return [], None
            columns = [field for _, field in csv_rows.picks(first, self._schema(), self._dialect, path)]
        if self._whole(path):
            return [Split(data)], columns
        starts = range(0, size, self._split_size)
        return [Split({**data, "start": at, "end": min(at + self._split_size, size)}) for at in starts], columns

    def divide(self, data: dict[str, Any], most: int) -> list[dict[str, Any]] | None:
        """Divide a piece into smaller ranges of bytes or of Parquet row groups. None: the file cannot be divided."""
        if "start" not in data:
            return [data] if data["size"] < SMALLEST_PART else None
        start, end = data["start"], data["end"]
        parts = min(most, end - start if self._format == "parquet" else max(1, (end - start) // SMALLEST_PART))
        edges = [start + (end - start) * n // parts for n in range(parts + 1)]
        return [{**data, "start": low, "end": high} for low, high in itertools.pairwise(edges)]

    def read(self, data: dict[str, Any]) -> pa.Table:
        """Read the rows of one piece, in exactly the declared types. They are the same at every call, on any machine.

        Raises:
            InputError: ``SX-INPUT-CHANGED``, ``SX-INPUT-MISSING``, ``SX-INPUT-AWAY``, ``SX-INPUT-UNREADABLE``,
                ``SX-INPUT-LARGE``; or
                ``SX-INPUT-SCHEMA``, a value does not fit: with file, line, column, value and type.
        """
        path = data["path"]
        with byte_ranges.unchanged(path, data) as file:
            if self._format == "parquet":
                return parquet_rows.read(file, path, data["start"], data["end"], self._schema())
            source, encoding, start, end = file, self._encoding, data.get("start", 0), data.get("end", data["size"])
            if self._whole(path):
                source, encoding = self._decoded(file, path)
                start, end = 0, source.seek(0, io.SEEK_END)
            return self._rows(source, encoding, (start, end), path)

    def _rows(self, source: BinaryIO, encoding: str, piece: tuple[int, int], path: str) -> pa.Table:
        """Read the rows of a range of bytes."""
        width, wanted, header_end = 0, [], 0
        if self._format == "csv":
            source.seek(0)
            first, first_end = self._first(source, encoding, path)
            width = len(first or [])
            wanted = csv_rows.picks(first, self._schema(), self._dialect, path) if first else []
            header_end = first_end if self._dialect.header else 0
        raw, begin = byte_ranges.owned(source, *piece)
        if begin < header_end:
            raw, begin = raw[header_end - begin :], header_end
        try:
            text = byte_ranges.utf8(raw, encoding)
            if begin == 0:
                text = byte_ranges.without_mark(text)
            if self._format == "csv":
                return csv_rows.rows(text, width, wanted, self._dialect)
            return self._json(text) if self._format == "json" else _lines(text)
        except UnicodeDecodeError as error:
            bad = Misfit(raw.count(b"\n", 0, error.start), f"byte 0x{raw[error.start]:02x} is not {encoding}")
        except Misfit as error:
            bad = error
        line = None if bad.line is None else byte_ranges.lines_before(source, begin) + bad.line + 1
        raise _misfit(path, bad, f"line {line}: " if line else f"bytes {begin} to {begin + len(raw)}: ", line)

    def _json(self, text: bytes) -> pa.Table:
        lines = text.split(b"\n")
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        table, bad = json_rows.decode([lines[number] for number in numbers], self._schema())
        if bad:
            index, reason = bad[0]
            raise Misfit(numbers[index], reason)
        return table

    def _schema(self) -> pa.Schema | None:
        return None if self._ddl is None else arrow_schema(self._ddl)

    def _whole(self, path: str) -> bool:
        """Whether a file can only be read in one piece."""
        cuttable = byte_ranges.cuttable(self._encoding)
        return byte_ranges.codec(path) is not None or not cuttable or self._dialect.multiline

    def _decoded(self, file: BinaryIO, path: str) -> tuple[BinaryIO, str]:
        """Return the content of a whole file as UTF-8, and the name of that encoding."""
        raw = byte_ranges.whole(file, path)
        try:
            return io.BytesIO(byte_ranges.utf8(raw, self._encoding)), "utf-8"
        except UnicodeDecodeError as error:
            bad = Misfit(None, f"byte 0x{raw[error.start]:02x} at {error.start} is not {self._encoding}")
            raise _misfit(path, bad) from None

    def _beginning(self, file: BinaryIO, path: str) -> tuple[BinaryIO, str]:
        """Return a source for the first lines of a file. It only reads the whole file if it must."""
        if byte_ranges.cuttable(self._encoding):
            return byte_ranges.plain(file, path), self._encoding
        return self._decoded(file, path)

    def _first(self, source: BinaryIO, encoding: str, path: str) -> tuple[list[str] | None, int]:
        try:
            first, end = csv_rows.first_record(source, encoding, self._dialect)
        except Misfit as error:
            raise _misfit(path, error) from None
        except UnicodeDecodeError:
            raise _misfit(path, Misfit(None, f"its first line is not {encoding}")) from None
        if first is None and end and not self._dialect.header and len(self._schema() or ("only",)) == 1:
            return [""], end  # blank lines and nothing else: of one column they are rows
        return first, end


def _lines(text: bytes) -> pa.Table:
    lines = text.decode().split("\n")
    if not lines[-1]:
        lines.pop()
    return pa.table([pa.array([line.removesuffix("\r") for line in lines], pa.string())], schema=_TEXT)


def _misfit(path: str, bad: Misfit, place: str = "", line: int | None = None) -> InputError:
    where: dict[str, object] = {"path": path, **({"line": line} if line else {})}
    fix = bad.fix or "correct the file, or declare a type that can hold the value (string holds anything)"
    cause = "a value that does not fit the declared type is neither guessed nor left out"
    return InputError("SX-INPUT-SCHEMA", f"{path}, {place}{bad}", cause=cause, fix=fix, where=where)


def _differ(one: str, other: str) -> InputError:
    return InputError(
        "SX-INPUT-SCHEMA",
        f"{other} has other columns than {one}",
        cause="without a schema all files of an input must have the same columns",
        fix="declare a schema with the columns that all files have",
        where={"path": other},
    )
