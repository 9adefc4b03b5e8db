"""From which checkpoint of an ended job another one can go on, and what it begins with. Pure.

Going back to a checkpoint at Tc has three parts. Each task with state begins with what the checkpoint says. Each partition of the
inputs is read again from an offset before which no row of Tc or later stands. Rows before Tc are left out: at the inputs, and at
each task with state, since its checkpoint holds all of them. So however much rows are out of order, each row has its effect once.

For the offsets, each position on a user's topic keeps some pairs of a time and an offset. They are thinned out with their age: a
pair that is gone costs only that more is read and left out. Jobs without checkpoints keep them, too, if the time of a row is in
a column: a replay begins there. With ``kafka_time``, Kafka has an index of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from sardonyx.core.checkpoints import Checkpoints, complete
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Begins, Partition, Position
from sardonyx.core.spec import stateful
from sardonyx.core.state_points import Adopted, CheckpointPoint, EndPoint

KEPT = 12
"""Pairs that a position keeps at most."""
MINUTE = 60_000_000
"""How far the pairs of a job without checkpoints are apart, in microseconds, until they are thinned out."""
FIRST_COMMIT = (1, 0, 0)
"""The mark of a shard that has begun with the state of an earlier job, and has committed nothing: that state counts as its first
commit. No message of its own log says so. Its log is complete from the first restatement on, when the last number is not 0."""


def begins_after(known: Begins | None, offset: int, seen: tuple[int, int], every: int) -> Begins | None:
    """The pairs of a position after a batch.

    Args:
        known: before it.
        offset: where the batch began.
        seen: the greatest time before it, and after it.
        every: how far checkpoints are apart, or how far the pairs are without any.
    """
    before, after = seen
    if before == NEVER or before // every == after // every:
        return known
    found = [*(known or ()), (before + 1, offset)]
    while len(found) > KEPT:
        # How much more must be read for a checkpoint if a pair is gone, in proportion to what is read for it anyway.
        costs = [(found[i + 1][0] - found[i - 1][0]) / (after - found[i - 1][0]) for i in range(1, len(found) - 1)]
        del found[1 + costs.index(min(costs))]
    return tuple(found)


def begin_of(known: Begins | None, time: int) -> int | None:
    """The greatest known offset before which no row of a time or later stands; None: where the job began."""
    return max((offset for first, offset in known or () if first <= time), default=None)


def begins_at(graph: Graph, held: Mapping[str, Mapping[Partition, Position | None]], time: int) -> CheckpointPoint:
    """By these positions, where a job reads the rows of a time and later: as the offsets of a checkpoint without marks.

    Args:
        graph: of the job.
        held: what its tasks have committed.
        time: in microseconds.
    """
    stages = [stage for stage in graph.stages if stage.name in held]
    return CheckpointPoint(time, {s.name: found for s in stages if (found := _offsets(s, held[s.name], time))})


def points_of(
    graph: Graph, held: Mapping[str, Mapping[Partition, Position | None]], *, every_time: bool = False
) -> list[CheckpointPoint]:
    """The complete checkpoints of a job, in the order of time.

    Args:
        graph: of the job.
        held: what its tasks have committed; a task whose positions are gone is missing.
        every_time: also those between which nothing happened, of which else only the last one is given.
    """
    every = graph.checkpoint_every
    keeping = [stage for stage in graph.stages if stateful(stage.task)]
    if every is None or not keeping or any(stage.name not in held for stage in graph.stages):
        return []
    shards = {stage.name: _shards(stage, held[stage.name]) for stage in keeping}
    if not all(shards.values()):
        return []
    found = [
        CheckpointPoint(
            time,
            {stage.name: found for stage in graph.stages if (found := _offsets(stage, held[stage.name], time))},
            {name: [_mark(shard, time) for shard in own] for name, own in shards.items()},
        )
        for time in complete([each for own in shards.values() for each in own], every)
    ]
    if every_time:
        return found
    return [one for one, other in zip_longest(found, found[1:]) if other is None or other != replace(one, at=other.at)]


def state_logs(
    stages: Sequence[Stage],
    held: Mapping[str, Mapping[Partition, Position | None]],
    points: Sequence[CheckpointPoint],
) -> dict[Partition, int]:
    """Tell from where on the logs of state are needed. A log's mark rides with the position of the task's first link.

    Args:
        stages: of the job.
        held: what they have committed.
        points: checkpoints of which the logs must hold all.
    """
    found: dict[Partition, int] = {}
    for stage in stages:
        for link in stage.egress:
            if link.kind == "state":
                for partition, position in held[stage.name].items():
                    if (
                        partition.topic == stage.ingress[0].topic
                        and position is not None
                        and position.state is not None
                    ):
                        apart = None if position.checkpoints is None else position.checkpoints.low
                        low = position.state[1] if apart is None else min(apart, position.state[1])
                        for point in points:
                            marks = point.marks.get(stage.name, [])
                            low = min([low, *(mark[1] for mark in marks[partition.number : partition.number + 1])])
                        found[Partition(link.topic, partition.number)] = low
    return {partition: low for partition, low in found.items() if low > 0}


def forgotten(graph: Graph, held: Mapping[str, Mapping[Partition, Position | None]]) -> bool:
    """Whether positions are gone of a job that has had a complete checkpoint: each partition of a task with state had one then.

    Args:
        graph: of the job.
        held: what its tasks have committed.
    """
    keeping = [stage for stage in graph.stages if stateful(stage.task)]
    return any(position is None for stage in keeping for position in _of_link(stage.ingress[0], held[stage.name]))


def last_at(points: Iterable[CheckpointPoint], time: int) -> CheckpointPoint | None:
    """The last of these checkpoints at or before a time."""
    return max((point for point in points if point.at <= time), key=lambda point: point.at, default=None)


def begins_of(point: CheckpointPoint, graph: Graph, facts: Mapping[str, LinkFacts]) -> dict[str, dict[str, list[int]]]:
    """Where a job begins to read that goes on from a checkpoint: by task, by topic, an offset in each partition.

    Args:
        point: of the earlier job.
        graph: of that job.
        facts: of its links: what it does not know begins where that job did.
    """
    starts = {
        (stage.name, link.topic): list(facts[link.name].start or ())
        for stage in graph.stages
        for link in stage.ingress
        if link.kind == "input" and link.name in facts
    }
    return {
        task: {topic: _or_start(row, starts.get((task, topic), [])) for topic, row in topics.items()}
        for task, topics in point.offsets.items()
    }


def adopted_by(point: CheckpointPoint, topics: Mapping[str, str]) -> dict[str, Adopted]:
    """By task, the state with which a job begins that goes on from a checkpoint.

    Args:
        point: the checkpoint.
        topics: by task of the earlier job, the log of its state.
    """
    return {
        task: Adopted(topics[task], marks, point.at, point.at) for task, marks in point.marks.items() if task in topics
    }


def adopted_at_end(end: EndPoint, topics: Mapping[str, str]) -> dict[str, Adopted]:
    """The same of a job that goes on where another one was stopped."""
    return {task: Adopted(topics[task], marks, None, end.top) for task, marks in end.marks.items() if task in topics}


def end_of(graph: Graph, held: Mapping[str, Mapping[Partition, Position | None]]) -> EndPoint | None:
    """Where the states of a job stand. None: it has none, or not all of them have a log.

    Args:
        graph: of the job.
        held: what its tasks have committed; a task whose positions are gone is missing.
    """
    keeping = [stage for stage in graph.stages if stateful(stage.task)]
    gone = any(stage.name not in held for stage in graph.stages)
    if not keeping or gone or any(state_link(stage) is None for stage in keeping):
        return None
    clocks = {
        link.name: [_clock(position, closes=_closes(stage, link)) for position in _of_link(link, held[stage.name])]
        for stage in graph.stages
        for link in stage.ingress
        if link.kind in ("input", "internal")
    }
    marks = {stage.name: _of_link(stage.ingress[0], held[stage.name]) for stage in keeping}
    known = [each.checkpoints for own in marks.values() for each in own if each is not None]
    given = [NEVER if each is None else each.top for each in known]
    seen = [time for link in graph.links if link.kind == "input" for time, _ in clocks[link.name]]
    states = {
        name: [(0, 0, 0) if each is None or each.state is None else each.state for each in own]
        for name, own in marks.items()
    }
    return EndPoint(max([*given, *seen], default=NEVER), states, clocks)


def adopting(
    graph: Graph,
    facts: Mapping[str, LinkFacts],
    adopts: Mapping[str, Adopted],
    at: int | None,
    clocks: Mapping[str, list[tuple[int, int]]],
    earlier: Mapping[str, LinkFacts],
) -> dict[str, LinkFacts]:
    """The facts of the links of a job that goes on with the states of another one.

    The other job may have gone on from a checkpoint itself, and may have been stopped before it had read again what comes after
    that. So this job leaves out the same rows as that one: the state holds them.

    Args:
        graph: of the new job.
        facts: of its links; its inputs begin where the other job's state stands.
        adopts: with what its tasks begin.
        at: the time of the checkpoint that it goes on from; None: where the other one was stopped.
        clocks: then, the clocks of links.
        earlier: the facts of the other job's links. With ``at`` they do not count.
    """
    since = at
    if at is None:
        since = max((each.since for each in earlier.values() if each.since is not None), default=None)
    read = {link.name for stage in graph.stages for link in stage.ingress if link.kind in ("input", "internal")}
    queues = {link.name for stage in graph.stages for link in stage.ingress if link.kind == "internal"}
    found = {
        name: replace(
            known, since=since, clocks=_clocks(known.partitions, clocks.get(name), since, resized=name in queues)
        )
        if name in read
        else known
        for name, known in facts.items()
    }
    for stage in graph.stages:
        link = state_link(stage)
        if link is not None and stage.name in adopts:
            begun = adopts[stage.name]
            reshards = len(begun.marks) != found[link.name].partitions
            found[link.name] = replace(found[link.name], adopts=begun, reshards=reshards)
    return found


def _clocks(
    partitions: int, known: list[tuple[int, int]] | None, since: int | None, *, resized: bool
) -> list[tuple[int, int]] | None:
    """With which clocks the partitions of a link begin, given those of the earlier job; none is before ``since``.

    A queue that was read to its end has the same clock in all its partitions, since what is stated goes into each. So if it has
    another number of them now, each begins with the least: then no row is late that was not. Partitions that were added to a
    user's topic have no clock yet.
    """
    if known is not None and since is not None:
        known = [(seen, max(value, since)) for seen, value in known]
    if known is None or not resized or len(known) == partitions:
        return known
    return [
        (min((seen for seen, _ in known), default=NEVER), min((value for _, value in known), default=NEVER))
    ] * partitions


def state_topics(graph: Graph) -> dict[str, str]:
    """By task with a log of its state, the topic of that log."""
    return {stage.name: link.topic for stage in graph.stages if (link := state_link(stage)) is not None}


def state_link(stage: Stage) -> Link | None:
    """The log of a task's state; None: it has none."""
    return next((link for link in stage.egress if link.kind == "state"), None)


def _of_link(link: Link, positions: Mapping[Partition, Position | None]) -> list[Position | None]:
    """The positions on a link, by partition."""
    return [
        position for place, position in sorted(positions.items(), key=lambda each: each[0]) if place.topic == link.topic
    ]


def _closes(stage: Stage, link: Link) -> bool:
    """Whether the least clock of its links closes what a task keeps. Of a join, each link has a clock of its own."""
    return link.kind == "internal" and stateful(stage.task) and stage.task.relation is None


def _clock(position: Position | None, *, closes: bool) -> tuple[int, int]:
    """The clock of a partition, as far as another job can go on with it: one that has ended says nothing of later rows. But what
    the other links of the task have closed by then stays closed (``closes``).
    """
    if position is None:
        return NEVER, NEVER
    seen, value, _ = position.clock
    seen = NEVER if seen == END else seen
    if value == END:
        return seen, seen if closes else NEVER
    return seen, value


def _shards(stage: Stage, positions: Mapping[Partition, Position | None]) -> list[Checkpoints]:
    first = stage.ingress[0].topic
    own = sorted((place, position) for place, position in positions.items() if place.topic == first)
    return [Checkpoints() if each is None or each.checkpoints is None else each.checkpoints for _, each in own]


def _mark(shard: Checkpoints, time: int) -> tuple[int, int, int]:
    mark = shard.at(time)
    assert mark is not None  # noqa: S101 (for the type checker: the time is complete)
    return mark.seq, mark.low, mark.base


def _offsets(stage: Stage, positions: Mapping[Partition, Position | None], time: int) -> dict[str, list[int | None]]:
    topics = {link.topic for link in stage.ingress if link.kind == "input"}
    found: dict[str, list[int | None]] = {}
    for place, position in sorted(positions.items(), key=lambda item: item[0]):
        if place.topic in topics:
            begin = None if position is None else begin_of(position.begins, time)
            found.setdefault(place.topic, []).append(begin)
    return found


def _or_start(offsets: Sequence[int | None], starts: Sequence[int]) -> list[int]:
    return [
        (start or 0) if offset is None else offset for offset, start in zip_longest(offsets, starts[: len(offsets)])
    ]


__all__ = [
    "FIRST_COMMIT",
    "KEPT",
    "MINUTE",
    "adopted_at_end",
    "adopted_by",
    "adopting",
    "begin_of",
    "begins_after",
    "begins_at",
    "begins_of",
    "end_of",
    "forgotten",
    "last_at",
    "points_of",
    "state_link",
    "state_logs",
    "state_topics",
]
