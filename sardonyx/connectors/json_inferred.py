"""JSON objects without declared columns, one a record, as rows of a table. Pure.

Whole numbers become bigint and other numbers double. Texts become string, even if they look like a moment. What is null
throughout becomes string. The records settle the types in their order (:mod:`sardonyx.core.settled_types`): one that does not
fit is bad. Arrow infers the types of each batch, and nearly always they are those that are settled. Where something does not fit,
records are read one by one, in Python. Arrow infers too much, and rounds in silence: texts become moments, and a whole number
beside fractions, or beyond bigint, becomes a double. That is looked for here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.types as kinds

from sardonyx.connectors.json_rows import joined, one_line, parse, parse_joined
from sardonyx.core.column_types import EXACT, common, together
from sardonyx.core.errors import SardonyxError
from sardonyx.core.settled_types import ITEM, LIST, STRUCT, Misfit, Place, ReadTypes, beyond_exact, places
from sardonyx.core.text import shorten

_DEEPEST = 64
"""Levels of nesting from which on types are not inferred: Arrow recurses, and far deeper its stack would overflow."""
_FEW = 256
"""Records that are looked at one by one where something does not fit: at some 17 us each. Arrow takes 1 us."""
_MISFITS = 40
"""How many pieces of a batch may not fit until the rest is looked at one by one: each costs a run of Arrow's."""
_WHOLE = re.compile(rb"[:,\[]\s*-?\d{16,}\s*[,\]}]")
"""What is perhaps a whole number that no double holds; what is not matched holds none."""
_CURE = "declare the column in schema= of the input, as decimal(38,0) or as double"

Bad = tuple[int, str | SardonyxError]
"""Index of a record and what is wrong with it."""
_Given = dict[Place, pa.DataType]


class InferringReader:
    """Reads the records of one reader, batch after batch.

    Args:
        who: what they are of, for errors: "topic orders".
        where: the same as data.
    """

    def __init__(self, who: str, where: dict[str, object]) -> None:
        self._who, self._where = who, where
        self._types = ReadTypes()
        self._usual: tuple[pa.Schema, pa.Schema] | None = None
        """What Arrow inferred from the last batch, and the types that this becomes, if nothing has changed since."""

    def decode(self, values: Sequence[bytes | None]) -> tuple[pa.Table, list[Bad]]:
        """Return the rows of the records that can be read, in order, and the others with the reason.

        Args:
            values: JSON objects, pretty-printed or not. None (a tombstone) and blank ones count as bad.
        """
        lines = joined(values)
        if lines is not None and not (
            _may_be_deep(lines, len(values)) and any(_too_deep(value or b"") for value in values)
        ):
            table = self._as_inferred(lines, len(values))
            if table is not None:
                return table, []
        bad: list[Bad] = []
        records: list[bytes] = []
        indexes: list[int] = []
        for index, value in enumerate(values):
            try:
                record = one_line(value)
                if _too_deep(record):
                    raise ValueError(f"it is nested deeper than {_DEEPEST}")
            except ValueError as error:
                bad.append((index, str(error)))
                continue
            records.append(record)
            indexes.append(index)
        table, worse = self._in_pieces(records)
        bad += [(indexes[index], reason) for index, reason in worse]
        return table, sorted(bad, key=lambda each: each[0])

    def _in_pieces(self, records: list[bytes]) -> tuple[pa.Table, list[Bad]]:
        """Halve what does not fit, in the order of the records, until few are left to be looked at one by one."""
        tables: list[pa.Table] = []
        bad: list[Bad] = []
        pieces, misfits = [(0, len(records))] if records else [], 0
        while pieces:
            start, end = pieces.pop()
            piece = records[start:end]
            objects = all(record[0] == 0x7B and record[-1] == 0x7D for record in piece)
            table = self._as_inferred(b"\n".join(piece), len(piece)) if objects else None
            if table is None and end - start > _FEW and misfits < _MISFITS:
                misfits += 1
                middle = (start + end) // 2
                pieces += [(middle, end), (start, middle)]
                continue
            if table is None:
                table, worse = self._by_hand(piece)
                bad += [(start + index, reason) for index, reason in worse]
            if table.num_rows:
                tables.append(table)
        if not any(table.num_columns for table in tables):
            return _without_columns(sum(table.num_rows for table in tables)), bad
        return together(tables), bad

    # --- A batch as Arrow infers it ---

    def _as_inferred(self, lines: bytes, records: int) -> pa.Table | None:
        """The rows of a whole batch; None: something in it does not fit, and each record is to be looked at."""
        try:
            return self._inferred(lines, records)
        except (ValueError, pa.ArrowException):
            return None

    def _inferred(self, lines: bytes, records: int) -> pa.Table:
        found = parse_joined(lines, records, None)
        inferred, types = found.schema, self._types
        if self._usual is not None and inferred.equals(self._usual[0]):
            given, changes, wanted = _Given(), _Given(), self._usual[1]
        else:
            given = dict(places(_untimed(inferred)))
            changes = types.widened(given)
            wanted = types.schema(_untimed(inferred), changes)
        if wanted.types != inferred.types or any(map(_has_list, wanted.types)):
            # What Arrow infers lists from, it parses wrongly: it loses the nulls at their beginning.
            found = parse_joined(lines, records, wanted)
        if beyond_exact(found, pa.float64()) and _WHOLE.search(lines):
            raise ValueError("a whole number may have been rounded")
        large = beyond_exact(found, pa.int64(), types.large)
        types.take(changes, large)
        self._usual = inferred, wanted
        return found

    # --- Record by record ---

    def _by_hand(self, records: Sequence[bytes]) -> tuple[pa.Table, list[Bad]]:
        rows: list[dict[str, Any]] = []
        bad: list[Bad] = []
        seen = _Given()
        for index, record in enumerate(records):
            row: dict[str, Any] = {}
            try:
                row, given, large = _loaded(record)
                changes = self._types.widened(given, large)
            except Misfit as error:
                bad.append((index, error.of(self._who, _held(record, error.place), self._where)))
                continue
            except ValueError as error:
                bad.append((index, str(error)))
                continue
            if changes or large:
                self._types.take(changes, large)
            rows.append(row)
            for place, kind in given.items():
                if place not in seen or kinds.is_null(seen[place]):
                    seen[place] = kind
        self._usual = None
        schema = self._types.schema(_schema(seen))
        if not schema.names:
            return _without_columns(len(rows)), bad
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
        return pa.table(columns, schema=schema), bad


def _without_columns(rows: int) -> pa.Table:
    """A table with rows and no columns, as Arrow reads them in empty objects: pyarrow itself makes none."""
    return parse([b"{}"] * rows, None) if rows else pa.table({})


def _schema(seen: _Given) -> pa.Schema:
    """The columns that these places make."""
    inside: dict[Place, list[Place]] = {}
    for place in seen:
        inside.setdefault(place[:-1], []).append(place)

    def kind(place: Place) -> pa.DataType:
        found = seen.get(place, pa.null())
        if found == STRUCT:
            return pa.struct([(each[-1], kind(each)) for each in inside.get(place, ())])
        return pa.list_(kind((*place, ITEM))) if found == LIST else found

    return pa.schema([(place[0], kind(place)) for place in inside.get((), ())])


def _loaded(record: bytes) -> tuple[dict[str, Any], _Given, set[Place]]:
    """A record as Python's values, its places with their types, and those of integers that no double holds.

    Raises:
        Misfit: two values in one list do not go together.
        ValueError: it cannot be read.
    """
    given, large = _Given(), set[Place]()
    try:
        row = json.loads(record.decode(), object_pairs_hook=_once)
    except _Twice as error:
        raise ValueError(f"column {error} is there twice") from None
    except ValueError:
        row = _by_arrow(record)  # which knows further words for numbers that are none
    if not isinstance(row, dict):
        raise ValueError("it is JSON, but no object")  # noqa: TRY004 - the record is bad, not the caller
    try:
        _look_inside(row, (), given, large)
    except OverflowError as error:
        given, large = _Given(), set()
        try:
            row = _by_arrow(record)
        except ValueError:
            raise ValueError(f"column {error} holds a number beyond the largest double") from None
        _look_inside(row, (), given, large, endless=True)
    except UnicodeEncodeError as error:
        raise ValueError(_not_json(record, error)) from None
    return row, given, large


class _Twice(Exception):
    """A name is in an object twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(repr(next(name for name in names if names.count(name) > 1)))
    return found


_KINDS: dict[type, pa.DataType] = {
    type(None): pa.null(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    dict: STRUCT,
    list: LIST,
}
_MOST = 2**63


def _look(value: Any, place: Place, given: _Given, large: set[Place], *, endless: bool = False) -> None:
    """Note the types of a value and of what is in it. ``endless``: an infinity is written, and no number that is too large."""
    of = type(value)
    kind = _KINDS[of]
    known = given.get(place)
    if known is None or known is kind:
        given[place] = kind
    else:
        wider = common(known, kind)
        if wider is None:
            raise Misfit(place, known, kind)
        given[place] = wider
    if of is str:
        value.encode()
    elif of is int:
        if not -EXACT <= value <= EXACT:
            if not -_MOST <= value < _MOST:
                raise ValueError(
                    f"column {place[0]!r} holds {shorten(str(value))}, a whole number beyond bigint; {_CURE}"
                )
            large.add(place)
    elif of is float and not endless and value in (math.inf, -math.inf):
        raise OverflowError(repr(place[0]))
    elif of is list:
        for inner in value:
            _look(inner, (*place, ITEM), given, large, endless=endless)
    elif of is dict:
        _look_inside(value, place, given, large, endless=endless)


def _look_inside(
    value: dict[str, Any], place: Place, given: _Given, large: set[Place], *, endless: bool = False
) -> None:
    for name, inner in value.items():
        name.encode()
        _look(inner, (*place, name), given, large, endless=endless)


def _by_arrow(record: bytes) -> Any:
    """What Arrow reads in a record that Python does not read. Raises ``ValueError``."""
    try:
        inferred = parse([record], None).schema
        found = parse([record], ReadTypes().schema(_untimed(inferred), dict(places(_untimed(inferred)))))
    except (ValueError, pa.ArrowException) as error:
        raise ValueError(_not_json(record, error)) from None
    rounded = beyond_exact(found, pa.float64())
    if rounded and _WHOLE.search(record):
        raise ValueError(f"column {min(rounded)[0]!r} holds a whole number that a double would round; {_CURE}")
    return found.to_pylist()[0]


def _not_json(record: bytes, error: Exception) -> str:
    try:
        found = orjson.loads(record)
    except orjson.JSONDecodeError as broken:
        return f"it is not JSON: {broken}"
    if not isinstance(found, dict):
        return "it is JSON, but no object"
    return str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")


def _held(record: bytes, place: Place) -> str:
    """What a record holds at a place, or around it, as a text for an error."""
    try:
        value = json.loads(record)
    except ValueError:  # it has a word for a number that only Arrow knows
        return shorten(record.decode())
    for name in place:
        if not isinstance(value, dict):
            break
        value = value[name]
    return shorten(json.dumps(value, ensure_ascii=False))


def _untimed(schema: pa.Schema) -> pa.Schema:
    """What Arrow infers, without guesses: a text stays a text."""
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if kinds.is_temporal(kind):
        return pa.string()
    if kinds.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind


def _has_list(kind: pa.DataType) -> bool:
    return kinds.is_list(kind) or any(_has_list(kind.field(index).type) for index in range(kind.num_fields))


def _may_be_deep(lines: bytes, records: int) -> bool:
    """Whether one of the records may be nested too deeply. Of flat ones it is known at a glance that none is."""
    return lines.count(b"[") + lines.count(b"{") - records >= _DEEPEST


def _too_deep(record: bytes) -> bool:
    """Whether a record is nested so deeply that Arrow would end this process instead of refusing it."""
    if record.count(b"[") + record.count(b"{") <= _DEEPEST:
        return False
    try:
        level = [orjson.loads(record)]
    except orjson.JSONDecodeError as error:
        return "depth" in str(error)
    for _ in range(_DEEPEST):
        level = [
            item
            for value in level
            if isinstance(value, list | dict)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return any(isinstance(value, list | dict) for value in level)
