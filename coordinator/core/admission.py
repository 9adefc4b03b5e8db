"""Whether a submitted job can be planned, and whether it can resume another one. Pure.

The client has validated the job in full (:mod:`sardonyx.job.validate`). This module checks again only what the coordinator itself
needs to go on, since any program may put a request into the inbox.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coordinator.core.state import Job
from sardonyx.core import structure
from sardonyx.core.errors import Failure
from sardonyx.core.names import is_name, is_tag
from sardonyx.core.predecessors import Predecessor
from sardonyx.core.resuming import resume_problems
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.state_points import CheckpointPoint


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


def resume_refusal(
    job: str,
    spec: JobSpec,
    resumes: str,
    jobs: Mapping[str, Job],
    at: int | None = None,
    replays: CheckpointPoint | None = None,
    *,
    reshards: bool = True,
) -> Failure | None:
    """Why a job cannot go on from another one; None if it can. The rules: :mod:`sardonyx.core.resuming`.

    Args:
        job: the id of the new job.
        spec: of the new job.
        resumes: the id of the other job.
        jobs: all that are known.
        at: from its last checkpoint at or before this time; None: from where it ended.
        replays: in place of both, with the states of this checkpoint; the other job may run.
        reshards: as of :func:`sardonyx.core.resuming.resume_problems`.
    """
    before = jobs.get(resumes)
    known = None if before is None else predecessor(before, jobs)
    found = next(resume_problems(resumes, known, spec, at, replays, reshards=reshards), None)
    return None if found is None else found.failure(resumes, job)


def predecessor(job: Job, jobs: Mapping[str, Job]) -> Predecessor:
    """What is known of a job that another one is to resume. ``jobs``: all that are known."""
    successor = jobs.get(job.resumed_by)
    return Predecessor(
        spec=job.spec,
        status=job.status,
        refused=job.refused,
        links_gone=job.links == "gone",
        resumed_by=job.resumed_by,
        topics={name: frozenset(task.positions) for name, task in job.tasks.items()},
        retired=job.retired,
        checkpoints=job.checkpoints,
        end=job.end,
        closed=job.closes,
        successor_ended=successor is None or successor.ended,
    )


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
    yield from _loop_problems(spec)
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


def _loop_problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    if cycle := structure.cycle_in(spec):
        yield "SX-JOB-CYCLE", f"the workflow has a cycle: {' -> '.join(cycle)}"
    elif spec.cycles:
        for problem in structure.loop_problems(spec):
            yield problem.code, f"loop {problem.cycle[:80]!r}: {problem.message}"


def _task_problems(task: TaskSpec, *, has_in: bool, has_out: bool) -> Iterator[tuple[str, str]]:
    if has_in == (task.type == "input"):
        yield "SX-JOB-STRUCTURE", f"{task.name} is of type {task.type} and has {'a' if has_in else 'no'} task before it"
    if has_out == (task.type == "output"):
        yield "SX-JOB-STRUCTURE", f"{task.name} is of type {task.type} and has {'a' if has_out else 'no'} task after it"
    if task.connector == "kafka" and not isinstance(task.options.get("topic"), str):
        yield "SX-JOB-STRUCTURE", f"{task.name} names no topic"
