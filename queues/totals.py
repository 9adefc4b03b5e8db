"""The rows that tasks have committed as written to a job's internal links, as the brokers report them."""

from __future__ import annotations

from collections.abc import Mapping

from queues import admin
from sardonyx.core import link_counts
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Cycle, Graph, Stage
from sardonyx.core.link_counts import Positions
from sardonyx.runtime.settings import Settings


def loop_positions(settings: Settings, job: str, graph: Graph, cycle: Cycle) -> dict[str, Positions]:
    """What the stages of a loop have committed: of each one at one moment, and after the end of its open transactions.

    Args:
        settings: connection to Kafka.
        job: id of the job, whose groups must exist.
        graph: of the job.
        cycle: the loop.

    Returns:
        By stage, its positions in all partitions that there are now of the topics that it reads.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    held = admin.held_positions(settings, [graph.stage(name) for name in cycle.stages], job)
    return {name: dict(positions) for name, positions in held.items()}


def written_to(
    settings: Settings, job: str, writers: Mapping[str, Stage], facts: Mapping[str, LinkFacts]
) -> dict[str, int | None]:
    """Rows that have been written to links whose writers have ended, by link.

    The answer waits for the end of open transactions. So it counts all rows that a reader has read which has found the end of
    the link.

    Args:
        settings: connection to Kafka.
        job: id of the job, whose groups must exist.
        writers: by link, the task that writes it.
        facts: the facts of the job's links.

    Returns:
        None for a link of which the positions do not say it: a release that does not count has written, or the brokers have
        dropped the positions of a task that ended long ago (``offsets.retention.minutes``).

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    stages = {stage.name: stage for stage in writers.values()}
    held = admin.held_positions(settings, list(stages.values()), job)
    return {
        link: link_counts.written(stage, link, held[stage.name], facts)
        if link_counts.all_committed(stage, facts, held[stage.name])
        else None
        for link, stage in writers.items()
    }
