"""Latest rows against a twin that goes through the log row by row, however the log is cut."""

import os

import pyarrow as pa
import pytest

from sardonyx.core.clocks import END, NEVER
from sardonyx.core.joining import RelationSpec
from sardonyx.state.latest import LatestShard
from sardonyx.state.memory import MemoryStore
from sardonyx.state.row_pack import SCHEMA
from sardonyx.state.sides import SidedPiece
from tests.core.relation_histories import Block, Run, chance_of, counted, entries, log, times
from tests.sizes import as_asked

SEED = int(os.environ.get("SARDONYX_SEED", "20261125"))
HISTORIES = as_asked(20, whole=40)


def shard_of(spec):
    return lambda store: LatestShard(spec, ["k"], store, times)


def twin(spec, blocks):
    """The rows that come with ``changes``, those that are the newest in the end, and the late ones, as docs/joins.md has it."""
    newest, changes, late = {}, [], []
    for block in blocks:
        for row in block.rows:
            if spec.within is not None and block.in_force > NEVER and row["t"] + spec.within < block.in_force:
                late.append((block.side, tuple(row.items())))
            elif row["k"] not in newest or row["t"] >= newest[row["k"]]["t"]:
                newest[row["k"]] = row
                changes.append(row)
    return changes, list(newest.values()), late


def there(rows):
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@pytest.mark.parametrize("number", range(HISTORIES))
def test_the_newest_row_of_each_key_comes_however_the_log_is_cut(number):
    """With ``changes`` the same rows in the same order as the twin; with ``final`` the same rows."""
    chance = chance_of(f"{SEED}/{number}")
    blocks = log(chance, 0)
    within = chance.choice([None, None, 4, 30])
    changes, final, late = twin(RelationSpec(kind="latest", within=within), blocks)
    for emit in ("changes", "final", "every 7"):
        spec = RelationSpec(kind="latest", within=within, emit=emit)
        for _ in range(2):
            run = Run(shard_of(spec), blocks, chance, 1)
            assert run.late == late, (SEED, number, spec)
            if emit == "changes":
                assert there(run.results) == there(changes), (SEED, number, spec)
            elif emit == "final" and within is None:
                assert counted(run.results) == counted(final), (SEED, number, spec)
            else:  # a key that is forgotten may come again; what comes last of each is the newest
                assert counted(run.results) <= counted(changes), (SEED, number, spec)
                last = {row["k"]: row for row in run.results}
                assert counted(last.values()) == counted(final), (SEED, number, spec)
            if within is not None:
                assert not [entry for entry in entries(run.store) if not entry["k"].endswith(b"z")]


def test_rows_come_every_so_often():
    """With the first clock, and each time that it has reached the next multiple, the changed keys come, once."""
    store = MemoryStore(SCHEMA)
    shard = shard_of(RelationSpec(kind="latest", emit="every 10"))(store)

    def plan(rows, before, after):
        planned = shard.plan([Block(0, rows, before, after).piece()] if rows else [], (after,))
        store.apply(planned.changes)
        return planned.results.to_pylist()

    first, second = {"k": "a", "t": 3, "v": 1}, {"k": "a", "t": 5, "v": 2}
    assert plan([first], NEVER, NEVER) == []
    assert plan([], NEVER, 3) == [first]
    assert plan([second, {"k": "a", "t": 4, "v": 9}], 3, 5) == []
    assert plan([], 5, 11) == [second]
    assert plan([], 11, 25) == []


def test_rows_with_and_without_a_dictionary_go_together():
    """What pandas calls a category is a column of its values where rows of the state come beside those of a batch."""
    given = pa.table({"k": pa.array(["a", "b", "a"]).dictionary_encode(), "t": [1, 2, 3]})
    for emit, wanted in (("changes", ["a", "b", "a"]), ("final", ["a", "b"])):
        store = MemoryStore(SCHEMA)
        shard = LatestShard(RelationSpec(kind="latest", emit=emit), ["k"], store, times)
        found = []
        for pieces, clock in (
            ([SidedPiece(given.slice(0, 2), NEVER)], NEVER),
            ([SidedPiece(given.slice(2), NEVER)], END),
        ):
            planned = shard.plan(pieces, (clock,), None)
            store.apply(planned.changes)
            found += planned.results["k"].to_pylist()
        assert sorted(found) == sorted(wanted)
