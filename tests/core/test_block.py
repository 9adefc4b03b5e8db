"""Rows as Arrow blocks: what goes in comes out, in messages that Kafka takes."""

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues import block
from sardonyx.connectors.base import read_split
from sardonyx.connectors.files import roll
from sardonyx.core.errors import OutputError, SetupError


@given(
    rows=st.lists(st.fixed_dictionaries({"n": st.integers(-(2**60), 2**60), "t": st.text(max_size=200)}), max_size=200),
    limit=st.integers(1500, 20_000),
)
def test_rows_come_back_in_order_whatever_the_limit(rows, limit):
    """Encoding and decoding any rows gives them back in order, and no block is larger than the limit."""
    table = pa.Table.from_pylist(rows, schema=pa.schema({"n": pa.int64(), "t": pa.string()}))
    blocks = block.encode(table, limit)
    assert sum(item.rows for item in blocks) == len(rows)
    assert all(len(item.value) <= limit for item in blocks)
    if blocks:
        assert block.decode([item.value for item in blocks]).to_pylist() == rows


def test_a_slice_carries_only_its_own_rows():
    """A block made of a few rows of a large table is small: the rest of the table does not ride along."""
    table = pa.table({"t": [f"{n:0100d}" for n in range(100_000)]})
    (only,) = block.encode(table.slice(5, 3))
    assert only.rows == 3
    assert len(only.value) < 2_000


def test_blocks_of_different_schemas_are_matched_by_name():
    """A field that one block lacks is null there, and integers widen to floats where both occur."""
    one, other = pa.table({"a": [1], "b": ["x"]}), pa.table({"b": ["y"], "a": [2.5]})
    third = pa.table({"b": pa.nulls(1)})
    values = [item.value for table in (one, other, third) for item in block.encode(table)]
    assert block.decode(values).to_pylist() == [{"a": 1.0, "b": "x"}, {"a": 2.5, "b": "y"}, {"a": None, "b": None}]


def test_a_single_row_that_no_message_holds_is_a_clear_error():
    """One row over the limit is refused with its size, the limit and how it begins."""
    import random

    noise = random.Random(7).randbytes(2_000_000)
    with pytest.raises(OutputError) as caught:
        block.encode(pa.table({"blob": [noise]}))
    assert caught.value.code == "SX-RECORD-TOO-LARGE"
    assert "900,000" in caught.value.message
    assert caught.value.fix


def test_the_error_of_a_large_row_shows_values_that_python_does_not_have():
    """A date after 9999 is a text there."""
    row = pa.table({"day": pa.array([2_932_897], pa.int32()).cast(pa.date32()), "n": [1]})
    with pytest.raises(OutputError, match="SX-RECORD-TOO-LARGE") as caught:
        block.encode(row, 10)
    assert "{'day': '10000-01-01', 'n': 1}" in caught.value.cause


def test_a_block_holds_no_more_rows_than_its_reader_wants():
    """A reader with a small batch size is given small blocks, since it can take no less than one."""
    blocks = block.encode(pa.table({"a": range(1_050)}), max_rows=100)
    assert [item.rows for item in blocks] == [100] * 10 + [50]


def test_nothing_gives_no_block():
    """An empty table takes no message at all."""
    assert block.encode(pa.table({"a": pa.array([], pa.int64())})) == []


def test_a_block_of_a_newer_release_is_refused() -> None:
    """It says its version in the metadata of its schema. Rows that this release would misread are never taken for fewer rows."""
    newer = pa.table({"n": [1]}).replace_schema_metadata({"sx-format": str(block.FORMAT + 1)})
    (written,) = block.encode(newer)
    with pytest.raises(SetupError, match=f"format {block.FORMAT + 1}") as refused:
        block.decode([written.value])
    assert refused.value.code == "SX-BLOCK-FORMAT"


@pytest.mark.parametrize(
    ("decode", "fields"),
    [
        (read_split, {"data": {"start": 3}}),
        (roll.decode, {"staged": "a", "final": "b", "rows": 1}),
        (roll.decode, {"file": "a", "last": "b", "files": 2, "rows": 5}),
    ],
)
def test_a_split_and_a_list_of_files_say_their_format(
    decode: Callable[[bytes], object], fields: dict[str, object]
) -> None:
    """Those of the first format do not. Those of a newer one are refused, and not misread."""
    written = msgspec.json.encode(fields)
    assert msgspec.json.encode(decode(written)) == written
    with pytest.raises(SetupError, match="format 2") as refused:
        decode(msgspec.json.encode({**fields, "format": 2}))
    assert refused.value.code == "SX-BLOCK-FORMAT"
