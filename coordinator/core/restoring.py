"""What becomes of each job of a backup, given what Kafka holds of it now. Pure.

A backup holds what the coordinator knew after entry ``n``. Kafka has gone on since. What was logged after ``n`` is lost; this
module says for each job whether the coordinator can go on from ``n`` and every record still has its effect once. For the
events that may be missing:

- *Peers* (``born``, ``ack``, ``exhausted``, ``failed``, ``died`` ...): harmless. Nothing that peers commit depends on them.
  Results and positions are one Kafka transaction, fenced by the slot's transactional id and by the group, whichever peer held
  the slot.
- ``completed``: harmless. A peer gets the task again, finds each partition drained at its committed position, and seals
  again. A link may carry several sentinels. Which one counts was voted in ZooKeeper; a vote that is lost stands in the
  positions of the readers (``drained``), so it is taken from there.
- ``links-created``: the start and end of each input were taken then, and cannot be taken again. A job that was being planned
  fails.
- A job that has *ended*: its groups and topics are deleted, which ends the only record of what was committed. The first group
  goes first, then the other groups, then the topics (:func:`queues.admin.delete_links`). So while the first group has
  positions, nothing is deleted, and a task without positions has never committed. Without that, a task may begin anew only if it
  had nothing to read, or if nothing that it would have written can exist: the links that it reads, or all that it writes, are
  the job's own and were never written. Otherwise the job fails.
- ``stop``: seen by an input without an end that has ended, and not at an end marker. The job is stopped once more. If nothing
  ended yet, it runs on, and the user stops it again. ``kill`` likewise: while all topics stand, the job goes on.
- ``submit``: such a job is unknown. Its topics stand, if it has not ended, and are reported.
- ``submit`` *that resumes a job*: no job that had ended, and none that fails here, can be resumed (:class:`Restored`).
- ``letters-claimed``: dead letters that a redo has taken look open. They are marked (:mod:`sardonyx.client.letter_claims`),
  and only a user can say that they are to be redone.
- ``purge``, ``links-deleted``: done again, with the same result.

Positions that lie beyond their topic, or behind what the backup knows, mean that it is Kafka that was set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from coordinator.core.state import Job, State
from sardonyx.core.errors import Failure
from sardonyx.core.events import AnyEvent, JobStatus, JobStopped, LinkFacts, Restored
from sardonyx.core.graph import Graph, Link, Stage, graph_of, is_endless
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import is_custom

BOUND_END = "end"
"""``sentinel.rules.BOUND_END``, which is not imported here: a position that says so ended there, without a sentinel. One that
ended at an end marker says something else."""

Becomes = Literal["goes on", "is stopped", "fails", "stays ended"]


class KafkaTraces(msgspec.Struct):
    """What Kafka holds of a job that had not ended at the backup."""

    partitions: dict[str, int]
    """Of each topic that exists."""
    positions: dict[str, dict[Partition, Position | None]]
    """By task, what its group has committed; nothing for partitions of topics that do not exist."""
    begins: dict[Partition, int]
    """The first offset of each partition."""
    ends: dict[Partition, int]
    """The offset after the last record, also of open transactions."""


class JobOutcome(msgspec.Struct):
    """What becomes of a job when its deployment is restored."""

    job: str
    was: JobStatus
    """Its status at the backup."""
    becomes: Becomes
    error: Failure | None = None
    """Why it fails."""
    votes: dict[str, str] = {}
    """By link, the sentinel that was elected after the backup."""


def outcomes(state: State, traces: Mapping[str, KafkaTraces]) -> list[JobOutcome]:
    """What becomes of each job, those that had not ended first, each in the order of submission.

    Args:
        state: at the backup.
        traces: of the jobs that are running in it.
    """
    found = [_outcome(state, name, traces) for name in state.jobs]
    return sorted(found, key=lambda outcome: outcome.becomes == "stays ended")


def events_of(state: State, found: list[JobOutcome], at: float) -> list[AnyEvent]:
    """The entries that a restore adds to the log. Jobs that had ended come last: the end of another frees one to be resumed."""
    events: list[AnyEvent] = []
    for outcome in found:
        if outcome.becomes == "is stopped":
            events.append(JobStopped(at=at, job=outcome.job))
        elif outcome.error is not None:
            events.append(Restored(at=at, job=outcome.job, error=outcome.error))
        elif outcome.becomes == "stays ended" and not state.jobs[outcome.job].refused:
            events.append(Restored(at=at, job=outcome.job, error=_UNRESUMABLE))
    return events


def _outcome(state: State, name: str, traces: Mapping[str, KafkaTraces]) -> JobOutcome:
    job = state.jobs[name]
    if job.ended:
        return JobOutcome(name, job.status, "stays ended")
    graph = state.plans[name].graph
    if name not in traces:
        return JobOutcome(name, job.status, "fails", _failure(name, *_PLANNED))
    known = traces[name]
    problem = next(_problems(job, graph, known), None)
    if problem is not None:
        return JobOutcome(name, job.status, "fails", _failure(name, *problem))
    stopped = not job.stopping and any(_ended_inputs(graph, known))
    return JobOutcome(name, job.status, "is stopped" if stopped else "goes on", votes=_votes(graph, known))


_SEEN = ("files", "blackhole", "console")
"""Outputs that list what they write on a topic of the job, or that leave nothing."""

Problem = tuple[str, str]
"""What is wrong, and its cause."""

_PLANNED = (
    "it was being planned at the backup",
    "where its inputs begin and end was taken after that, so it is lost; the job may have run to its end since",
)


def _problems(job: Job, graph: Graph, known: KafkaTraces) -> Iterator[Problem]:
    missing = [link for link in graph.links if link.topic not in known.partitions]
    owned = [link.topic for link in missing if link.owned]
    if owned:
        yield (
            f"its topic {owned[0]} is gone",
            "the job has ended after the backup; how, is not known. Or this is another Kafka",
        )
    elif missing:
        yield f"topic {missing[0].topic} does not exist", "it was deleted, or this is another Kafka"
    for stage in graph.stages:
        yield from _stage_problems(job, graph, stage, known)
    for link in (link for link in graph.links if link.has_sentinels):
        if len(_leaders(graph, known, link.topic)) > 1:
            yield f"the readers of link {link.name} disagree on its sentinel", "another deployment wrote to its topics"


def _stage_problems(job: Job, graph: Graph, stage: Stage, known: KafkaTraces) -> Iterator[Problem]:
    positions = known.positions.get(stage.name, {})
    complete = job.tasks[stage.name].state == "complete"
    owned = {link.topic for link in stage.ingress if link.owned}
    trimmed = [partition for partition, first in known.begins.items() if partition.topic in owned and first > 0]
    if _has_any(positions):
        planned = _planned(job, stage) if complete else set()
        for partition, position in positions.items():
            problem = _position_problem(stage.name, partition, position, known)
            if problem is not None:
                yield problem
            if partition in planned and (position is None or position.drained is None):
                yield (
                    f"task {stage.name} was complete at the backup, and has not read all of {_words(partition)} now",
                    "Kafka is older than the backup",
                )
            if position is None and partition in trimmed:
                yield _dropped(stage.name, partition)
        yield from () if complete else _deleted_records(job, stage, positions, known)
    elif not complete and trimmed:
        yield _dropped(stage.name, trimmed[0])
    elif not complete and not _never_committed(graph, stage, known):
        yield (
            f"no positions of task {stage.name} are left",
            "the job has ended since the backup, or never began; or Kafka dropped them (offsets.retention.minutes)",
        )


def _position_problem(task: str, partition: Partition, position: Position | None, known: KafkaTraces) -> Problem | None:
    if position is None or position.offset <= known.ends.get(partition, position.offset):
        return None
    return (
        f"task {task} has read {_words(partition)} up to {position.offset}, and it ends at {known.ends[partition]}",
        "Kafka has lost records, or the topic was created again",
    )


def _dropped(task: str, partition: Partition) -> Problem:
    return (
        f"the position of task {task} in {_words(partition)} is gone",
        "Kafka has dropped it, and the records before it are deleted, as the task had read them",
    )


def _deleted_records(
    job: Job, stage: Stage, positions: Mapping[Partition, Position | None], known: KafkaTraces
) -> Iterator[Problem]:
    """The partitions of which records are deleted that a task still has to read."""
    for link in stage.ingress:
        facts = (job.facts or {}).get(link.name)
        for partition, position in positions.items():
            if facts is None or partition.topic != link.topic or (position is not None and position.drained):
                continue
            start, end = _span(facts, partition.number, position)
            first = known.begins.get(partition, 0)
            if start < first and (end is None or start < end) and (position is not None or not link.owned):
                yield (
                    f"task {stage.name} goes on at {start} in {_words(partition)}, which begins at {first}",
                    "the records between were deleted before it had read them (the retention of the topic), or Kafka is too old",
                )


def _span(facts: LinkFacts, number: int, position: Position | None) -> tuple[int, int | None]:
    """Where a task goes on in a partition, and where it ends; None: it has no end. As its reader finds it."""
    planned = number < facts.partitions
    begin = facts.start[number] if facts.start and planned else 0
    start = begin if position is None else position.offset
    if facts.end is not None:
        return start, facts.end[number] if planned else start
    return start, start if facts.stops else None


def _planned(job: Job, stage: Stage) -> set[Partition]:
    """The partitions that a task reads, as they were when its job was planned."""
    facts = job.facts or {}
    known = {link.topic: facts[link.name].partitions for link in stage.ingress if link.name in facts}
    return {Partition(topic, number) for topic, partitions in known.items() for number in range(partitions)}


def _words(partition: Partition) -> str:
    return f"partition {partition.number} of {partition.topic}"


def _never_committed(graph: Graph, stage: Stage, known: KafkaTraces) -> bool:
    """Whether a task without positions never had any, or has left no effect."""
    first = graph.stages[0]
    if stage.name != first.name and _has_any(known.positions.get(first.name, {})):
        return True
    if not _written(stage.ingress, known) and all(link.owned for link in stage.ingress):
        return True  # there was nothing to read
    last = stage.last
    if last.type == "output" and last.connector not in _SEEN and not is_custom(last.connector):
        return False  # an output that no topic of ours lists
    return not _written(stage.egress, known) and all(link.owned for link in stage.egress)


def _written(links: Iterable[Link], known: KafkaTraces) -> bool:
    topics = {link.topic for link in links}
    return any(end > 0 for partition, end in known.ends.items() if partition.topic in topics)


def _has_any(positions: Mapping[Partition, Position | None]) -> bool:
    return any(position is not None for position in positions.values())


def _ended_inputs(graph: Graph, known: KafkaTraces) -> Iterator[bool]:
    """For each position in an input without an end: whether it has ended without an end marker, which only a stop does."""
    for stage in graph.stages:
        endless = {link.topic for link in stage.ingress if is_endless(link)}
        for partition, position in known.positions.get(stage.name, {}).items():
            if partition.topic in endless and position is not None:
                yield position.drained == BOUND_END


def _leaders(graph: Graph, known: KafkaTraces, topic: str) -> set[str]:
    """The sentinels at which readers of a topic have found its partitions drained; the elected one."""
    return {
        position.drained
        for stage in graph.stages
        for partition, position in known.positions.get(stage.name, {}).items()
        if partition.topic == topic and position is not None and position.drained not in (None, BOUND_END)
    }


def _votes(graph: Graph, known: KafkaTraces) -> dict[str, str]:
    found = {link.name: _leaders(graph, known, link.topic) for link in graph.links if link.has_sentinels}
    return {name: next(iter(leaders)) for name, leaders in found.items() if leaders}


def unknown_jobs(state: State, names: list[str]) -> list[str]:
    """The ids of jobs that Kafka knows and the backup does not: they were submitted after it.

    Args:
        state: at the backup.
        names: of all topics and groups.
    """
    parts = [name.split(".") for name in names]
    ids = {p[1] for p in parts if p[0] == state.deployment and len(p) in (3, 4)}
    return sorted(ids - state.jobs.keys() - state.purged.keys())


def graphs(state: State) -> dict[str, Graph]:
    """Of the jobs whose traces in Kafka decide."""
    running = [name for name, job in state.jobs.items() if job.status == "running"]
    return {name: graph_of(state.jobs[name].spec, state.deployment, name) for name in running}


def _failure(job: str, problem: str, cause: str) -> Failure:
    return Failure(
        "SX-RESTORE-PAST",
        f"job {job} cannot go on from the backup: {problem}",
        cause=cause,
        fix="look at what it has written so far, then submit it again with the `start=` that you want",
        where={"job": job},
    )


_UNRESUMABLE = Failure("SX-RESTORE-PAST", "it had ended at the backup; another job may have resumed it since")
