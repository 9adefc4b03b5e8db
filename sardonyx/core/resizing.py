"""A running job gets queues with another number of partitions. Pure.

Rows with equal keys are in one partition, so with another number of partitions most keys move. Their order is kept only if all
that stands in the queues is worked before a row comes to a queue by the new number. So two versions of the job follow each
other, and each is an ordinary change:

1. In the first one the inputs stand still (:func:`stand_still`): nothing is read of the users' topics, and what was read goes
   through all tasks.
2. When all queues are read to their end, the version with the other number takes over. The coordinator fences all slots first.
   Only then it looks once more whether anything is unread (:func:`unread`): no batch can come after that.

The topics stay, and so do positions and counts. A topic gets the partitions that it lacks; of one that has more, those behind the
number stay empty from then on, and are neither written nor read (``docs/design/changes.md``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sardonyx.core import link_counts
from sardonyx.core.changing_at import pending
from sardonyx.core.clocks import END, NEVER, SourceClock
from sardonyx.core.errors import Failure
from sardonyx.core.events import LinkFacts
from sardonyx.core.going_back import state_link
from sardonyx.core.graph import Graph, Link, LinkKind, graph_of
from sardonyx.core.positions import Partition, Position, clock_of
from sardonyx.core.spec import JobSpec, stateful, whole_of
from sardonyx.core.text import listed

Held = Mapping[str, Mapping[Partition, Position | None]]
"""By task, the committed positions on all partitions that its topics have."""


UNREAD = "SX-JOB-CHANGE-UNREAD"
"""The code of the error that queues are not read to their end yet."""
RESTING: tuple[LinkKind, ...] = ("input", "splits")
"""The links of which nothing is read while inputs stand still."""


_MOVES = "say `--restart`: the job is stopped, another one goes on from there, and keys move with their state"
_BEGINS = "only a new job can have them, which makes its state of the rows from its `start=` on"


class Hindrance(NamedTuple):
    """Why the number of partitions cannot change in a running job."""

    text: str
    task: str = ""


def resized(old: JobSpec, new: JobSpec) -> bool:
    """Whether queues of a job get another number of partitions."""
    return old.partitions != new.partitions and bool(queues(graph_of(old, "", "")))


def stand_still(spec: JobSpec, partitions: int) -> JobSpec:
    """A job whose inputs stand still, until its queues are read to their end and can have so many partitions."""
    return replace(spec, next_partitions=partitions)


def awake(spec: JobSpec) -> JobSpec:
    """A job whose inputs are read."""
    return spec if spec.next_partitions is None else replace(spec, next_partitions=None)


def unprepared(old: JobSpec, new: JobSpec) -> bool:
    """Whether queues would get another number of partitions that may still hold rows, since inputs are read."""
    return resized(old, new) and old.next_partitions != new.partitions


def queues(graph: Graph) -> list[Link]:
    """The links between tasks, each of which has as many partitions as the job says."""
    return [link for stage in graph.stages for link in stage.ingress if link.kind == "internal"]


def hindrances(old: JobSpec, new: JobSpec) -> Iterator[Hindrance]:
    """Why the number of partitions of a running job cannot become that of the new version; nothing: it can."""
    if not resized(old, new):
        return
    before, after = graph_of(old, "", ""), graph_of(new, "", "")
    waits = pending(old) or pending(new)
    if waits is not None:
        yield Hindrance(f"the number of partitions cannot change while a change at {waits.time} is not complete")
    for stage in before.stages:
        if stateful(stage.task):
            moves = state_link(stage) is not None and whole_of(stage.task) is None
            yield Hindrance(
                f"task {stage.name} keeps a state, and with {new.partitions} partitions its keys would be in other ones; "
                + (_MOVES if moves else _BEGINS),
                stage.name,
            )
    keeping = {stage.name for stage in before.stages if stateful(stage.task)}
    for cycle in before.cycles:
        if not keeping.issuperset(cycle.stages):
            yield Hindrance(f"rows go round in the loop {cycle.name}, so its queues have no end", cycle.stages[0])
    if {link.name for link in before.links} != {link.name for link in after.links}:
        yield Hindrance(
            "tasks and queues come or go by a change of their own, before the number of partitions or after it"
        )


def unread(graph: Graph, held: Held, facts: Mapping[str, LinkFacts]) -> dict[str, int | None]:
    """The queues that are not read to their end, with how many rows are unread; None: it is not known how many were written.

    Args:
        graph: of the job so far.
        held: what its tasks have committed; they commit nothing more.
        facts: of its links so far.
    """
    found: dict[str, int | None] = {}
    for link in queues(graph):
        written = link_counts.written(graph.stage(link.source), link.name, held[link.source], facts)
        rows = None if written is None else written - link_counts.read(link, held[link.target])
        if rows != 0:
            found[link.name] = rows
    return found


def left_unread(job: str, graph: Graph, held: Held, facts: Mapping[str, LinkFacts]) -> Failure | None:
    """The error if the queues of a job are not read to their end, so that they keep the number of partitions that they have.

    Args: as of :func:`unread`; ``job``: its id, for the text.
    """
    left = unread(graph, held, facts)
    if not left:
        return None
    shown = [f"{name} ({'unknown' if rows is None else f'{rows:,}'})" for name, rows in left.items()]
    return Failure(
        UNREAD,
        f"job {job} is not changed yet: rows are unread on {listed(shown)}",
        cause="a batch was committed after the queues had been looked at",
        fix="give the same command again",
        where={"job": job},
    )


def facts_then(
    graph: Graph, partitions: int, links: Mapping[str, LinkFacts], held: Held, facts: Mapping[str, LinkFacts]
) -> dict[str, LinkFacts]:
    """The facts of a job's links when its queues have another number of partitions.

    Args:
        graph: of the job from now on.
        partitions: of its queues from now on.
        links: the facts of all its links, as the topics are now.
        held: what its tasks have committed; all that was written is read.
        facts: of its links so far.
    """
    found = dict(links)
    for link in queues(graph):
        known = facts[link.name]
        clocks = _clocks(link, partitions, held[link.target], known)
        found[link.name] = replace(links[link.name], partitions=partitions, clocks=clocks)
    return found


def _clocks(
    link: Link, partitions: int, held: Mapping[Partition, Position | None], known: LinkFacts
) -> list[tuple[int, int]] | None:
    """With which greatest time and clock the partitions of a queue begin of which nothing is committed.

    A clock that was stated in one partition is true of all: it is that of the task that writes. All that was written before is
    read. So a new partition begins with the least clock of those that there are, and the clock of the reader does not fall.
    """
    before = [clock_of(known, n, held.get(Partition(link.topic, n))) for n in range(known.partitions)]
    if all(clock == SourceClock() for clock in before):
        return known.clocks
    least = min(clock.seen for clock in before), min(clock.value for clock in before)
    own = [(clock.seen, NEVER if clock.value == END else clock.value) for clock in before]
    return [*own, *[least] * max(0, partitions - len(own))][:partitions]


__all__ = [
    "RESTING",
    "UNREAD",
    "Hindrance",
    "awake",
    "facts_then",
    "hindrances",
    "left_unread",
    "queues",
    "resized",
    "stand_still",
    "unprepared",
    "unread",
]
