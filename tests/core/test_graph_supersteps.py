"""Shards that compute a graph together, in random histories: peers die, batches are cut anywhere, transactions land late."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from queues import block
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graphing import DURABLE, GraphSpec
from sardonyx.graphs.barriers import Barrier
from sardonyx.graphs.compute import Graph, compute
from sardonyx.graphs.homes import homes_of
from sardonyx.graphs.rows import read_rows
from sardonyx.graphs.sharded import ALGORITHMS
from sardonyx.state import graph_supersteps
from sardonyx.state.graph_rows import EDGES, VERTICES
from sardonyx.state.graph_supersteps import MARKER, SuperstepPlan, SuperstepShard
from sardonyx.state.memory import MemoryStore
from sardonyx.state.window_rows import SCHEMA
from tests.sizes import histories

Results = dict[Any, Any]


def test_each_declared_algorithm_is_there() -> None:
    """What a job may declare as durable can be computed so."""
    assert set(ALGORITHMS) == set(DURABLE)


@dataclass
class Shard:
    """What is committed of one shard, and what is on its way to it."""

    outer: list[tuple[bytes, pa.Table]]
    store: MemoryStore = field(default_factory=lambda: MemoryStore(SCHEMA))
    given: int = 0
    at: int = 0
    results: list[pa.Table] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    more: bool = False
    busy: bool = False


@dataclass
class Transaction:
    """What one peer commits at once: of several shards, where they are after it."""

    moves: dict[int, tuple[int, int, SuperstepPlan]]
    commits: bool | None = None
    landed: bool = False


class History:
    """One way in which shards get to the end, by chance. A control leaves something out."""

    def __init__(self, spec: GraphSpec, edges: pa.Table, vertices: pa.Table, seed: int, control: str = "") -> None:
        chance = self.chance = random.Random(seed)
        self.spec, self.control = spec, control
        self.count = chance.choice([1, 2, 2, 3, 5])
        self.logs: list[list[tuple[Transaction | None, pa.Table]]] = [[] for _ in range(self.count)]
        self.shards = [Shard(self._outer(shard, edges, vertices)) for shard in range(self.count)]
        self.holders: dict[int, SuperstepShard] = {}
        self.open: list[Transaction] = []
        self.landing: list[Transaction] = []
        self.limit = chance.choice([1, 3, 1000])

    def _outer(self, shard: int, edges: pa.Table, vertices: pa.Table) -> list[tuple[bytes, pa.Table]]:
        """What other tasks send to a shard, in pieces."""
        found = []
        for kind, table, column in ((EDGES, edges, self.spec.source), (VERTICES, vertices, self.spec.id)):
            homes = homes_of(table[column], self.count)
            here = table.filter(pa.array(homes == shard))
            while here.num_rows:
                size = self.chance.randint(1, here.num_rows)
                found.append((kind, here.slice(0, size)))
                here = here.slice(size)
        self.chance.shuffle(found)
        return found

    def run(self) -> Results:
        """To the end. Returns the results."""
        for _ in range(50_000):
            if self._is_over():
                return self._results()
            act = self.chance.random()
            if self.landing and act < 0.3:
                self._land()
            elif act < 0.35:
                self.holders.pop(self.chance.randrange(self.count), None)
            elif self.open and act < 0.6:
                self._decide(self.open.pop(self.chance.randrange(len(self.open))))
            else:
                self._begin()
        raise AssertionError("the shards got no further")

    def _is_over(self) -> bool:
        return all(_standing(each).over and not each.more and not each.busy for each in self.shards)

    def _results(self) -> Results:
        rows = [row for shard in self.shards for table in shard.results for row in table.to_pylist()]
        found = {row[self.spec.id]: row for row in rows}
        assert len(found) == len(rows), "a vertex has two rows"
        for shard in self.shards:
            assert shard.steps == list(range(len(shard.steps))), "a superstep counted twice, or not at all"
            assert len(shard.steps) == len(self.shards[0].steps), "shards have ended in different supersteps"
        name = self.spec.results[-1]
        return {vertex: row[name] for vertex, row in found.items()}

    def _begin(self) -> None:
        """A peer begins a batch of some of its shards."""
        free = [number for number in range(self.count) if not self.shards[number].busy]
        some = [number for number in free if self.chance.random() < 0.6]
        moves = {}
        for number in some:
            shard = self.shards[number]
            given = self.chance.randint(shard.given, len(shard.outer))
            messages, at = self._read(number)
            if shard.more:
                given, messages, at = shard.given, [], shard.at
            pieces = shard.outer[shard.given : given]
            ended = given == len(shard.outer)
            holder = self.holders.setdefault(number, SuperstepShard(self.spec, shard.store, number, self.count))
            moves[number] = given, at, holder.plan(pieces, messages, self.limit, ended=ended)
        if moves:
            transaction = Transaction(moves)
            self._write(transaction)
            for number in moves:
                self.shards[number].busy = True
            self.open.append(transaction)

    def _read(self, number: int) -> tuple[list[pa.Table], int]:
        """Committed rows of a partition, up to any place before the first transaction that has not landed."""
        log, at = self.logs[number], self.shards[number].at
        found: list[pa.Table] = []
        most = self.chance.choice([1, 2, 1000])
        while at < len(log) and len(found) < most:
            transaction, rows = log[at]
            if transaction is not None and not transaction.landed:
                break
            at += 1
            if transaction is None or transaction.commits:
                found.append(rows)
        return found, at

    def _write(self, transaction: Transaction) -> None:
        for _, _, plan in transaction.moves.values():
            for partition, blocks in plan.sent.items():
                rows = block.decode([each.value for each in blocks])
                singles = [rows.slice(place, 1) for place in range(rows.num_rows)]
                if self.control == "marker first":
                    singles = [singles[-1], *singles[:-1]]
                for single in singles:
                    self.logs[partition].append((None if self.control == "apart" else transaction, single))

    def _decide(self, transaction: Transaction) -> None:
        """The transaction commits, or its peer dies. Who holds a shard after a commit may not know of it."""
        transaction.commits = self.chance.random() < 0.7
        for number, (given, at, plan) in transaction.moves.items():
            shard = self.shards[number]
            shard.busy = False
            if transaction.commits:
                before = _standing(shard).step
                shard.store.apply(plan.changes)
                shard.given, shard.at, shard.more = given, at, plan.more
                shard.results.append(plan.results)
                shard.steps += range(before, _standing(shard).step)
        self.landing.append(transaction)

    def _land(self) -> None:
        """What decides a transaction comes to its partitions, in whatever order transactions were decided."""
        self.landing.pop(self.chance.randrange(len(self.landing))).landed = True


def _standing(shard: Shard) -> graph_supersteps.Standing:
    return graph_supersteps._read(graph_supersteps.Overlay(shard.store))


def case_of(seed: int, algorithm: str | None = None) -> tuple[GraphSpec, pa.Table, pa.Table]:
    """A small graph, and what is computed over it."""
    chance = random.Random(seed)
    algorithm = algorithm or chance.choice(DURABLE)
    count = chance.randint(1, 14)
    names: list[Any] = [chance.choice([-1, 1]) * (7 * n + 1) for n in range(count)]
    if chance.random() < 0.4:
        names = [f"v{n}" for n in range(count)]
    edges = [(chance.choice(names), chance.choice(names)) for _ in range(chance.randint(0, 3 * count))]
    kind = pa.string() if isinstance(names[0], str) else pa.int64()
    table = pa.table(
        {
            "a": pa.array([a for a, _ in edges], kind),
            "b": pa.array([b for _, b in edges], kind),
            "w": pa.array([chance.choice([0.0, 0.1, 0.7, 2.5, 1e-9]) for _ in edges], pa.float64()),
        }
    )
    said: dict[str, Any] = {}
    if algorithm == "pagerank":
        said = chance.choice(
            [{"max_supersteps": 4}, {"tolerance": 1e-2}, {"max_supersteps": 1}, {"damping": 0.5, "max_supersteps": 7}]
        )
        if chance.random() < 0.4:
            some = chance.sample(names, chance.randint(1, count))
            said |= {"start": some, "preferences": [chance.random() + 0.1 for _ in some]}
    else:
        if algorithm != "connected_components":
            said["start"] = chance.sample(names, chance.randint(1, min(3, count)))
        if algorithm == "k_hop":
            said["hops"] = chance.randint(1, 3)
        if algorithm == "shortest_paths":
            said["weight"] = "w"
    spec = GraphSpec(
        algorithm=algorithm,  # type: ignore[arg-type]
        edges="edges",
        vertices="vertices",
        source="a",
        target="b",
        directed=chance.random() < 0.5,
        durable=True,
        **said,
    )
    return spec, table, pa.table({"id": pa.array(names, kind)})


def in_memory(spec: GraphSpec, edges: pa.Table, vertices: pa.Table) -> Results:
    columns = {"source": "a", "target": "b"} | ({} if spec.weight is None else {"weight": "w"})
    rows = compute(spec, Graph(read_rows(edges, columns), read_rows(vertices, {"vertex": "id"}))).rows
    return dict(zip(rows["id"].to_pylist(), rows.column(1).to_pylist(), strict=True))


@pytest.mark.parametrize("part", range(4))
def test_results_are_those_of_one_peer(part: int) -> None:
    """Whatever dies, and however batches are cut, results are bit by bit those of the computation in memory. Each superstep
    counts once in each shard, and all end in the same one.
    """
    size = histories(9, whole=25)
    for seed in range(part * size, (part + 1) * size):
        case = case_of(seed)
        assert History(*case, seed).run() == in_memory(*case), f"seed {seed}: {case[0]}"


def _without_one(barrier: Barrier, step: int) -> bool:
    return len(barrier.told.get(step, ())) >= max(1, barrier._shards - 1)


def _whatever_step(inbox: Callable[..., Any]) -> Callable[..., Any]:
    """Takes messages of the next superstep for those of this one."""

    def found(shard: SuperstepShard, state: Any, step: int, waiting: list[pa.Table]) -> Any:
        other = [rows.set_column(0, "step", pa.array([step] * rows.num_rows, pa.int64())) for rows in waiting]
        return inbox(shard, state, step, other)

    return found


CONTROLS: Mapping[str, tuple[type, str, Any] | None] = {
    "a marker missing": (Barrier, "is_whole", _without_one),
    "marker first": None,
    "no number": (SuperstepShard, "_inbox", _whatever_step(SuperstepShard._inbox)),
    "apart": None,
}


@pytest.mark.parametrize("control", CONTROLS)
def test_without_a_safeguard_histories_go_wrong(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out that could be: without the markers of all, without their place behind the messages, without the number
    of the superstep, or with messages apart from the transaction, results are wrong, or the shards get stuck.
    """
    patch = CONTROLS[control]
    if patch is not None:
        monkeypatch.setattr(*patch)
    assert any(_goes_wrong(seed, control) for seed in range(200))


def _goes_wrong(seed: int, control: str) -> bool:
    case = case_of(seed)
    try:
        return History(*case, seed, control).run() != in_memory(*case)
    except (AssertionError, SardonyxError, KeyError, ValueError, IndexError):
        return True


@pytest.mark.parametrize("algorithm", DURABLE)
def test_a_graph_without_rows(algorithm: str) -> None:
    """No vertices give no results, and a vertex to begin at is not there."""
    spec, edges, vertices = case_of(1, algorithm)
    edges, vertices = edges.slice(0, 0), vertices.slice(0, 0)
    history = History(spec, edges, vertices, 5)
    if spec.start is None:
        assert history.run() == {}
    else:
        with pytest.raises(SardonyxError) as raised:
            history.run()
        assert raised.value.code == "SX-GRAPH-VERTEX"


def test_vertices_of_two_kinds() -> None:
    """Numbers in one shard and texts in another are refused as in one."""
    spec, _, _ = case_of(1, "connected_components")
    history = History(spec, pa.table({"a": [1], "b": [1]}), pa.table({"id": [1]}), 0)
    history.count = 2
    history.logs, history.shards = [[], []], [Shard([]), Shard([])]
    for shard in range(2):
        for vertex in ([*range(20)], [f"v{n}" for n in range(20)])[shard]:
            if homes_of(pa.array([vertex]), 2)[0] == shard:
                history.shards[shard].outer = [(VERTICES, pa.table({"id": [vertex]}))]
    with pytest.raises(SardonyxError) as raised:
        history.run()
    assert raised.value.code == "SX-GRAPH-ID"


def test_a_message_of_a_later_superstep_is_refused() -> None:
    """No shard can be two supersteps ahead; if one seems to be, the job fails, and gives no wrong result."""
    spec, _, _ = case_of(1, "connected_components")
    shard = SuperstepShard(spec, MemoryStore(SCHEMA), 0, 2)
    row = pa.table([[1], [1], [MARKER], [b"{}"]], schema=graph_supersteps.MESSAGES)
    with pytest.raises(SardonyxError) as raised:
        shard.plan([], [row], 10, ended=False)
    assert raised.value.code == "SX-GRAPH-BARRIER"
