"""Input files: every line once, in the types that were declared, and a clear error for everything else."""

import bz2
import gzip
import io
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.connectors.files import byte_ranges
from sardonyx.connectors.files.input import FilesInput
from sardonyx.connectors.registry import output, split_input
from sardonyx.core.errors import InputError
from sardonyx.core.spec import TaskSpec
from tests.sizes import histories


def connectors(path, **options) -> FilesInput:
    given_path = [str(one) for one in path] if isinstance(path, list) else str(path)
    found = split_input(TaskSpec(name="in", type="input", connector="files", options={"path": given_path, **options}))
    assert isinstance(found, FilesInput)
    return found


def read(path, **options) -> pa.Table:
    """Everything behind a path, piece by piece."""
    source = connectors(path, **options)
    tables = [source.read(split.data) for split in source.splits()]
    return pa.concat_tables(tables) if tables else pa.table({})


def csv(tmp_path: Path, content: str | bytes, **options) -> pa.Table:
    file = tmp_path / "in.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read(file, format="csv", **options)


def refused(tmp_path: Path, content: str | bytes, **options) -> InputError:
    with pytest.raises(InputError) as caught:
        csv(tmp_path, content, **options)
    return caught.value


# --- Ranges -----------------------------------------------------------------------------------------------------------


@given(
    lines=st.lists(st.sampled_from([b"", b"a", b"bb", b"ccc\r", b"dddddddddd"]), max_size=12),
    last=st.sampled_from([b"", b"\n"]),
    size=st.integers(1, 40),
)
def test_ranges_of_any_size_cover_each_line_once(lines, last, size):
    """What the ranges of a file own is, one behind the other, the file; and every line is owned by where it begins."""
    content = b"\n".join(lines) + (last if lines else b"")
    pieces = []
    for start in range(0, len(content), size):
        found, begin = byte_ranges.owned(io.BytesIO(content), start, min(start + size, len(content)))
        pieces.append(found)
        if found:
            assert start <= begin < start + size
            assert content[begin : begin + len(found)] == found
    assert b"".join(pieces) == content


_words = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=6)


@settings(max_examples=histories(20, whole=60))
@given(
    rows=st.lists(st.tuples(_words, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))), max_size=15),
    size=st.integers(1, 60),
    ending=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    trailing=st.booleans(),
    blank=st.booleans(),
)
def test_csv_is_the_same_however_it_is_cut(tmp_path_factory, rows, size, ending, mark, trailing, blank):
    """Quoted separators, either line ending, a byte order mark, blank lines, no last line feed: any split gives all rows."""
    quoted = ['"{}",{}'.format(text.replace('"', '""'), "" if number is None else number) for text, number in rows]
    lines = ["s,n", *([""] if blank else []), *quoted]
    content = ("\ufeff" if mark else "") + ending.join(lines) + (ending if trailing else "")
    file = tmp_path_factory.mktemp("cut") / "in.csv"
    file.write_bytes(content.encode())
    table = read(file, format="csv", header=True, schema="n bigint, s string", split_size=size)
    assert table.schema == pa.schema([("n", pa.int64()), ("s", pa.string())])
    assert list(zip(table["s"].to_pylist(), table["n"].to_pylist(), strict=True)) == rows


# --- Splits and lines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "json", "text", "parquet"])
def test_the_parts_of_a_split_are_the_split(tmp_path, kind, monkeypatch):
    """Several workers may read one split; a small one is left as it is, and a file that must be read whole is not divided."""
    rows = pa.table({"value": [f"text {number}" for number in range(100)]})
    path = tmp_path / f"in.{kind}"
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=30)
    else:
        lines = [f'{{"value": "{value}"}}' if kind == "json" else value for value in rows["value"].to_pylist()]
        path.write_text("\n".join(lines))
    source = connectors(path, format=kind, schema="value string")
    (split,) = source.splits()
    if kind != "parquet":
        assert source.divide(split.data, 3) == [split.data]
    monkeypatch.setattr("sardonyx.connectors.files.input.SMALLEST_PART", 16)
    for most in (1, 2, 3, 20):
        parts = source.divide(split.data, most)
        assert len(parts) == min(most, 4 if kind == "parquet" else most)
        assert pa.concat_tables([source.read(part) for part in parts]).equals(source.read(split.data))
    packed = tmp_path / "in.csv.gz"
    packed.write_bytes(gzip.compress(b"x\n" * 30))
    whole = connectors(packed, format="csv", schema="value string")
    assert whole.divide(next(iter(whole.splits())).data, 3) is None


def test_that_a_file_was_changed_is_told_before_what_is_wrong_with_it_now(tmp_path):
    """Else a user would look for a value that no file holds any more."""
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n")
    connector = connectors(path, format="csv", header=True, schema="a int")
    (split,) = connector.splits()

    def read_as_it_changes() -> None:
        with byte_ranges.unchanged(str(path), split.data):
            path.write_text("a\nx\n" * 2)
            raise InputError("SX-INPUT-SCHEMA", "line 2: column 'a' holds 'x'")

    with pytest.raises(InputError) as caught:
        read_as_it_changes()
    assert caught.value.code == "SX-INPUT-CHANGED"


@settings(max_examples=histories(20, whole=60))
@given(
    texts=st.lists(st.one_of(st.none(), _words, st.just(" "), st.just("\n"), st.just("\r\n")), max_size=8),
    columns=st.integers(1, 2),
    header=st.booleans(),
    declared=st.booleans(),
    size=st.integers(1, 60),
    codec=st.sampled_from(["none", "gzip"]),
)
def test_the_csv_that_we_write_is_read_back(tmp_path_factory, texts, columns, header, declared, size, codec):
    """Texts, empty ones and nulls, also where a row is nothing but a null and its line is blank."""
    names = ["s", "t"][:columns] if header else ["_c0", "_c1"][:columns]
    table = pa.table({name: pa.array(texts, pa.string()) for name in names})
    folder = tmp_path_factory.mktemp("back") / "out"
    written = TaskSpec(
        name="out",
        type="output",
        connector="files",
        options={"path": str(folder), "format": "csv", "header": header, "compression": codec},
    )
    out = output(written, "job-1")
    out.seal(out.stage(table))
    several = any(text and not text.strip("\r\n") for text in texts)
    schema = {"schema": ", ".join(f"`{name}` string" for name in names)} if declared else {}
    found = read(folder, format="csv", header=header, split_size=size, multiLine=several, **schema)
    assert found.num_rows == len(texts)
    assert not texts or found.equals(table)


def test_blank_lines_are_rows_of_one_column_only(tmp_path):
    """In a file of several columns, and before the header, a blank line says nothing."""
    assert csv(tmp_path, "\n\nn\n\n1\n\r\n", header=True, schema="n int")["n"].to_pylist() == [None, 1, None]
    assert csv(tmp_path, "\n\n", schema="n int")["n"].to_pylist() == [None, None]
    assert csv(tmp_path, "\n\n", schema="n int, m int").num_rows == 0
    assert csv(tmp_path, "\n1,2\n\n", schema="n int, m int").num_rows == 1
    assert "line 4: column 'n' holds 'x'" in refused(tmp_path, "n\n\n1\nx\n", header=True, schema="n int").message


@pytest.mark.parametrize("content", ["", "a,b\n", "a,b", "\n\n", "\ufeffa,b\r\n\r\n"])
def test_empty_input_has_no_rows(tmp_path, content):
    """An empty file, only a header, only blank lines: zero rows, no error."""
    assert csv(tmp_path, content, header=True, schema="a int").num_rows == 0


def test_an_empty_folder_has_no_rows(tmp_path):
    """A folder is there even if nothing is in it."""
    assert read(tmp_path, format="json", schema="a int").num_rows == 0


def test_a_file_changed_meanwhile_is_refused(tmp_path):
    """A batch that is read again must be the same, so another size or time is an error; a removed file too."""
    file = tmp_path / "in.txt"
    file.write_text("a\nb\n")
    source = connectors(file, format="text")
    (split,) = source.splits()
    file.write_text("a\nc\n")
    os.utime(file, ns=(0, split.data["mtime_ns"] + 1))
    with pytest.raises(InputError, match="was changed"):
        source.read(split.data)
    os.utime(file, ns=(0, split.data["mtime_ns"]))
    assert source.read(split.data).num_rows == 2
    file.unlink()
    with pytest.raises(InputError) as caught:
        source.read(split.data)
    assert caught.value.code == "SX-INPUT-MISSING"


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_columns_are_matched_by_name(tmp_path):
    """A schema may name some of the columns, in its own order; the others are not even looked at."""
    table = csv(tmp_path, "a,b,c\n1,x,2.5\n3,y,bad\n", header=True, schema="b string, a int")
    assert table.to_pydict() == {"b": ["x", "y"], "a": [1, 3]}
    assert table.schema == pa.schema([("b", pa.string()), ("a", pa.int32())])


def test_a_column_that_the_file_lacks_names_the_nearest(tmp_path):
    """The error says what there is and what was probably meant; it comes when the job is split, before any reading."""
    error = refused(tmp_path, "carrier,dep_delay\nAA,1\n", header=True, schema="dep_dely double")
    assert error.code == "SX-INPUT-SCHEMA"
    assert "'dep_dely'" in error.message
    assert "carrier, dep_delay" in error.cause
    assert "did you mean 'dep_delay'" in error.fix


def test_without_a_header_the_schema_goes_by_position(tmp_path):
    """It may be shorter than the file, not longer; without a schema the columns have Spark's names."""
    assert csv(tmp_path, "1,x\n2,y\n", schema="n int").to_pydict() == {"n": [1, 2]}
    assert csv(tmp_path, "1,x\n2,y\n").to_pydict() == {"_c0": ["1", "2"], "_c1": ["x", "y"]}
    error = refused(tmp_path, "1,x\n", schema="a int, b string, c int")
    assert "3 columns and the file has 2" in error.message


def test_what_counts_as_null(tmp_path):
    """A string is null only if nothing stands there, not even quotes; other types also by the usual words."""
    content = 's,n,d\n,,\n"","",NaN\nNA,NA,null\nnull,N/A,1.5\n'
    table = csv(tmp_path, content, header=True, schema="s string, n int, d double")
    assert table["s"].to_pylist() == [None, "", "NA", "null"]
    assert table["n"].to_pylist() == [None] * 4
    assert table["d"].to_pylist() == [None, None, None, 1.5]


def test_null_value_applies_to_every_column(tmp_path):
    """What nullValue names is null in strings, too."""
    table = csv(tmp_path, "s,n\n-,-\nx,1\n,2\n", header=True, schema="s string, n int", nullValue="-")
    assert table.to_pydict() == {"s": [None, "x", None], "n": [None, 1, 2]}


def test_types(tmp_path):
    """Each type as people write it; moments without a zone are UTC."""
    schema = "i tinyint, f float, b boolean, d date, t timestamp, z timestamp_ntz, m decimal(10,2), y binary"
    content = (
        "i,f,b,d,t,z,m,y\n"
        " 7 ,1.5,TRUE,2013-01-01,2013-01-01 10:00:00,2013-01-01T10:00:00,1.5,YWI=\n"
        "+7,1e3,false,1969-12-31,2013-01-01T10:00:00.123456789+05:30,2013-01-01,-2,\n"
        "-128,inf,True,0001-01-01,2013-01-01T10:00Z,2013-01-01 10:00,0.10,w6k=\n"
        "0,-0.0,FALSE,9999-12-31,2013-01-01,2013-01-01 10:00:00.5,NA,eA==\n"
    )
    table = csv(tmp_path, content, header=True, schema=schema)
    assert table["i"].to_pylist() == [7, 7, -128, 0]
    assert table["f"].to_pylist() == [1.5, 1000.0, float("inf"), -0.0]
    assert table["b"].to_pylist() == [True, False, True, False]
    assert table["d"].to_pylist()[1:] == [date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31)]
    assert table["t"].to_pylist() == [
        datetime(2013, 1, 1, 10, tzinfo=UTC),
        datetime(2013, 1, 1, 4, 30, 0, 123456, tzinfo=UTC),
        datetime(2013, 1, 1, 10, tzinfo=UTC),
        datetime(2013, 1, 1, tzinfo=UTC),
    ]
    assert table["z"].to_pylist()[3] == datetime(2013, 1, 1, 10, 0, 0, 500000)  # noqa: DTZ001 - that is the type
    assert table["m"].to_pylist() == [Decimal("1.50"), Decimal("-2.00"), Decimal("0.10"), None]
    assert table["y"].to_pylist() == [b"ab", None, "\u00e9".encode(), b"x"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "abc"),
        ("int", "1.0"),
        ("int", "0x10"),
        ("int", "3000000000"),
        ("double", "1,5"),
        ("boolean", "1"),
        ("date", "2013-02-30"),
        ("timestamp", "yesterday"),
        ("timestamp_ntz", "2013-01-01T10:00:00Z"),
        ("decimal(4,1)", "1.55"),
        ("decimal(4,1)", "12345"),
        ("binary", "ab"),
    ],
)
def test_a_value_that_does_not_fit_says_where(tmp_path, kind, text):
    """File, line, column, value and type; also in a piece that is not the first, with blank lines before."""
    content = f's,v\r\n\n  \nx,\nx,\ny,"{text}"\n'
    error = refused(tmp_path, content, header=True, schema=f"v {kind}", split_size=6)
    assert error.code == "SX-INPUT-SCHEMA"
    assert "in.csv, line 6: column 'v' holds " in error.message
    assert text in error.message
    assert error.where["line"] == "6"


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("a,b\n1,2\n1,2,3\n", "line 3: it has 3 columns where the first line has 2"),
        ("a,b\n\n   \n1,2\n1\n", "line 5: it has 1 columns"),
        ('a,b\n1,"x\ny"\n', "runs over several lines"),
        ('a,b\n1,"x\n', "runs over several lines"),
        ('a,b\n1,"never closed\n2,3\n', "runs over several lines"),
        ("a,b\n1,2\r3,4\n", "carriage return"),
        (b"a,b\n1,2\n1,\xff\n", "line 3: byte 0xff is not utf-8"),
        ("a,a\n1,2\n", "names column 'a' more than once"),
    ],
)
def test_what_is_no_csv_is_refused(tmp_path, content, wrong):
    """No record is dropped, cut or run into its neighbour without a word."""
    error = refused(tmp_path, content, header=True, schema="a string")
    assert error.code == "SX-INPUT-SCHEMA"
    assert wrong in error.message


def test_values_over_several_lines_when_asked_for(tmp_path):
    """With multiLine a file is read as a whole; a quote that is never closed is still an error."""
    content = 'a,"b\nc"\n1,"x\n\ny"\n2,z\n'
    table = csv(tmp_path, content, header=True, multiLine=True, split_size=4)
    assert table.to_pydict() == {"a": ["1", "2"], "b\nc": ["x\n\ny", "z"]}
    error = refused(tmp_path, 'a,b\n1,"x\n2,z\n3,y\n', header=True, multiLine=True)
    assert error.code == "SX-INPUT-SCHEMA"


def test_other_dialects(tmp_path):
    """sep, quote, escape as in Spark; quotes can be turned off."""
    assert csv(tmp_path, "a|b\n'x|y'|1\n", header=True, sep="|", quote="'").to_pydict() == {"a": ["x|y"], "b": ["1"]}
    assert csv(tmp_path, 'a\n"x\\"y"\n', header=True, escape="\\").to_pydict() == {"a": ['x"y']}
    assert csv(tmp_path, 'a\tb\n"x\ty\n', header=True, sep="\t", quote="").to_pydict() == {"a": ['"x'], "b": ["y"]}
    with pytest.raises(InputError, match="sep cannot be '::'"):
        csv(tmp_path, "a::b\n", header=True, sep="::")


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "windows-1252", "UTF-16", "utf-8-sig"])
def test_other_encodings(tmp_path, encoding):
    """Cut where lines can be told apart in the bytes, read whole where not."""
    rows = ["\u00e4\u00f6\u00fc" * 5, "caf\u00e9"] * 10
    content = "w\u00f6rd\n" + "\n".join(rows)
    assert (
        csv(tmp_path, content.encode(encoding), header=True, encoding=encoding, split_size=9)["w\u00f6rd"].to_pylist()
        == rows
    )
    with pytest.raises(InputError, match="there is no encoding 'klingon'"):
        csv(tmp_path, "a\n", header=True, encoding="klingon")


@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("zst", None), ("lz4", None)]
)
def test_compressed_files(tmp_path, suffix, compress):
    """By their name; each is one piece. An error still tells the line."""
    content = b"a,b\n" + b"".join(b"%d,x\n" % n for n in range(1000))
    file = tmp_path / f"in.csv.{suffix}"
    name = {"zst": "zstd", "lz4": "lz4"}.get(suffix, suffix)
    if compress:
        file.write_bytes(compress(content[:500]) + compress(content[500:]))  # several members are one file
    else:
        with pa.CompressedOutputStream(str(file), name) as out:
            out.write(content)
    assert len(list(connectors(file, format="csv", header=True, split_size=64).splits())) == 1
    assert read(file, format="csv", header=True, schema="a int")["a"].to_pylist() == list(range(1000))
    with pytest.raises(InputError, match="line 2: column 'b' holds 'x'"):
        read(file, format="csv", header=True, schema="b int")


def test_broken_and_foreign_compression_is_refused(tmp_path):
    """Neither gives garbage rows."""
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a\n" + os.urandom(9000))[:5000])
    (tmp_path / "b.csv.zip").write_bytes(b"PK")
    for name in ("a.csv.gz", "b.csv.zip"):
        with pytest.raises(InputError) as caught:
            read(tmp_path / name, format="csv", header=True)
        assert caught.value.code == "SX-INPUT-UNREADABLE"


def test_files_without_a_schema_must_agree(tmp_path):
    """With a schema their columns may stand in any order."""
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("b,a\n3,4\n")
    assert read(tmp_path, format="csv", header=True, schema="a int")["a"].to_pylist() == [1, 4]
    with pytest.raises(InputError, match=r"2\.csv has other columns than .*1\.csv"):
        read(tmp_path, format="csv", header=True)


def test_not_null_is_kept(tmp_path):
    """A missing value in such a column is an error, with its line."""
    error = refused(tmp_path, "a,b\n1,2\n,3\n", header=True, schema="a int not null")
    assert "line 3: column 'a' is declared NOT NULL" in error.message


# --- The other formats ------------------------------------------------------------------------------------------------


def test_json_lines(tmp_path):
    """Missing fields are null, unknown ones ignored, blank lines skipped; the error for a bad line names its number."""
    file = tmp_path / "in.json"
    file.write_text('\ufeff{"a":1,"x":[1]}\r\n\r\n{"a":null}\n{}\n{"a":4,"t":"2013-01-01 10:00:00"}')
    table = read(file, format="json", schema="a int, t timestamp", split_size=7)
    assert table["a"].to_pylist() == [1, None, None, 4]
    assert table["t"].to_pylist()[3] == datetime(2013, 1, 1, 10, tzinfo=UTC)
    file.write_text('{"a":1}\n\n{"a":"x"}\n')
    with pytest.raises(InputError, match=r'line 3: column .a. holds "x", which is not of type int32'):
        read(file, format="json", schema="a int", split_size=4)
    with pytest.raises(InputError, match="json files need a schema"):
        connectors(file, format="json")


def test_text(tmp_path):
    """A row a line, blank ones too, without the line's ending."""
    file = tmp_path / "in.log"
    file.write_text("a\r\n\n  c\nlast")
    table = read(file, format="text", split_size=2)
    assert table.schema == pa.schema([("value", pa.string())])
    assert table["value"].to_pylist() == ["a", "", "  c", "last"]
