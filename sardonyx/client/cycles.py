"""How the loops of a running job stand: what is on its way in them, and what may still come. Asked from the consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from sardonyx.client.links import facts_that_stand
from sardonyx.client.views import laid_out
from sardonyx.core.cycles import inner_links, standing
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Cycle, Graph
from sardonyx.core.link_counts import Positions
from sardonyx.core.notes import JobNote
from sardonyx.core.spec import JobSpec
from sardonyx.core.text import counted, plural

if TYPE_CHECKING:
    from sardonyx.runtime.settings import Settings
    from sardonyx.zookeeper.session import ZooKeeperSession


class CycleQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in a loop. Rows as committed; None where they are not known."""

    link: str
    feedback: bool
    """Whether its rows come back to the beginning of the loop."""
    written: int | None
    read: int
    unread: int | None
    """Rows on their way: written and not read, or in a batch that is not committed."""


class JobCycle(msgspec.Struct, frozen=True, kw_only=True):
    """A loop of a running job. Its tasks were asked while they worked, so its rows are not all counted at one moment."""

    name: str
    tasks: list[str]
    max_hops: int | None
    ended: bool
    """Whether it is proven that nothing is on its way in it, and that nothing can come any more."""
    fed_by: list[str]
    """The queues into the loop over which more may come."""
    unread: int | None
    """Rows on their way in it; None: not known."""
    queues: list[CycleQueue]


def job_cycles(
    zk: ZooKeeperSession, settings: Settings, job: str, spec: JobSpec, note: JobNote | None
) -> list[JobCycle]:
    """How the loops of a job stand, by what its tasks have committed. A job without loops has none.

    Args:
        zk: a session with the job's deployment.
        settings: of the deployment; its Kafka is asked.
        job: the job's id.
        spec: the job as data.
        note: its status; None while no coordinator has taken it in.

    Raises:
        SardonyxError: ``SX-CYCLE-GONE``: the job does not run.
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    graph = laid_out(spec, settings.deployment, job)
    if not graph.cycles:
        return []
    facts = facts_that_stand(zk, job, note)
    if facts is None:
        raise SardonyxError(
            "SX-CYCLE-GONE",
            f"the loops of job {job} cannot be looked at",
            cause=f"it is {note.status if note is not None else 'not taken in yet'}: its queues do not exist",
            fix="ask while the job runs; `sardonyx job show` says what became of it",
        )
    settings.require("kafka")
    from queues.totals import loop_positions

    return [cycle_of(graph, cycle, facts, loop_positions(settings, job, graph, cycle)) for cycle in graph.cycles]


def cycle_of(graph: Graph, cycle: Cycle, facts: Mapping[str, LinkFacts], answers: Mapping[str, Positions]) -> JobCycle:
    """What is shown of a loop. The arguments are those of :func:`sardonyx.core.cycles.standing`. Pure."""
    found = standing(graph, cycle, facts, answers)
    queues = [
        CycleQueue(
            link=link.name,
            feedback=link.feedback,
            written=(written := found.written[link.name]),
            read=found.read[link.name],
            unread=None if written is None else max(written - found.read[link.name], 0),
        )
        for link in inner_links(graph, cycle)
    ]
    return JobCycle(
        name=cycle.name,
        tasks=cycle.stages,
        max_hops=cycle.max_hops,
        ended=found.quiescent,
        fed_by=found.fed,
        unread=None if found.uncounted else found.unread,
        queues=queues,
    )


def in_words(cycle: JobCycle) -> str:
    """What is on its way in a loop, in one line."""
    if cycle.ended:
        return f"loop {cycle.name}: it has ended"
    waiting = [queue for queue in cycle.queues if queue.unread]
    where = ", ".join(f"{queue.unread:,} for {queue.link.rpartition('.')[2]}" for queue in waiting)
    if cycle.unread is None:
        rows = "it is not known how many rows are on their way in it"
    else:
        rows = f"{counted(cycle.unread, 'row')} {plural(cycle.unread, 'is on its', 'are on their')} way in it"
    more = f"; more may come over {', '.join(cycle.fed_by)}" if cycle.fed_by else ""
    return f"loop {cycle.name}: {rows}{f' ({where})' if where else ''}{more}"


__all__ = ["CycleQueue", "JobCycle", "cycle_of", "in_words", "job_cycles"]
