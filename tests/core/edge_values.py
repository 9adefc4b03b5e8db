"""The tables of ``docs/values.md``: what becomes of values at the edge of their type, on each way out and in again.

Each cell is found by doing it, and says what the page's introduction explains.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from queues import block
from sardonyx.connectors.records import to_records
from sardonyx.connectors.registry import output, split_input, topic_format
from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import TaskSpec
from sardonyx.runtime.settings_sections import SchemaRegistry
from sardonyx.state.codec import Codec
from sardonyx.state.row_bytes import RowBytes
from spark_tasks.worker import Plan, Slice, run
from spark_tasks.worker_pool import from_buffer, to_buffer

PAGE = Path(__file__).parents[2] / "docs" / "values.md"
NAME = "v1"
"""The column, by a name that no error has by chance."""
_HERE = Partition("link", 0)
NUMBER = itertools.count(1)


class Bad(Exception):
    """A record that could not be read or was not processed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.message} {failure.cause}")
        self.code = failure.code


# --- Values -----------------------------------------------------------------------------------------------------------

_YEARS = (-62_135_596_800_000_000, 253_402_300_799_999_999, -62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1)
"""Microseconds: the first and last of the years 1 to 9999, one beyond either, and the last of all."""
_DAYS = (-719_162, 2_932_896, -719_163, 2_932_897, 2**31 - 1)
NAN, _INF = math.nan, math.inf
MOST = "9" * 38
_MOMENT = pa.timestamp("us", "UTC")

VALUES: list[tuple[str | pa.DataType, list[Any]]] = [
    ("boolean", [None, True]),
    ("tinyint", [-128, 127]),
    ("smallint", [-(2**15)]),
    ("int", [-(2**31)]),
    ("bigint", [None, 2**53 + 1, 2**63 - 1, -(2**63)]),
    (pa.uint32(), [2**32 - 1]),
    (pa.uint64(), [2**63, 2**64 - 1]),
    (pa.float16(), [65504.0, NAN]),
    ("float", [NAN, _INF, -0.0, 0.1, 3.4028235e38, 1e-45]),
    ("double", [None, NAN, _INF, -_INF, -0.0, 0.1, 1.7976931348623157e308, 5e-324, 2.0**63]),
    ("decimal(9,2)", [Decimal("-0.01")]),
    ("decimal(18,0)", [Decimal(10**18 - 1)]),
    ("decimal(38,0)", [None, Decimal(2**53 + 1), Decimal(2**63), Decimal(MOST)]),
    ("decimal(38,18)", [Decimal(f"{MOST[:20]}.{MOST[:18]}"), Decimal("1E-18")]),
    ("decimal(38,38)", [Decimal(f"-0.{MOST}"), Decimal("1E-38")]),
    ("string", [None, "", "\0", " a ", "\r\n", '"\\', "null", "NaN", "\ufeff\uffff\U0010ffff"]),
    (pa.string_view(), ["a text that is not short"]),
    (pa.dictionary(pa.int32(), pa.string()), ["a"]),
    ("binary", [None, b"", b"\0\xff", b"\\x41"]),
    (pa.binary(2), [b"ab"]),
    (pa.binary_view(), [b"\xff"]),
    ("date", [None, *(pa.scalar(day, pa.int32()) for day in _DAYS)]),
    ("timestamp", [None, *(pa.scalar(moment) for moment in _YEARS)]),
    ("timestamp_ntz", [None, *(pa.scalar(moment) for moment in _YEARS)]),
    (pa.timestamp("us", "Europe/Berlin"), [pa.scalar(_YEARS[0]), pa.scalar(_YEARS[1])]),
    (pa.timestamp("ns", "UTC"), [pa.scalar(-1)]),
    (pa.timestamp("s", "UTC"), [pa.scalar(2**40), pa.scalar(2**62)]),
    (pa.time64("us"), [dt.time(23, 59, 59, 999_999)]),
    (pa.duration("us"), [dt.timedelta(days=-1, microseconds=1), pa.scalar(2**63 - 1)]),
    (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3])]),
    ("array<bigint>", [None, [], [None], [2**63 - 1]]),
    ("array<double>", [[NAN, -0.0]]),
    ("array<timestamp>", [[pa.scalar(_YEARS[1])], [pa.scalar(_YEARS[3])]]),
    ("array<decimal(38,38)>", [[Decimal(f"0.{MOST}")]]),
    ("struct<a:binary>", [None, {"a": None}, {"a": b"\xff"}]),
    ("map<string,bigint>", [[], [("", None)], [("a", 1), ("a", 2)]]),
    ("map<string,double>", [[("a", NAN)]]),
]
"""Type (as in `schema=`, or one that only Arrow has) -> values. Moments and days are also given as their number."""


def tables() -> Iterator[tuple[str, str | None, pa.Table]]:
    """The type's name, the schema that declares it, and a table of one row, for each value."""
    for kind, values in VALUES:
        name = kind if isinstance(kind, str) else str(kind)
        ddl = f"{NAME} {kind}, k bigint" if isinstance(kind, str) else None
        arrow = arrow_schema(ddl).field(0).type if ddl else kind
        for value in values:
            yield name, ddl, pa.table({NAME: _array(value, arrow), "k": [1]})


def _array(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, pa.Scalar):
        return pa.array([value.as_py()], value.type).view(kind)
    if isinstance(value, list) and value and isinstance(value[0], pa.Scalar):
        return pa.ListArray.from_arrays([0, 1], _array(value[0], kind.value_type), type=kind)
    if pa.types.is_float16(kind):
        return pa.array([value]).cast(kind)
    return pa.array([value], kind)


# --- Ways -------------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """A way out and in again; ``back`` is given what ``out`` gave, and the schema that is declared."""

    out: Callable[[pa.Table, Path], Any]
    back: Callable[[Any, str | None], pa.Table]


def topic(form: str) -> Way:
    def out(table: pa.Table, _: Path) -> list[bytes | None]:
        options = {"format": form, "topic": f"t{next(NUMBER)}"}
        if form == "raw":
            table = table.rename_columns(["value", "k"])
        return [value for _, value in topic_format(options, SchemaRegistry("mock://registry")).encode(table)]

    def back(records: list[bytes | None], ddl: str | None) -> pa.Table:
        options = {"format": form, "topic": "t", **({"schema": ddl} if ddl and form != "raw" else {})}
        decoded = topic_format(options, SchemaRegistry("mock://registry")).decode(records)
        if decoded.bad:
            raise Bad(decoded.bad[0][1])
        if form == "raw" and ddl is not None and " string" in ddl:
            return pa.table({NAME: decoded.table["value"].cast(pa.string())})
        return decoded.table.rename_columns([NAME, "k"]) if form == "raw" else decoded.table

    return Way(out, back)


def _files(form: str) -> Way:
    def out(table: pa.Table, folder: Path) -> dict[str, Any]:
        options = {"path": str(folder / str(next(NUMBER))), "format": form}
        made = output(TaskSpec(name="out", type="output", connector="files", options=options), "job-1")
        made.publish(made.stage(table))
        return options

    def back(options: dict[str, Any], ddl: str | None) -> pa.Table:
        more = {"header": True, "multiLine": True} if form == "csv" else {}
        return read("files", {**options, **more, **({"schema": ddl} if ddl else {})})

    return Way(out, back)


def database(place: Callable[[Path], dict[str, Any]], **mode: Any) -> Way:
    """A table of its own for each value, in the database that ``place`` gives the options of."""

    def out(table: pa.Table, folder: Path) -> dict[str, Any]:
        options = {**place(folder), "table": f"t{next(NUMBER)}"}
        task = TaskSpec(name="out", type="output", connector="sql", options={**options, **mode})
        made = output(task, f"job-{next(NUMBER)}")
        try:
            made.begin(table, {_HERE: None}, {_HERE: Position(1)}, None)
            made.commit()
        finally:
            made.abandon()
        return options

    def back(options: dict[str, Any], ddl: str | None) -> pa.Table:
        return read("sql", {**options, **({"schema": ddl} if ddl else {})})

    return Way(out, back)


def read(connector: str, options: dict[str, Any]) -> pa.Table:
    made = split_input(TaskSpec(name="in", type="input", connector=connector, options=options))
    return pa.concat_tables(made.read(split.data) for split in made.splits())


def of_record(row: dict[str, Any]) -> dict[str, Any]:
    """A function of records that passes them on."""
    return row


def of_pandas(rows: pd.DataFrame) -> pd.DataFrame:
    """The same of pandas."""
    return rows


def giving(_: dict[str, Any], value: Any) -> dict[str, Any]:
    """A function of records that gives a value."""
    return {NAME: value}


def giving_frame(_: pd.DataFrame, value: Any) -> pd.DataFrame:
    """A function of pandas that gives it in a column of objects."""
    return pd.DataFrame({NAME: pd.Series([value], dtype=object)})


def call(name: str, takes: Any, table: pa.Table, **params: Any) -> pa.Table:
    done = run(
        [Plan("f", f"{__name__}:{name}", None, takes, params, may_skip=False)], Slice(to_buffer(table), isolate=True)
    )
    if done.bad:
        raise Bad(done.bad[0].failure)
    return from_buffer(done.data)


def _function(takes: Any) -> Way:
    return Way(lambda table, _: table, lambda table, _: call(f"of_{takes}", takes, table))


def _kept(table: pa.Table, _: Path) -> tuple[Any, bytes, pa.DataType]:
    value = to_records(table)[0][NAME]
    codec: Codec[Any] = Codec(_annotation(value), NAME)
    return codec, codec.encode(value)[0], table.schema.field(NAME).type


def _annotation(value: Any) -> Any:
    if isinstance(value, list | dict) and value:
        inner = [_annotation(each) for each in (value.values() if isinstance(value, dict) else value)]
        return dict[str, inner[0]] if isinstance(value, dict) else list[inner[0]]  # type: ignore[valid-type]
    return type(value)


WAYS: dict[str, Way] = {
    "json": topic("json"),
    "raw": topic("raw"),
    "csv": _files("csv"),
    "parquet": _files("parquet"),
    "SQLite": database(lambda folder: {"url": f"sqlite:///{folder}/db"}),
    "link": Way(lambda table, _: [each.value for each in block.encode(table)], lambda blocks, _: block.decode(blocks)),
    "function of dict": _function("record"),
    "function of pandas": _function("pandas"),
    "rows in a state": Way(
        lambda table, _: (RowBytes(table.schema), RowBytes(table.schema).encode(table), table.schema),
        lambda kept, _: pa.table(kept[0].decode(kept[1]), schema=kept[2]),
    ),
    "`State[T]`": Way(_kept, lambda kept, _: pa.table({NAME: pa.array([kept[0].decode(kept[1])], kept[2])})),
}

ALIKE: dict[str, Way] = {
    "json": _files("json"),
    "SQLite": database(lambda folder: {"url": f"sqlite:///{folder}/db"}, mode="upsert", key=["k"]),
}
"""Other ways of which the same columns hold: JSON of files, which declare their types, and the other mode of writing."""

REGISTRY = {"avro": topic("avro"), "protobuf": topic("protobuf")}
"""Formats that need a client of a registry, which tests of the core do without."""


# --- Cells ------------------------------------------------------------------------------------------------------------

CHANGES: list[tuple[str, Callable[[str, str, str, str], bool]]] = [
    (
        "JSON has no NaN and no infinities, and SQLite has no NaN: they are written as null. In CSV `nan` is a missing value.",
        lambda way, _, value, found: (
            found.replace("None", "null") == re.sub(r"-?(nan|inf)\b", "null", value)
            and way in ("json", "csv", *DATABASES)
        ),
    ),
    (
        "SQLite has no negative zero.",
        lambda way, _, value, found: way == "SQLite" and (value, found) == ("-0.0", "0.0"),
    ),
    (
        "A list that is null is empty: Protobuf's repeated fields cannot be null.",
        lambda way, _, value, found: way == "protobuf" and (value, found) == ("null", "[]"),
    ),
    (
        "Nanoseconds are cut to microseconds.",
        lambda _, kind, value, found: "[ns" in kind and re.fullmatch(f"{value[:26]}(000)?", _plain(found)) is not None,
    ),
    (
        "`schema=` does not have the type, so a text comes back, or a number of JSON. A duration is a count of its units.",
        lambda way, kind, value, found: (
            way in ("json", "csv", *DATABASES)
            and kind not in DECLARED
            and (_plain(found) == _plain(value) or found in ("'YWI='", "'/w=='"))
        ),
    ),
    (
        "pandas and numpy have NaN for a missing value: null in their columns. In a frame's columns of Arrow types it stays.",
        lambda way, _, value, found: way == FRAME and "nan" in value.lower() and found == "null",
    ),
]
"""What may change: why, and in which cells (the way, the type, the value, what came back)."""
FRAME = "object in a frame"
DATABASES = ("SQLite", "append", "upsert")
DECLARED = {kind for kind, _ in VALUES if isinstance(kind, str)}
UNNAMED = {("function of dict", "uint64")}
"""Errors that name the column and not the value."""


def _plain(shown: str) -> str:
    """A value without what tells a text of it from another one."""
    for end in ("'", "Z", ".000000", ".0", " us"):
        shown = shown.removesuffix(end)
    return shown.removeprefix("'").replace("T", " ")


def cell(name: str, way: Way, kind: str, ddl: str | None, table: pa.Table, folder: Path) -> str:
    """What becomes of a value: ``same``, what came back and the number of the rule that allows it, ``refused``, ``bad``."""
    shown, what = show(table[NAME]), "refused"
    try:
        made = way.out(table, folder)
        what = "bad"
        found = show(way.back(made, ddl)[NAME])
    except (SardonyxError, Bad) as error:
        if name == "raw" and error.code == "SX-OUTPUT-RAW":
            return "-"
        what = "refused" if error.code == "SX-FN-RESULT" else what
        told = names(str(error), shown, table.schema.field(NAME).type) or (
            (name, kind) in UNNAMED and NAME in str(error)
        )
        return what if told and error.code not in NEVER else f"DEFECT {error}"
    except Exception as error:  # noqa: BLE001 (that is a defect)
        return f"DEFECT {type(error).__name__}: {error}"
    if found == shown:
        return "same"
    rule = next((number for number, (_, holds) in enumerate(CHANGES, 1) if holds(name, kind, shown, found)), None)
    return f"{code(found)} ({rule})" if rule else f"DEFECT {found}"


NEVER = {"SX-UNEXPECTED", "SX-DATABASE-UNREACHABLE", "SX-DATABASE-REFUSED"}


def names(said: str, shown: str, kind: pa.DataType | None) -> bool:
    """Whether an error names the column and its value; or its type, if no value of the type would do."""
    digits = re.sub(r"number|[^\w.-]", "", shown)[:10]
    return NAME in said and (digits in re.sub(r"[^\w.-]", "", said) or str(kind) in said)


def show(column: pa.ChunkedArray) -> str:
    """A value of a table of one row, as the page shows it: what differs is shown differently."""
    return _show(pa.concat_arrays(column.chunks))


def _show(array: pa.Array) -> str:  # noqa: PLR0911 (a table of cases)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _show(array.dictionary_decode())
    if array.null_count or pa.types.is_null(kind):
        return "null"
    if pa.types.is_list(kind):
        return f"[{', '.join(_show(array.values.slice(number, 1)) for number in range(len(array.values)))}]"
    if pa.types.is_map(kind):
        return f"{{{', '.join(f'{key!r}: {item!r}' for key, item in array[0].as_py())}}}"
    if pa.types.is_timestamp(kind) and kind.unit == "s" and abs(array.view(pa.int64())[0].as_py()) < 2**43:
        return _show(array.cast(pa.timestamp("us", kind.tz)))
    if pa.types.is_duration(kind) or (pa.types.is_timestamp(kind) and kind.unit == "s"):
        return f"{array.view(pa.int64())[0].as_py()} {kind.unit}"
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        zone = "Z" if pa.types.is_timestamp(kind) and kind.tz else ""
        plain = array.view(pa.timestamp(kind.unit)) if zone else array
        text = str(pc.cast(plain, pa.string())[0].as_py()).replace("<value out of range: ", "number ").rstrip(">")
        return text.removesuffix(".000000") + zone
    value = array[0].as_py()
    return f"{value:f}" if isinstance(value, Decimal) else repr(value)


# --- The page ---------------------------------------------------------------------------------------------------------


def code(shown: str) -> str:
    """A value in a cell of the page."""
    return "null" if shown == "null" else f"`{_short(shown)}`"


def _short(shown: str) -> str:
    """Without what would end the cell, and a run of digits by its number."""
    for digit in "90":
        shown = re.sub(f"{digit}{{16,}}", lambda run: f"{run[0][0]}...{run[0][0]} ({len(run[0])} digits)", shown)
    return shown.replace("|", "\\|")


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def values_table(ways: dict[str, Way], folder: Path) -> str:
    """What becomes of each value on these ways: by itself, and beside the others of its type."""
    rows = []
    for (kind, ddl), group in itertools.groupby(tables(), key=lambda each: each[:2]):
        values = [table for *_, table in group]
        name = "dictionary of string" if "dictionary" in kind else kind
        cells = [[cell(each, way, kind, ddl, table, folder) for each, way in ways.items()] for table in values]
        for column, (each, way) in enumerate(ways.items()):
            come_back = [n for n, row in enumerate(cells) if row[column] not in ("refused", "bad", "-")]
            if len(come_back) > 1 and each != "`State[T]`":  # (which holds one value)
                said = neighbours(way, ddl, [values[n] for n in come_back], folder)
                wrong = [
                    n for n, told in zip(come_back, said, strict=True) if not told_by(cells[n][column], told, values[n])
                ]
                for n in wrong:
                    cells[n][column] += f" DEFECT beside others {said}"
        rows += [[f"`{name}`", code(show(table[NAME])), *row] for table, row in zip(values, cells, strict=True)]
    return lines(["type", "value", *ways], rows)


def neighbours(way: Way, ddl: str | None, values: Sequence[pa.Table], folder: Path) -> list[str]:
    """What comes back of values that go one way in one batch."""
    keys = pa.array(range(1, len(values) + 1), pa.int64())
    table = pa.concat_tables(values).set_column(1, "k", keys)
    try:
        found = way.back(way.out(table, folder), ddl)[NAME].combine_chunks()
    except Exception as error:  # noqa: BLE001 (that is a defect)
        return [f"{type(error).__name__}: {error}"] * len(values)
    return [_show(pa.concat_arrays([found.slice(n, 1)])) for n in range(len(found))]


def told_by(said: str, found: str, value: pa.Table) -> bool:
    """Whether a cell says that this comes back."""
    return (said == "same" and found == show(value[NAME])) or said.startswith(f"{code(found)} (")


def check(found: dict[str, str], *, rewrite: bool) -> None:
    """That the page has these tables, and that no cell is a defect. ``rewrite`` puts them there first."""
    drawn = PAGE.read_text("utf-8")
    for name, table in found.items():
        at = re.compile(rf"(?<=<!-- {name} -->\n\n).*?(?=\n\n<!-- end -->)", re.S)
        drawn = at.sub(lambda _, table=table: table, drawn)  # type: ignore[misc]
    if rewrite:
        PAGE.write_text(drawn, "utf-8")
    defects = [line for table in found.values() for line in table.splitlines() if "DEFECT" in line]
    assert not defects, "fix these"
    assert PAGE.read_text("utf-8") == drawn, "run this file of tests with --rewrite"
