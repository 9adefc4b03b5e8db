"""Nanoseconds are cut to microseconds in one way, wherever they leave Arrow."""

import json
import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sardonyx.connectors.moments import cut_table
from sardonyx.connectors.registry import output, topic_format
from sardonyx.core.errors import OutputError
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import TaskSpec

NANOS = [1_999, -1, None, -1_000]
MICROS = [1, -1, None, -1]
TEXTS = ["1970-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999", None, "1969-12-31T23:59:59.999999"]
TABLE = pa.table({"t": pa.array(NANOS, pa.timestamp("ns")), "n": range(4)})


def written(folder, kind: str, rows: pa.Table, **options) -> str:
    spec = TaskSpec(name="out", type="output", connector=kind, options=options)
    made = output(spec, "job-1")
    if kind == "sql":
        made.begin(rows, {Partition("link", 0): None}, {Partition("link", 0): Position(1)}, None)
        made.commit()
        return ""
    made.seal(made.stage(rows))
    return next(str(path) for path in folder.iterdir() if path.name.startswith("part-"))


def test_every_output_cuts_nanoseconds_alike(tmp_path):
    """The microsecond in which they lie is written, and not the one that is nearer to 1970, or nearer at all."""
    assert [json.loads(value)["t"] for _, value in topic_format({"format": "json"}).encode(TABLE)] == TEXTS
    parquet = pq.read_table(written(tmp_path, "files", TABLE, path=str(tmp_path), format="parquet"), partitioning=None)
    assert parquet["t"].equals(pa.chunked_array([pa.array(MICROS, pa.timestamp("us"))]))
    written(tmp_path, "sql", TABLE, url=f"sqlite:///{tmp_path}/db", table="t")
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        found = [row[0] for row in connection.execute("select t from t order by n")]
    assert found == [text and text.replace("T", " ") for text in TEXTS]


def test_a_moment_that_microseconds_cannot_hold_is_refused(tmp_path):
    """It does not become another year."""
    far = pa.table({"t": pa.array([2**62], pa.timestamp("ms"))})
    with pytest.raises(OutputError) as caught:
        written(tmp_path, "files", far, path=str(tmp_path), format="parquet")
    assert caught.value.code == "SX-OUTPUT-TYPE"


def test_nested_values_and_slices_are_cut():
    """Whatever Arrow nests, from whichever row on."""
    nano, micro = pa.timestamp("ns"), pa.timestamp("us")
    kinds = {
        "list": (pa.list_(nano), pa.list_(micro)),
        "large": (pa.large_list(nano), pa.large_list(micro)),
        "fixed": (pa.list_(nano, 2), pa.list_(micro, 2)),
        "struct": (pa.struct({"a": nano, "b": pa.int64()}), pa.struct({"a": micro, "b": pa.int64()})),
        "map": (pa.map_(pa.string(), nano), pa.map_(pa.string(), micro)),
        "deep": (pa.list_(pa.struct({"a": pa.list_(nano)})), pa.list_(pa.struct({"a": pa.list_(micro)}))),
    }

    def values(one: int, two: int | None) -> dict[str, list]:
        return {
            **{kind: [[0, 0], [one, two], None, [two, one]] for kind in ("list", "large", "fixed")},
            "struct": [{"a": 0, "b": 1}, {"a": one, "b": None}, None, {"a": two, "b": 2}],
            "map": [[("x", 0)], [("x", one), ("y", two)], None, []],
            "deep": [[], [{"a": [one]}, None], None, [{"a": [two, one]}]],
        }

    before = pa.table({name: pa.array(each, kinds[name][0]) for name, each in values(-1_001, None).items()})
    after = pa.table({name: pa.array(each, kinds[name][1]) for name, each in values(-2, None).items()})
    for start in range(4):
        assert cut_table(before.slice(start)).equals(after.slice(start))
    others = pa.table(
        {"o": pa.array([-1], pa.duration("ns")), "d": pa.array([-1], pa.timestamp("ns")).dictionary_encode()}
    )
    found = cut_table(others)
    assert found["o"].cast(pa.int64()).to_pylist() == found["d"].cast(micro).cast(pa.int64()).to_pylist() == [-1]
    assert cut_table(after) is after
