"""The job that works rows of a range of time once more. Pure.

It is the job that had worked them, but for three things. Its inputs end where that job has read to. Rows of other times are left
out as they are read. And its outputs may have other names. It begins to read before the first row of the range; how far before is
only a matter of speed. So it takes exactly the rows of the range, however much they are out of order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.going_back import begins_of, last_at
from sardonyx.core.graph import Graph
from sardonyx.core.redoing import appending
from sardonyx.core.resizing import awake
from sardonyx.core.spec import JobSpec, TaskSpec, is_custom, stateful
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.core.text import time_text
from sardonyx.core.timing import WindowSpec

SAME = "same"
"""Stands for the outputs of the job itself, in place of a word that is added to their names."""


class Offsets(NamedTuple):
    """Of a topic, in each partition: where to begin to read, and the offset after the last record."""

    start: list[int]
    end: list[int]

    @property
    def records(self) -> int:
        return sum(end - start for start, end in zip(self.start, self.end, strict=True))


def check(job: str, spec: JobSpec, since: int, until: int, outputs: str) -> None:
    """Check that rows of a job can be worked once more.

    Args:
        job: its id.
        spec: of it.
        since: the first time, in microseconds.
        until: the first time after the range.
        outputs: as of :func:`replay_spec`.

    Raises:
        SardonyxError: ``SX-REPLAY-RANGE``, ``SX-JOB-REPLAY``.
    """
    if since >= until:
        raise SardonyxError(
            "SX-REPLAY-RANGE",
            f"there is no time from {time_text(since)} to before {time_text(until)}",
            cause="the end of the range is not after its beginning",
            fix="give a later `--to`, or an earlier `--from`",
            where={"job": job},
        )
    problem = next(_problems(spec, outputs), None)
    if problem is not None:
        task, what, cause, fix = problem
        raise SardonyxError(
            "SX-JOB-REPLAY",
            f"job {job} cannot be replayed: {what}",
            cause=cause,
            fix=fix,
            where={"job": job, "task": task},
        )


def check_worked(job: str, spec: JobSpec, facts: Mapping[str, LinkFacts], since: int, until: int) -> None:
    """Check that a job has left out no rows of a range. If it went on from a checkpoint, it left out the rows before that. If it
    is a replay itself, it left out those of other times. Some of them are among the records that it has read, and others are
    not, so only a part of the range would be worked.

    Args:
        job: its id.
        spec: of it.
        facts: of its links.
        since: the first time, in microseconds.
        until: the first time after the range.

    Raises:
        SardonyxError: ``SX-REPLAY-RANGE``.
    """
    times = [task.time for task in spec.catalog if task.type == "input" and task.time is not None]
    first = max(
        (each for each in (*(f.since for f in facts.values()), *(t.since for t in times)) if each is not None),
        default=since,
    )
    last = min((time.until for time in times if time.until is not None), default=until)
    if first <= since and until <= last:
        return
    what, bound, time = ("before", "--from", first) if first > since else ("from", "--to", last)
    raise SardonyxError(
        "SX-REPLAY-RANGE",
        f"job {job} has worked no rows {what} {time_text(time)}{'' if what == 'before' else ' on'}",
        cause="it went on from the checkpoint of that time of another job, or is a replay itself, and left out the others",
        fix=f"give `{bound} {time_text(time)}`, or replay the job that has worked these rows",
        where={"job": job},
    )


def _problems(spec: JobSpec, outputs: str) -> Iterator[tuple[str, str, str, str]]:
    """Task, what is wrong with it, why, and what helps."""
    for task in spec.catalog:
        if task.type == "input" and task.connector != "kafka":
            fix = "submit a job that reads what you want"
            yield (
                task.name,
                f"its input {task.name} reads {task.connector}",
                "only topics are read from a position",
                fix,
            )
        elif task.type == "input" and (task.time is None or task.time.kind not in ("column", "kafka")):
            yield (
                task.name,
                f"the rows of its input {task.name} have no times that they keep",
                "which rows are of the range could not be told",
                "submit a job with `start=` and `end=`; `time=` of a column, or of Kafka, is kept",
            )
        elif task.type == "output" and is_custom(task.connector) and outputs != SAME:
            yield (
                task.name,
                f"its output {task.name} has a connector of your own",
                "Sardonyx does not know how to give its output another name",
                "say `--outputs same`, or submit a job with another output",
            )


def replay_spec(
    spec: JobSpec, name: str, since: int, until: int, reads: Mapping[str, Offsets], outputs: str
) -> JobSpec:
    """The job that works the rows of a range once more.

    Args:
        spec: the job that has worked them.
        name: of the new job.
        since: the first time, in microseconds.
        until: the first time after the range.
        reads: by input, what it reads.
        outputs: :data:`SAME`, or a word that is added to the name of each output.
    """
    catalog = []
    for task in spec.catalog:
        found = task
        if task.type == "input" and task.time is not None:
            offsets = reads[task.name]
            options = {**task.options, "start": _by_number(offsets.start), "end": _by_number(offsets.end)}
            # It ends, so no partition has to be left out that is silent.
            time = replace(task.time, since=since, until=until, idle=None, at_rest="hold")
            found = replace(task, options=options, time=time)
        elif task.type == "output":
            found = appending(task) if outputs == SAME else _named(task, outputs)
            found = replace(found, options={key: value for key, value in found.options.items() if key != "end_marker"})
        catalog.append(found)
    return replace(awake(spec), name=name, catalog=catalog)


def _by_number(offsets: Sequence[int]) -> dict[str, int]:
    return {str(number): offset for number, offset in enumerate(offsets)}


def _named(task: TaskSpec, word: str) -> TaskSpec:
    """An output beside that of the job."""
    names = {"kafka": ("topic", "."), "files": ("path", "."), "sql": ("table", "_")}
    if task.connector not in names:
        return task
    option, between = names[task.connector]
    return replace(task, options={**task.options, option: f"{task.options[option]}{between}{word}"})


def offsets_read(
    graph: Graph,
    facts: Mapping[str, LinkFacts],
    reached: Mapping[str, Mapping[str, Sequence[int]]],
    points: Sequence[CheckpointPoint],
    since: int,
) -> dict[str, Offsets]:
    """By input, from an offset before which no row of a time or later stands, to where a job has read.

    Args:
        graph: of the job.
        facts: of its links.
        reached: by task and topic, how far it has read in each partition.
        points: its checkpoints, or what its positions say of the time (:func:`sardonyx.core.going_back.begins_at`). The last one
            at or before the time says from where on to read; without one, it is from where the job began.
        since: the time, in microseconds.
    """
    point = last_at(points, since)
    begins = {} if point is None else begins_of(point, graph, facts)
    found: dict[str, Offsets] = {}
    for stage in graph.stages:
        for link in stage.ingress:
            if link.kind != "input":
                continue
            known = facts[link.name]
            starts = known.start or [0] * known.partitions
            start = begins.get(stage.name, {}).get(link.topic, starts)
            end = reached.get(stage.name, {}).get(link.topic, starts)
            pairs = [(min(first, last), last) for first, last in zip_longest(start, end, fillvalue=0)]
            other = found.get(link.source)
            if other is not None:  # several tasks read the input
                pairs = [
                    (min(one[0], two[0]), max(one[1], two[1]))
                    for one, two in zip_longest(pairs, zip(*other, strict=True), fillvalue=(0, 0))
                ]
            found[link.source] = Offsets([first for first, _ in pairs], [last for _, last in pairs])
    return found


def aligned(window: WindowSpec) -> bool:
    """Whether no window overlaps the ends of a range that begins and ends where windows do."""
    return window.time is None and window.kind in ("tumbling", "calendar")


def partial(spec: JobSpec, *, with_state: bool) -> list[str]:
    """The tasks whose results may depend on rows that are not of the range.

    Args:
        spec: the job.
        with_state: it begins with the states of the beginning of the range.
    """
    return [task.name for task in spec.catalog if stateful(task) and _partial(task, with_state=with_state)]


def _partial(task: TaskSpec, *, with_state: bool) -> bool:
    window, keyed, relation = task.window, task.keyed, task.relation
    if window is not None and window.by_time:
        return not aligned(window)
    if relation is not None and relation.two_sided:
        return True
    return not with_state or (keyed is not None and keyed.on_timer is not None)


__all__ = ["SAME", "Offsets", "aligned", "check", "check_worked", "offsets_read", "partial", "replay_spec"]
