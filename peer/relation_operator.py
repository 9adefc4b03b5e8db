"""Joins, lookups, distinct and latest rows as operators, which plan for shards with what :mod:`sardonyx.state` has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from peer.operators import LATE_PREFIX, Answer, Asked, Read, Stores
from peer.window_split import row_times
from sardonyx.connectors.generator import Generator
from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.joining import JOIN_TIME
from sardonyx.core.stores import kind_of
from sardonyx.core.timing import TimeSpec
from sardonyx.state.groups import Numbers
from sardonyx.state.joins import JoinShard
from sardonyx.state.latest import LatestShard
from sardonyx.state.lookups import LookupShard
from sardonyx.state.planned import INSTANT, Planned
from sardonyx.state.release import relation_release
from sardonyx.state.repeats import DistinctShard
from sardonyx.state.row_pack import SCHEMA
from sardonyx.state.sides import LEFT, RIGHT, SidedPiece

_ENTRIES = {
    "join": "the rows of a key that may still find a partner have an entry for each stretch of time, and left rows that have "
    "none one for each time",
    "lookup": "the table has an entry for each key, and rows that wait have one for each time",
    "distinct": "the rows of a key that have passed have an entry for each stretch of time; without `within` one for all time",
    "latest": "each key has an entry, and up to two more while it has a row that has not come or can be forgotten",
}


class _Shard(Protocol):
    """What all relations are."""

    def plan(self, pieces: Sequence[SidedPiece], clocks: tuple[int, int], limit: int | None = None) -> Planned: ...


class RelationOperator:
    """Relates rows to others, for each shard by itself.

    A row is judged by the clock that its own link had stated before it. So what is late, and which rows of two streams meet, does
    not depend on how the streams were read beside each other.

    Args:
        stage: a task that relates rows.
        most: about the most results of a batch, for each shard.
        known: the columns of the left and of the right side, where the job declares them: see :func:`declared_columns`.
    """

    by_rows: Collection[str] = ()
    _STORE = "relation"

    def __init__(
        self, stage: Stage, most: int, known: tuple[pa.Schema | None, pa.Schema | None] = (None, None)
    ) -> None:
        assert stage.task.relation is not None  # noqa: S101 (for the type checker: the caller asks)
        self._relation = stage.task.relation
        self._links = stage.ingress
        self._sides = [RIGHT if _is_right(stage, link) else LEFT for link in stage.ingress]
        self._keys = list(stage.task.group_by or ())
        self._known = known
        self._most = most
        self._shards: WeakKeyDictionary[Stores, _Shard] = WeakKeyDictionary()
        self.entries = _ENTRIES[self._relation.kind]
        self.store = kind_of(self._relation.store)
        self.state_limit = self._relation.state_limit

    def schemas(self) -> Mapping[str, pa.Schema]:
        return {self._STORE: SCHEMA}

    def until(self, asked: Asked) -> int | None:
        times = [
            self._times(self._sides[read.link])(read.piece.rows) for read in asked.reads if read.piece.rows.num_rows
        ]
        return None if not times else relation_release(self._relation, times, asked.clock)

    def is_open(self, stores: Stores) -> bool:
        return len(stores) > 0

    def wake(self, stores: Stores) -> int | None:  # noqa: ARG002
        return None

    def plan(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        return [self._plan(each) for each in asked]

    def _plan(self, asked: Asked) -> Answer:
        pieces = [
            SidedPiece(read.piece.rows, read.stated if read.clocks is None else read.clocks, self._sides[read.link])
            for read in asked.reads
        ]
        planned = self._shard(asked.stores).plan(pieces, self._clocks(asked), self._most)
        late = planned.late
        kept = self._kept(late, asked.reads) if self._relation.late != "drop" and late.num_rows else []
        waits = planned.waits if self._relation.kind == "lookup" else None
        changes = {self._STORE: planned.changes}
        return Answer(planned.results, changes, planned.more, late.num_rows, kept, waits=waits)

    def _clocks(self, asked: Asked) -> tuple[int, int]:
        """Of the left and of the right side. A task with one side has its clock twice."""
        if not self._relation.two_sided:
            return asked.clock, asked.clock
        of_side = dict(zip(self._sides, asked.clocks, strict=True))
        return of_side[LEFT], of_side[RIGHT]

    def _shard(self, stores: Stores) -> _Shard:
        if stores not in self._shards:
            self._shards[stores] = self._made(stores)
        return self._shards[stores]

    def _made(self, stores: Stores) -> _Shard:
        relation, store = self._relation, stores.open(self._STORE, SCHEMA)
        left, right = (self._times(side) for side in (LEFT, RIGHT))
        keys = self._keys, relation.right_on or self._keys
        if relation.kind == "join":
            ordinal = any(link.row_time is not None and link.row_time.ordinal for link in self._links)
            joined = self._by_join_time(LEFT), self._by_join_time(RIGHT)
            return JoinShard(relation, keys, store, (left, right), ordinal=ordinal, known=self._known, joined=joined)
        if relation.kind == "lookup":
            return LookupShard(relation, keys, store, (left, right), known=self._known)
        return (DistinctShard if relation.kind == "distinct" else LatestShard)(relation, self._keys, store, left)

    def _times(self, side: int) -> Any:
        """A function that gives the times of rows of one side. All rows are as old as each other if they have no times."""
        link = self._link(side)
        if link is None or link.row_time is None:
            return _no_times
        return partial(row_times, where=link.row_time, task=link.source)

    def _by_join_time(self, side: int) -> bool:
        """Whether the times of a side are those that another join has given its rows."""
        link = self._link(side)
        return link is not None and link.row_time is not None and link.row_time.column == JOIN_TIME

    def _link(self, side: int) -> Link | None:
        return next((link for link, own in zip(self._links, self._sides, strict=True) if own == side), None)

    def _kept(self, late: pa.Table, reads: Sequence[Read]) -> list[tuple[Any, pa.Table]]:
        """The late rows of a shard as they were given, with their side and by how much each was late."""
        found: list[tuple[Any, pa.Table]] = []
        for index, read in enumerate(reads):
            here = late.filter(pc.equal(late["piece"], index))
            if not here.num_rows:
                continue
            rows = read.piece.rows.take(here["row"])
            if self._relation.two_sided:
                name = "right" if self._sides[read.link] == RIGHT else "left"
                rows = rows.append_column(LATE_PREFIX + "late_side", pa.array([name] * rows.num_rows))
            found.append((read.message, rows.append_column(LATE_PREFIX + "late_by", here["late_by"])))
        return found


def declared_columns(stage: Stage, graph: Graph) -> tuple[pa.Schema | None, pa.Schema | None]:
    """The columns of the left and of the right side of a join or a lookup, where the job declares them.

    It does for the rows of a Kafka input with ``schema=`` in JSON, and for generated rows, if no function changes them. The
    columns of other sides are known when their first rows come.
    """
    relation = stage.task.relation
    if relation is None or not relation.two_sided:
        return None, None
    found: list[pa.Schema | None] = [None, None]
    for link in stage.ingress:
        found[RIGHT if _is_right(stage, link) else LEFT] = _columns_of(graph.stage(link.source))
    return found[LEFT], found[RIGHT]


def _columns_of(stage: Stage) -> pa.Schema | None:
    task = stage.task
    if task.type != "input" or task.fn is not None or stage.fused:
        return None
    if task.connector == "generator":
        return Generator(task.options).read({"first": 0, "count": 0}).schema
    ddl = task.options.get("schema")
    if task.connector != "kafka" or ddl is None or task.options.get("format", "json") != "json":
        return None
    schema = arrow_schema(ddl)
    return schema if task.time is None else _with_time(schema, task.time)


def _with_time(schema: pa.Schema, time: TimeSpec) -> pa.Schema:
    """With the column that an input adds for the times of its rows."""
    if time.kind == "column":
        return schema
    return schema.append(pa.field(time.column, pa.int64() if time.kind == "ordinal" else INSTANT))


def _is_right(stage: Stage, link: Link) -> bool:
    """A link is named by the task whose results go over it, which may be fused with the one that writes it."""
    return stage.task.relation is not None and link.name.partition(".")[0] == stage.task.relation.right


def _no_times(rows: pa.Table) -> Numbers:
    return np.zeros(rows.num_rows, np.int64)


__all__ = ["RelationOperator", "declared_columns"]
