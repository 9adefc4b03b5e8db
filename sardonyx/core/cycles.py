"""When a loop of tasks has come to its end: the proof that nothing is on its way in it any more. Pure.

No sentinel can say so, since each task of a loop waits for another one of it. What is on its way is counted instead. A task
commits, in the transaction of each batch, how many rows it has read from each link and how many it has written to each link
(:mod:`sardonyx.core.link_counts`). A batch in work has committed neither, so its rows still count as not read. A loop is
*quiescent* when every link in it has been read as far as it was written, and all that leads into it from outside is drained.
Then no task of it can write anything any more, and so that stays true.

The positions of several tasks are not read at one moment. One answer of each task is enough all the same, in any order, because
each is of one moment (a task's positions are read at once, after its open transactions), and because rows are counted link by
link. Proof: take the first batch that any task of the loop commits after its answer. It reads a row, of a link in the loop, that
its answer does not count as read. That link's two counts agree, so the writer's answer does not count it as written. So the
writer committed that row after its own answer, and before this batch: a contradiction. docs/design/cycles.md has it in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.core import link_counts
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Cycle, Graph, Link, Stage, is_endless
from sardonyx.core.link_counts import Positions
from sardonyx.core.positions import Partition


def inner_links(graph: Graph, cycle: Cycle) -> list[Link]:
    """The links from a stage of a loop to a stage of it."""
    return [
        link
        for name in cycle.stages
        for link in graph.stage(name).ingress
        if link.kind == "internal" and link.source in cycle.stages
    ]


def outer_links(graph: Graph, cycle: Cycle) -> list[Link]:
    """The links that lead into a loop."""
    inner = {link.name for link in inner_links(graph, cycle)}
    return [link for name in cycle.stages for link in graph.stage(name).ingress if link.name not in inner]


@dataclass(frozen=True)
class Standing:
    """How a loop stood by the answers of its stages."""

    fed: list[str]
    """Links into the loop that are not known to be drained: more may come over them."""
    read: Mapping[str, int]
    """By link in the loop: rows that were read."""
    written: Mapping[str, int | None]
    """By link in the loop: rows that were written; None: unknown, because their writer does not count them, or its answer lacks a
    partition.
    """

    @property
    def quiescent(self) -> bool:
        """Whether it is proven that nothing is on its way in the loop, and that nothing can come any more."""
        return not self.fed and self.read == self.written

    @property
    def uncounted(self) -> list[str]:
        """Links of which it is unknown how many rows were written."""
        return [name for name, rows in self.written.items() if rows is None]

    @property
    def unread(self) -> int:
        """Rows that were on their way, as far as the answers tell."""
        return sum(max(rows - self.read[name], 0) for name, rows in self.written.items() if rows is not None)


def standing(graph: Graph, cycle: Cycle, facts: Mapping[str, LinkFacts], answers: Mapping[str, Positions]) -> Standing:
    """How a loop stands by what its stages have answered.

    Args:
        graph: of the job.
        cycle: the loop.
        facts: of the job's links.
        answers: by stage of the loop, what its group had committed at one moment, after all its earlier transactions had ended:
            on all partitions of the topics that the stage reads, None where nothing was committed.
    """
    inner = inner_links(graph, cycle)
    whole = {name: _is_whole(graph.stage(name), facts, answers[name]) for name in cycle.stages}
    written = {
        link.name: link_counts.written(graph.stage(link.source), link.name, answers[link.source], facts)
        if whole[link.source]
        else None
        for link in inner
    }
    return Standing(
        [link.name for link in outer_links(graph, cycle) if not _drained(link, facts, answers[link.target])],
        {link.name: link_counts.read(link, answers[link.target]) for link in inner},
        written,
    )


def _is_whole(stage: Stage, facts: Mapping[str, LinkFacts], held: Positions) -> bool:
    """Whether an answer says something of each partition. Of one that it lacks, too few rows would count as written."""
    return all(
        Partition(link.topic, number) in held for link in stage.ingress for number in range(facts[link.name].partitions)
    )


def _drained(link: Link, facts: Mapping[str, LinkFacts], held: Positions) -> bool:
    """Whether all partitions of a link are read to their end, also those that a user added to a topic without an end."""
    planned = {Partition(link.topic, number) for number in range(facts[link.name].partitions)}
    if is_endless(link):
        planned |= {partition for partition in held if partition.topic == link.topic}
    return all((position := held.get(partition)) is not None and position.drained for partition in planned)


__all__ = ["Standing", "inner_links", "outer_links", "standing"]
