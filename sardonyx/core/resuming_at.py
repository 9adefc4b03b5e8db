"""Whether a job can go on from a checkpoint of another one. Pure. See :mod:`sardonyx.core.going_back`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sardonyx.core.going_back import state_link
from sardonyx.core.graph import Graph, Link, Stage, graph_of
from sardonyx.core.joining import JOIN_TIME
from sardonyx.core.predecessors import Predecessor, ResumeProblem
from sardonyx.core.spec import JobSpec, stateful, whole_of
from sardonyx.core.spec_fields import kind_of_field, task_changes
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.core.structure import reach_of
from sardonyx.core.text import listed, plural, time_text
from sardonyx.core.timing import TimeSpec, panes

_NAMED = 5
"""Checkpoints that an error names."""
_SAME = "keep what the earlier job has, or submit the job without `--resume`"


def problems_at(
    before: Predecessor, spec: JobSpec, point: CheckpointPoint, *, reshards: bool = True
) -> Iterator[ResumeProblem]:
    """Reasons why a job cannot go on from a checkpoint of another one.

    Args:
        before: the earlier job.
        spec: the new job.
        point: the checkpoint.
        reshards: as of :func:`of_states`.
    """
    old, new = graph_of(before.spec, "", ""), graph_of(spec, "", "")
    yield from _of_checkpoints(new, point)
    yield from _of_inputs(before.spec, old, new)
    yield from of_states(old, new, point.marks, spec.partitions, reshards=reshards)
    yield from _of_times(new)
    yield from _of_results(spec, new)


def begins_at(resumes: str, before: Predecessor, spec: JobSpec) -> str:
    """Say where a job may begin that cannot go on from where another one ended, as that left rows between its tasks: at its last
    checkpoint, or else at none of its positions.
    """
    point = max(before.checkpoints, key=lambda point: point.at, default=None)
    if point is not None and not any(problems_at(before, spec, point)):
        return f"go on from its last checkpoint: `--resume {resumes}@{time_text(point.at)}`"
    return (
        "submit the job without `--resume`; it begins at its own `start=`. "
        f"Do not begin at the positions of {resumes}: rows before them may be in no result"
    )


def no_point(checkpoints: Sequence[CheckpointPoint], at: int) -> ResumeProblem:
    """Return the reason that none of the checkpoints of a job has this time or an earlier one."""
    known = [time_text(point.at) for point in checkpoints]
    shown = f"it keeps those at {listed(known[:_NAMED])}" if known else "there is none that all its tasks have"
    return ResumeProblem(
        f"it has no checkpoint at {time_text(at)} or before" if known else "it has no checkpoint",
        shown,
        "name a later time; `sardonyx job checkpoints` lists them"
        if known
        else "submit the job without `--resume`; jobs with `checkpoint_every=` have checkpoints",
        code="SX-CHECKPOINT-UNKNOWN",
    )


def _of_checkpoints(new: Graph, point: CheckpointPoint) -> Iterator[ResumeProblem]:
    every = new.checkpoint_every
    if every is None or point.at % every:
        yield ResumeProblem(
            f"the checkpoint at {time_text(point.at)} is none of the new job",
            "the new job has no `checkpoint_every`" if every is None else "its `checkpoint_every` gives other times",
            "give the new job the `checkpoint_every` of the earlier one",
        )


def _of_inputs(spec: JobSpec, old: Graph, new: Graph) -> Iterator[ResumeProblem]:
    """Each row of an input must have the same time when it is read again."""
    for task in spec.catalog:
        if task.type == "input" and task.connector != "kafka":
            yield ResumeProblem(
                f"its input {task.name} cannot be read again from a time",
                "only Kafka topics can",
                "submit the job without `--resume`",
                task=task.name,
            )
    read = {(link.topic, link.target): link for link in _inputs(old)}
    for link in _inputs(new):
        before = read.get((link.topic, link.target))
        if before is None:
            continue
        if link.time is None or link.time.kind not in ("column", "kafka"):
            yield ResumeProblem(
                f"rows of topic {link.topic} have no times that they keep",
                "when they are read again, rows before the checkpoint cannot be told from later ones",
                "submit the job without `--resume`; `time=` of a column, or of Kafka, is kept",
                task=link.target,
            )
        elif before.time is None or _meaning(before.time) != _meaning(link.time):
            yield ResumeProblem(
                f"the new job takes the times of topic {link.topic} from elsewhere",
                "so rows before the checkpoint would not be those that are in it",
                _SAME,
                task=link.target,
            )


def of_states(
    old: Graph, new: Graph, marks: Mapping[str, Sequence[object]], partitions: int, *, reshards: bool = True
) -> Iterator[ResumeProblem]:
    """Tasks of which the new job cannot go on with the state.

    Args:
        old: the graph of the earlier job.
        new: that of the new one.
        marks: by task with state, something for each partition.
        partitions: of the new job.
        reshards: whether keys can move to other partitions; not by the rules before 4, which also let tasks go on that give
            other results of the same state.
    """
    stages = {stage.name: stage for stage in new.stages}
    for stage in old.stages:
        if not stateful(stage.task):
            continue
        other = stages.get(stage.name)
        differs = "the new job has no such task" if other is None else _difference(stage, other)
        if not differs and other is not None and reshards:
            differs = _other_results(stage, other)
        if not differs and not marks.get(stage.name):
            differs = "nothing is known of it"
        if not differs and len(marks[stage.name]) != partitions:
            differs = _stays(stage, partitions, reshards=reshards)
        if differs:
            yield ResumeProblem(
                f"the state of its task {stage.name} has no place in the new job",
                differs,
                _SAME,
                task=stage.name,
            )


def _stays(stage: Stage, partitions: int, *, reshards: bool) -> str:
    """Why the state of a task cannot be divided among another number of partitions; nothing: it can."""
    if not reshards:
        return f"the new job has {partitions} partitions, and some coordinators are of a release that cannot move keys"
    if whole_of(stage.task) is not None:
        kept = "its graph" if stage.task.graph is not None else "its rows"
        return f"the new job has {partitions} partitions, and {kept} cannot be divided among them anew"
    return ""


def unknown_states(before: JobSpec, spec: JobSpec) -> Iterator[ResumeProblem]:
    """Tasks of a replay that would begin without the states that they had: the job was changed while it was asked for."""
    kept = {stage.name for stage in graph_of(before, "", "").stages if stateful(stage.task)}
    for stage in graph_of(spec, "", "").stages:
        if stateful(stage.task) and stage.name not in kept:
            yield ResumeProblem(
                f"it has no state of task {stage.name}",
                "a change has removed the task from it, or it never had one",
                _SAME,
                task=stage.name,
            )


def of_replay(problem: ResumeProblem, fix: str) -> ResumeProblem:
    """The same problem for one who wants to replay the job with its states, and not to resume it."""
    code = "SX-JOB-REPLAY" if problem.code == "SX-JOB-RESUME" else problem.code
    return problem._replace(wanted="replayed with its states", fix=fix, code=code)


def _of_times(new: Graph) -> Iterator[ResumeProblem]:
    columns = {link.time.column for link in _inputs(new) if link.time is not None} | {"window_time", JOIN_TIME}
    for stage in new.stages:
        for link in stage.ingress:
            if stateful(stage.task) and link.row_time is not None and link.row_time.column not in columns:
                yield ResumeProblem(
                    f"task {stage.name} goes by another time than the inputs",
                    f"column {link.row_time.column}: a row may be before the checkpoint by one and after it by the other",
                    "submit the job without `--resume`",
                    task=stage.name,
                )


def _of_results(spec: JobSpec, new: Graph) -> Iterator[ResumeProblem]:
    """What a window gives before it closes is not given again for the rows before the checkpoint."""
    reach = reach_of(spec)
    keeping = [stage.name for stage in new.stages if stateful(stage.task)]
    for stage in new.stages:
        window = stage.task.window
        if window is None or window.emit == "final":
            continue
        after = next((name for name in keeping if name != stage.name and reach.reaches(stage.name, name)), None)
        if after is not None:
            yield ResumeProblem(
                f"task {stage.name} gives results before its windows close, and {after} keeps a state of them",
                "of those that it gave for rows before the checkpoint, some are after it by their time",
                'use emit="final" there, or submit the job without `--resume`',
                task=stage.name,
            )


def _difference(one: Stage, other: Stage) -> str:
    """Why a task cannot begin with the state of another one; nothing: it can, as far as the specs tell."""
    fields = [
        field
        for field, _, _ in task_changes(one.task, other.task)
        if kind_of_field(field, one.task) in ("state", "key") and not field.endswith(".store")
    ]
    if fields:
        return f"there {listed(fields)} {plural(len(fields), 'differs', 'differ')}"
    if state_link(other) is None:
        return "the task keeps its state in a database there"
    return "" if _ways(one) == _ways(other) else "the task reads other links there, or rows with other times"


def _other_results(one: Stage, other: Stage) -> str:
    """Why a task cannot go on with a state because it gives other results there; nothing: it can. Windows cannot that give one
    result in one of the jobs, and may give several in the other; nor can a join whose left rows give a result without a partner
    only there. An inner join does not note which of its left rows have had one, and may have forgotten their partners.
    """
    join, joins = one.task.relation, other.task.relation
    if join is not None and joins is not None and joins.kind == "join":
        alone = joins.keeps_unmatched and not join.keeps_unmatched
        return (
            'its left rows give a result without a partner there (`how="left"`), and which had one is not kept'
            if alone
            else ""
        )
    old, new = one.task.window, other.task.window
    if old is None or new is None or panes(old) == panes(new):
        return ""
    here, there = ("several results", "one") if panes(old) else ("one result", "several")
    return f"its windows may give {here}, and {there} there: `emit` and `allowed_lateness` decide that"


def _ways(stage: Stage) -> list[tuple[object, ...]]:
    return [(link.name, link.kind, link.row_time) for link in stage.ingress]


def _meaning(time: TimeSpec) -> tuple[object, ...]:
    return time.kind, time.column, time.unit


def _inputs(graph: Graph) -> Iterator[Link]:
    return (link for stage in graph.stages for link in stage.ingress if link.kind == "input")


__all__ = ["no_point", "of_replay", "of_states", "problems_at", "unknown_states"]
