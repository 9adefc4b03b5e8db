"""Graph algorithms beside GraphX, scipy and networkx: the part ``graph`` of ``performance.py``. It needs no services.

GraphX is the one that comes in PySpark, driven by py4j in a JVM of its own, on all cores. Ours is one thread. Each figure stands
there in seconds of the clock, for which the machine must be quiet (its load stands beside each run), and of the processor, of all
threads. The ranks of both are compared first.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import psutil
import pyarrow as pa
from bench_graphs import r_mat
from races import Row
from scipy import sparse

from sardonyx.core.graphing import GraphSpec
from sardonyx.core.timing import WindowSpec
from sardonyx.graphs.compute import Graph, compute
from sardonyx.graphs.programs import Program, run_program
from sardonyx.graphs.ranks import pagerank
from sardonyx.graphs.shards import Edges, Shards
from sardonyx.state.graph_rows import EDGES
from sardonyx.state.graph_versions import Timely, VersionShard
from sardonyx.state.memory import MemoryStore
from sardonyx.state.window_rows import SCHEMA

SCALE, DEGREE = 17, 8
"""Of the R-MAT graph: 1,048,576 edges."""
STEPS = 10
"""Supersteps between the two lengths of PageRank whose difference is measured."""
WINDOW = 10_000
"""Edges in a window of a graph that changes."""
MANY = 50
"""Supersteps of what takes milliseconds."""


class Spent(NamedTuple):
    """Seconds of the clock, and of the processor."""

    clock: float
    processor: float

    def less(self, other: Spent, count: int) -> Spent:
        """What each of ``count`` takes that come on top of what ``other`` took."""
        return Spent((self.clock - other.clock) / count, (self.processor - other.processor) / count)


NOTHING = Spent(0.0, 0.0)


def graph(_track: object, runs: int) -> list[Row]:
    """A superstep of PageRank, and whole algorithms from rows to rows."""
    sources, targets = r_mat(SCALE, DEGREE)
    table = Graph(pa.table({"source": sources, "target": targets}))
    there, places = np.unique(np.concatenate([sources, targets]), return_inverse=True)
    edges = Edges(len(there), places[: len(sources)], places[len(sources) :])
    plain = nx.Graph(zip(sources.tolist(), targets.tolist(), strict=True))
    plain.remove_edges_from(list(nx.selfloop_edges(plain)))
    matrix = sparse.csr_matrix((np.ones(len(sources)), (edges.targets, edges.sources)), (edges.vertices,) * 2)
    vector = np.full(edges.vertices, 1 / edges.vertices)
    shards = Shards(edges)
    title = f"PageRank, {len(sources):,} edges, a superstep"

    def ours() -> Spent:
        return spent(lambda: pagerank(shards, 0.85, MANY)).less(NOTHING, MANY)

    def scipy() -> Spent:
        return spent(lambda: [matrix @ vector for _ in range(MANY)]).less(NOTHING, MANY)

    def declared(algorithm: Any) -> Callable[[], Spent]:
        spec = GraphSpec(algorithm=algorithm, edges="e", source="a", target="b", directed=False)
        return lambda: spent(lambda: compute(spec, table))

    whole = "connected components, from rows to rows"
    with graph_x() as jvm:
        agree(jvm)
        with jvm.loaded(sources, targets) as loaded:
            rows = raced(title, "GraphX, static PageRank", 20, runs, ours, loaded.superstep)
            rows += raced(
                whole, "GraphX, compute only", None, runs, declared("connected_components"), loaded.components
            )
    rows += raced(title, "scipy, one product of a matrix with a vector", 0.25, runs, ours, scipy)
    rows += raced(title, "the same as a program of our own", None, runs, ours, programmed(table))
    for name, algorithm, goal, theirs in (
        (whole, "connected_components", 5, lambda: list(nx.connected_components(plain))),
        ("core numbers, from rows to rows", "k_core", 20, lambda: nx.core_number(plain)),
    ):
        rows += raced(name, "networkx, compute only", goal, runs, declared(algorithm), partial(spent, theirs))
    return rows + versions(sources, targets, runs)


def versions(sources: Any, targets: Any, runs: int) -> list[Row]:
    """A window of 10,000 edges more, from its rows to what has changed, beside a shard that computes over all edges."""
    most, window = len(sources) - WINDOW * (runs + 2), WindowSpec(kind="tumbling", size=1)
    spec = GraphSpec(
        algorithm="connected_components",
        edges="e",
        source="a",
        target="b",
        directed=False,
        window=window,
        emit="changes",
    )
    mixed = np.random.default_rng(7).permutation(len(sources))
    table = pa.table({"a": sources[mixed], "b": targets[mixed]})
    stores = MemoryStore(SCHEMA), MemoryStore(SCHEMA)
    knows = VersionShard(spec, stores[0])
    given: list[list[Any]] = [[], []]
    done = [0, 0]

    def version(side: int) -> None:
        number, count = done[side], WINDOW if done[side] else most
        done[side] += 1
        rows = table.slice(0 if not number else most + WINDOW * (number - 1), count)
        shard = VersionShard(spec, stores[side]) if side else knows
        planned = shard.plan([Timely(EDGES, rows, np.full(count, number), number)], number + 1, len(sources))
        stores[side].apply(planned.changes)
        given[side].append(planned.results)

    version(0), version(1)
    title = f"a window of {WINDOW:,} edges into {most:,}, components, from rows to changes"
    ours, theirs = (partial(spent, partial(version, side)) for side in (0, 1))
    found = raced(title, "computed over all edges", 5, runs, ours, theirs)
    assert all(mine.equals(other) for mine, other in zip(*given, strict=True))
    return found


def spent(act: Callable[[], object]) -> Spent:
    """What something takes in this process."""
    began, used = time.perf_counter(), time.process_time()
    act()
    return Spent(time.perf_counter() - began, time.process_time() - used)


def raced(
    bench: str,
    against: str,
    goal: float | None,
    runs: int,
    ours: Callable[[], Spent],
    theirs: Callable[[], Spent],
) -> list[Row]:
    """By the clock and by the processor, in turns, after one run of each side that does not count."""
    rows = [Row(bench, against, goal, unit="ms"), Row(f"{bench}, processor", against, goal, unit="ms")]
    ours(), theirs()
    for _ in range(runs):
        for row, mine, other in zip(rows, ours(), theirs(), strict=True):
            row.ours.append(mine * 1e3)
            row.theirs.append(other * 1e3)
            row.ratios.append(other / mine)
            told = f"{mine * 1e3:,.1f} {other * 1e3:,.1f} {other / mine:.2f}"
            print(f"  {row.bench} beside {row.against}: {told}; load {os.getloadavg()[0]:.1f}", flush=True)
    for row in rows:
        print(row.line(), flush=True)
    return rows


def programmed(table: Graph) -> Callable[[], Spent]:
    """A superstep of PageRank as a user writes it with functions of tables."""
    from tests.core.graph_programs import of

    def took(supersteps: int) -> Spent:
        update, send, task = of("pagerank", "bigint", max_supersteps=supersteps)
        return spent(lambda: run_program(task, table, Program(update, send)))

    return lambda: took(STEPS + 1).less(took(1), STEPS)


# GraphX


class GraphX:
    """GraphX in a JVM."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._folder, self._parts = folder, spark.sparkContext.defaultParallelism
        self._jvm, self._context = spark._jvm, spark.sparkContext._jsc.sc()  # noqa: SLF001 - the doors of py4j
        self.lib = self._jvm.org.apache.spark.graphx.lib
        self._whole = getattr(getattr(self._jvm.scala.reflect, "ClassTag$"), "MODULE$").Int()
        self._process = psutil.Process(self._jvm.java.lang.ProcessHandle.current().pid())

    def processor(self) -> float:
        """Seconds of the processor that it has taken so far, all threads together."""
        used = self._process.cpu_times()
        return float(used.user + used.system)

    @property
    def tags(self) -> tuple[Any, Any]:
        """Of the values of vertices and edges, which the Scala compiler would give."""
        return self._whole, self._whole

    @contextmanager
    def loaded(self, sources: Any, targets: Any) -> Iterator[Loaded]:
        """A graph in its memory."""
        path = self._folder / f"{len(sources)}.txt"
        np.savetxt(path, np.column_stack([sources, targets]), fmt="%d")
        memory = self._jvm.org.apache.spark.storage.StorageLevel.MEMORY_ONLY()
        loader = self._jvm.org.apache.spark.graphx.GraphLoader
        found = loader.edgeListFile(self._context, str(path), False, self._parts, memory, memory).cache()
        assert found.edges().count() == len(sources)
        yield Loaded(self, found)
        found.unpersist(True)


class Loaded:
    """A graph in GraphX.

    Args:
        of: the JVM.
        graph: the graph there.
    """

    def __init__(self, of: GraphX, graph: Any) -> None:
        self._of, self._graph = of, graph

    def ranks(self, supersteps: int) -> Any:
        """The graph with ranks, computed."""
        found = self._of.lib.PageRank.run(self._graph, supersteps, 0.15, *self._of.tags)
        found.vertices().count()
        return found

    def superstep(self) -> Spent:
        """One of PageRank: what many take more than one, so that what comes once does not count."""
        return self._spent(lambda: self.ranks(STEPS + 1)).less(self._spent(lambda: self.ranks(1)), STEPS)

    def components(self) -> Spent:
        """What they take."""
        return self._spent(self._components)

    def _components(self) -> Any:
        found = self._of.lib.ConnectedComponents.run(self._graph, *self._of.tags)
        found.vertices().count()
        return found

    def _spent(self, act: Callable[[], Any]) -> Spent:
        began, used = time.perf_counter(), self._of.processor()
        found = act()
        took = Spent(time.perf_counter() - began, self._of.processor() - used)
        found.unpersist(True)
        return took

    def values(self, found: Any) -> dict[int, float]:
        """By vertex."""
        return {pair._1(): pair._2() for pair in found.vertices().collect()}  # noqa: SLF001 - Scala's names


@contextmanager
def graph_x() -> Iterator[GraphX]:
    """Spark on all cores, with what memory it needs."""
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="bench-graph-") as folder:
        builder = SparkSession.builder.master("local[*]").config("spark.driver.memory", "4g")
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.local.dir": folder,
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            yield GraphX(spark, Path(folder))
        finally:
            spark.stop()


def agree(jvm: GraphX) -> None:
    """Both sides give the same, of a graph without dangling vertices: with them GraphX means another rank."""
    sources, targets = r_mat(8, 4)
    both = np.concatenate([sources, targets]), np.concatenate([targets, sources])
    table = Graph(pa.table({"source": both[0], "target": both[1]}))
    asked: dict[str, Any] = {"edges": "e", "source": "a", "target": "b"}
    with jvm.loaded(*both) as loaded:
        ours = compute(GraphSpec(algorithm="pagerank", max_supersteps=30, **asked), table).rows
        theirs = loaded.values(loaded.ranks(30))
        assert sorted(theirs) == ours["id"].to_pylist()
        off = max(
            abs(rank - theirs[v] / len(theirs))
            for v, rank in zip(ours["id"].to_pylist(), ours["rank"].to_pylist(), strict=True)
        )
        assert off < 1e-9, off


__all__ = ["graph"]
