"""Whether a submitted job can be planned, and whether it can resume another one. Pure.

The client has validated the job in full (:mod:`sardonyx.job.validate`). Here only that is asked again without which the
coordinator itself could not go on, since a request in the inbox may come from anybody.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.core.state import Job
from sardonyx.core import structure
from sardonyx.core.errors import Failure
from sardonyx.core.names import is_name, is_tag
from sardonyx.core.resuming import Predecessor, resume_problems
from sardonyx.core.spec import JobSpec, TaskSpec


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


def resume_refusal(job: str, spec: JobSpec, resumes: str, before: Job | None) -> Failure | None:
    """Why a job cannot go on from the positions of another one; None if it can. The rules: :mod:`sardonyx.core.resuming`.

    Args:
        job: the id of the new job.
        spec: of the new job.
        resumes: the id of the other job.
        before: the other job; None if it is not known.
    """
    found = next(resume_problems(resumes, None if before is None else predecessor(before), spec), None)
    return None if found is None else found.failure(resumes, job)


def predecessor(job: Job) -> Predecessor:
    """What is known of a job that another one is to resume."""
    return Predecessor(
        spec=job.spec,
        status=job.status,
        refused=job.refused,
        links_gone=job.links == "gone",
        resumed_by=job.resumed_by,
        topics={name: frozenset(task.positions) for name, task in job.tasks.items()},
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
