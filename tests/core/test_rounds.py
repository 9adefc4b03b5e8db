"""Rounds over tables: the same as plain loops, to the last bit, whatever the order and the cuts of the rows; and their errors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy.cluster.vq import kmeans2

from sardonyx.core.clocks import END
from sardonyx.core.errors import FunctionError
from sardonyx.core.iterating import IterateSpec
from sardonyx.graphs.combine import by_place
from sardonyx.graphs.compute import Computed, Graph
from sardonyx.graphs.programs import Program
from sardonyx.graphs.rounds import run_rounds
from sardonyx.state.graph_rows import EDGES, GraphShard, has_rows
from sardonyx.state.memory import MemoryStore
from sardonyx.state.window_rows import SCHEMA
from tests import sizes
from tests.core.round_functions import halved, least_label, mixed, moving, nearest, plain_centres, plain_mixed

KMEANS: dict[str, Any] = {"state": "cluster bigint", "group_by": ["cluster"], "aggregate": {"x": "mean", "y": "mean"}}


def histories(count: int) -> Iterator[random.Random]:
    return (random.Random(seed) for seed in range(count))


def seeds(points: np.ndarray, count: int) -> list[dict[str, Any]]:
    return [{"cluster": n, "x": float(points[n, 0]), "y": float(points[n, 1])} for n in range(count)]


def table(points: np.ndarray) -> pa.Table:
    return pa.table({"number": np.arange(len(points)), "x": points[:, 0], "y": points[:, 1]})


def by_number(found: Computed) -> list[dict[str, Any]]:
    return sorted(found.rows.to_pylist(), key=lambda row: int(row["number"]))


def rounds(fn: Callable[..., Any], rows: pa.Table, params: dict[str, Any] | None = None, **spec: Any) -> Computed:
    return run_rounds(IterateSpec(**spec), rows, Program(fn, params=params or {}))


# --- Equal to plain loops ---------------------------------------------------------------------------------------------


def test_kmeans_is_that_of_a_plain_loop() -> None:
    """The clusters, the centres and the number of rounds are those of a loop in numpy, bit for bit, and those of scipy."""
    for chance in histories(sizes.histories(25, whole=100)):
        source = np.random.default_rng(chance.randrange(2**32))
        blobs = source.normal(scale=8.0, size=(chance.randint(1, 6), 2))
        points = blobs[source.integers(len(blobs), size=chance.randint(20, 300))]
        points = np.rint((points + source.normal(size=points.shape)) * 1024) / 1024  # whose sums are exact in any order
        start = seeds(points, chance.randint(1, 5))
        try:
            with np.errstate(all="raise"):
                centres, clusters, number = plain_centres(points, points[: len(start)])
        except (FloatingPointError, RuntimeWarning):  # a cluster without points has no centre
            continue
        found = rounds(nearest, table(points), start=start, **KMEANS)
        assert [row["cluster"] for row in by_number(found)] == clusters.tolist()
        assert (found.supersteps, found.reason, found.vertices) == (number, "quiescent", len(points))
        given = rounds(nearest, table(points), start=start, results="aggregates", **KMEANS).rows
        assert given.to_pydict() == {"cluster": [*range(len(start))], "x": [*centres[:, 0]], "y": [*centres[:, 1]]}
        scipys, labels = kmeans2(points, points[: len(start)], minit="matrix", iter=number + 1)
        assert np.allclose(scipys, centres)
        assert labels.tolist() == clusters.tolist()


def test_the_order_of_rows_changes_no_bit() -> None:
    """Also of doubles whose sums depend on the order in which one adds them up."""
    source = np.random.default_rng(3)
    points = source.normal(size=(500, 2)) * 10.0 ** source.integers(-8, 8, size=(500, 1))
    wanted = rounds(nearest, table(points), start=seeds(points, 4), **KMEANS)
    assert wanted.supersteps > 3
    for chance in histories(20):
        shuffled = table(points).take(pa.array(chance.sample(range(500), 500)))
        cut = pa.concat_tables([shuffled.slice(0, 1), shuffled.slice(1, 77), shuffled.slice(78)])
        for results in ("rows", "aggregates"):
            given = {**KMEANS, "results": results, "start": seeds(points, 4)}
            assert rounds(nearest, cut, **given).rows.equals(rounds(nearest, table(points), **given).rows)


def test_a_fixpoint_over_groups_is_that_of_a_plain_loop() -> None:
    """Random tables, with nulls in keys and values: the same rows, aggregates and number of rounds."""
    limits = ends = 0
    count = sizes.histories(60, whole=300)
    for chance in histories(count):
        parts = chance.sample(["a", "b", "ä", "", "long name"], chance.randint(1, 5))
        rows = [
            {
                "number": number,
                "part": None if chance.random() < 0.1 else chance.choice(parts),
                "value": None if chance.random() < 0.1 else chance.randrange(20),
            }
            for number in range(chance.randint(1, 30))
        ]
        modulus, most = chance.randint(1, 12), chance.randint(1, 40)
        given = pa.Table.from_pylist(rows, pa.schema([("number", "i8"), ("part", "string"), ("value", "int64")]))
        spec: dict[str, Any] = {"state": "value bigint", "group_by": ["part"], "max_rounds": most}
        spec["aggregate"] = {"all": "count", "size": "count", "value": "sum"}
        found = rounds(mixed, given, {"modulus": modulus}, **spec)
        wanted, sums, number = plain_mixed(rows, modulus, most)
        assert by_number(found) == wanted
        last = rounds(mixed, given, {"modulus": modulus}, results="aggregates", **spec).rows
        assert dict(zip(last["part"].to_pylist(), last["value"].to_pylist(), strict=True)) == sums
        assert last["part"].to_pylist() == sorted(sums, key=str.encode)
        of = {part: [row for row in rows if row["part"] == part] for part in sums}
        assert last["all"].to_pylist() == [len(of[part]) for part in last["part"].to_pylist()]
        if found.reason == "limit":
            assert number == most == found.supersteps
            limits += 1
        else:
            assert (number, found.reason) == (found.supersteps, "quiescent")
            ends += 1
    assert min(limits, ends) > count // 10


def test_rows_tell_each_other_by_keys() -> None:
    """Aggregates by key are what rows send to keys: components of graphs, equal to those of networkx."""
    for seed in range(60):
        graph = nx.gnm_random_graph(20, seed % 30, seed=seed)
        edges = [(a, b) for a, b in graph.edges()] + [(b, a) for a, b in graph.edges()]
        edges += [(v, v) for v in graph]
        rows = pa.table({"source": [a for a, _ in edges], "target": [b for _, b in edges]})
        spec: dict[str, Any] = {"state": "label bigint", "group_by": ["target"], "aggregate": {"label": "min"}}
        found = rounds(least_label, rows, results="aggregates", **spec)
        wanted = {v: min(part) for part in nx.connected_components(graph) for v in part}
        assert dict(zip(found.rows["target"].to_pylist(), found.rows["label"].to_pylist(), strict=True)) == wanted
        assert found.reason == "quiescent"


# --- How it begins and ends -------------------------------------------------------------------------------------------


def test_until_holds() -> None:
    """The condition ends it; it must hold in each group; and an aggregate without values holds for nothing."""
    rows = pa.table({"number": [0, 1, 2], "value": [1.0, 64.0, math.nan]}).slice(0, 2)
    spec: dict[str, Any] = {"state": "value double", "aggregate": {"value": "max"}, "until": "value <= 1"}
    found = rounds(halved, rows, **spec)
    assert (found.supersteps, found.reason, dict(found.aggregates)) == (6, "converged", {"value": 1.0})
    assert [row["value"] for row in by_number(found)] == [1 / 64, 1.0]
    found = rounds(halved, rows, group_by=["number"], **spec)
    assert (found.supersteps, found.reason) == (6, "converged")
    nothing = pa.table({"number": [0], "value": pa.nulls(1, pa.float64())})
    assert rounds(halved, nothing, **spec).reason == "quiescent"


def test_nothing_moves_any_more() -> None:
    """A function says what it has changed, and a condition ends the rounds when that is nothing: the same clusters."""
    points = np.random.default_rng(5).normal(size=(200, 2))
    given: dict[str, Any] = {**KMEANS, "start": seeds(points, 3)}
    wanted = rounds(nearest, table(points), **given)
    given |= {"aggregate": {**KMEANS["aggregate"], "moved": "sum"}, "until": "moved == 0"}
    found = rounds(moving, table(points), **given)
    assert (found.rows, found.reason, found.supersteps) == (wanted.rows, "converged", wanted.supersteps)


def test_the_limit_is_a_reason_of_its_own() -> None:
    """A user who asked for a limit sees that it was reached."""
    rows = pa.table({"value": [1.0]})
    found = rounds(halved, rows, state="value double", aggregate={"value": "max"}, max_rounds=7)
    assert (found.supersteps, found.reason, found.aggregates["value"]) == (7, "limit", 2**-7)
    assert rounds(halved, rows, state="value double").supersteps == 1_000


def test_a_round_that_changes_nothing_is_the_last() -> None:
    """NaN and null of a state are as they were; what is not returned is so, too."""
    rows = pa.table({"value": [math.nan, 1.0, None], "other": ["a", "b", "c"]})

    def same(v: pa.Table) -> pa.Table:
        return pa.table({"value": v["value"]})

    def silent(v: pa.Table) -> pa.Table:
        return v.select(["other"]).rename_columns(["n"])

    assert rounds(same, rows, state="value double").supersteps == 1
    found = rounds(silent, rows, state="value double", aggregate={"n": "max"})
    assert (found.supersteps, found.aggregates) == (2, {"n": "c"})
    assert [str(value) for value in found.rows["value"].to_pylist()] == ["1.0", "nan", "None"]  # in order


def test_without_rows_there_are_no_results() -> None:
    """The function is not called, and there is neither a row nor an aggregate."""

    def never(v: pa.Table) -> pa.Table:
        raise AssertionError

    for results in ("rows", "aggregates"):
        found = rounds(never, pa.table({}), state="n bigint", aggregate={"n": "sum"}, results=results)
        assert (found.rows.num_rows, found.supersteps, found.reason) == (0, 0, "quiescent")


def test_what_the_first_round_is_given() -> None:
    """The state begins with what the rows have, as it is declared; the aggregates with ``start``, as later rounds have them."""
    seen: list[tuple[pa.Schema, pa.Schema]] = []

    def look(v: pa.Table, aggregates: pa.Table) -> pa.Table:
        seen.append((v.schema, aggregates.schema))
        return pa.table({"n": v["n"]})

    rows = pa.table({"n": pa.array([3], pa.int8()), "text": ["a"]})
    spec: dict[str, Any] = {"state": "n double, new string", "aggregate": {"n": "mean"}}
    found = rounds(look, rows, start=[{"n": 1}], **spec)
    assert str(found.rows.schema) == "n: double\ntext: string\nnew: string"
    assert seen == [(found.rows.schema, pa.schema([("n", pa.float64())]))] * 2
    seen.clear()
    rounds(look, rows, **spec)
    assert seen[0][1].names == ["n"]


# --- The rows wait in a state -----------------------------------------------------------------------------------------


def test_whoever_goes_on_gives_the_same_once() -> None:
    """Plans are made again, given up, and made by others from what is committed: results come in parts, each once, the same."""
    source = np.random.default_rng(11)
    points = source.normal(size=(120, 2))
    spec = IterateSpec(start=seeds(points, 3), **KMEANS)
    wanted = run_rounds(spec, table(points), Program(nearest)).rows.to_pylist()

    def run(of: IterateSpec, graph: Graph) -> Computed:
        return run_rounds(of, graph.edges, Program(nearest))

    for chance in histories(60):
        store, limit = MemoryStore(SCHEMA), chance.choice([1, 7, 30, 1000])
        given = chance.sample(table(points).to_pylist(), 120)
        while given:
            count = chance.randint(1, 30)
            pieces = [(EDGES, pa.Table.from_pylist(given[:count]))]
            del given[:count]
            for _ in range(chance.randint(1, 2)):
                found = GraphShard(spec, store, run).plan(pieces, 0, limit)
            assert (found.results.num_rows, found.more, found.computed) == (0, False, None)
            store.apply(found.changes)
            assert has_rows(store)
        results, parts, more = [], 0, True
        while more:
            found = GraphShard(spec, store, run).plan([], END, limit)
            again = GraphShard(spec, store, run).plan([], END, limit)
            assert (found.results, found.more) == (again.results, again.more)
            assert (found.computed is None) == (parts > 0)
            store.apply(found.changes)
            results += found.results.to_pylist()
            parts, more = parts + 1, found.more
        assert results == wanted
        assert not has_rows(store)
        assert GraphShard(spec, store, run).plan([], END, limit).results.num_rows == 0


def test_batches_may_have_other_columns() -> None:
    """A column that some batches lack is null there; whole numbers and floats become floats; other types do not mix."""
    spec = IterateSpec(state="n bigint")

    def run(of: IterateSpec, graph: Graph) -> Computed:
        return run_rounds(of, graph.edges, Program(lambda v: pa.table({"n": pc.coalesce(v["n"], 0)})))

    def given(*tables: pa.Table) -> pa.Table:
        store = MemoryStore(SCHEMA)
        for each in tables:
            store.apply(GraphShard(spec, store, run).plan([(EDGES, each)], 0, 100).changes)
        return GraphShard(spec, store, run).plan([], END, 100).results

    word = pa.array(["a"]).dictionary_encode()
    found = given(pa.table({"x": [2], "word": word}), pa.table({"x": [1.5], "more": pa.array([[1]])}))
    assert found.to_pylist() == [
        {"x": 1.5, "word": None, "more": [1], "n": 0},
        {"x": 2.0, "word": "a", "more": None, "n": 0},
    ]
    views = given(pa.table({"x": pa.array(["b", "a"], pa.string_view()), "h": pa.array([1, 2], pa.float16())}))
    assert views["x"].to_pylist() == ["a", "b"]
    with pytest.raises(FunctionError, match="do not fit into one table") as failure:
        given(pa.table({"x": [1]}), pa.table({"x": ["a"]}))
    assert failure.value.code == "SX-ITERATE-ROWS"


# --- Aggregates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sum", "min", "max", "mean", "count"])
def test_aggregates_are_those_of_plain_python(how: str) -> None:
    """Of whole numbers, doubles, booleans and texts, with nulls, rows without a group, and groups without values."""
    plain: dict[str, Callable[[list[Any]], Any]] = {
        "sum": sum,
        "min": min,
        "max": max,
        "mean": lambda values: sum(values) / len(values),
        "count": len,
    }
    for chance in histories(sizes.histories(35, whole=200)):
        kinds: list[Callable[[random.Random], Any]] = [
            lambda chance: chance.randrange(-9, 9),
            lambda chance: chance.randrange(-99, 99) / 8,
            lambda chance: chance.random() < 0.5,
        ]
        kinds += [lambda chance: chance.choice("abä")] * (how in ("min", "max", "count"))
        make, groups = chance.choice(kinds), chance.randint(1, 5)
        values = [None if chance.random() < 0.2 else make(chance) for _ in range(chance.randrange(12))]
        places = [chance.randrange(-1, groups) for _ in values]
        found = by_place(
            how, np.array(places, np.int64), pa.array(values, pa.array([make(chance)]).type), groups
        ).to_pylist()
        for place in range(groups):
            own = [value for at, value in zip(places, values, strict=True) if at == place and value is not None]
            wanted = plain[how](own) if own or how == "count" else None
            assert found[place] == wanted
            assert type(found[place]) is type(wanted)


def test_a_key_of_several_columns() -> None:
    """Groups are in the order of their keys, and a row with null in a column of the key is in none."""
    rows = pa.table({"a": [2, 1, 1, None, 2], "b": [True, True, False, True, True], "n": [1, 2, 3, 4, 5]})
    found = rounds(
        lambda v: v.select([]).append_column("m", v["n"]),
        rows,
        group_by=["a", "b"],
        aggregate={"m": "sum"},
        results="aggregates",
    )
    assert found.rows.to_pylist() == [
        {"a": 1, "b": False, "m": 3},
        {"a": 1, "b": True, "m": 2},
        {"a": 2, "b": True, "m": 6},
    ]


# --- What goes wrong --------------------------------------------------------------------------------------------------

ROWS = pa.table({"a": [1, 2, 3], "d": pa.array(["1.5", "2", "3"]).cast(pa.decimal128(5, 2)), "x": [1.0, 2.0, math.nan]})

BAD: list[tuple[str, str, Callable[[pa.Table], Any], dict[str, Any]]] = [
    ("SX-ITERATE-RESULT", "returned 2 rows for 3", lambda v: pa.table({"n": [1, 2]}), {}),
    ("SX-ITERATE-RESULT", "returned list, and no pyarrow.Table", lambda v: [1, 2, 3], {}),
    ("SX-ITERATE-RESULT", "returned column 'm', which stands for nothing", lambda v: pa.table({"m": v["a"]}), {}),
    ("SX-ITERATE-RESULT", "returned column 'n' as string", lambda v: pa.table({"n": ["a", "b", "c"]}), {}),
    ("SX-ITERATE-RESULT", "left out column 'm'", lambda v: pa.table({"n": v["a"]}), {"aggregate": {"m": "sum"}}),
    (
        "SX-ITERATE-RESULT",
        "left out column 'g'",
        lambda v: pa.table({"n": v["a"]}),
        {"aggregate": {"a": "sum"}, "group_by": ["g"]},
    ),
    (
        "SX-ITERATE-RESULT",
        "to aggregate column 'd' by sum, and it is decimal128",
        lambda v: pa.table({"n": v["a"]}),
        {"aggregate": {"d": "sum"}},
    ),
    (
        "SX-ITERATE-RESULT",
        "to group by column 'x', and it is double",
        lambda v: pa.table({"n": v["a"]}),
        {"aggregate": {"a": "sum"}, "group_by": ["x"]},
    ),
    (
        "SX-ITERATE-RESULT",
        "gave 'm' whose sum is too great",
        lambda v: pa.table({"m": [2**62] * 3}),
        {"aggregate": {"m": "sum"}},
    ),
    (
        "SX-ITERATE-RESULT",
        "numbers of column 'm' that are too great",
        lambda v: pa.table({"m": pa.array([2**64 - 1] * 3, pa.uint64())}),
        {"aggregate": {"m": "max"}},
    ),
    (
        "SX-ITERATE-NAN",
        "aggregate 'x' of round 1 is NaN",
        lambda v: pa.table({"n": v["a"]}),
        {"aggregate": {"x": "mean"}},
    ),
    (
        "SX-ITERATE-ROWS",
        "'d' of the rows is decimal128(5, 2), which does not fit int64",
        lambda v: v,
        {"state": "d bigint"},
    ),
]


@pytest.mark.parametrize(("code", "said", "fn", "given"), BAD, ids=[said for _, said, _, _ in BAD])
def test_what_goes_wrong(code: str, said: str, fn: Callable[[pa.Table], Any], given: dict[str, Any]) -> None:
    """Each fails with a code, what happened, and what to do; never with a result that is short."""
    with pytest.raises(FunctionError) as failure:
        rounds(fn, ROWS, **{"state": "n bigint", **given})
    assert failure.value.code == code, failure.value
    assert said in failure.value.message
    assert failure.value.fix
