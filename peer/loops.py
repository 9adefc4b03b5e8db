"""What a task knows of the loop that it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from queues.messages import Outgoing, Records, with_hops
from sardonyx.core.cycles import inner_links
from sardonyx.core.errors import Failure
from sardonyx.core.graph import Cycle, Graph, Stage
from sardonyx.core.text import counted
from spark_tasks.failures import Bad


@dataclass(frozen=True)
class Loop:
    """A loop, and the job that it is in."""

    graph: Graph
    cycle: Cycle

    @cached_property
    def links(self) -> Mapping[str, int]:
        """By topic of a link in the loop, 1 if it is a feedback link, otherwise 0."""
        return {link.topic: int(link.feedback) for link in inner_links(self.graph, self.cycle)}

    @property
    def counts_hops(self) -> bool:
        """Whether its rows may go round only so many times."""
        return self.cycle.max_hops is not None

    def is_beyond(self, hops: int) -> bool:
        """Whether rows that have come over so many feedback links are to go no further."""
        return self.cycle.max_hops is not None and hops > self.cycle.max_hops

    def leaving(self, messages: Sequence[Outgoing | Records], hops: int) -> list[Outgoing | Records]:
        """The messages of a batch, with what the next tasks of the loop must know of their rows.

        What is to go no further does not go over any link of the loop: it would come back by a failed edge.
        """
        if self.is_beyond(hops):
            return [message for message in messages if message.topic not in self.links]
        return with_hops(messages, hops, self.links) if self.counts_hops else list(messages)

    def begins_with(self, stage: Stage) -> bool:
        """Whether a feedback link leads to a stage of it."""
        return any(link.feedback for link in stage.ingress)

    def bad(self, index: int, hops: int, task: str) -> Bad:
        """The error of a row that has come over too many feedback links."""
        failure = Failure(
            "SX-CYCLE-HOPS",
            f"a row of loop {self.cycle.name!r} has come back to task {task!r} {counted(hops, 'time')}",
            cause=f"a row, and what is made of it, may come back {counted(self.cycle.max_hops or 0, 'time')} at most (max_hops)",
            fix="give the loop a greater max_hops, let the condition of its feedback stop such rows, or take them by the task's "
            'on_error="dead_letter" or "skip", or over its edge .failed to a task outside the loop',
            where={"task": task, "cycle": self.cycle.name},
        )
        return Bad(index, "Hops", 1, failure)


def loop_of(graph: Graph, stage: str) -> Loop | None:
    """The loop that a stage is in; None: it is in none."""
    cycle = graph.cycle_of(stage)
    return None if cycle is None else Loop(graph, cycle)


__all__ = ["Loop", "loop_of"]
