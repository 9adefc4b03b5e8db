"""What texts that others wrote are read as, values that functions give, and compressed files: the rest of ``docs/values.md``."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import sqlite3
import textwrap
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from sardonyx.connectors.records import to_records, to_table
from sardonyx.connectors.registry import topic_format
from sardonyx.core.column_types import UnfitTypes
from sardonyx.core.errors import SardonyxError
from sardonyx.core.settled_types import SettledTypes
from sardonyx.state.codec import Codec, same
from tests.core.edge_values import (
    CHANGES,
    FRAME,
    MOST,
    NAME,
    NAN,
    NEVER,
    NUMBER,
    WAYS,
    Bad,
    call,
    code,
    lines,
    names,
    read,
    show,
    tables,
    topic,
    values_table,
)

# --- Texts that others wrote ------------------------------------------------------------------------------------------

TEXTS: list[tuple[str, list[str]]] = [
    ("tinyint", ["128", "1.0", "0x10"]),
    ("bigint", ["9223372036854775807", "9223372036854775808", "-0", "1e3"]),
    ("float", ["16777217", "1e-50", "3.5e38"]),
    ("double", ["9007199254740993", "1e-400", "1e309", "Infinity", "NaN"]),
    ("decimal(38,0)", [MOST, f"1{'0' * 38}", "1.0", "0.5", "1e37", "NaN"]),
    ("decimal(38,38)", [f"0.{MOST}", "1", "1e-39"]),
    ("boolean", ["true", "1"]),
    ("date", ["0001-01-01", "9999-12-31", "10000-01-01", "2023-02-29", "2023-1-1"]),
    (
        "timestamp",
        [
            "9999-12-31T23:59:59.999999999Z",
            "1969-12-31T23:59:59.9999999Z",
            "0001-01-01T00:00:00+14:00",
            "2020-01-01 00:00:00",
            "2020-01-01T00:00+14:59",
            "2020-01-01T00:00:00 Europe/Berlin",
            "2016-12-31T23:59:60Z",
            "2020-01-01T24:00:00Z",
            "1577836800",
        ],
    ),
    ("timestamp_ntz", ["2020-01-01T00:00:00.1234567", "2020-01-01T00:00:00Z"]),
    ("string", ["\\ud800", "\\ud83d\\ude00", "\\u0000"]),
    ("binary", ["AP8=", "AP8", "a-_="]),
    ("map<int,int>", ['{"1":1,"01":2}']),
    ("map<string,int>", ['{"\\ud800":1}']),
    ("", ["[null,1,null]", '[{"a":[null,"b"]}]', "9223372036854775807", "18446744073709551615", "[null,0.5]"]),
]
"""Declared type, or none -> how others may write a value of it."""
_QUOTED = ("date", "timestamp", "timestamp_ntz", "string", "binary")


def _json(kind: str, text: str) -> pa.Table:
    value = f'"{text}"' if kind in _QUOTED else text
    return topic("json").back([f'{{"{NAME}":{value}}}'.encode()], f"{NAME} {kind}" if kind else None)


def _csv(folder: Path, kind: str, text: str) -> pa.Table:
    path = folder / f"{next(NUMBER)}.csv"
    path.write_text(f"{NAME},k\n{text},1\n")
    return read("files", {"path": str(path), "format": "csv", "header": True, "schema": f"{NAME} {kind}"})


def _sqlite(folder: Path, kind: str, text: str) -> pa.Table:
    path = folder / f"{next(NUMBER)}.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"create table t ({NAME} text)")
        connection.execute("insert into t values (?)", (text,))
    return read("sql", {"url": f"sqlite:///{path}", "table": "t", "schema": f"{NAME} {kind}"})


def read_text(how: str, folder: Path, kind: str, text: str) -> str:
    """What a text is read as, or that it is bad."""
    if how != "json" and (not kind or "map" in kind or kind == "string"):
        return "-"
    try:
        table = _json(kind, text) if how == "json" else (_csv if how == "csv" else _sqlite)(folder, kind, text)
        return code(show(table[NAME]))
    except (SardonyxError, Bad) as error:
        return "bad" if error.code not in NEVER and names(str(error), text, None) else f"DEFECT {error}"
    except Exception as error:  # noqa: BLE001 (that is a defect)
        return f"DEFECT {type(error).__name__}: {error}"


# --- Values that functions give ---------------------------------------------------------------------------------------

GIVEN: list[tuple[str, Any, Any]] = [
    ("2**63 - 1", int, 2**63 - 1),
    ("2**63", int, 2**63),
    ("2**64", int, 2**64),
    ("nan", float, NAN),
    ("-0.0", float, -0.0),
    ('"\\ud800"', str, "\ud800"),
    ('"\\0"', str, "\0"),
    ("Decimal of 39 digits", Decimal, Decimal("9" * 39)),
    ('Decimal("NaN")', Decimal, Decimal("NaN")),
    ("datetime.max", dt.datetime, dt.datetime.max),  # noqa: DTZ901 - that is the type
    ("a datetime at +05:30", dt.datetime, dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5.5)))),
    ("date.min", dt.date, dt.date.min),
    ("timedelta.max", dt.timedelta, dt.timedelta.max),
]


def _by_function(_: Any, value: Any) -> Any:
    return to_records(call("giving", "record", pa.table({"k": [1]}), value=value))[0][NAME]


def _by_frame(_: Any, value: Any) -> Any:
    return to_records(call("giving_frame", "pandas", pa.table({"k": [1]}), value=value))[0][NAME]


def _by_state(kind: Any, value: Any) -> Any:
    codec: Codec[Any] = Codec(kind, NAME)
    return codec.decode(codec.encode(value)[0])


GIVERS: dict[str, Callable[[Any, Any], Any]] = {
    "row of a function": _by_function,
    FRAME: _by_frame,
    "`State[T]`": _by_state,
}


def given_cell(way: str, kind: Any, name: str, value: Any) -> str:
    """What becomes of a value that a function gives."""
    try:
        back = GIVERS[way](kind, value)
    except SardonyxError as error:
        return "refused" if error.code not in NEVER and NAME in str(error) else f"DEFECT {error}"
    except Exception as error:  # noqa: BLE001 (that is a defect)
        return f"DEFECT {type(error).__name__}: {error}"
    if same(value, back) and (value != 0 or str(value) == str(back)):
        return "same"
    shown = "null" if back is None else repr(back)
    rule = next((number for number, (_, holds) in enumerate(CHANGES, 1) if holds(way, "", name, shown)), None)
    return f"{code(shown)} ({rule})" if rule else f"DEFECT {back!r}"


# --- Keys of records --------------------------------------------------------------------------------------------------

_AS_BYTES = ("string", "dictionary", "binary", "fixed_size_binary")


def keys_table() -> str:
    """The key of a record whose column of the key has a value, for each type but those whose bytes are the key."""
    rows = []
    for kind, _, table in tables():
        shown, key = show(table[NAME]), _key_of(table)
        if kind.startswith(_AS_BYTES):
            value = table[NAME][0].as_py()
            told = "no key" if value is None else _key(value if isinstance(value, bytes) else value.encode())
            assert key == told, f"{kind} {shown}"
        else:
            rows.append([f"`{kind}`", code(shown), key])
    return lines(["type", "value", "key"], rows)


def _key_of(table: pa.Table) -> str:
    try:
        ((found, _),) = topic_format({"topic": "t", "format": "json", "key": NAME}).encode(table)
    except SardonyxError as error:
        told = error.code not in NEVER and names(str(error), show(table[NAME]), table.schema.field(NAME).type)
        return "refused" if told else f"DEFECT {error}"
    return "no key" if found is None else _key(found)


def _key(found: bytes) -> str:
    text = found.decode("utf-8", "backslashreplace")
    return code(text if len(text) < 70 else f"{text[:8]}...{text[-8:]} ({len(text)} characters)")


# --- Neighbours of other types ----------------------------------------------------------------------------------------

NOON = dt.datetime(2026, 11, 29, 12)  # noqa: DTZ001 - a time without a zone
NEIGHBOURS: list[tuple[str, Any, str, Any]] = [
    ("null", None, "9", 9),
    ("9", 9, '"x"', "x"),
    ('"x"', "x", "9", 9),
    ("true", True, "9", 9),
    ("9", 9, "2.5", 2.5),
    ("2.5", 2.5, "9", 9),
    ("2**53 + 1", 2**53 + 1, "0.5", 0.5),
    ("0.5", 0.5, "2**53 + 1", 2**53 + 1),
    ("[]", [], "[9]", [9]),
    ("[9]", [9], "[2.5]", [2.5]),
    ("[2**53 + 1]", [2**53 + 1], "[0.5]", [0.5]),
    ("[9]", [9], '["x"]', ["x"]),
    ("[9]", [9], "9", 9),
    ("{a: null}", {"a": None}, "{a: 9, b: true}", {"a": 9, "b": True}),
    ("{a: 2**53 + 1}", {"a": 2**53 + 1}, "{a: 0.5}", {"a": 0.5}),
    ("{a: 9}", {"a": 9}, "{a: {}}", {"a": {"b": 1}}),
    ('"2026-11-29"', "2026-11-29", '"2026-11-29T12:00:00Z"', "2026-11-29T12:00:00Z"),
    ("Decimal 1.10", Decimal("1.10"), "Decimal 100.25", Decimal("100.25")),
    ("Decimal 1.10", Decimal("1.10"), "9", 9),
    ("Decimal 1.10", Decimal("1.10"), "2.5", 2.5),
    ("a date", NOON.date(), "a datetime", NOON),
    ("a datetime", NOON, "one in UTC", NOON.replace(tzinfo=dt.UTC)),
]
"""What two rows hold in one column, one after the other."""


def _of_topic(batches: list[list[Any]]) -> tuple[list[Any], str]:
    """The values of records of JSON without a schema, and what is wrong with one of them."""
    form, found, wrong = topic_format({"topic": "t"}), list[Any](), ""
    for batch in batches:
        decoded = form.decode([json.dumps({NAME: value}).encode() for value in batch])
        found += [row[NAME] for row in to_records(decoded.table)]
        wrong = wrong or "".join(f"{failure.code} {failure.message} {failure.cause}" for _, failure in decoded.bad)
    return found, wrong


def _of_function(batches: list[list[Any]]) -> tuple[list[Any], str]:
    types, found = SettledTypes(), list[Any]()
    for batch in batches:
        try:
            table = types.settle(to_table([{NAME: value} for value in batch], pa.schema([])))
        except UnfitTypes as error:
            return found, str(error)
        found += [row[NAME] for row in to_records(table)]
    return found, ""


def neighbours_cell(how: Callable[[list[list[Any]]], tuple[list[Any], str]], values: list[Any], verdict: str) -> str:
    """What becomes of two values in one column, whether they come in one batch or in two."""
    said = set()
    for batches in ([values], [values[:1], values[1:]]):
        try:
            found, wrong = how(batches)
        except TypeError:
            return "-"  # JSON does not have it
        except Exception as error:  # noqa: BLE001 (that is a defect)
            return f"DEFECT {type(error).__name__}: {error}"
        whole = len(found) == len(values) and not wrong
        if not all(map(_alike, found, values)) or not (whole or ("SX-COLUMN-TYPE" in wrong and NAME in wrong)):
            return f"DEFECT {found} {wrong}"
        said.add("same" if whole else verdict)
    return said.pop() if len(said) == 1 else f"DEFECT {said}"


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same one. A field that is missing is null."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_alike(one.get(name), other.get(name)) for name in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


# --- Compressed files -------------------------------------------------------------------------------------------------


def _arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as out:
            out.write(data)
        return sink.getvalue().to_pybytes()

    return compress


CODECS = {"gz": gzip.compress, "bz2": bz2.compress, "zst": _arrow("zstd"), "lz4": _arrow("lz4"), "br": _arrow("brotli")}


def members(suffix: str, folder: Path, between: Sequence[bytes] = (), cut: int = 0) -> str:
    """What is read of a compressed file of two members, perhaps with others between, and without its last bytes."""
    path = folder / f"{next(NUMBER)}.json.{suffix}"
    first, last = (f'{{"{NAME}":{number}}}\n'.encode() for number in (1, 2))
    whole = b"".join(map(CODECS[suffix], (first, *between, last)))
    path.write_bytes(whole[: len(whole) - cut])
    try:
        found = read("files", {"path": str(path), "format": "json", "schema": f"{NAME} int"})[NAME].to_pylist()
    except SardonyxError as error:
        return "refused" if path.name in str(error) else f"DEFECT {error}"
    return "all rows" if found == [1, 2] else f"DEFECT {found}"


# --- The page ---------------------------------------------------------------------------------------------------------


def page(folder: Path) -> dict[str, str]:
    """The tables by their names on the page."""
    texts = [
        [
            f"`{kind}`" if kind else "none",
            code(text),
            *(read_text(how, folder, kind, text) for how in ("json", "csv", "SQLite")),
        ]
        for kind, known in TEXTS
        for text in known
    ]
    given = [[f"`{name}`", *(given_cell(way, kind, name, value) for way in GIVERS)] for name, kind, value in GIVEN]
    beside = [
        [
            f"`{first}`",
            f"`{then}`",
            neighbours_cell(_of_topic, [one, other], "bad"),
            neighbours_cell(_of_function, [one, other], "refused"),
        ]
        for first, one, then, other in NEIGHBOURS
    ]
    return {
        "changes": "\n".join(
            textwrap.fill(text, 128, initial_indent=f"{number}. ", subsequent_indent="   ")
            for number, (text, _) in enumerate(CHANGES, 1)
        ),
        "values": values_table(WAYS, folder),
        "keys": keys_table(),
        "texts": lines(["declared type", "written as", "json", "csv", "a text of SQLite"], texts),
        "given": lines(["value", *GIVERS], given),
        "neighbours": lines(["first", "then", "json without a schema", "rows of a function"], beside),
        "members": lines(
            ["", "two members", "an empty one between", "the last one cut short"],
            [
                [f"`.{each}`", members(each, folder), members(each, folder, [b""]), members(each, folder, cut=2)]
                for each in CODECS
            ],
        ),
    }
