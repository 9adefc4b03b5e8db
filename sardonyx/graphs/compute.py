"""From the rows of a graph to the rows of a result, by a declared algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.components import connected
from sardonyx.graphs.cores import cores
from sardonyx.graphs.labels import propagate
from sardonyx.graphs.neighbours import clustering, in_common, triangles
from sardonyx.graphs.paths import FAR, breadth_first, shortest
from sardonyx.graphs.ranks import pagerank
from sardonyx.graphs.rows import SOURCE, TARGET, VERTEX, WEIGHT, Vertices
from sardonyx.graphs.shards import Edges, Floats, Numbers, Shards

Reason = Literal["quiescent", "converged", "finished", "limit"]
"""Why it ended: no vertex had anything to say any more; the tolerance was reached, or a program's ``until`` held; a program's
``master`` said so; or the limit of supersteps."""


class Graph(NamedTuple):
    """The rows of a graph, as :func:`~sardonyx.graphs.rows.read_rows` gives them.

    ``edges``: source, target, and the weight and further columns if there are any. ``vertices``: vertex. ``pairs``: source and
    target.
    """

    edges: pa.Table
    vertices: pa.Table | None = None
    pairs: pa.Table | None = None


class Computed(NamedTuple):
    """What has come of a graph.

    ``rows``: one for each vertex; ``common_neighbors``: for each pair; ``k_hop``: for each vertex in reach.
    """

    rows: pa.Table
    vertices: int
    edges: int
    supersteps: int
    reason: Reason
    moved: float = 0.0
    """PageRank: the sum of how far ranks moved in the last superstep."""
    aggregates: Mapping[str, Any] = {}
    """The aggregates of a program in the last superstep."""


class _Task(NamedTuple):
    """A graph whose vertices are numbered, and what is to be computed."""

    spec: GraphSpec
    graph: Graph
    vertices: Vertices
    edges: Edges
    """As they are; each counts both ways if the graph is not directed."""
    shards: int

    def start(self) -> Numbers:
        """The vertices to begin at."""
        try:
            return self.vertices.find(pa.array(self.spec.start), "start")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise FunctionError(
                "SX-GRAPH-ID",
                "some vertices in `start` are numbers and others texts",
                cause=str(error).splitlines()[0],
                fix="give all of them as the graph has them",
            ) from error

    def ways(self) -> Edges:
        """The edges, in all directions in which they count."""
        return self.edges if self.spec.directed else self.edges.both_ways()


class _Found(NamedTuple):
    """The result's columns, after that of the vertex; and how it ended."""

    columns: dict[str, Any]
    supersteps: int = 1
    reason: Reason = "quiescent"
    moved: float = 0.0
    which: Numbers | None = None
    """The vertices that have a row; None: all."""


def compute(spec: GraphSpec, graph: Graph, shards: int = 1) -> Computed:
    """Run the algorithm of a task that is no program of the user's (:func:`sardonyx.graphs.programs.run_program`).

    Args:
        spec: the task.
        graph: all rows that it reads.
        shards: into how many the edges are divided. It changes no bit of the result.

    Raises:
        FunctionError: ``SX-GRAPH-ID``, ``SX-GRAPH-VERTEX``, ``SX-GRAPH-WEIGHT``.
    """
    named = [graph.edges[SOURCE], graph.edges[TARGET]]
    named += [] if graph.vertices is None else [graph.vertices[VERTEX]]
    vertices = Vertices(named)
    weights = graph.edges[WEIGHT].to_numpy() if WEIGHT in graph.edges.column_names else None
    edges = Edges(len(vertices), vertices.column(0), vertices.column(1), weights)
    task = _Task(spec, graph, vertices, edges, shards)
    if spec.algorithm == "common_neighbors":
        rows, found = _common(task)
    else:
        found = _ALGORITHMS[spec.algorithm](task)
        ids = vertices.ids if found.which is None else vertices.ids.take(pa.array(found.which))
        rows = pa.table({spec.id: ids, **found.columns})
    return Computed(rows, len(vertices), graph.edges.num_rows, found.supersteps, found.reason, found.moved)


def _pagerank(task: _Task) -> _Found:
    spec = task.spec
    start: Floats | None = None
    if spec.start is not None:
        start = np.zeros(len(task.vertices))
        wished = np.ones(len(spec.start)) if spec.preferences is None else np.array(spec.preferences, np.float64)
        np.add.at(start, task.start(), wished)
    found = pagerank(Shards(task.ways(), task.shards), spec.damping, spec.most, spec.tolerance, start)
    converged = spec.tolerance is not None and found.moved <= spec.tolerance
    return _Found({"rank": found.ranks}, found.supersteps, "converged" if converged else "limit", found.moved)


def _bfs(task: _Task) -> _Found:
    depths, steps = breadth_first(Shards(task.ways(), task.shards), task.start())
    return _Found({"depth": pa.array(depths, mask=depths == FAR)}, steps)


def _k_hop(task: _Task) -> _Found:
    depths, steps = breadth_first(Shards(task.ways(), task.shards), task.start(), task.spec.hops)
    near = np.flatnonzero(depths != FAR)
    return _Found({"depth": depths[near]}, steps, which=near)


def _shortest_paths(task: _Task) -> _Found:
    try:
        distances, steps = shortest(Shards(task.ways(), task.shards), task.start())
    except OverflowError as error:
        raise paths_too_long() from error
    return _Found({"distance": pa.array(distances, mask=np.isinf(distances))}, steps)


def paths_too_long() -> FunctionError:
    """The error ``SX-GRAPH-WEIGHT`` of a path whose weights have no sum."""
    return FunctionError(
        "SX-GRAPH-WEIGHT",
        "the weights on a path are too great to be added up",
        cause="their sum is greater than any number of type double",
        fix="give the weights in a greater unit",
    )


def _connected_components(task: _Task) -> _Found:
    roots, steps = connected(Shards(task.edges, task.shards))
    return _Found({"component": task.vertices.ids.take(pa.array(roots))}, steps)


def _k_core(task: _Task) -> _Found:
    found, steps = cores(Shards(task.edges.simple(), task.shards))
    return _Found({"core": found}, steps)


def _label_propagation(task: _Task) -> _Found:
    shards = Shards(task.edges.both_ways(), task.shards)
    labels, steps = propagate(shards, task.spec.most)
    reason: Reason = "limit" if steps == task.spec.most else "quiescent"
    return _Found({"label": task.vertices.ids.take(pa.array(labels))}, steps, reason)


def _triangles(task: _Task) -> _Found:
    return _Found({"triangles": triangles(task.edges, task.shards)})


def _clustering(task: _Task) -> _Found:
    return _Found({"clustering": clustering(task.ways(), task.shards)})


def _degrees(task: _Task) -> _Found:
    count, edges = len(task.vertices), task.edges
    leaving, coming = (np.bincount(ends, minlength=count) for ends in (edges.sources, edges.targets))
    both = {"degree": leaving + coming}
    return _Found({"in_degree": coming, "out_degree": leaving, **both} if task.spec.directed else both)


def _common(task: _Task) -> tuple[pa.Table, _Found]:
    pairs = task.graph.pairs
    assert pairs is not None  # noqa: S101 (for the type checker: the job is checked)
    first, second = (task.vertices.find(pairs[side], "a pair") for side in (SOURCE, TARGET))
    common, either = in_common(task.edges, first, second, task.shards)
    jaccard = np.divide(common, either, out=np.zeros(len(common)), where=either > 0)
    named = {task.spec.source: pairs[SOURCE], task.spec.target: pairs[TARGET]}
    return pa.table({**named, "common": common, "jaccard": jaccard}), _Found({})


_ALGORITHMS: dict[str, Callable[[_Task], _Found]] = {
    "pagerank": _pagerank,
    "bfs": _bfs,
    "shortest_paths": _shortest_paths,
    "connected_components": _connected_components,
    "k_core": _k_core,
    "label_propagation": _label_propagation,
    "triangles": _triangles,
    "clustering": _clustering,
    "degrees": _degrees,
    "k_hop": _k_hop,
}

__all__ = ["Computed", "Graph", "Reason", "compute", "paths_too_long"]
