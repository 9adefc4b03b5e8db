"""Made-up rows: a function of the seed and the row's number, and of nothing else."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.connectors.generator import Generator
from sardonyx.connectors.registry import split_input, topic_format
from sardonyx.core.errors import InputError
from sardonyx.core.spec import TaskSpec


def generator(**options) -> Generator:
    found = split_input(TaskSpec(name="in", type="input", connector="generator", options=options))
    assert isinstance(found, Generator)
    return found


def everything(**options) -> pa.Table:
    source = generator(**options)
    return pa.concat_tables(source.read(split.data) for split in source.splits())


def test_default_rows():
    """Four columns, about 110 bytes as JSON, a thousand keys; the splits tell their rows."""
    table = everything(count=120_000)
    assert table.schema == pa.schema(
        [("id", pa.int64()), ("key", pa.string()), ("value", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
    )
    assert table["id"].to_pylist() == list(range(120_000))
    assert len(table["key"].unique()) == 1000
    assert 0 <= min(table["value"].to_pylist()) < 1
    assert 999 < max(table["value"].to_pylist()) < 1000
    sizes = [len(value or b"") for _, value in topic_format({}).encode(table.slice(100_000))]
    assert 100 <= sum(sizes) / len(sizes) <= 115
    assert [split.rows for split in generator(count=120_000).splits()] == [50_000, 50_000, 20_000]


@settings(max_examples=30)
@given(
    first=st.integers(0, 10**12), count=st.integers(0, 50), cut=st.integers(0, 50), seed=st.integers(-(2**63), 2**70)
)
def test_rows_do_not_depend_on_how_they_are_cut(first, count, cut, seed):
    """Two pieces are the same rows as one, anywhere, for any seed."""
    source = generator(count=1, seed=seed)
    cut = min(cut, count)
    whole = source.read({"first": first, "count": count})
    pieces = [source.read({"first": first, "count": cut}), source.read({"first": first + cut, "count": count - cut})]
    assert pa.concat_tables(pieces).to_pylist() == whole.to_pylist()


def test_the_parts_of_a_split_are_the_split():
    """Several workers may make one split, if it is large enough."""
    source = generator(count=20_011)
    (split,) = source.splits()
    assert [len(source.divide(split.data, most)) for most in (1, 3, 9)] == [1, 3, 4]
    parts = [source.read(part) for part in source.divide(split.data, 3)]
    assert pa.concat_tables(parts).equals(source.read(split.data))


def test_rows_are_the_same_for_ever():
    """A change here would break everybody's comparison with an earlier run."""
    (row,) = generator(count=1, seed=7).read({"first": 123_456, "count": 1}).to_pylist()
    assert (row["key"], row["value"]) == ("customer-000000000410", 760.7357313630125)


def test_seeds_and_columns_differ():
    """Another seed gives other rows; columns are independent of each other and of their order."""
    one, other = everything(count=1000, seed=1), everything(count=1000, seed=2)
    assert one["value"] != other["value"]
    assert one["id"] == other["id"]
    two = everything(count=1000, columns={"x": "number", "y": "number"})
    assert two["x"] != two["y"]
    assert two["x"] == everything(count=1000, columns={"y": "number", "x": "number"})["x"]


def test_every_kind():
    """Each kind with its settings, or by its name alone."""
    table = everything(
        count=500,
        columns={
            "s": {"kind": "sequence", "start": 10, "step": -2},
            "k": {"kind": "key", "distinct": 3, "prefix": "k-"},
            "n": {"kind": "number", "min": -1, "max": 1},
            "i": {"kind": "integer", "min": 5, "max": 6},
            "b": {"kind": "boolean", "share": 0.1},
            "c": {"kind": "choice", "of": ["x", "y"]},
            "m": {"kind": "moment", "start": "2020-01-01T01:00:00+01:00", "step": "1 h"},
            "plain": "integer",
        },
    )
    assert table["s"].to_pylist()[:3] == [10, 8, 6]
    assert set(table["k"].to_pylist()) == {"k-000000000000", "k-000000000001", "k-000000000002"}
    assert set(table["i"].to_pylist()) == {5, 6}
    assert 10 < sum(table["b"].to_pylist()) < 100
    assert set(table["c"].to_pylist()) == {"x", "y"}
    assert [str(moment) for moment in table["m"].to_pylist()[:2]] == [
        "2020-01-01 00:00:00+00:00",
        "2020-01-01 01:00:00+00:00",
    ]


@pytest.mark.parametrize(
    "spec",
    [
        "nothing",
        {"kind": "number", "most": 1},
        {"kind": "choice"},
        {"kind": "integer", "min": 5, "max": 4},
        {"kind": "moment", "start": "soon"},
    ],
)
def test_a_column_that_cannot_be_made(spec):
    """The error names the column and what there is; it comes before any row."""
    with pytest.raises(InputError, match="column 'x' cannot be made") as caught:
        generator(count=1, columns={"x": spec})
    assert caught.value.code == "SX-INPUT-OPTION"


def test_a_rate_says_when_each_piece_is_due():
    """A quarter of a second's worth at a time, due from the beginning of the job on; the rows are the same."""
    splits = list(generator(count=1000, rate=1000).splits())
    assert [split.rows for split in splits] == [250] * 4
    assert [split.data["due"] for split in splits] == [0, 0.25, 0.5, 0.75]
    assert everything(count=1000, rate=1000) == everything(count=1000)
    assert [split.rows for split in generator(count=3, rate=0.5).splits()] == [1, 1, 1]
    assert list(generator(count=0).splits()) == []
