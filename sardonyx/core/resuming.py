"""Whether a job can go on from the positions of another one. Pure.

The coordinator refuses a job that cannot (:mod:`coordinator.core.admission`). ``sardonyx job diff`` says so before the other job
is stopped (:mod:`sardonyx.core.job_diff`). Both ask here, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from sardonyx.core.events import UNKNOWN_JOB
from sardonyx.core.going_back import last_at
from sardonyx.core.graph import graph_of
from sardonyx.core.predecessors import Predecessor, ResumeProblem, topics_read
from sardonyx.core.resuming_at import begins_at, no_point, of_replay, of_states, problems_at, unknown_states
from sardonyx.core.spec import JobSpec, stateful
from sardonyx.core.state_points import CheckpointPoint

_WITHOUT = "submit the job without `--resume`, with the `start=` that you want"
_ON_LINKS = "what its inputs had read may have been left on the links between its tasks"


def resume_problems(
    resumes: str,
    before: Predecessor | None,
    spec: JobSpec,
    at: int | None = None,
    replays: CheckpointPoint | None = None,
    *,
    reshards: bool = True,
) -> Iterator[ResumeProblem]:
    """All reasons why a job cannot go on from another one; the first one counts most. None: it can.

    Args:
        resumes: the id of the earlier job, for the texts.
        before: the earlier job; None if it is not known.
        spec: the new job. Both specs must have a graph: unique names, no cycle.
        at: from its last checkpoint at or before this time, in microseconds; None: from where it ended.
        replays: a checkpoint with whose states the new job works rows of the earlier one once more, which may still run.
        reshards: whether states can be divided among another number of partitions; not by the rules before 4, which also say
            something else about where a job may begin that cannot go on.
    """
    if before is None or before.refused:
        problem = _refused() if before is not None else _unknown()
        yield problem if replays is None else of_replay(problem, "submit a job with `start=` and `end=`")
        return
    if replays is not None:
        known = topics_read(graph_of(before.spec, "", ""))
        for problem in (
            *problems_at(before, spec, replays, reshards=reshards),
            *unknown_states(before.spec, spec),
            *_of_specs(before, spec, known),
        ):
            yield of_replay(problem, "replay it without `--with-state`")
        return
    yield from _as_it_stands(resumes, before, at)
    if at is None:
        yield from _as_it_ended(resumes, before, spec, reshards=reshards)
        yield from _of_specs(before, spec, before.topics)
        return
    point = last_at(before.checkpoints, at)
    if point is None:
        yield no_point(before.checkpoints, at)
        return
    yield from problems_at(before, spec, point, reshards=reshards)
    yield from _of_specs(before, spec, point.offsets)


def _unknown() -> ResumeProblem:
    return ResumeProblem(
        "it is not known", "a user purged it, or it was forgotten: see coordinator.keep_jobs", _WITHOUT
    )


def _refused() -> ResumeProblem:
    return ResumeProblem("it was refused", "it has read nothing, so it has no positions", _WITHOUT)


def _as_it_stands(resumes: str, before: Predecessor, at: int | None) -> Iterator[ResumeProblem]:
    """Reasons that lie in what has become of the earlier job."""
    if not before.links_gone:
        yield ResumeProblem(
            f"it is {before.status}",
            "its positions are known when it has ended and its topics are deleted",
            f"run `sardonyx job stop {resumes}`, and `sardonyx job await {resumes}`",
        )
    if before.resumed_by == UNKNOWN_JOB:
        yield ResumeProblem(
            "the deployment was restored from a backup",
            "what happened after the backup is lost, so another job may have resumed it already",
            f"{_WITHOUT}; `sardonyx job show {resumes}` tells the positions",
        )
    elif before.resumed_by and not (at is not None and before.successor_ended):
        yield ResumeProblem(
            f"{before.resumed_by} has resumed it",
            "two jobs that go on from the same positions would process the same records twice",
            f"resume {before.resumed_by}, after you have stopped it",
        )


def _as_it_ended(resumes: str, before: Predecessor, spec: JobSpec, *, reshards: bool) -> Iterator[ResumeProblem]:
    """Reasons that lie in how the earlier job ended."""
    if before.status not in ("stopped", "completed") and (left := _left_behind(before.spec)):
        shown = f"{_WITHOUT}; `sardonyx job show {resumes}` tells the positions"
        where = begins_at(resumes, before, spec) if reshards and left is _ON_LINKS else shown
        yield ResumeProblem(
            "it was killed" if before.status == "killed" else f"it has {before.status}",
            f"{left}, so its positions do not say what was done",
            f"{where}. End a job with `sardonyx job stop` to resume it",
        )
    with_state = [task.name for task in before.spec.catalog if stateful(task)]
    if before.closed and with_state:
        yield ResumeProblem(
            "its windows were closed when it was stopped",
            f"rows to come of times that task {with_state[0]} has given results for would be taken for all of their windows",
            f"{_WITHOUT}; `sardonyx job show {resumes}` tells the positions",
            task=with_state[0],
        )
    elif before.status == "stopped" and with_state and before.end is None:
        yield ResumeProblem(
            f"the state of its task {with_state[0]} (open windows, or rows that it keeps) stays behind",
            before.no_end,
            "submit the job without `--resume`; it begins with empty states, at its own `start=`"
            if reshards
            else f"{_WITHOUT}, before the first row that the state needs",
            task=with_state[0],
        )
    elif before.status == "stopped" and before.end is not None:
        old, new = graph_of(before.spec, "", ""), graph_of(spec, "", "")
        yield from of_states(old, new, before.end.marks, spec.partitions, reshards=reshards)


def _of_specs(before: Predecessor, spec: JobSpec, known: Mapping[str, Collection[str]]) -> Iterator[ResumeProblem]:
    """Reasons that lie in what the two jobs read. ``known``: by task of the earlier job, the topics of which it has positions."""
    for name in sorted(_read_whole(before.spec) & _read_whole(spec)):
        yield ResumeProblem(
            f"its input {name} would be read a second time",
            f"only Kafka topics are read on from a position, and the input {name} of the new job reads all that it finds",
            f"leave {name} out of the new job, or give it another name if it is to be read again; or {_WITHOUT}",
            task=name,
        )
    reads = topics_read(graph_of(spec, "", ""))  # the deployment and the id only name topics of our own
    for task, topics in topics_read(graph_of(before.spec, "", "")).items():
        for topic in sorted(topics):
            if topic not in known.get(task, ()):
                yield ResumeProblem(
                    f"it has no positions in topic {topic}",
                    f"its task {task} has committed nothing there, or Kafka had forgotten it when the job ended",
                    _WITHOUT,
                    task=task,
                )
            if topic not in reads.get(task, ()):
                yield ResumeProblem(
                    f"no task {task} of the new job reads topic {topic}",
                    "positions are handed over by the names of task and topic, and none may be lost",
                    f"keep these names; or {_WITHOUT}",
                    task=task,
                    topic=topic,
                )


def _read_whole(spec: JobSpec) -> set[str]:
    """The inputs that have no positions which another job could go on from."""
    return {task.name for task in spec.catalog if task.type == "input" and task.connector != "kafka"}


def _left_behind(spec: JobSpec) -> str:
    """What a job that did not come to its end may have left behind its inputs; an empty text if nothing."""
    if any(link.kind not in ("input", "output", "dead") for link in graph_of(spec, "", "").links):
        return _ON_LINKS
    if any(task.type == "output" and task.connector != "kafka" for task in spec.catalog):
        return "its output keeps positions of its own"
    return ""
