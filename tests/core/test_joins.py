"""Joins against a twin that compares all rows with all others: equal results and late rows, however the logs are cut and lie."""

import os

import pytest

from sardonyx.core.joining import RelationSpec
from sardonyx.state.joins import JoinShard, bounds
from sardonyx.state.sides import LEFT, RIGHT
from tests.core.relation_histories import entries, runs_as, times
from tests.sizes import as_asked

SEED = int(os.environ.get("SARDONYX_SEED", "20261125"))
HISTORIES = as_asked(20, whole=40)
"""``SARDONYX_HISTORIES=5000`` for a long run."""
WITHIN = [0, 3, 20, [-5, 0], [0, 12], [2, 9], [-9, -2]]


def spec_of(chance):
    return RelationSpec(
        kind="join",
        left="views",
        right="orders",
        how=chance.choice(["inner", "left"]),
        within=chance.choice(WITHIN),
        grace=chance.choice([0, 0, 4]),
        prefix="r_",
    )


def shard_of(spec):
    return lambda store: JoinShard(spec, (["k"], ["k"]), store, (times, times), ordinal=True)


def twin(spec, on_time):
    """The results, as docs/joins.md has it."""
    lower, upper = bounds(spec)
    results = []
    for left in on_time[LEFT]:
        partners = [
            right
            for right in on_time[RIGHT]
            if left["k"] is not None and left["k"] == right["k"] and lower <= right["t"] - left["t"] <= upper
        ]
        for right in partners:
            named = {f"r_{name}": value for name, value in right.items() if name != "k"}
            results.append(left | named | {"join_time": max(left["t"], right["t"])})
        if not partners and spec.how == "left":
            results.append(left | {"join_time": left["t"]})
    return results


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_join_gives_what_all_pairs_give_however_its_logs_are_cut_and_lie(number):
    """The multiset of results and of late rows is that of the twin, for several ways of reading the same two logs."""
    for _, run in runs_as(f"{SEED}/{number}", spec_of, shard_of, twin):
        assert not entries(run.store), "nothing is kept after the end"
        for rows in run.plans:
            assert [row["join_time"] for row in rows] == sorted(row["join_time"] for row in rows)
