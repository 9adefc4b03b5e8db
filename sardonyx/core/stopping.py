"""What becomes of a running job that is stopped: whether another one can go on from it. Pure.

It is asked before the stop, by the rules that the coordinator has for the job which would go on (:mod:`sardonyx.core.resuming`).
"""

from __future__ import annotations

from sardonyx.core.predecessors import Predecessor, ResumeProblem, in_databases, running
from sardonyx.core.resuming import resume_problems
from sardonyx.core.spec import JobSpec, stateful
from sardonyx.core.text import listed, plural


def may_follow(job: str, spec: JobSpec, new: JobSpec) -> bool:
    """Whether a job can be stopped, so that another one goes on from there. Both specs have a graph."""
    stopped = running(spec).once_ended()
    return stopped.status == "stopped" and not any(resume_problems(job, stopped, new))


def ends_here(
    job: str, spec: JobSpec, known: Predecessor | None = None, *, closed: bool = False
) -> ResumeProblem | None:
    """Why no job could go on from a job once it is stopped, not even one of the same spec; None: one could.

    Args:
        job: its id, for the texts.
        spec: of the job, which has a graph.
        known: what is known of it if it was stopped already; None: it is still to end.
        closed: whether its windows close then.
    """
    before = running(spec).once_ended()._replace(closed=closed) if known is None else known
    found = next(resume_problems(job, before, spec), None)
    stored, tasks = in_databases(spec), keeping(spec)
    if found is None or found.task not in tasks or not stored or before.closed:
        return found
    who = f"{plural(len(tasks), 'task', 'tasks')} {listed(tasks)} {plural(len(tasks), 'keeps', 'keep')}"
    return found._replace(problem=f"what {who} stays behind", cause=stored)


def keeping(spec: JobSpec) -> list[str]:
    """The tasks of a job that keep something from row to row."""
    return [task.name for task in spec.catalog if stateful(task)]


__all__ = ["ends_here", "keeping", "may_follow"]
