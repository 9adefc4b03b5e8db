"""What a job says about tasks that compute over a graph. Pure data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from sardonyx.core.stores import Store
from sardonyx.core.timing import WindowSpec

GraphAlgorithm = Literal[
    "pagerank",
    "bfs",
    "shortest_paths",
    "connected_components",
    "k_core",
    "label_propagation",
    "triangles",
    "clustering",
    "common_neighbors",
    "degrees",
    "k_hop",
    "program",
]

RESULTS: Mapping[GraphAlgorithm, tuple[str, ...]] = {
    "pagerank": ("rank",),
    "bfs": ("depth",),
    "shortest_paths": ("distance",),
    "connected_components": ("component",),
    "k_core": ("core",),
    "label_propagation": ("label",),
    "triangles": ("triangles",),
    "clustering": ("clustering",),
    "common_neighbors": ("common", "jaccard"),
    "degrees": ("in_degree", "out_degree", "degree"),
    "k_hop": ("depth",),
    "program": (),
}
"""The columns of the results, after that of the vertex. Of ``degrees`` an undirected graph has only the last one; those of a
``program`` are its state."""

DURABLE: tuple[GraphAlgorithm, ...] = ("pagerank", "bfs", "shortest_paths", "connected_components", "k_hop")
"""The algorithms that several peers can compute together."""

VERSION_COLUMNS = ("window_start", "window_end", "window_time")
"""The columns of results that say of which version they are: the bounds of its window, and the time of the result."""

ColumnType = Literal["bigint", "double", "string", "boolean"]
"""The types of a program's state and messages."""
Combiner = Literal["sum", "min", "max", "collect"]
"""How the messages to one vertex become one; ``collect``: a list of all, in ascending order."""
Reducer = Literal["sum", "min", "max", "mean", "count"]
"""How values of all vertices become one, nulls apart."""
OUT_DEGREE, SEND, ACTIVE = "out_degree", "send", "active"
"""Columns of programs: how many edges ``send`` is given of a vertex; whether it is to be; whether ``update`` is to be called
again without a message."""

SUPERSTEPS = 20
"""The supersteps of PageRank without a tolerance, and of label propagation."""
MOST_SUPERSTEPS = 1_000
"""The most supersteps of PageRank with a tolerance, and of programs."""

_UNTIL = re.compile(r"\s*(\w+)\s*(<=|>=|==|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_COLUMN = re.compile(r"\s*([A-Za-z_]\w*)\s+(\w+)\s*")


class Until(NamedTuple):
    """When a program ends: as an aggregate compares so with a number."""

    aggregate: str
    sign: str
    number: float

    def holds(self, value: float | None) -> bool:
        """Whether it does. An aggregate of no values compares with none."""
        if value is None:
            return False
        less, equal = value < self.number, value == self.number
        return {
            "<": less,
            "<=": less or equal,
            "==": equal,
            ">=": value > self.number or equal,
            ">": value > self.number,
        }[self.sign]


def read_until(text: str) -> Until | None:
    """``moved <= 1e-8`` as data; None: it is written otherwise."""
    found = _UNTIL.fullmatch(text)
    return None if found is None else Until(found[1], found[2], float(found[3]))


def read_columns(text: str) -> dict[str, str] | None:
    """``distance double, hops bigint`` by name; None: it is written otherwise, or one name twice. The types may be any words."""
    found = [_COLUMN.fullmatch(part) for part in text.split(",")]
    columns = {each[1]: each[2] for each in found if each is not None}
    return columns if len(columns) == len(found) else None


def read_combine(text: str) -> tuple[str, str]:
    """How, and the type: ``min double``. Both may be any words."""
    how, _, type_ = " ".join(text.split()).partition(" ")
    return how, type_


class GraphSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A graph, and what a task computes over it. The task begins to compute when all edges are there."""

    algorithm: GraphAlgorithm
    graph: str = ""
    """The name of the graph, for people: several tasks may compute over one."""
    edges: str
    """The task whose results are the edges."""
    source: str
    """The column with the vertex that an edge leads from."""
    target: str
    """The column with the vertex that an edge leads to."""
    weight: str | None = None
    """``shortest_paths``: the column with the length of an edge."""
    directed: bool = True
    """Whether an edge leads one way only."""
    vertices: str | None = None
    """The task whose results are further vertices, which may have no edges."""
    pairs: str | None = None
    """``common_neighbors``: the task whose results are the pairs, in columns with the names of ``source`` and ``target``."""
    id: str = "id"
    """The column with the vertex: in the results, and in the rows of ``vertices``."""
    start: list[int | str] | None = None
    """The vertices that ``bfs``, ``shortest_paths`` and ``k_hop`` begin at. ``pagerank``: those that it prefers."""
    preferences: list[float] | None = None
    """``pagerank``: by how much, for each vertex in ``start``; None: all alike."""
    damping: float = 0.85
    """``pagerank``: the share of a rank that goes along the edges."""
    tolerance: float | None = None
    """``pagerank``: it ends when all ranks together move by no more than this in a superstep."""
    max_supersteps: int | None = None
    """``pagerank``, ``label_propagation`` and ``program``: after so many supersteps they end. None: after :attr:`most`."""
    hops: int | None = None
    """``k_hop``: the most edges on the way."""
    columns: list[str] = []
    """``program``: further columns of an edge, which ``send`` is given."""
    send: str | None = None
    """``program``: ``module:function``, which makes the messages along edges. What makes states is the task's function."""
    state: str | None = None
    """``program``: the columns of a vertex' state with their types, such as ``distance double, hops bigint``."""
    first: dict[str, bool | int | float | str] = {}
    """``program``: by column of the state, what it is at first; null for those that are not named. Infinite numbers are the texts
    ``inf`` and ``-inf``, since JSON has none."""
    combine: dict[str, str] = {}
    """``program``: by column of the messages, how those to one vertex become one, and the type: ``min double``."""
    aggregate: dict[str, str] = {}
    """``program``: by column that ``update`` gives besides the state, how its values become one: see :data:`Reducer`."""
    until: str | None = None
    """``program``: it ends when this holds of an aggregate, such as ``moved <= 1e-8``."""
    master: str | None = None
    """``program``: ``module:function``, which is called with the aggregates after each superstep."""
    always: bool = False
    """``program``: each superstep calls ``update`` for all vertices, and not only for those with messages."""
    window: WindowSpec | None = None
    """The graph changes: when a window ends, its rows make a new version of the graph, and results are computed of each. None:
    they are computed once, when all rows are there."""
    remove: str | None = None
    """With ``window``: the column of the edges that says, by true, that a row removes the edge that it names."""
    emit: Literal["all", "changes"] = "all"
    """With ``window``: whether a version gives all results, or those that are others than in the version before."""
    durable: bool = False
    """Several peers may compute: vertices are divided among the partitions of the task's links, and each superstep is
    committed."""
    state_limit: int | None = None
    """The most entries of the state, one for each batch of rows; the job fails at more, and does not fill the memory."""
    store: Store = "memory"
    """Where the edges are kept until all are there: ``memory``, ``rocksdb``, or a database."""

    @property
    def most(self) -> int:
        """The most supersteps of ``pagerank``, ``label_propagation`` and ``program``."""
        few = self.algorithm != "program" and self.tolerance is None
        return self.max_supersteps or (SUPERSTEPS if few else MOST_SUPERSTEPS)

    @property
    def converges(self) -> bool:
        """Whether the limit of supersteps is meant as a limit, so that its reaching is worth a warning."""
        if self.algorithm != "program":
            return self.tolerance is not None
        return self.until is not None or self.master is not None or self.max_supersteps is None

    @property
    def results(self) -> tuple[str, ...]:
        """The columns of the results."""
        if self.window is not None:
            own = replace(self, window=None).results
            return (*own[:1], *VERSION_COLUMNS[:2], *own[1:], *VERSION_COLUMNS[2:])
        found = (*RESULTS[self.algorithm], *(read_columns(self.state or "") or ()))
        if self.algorithm == "common_neighbors":
            return (self.source, self.target, *found)
        return (self.id, *(found if self.directed or self.algorithm != "degrees" else found[-1:]))

    @property
    def reads(self) -> list[str]:
        """The tasks whose results it reads, each once."""
        return list(dict.fromkeys(task for task in (self.edges, self.vertices, self.pairs) if task is not None))


__all__ = [
    "DURABLE",
    "RESULTS",
    "VERSION_COLUMNS",
    "GraphAlgorithm",
    "GraphSpec",
    "Until",
    "read_columns",
    "read_combine",
    "read_until",
]
