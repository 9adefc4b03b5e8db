"""A job and its tasks as clients see them: the notes in ZooKeeper with row counts. Pure."""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from sardonyx.client.lags import Lag, LinkLag, joint_lag
from sardonyx.client.row_counts import counts_of, written_in_place
from sardonyx.core import node_paths
from sardonyx.core.changing import failed_after
from sardonyx.core.errors import Failure
from sardonyx.core.events import ENDED, Counts, JobStatus, TaskState
from sardonyx.core.graph import Graph, Stage, graph_of
from sardonyx.core.notes import JobNote, TaskNote
from sardonyx.core.spec import JobSpec, TaskSpec, TaskType
from sardonyx.core.text import listed, plural

ViewStatus = JobStatus | Literal["submitted"]
"""A job's status. It is ``submitted`` until a coordinator has taken the job in."""
ShownState = TaskState | Literal["stopped"]
"""A task's state; ``stopped``: it had begun when its job failed or was killed."""


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a job. Row counts are exact for committed rows; None if we cannot know them now."""

    name: str
    type: TaskType
    state: ShownState
    peers: int = 0
    """How many virtual peers are on it; always 0 where ``bound``."""
    peer_ids: list[str] = []
    rows_in: int | None = None
    rows_out: int | None = None
    skipped: int | None = None
    """Rows that the task left out because its function raised on them."""
    late: int | None = None
    """Rows that came after their windows had closed, and that nothing else took."""
    dead: int | None = None
    """Rows that the task left out for the same reason, and kept as dead letters."""
    failures: int = 0
    """How often it failed and began again."""
    backing_off: bool = False
    """It has failed, and pauses before it is offered again. Its job goes on without it meanwhile, or waits for it."""
    bound: bool = False
    """It has no peers of its own: it is a topic bound in place, or runs in the micro-batches of the task before it."""
    lag: Lag | None = None
    """What is unread on its input, if the caller asked for it."""
    positions: dict[str, list[int]] = {}
    """By Kafka topic that it reads as an input, the next offset to read in each partition. For an ended job
    the coordinator has kept them. For a running job they are here only if the caller asked for them."""


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job. Times are seconds since 1970."""

    id: str
    name: str
    status: ViewStatus
    tasks: list[TaskView]
    """The tasks in topological order."""
    error: Failure | None = None
    waits_for: int = 0
    """How many more virtual peers it needs: a bounded job before it can continue, an unbounded one for a peer on each task."""
    suspended: bool = False
    """It gets no virtual peers until it is resumed, because a user wants that, or because it failed after a change (``error``).
    Those that work for it leave after the batch in hand."""
    revision: int = 1
    """How many specs it has had: 1, and one more for each change."""
    changing: bool = False
    """Its virtual peers leave after the batch in hand; the next ones work by another spec."""
    queued: bool = False
    """It runs and gets no virtual peers now, because those that there are have been promised to other jobs."""
    submitted_at: float | None = None
    ended_at: float | None = None
    letters: int = 0
    """Dead letters that no user has redone or dropped. Known after the job has ended and its topics are gone."""
    stopping: bool = False
    """A user has stopped it. It ends when all that its inputs have read has gone through it."""
    resumes: str = ""
    """The job from whose positions it went on, or whose rows it works once more with its states (``replays``)."""
    replays: bool = False
    """It works rows of that job once more, and takes nothing over from it."""
    resumed_by: str = ""
    """The job that goes on from its positions."""
    by: str = ""
    """The user who submitted it, as ``user@host``, and the version of the client."""
    rows_error: Failure | None = None
    """Why rows of its tasks are not known, if Kafka was asked for them and did not tell."""

    @property
    def ended(self) -> bool:
        """Whether it will never change again."""
        return self.status in ENDED

    def task(self, name: str) -> TaskView:
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(name)


def laid_out(spec: JobSpec, deployment: str, job: str) -> Graph:
    """A job's graph; without tasks for one that was submitted without the client's validation, and refused."""
    try:
        return graph_of(spec, deployment, job)
    except (graphlib.CycleError, KeyError):
        return Graph(order=[], stages=[], bound={}, bounded=True)


def job_view(
    job: str,
    spec: JobSpec,
    graph: Graph,
    note: JobNote | None,
    notes: Mapping[str, TaskNote],
    live: Mapping[str, Counts] | None = None,
) -> JobView:
    """Put a job together.

    Args:
        job: its id.
        spec: the job as data.
        graph: the graph of ``spec``.
        note: its status; None while no coordinator has taken it in.
        notes: task name -> note, as far as there are any.
        live: task name -> counts as they stand now in Kafka; None if Kafka cannot be asked.
    """
    counts = {stage.name: counts_of(stage.name, notes.get(stage.name), live or {}) for stage in graph.stages}
    stages = {stage.name: _stage_view(stage, notes.get(stage.name), counts[stage.name]) for stage in graph.stages}
    written = partial(written_in_place, graph, counts, changed=note is not None and note.revision > 1)
    views = [
        stages[name] if name in stages else _bound_view(spec, graph, name, stages, written) for name in graph.order
    ]
    inside = {
        stage.name for stage in graph.stages if stage.fused
    }  # what comes out of the first of fused tasks is not counted
    views = [msgspec.structs.replace(view, rows_out=None) if view.name in inside else view for view in views]
    if note is not None and note.status in ENDED:
        views = [msgspec.structs.replace(v, state="stopped") if v.state == "running" else v for v in views]
        views = [msgspec.structs.replace(v, backing_off=False) for v in views]
    if note is None:
        return JobView(id=job, name=spec.name, status="submitted", tasks=views)
    return JobView(
        id=job,
        name=note.name,
        status=note.status,
        tasks=views,
        error=note.error,
        waits_for=0 if note.status in ENDED else note.waits_for,
        suspended=note.suspended,
        revision=note.revision,
        changing=note.changing,
        queued=note.queued,
        submitted_at=note.submitted_at,
        ended_at=note.ended_at,
        letters=note.letters,
        stopping=note.stopping,
        resumes=note.resumes,
        replays=note.replays,
        resumed_by=note.resumed_by,
        by=note.by,
    )


def with_lag(view: JobView, found: Sequence[LinkLag]) -> JobView:
    """The same job, with what each task has not read yet."""
    tasks = [
        msgspec.structs.replace(task, lag=joint_lag(its)) if its else task
        for task in view.tasks
        for its in [[lag for lag in found if lag.reader == task.name]]
    ]
    return msgspec.structs.replace(view, tasks=tasks)


def with_positions(view: JobView, found: Mapping[str, dict[str, list[int]]]) -> JobView:
    """The same job with the positions of its tasks: by task, by topic, the next offset in each partition."""
    tasks = [msgspec.structs.replace(task, positions=found.get(task.name, task.positions)) for task in view.tasks]
    return msgspec.structs.replace(view, tasks=tasks)


def task_notes(
    read_many: Callable[[Iterable[str]], Mapping[str, bytes]], graph: Graph, job: str
) -> dict[str, TaskNote]:
    """Read those notes of a job's tasks that exist. ``read_many`` returns the data of nodes."""
    paths = {name: node_paths.job_task(job, name) for name in graph.order}
    nodes = read_many(paths.values())
    return {name: msgspec.json.decode(nodes[path], type=TaskNote) for name, path in paths.items() if path in nodes}


def _stage_view(stage: Stage, note: TaskNote | None, counts: Counts | None) -> TaskView:
    note = note or TaskNote(state="pending", n=0)
    # The rows are asked for after the note was read: a task that has some has begun by now.
    begun = note.state == "pending" and counts is not None and counts != Counts()
    return TaskView(
        name=stage.name,
        type=stage.task.type,
        state="running" if begun else note.state,
        peers=len(note.peers),
        peer_ids=sorted(note.peers),
        rows_in=counts.rows_in if counts else None,
        rows_out=counts.rows_out if counts else None,
        skipped=counts.skipped if counts else None,
        late=counts.late if counts else None,
        dead=counts.dead if counts else None,
        failures=note.failures,
        backing_off=note.backing_off,
        positions=note.positions,
    )


def _bound_view(
    spec: JobSpec, graph: Graph, name: str, stages: Mapping[str, TaskView], written: Callable[[str], int | None]
) -> TaskView:
    """Show a topic that is itself a link, or a fused task.

    The rows of such a topic are those that its neighbours read from it, or wrote to it. Of fused tasks, we count only
    what leaves the micro-batch.
    """
    task = spec.task(name)
    # A job that was refused may have edges that no valid job has: those to tasks without a stage tell nothing.
    neighbours = [neighbour for neighbour in graph.bound[name] if neighbour in stages]
    beside = [stages[neighbour] for neighbour in neighbours]
    (fused, inner), rows = _fused(graph, task), None
    if task.type == "input":
        # A reader of several links counts them together, so only one that reads nothing else tells.
        telling = [stages[reader].rows_in for reader in neighbours if len(graph.stage(reader).ingress) == 1]
        known = [rows for rows in telling if rows is not None]
        rows = max(known) if known else None
    elif fused:
        rows = None if inner else beside[0].rows_out
    else:
        rows = written(name)
    return TaskView(
        name=name,
        type=task.type,
        state=_joint_state([view.state for view in beside]),
        rows_in=None if fused else rows,
        rows_out=rows,
        skipped=0,
        late=0,
        dead=0,
        bound=True,
    )


def _fused(graph: Graph, task: TaskSpec) -> tuple[bool, bool]:
    """Whether a task is fused, and whether another one is fused after it."""
    fused = next((stage.fused for stage in graph.stages if task in stage.fused), [])
    return bool(fused), bool(fused) and task != fused[-1]


def _joint_state(states: Sequence[ShownState]) -> ShownState:
    if all(state == "complete" for state in states):
        return "complete"
    return "pending" if all(state == "pending" for state in states) else "running"


def lacks_peers(view: JobView) -> bool:
    """Whether it runs and waits for virtual peers."""
    return view.status == "running" and bool(view.waits_for or view.queued) and not (view.changing or view.suspended)


_BEGINS = {
    "submitted": "the coordinator has not taken it in yet",
    "planning": "its topics are being created, or looked up in Kafka",
}
"""What a job waits for that has not begun, by its status."""


def waiting_for(view: JobView, *, led: bool) -> str | None:
    """Say in words what a job waits for; None if it waits only for its own work.

    Args:
        view: the job.
        led: whether a coordinator leads the deployment.
    """
    if view.ended:
        return None
    if not led:
        return "no coordinator leads this deployment; start one with `sardonyx coordinator`"
    if view.changing or view.suspended:
        return "it is being changed: its peers leave after the batch in hand" if view.changing else _suspended(view)
    if view.status in _BEGINS:
        return _BEGINS[view.status]
    needed = f"{view.waits_for} more virtual {plural(view.waits_for, 'peer')}"
    if view.queued:
        return f"waits for {needed if view.waits_for else 'virtual peers'}: it is queued, and has none until enough are free"
    turns = "; its peers take turns at its tasks" if any(task.peers for task in view.tasks) else ""
    return f"waits for {needed}{turns}" if view.waits_for else _pauses(view)


def _pauses(view: JobView) -> str | None:
    """Which tasks of a job pause after a failure, in words; None: none does."""
    names = [task.name for task in view.tasks if task.backing_off]
    many = len(names)
    text = (
        f"{plural(many, 'task')} {listed(names)} failed, and {plural(many, 'pauses', 'pause')} before the next attempt"
    )
    return f"{text}; `sardonyx job explain {view.id}` says why" if names else None


def _suspended(view: JobView) -> str:
    resume = f"`sardonyx job resume {view.id}` lets it go on where it was"
    if view.error is None or not failed_after(view.error):
        return f"it is suspended; {resume}"
    failed = f"it is suspended, since it failed after a change ({view.error.code})"
    return f"{failed}; change it again with `sardonyx job change {view.id} SPEC`, and then {resume}"
