"""Whether a submitted job can be planned, and whether it can resume another one. Pure.

The client has validated the job in full (:mod:`sardonyx.job.validate`). Here only that is asked again without which the
coordinator itself could not go on, since a request in the inbox may come from anybody.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.core.state import Job
from sardonyx.core import structure
from sardonyx.core.errors import Failure
from sardonyx.core.events import UNKNOWN_JOB
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.names import is_name, is_tag
from sardonyx.core.spec import JobSpec, TaskSpec, stateful


def refusal(job: str, spec: JobSpec, taken_by: str | None) -> Failure | None:
    """Why a job is refused; None if it is accepted. ``taken_by``: a job of this name that has not ended."""
    if taken_by is not None:
        return Failure(
            "SX-JOB-NAME-TAKEN",
            f"a job named {spec.name} has not ended yet",
            cause=f"it is {taken_by}; names of topics are made of job ids, and names tell jobs apart for people",
            fix=f"wait for it, end it with `sardonyx job kill {taken_by}`, or give this job another name",
            where={"job": job, "name": spec.name, "taken_by": taken_by},
        )
    problem = next(_problems(spec), None)
    if problem is None:
        return None
    code, message = problem
    return Failure(
        code,
        message,
        cause="the job was submitted without the client's validation, or by another version of the client",
        fix="run `sardonyx check` on the job; it names every problem and what to do about it",
        where={"job": job, "name": spec.name},
    )


def resume_refusal(job: str, spec: JobSpec, resumes: str, before: Job | None, deployment: str) -> Failure | None:
    """Why a job cannot go on from the positions of another one; None if it can.

    Args:
        job: the id of the new job.
        spec: of the new job.
        resumes: the id of the other job.
        before: the other job; None if it is not known.
        deployment: of both.
    """
    found = next(_resume_problems(resumes, before, spec, graph_of(spec, deployment, job), deployment), None)
    if found is None:
        return None
    problem, cause, fix = found
    where = {"job": job, "resumes": resumes}
    return Failure("SX-JOB-RESUME", f"job {resumes} cannot be resumed: {problem}", cause=cause, fix=fix, where=where)


_WITHOUT = "submit the job without `--resume`, with the `start=` that you want"


def _resume_problems(
    resumes: str, before: Job | None, spec: JobSpec, new: Graph, deployment: str
) -> Iterator[tuple[str, str, str]]:
    """What is wrong, its cause, and what to do."""
    if before is None:
        yield "it is not known", "a user purged it, or it was forgotten: see coordinator.keep_jobs", _WITHOUT
        return
    if before.refused:
        yield "it was refused", "it has read nothing, so it has no positions", _WITHOUT
        return
    old = graph_of(before.spec, deployment, resumes)
    if before.links != "gone":
        yield (
            f"it is {before.status}",
            "its positions are known when it has ended and its topics are deleted",
            f"run `sardonyx job stop {resumes}`, and `sardonyx job await {resumes}`",
        )
    if before.resumed_by == UNKNOWN_JOB:
        yield (
            "the deployment was restored from a backup",
            "what happened after the backup is lost, so another job may have resumed it already",
            f"{_WITHOUT}; `sardonyx job show {resumes}` tells the positions",
        )
    elif before.resumed_by:
        yield (
            f"{before.resumed_by} has resumed it",
            "two jobs that go on from the same positions would process the same records twice",
            f"resume {before.resumed_by}, after you have stopped it",
        )
    if before.status not in ("stopped", "completed") and (left := _left_behind(before.spec, old)):
        yield (
            "it was killed" if before.status == "killed" else f"it has {before.status}",
            f"{left}, so its positions do not say what was done",
            f"{_WITHOUT}; `sardonyx job show {resumes}` tells the positions. End a job with `sardonyx job stop` to resume it",
        )
    with_state = [task.name for task in before.spec.catalog if stateful(task)]
    if before.status == "stopped" and with_state:
        yield (
            f"its task {with_state[0]} had a state (of open windows, or rows that it had kept) when it was stopped",
            "the new job would begin without it: it would give a second result for a window, and miss rows that were kept",
            f"{_WITHOUT}, before the first row that the state needs",
        )
    for name in sorted(_read_whole(before.spec) & _read_whole(spec)):
        yield (
            f"its input {name} would be read a second time",
            f"only Kafka topics are read on from a position, and the input {name} of the new job reads all that it finds",
            f"leave {name} out of the new job, or give it another name if it is to be read again; or {_WITHOUT}",
        )
    reads = _topics(new)
    for task, topics in _topics(old).items():
        for topic in sorted(topics):
            if topic not in before.tasks[task].positions:
                yield (
                    f"it has no positions in topic {topic}",
                    f"its task {task} has committed nothing there, or Kafka had forgotten it when the job ended",
                    _WITHOUT,
                )
            if topic not in reads.get(task, ()):
                yield (
                    f"no task {task} of the new job reads topic {topic}",
                    "positions are handed over by the names of task and topic, and none may be lost",
                    f"keep these names; or {_WITHOUT}",
                )


def _read_whole(spec: JobSpec) -> set[str]:
    """The inputs that have no positions which another job could go on from."""
    return {task.name for task in spec.catalog if task.type == "input" and task.connector != "kafka"}


def _topics(graph: Graph) -> dict[str, set[str]]:
    """The user's topics that each task reads."""
    found = {stage.name: {link.topic for link in stage.ingress if link.kind == "input"} for stage in graph.stages}
    return {task: topics for task, topics in found.items() if topics}


def _left_behind(spec: JobSpec, graph: Graph) -> str:
    """What a job that did not come to its end may have left behind its inputs; an empty text if nothing."""
    if any(link.kind not in ("input", "output", "dead") for link in graph.links):
        return "what its inputs had read may have been left on the links between its tasks"
    if any(task.type == "output" and task.connector != "kafka" for task in spec.catalog):
        return "its output keeps positions of its own"
    return ""


def _problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    names = [task.name for task in spec.catalog]
    for name in [spec.name, *names]:
        if not is_name(name):
            yield "SX-JOB-STRUCTURE", f"{name[:80]!r} cannot be a name"
    if structure.repeated_names(spec):
        yield "SX-JOB-STRUCTURE", "two tasks have the same name"
    if structure.repeated_edges(spec):
        yield "SX-JOB-STRUCTURE", "the workflow names an edge twice"
    for unknown in structure.unknown_tasks(spec):
        yield "SX-JOB-STRUCTURE", f"the workflow names a task that the catalog does not have: {unknown.name[:80]!r}"
    if cycle := structure.cycle_in(spec):
        yield "SX-JOB-CYCLE", f"the workflow has a cycle: {' -> '.join(cycle)}"
    if not spec.catalog:
        yield "SX-JOB-STRUCTURE", "the job has no tasks"
    reached, left = structure.reached(spec), structure.left(spec)
    for problem in structure.share_problems(spec.priority, spec.weight, spec.percentage, spec.max_peers):
        yield "SX-JOB-SHARE", problem
    tags = [*spec.tags, *(tag for task in spec.catalog for tag in task.tags)]
    for tag in tags:
        if not is_tag(tag):
            yield "SX-JOB-TAG", f"{tag[:80]!r} cannot be a tag"
    for task in spec.catalog:
        yield from _task_problems(task, has_in=task.name in reached, has_out=task.name in left)


def _task_problems(task: TaskSpec, *, has_in: bool, has_out: bool) -> Iterator[tuple[str, str]]:
    if has_in == (task.type == "input"):
        yield "SX-JOB-STRUCTURE", f"{task.name} is of type {task.type} and has {'a' if has_in else 'no'} task before it"
    if has_out == (task.type == "output"):
        yield "SX-JOB-STRUCTURE", f"{task.name} is of type {task.type} and has {'a' if has_out else 'no'} task after it"
    if task.connector == "kafka" and not isinstance(task.options.get("topic"), str):
        yield "SX-JOB-STRUCTURE", f"{task.name} names no topic"
