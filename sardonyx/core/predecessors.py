"""What is known of a job that another one is to resume, and what stands in the way. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import Failure
from sardonyx.core.events import ENDED, JobStatus
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.spec import JobSpec, database_of, stateful
from sardonyx.core.state_points import CheckpointPoint, EndPoint
from sardonyx.core.text import listed


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
    retired: Collection[str] = ()
    """Names of tasks and queues that changes have removed from it."""
    checkpoints: Sequence[CheckpointPoint] = ()
    """Those that it has kept, in the order of time; known once its topics are deleted."""
    end: EndPoint | None = None
    """If it was stopped: where its states stood; None: it had none, or their logs cannot be gone on with."""
    closed: bool = False
    """If it was stopped: whether its windows closed then."""
    successor_ended: bool = False
    """Whether the job that has resumed it has ended."""
    no_end: str = "it is in a database, or a coordinator of the release before has stopped the job"
    """Why there is no ``end``, of a job with states that was stopped. Of one that has not ended, its spec says it."""

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
        end = None if graph.bounded else _end_of(graph, self.spec.partitions)
        status: JobStatus = "completed" if graph.bounded else "stopped"
        return Predecessor(self.spec, status, topics=topics_read(graph), end=end, no_end=in_databases(self.spec))


def running(spec: JobSpec) -> Predecessor:
    """Return what is known from its spec of a job that has not ended."""
    return Predecessor(spec, "running")


def in_databases(spec: JobSpec) -> str:
    """Which tasks of a job have their state in a database, where no job goes on with it, and what that means for the others; an
    empty text if none has.
    """
    stored = [task.name for task in spec.catalog if database_of(task) is not None]
    others = [task.name for task in spec.catalog if stateful(task) and task.name not in stored]
    if not stored:
        return ""
    rest = f", and no job goes on with that of {listed(others)} alone" if others else ""
    return f"the state of {listed(stored)} is in a database{rest}"


def _end_of(graph: Graph, partitions: int) -> EndPoint | None:
    """What a job will have kept of its states when it is stopped."""
    keeping = [stage for stage in graph.stages if stateful(stage.task)]
    if any(database_of(stage.task) is not None for stage in keeping):
        return None
    return EndPoint(NEVER, {stage.name: [(0, 0, 0)] * partitions for stage in keeping})


class ResumeProblem(NamedTuple):
    """One reason why a job cannot go on from the positions of another one."""

    problem: str
    cause: str
    fix: str
    task: str = ""
    """The task of the earlier job that it is about; empty: the whole job."""
    topic: str = ""
    """The topic that this task reads, and no task of that name in the new job does; empty: it is about something else."""
    code: str = "SX-JOB-RESUME"
    wanted: str = "resumed"
    """What cannot be done with the earlier job."""

    def failure(self, resumes: str, job: str = "") -> Failure:
        """The error for the user.

        Args:
            resumes: the id of the earlier job.
            job: the id of the new one, if it has one yet.
        """
        return Failure(
            self.code,
            f"job {resumes} cannot be {self.wanted}: {self.problem}",
            cause=self.cause,
            fix=self.fix,
            where={"job": job, "resumes": resumes} if job else {"resumes": resumes},
        )


def topics_read(graph: Graph) -> dict[str, frozenset[str]]:
    """The user's topics that each task reads."""
    found = {
        stage.name: frozenset(link.topic for link in stage.ingress if link.kind == "input") for stage in graph.stages
    }
    return {task: topics for task, topics in found.items() if topics}


__all__ = ["Predecessor", "ResumeProblem", "in_databases", "running", "topics_read"]
