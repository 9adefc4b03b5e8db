"""How rows stand as single records on a user's topic: nothing lost on the way there and back, bad records told apart."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.connectors.registry import topic_format
from sardonyx.connectors.schema import arrow_schema
from sardonyx.connectors.topics import avro_types
from sardonyx.core.errors import OutputError
from tests.sizes import histories

ALL_TYPES = (
    "s string, y tinyint, h smallint, i int, l bigint, f float, d double, b boolean, dt date, t timestamp, "
    "n timestamp_ntz, m decimal(20,6), r binary, a array<timestamp>, st struct<x:int,w:decimal(5,2)>, "
    "mp map<string,date>, aa array<struct<k:map<string,array<binary>>>>"
)


def json_format(**options):
    return topic_format({"format": "json", **options})


def bad_reasons(values, **options):
    decoded = json_format(**options).decode(values)
    assert all(failure.code == "SX-RECORD-UNDECODABLE" for _, failure in decoded.bad)
    return decoded.table, {index: failure.message.split(": ", 1)[1] for index, failure in decoded.bad}


# --- There and back ---------------------------------------------------------------------------------------------------

_text = st.text(st.characters(codec="utf-8"), max_size=8)
_moment = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - the zone is added where there is one
_day = st.dates()
_bytes = st.binary(max_size=8)
_decimal = st.decimals(-(10**13), 10**13, places=6)
_row = st.fixed_dictionaries(
    {
        "s": st.none() | _text,
        "y": st.none() | st.integers(-128, 127),
        "h": st.none() | st.integers(-(2**15), 2**15 - 1),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "dt": st.none() | _day,
        "t": st.none() | _moment.map(lambda moment: moment.replace(tzinfo=UTC)),
        "n": st.none() | _moment,
        "m": st.none() | _decimal,
        "r": st.none() | _bytes,
        "a": st.none() | st.lists(st.none() | _moment.map(lambda moment: moment.replace(tzinfo=UTC)), max_size=3),
        "st": st.none()
        | st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "w": st.none() | st.just(Decimal("1.50"))}),
        "mp": st.none() | st.dictionaries(_text, st.none() | _day, max_size=3).map(lambda found: list(found.items())),
        "aa": st.none()
        | st.lists(
            st.fixed_dictionaries(
                {
                    "k": st.none()
                    | st.dictionaries(_text, st.lists(_bytes, max_size=2), max_size=2).map(
                        lambda found: list(found.items())
                    )
                }
            ),
            max_size=2,
        ),
    }
)


@settings(max_examples=histories(20, whole=60))
@given(st.lists(_row, max_size=5), st.integers(0, 2))
def test_every_type_goes_there_and_back(rows, cut):
    """Encoding and decoding by the same schema gives the same table, also from the middle of a larger one."""
    schema = arrow_schema(ALL_TYPES)
    table = pa.Table.from_pylist(rows, schema=schema).slice(cut)
    form = json_format(schema=ALL_TYPES)
    records = list(form.encode(table))
    assert all(key is None for key, _ in records)
    decoded = form.decode([value for _, value in records])
    assert decoded.bad == []
    assert decoded.table.schema == schema
    assert decoded.table.to_pylist() == table.to_pylist()


def test_how_values_are_written():
    """What other readers of the topic can rely on."""
    table = pa.table(
        {
            "t": pa.array([datetime(2013, 1, 1, 10, tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin")),
            "n": pa.array([datetime(2013, 1, 1, 10)], pa.timestamp("ns")),  # noqa: DTZ001 - that is the type
            "dt": [date(2013, 1, 1)],
            "m": [Decimal("0.00000001")],
            "r": [b"\x00\xff"],
            "nan": [float("nan")],
            "inf": [float("-inf")],
            "f": pa.array([0.1], pa.float32()),
            "none": pa.nulls(1),
            "q": ['"\n\u2028'],
            "dict": pa.array(["x"]).dictionary_encode(),
            "map": pa.array([[(1, [True])]], pa.map_(pa.int32(), pa.list_(pa.bool_()))),
        }
    )
    ((key, value),) = json_format().encode(table)
    assert key is None
    assert json.loads(value) == {
        "t": "2013-01-01T10:00:00.000000Z",
        "n": "2013-01-01T10:00:00.000000",
        "dt": "2013-01-01",
        "m": "0.00000001",
        "r": "AP8=",
        "nan": None,
        "inf": None,
        "f": 0.1,
        "none": None,
        "q": '"\n\u2028',
        "dict": "x",
        "map": {"1": [True]},
    }


def test_null_maps_that_span_entries_are_stepped_over():
    """A null may hide values below it; those of its neighbours stay their own."""
    whole = pa.array([[("a", 1)], [("b", 2), ("c", 3)], [("d", 4)]], pa.map_(pa.string(), pa.int64()))
    entries = pa.StructArray.from_arrays(
        [whole.keys, whole.items], fields=[whole.type.key_field, whole.type.item_field]
    )
    second_is_null = [pa.py_buffer(b"\x05"), whole.buffers()[1]]
    hidden = pa.MapArray.from_buffers(whole.type, 3, second_is_null, 1, 0, [entries])
    table = pa.table({"m": hidden})
    assert [json.loads(value)["m"] for _, value in json_format().encode(table)] == [{"a": 1}, None, {"d": 4}]
    assert [json.loads(value)["m"] for _, value in json_format().encode(table.slice(2))] == [{"d": 4}]


# --- Keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        (pa.array(["a", None, "\u00e9"]), [b"a", None, "\u00e9".encode()]),
        (pa.array([1, None, -3]), [b"1", None, b"-3"]),
        (pa.array([b"\xff", None, b""]), [b"\xff", None, b""]),
        (pa.array([True, None, False]), [b"true", None, b"false"]),
        (pa.array([date(2013, 1, 1), None, None]), [b"2013-01-01", None, None]),
    ],
)
def test_the_key_column_becomes_the_key(column, keys):
    """As text in UTF-8, bytes as they are, null as no key; the column stays in the record."""
    found = list(json_format(key="k").encode(pa.table({"k": column})))
    assert all("k" in json.loads(value) for _, value in found)
    assert [key for key, _ in found] == keys


@pytest.mark.parametrize("format_", ["json", "raw"])
def test_a_key_column_that_is_missing(format_):
    """The error says what columns there are."""
    with pytest.raises(OutputError, match="key column 'k'") as caught:
        list(topic_format({"format": format_, "key": "k"}).encode(pa.table({"value": ["x"]})))
    assert caught.value.code == "SX-OUTPUT-KEY"
    assert "value string" in caught.value.cause


# --- Bad records ------------------------------------------------------------------------------------------------------


def test_bad_records_are_told_apart():
    """Each by its index and with its reason; the good ones stay, in order."""
    table, bad = bad_reasons(
        [
            b'{"a":1}',
            None,
            b"",
            b"  \n",
            b'{\n  "a": 2,\r\n  "b": {"x": []}\n}\n',
            b"[1]",
            b'{"a":"x"}',
            b'{"a":1}{"a":2}',
            b'{"a":\xff}',
            b'{"a":"line\nfeed"}',
            b"nope",
            b'{"a":1,',
            b'"b":2}',
            b'{"b":3}',
            b'{"a":3000000000}',
            b'{"a":1,"a":2}',
            b'\xef\xbb\xbf{"a":4}',
        ],
        schema="a int",
    )
    assert table.to_pydict() == {"a": [1, 2, None, 4]}
    assert list(bad) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15]
    assert bad[1] == "it has no value (a tombstone)"
    assert bad[2] == bad[3] == "it is empty"
    assert bad[5] == "it is JSON, but no object"
    assert bad[6] == "column 'a' holds \"x\", which is not of type int32"
    assert all("not JSON" in bad[index] for index in (7, 8, 10, 11, 12))


_records = st.lists(
    st.sampled_from(
        [
            b'{"a":1}',
            b'{"a":null}',
            b"{}",
            b'{"a":"x"}',
            b'{"a":1,',
            b'"a":2}',
            b'{"a":3}{"a":4}',
            b"{",
            b"}",
            b'{"a":{}',
            b'{"a":"}',
            b'"}',
            b"[]",
            b"",
            b" ",
        ]
    ),
    max_size=8,
)


@settings(max_examples=histories(60, whole=200))
@given(_records, st.sampled_from(["a int", "a int, m map<string,int>"]))
def test_a_record_does_not_depend_on_its_neighbours(records, schema):
    """Whatever stands beside it, in a batch a record becomes what it becomes alone: nothing runs together."""
    form = json_format(schema=schema)
    alone = [form.decode([record]) for record in records]
    together = form.decode(records)
    assert together.table.to_pylist() == [row for decoded in alone for row in decoded.table.to_pylist()]
    assert [index for index, _ in together.bad] == [index for index, decoded in enumerate(alone) if decoded.bad]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "1.0"),
        ("string", "1"),
        ("boolean", '"true"'),
        ("date", "5"),
        ("timestamp", "1700000000"),
        ("timestamp", '"soon"'),
        ("decimal(4,1)", "1.55"),
        ("binary", '"!"'),
        ("array<int>", "[1,2.5]"),
        ("map<string,int>", "[1]"),
        ("map<string,int>", '{"x":"y"}'),
        ("struct<x:int>", '{"x":"y"}'),
        ("int not null", "null"),
    ],
)
def test_values_of_another_type_are_bad(kind, text):
    """Nothing is rounded, cut or guessed; the reason names the column."""
    table, bad = bad_reasons([b'{"a":' + text.encode() + b"}"], schema=f"a {kind}")
    assert table.num_rows == 0
    assert "'a" in bad[0] or "JSON" in bad[0]


def test_numbers_keep_their_digits():
    """A decimal is read from its text, as a number or a string, also within a map."""
    form = json_format(schema="m decimal(30,10), mp map<string,decimal(30,10)>")
    text = "12345678901234567890.0123456789"
    table, bad = form.decode(
        [f'{{"m":{text},"mp":{{"x":{text}}}}}'.encode(), f'{{"m":"{text}"}}'.encode(), b'{"m":1.50}']
    )
    assert bad == []
    assert table["m"].to_pylist()[:2] == [Decimal(text)] * 2
    assert table["mp"].to_pylist()[0] == [("x", Decimal(text))]


def test_nesting_without_end_is_a_bad_record():
    """Not the end of the process: any producer may write this to a topic."""
    for depth in (100, 2_000, 200_000):
        poison = [b'{"a":' + b"[" * depth + b"]" * depth + b"}", b'{"b":1}', b'{"a":' * depth + b"1" + b"}" * depth]
        table, bad = bad_reasons(poison)
        assert table.to_pydict() == {"b": [1]}
        assert list(bad) == [0, 2]
        for schema in ("b int", "b int, m map<string,int>"):
            assert 1 in [row["b"] for row in json_format(schema=schema).decode(poison).table.to_pylist()]


def test_failures_show_the_record():
    """The beginning of it, whatever bytes they are."""
    ((_, failure),) = json_format(schema="a int").decode([b"\xff" * 500]).bad
    assert "\\xff" in failure.cause
    assert len(failure.cause) < 200


# --- Without a schema -------------------------------------------------------------------------------------------------


def test_inferred_types():
    """Texts stay texts, nulls become text; the rest is what it looks like. The first record settles what a column is."""
    table, bad = bad_reasons([b'{"i":1,"d":1,"t":"2013-01-01","n":null,"x":1,"l":[null]}', b'{"d":0.5,"x":2}'])
    assert bad == {}
    assert {field.name: str(field.type) for field in table.schema} == {
        "i": "int64",
        "d": "double",
        "t": "string",
        "n": "string",
        "x": "int64",
        "l": str(pa.list_(pa.string())),
    }
    decoded = json_format().decode(
        [b'{"x":"a","y":1}', b'{"x":[1,2],"y":0.5}', b"[]", b'{"x":null}', b'{"x":18446744073709551615}', b'{"y":2.5}']
    )
    assert [(index, failure.code) for index, failure in decoded.bad] == [
        (1, "SX-COLUMN-TYPE"),
        (2, "SX-RECORD-UNDECODABLE"),
        (4, "SX-RECORD-UNDECODABLE"),
    ]
    assert decoded.table.to_pydict() == {"x": ["a", None, None], "y": [1.0, None, 2.5]}
    assert json_format().decode([]).table.num_rows == 0


# --- Raw --------------------------------------------------------------------------------------------------------------


def test_raw_is_bytes_as_they_are():
    """Values, keys and tombstones go through unchanged. The columns do not depend on whether a record has a key."""
    form = topic_format({"format": "raw"})
    values, keys = [b"\xff\x00", None, b""], [None, b"k", b""]
    decoded = form.decode(values, keys)
    assert decoded.bad == []
    assert decoded.table.schema == form.decode([b"x"], [None]).table.schema
    assert decoded.table.schema == pa.schema([("value", pa.binary()), ("key", pa.binary())])
    assert list(form.encode(decoded.table)) == list(zip(keys, values, strict=True))
    assert list(form.encode(pa.table({"value": ["text"]}))) == [(None, b"text")]


def test_raw_needs_its_column():
    """The error says which column, and what there is."""
    with pytest.raises(OutputError, match=r"no column 'value'.*which format raw writes") as caught:
        list(topic_format({"format": "raw"}).encode(pa.table({"value": [1]})))
    assert caught.value.code == "SX-OUTPUT-RAW"


@settings(max_examples=histories(60, whole=200))
@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(width=64),
            st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.booleans(),
        ),
        max_size=30,
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.integers(0, 3),
)
def test_what_is_written_means_what_was_there(rows, name, cut):
    """Values and names of any kind, read again by another reader of JSON, are what they were; NaN and infinity are null."""
    names = [f"f{name}", f"s{name}", f"i{name}", f"b{name}"]
    kinds = [pa.float64(), pa.string(), pa.int64(), pa.bool_()]
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    written = [
        json.loads(value) for _, value in topic_format({"format": "json"}).encode(pa.table(columns, names)[cut:])
    ]
    for found, (number, *others) in zip(written, rows[cut:], strict=True):
        finite = number if number is not None and abs(number) < float("inf") else None
        assert list(found) == names
        assert list(found.values()) == [finite, *others]
        assert finite is None or isinstance(found[names[0]], float)


def test_half_floats_and_names_as_long_as_rows_are_written():
    """What Arrow has no kernel for, and what would not fit into one of its arrays."""
    half = pa.array([0.5, 1.0, None, float("nan"), -0.0]).cast(pa.float16())
    written = [value for _, value in topic_format({"format": "json"}).encode(pa.table({"h": half}))]
    assert written == [b'{"h":0.5}', b'{"h":1.0}', b'{"h":null}', b'{"h":null}', b'{"h":-0.0}']
    many = pa.table({"n" * 60_000: pa.array([1] * 3000, pa.int8())})
    assert sum(len(value) for _, value in topic_format({"format": "json"}).encode(many)) == 3000 * 60_006


def test_a_moment_that_cannot_be_written_is_refused():
    """Not written as a text that no reader takes for one."""
    for unit in ("s", "us"):
        far = pa.table({"at": pa.array([2**62], pa.timestamp(unit, "UTC"))})
        with pytest.raises(OutputError, match="column 'at' holds a timestamp that cannot be written"):
            list(topic_format({"format": "json"}).encode(far))


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "f", "size": 0},
        {"type": "record", "name": "r", "fields": []},
        {"type": "record", "name": "r", "fields": [{"name": "n", "type": "null"}]},
    ],
)
def test_an_avro_array_of_nothing_is_refused(items: Any) -> None:
    """Six bytes of a record would be a billion items in memory. A column of nothing, and an array of bytes, are columns."""

    def columns(kind: Any) -> pa.Schema:
        return avro_types.to_arrow({"type": "record", "name": "all", "fields": [{"name": "x", "type": kind}]})

    with pytest.raises(ValueError, match=r"field 'x': .*no bytes"):
        columns({"type": "array", "items": items})
    assert columns("null").names == ["x"]
    assert columns({"type": "array", "items": "bytes"}).field("x").type == pa.list_(pa.field("element", pa.binary()))
