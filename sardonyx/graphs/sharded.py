"""The algorithms that several shards can compute together, each seen from one shard.

They give what :func:`sardonyx.graphs.compute.compute` gives, bit by bit: what is combined is combined exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.barriers import Totals
from sardonyx.graphs.combine import combined
from sardonyx.graphs.compute import paths_too_long
from sardonyx.graphs.homes import VALUE, Home, homes_of, together
from sardonyx.graphs.paths import FAR
from sardonyx.graphs.ranks import ONE
from sardonyx.graphs.rows import VERTEX, no_vertex
from sardonyx.graphs.shards import Floats, Numbers, distinct


class Part(NamedTuple):
    """What a shard knows from its first superstep on."""

    spec: GraphSpec
    home: Home
    shard: int
    shards: int
    vertices: int
    """The vertices of all shards."""
    is_text: bool
    """Whether vertices are texts."""

    def start(self) -> tuple[Numbers, list[int]]:
        """The vertices to begin at whose home is here, and their places in the list of all.

        Raises:
            FunctionError: ``SX-GRAPH-VERTEX``.
        """
        wanted = pa.array(self.spec.start)
        mine = np.flatnonzero(homes_of(wanted, self.shards) == self.shard)
        here = wanted.take(pa.array(mine))
        if not len(here):
            return np.zeros(0, np.int64), []
        same = here.type == self.home.ids.type
        is_known = pc.is_in(here, self.home.ids) if same else pa.array([False] * len(here))
        if not pc.all(is_known).as_py():
            raise no_vertex("start", here.filter(pc.invert(is_known))[0].as_py(), self.vertices, is_text=self.is_text)
        return self.home.find(here), mine.tolist()


class Turn(NamedTuple):
    """What a superstep makes of a shard."""

    values: pa.Table
    """The state of its vertices after it, in their order."""
    slots: Numbers
    """The slots that get a message, ascending."""
    sent: pa.Array | None
    """What each gets; None: nothing but that it comes."""
    totals: Totals


class Algorithm(Protocol):
    """An algorithm in one shard."""

    both_ways: ClassVar[bool]
    """Whether edges count both ways even in a directed graph."""

    def __init__(self, part: Part) -> None: ...

    def begin(self) -> Turn:
        """The first superstep."""
        ...

    def go_on(self, values: pa.Table, got: list[pa.Table], done: int, totals: Totals) -> Turn:
        """A further superstep. The same call gives the same again.

        Args:
            values: the state of the vertices.
            got: the messages to them.
            done: how many such supersteps there were before it.
            totals: of the superstep before, over all shards.
        """
        ...

    def results(self, values: pa.Table) -> tuple[Mapping[str, pa.Array], Numbers | None]:
        """The columns of the results, and the vertices that have a row; None: all."""
        ...


def _turn(part: Part, values: Mapping[str, object], slots: Numbers, sent: pa.Array | None, **more: int) -> Turn:
    totals = {"vertices": len(part.home), "sent": len(slots), **more}
    return Turn(pa.table(dict(values)), slots, sent, totals)


class PageRank:
    """As :func:`sardonyx.graphs.ranks.pagerank`. Totals: what vertices without edges lose, and how far ranks moved."""

    both_ways: ClassVar[bool] = False

    def __init__(self, part: Part) -> None:
        self._part = part
        self._divisors = np.maximum(part.home.counts, 1)
        self._dangling = part.home.counts == 0

    def _wanted(self) -> Floats:
        part, spec = self._part, self._part.spec
        if spec.start is None:
            return np.full(len(part.home), 1 / part.vertices)
        wished = [1.0] * len(spec.start) if spec.preferences is None else spec.preferences
        every: dict[int | str, float] = {}
        for vertex, wish in zip(spec.start, wished, strict=True):
            every[vertex] = every.get(vertex, 0.0) + wish
        found = np.zeros(len(part.home))
        numbers, places = part.start()
        found[numbers] = [every[spec.start[place]] for place in places]
        return found / math.fsum(every.values())

    def begin(self) -> Turn:
        part = self._part
        if part.spec.start is not None:
            part.start()  # raises before anything is computed
        return self._sent(np.full(len(part.home), ONE // max(part.vertices, 1)), 0)

    def go_on(self, values: pa.Table, got: list[pa.Table], done: int, totals: Totals) -> Turn:  # noqa: ARG002
        part, damping = self._part, self._part.spec.damping
        ranks = values["rank"].to_numpy()
        inbox = np.zeros(len(part.home), np.int64)
        for table in got:
            np.add.at(inbox, part.home.find(table[VERTEX]), table[VALUE].to_numpy())
        lost = float(totals["lost"])
        after = (self._wanted() * (damping * lost + (1 - damping) * ONE) + damping * inbox).astype(np.int64)
        return self._sent(after, int(np.abs(after - ranks).sum(dtype=np.uint64)))

    def _sent(self, ranks: Numbers, moved: int) -> Turn:
        home = self._part.home
        shares = np.zeros(len(home.targets), np.int64)
        np.add.at(shares, home.slots, (ranks // self._divisors)[home.sources])
        lost = int(ranks[self._dangling].sum())
        slots = np.arange(len(home.targets))
        return _turn(self._part, {"rank": ranks}, slots, pa.array(shares), lost=lost, moved=moved)

    def results(self, values: pa.Table) -> tuple[Mapping[str, pa.Array], Numbers | None]:
        return {"rank": pa.array(values["rank"].to_numpy() / ONE)}, None


class BreadthFirst:
    """As :func:`sardonyx.graphs.paths.breadth_first`: ``bfs`` and ``k_hop``."""

    both_ways: ClassVar[bool] = False

    def __init__(self, part: Part) -> None:
        self._part = part

    def begin(self) -> Turn:
        return self._found(np.full(len(self._part.home), FAR, np.int64), self._part.start()[0], 0)

    def go_on(self, values: pa.Table, got: list[pa.Table], done: int, totals: Totals) -> Turn:  # noqa: ARG002
        depths = values["depth"].to_numpy().copy()
        told = together(got, VERTEX)
        here = np.zeros(0, np.int64) if told is None else distinct(self._part.home.find(told))
        return self._found(depths, here[depths[here] == FAR], done + 1)

    def _found(self, depths: Numbers, front: Numbers, depth: int) -> Turn:
        part, home = self._part, self._part.home
        depths[front] = depth
        ends = part.spec.hops is not None and depth >= part.spec.hops
        slots = front[:0] if ends else distinct(home.slots[home.out_of(distinct(front))[0]])
        return _turn(part, {"depth": depths}, slots, None)

    def results(self, values: pa.Table) -> tuple[Mapping[str, pa.Array], Numbers | None]:
        depths = values["depth"].to_numpy()
        if self._part.spec.algorithm == "k_hop":
            near = np.flatnonzero(depths != FAR)
            return {"depth": pa.array(depths[near])}, near
        return {"depth": pa.array(depths, mask=depths == FAR)}, None


class ShortestPaths:
    """As :func:`sardonyx.graphs.paths.shortest`."""

    both_ways: ClassVar[bool] = False

    def __init__(self, part: Part) -> None:
        self._part = part

    def begin(self) -> Turn:
        distances, front = np.full(len(self._part.home), np.inf), distinct(self._part.start()[0])
        distances[front] = 0
        return self._found(distances, front)

    def go_on(self, values: pa.Table, got: list[pa.Table], done: int, totals: Totals) -> Turn:  # noqa: ARG002
        home = self._part.home
        distances = values["distance"].to_numpy().copy()
        offers = np.full(len(home), np.inf)
        for table in got:
            np.minimum.at(offers, home.find(table[VERTEX]), table[VALUE].to_numpy())
        front = np.flatnonzero(offers < distances)
        distances[front] = offers[front]
        return self._found(distances, front)

    def _found(self, distances: Floats, front: Numbers) -> Turn:
        home = self._part.home
        assert home.weights is not None  # noqa: S101 (for the type checker: the job is checked)
        places, which = home.out_of(front)
        with np.errstate(over="ignore"):
            sums = distances[front[which]] + home.weights[places]
        if np.isinf(sums).any():
            raise paths_too_long()
        offers = np.full(len(home.targets), np.inf)
        np.minimum.at(offers, home.slots[places], sums)
        slots = distinct(home.slots[places])
        return _turn(self._part, {"distance": distances}, slots, pa.array(offers[slots]))

    def results(self, values: pa.Table) -> tuple[Mapping[str, pa.Array], Numbers | None]:
        distances = values["distance"].to_numpy()
        return {"distance": pa.array(distances, mask=np.isinf(distances))}, None


class Components:
    """The least vertex that a path leads to goes along all edges, until none learns of a lesser one."""

    both_ways: ClassVar[bool] = True

    def __init__(self, part: Part) -> None:
        self._part = part

    def begin(self) -> Turn:
        home = self._part.home
        return self._found(home.ids, np.arange(len(home)))

    def go_on(self, values: pa.Table, got: list[pa.Table], done: int, totals: Totals) -> Turn:  # noqa: ARG002
        least: pa.Array = values["component"].combine_chunks()
        least = least.combine_chunks() if isinstance(least, pa.ChunkedArray) else least
        told, said = together(got, VERTEX), together(got, VALUE)
        if told is None or said is None:
            return self._found(least, np.zeros(0, np.int64))
        here, which = np.unique(self._part.home.find(told), return_inverse=True)
        offers = combined("min", which.astype(np.int64), pa.concat_arrays(said.chunks), len(here))
        better = pc.less(offers, least.take(pa.array(here)))
        front = here[better.to_numpy(zero_copy_only=False)]
        mask = np.zeros(len(least), np.bool_)
        mask[front] = True
        return self._found(pc.replace_with_mask(least, pa.array(mask), offers.filter(better)), front)

    def _found(self, least: pa.Array, front: Numbers) -> Turn:
        home = self._part.home
        places, which = home.out_of(front)
        if not len(places):
            return _turn(self._part, {"component": least}, places, None)
        slots, at = np.unique(home.slots[places], return_inverse=True)
        sent = combined("min", at.astype(np.int64), least.take(pa.array(front[which])), len(slots))
        return _turn(self._part, {"component": least}, slots, sent)

    def results(self, values: pa.Table) -> tuple[Mapping[str, pa.Array], Numbers | None]:
        return {"component": values["component"]}, None


ALGORITHMS: Mapping[str, type[Algorithm]] = {
    "pagerank": PageRank,
    "bfs": BreadthFirst,
    "k_hop": BreadthFirst,
    "shortest_paths": ShortestPaths,
    "connected_components": Components,
}
"""By name, those that several shards can compute together: :data:`sardonyx.core.graphing.DURABLE`."""

__all__ = ["ALGORITHMS", "Algorithm", "Part", "Turn"]
