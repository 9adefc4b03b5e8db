"""What follows from a job's spec and the facts of its links, kept while it runs. Pure."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.core.changing import is_draining
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Stage
from sardonyx.core.spec import JobSpec

GraphOf = Callable[[JobSpec, str, str], Graph]
"""Makes the graph of a job from its spec, the deployment and its id."""


class Plan:
    """What follows from a job's spec and the facts of its links. Kept until the job ends, never stored.

    ``stages`` in topological order; ``upstream``: the stages right before each; ``limit``: the most peers each can take;
    ``places``: the most that all can take together; ``bounded``: whether the job ends by itself, by its spec or because it was
    stopped; ``turns``: whether its peers take turns at its tasks, because it has no end, or a loop, whose tasks need each other,
    or because a change waits until tasks that go have read what they have;
    ``tags``: of the stages that ask for any; ``pool``: the tags that all of them ask for.
    """

    __slots__ = ("bounded", "graph", "limit", "places", "pool", "stages", "tags", "turns", "upstream")

    def __init__(self, graph: Graph, facts: dict[str, LinkFacts], tags: list[str], rules: int) -> None:
        self.graph = graph
        self.bounded = graph.bounded or any(known.stops for known in facts.values())
        self.turns = not self.bounded or bool(graph.cycles) or (rules > 3 and _shares_a_drain(graph))
        self.stages = {stage.name: stage.task for stage in graph.stages}
        self.upstream = {
            stage.name: [
                link.source
                for link in stage.ingress
                if link.source in self.stages and link.source != stage.name and not link.feedback
            ]
            for stage in graph.stages
        }
        self.limit = {stage.name: _limit(stage, facts) for stage in graph.stages}
        self.places = sum(self.limit.values())
        asked = {
            stage.name: frozenset([*tags, *(tag for task in (stage.task, *stage.fused) for tag in task.tags)])
            for stage in graph.stages
        }
        self.tags = {stage: found for stage, found in asked.items() if found}
        self.pool = frozenset[str].intersection(*asked.values()) if asked else frozenset()


def _shares_a_drain(graph: Graph) -> bool:
    """Where a task asks for several peers at once, one after the other may get them, and all together never."""
    return is_draining(graph) and all(
        task.min_peers == 1 for stage in graph.stages for task in (stage.task, *stage.fused)
    )


def _limit(stage: Stage, facts: dict[str, LinkFacts]) -> int:
    """The most peers of a task: as many as its widest link has partitions; one if it is sequential."""
    if stage.task.consumption == "sequential":
        return 1
    widest = max((facts[link.name].partitions for link in stage.ingress if link.name in facts), default=1)
    return max(1, widest if stage.task.max_peers is None else min(widest, stage.task.max_peers))
