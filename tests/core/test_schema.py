"""Spark's schema strings as Arrow schemas."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.errors import JobInvalid


def test_every_type_means_what_it_means_to_spark():
    """Each of Spark's type names gives the Arrow type of the same width and meaning."""
    ddl = """
        a string, b boolean, c tinyint, d byte, e smallint, f short, g int, h integer, i bigint, j long, k float, l real,
        m double, n date, o timestamp, p timestamp_ntz, q binary, r decimal, s decimal(12), t decimal(10,2),
        u varchar(10), v array<int>, w map<string, double>, x struct<a: int, b: array<struct<c string>>>
    """
    assert [field.type for field in arrow_schema(ddl)] == [
        pa.string(),
        pa.bool_(),
        pa.int8(),
        pa.int8(),
        pa.int16(),
        pa.int16(),
        pa.int32(),
        pa.int32(),
        pa.int64(),
        pa.int64(),
        pa.float32(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("us"),
        pa.binary(),
        pa.decimal128(10, 0),
        pa.decimal128(12, 0),
        pa.decimal128(10, 2),
        pa.string(),
        pa.list_(pa.int32()),
        pa.map_(pa.string(), pa.float64()),
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))]),
    ]


def test_names_in_backticks_comments_and_not_null():
    """NOT NULL and COMMENT after a type are understood; case and a colon before the type do not matter."""
    schema = arrow_schema("`a b``c` INT Not Null COMMENT 'it\\'s' , D:String comment \"x\"")
    assert schema == pa.schema([pa.field("a b`c", pa.int32(), nullable=False), pa.field("D", pa.string())])


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("", "names no column"),
        ("a strin", "did you mean 'string'?"),
        ("a", "column 'a' has no type"),
        ("a int b int", "',' is missing after column 'a'"),
        ("a int,", "a column's name should come here"),
        ("a int, A int", "is there twice"),
        ("a decimal(50,2)", "does not exist"),
        ("a decimal(1,", "a whole number"),
        ("a array<int", "'>' is missing"),
        ("a map<int>", "',' is missing"),
        ("a int not nul", "'null' is missing"),
        ("a; int", "';' is not allowed here"),
        ("a int comment x", "a quoted text"),
        ("a varchar()", "a whole number"),
    ],
)
def test_a_bad_schema_says_what_and_where(ddl, says):
    """Every mistake is one error with its place in the string."""
    with pytest.raises(JobInvalid) as caught:
        arrow_schema(ddl)
    assert caught.value.code == "SX-JOB-SCHEMA"
    assert says in caught.value.message
    assert "at character" in caught.value.cause
