"""Programs over graphs as users write them, in both forms: what the declared algorithms compute, and a few others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sardonyx import Superstep, Vertex, VertexProgram
from sardonyx.core.graphing import GraphSpec

# --- Tables -----------------------------------------------------------------------------------------------------------


def depth_update(v: pa.Table, step: Superstep, start: int | str) -> pa.Table:
    if step.number == 0:
        return pa.table({"depth": pc.if_else(pc.equal(v["id"], start), 0, v["depth"])})
    return pa.table({"depth": pc.coalesce(v["depth"], v["near"])})


def depth_send(e: pa.Table) -> pa.Table:
    return pa.table({"near": pc.add(e["depth"], 1)})


def rank_update(v: pa.Table, step: Superstep, damping: float = 0.85) -> pa.Table:
    if step.number == 0:
        rank = pa.chunked_array([pa.repeat(1 / step.vertices, len(v))])
    else:
        rest = (1 - damping + damping * step.aggregates["lost"]) / step.vertices
        rank = pc.add(pc.multiply(pc.coalesce(v["share"], 0.0), damping), rest)
    moved = pc.abs(pc.subtract(rank, v["rank"]))
    lost = pc.if_else(pc.equal(v["out_degree"], 0), rank, 0.0)
    return pa.table({"rank": rank, "lost": lost, "moved": moved})


def rank_send(e: pa.Table) -> pa.Table:
    return pa.table({"share": pc.divide(e["rank"], e["out_degree"])})


def least_update(v: pa.Table) -> pa.Table:
    return pa.table({"component": pc.min_element_wise(v["id"], v["component"], v["least"])})


def least_send(e: pa.Table) -> pa.Table:
    return pa.table({"least": e["component"]})


def distance_update(v: pa.Table, step: Superstep, start: int | str) -> pa.Table:
    here = pc.if_else(pc.equal(v["id"], start), 0.0, math.inf) if step.number == 0 else v["distance"]
    return pa.table({"distance": pc.min_element_wise(here, v["via"])})


def distance_send(e: pa.Table) -> pa.Table:
    return pa.table({"via": pc.add(e["distance"], e["w"])})


def label_update(v: pa.Table, step: Superstep) -> pa.Table:
    """LDBC's CDLP: the label of most neighbours, the least of several."""
    if step.number == 0:
        return pa.table({"label": v["id"]})
    labels = [_most(some, own) for some, own in zip(v["labels"].to_pylist(), v["label"].to_pylist(), strict=True)]
    return pa.table({"label": pa.array(labels, v["id"].type)})


def _most(labels: list[Any] | None, own: Any) -> Any:
    return own if labels is None else min(set(labels), key=lambda label: (-labels.count(label), label))


def label_send(e: pa.Table) -> pa.Table:
    return pa.table({"labels": e["label"]})


def spec(**given: Any) -> GraphSpec:
    """A task over edges in the columns a and b, and vertices in id."""
    given = {"edges": "edges", "source": "a", "target": "b", "vertices": "vertices", **given}
    return GraphSpec(algorithm="program", **given)


def of(algorithm: str, kind: str, **given: Any) -> tuple[Any, Any, GraphSpec]:
    """``update``, ``send`` and the task of an algorithm; ``kind``: the type of vertices."""
    if algorithm == "bfs":
        return depth_update, depth_send, spec(state="depth bigint", combine={"near": "min bigint"}, **given)
    if algorithm == "pagerank":
        given = {"aggregate": {"lost": "sum", "moved": "sum"}, "always": True, **given}
        return rank_update, rank_send, spec(state="rank double", combine={"share": "sum double"}, **given)
    if algorithm == "connected_components":
        task = spec(state=f"component {kind}", combine={"least": f"min {kind}"}, **given)
        return least_update, least_send, task
    if algorithm == "label_propagation":
        given = {"always": True, **given}
        return label_update, label_send, spec(state=f"label {kind}", combine={"labels": f"collect {kind}"}, **given)
    task = spec(state="distance double", first={"distance": "inf"}, combine={"via": "min double"}, weight="w", **given)
    return distance_update, distance_send, task


# --- Classes ----------------------------------------------------------------------------------------------------------


class Depths(VertexProgram):
    def compute(self, vertex: Vertex, messages: Iterator[int]) -> None:
        if self.superstep == 0 and vertex.id == self.params["start"]:
            found: int | None = 0
        else:
            found = next(messages, None)
        if found is not None and vertex.value is None:
            vertex.value = found
            self.send_to_neighbors(found + 1)
        vertex.halt()


class Ranks(VertexProgram):
    def compute(self, vertex: Vertex, messages: Iterator[float]) -> None:
        if self.superstep == 0:
            rank = 1 / self.vertices
        else:
            rank = (0.15 + 0.85 * self.aggregated("lost")) / self.vertices + 0.85 * next(messages, 0.0)
            self.aggregate("moved", abs(rank - vertex.value))
        vertex.value = rank
        self.aggregate("lost", 0.0 if vertex.out_edges else rank)
        if vertex.out_edges:
            self.send_to_neighbors(rank / len(vertex.out_edges))


class Components(VertexProgram):
    def compute(self, vertex: Vertex, messages: Iterator[Any]) -> None:
        least = vertex.id if self.superstep == 0 else min(vertex.value, next(messages))
        if least != vertex.value:
            vertex.value = least
            self.send_to_neighbors(least)
        vertex.halt()


class Distances(VertexProgram):
    def compute(self, vertex: Vertex, messages: Iterator[float]) -> None:
        start = self.superstep == 0 and vertex.id == self.params["start"]
        best = 0.0 if start else min(messages, default=math.inf)
        if best < vertex.value:
            vertex.value = best
            for edge in vertex.out_edges:
                self.send(edge.target, best + edge.value)
        vertex.halt()


CLASSES: dict[str, type[VertexProgram]] = {
    "bfs": Depths,
    "pagerank": Ranks,
    "connected_components": Components,
    "shortest_paths": Distances,
}
