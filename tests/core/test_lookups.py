"""Lookups against a twin that looks at all values of a key for each row: the same results, however the logs are cut and lie."""

import os

import pytest

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.joining import RelationSpec
from sardonyx.state.lookups import LookupShard
from sardonyx.state.memory import MemoryStore
from sardonyx.state.row_pack import SCHEMA
from sardonyx.state.sides import LEFT, RIGHT
from tests.core.relation_histories import Block, entries, runs_as, times
from tests.sizes import as_asked

SEED = int(os.environ.get("SARDONYX_SEED", "20261125"))
HISTORIES = as_asked(20, whole=40)


def spec_of(chance):
    return RelationSpec(
        kind="lookup",
        left="orders",
        right="prices",
        how=chance.choice([None, "left", "inner"]),
        within=chance.choice([None, None, 0, 5, 20]),
        grace=chance.choice([0, 0, 4]),
        prefix="r_",
    )


def shard_of(spec):
    return lambda store: LookupShard(spec, (["k"], ["k"]), store, (times, times))


def twin(spec, on_time):
    """The results, as docs/joins.md has it."""
    results = []
    for left in on_time[LEFT]:
        value = None
        for right in on_time[RIGHT]:
            if left["k"] is not None and right["k"] == left["k"] and right["t"] <= left["t"]:
                value = right if value is None or right["t"] >= value["t"] else value
        if value is not None and spec.within is not None and left["t"] - value["t"] > spec.within:
            value = None
        if value is not None:
            results.append(left | {f"r_{name}": found for name, found in value.items() if name != "k"})
        elif spec.how != "inner":
            results.append(left)
    return results


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_row_is_given_the_value_as_of_its_time_however_the_logs_are_cut_and_lie(number):
    """The multiset of results and of late rows is that of the twin, for several ways of reading the same two logs."""
    for spec, run in runs_as(f"{SEED}/{number}", spec_of, shard_of, twin):
        if spec.within is not None:
            assert not entries(run.store), "nothing is kept after the end"
        for rows in run.plans:
            assert [row["t"] for row in rows] == sorted(row["t"] for row in rows)


def test_a_row_waits_no_longer_than_it_is_told():
    """With ``wait`` the clock of its own side lets a row go on, with the value that is known by then."""
    store = MemoryStore(SCHEMA)
    shard = shard_of(RelationSpec(kind="lookup", left="o", right="p", wait=5))(store)
    order = {"k": "a", "t": 10, "v": 1}
    pieces = [Block(LEFT, [order], NEVER, 10), Block(RIGHT, [{"k": "a", "t": 4, "v": 7}], NEVER, 4)]
    planned = shard.plan([block.piece() for block in pieces], (15, 4))
    assert planned.results.num_rows == 0
    store.apply(planned.changes)
    planned = shard.plan([], (16, 4))
    assert planned.results.to_pylist() == [order | {"p_t": 4, "p_v": 7}]


def test_values_that_no_row_needs_go():
    """Of a thousand prices of a key, the state keeps the newest once the clock has passed them."""
    store = MemoryStore(SCHEMA)
    shard = shard_of(RelationSpec(kind="lookup", left="o", right="p"))(store)
    for step in range(10):
        prices = [{"k": "a", "t": 100 * step + number, "v": number} for number in range(100)]
        block = Block(RIGHT, prices, 100 * step, 100 * step + 99)
        store.apply(shard.plan([block.piece()], (100 * step + 99,) * 2).changes)
    (kept,) = entries(store)
    assert kept["sx_times"] == [999]
    assert shard.plan([], (END, END)).results.num_rows == 0
