"""What a window keeps takes wider types when its rows do, wherever batches are cut and whenever a peer dies."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peer.shard_stores import discard, empty_stores
from sardonyx import Job, Last, Max, Sum, event_time, everything, generator, kafka, tumbling
from sardonyx.connectors.records import to_table
from sardonyx.core.errors import FunctionError, SardonyxError
from sardonyx.state.base import GONE, KEY
from sardonyx.testing import ClockedRun

Begin = Callable[..., ClockedRun]
VALUES: list[list[Any]] = [
    [None, 9, 10, 2.5, -3],
    [None, Decimal("1.10"), Decimal("100.25"), Decimal("0.001"), 7],
    [None, "b", "a"],
    [[1], None, [2.5]],
]


def newest(windows: Any, aggregate: Mapping[str, Any]) -> Job:
    job = Job("newest", partitions=1)
    rows = job.input("rows", generator(count=1, columns={"k": "key"}))
    job.output("out", kafka("out"), after=job.window("w", windows, after=rows, group_by="k", aggregate=aggregate))
    return job


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("seed", range(4))
def test_results_do_not_depend_on_where_rows_are_cut(seed: int, values: list[Any], sardonyx_clocked: Begin) -> None:
    """Each batch has the type of its own values, also after a peer has read the state from its log again."""
    chance = random.Random(seed)
    rows = [{"k": chance.choice("ab"), "v": value} for value in chance.choices(values, k=8)]
    aggregate = {"last": Last("v")} | ({} if isinstance(values[0], list) else {"top": Max("v")})
    found = []
    for cuts in ((), sorted(chance.sample(range(1, 8), 3)), range(1, 8)):
        run = sardonyx_clocked(newest(everything(), aggregate))
        for start, end in itertools.pairwise([0, *cuts, 8]):
            run.give("rows", to_table(rows[start:end], pa.schema([])))
            if cuts and chance.random() < 0.5:
                run.crash("w", at=chance.choice(["settled", "applied", "committed"]))
        run.end()
        found.append(sorted((row["k"], row["last"], row.get("top")) for row in run.rows("w")))
    assert found[1] == found[0], (seed, rows)
    assert found[2] == found[0], (seed, rows)


def test_a_column_that_had_only_nulls_takes_any_type(sardonyx_clocked: Begin) -> None:
    """JSON without a schema says of nulls that they are texts; then come numbers, and 10 is more than 9."""
    job = Job("top", partitions=1)
    rows = job.input("rows", kafka("rows", start="earliest"))
    job.output(
        "out",
        kafka("out"),
        after=job.window("w", everything(), emit="changes", after=rows, aggregate={"top": Max("v")}),
    )
    run = sardonyx_clocked(job)
    for value in (None, 9, None, 10):
        run.give("rows", [{"v": value}])
        run.crash("w")
    assert [row["top"] for row in run.rows("w")] == [None, 9, 9, 10]
    run.crash("rows")  # the next peer that reads does not know which types there were
    with pytest.raises(SardonyxError) as raised:
        run.give("rows", [{"v": "x"}])
    assert raised.value.code == "SX-COLUMN-TYPE"
    assert "column 'top' of the state of a window" in str(raised.value)
    assert "bigint and string" in str(raised.value)


@pytest.mark.parametrize("seed", range(3))
def test_checkpoints_take_wider_types_too(seed: int, sardonyx_clocked: Begin) -> None:
    """Rows of times before a checkpoint come behind those after it, and have other types."""
    chance = random.Random(seed)
    job = Job("sums", partitions=1, checkpoint_every="1 min")
    rows = job.input("rows", kafka("rows", start="earliest"), time=event_time("at", unit="s", delay="3 min"))
    window = job.window("w", tumbling("1 h"), after=rows, group_by="k", aggregate={"last": Last("v"), "top": Max("v")})
    job.output("out", kafka("out"), after=window)
    found = []
    given = [
        {"k": "a", "at": 60 * minute, "v": value}
        for minute, value in zip((5, 4, 6, 5, 8, 7, 10, 9, 12), (None, 1, None, 2.5, 2, None, 7, 0.5, 3), strict=True)
    ]
    for cuts in ((), range(1, 9)):
        run = sardonyx_clocked(job)
        for start, end in itertools.pairwise([0, *cuts, 9]):
            run.give("rows", given[start:end])
            if cuts and chance.random() < 0.5:
                run.crash("w", at=chance.choice(["settled", "applied", "committed"]))
        run.end()
        found.append([(row["last"], row["top"]) for row in run.rows("w")])
    assert found[0] == found[1] == [(3, 7)]


def test_an_integer_that_no_float_holds_is_not_rounded(sardonyx_clocked: Begin) -> None:
    """The state stays as it is, and the error names the aggregate."""
    run = sardonyx_clocked(newest(everything(), {"top": Max("v")}))
    run.give("rows", pa.table({"k": ["a"], "v": [2**53 + 1]}))
    run.crash("rows")  # the next peer that reads does not know which types there were
    with pytest.raises(SardonyxError, match="column 'top' of the state of a window") as raised:
        run.give("rows", pa.table({"k": ["a"], "v": [0.5]}))
    assert raised.value.code == "SX-COLUMN-TYPE"


def test_sums_and_sessions_take_wider_types(sardonyx_clocked: Begin) -> None:
    """A sum of integers becomes one of floats."""
    run = sardonyx_clocked(newest(everything(), {"sum": Sum("v")}))
    for value in (1, 2.5, 4):
        run.give("rows", pa.table({"k": ["a"], "v": [value]}))
    run.end()
    assert [row["sum"] for row in run.rows("w")] == [7.5]


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_store_in_wider_types_has_the_same_entries(kind: str, tmp_path: Path) -> None:
    """And none of it changes if a value would."""
    stores, folder = empty_stores(OfKind(kind), tmp_path, str)  # type: ignore[arg-type]
    narrow = pa.schema([pa.field(KEY, pa.binary(), nullable=False), ("v", pa.int64())])
    large = 2**53 + 1
    store = stores.open("s", narrow)
    changes = {KEY: [b"%06d" % n for n in range(60_000)], "v": [*range(59_999), large], GONE: [False] * 60_000}
    store.apply(pa.table(changes, schema=narrow.append(pa.field(GONE, pa.bool_(), nullable=False))))
    with pytest.raises(FunctionError) as raised:
        stores.open("s", pa.schema([narrow.field(0), ("v", pa.float64())]))
    assert raised.value.code == "SX-COLUMN-TYPE"
    assert stores.open("s", narrow) is store
    wide = stores.open("s", pa.schema([narrow.field(0), ("v", pa.decimal128(21, 2))]))
    assert [int(value) for value in wide.scan()["v"].to_pylist()] == changes["v"]
    assert stores.get("s") is wide
    discard(stores, folder)
    assert not list(tmp_path.iterdir())


class OfKind:
    """As much of an operator as its stores are made of."""

    def __init__(self, store: str) -> None:
        self.store = store

    def schemas(self) -> dict[str, pa.Schema]:
        return {}
