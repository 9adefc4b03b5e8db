"""Whether a job can go on from the positions of another one. Pure.

The coordinator refuses a job that cannot (:mod:`coordinator.core.admission`). ``sardonyx job diff`` says so before the other job
is stopped (:mod:`sardonyx.core.job_diff`). Both ask here, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from sardonyx.core.errors import Failure
from sardonyx.core.events import ENDED, UNKNOWN_JOB, JobStatus
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.spec import JobSpec, stateful


class Predecessor(NamedTuple):
    """What is known of a job that another one is to resume."""

    spec: JobSpec
    status: JobStatus
    refused: bool = False
    """It was refused, and has no tasks."""
    links_gone: bool = True
    """Its topics are deleted; its positions are known from then on."""
    resumed_by: str = ""
    topics: Mapping[str, Collection[str]] = {}
    """By task, the topics of which it has positions."""

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def once_ended(self) -> Predecessor:
        """The same job as it will be when it ends as its user wants: an unbounded one is stopped, a bounded one completes. It
        then has a position in each topic that it reads. A job that has ended stays as it is.
        """
        if self.ended:
            return self
        graph = graph_of(self.spec, "", "")
        return Predecessor(self.spec, "completed" if graph.bounded else "stopped", topics=topics_read(graph))


class ResumeProblem(NamedTuple):
    """One reason why a job cannot go on from the positions of another one."""

    problem: str
    cause: str
    fix: str
    task: str = ""
    """The task of the earlier job that it is about; empty: the whole job."""
    topic: str = ""
    """The topic that this task reads, and no task of that name in the new job does; empty: it is about something else."""

    def failure(self, resumes: str, job: str = "") -> Failure:
        """The error for the user.

        Args:
            resumes: the id of the earlier job.
            job: the id of the new one, if it has one yet.
        """
        return Failure(
            "SX-JOB-RESUME",
            f"job {resumes} cannot be resumed: {self.problem}",
            cause=self.cause,
            fix=self.fix,
            where={"job": job, "resumes": resumes} if job else {"resumes": resumes},
        )


_WITHOUT = "submit the job without `--resume`, with the `start=` that you want"


def resume_problems(resumes: str, before: Predecessor | None, spec: JobSpec) -> Iterator[ResumeProblem]:
    """All reasons why a job cannot go on from the positions of another one; the first one counts most. None: it can.

    Args:
        resumes: the id of the earlier job, for the texts.
        before: the earlier job; None if it is not known.
        spec: the new job. Both specs must have a graph: unique names, no cycle.
    """
    if before is None:
        yield ResumeProblem(
            "it is not known", "a user purged it, or it was forgotten: see coordinator.keep_jobs", _WITHOUT
        )
        return
    if before.refused:
        yield ResumeProblem("it was refused", "it has read nothing, so it has no positions", _WITHOUT)
        return
    yield from _as_it_stands(resumes, before)
    yield from _of_specs(before, spec)


def _as_it_stands(resumes: str, before: Predecessor) -> Iterator[ResumeProblem]:
    """Reasons that lie in how the earlier job ended, and in what has become of it."""
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
    elif before.resumed_by:
        yield ResumeProblem(
            f"{before.resumed_by} has resumed it",
            "two jobs that go on from the same positions would process the same records twice",
            f"resume {before.resumed_by}, after you have stopped it",
        )
    if before.status not in ("stopped", "completed") and (left := _left_behind(before.spec)):
        yield ResumeProblem(
            "it was killed" if before.status == "killed" else f"it has {before.status}",
            f"{left}, so its positions do not say what was done",
            f"{_WITHOUT}; `sardonyx job show {resumes}` tells the positions. End a job with `sardonyx job stop` to resume it",
        )
    with_state = [task.name for task in before.spec.catalog if stateful(task)]
    if before.status == "stopped" and with_state:
        yield ResumeProblem(
            f"its task {with_state[0]} had a state (of open windows, or rows that it had kept) when it was stopped",
            "the new job would begin without it: it would give a second result for a window, and miss rows that were kept",
            f"{_WITHOUT}, before the first row that the state needs",
            task=with_state[0],
        )


def _of_specs(before: Predecessor, spec: JobSpec) -> Iterator[ResumeProblem]:
    """Reasons that lie in what the two jobs read."""
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
            if topic not in before.topics.get(task, ()):
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


def topics_read(graph: Graph) -> dict[str, frozenset[str]]:
    """The user's topics that each task reads."""
    found = {
        stage.name: frozenset(link.topic for link in stage.ingress if link.kind == "input") for stage in graph.stages
    }
    return {task: topics for task, topics in found.items() if topics}


def _left_behind(spec: JobSpec) -> str:
    """What a job that did not come to its end may have left behind its inputs; an empty text if nothing."""
    if any(link.kind not in ("input", "output", "dead") for link in graph_of(spec, "", "").links):
        return "what its inputs had read may have been left on the links between its tasks"
    if any(task.type == "output" and task.connector != "kafka" for task in spec.catalog):
        return "its output keeps positions of its own"
    return ""
