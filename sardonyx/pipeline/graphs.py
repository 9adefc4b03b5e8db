"""Graphs of a pipeline: the methods of ``job.graph``, whose results are streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from sardonyx.job.graphing import GraphView
from sardonyx.job.tasks import Task
from sardonyx.pipeline.streams import Stream

P = ParamSpec("P")


def _streamed(
    method: Callable[Concatenate[GraphView, P], Task],
) -> Callable[Concatenate[GraphStreams, P], Stream]:
    """A method of a graph that gives a stream. A stream among its arguments stands for its task."""

    @wraps(method)
    def streamed(self: GraphStreams, /, *args: P.args, **kwargs: P.kwargs) -> Stream:
        name = str(kwargs.get("name", args[0] if args else ""))
        given: Any = {key: each.side(name) if isinstance(each, Stream) else each for key, each in kwargs.items()}
        task = method(self.view, *args, **given)
        return Stream(self.edges.pipeline, (task,), self.edges.windows)

    return streamed


@dataclass(frozen=True)
class GraphStreams:
    """A stream as the edges of a graph, as ``pipeline.graph_view`` returns it. Each method is as that of :class:`GraphView`, and
    gives a stream: :meth:`GraphView.pagerank`, and so on.
    """

    view: GraphView
    edges: Stream

    pagerank = _streamed(GraphView.pagerank)
    bfs = _streamed(GraphView.bfs)
    k_hop = _streamed(GraphView.k_hop)
    shortest_paths = _streamed(GraphView.shortest_paths)
    connected_components = _streamed(GraphView.connected_components)
    k_core = _streamed(GraphView.k_core)
    label_propagation = _streamed(GraphView.label_propagation)
    triangles = _streamed(GraphView.triangles)
    clustering = _streamed(GraphView.clustering)
    common_neighbors = _streamed(GraphView.common_neighbors)
    degrees = _streamed(GraphView.degrees)
    compute = _streamed(GraphView.compute)


__all__ = ["GraphStreams"]
