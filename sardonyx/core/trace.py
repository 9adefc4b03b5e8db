"""Where a record of a source is on its way through a job, task by task. Pure.

It follows from fronts, as progress does: a record is through a task if none of what could still be made of it is unread or held,
from its source up to there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from sardonyx.core.clocks import END
from sardonyx.core.fronts import offset_of
from sardonyx.core.graph import Graph, Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.core.progress import Look, read_links
from sardonyx.core.source_fronts import Sources, inner

State = Literal["unread", "waiting", "held", "through", "unknown"]
"""``unread``: the task reads the source, and has not come so far. ``waiting``: the record, or what was made of it, is still
before the task. ``held``: it may be in an open window or wait for other rows. ``through``: the task has worked it, or it ended
before. ``unknown``: the job states no fronts."""


class TaskTrace(NamedTuple):
    """One task on the way of a record."""

    task: str
    state: State
    why: str = ""
    until: int | None = None
    """If ``held``: the clock by which it is out at the latest; None: it has none."""


def trace(
    graph: Graph,
    sources: Sources,
    look: Look,
    record: tuple[int, int, int],
    *,
    holding: Collection[str] = (),
    stated: bool = True,
) -> list[TaskTrace]:
    """Where a record is, for each task that rows of its source come to, in the order of the tasks.

    Args:
        graph: of the job.
        sources: of the job.
        look: what the groups said.
        record: the number of the source, the partition, the offset.
        holding: the tasks that may hold rows back.
        stated: the tasks of the job state fronts.
    """
    way = _Way(graph, sources, look, record, holding)
    stages = [stage for stage in graph.stages if record[0] in sources.of_task(stage.name)]
    return [way.at(stage, stages, stated=stated) for stage in stages]


class _Way:
    """The way of one record."""

    def __init__(
        self, graph: Graph, sources: Sources, look: Look, record: tuple[int, int, int], holding: Collection[str]
    ) -> None:
        self._sources, self._look, self._holding = sources, look, holding
        self._source, self._number, self._offset = record
        self._read = read_links(graph, look)

    def at(self, stage: Stage, stages: list[Stage], *, stated: bool) -> TaskTrace:
        name = stage.name
        if name in self._look.ended:
            return TaskTrace(name, "through")
        if unread := self._unread(stage):
            return TaskTrace(name, "unread", unread)
        if (before := self._not_through(stage, stages, stated=stated)) is not None:
            return TaskTrace(name, "waiting", f"it is not through {before}")
        if not stated:
            alone = not inner(stage) and name not in self._holding
            return TaskTrace(name, "through" if alone else "unknown")
        return self._in_task(stage)

    def _in_task(self, stage: Stage) -> TaskTrace:
        """Of a task, when the record is through all before it."""
        if (writer := self._unread_link(stage)) is not None:
            return TaskTrace(stage.name, "waiting", f"rows that {writer} wrote to it may be unread")
        if (held := self._held(stage)) is not None:
            until = None if held >= END else held
            return TaskTrace(stage.name, "held", "it may be in rows that the task holds", until)
        return TaskTrace(stage.name, "through")

    def _not_through(self, stage: Stage, stages: list[Stage], *, stated: bool) -> str | None:
        """The first task before this one that the record is not through."""
        for before in stages:
            if before.name == stage.name or not self._sources.reach.reaches(before.name, stage.name):
                continue
            if before.name not in self._look.ended and (self._unread(before) or (stated and self._stops(before))):
                return before.name
        return None

    def _stops(self, stage: Stage) -> bool:
        return self._unread_link(stage) is not None or self._held(stage) is not None

    def _positions(self, stage: Stage) -> dict[Partition, Position | None]:
        return dict(self._look.first.get(stage.name, {}))

    def _unread(self, stage: Stage) -> str:
        """Why a task that reads the source itself has not come to the record; empty if it has."""
        if stage.name not in self._sources.readers[self._source]:
            return ""
        place = Partition(self._sources.names[self._source], self._number)
        position = self._positions(stage).get(place)
        reached = self._look.begin(stage, place) if position is None else position.offset
        return "" if self._offset < reached else f"it has read up to {reached:,}"

    def _unread_link(self, stage: Stage) -> str | None:
        """The task that wrote what may be unread."""
        for partition, position in self._positions(stage).items():
            link = next((link for link in inner(stage) if link.topic == partition.topic), None)
            if link is None or self._read[link.name] or not self._look.is_used(link, partition):
                continue
            front = self._sources.stated_in(partition.topic, position)
            if offset_of(front, self._source, self._number) <= self._offset:
                return link.source
        return None

    def _held(self, stage: Stage) -> int | None:
        """The clock by which what the task may hold of the record is out; None: it holds nothing of it."""
        found: int | None = None
        for position in self._positions(stage).values():
            if position is None:
                continue
            if position.front is None and stage.name in self._holding:
                return END
            held = position.held
            if held is not None and offset_of(held.front, self._source, self._number) <= self._offset:
                found = max(held.until, found or held.until)
        return found
