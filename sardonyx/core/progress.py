"""How far each partition of a job's sources has come: read, and through all tasks. Pure.

The idea is Mass's (its OffsetManager): the progress of a source partition is the least over all paths of the greatest offset
along a path. There one process holds all tasks. Between queues the offset of a task counts on a path only if nothing is unread
after it. So what bounds the progress is what is unread and what is held, and nothing else: see :func:`source_progress`. Which
tasks lie after a source is looked up in tables of distances (:mod:`sardonyx.core.reach`); no path is walked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sardonyx.core import link_counts
from sardonyx.core.events import LinkFacts
from sardonyx.core.fronts import Front, offset_of
from sardonyx.core.positions import Partition
from sardonyx.core.source_fronts import Sources, inner

if TYPE_CHECKING:
    from sardonyx.core.graph import Graph, Link, Stage
    from sardonyx.core.positions import Position


class Bound(NamedTuple):
    """What keeps the progress of a source partition from going beyond an offset."""

    offset: int
    task: str
    why: str


class SourceProgress(NamedTuple):
    """One partition of a source. Offsets are those at which a reader would go on."""

    source: str
    """The topic; of an input that is read in splits, that with their list."""
    partition: int
    read: int | None
    """Up to where any task has read it; None: nothing yet, or it is not known any more."""
    everywhere: int | None
    """Every row below has been through all tasks, or has ended on its way; None: it is not known."""
    pending: int | None
    """How many offsets lie between the two."""
    held_by: tuple[str, ...] = ()
    """The tasks that the first pending row waits for, or that make ``everywhere`` unknown."""
    why: str = ""
    """Why it waits for the first of them; empty if nothing is pending."""


class Look(NamedTuple):
    """What the groups of a job's tasks have committed.

    ``first``: the positions by task, in whatever order they were asked for. ``again``: the same, asked when all of ``first`` were
    there. ``ended``: tasks that were complete before any was asked. ``starts``: by topic, where the job began to read each
    partition. ``facts``: of the job's links.
    """

    first: Mapping[str, Mapping[Partition, Position | None]]
    again: Mapping[str, Mapping[Partition, Position | None]]
    ended: Collection[str] = ()
    starts: Mapping[str, Sequence[int | None]] = {}
    facts: Mapping[str, LinkFacts] = {}

    def is_used(self, link: Link, partition: Partition) -> bool:
        """Whether rows may be written to a partition of a queue. A queue that once had more keeps the others, all read."""
        known = self.facts.get(link.name)
        return known is None or partition.number < known.partitions

    def begin(self, stage: Stage, place: Partition, otherwise: int = 0) -> int:
        """From where on a task reads a partition of a source: one that a change has added leaves out what was read before it. If
        the facts do not say it, it is ``otherwise``.
        """
        links = [
            self.facts[link.name] for link in stage.ingress if link.topic == place.topic and link.name in self.facts
        ]
        rows = [known.start or () for known in links]
        return min(((row[place.number] or 0) if place.number < len(row) else 0 for row in rows), default=otherwise)


def source_progress(
    graph: Graph, sources: Sources, look: Look, *, holding: Collection[str] = (), stated: bool = True
) -> list[SourceProgress]:
    """How far each source partition is. It never says more than is true, whatever commits while the groups are asked.

    A row below ``everywhere`` was read by all tasks that read its source. What became of it stands on no link unread: a link
    counts as read only if all rows that were ever written to it were read, and none was written until the second answer came; on
    any other one the fronts say up to where all is read. No task holds it. So it is in the outputs, or it was dropped or is a
    dead letter.

    Args:
        graph: of the job.
        sources: of the job.
        look: the answers.
        holding: the tasks that may hold rows back, such as those with windows.
        stated: the tasks of the job state fronts. If not, the progress of a source is known only while nothing is unread after it
            and no task after it is one of ``holding``.
    """
    clean = read_links(graph, look)
    found = []
    for source, topic in enumerate(sources.names):
        numbers = {p.number for name in sources.readers[source] for p in look.first.get(name, ()) if p.topic == topic}
        for number in sorted(numbers | set(range(len(look.starts.get(topic, ()))))):
            one = _OnePartition(graph, sources, look, clean, source, number)
            found.append(one.progress(holding, stated=stated))
    return found


class _OnePartition:
    """One source partition, while its progress is found."""

    def __init__(
        self, graph: Graph, sources: Sources, look: Look, clean: Mapping[str, bool], source: int, number: int
    ) -> None:
        self._graph, self._sources, self._look, self._clean = graph, sources, look, clean
        self._source, self._number = source, number
        self._topic = sources.names[source]

    def progress(self, holding: Collection[str], *, stated: bool) -> SourceProgress:
        offsets = {name: self._offset(name) for name in self._sources.readers[self._source]}
        known = [offset for offset in offsets.values() if offset is not None]
        if not known:
            return SourceProgress(self._topic, self._number, None, None, None)
        starts = self._look.starts.get(self._topic, ())
        start = (starts[self._number] if self._number < len(starts) else 0) or 0
        read = max(known)
        bounds = [
            Bound(self._begin(name, start) if offset is None else offset, name, "it has read no further")
            for name, offset in offsets.items()
            if offset is not None
            or name not in self._look.ended  # what a task had read that ended is forgotten one day
        ]
        tasks = [stage for stage in self._graph.stages if self._source in self._sources.of_task(stage.name)]
        going = [stage for stage in tasks if stage.name not in self._look.ended]
        if stated:
            for stage in going:
                bounds += self._of_task(stage, may_hold=stage.name in holding)
        else:
            unsure = [stage.name for stage in going if stage.name in holding or not self._all_read(stage)]
            if unsure:
                why = "it has unread rows, or holds some; only a job with `lineage=True` knows which"
                return SourceProgress(self._topic, self._number, read, None, None, tuple(unsure), why)
        least = min(bound.offset for bound in bounds)
        everywhere = max(least, min(start, read))  # what is below is not a row of this job
        holders = [bound for bound in bounds if bound.offset == least < read]
        names = tuple(dict.fromkeys(bound.task for bound in holders))
        return SourceProgress(
            self._topic, self._number, read, everywhere, read - everywhere, names, holders[0].why if holders else ""
        )

    def _offset(self, task: str) -> int | None:
        position = self._look.first.get(task, {}).get(Partition(self._topic, self._number))
        return None if position is None else position.offset

    def _begin(self, task: str, start: int) -> int:
        return self._look.begin(self._graph.stage(task), Partition(self._topic, self._number), start)

    def _all_read(self, stage: Stage) -> bool:
        return all(self._clean[link.name] for link in inner(stage) if self._source in self._sources.over(link.topic))

    def _of_task(self, stage: Stage, *, may_hold: bool) -> list[Bound]:
        """What a task that goes on holds, and what it has not read."""
        found = []
        for partition, position in self._look.first[stage.name].items():
            link = next((link for link in inner(stage) if link.topic == partition.topic), None)
            if link is None or not self._look.is_used(link, partition):
                continue
            if position is not None and position.held is not None:
                found.append(Bound(self._in(position.held.front), stage.name, "it holds rows, as open windows do"))
            elif position is not None and position.front is None and may_hold:
                found.append(
                    Bound(0, stage.name, "its positions have no room for what it holds: its sources are too many")
                )
            if not self._clean[link.name]:
                reached = self._in(self._sources.stated_in(partition.topic, position))
                found.append(Bound(reached, stage.name, f"rows that {link.source} wrote to it may be unread"))
        return found

    def _in(self, front: Front) -> int:
        return offset_of(front, self._source, self._number)


def read_links(graph: Graph, look: Look) -> dict[str, bool]:
    """Of each internal link, whether all of it is read."""
    return {
        link.name: _is_read(graph.stage(link.source), stage, link, look)
        for stage in graph.stages
        for link in inner(stage)
    }


def _is_read(writer: Stage, reader: Stage, link: Link, look: Look) -> bool:
    """Whether all rows that a link was ever given were read, and it was given no other before the second answer came."""
    if reader.name in look.ended:
        return True
    first, again = look.first[writer.name], look.again.get(writer.name, {})
    if writer.name in look.ended and (not again or None in again.values()):
        return False  # the brokers may have forgotten what a task wrote that ended long ago
    written = link_counts.written(writer, link.name, first, look.facts)
    return (
        written is not None
        and written == link_counts.written(writer, link.name, again, look.facts)
        and written == link_counts.read(link, look.first[reader.name])
    )
