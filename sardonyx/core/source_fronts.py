"""The fronts of a task: which sources reach it, what it has read of them, and what its shards hold back. Pure.

What a front is: :mod:`sardonyx.core.fronts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sardonyx.core.clocks import END
from sardonyx.core.fronts import UNKNOWN, Front, Held, greatest, least
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.core.reach import Reach

MOST_HELD = 64
"""Stretches of rows that a shard tells apart. With more, neighbours become one."""


class HeldRows(NamedTuple):
    """What a shard holds, by stretches in the order in which they came. The position keeps it as one stretch (:attr:`merged`), so
    a peer that takes over begins with that.
    """

    stretches: tuple[Held, ...] = ()

    @classmethod
    def committed(cls, position: Position | None) -> HeldRows:
        """As the committed position of a shard says. If its text had no room for it, the shard may hold anything."""
        if position is None:
            return cls()
        held = Held(END, UNKNOWN) if position.front is None else position.held
        return cls() if held is None else cls((held,))

    @property
    def merged(self) -> Held | None:
        """All stretches as one. None: the shard holds nothing."""
        if not self.stretches:
            return None
        count = max(len(held.front) for held in self.stretches)
        front = least((held.front for held in self.stretches), count)
        return Held(max(held.until for held in self.stretches), front, _earliest(held.since for held in self.stretches))

    @property
    def without_end(self) -> bool:
        """Whether no clock but that of the end lets some of it out."""
        return any(held.until >= END for held in self.stretches)

    def after(self, came: Held | None, closed: int) -> HeldRows:
        """What is held after a batch.

        Args:
            came: the rows of the batch; None: it had none that are held.
            closed: the clock up to which all is out.
        """
        both = self.stretches if came is None else (*self.stretches, came)
        found: list[Held] = []
        for held in both:
            if held.until <= closed:
                continue
            if found and found[-1].front == held.front:
                since = _earliest((found[-1].since, held.since))
                found[-1] = Held(max(found[-1].until, held.until), held.front, since)
            else:
                found.append(held)
        while len(found) > MOST_HELD:
            pairs = [HeldRows(tuple(found[at : at + 2])).merged for at in range(0, len(found), 2)]
            found = [pair for pair in pairs if pair is not None]
        return HeldRows(tuple(found))


def _earliest(since: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The least of each link; of one that some do not name, nothing is known."""
    return tuple(map(min, zip(*since, strict=False)))


class Sources:
    """The sources of a job by number, and which of them reach which task.

    A source is a topic of the user's that tasks read, or the list of an input's splits. Inputs of the same topic are one.

    Args:
        graph: of the job. The numbers follow from it, so they are the same in all processes.
    """

    def __init__(self, graph: Graph) -> None:
        self.names: list[str] = []
        """Their topics, by number."""
        stages = [stage.name for stage in graph.stages]
        links = [(link.source, stage.name) for stage in graph.stages for link in inner(stage)]
        self.reach: Reach[str] = Reach(stages, links)
        """Which tasks reach which others."""
        self.readers: list[list[str]] = []
        """By number, the tasks that read it."""
        self.own: dict[str, list[int]] = {name: [] for name in stages}
        """By task, those that it reads itself."""
        for stage in graph.stages:
            for link in stage.ingress:
                if link.kind != "internal":
                    self._add(link.topic, stage.name)
        self._of_task = {
            name: frozenset(number for before in self.reach.before(name) for number in self.own[before])
            for name in stages
        }
        self._of_topic = {link.topic: self._of_task[link.source] for stage in graph.stages for link in inner(stage)}

    def _add(self, topic: str, reader: str) -> None:
        if topic not in self.names:
            self.names.append(topic)
            self.readers.append([])
        number = self.names.index(topic)
        if number not in self.own[reader]:
            self.own[reader].append(number)
            self.readers[number].append(reader)

    def __len__(self) -> int:
        return len(self.names)

    def of_task(self, task: str) -> frozenset[int]:
        """The sources whose rows come to a task."""
        return self._of_task[task]

    def over(self, topic: str) -> frozenset[int]:
        """The sources whose rows come over an internal link."""
        return self._of_topic[topic]

    def stated_in(self, topic: str, position: Position | None) -> Front:
        """What was stated in a partition of an internal link up to a position: of what its reader has read.

        A text that had no room for a front says nothing, also of an end.
        """
        stated: Front = UNKNOWN
        if position is not None and position.front is not None:
            stated = (None,) * len(self) if position.drained is not None else position.front
        over = self.over(topic)
        return tuple(
            (stated[number] if number < len(stated) else ()) if number in over else None for number in range(len(self))
        )

    def in_partition(self, topic: str, position: Position | None) -> Front:
        """The same, of what its reader has read, and does not hold."""
        stated = self.stated_in(topic, position)
        if position is None or position.front is None or position.held is None:
            return stated
        return least((stated, position.held.front), len(self))


def inner(stage: Stage) -> list[Link]:
    """The internal links that a task reads."""
    return [link for link in stage.ingress if link.kind == "internal"]


class Fronts:
    """What one peer states in the links of its task. A takeover begins with a new one: what was stated before stays true.

    Args:
        sources: of the job.
        stage: the task.
        partitions: all partitions that the task reads.
    """

    def __init__(self, sources: Sources, stage: Stage, partitions: Iterable[Partition]) -> None:
        self._sources = sources
        self._inner = {link.topic for link in inner(stage)}
        self._reach = sources.of_task(stage.name)
        self._offsets: dict[Partition, int] = {}
        """The offsets of the sources' partitions."""
        self._places: dict[int, set[Partition]] = {}
        """By number, the inner partitions."""
        for partition in partitions:
            if partition.topic in self._inner:
                self._places.setdefault(partition.number, set()).add(partition)
            else:
                self._offsets[partition] = 0
        self._fronts = self._by_number({place: None for places in self._places.values() for place in places})
        """By number, of the inner partitions with this number."""
        self.last: Front = UNKNOWN
        """What was stated last."""

    def heard(self, committed: Mapping[Partition, Position | None]) -> None:
        """What is committed for these partitions. An answer that was overtaken by a newer one does no harm."""
        for number, front in self._by_number(committed).items():
            self._fronts[number] = greatest(self._fronts.get(number, UNKNOWN), front)
        for partition, position in committed.items():
            if partition.topic not in self._inner and position is not None:
                self._offsets[partition] = max(self._offsets.get(partition, 0), position.offset)

    def front(self, own: Mapping[Partition, Position | None]) -> Front:
        """What to state after the rows of a batch, given the positions of the partitions that this peer holds.

        Those that the batch moves count as they are after it: they are committed in the same transaction as the statement. Of a
        source that does not reach the task, nothing is stated: a change may lead it there.
        """
        fronts, offsets = dict(self._fronts), dict(self._offsets)
        for partition, position in own.items():
            if partition.topic not in self._inner and position is not None:
                offsets[partition] = position.offset
        for number, front in self._by_number(own).items():
            fronts[number] = greatest(fronts.get(number, UNKNOWN), front)
        count = len(self._sources)
        found = least([*fronts.values(), self._read(offsets)], count)
        reached = tuple(offsets if number in self._reach else () for number, offsets in enumerate(found))
        return greatest(self.last, reached)

    def adds(self, front: Front) -> bool:
        """Whether a front says more than what was stated last."""
        return greatest(self.last, front) != self.last

    def _by_number(self, positions: Mapping[Partition, Position | None]) -> dict[int, Front]:
        """What is known by number of a partition, from positions of one moment.

        The links of a task share its shards, and what a shard holds stands in the position of its first link only. So the front
        of that position alone may fall, when the shard takes a row of another link. The least over all links of a number never
        does.
        """
        places: dict[int, set[Partition]] = {}
        for partition in positions:
            if partition.topic in self._inner:
                number = partition.number
                places.setdefault(number, set(self._places.get(number, ()))).add(partition)
        return {
            number: least(
                [self._sources.in_partition(each.topic, positions.get(each)) for each in beside], len(self._sources)
            )
            for number, beside in places.items()
        }

    def _read(self, offsets: Mapping[Partition, int]) -> Front:
        """What the task has read of its own sources. A partition that the task does not know ends what is known of its source."""
        topics = {partition.topic for partition in offsets}
        found: list[tuple[int, ...] | None] = []
        for name in self._sources.names:
            known = {partition.number: offset for partition, offset in offsets.items() if partition.topic == name}
            whole = next((number for number in range(len(known)) if number not in known), len(known))
            found.append(tuple(known[number] for number in range(whole)) if name in topics else None)
        return tuple(found)

    def stated(self, front: Front) -> None:
        """The transaction with this statement is committed. Of one that is not, nothing was promised."""
        self.last = greatest(self.last, front)
