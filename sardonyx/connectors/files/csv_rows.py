"""CSV text as rows of declared types. Arrow cuts the text into fields, and ``values`` decides what the fields mean."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from sardonyx.connectors.files.byte_ranges import utf8, without_mark
from sardonyx.connectors.values import BadValue, parsed, readable
from sardonyx.core.errors import InputError
from sardonyx.core.text import nearest, shorten

_NULLS = [
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
]
"""Texts that mean a missing value in columns other than strings: the ones that pandas and Arrow know."""


class Misfit(ValueError):
    """Something in a text that is not as declared.

    Args:
        line: the line in the text, from 0; None if lines do not tell (a value may run over several).
        message: what is wrong, after "line 17: ".
    """

    def __init__(self, line: int | None, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.fix = fix


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written; Spark's options, with RFC 4180's rules where none is given."""

    header: bool = False
    sep: str = ","
    quote: str = '"'
    """Empty: quotes are characters like others."""
    escape: str = ""
    """Empty: a quote within quotes is written twice."""
    null: str | None = None
    """A text that means a missing value in every column, in addition to the rules for each type."""
    multiline: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (("sep", self.sep, 1), ("quote", self.quote, 0), ("escape", self.escape, 0)):
            if not least <= len(value.encode()) <= 1:
                raise InputError(
                    "SX-INPUT-OPTION",
                    f"csv: {name} cannot be {value!r}",
                    cause="it must be one character that takes one byte",
                    fix=f"write {name} as one such character, a tab as an actual tab",
                )


Picks = list[tuple[int, pa.Field]]
"""What is read of a file: positions of its columns, and what they become."""


def first_record(lines: Iterable[bytes], encoding: str, dialect: Dialect) -> tuple[list[str] | None, int]:
    """Return the first record that is not blank, and the offset after it. The record is None if there is none.

    Args:
        lines: the file's lines from its beginning, with their endings.
        encoding: of these lines.
        dialect: how the file is written.
    """
    taken = 0
    texts = iter(lines)

    def read() -> Iterable[str]:
        nonlocal taken
        for line in texts:
            text = utf8(line, encoding)
            if taken == 0:
                text = without_mark(text)
            taken += len(line)
            yield text.decode().rstrip("\r\n") if not dialect.multiline else text.decode()
            if not dialect.multiline and text.strip():
                return

    try:
        for record in _reader(read(), dialect):
            if len(record) > 1 or (record and record[0].strip()):
                return record, taken
    except csv.Error as error:
        raise Misfit(None, f"the first record cannot be read: {error}") from None
    return None, taken


def _reader(texts: Iterable[str], dialect: Dialect, *, strict: bool = False) -> Iterable[list[str]]:
    return csv.reader(
        texts,
        delimiter=dialect.sep,
        quotechar=dialect.quote or None,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        escapechar=dialect.escape if dialect.escape not in ("", dialect.quote) else None,
        strict=strict,
    )


def picks(first: list[str], schema: pa.Schema | None, dialect: Dialect, path: str) -> Picks:
    """Choose the columns to read from a file, and what they become.

    Args:
        first: its first record: the names if there is a header; else it only tells how many columns there are.
        schema: with a header matched by name, in the schema's order; else by position. None: every column, as string.
        dialect: how the file is written.
        path: the file's, for messages.

    Raises:
        InputError: ``SX-INPUT-SCHEMA``, the file has no such column, or not so many.
    """
    if schema is None:
        names = [(name if dialect.header else "") or f"_c{place}" for place, name in enumerate(first)]
        schema = pa.schema([(name, pa.string()) for name in names])
    else:
        names = first
    for field in schema:
        if not readable(field.type):
            raise _misfit(path, f"the schema gives column {field.name!r} type {field.type}, which CSV cannot hold")
        if dialect.header and names.count(field.name) > 1:
            raise _misfit(path, f"the header names column {field.name!r} more than once", cause=_has(names))
    if not dialect.header:
        if len(schema) > len(first):
            raise _misfit(
                path,
                f"the schema names {len(schema)} columns and the file has {len(first)}",
                fix="without a header the schema goes by position: name the file's columns from the first one on",
            )
        return list(enumerate(schema))
    lacking = [field.name for field in schema if field.name not in names]
    if lacking:
        found = nearest(lacking[0], names, cutoff=0.5)
        hint = f"did you mean {found!r}? " if found else ""
        raise _misfit(
            path,
            f"the schema names column {lacking[0]!r}, which the file does not have",
            cause=_has(names),
            fix=f"{hint}a schema may leave columns out, and names the others as the header does",
        )
    return [(names.index(field.name), field) for field in schema]


def _has(names: list[str]) -> str:
    return shorten(f"it has {', '.join(names)}", 500)


def _misfit(path: str, message: str, *, cause: str = "", fix: str = "correct the schema or the file") -> InputError:
    return InputError("SX-INPUT-SCHEMA", f"{path}: {message}", cause=cause, fix=fix, where={"path": path})


def rows(text: bytes, width: int, wanted: Picks, dialect: Dialect) -> pa.Table:
    """Convert the records of a text in UTF-8, without a header, to exactly the wanted columns.

    Args:
        text: whole lines.
        width: how many columns each record must have. If one, a blank line is a record without a value; else it is not a record.
        wanted: what to make of which columns.
        dialect: how the file is written.

    Raises:
        Misfit: if a record has more or fewer columns, or a value does not fit its type.
    """
    schema = pa.schema([field for _, field in wanted])
    if not (text if width == 1 else text.strip(b"\r\n")):
        return schema.empty_table()
    fields = _fields(text, width, [place for place, _ in wanted], dialect)
    columns = []
    for place, field in wanted:
        try:
            column = _column(fields[str(place)].combine_chunks(), field, dialect.null)
        except BadValue as bad:
            message = f"column {field.name!r} holds {shorten(bad.text)!r}, which is not of type {field.type}"
            raise _at(text, bad.index, width, dialect, message) from None
        if not field.nullable and column.null_count:
            index = pc.index(pc.is_null(column), value=True).as_py()
            raise _at(text, index, width, dialect, f"column {field.name!r} is declared NOT NULL and has no value")
        columns.append(column)
    return pa.table(columns, schema=schema)


def _column(texts: pa.Array, field: pa.Field, null: str | None) -> pa.Array:
    """Texts as values, after the rules for what is missing: a string only if it is empty and unquoted, as in Spark."""
    none = pa.scalar(None, pa.string())
    if null is not None:
        texts = pc.if_else(pc.equal(texts, null), none, texts)
    if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
        texts = pc.utf8_trim_whitespace(texts)
        texts = pc.if_else(pc.is_in(texts, pa.array(_NULLS)), none, texts)
    return parsed(texts, field.type)


def _fields(text: bytes, width: int, places: list[int], dialect: Dialect) -> pa.Table:
    """Return the fields as strings; an empty field is null. Columns are named by position, so any header is fine."""
    names = [str(place) for place in range(width)]
    blank, wrong = 0, []

    def invalid(row: pacsv.InvalidRow) -> str:
        nonlocal blank
        if row.text.strip():
            wrong.append(row)
            return "error"
        blank += 1
        return "skip"

    try:
        found = pacsv.read_csv(
            pa.BufferReader(text),
            read_options=pacsv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
            parse_options=pacsv.ParseOptions(
                delimiter=dialect.sep,
                quote_char=dialect.quote or False,
                double_quote=bool(dialect.quote),
                escape_char=dialect.escape if dialect.escape not in ("", dialect.quote) else False,
                newlines_in_values=dialect.multiline,
                ignore_empty_lines=width > 1,
                invalid_row_handler=invalid,
            ),
            convert_options=pacsv.ConvertOptions(
                include_columns=[str(place) for place in dict.fromkeys(places)],
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid as error:
        if not wrong:
            raise Misfit(None, f"it is not CSV: {error}") from None
        row = wrong[0]
        message = f"it has {row.actual_columns} columns where the first line has {row.expected_columns}"
        if dialect.multiline:
            raise Misfit(None, f"record {row.number}: {message}: {shorten(row.text)!r}") from None
        raise Misfit(_lines(text, width, blank=b"\r\n")[row.number - 1], f"{message}: {shorten(row.text)!r}") from None
    _check_whole(text, width, found.num_rows + blank, dialect)
    return found


def _check_whole(text: bytes, width: int, records: int, dialect: Dialect) -> None:
    """Raise if an unclosed quote, or a value over several lines where that is not allowed, has swallowed records."""
    if dialect.multiline:
        quote = dialect.quote.encode()
        if quote and text.count(quote) % 2 and _open_quote(text, dialect):
            raise Misfit(None, "a quote is opened and never closed")
        return
    lines = _lines(text, width, blank=b"\r\n")
    last = text[text.rstrip(b"\r\n").rfind(b"\n") + 1 :]
    if len(lines) == records and not _open_quote(last, dialect):
        return
    raise Misfit(
        None,
        "a quoted value runs over several lines, or a line ends in a bare carriage return",
        fix="set multiLine=True if values may hold line breaks; the file is then read as a whole",
    )


def _open_quote(text: bytes, dialect: Dialect) -> bool:
    if not dialect.quote or dialect.quote.encode() not in text:
        return False
    try:
        for _ in _reader(text.decode().splitlines(keepends=True), dialect, strict=True):
            pass
    except csv.Error as error:
        return "unexpected end" in str(error)
    return False


def _lines(text: bytes, width: int, *, blank: bytes | None = None) -> list[int]:
    """Return the numbers, from 0, of the lines that hold a record.

    ``blank`` is what an empty line of several columns may consist of (None: any white space).
    """
    found = text.split(b"\n")
    if width == 1:
        return list(range(len(found) if found[-1] else len(found) - 1))
    return [number for number, line in enumerate(found) if line.strip(blank)]


def _at(text: bytes, index: int, width: int, dialect: Dialect, message: str) -> Misfit:
    if dialect.multiline:
        return Misfit(None, f"record {index + 1}: {message}")
    return Misfit(_lines(text, width)[index], message)
