"""Parquet files as input: cut by row groups, within what memory holds, and in the types that were declared."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_files_input import connectors, read

from sardonyx.connectors.files import parquet_rows
from sardonyx.core.errors import InputError


def test_parquet_by_row_groups(tmp_path):
    """Row groups are read in groups of about split_size, with their rows known; columns by name, in declared types."""
    file = tmp_path / "in.parquet"
    table = pa.table(
        {"a": pa.array(range(1000), pa.int32()), "s": ["x" * 50] * 1000, "t": pa.array(range(1000), pa.timestamp("ns"))}
    )
    pq.write_table(table, file, row_group_size=100, use_dictionary=False)
    source = connectors(file, format="parquet", schema="s string, a bigint", split_size=15_000)
    splits = list(source.splits())
    assert 1 < len(splits) < 10
    assert sum(split.rows or 0 for split in splits) == 1000
    found = pa.concat_tables(source.read(split.data) for split in splits)
    assert found.schema == pa.schema([("s", pa.string()), ("a", pa.int64())])
    assert found["a"].to_pylist() == list(range(1000))
    assert read(file, format="parquet").schema.field("t").type == pa.timestamp("us")
    with pytest.raises(InputError, match="names column 'b', which the file does not have"):
        read(file, format="parquet", schema="b int")
    with pytest.raises(InputError, match="column 's' has type string, which cannot be read as int32"):
        read(file, format="parquet", schema="s int")
    file.write_bytes(b"PAR1 or not")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read(file, format="parquet")


@pytest.mark.parametrize("kind", ["texts", "equal", "together"])
def test_a_row_group_that_memory_cannot_hold_is_refused_before_it_is_read(tmp_path, monkeypatch, kind):
    """By its size, by what a few bytes of it become, or with others of one split; what is left out does not count. The same when
    a file is listed, and when a piece is read that was listed before.
    """
    rows = 1000
    wide = [f"{n:05}" * 40 for n in range(rows)] if kind == "texts" else pa.nulls(rows, pa.float64())
    file = tmp_path / "in.parquet"
    groups = 4 if kind == "together" else 1
    pq.write_table(pa.table({"n": range(rows), "wide": wide}), file, row_group_size=rows // groups)
    source = connectors(file, format="parquet")
    pieces = list(source.splits())
    assert sum(source.read(piece.data).num_rows for piece in pieces) == rows
    monkeypatch.setattr(parquet_rows, "MOST_BYTES", 12_000)
    fix = "split_size" if kind == "together" else "smaller row groups"
    for again in (lambda: list(source.splits()), lambda: source.read(pieces[0].data)):
        with pytest.raises(InputError, match=r"in\.parquet: row group 0.* of 1,000 rows would take") as caught:
            again()
        assert caught.value.code == "SX-INPUT-LARGE"
        assert fix in caught.value.fix
    monkeypatch.setattr(parquet_rows, "MOST_BYTES", 30_000)
    assert read(file, format="parquet", schema="n bigint").num_rows == rows


def test_int96_of_parquet_holds_any_year(tmp_path):
    """Spark writes moments so by default. They are what they were, with and without a schema, in nested columns, too."""
    texts = pa.array(["9999-12-31T23:59:59.999999", "0001-01-01T00:00:00.000000", "1969-12-31T23:59:59.999999", None])
    moments = texts.cast(pa.timestamp("us"))
    lists = pa.array([[each] for each in moments.to_pylist()], pa.list_(moments.type))
    table = pa.table({"t": moments, "l": lists})
    pq.write_table(table, tmp_path / "in.parquet", use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(tmp_path / "in.parquet").schema.column(0).physical_type == "INT96"
    for schema in ({}, {"schema": "t timestamp_ntz, l array<timestamp_ntz>"}):
        assert read(tmp_path / "in.parquet", format="parquet", **schema).cast(table.schema).equals(table)
    utc = read(tmp_path / "in.parquet", format="parquet", schema="t timestamp")["t"]
    assert utc.equals(table["t"].cast(pa.timestamp("us", "UTC")))


def test_nanoseconds_of_parquet_are_cut_in_the_same_way_with_and_without_a_schema(tmp_path):
    """They are cut to the microsecond before, as texts are; also before 1970, and in nested columns."""
    nanos = pa.array([1_999, -1, None, -1_000, 0], pa.timestamp("ns"))
    pairs = pa.StructArray.from_arrays([nanos], ["t"], mask=pa.array([False, False, False, True, False]))
    lists = pa.array([[1_999, -1], None, [], [None, 5], [-1]], pa.list_(pa.timestamp("ns")))
    pq.write_table(pa.table({"t": nanos, "s": pairs, "l": lists}), tmp_path / "in.parquet")
    cut = pa.array([1, -1, None, -1, 0], pa.timestamp("us")).to_pylist()
    one, minus = cut[0], cut[1]
    for schema in ({}, {"schema": "t timestamp_ntz, s struct<t: timestamp_ntz>, l array<timestamp_ntz>"}):
        found = read(tmp_path / "in.parquet", format="parquet", **schema)
        assert found["t"].to_pylist() == cut
        assert found["s"].to_pylist() == [{"t": one}, {"t": minus}, {"t": None}, None, {"t": cut[4]}]
        assert found["l"].to_pylist() == [[one, minus], None, [], [None, cut[4]], [minus]]
    utc = read(tmp_path / "in.parquet", format="parquet", schema="t timestamp")["t"]
    assert utc.cast(pa.int64()).to_pylist() == [1, -1, None, -1, 0]


def test_a_moment_of_parquet_that_microseconds_cannot_hold_is_refused(tmp_path):
    """Milliseconds reach further; they do not come round to another year."""
    pq.write_table(pa.table({"t": pa.array([2**62], pa.timestamp("ms"))}), tmp_path / "in.parquet")
    for schema in ({}, {"schema": "t timestamp_ntz"}):
        with pytest.raises(InputError, match="column 't' has type timestamp"):
            read(tmp_path / "in.parquet", format="parquet", **schema)
