"""Distinct rows against a twin that compares each row with all that have passed, however the log is cut."""

import os

import numpy as np
import pytest

from sardonyx.core.clocks import NEVER
from sardonyx.core.joining import RelationSpec
from sardonyx.state.memory import MemoryStore
from sardonyx.state.repeats import DistinctShard, first_ones
from sardonyx.state.row_pack import SCHEMA
from tests.core.relation_histories import Block, Run, chance_of, entries, log, times
from tests.sizes import as_asked

SEED = int(os.environ.get("SARDONYX_SEED", "20261125"))
HISTORIES = as_asked(20, whole=40)


def shard_of(spec):
    return lambda store: DistinctShard(spec, ["k"], store, times)


def twin(spec, blocks):
    """The rows that pass, in their order, and the late ones, as docs/joins.md has it."""
    passed, late = [], []
    for block in blocks:
        for row in block.rows:
            if spec.within is not None and block.in_force > NEVER and row["t"] + spec.grace < block.in_force:
                late.append((block.side, tuple(row.items())))
            elif not any(
                row["k"] == other["k"] and (spec.within is None or abs(row["t"] - other["t"]) <= spec.within)
                for other in passed
            ):
                passed.append(row)
    return passed, late


@pytest.mark.parametrize("number", range(HISTORIES))
def test_the_first_of_near_rows_passes_however_the_log_is_cut(number):
    """The same rows in the same order, and the same late rows, as the twin."""
    chance = chance_of(f"{SEED}/{number}")
    within, grace = chance.choice([None, 0, 4, 30]), chance.choice([0, 5])
    spec = RelationSpec(kind="distinct", within=within, grace=grace if within is not None else 0)
    blocks = log(chance, 0)
    wanted, late = twin(spec, blocks)
    for _ in range(3):
        run = Run(shard_of(spec), blocks, chance, 1)
        without = [{name: value for name, value in row.items() if value is not None} for row in run.results]
        assert without == [{n: v for n, v in row.items() if v is not None} for row in wanted], (SEED, number, spec)
        assert run.late == late, (SEED, number, spec)
        if within is not None:
            assert not entries(run.store), "nothing is kept after the end"


def test_a_key_is_forgotten_when_no_repeat_can_come():
    """The state holds a key until the clock has passed its time, ``within`` and ``grace``."""
    store = MemoryStore(SCHEMA)
    shard = shard_of(RelationSpec(kind="distinct", within=10, grace=3))(store)
    block = Block(0, [{"k": "a", "t": 100, "v": 1}], NEVER, 100)
    store.apply(shard.plan([block.piece()], (100,)).changes)
    store.apply(shard.plan([], (113,)).changes)
    assert len(entries(store)) == 1
    again = Block(0, [{"k": "a", "t": 110, "v": 2}], 113, 113)
    assert shard.plan([again.piece()], (113,)).results.num_rows == 0
    store.apply(shard.plan([], (140,)).changes)
    assert not entries(store)


def test_many_rows_of_a_key_that_pass_are_told_apart():
    """The way that goes row by row gives what the way by rounds gives."""
    chance = np.random.default_rng(SEED)
    codes, moments = chance.integers(0, 3, 3000), chance.integers(0, 5000, 3000)
    found = first_ones(codes, moments, np.arange(3000), 3, 2)
    passed = []
    for code, time in zip(codes.tolist(), moments.tolist(), strict=True):
        passes = not any(code == other and abs(time - at) <= 2 for other, at, there in passed if there)
        passed.append((code, time, passes))
    assert found.tolist() == [there for _, _, there in passed]
    assert found.sum() > 1000
