"""A job, its tasks and the peers as clients see them: the notes in ZooKeeper with row counts. Pure."""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from coordinator.core.explanation import Code, Explanation
from queues.backlog import Precision
from sardonyx.client.row_counts import counts_of, written_in_place
from sardonyx.core import node_paths
from sardonyx.core.errors import Failure
from sardonyx.core.events import ENDED, Counts, JobStatus, PeerState, Scheduler, TaskState
from sardonyx.core.graph import Graph, LinkKind, Stage, graph_of
from sardonyx.core.notes import JobNote, PeerNote, PulseNote, TaskNote
from sardonyx.core.spec import JobSpec, TaskSpec, TaskType
from sardonyx.core.text import plural

if TYPE_CHECKING:
    from coordinator.core.state import State

ViewStatus = JobStatus | Literal["submitted"]
"""A job's status. It is ``submitted`` until a coordinator has taken the job in."""


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader has not read yet."""

    records: int | None = None
    """None: not known."""
    unit: Literal["records", "splits"] = "records"
    """What ``records`` counts. An input that is not a topic counts its splits, the pieces that peers read."""
    precision: Precision = "unknown"
    """How well ``records`` is known; ``at-most``: there may be fewer."""
    seconds: float | None = None
    """How long ago its oldest record was written; 0 if nothing is unread, None: not known."""


class LinkLag(Lag, frozen=True, kw_only=True):
    """What is unread on a link that a task reads."""

    link: str
    reader: str
    kind: LinkKind
    topic: str
    max_backlog: int | None = None
    """How many of its rows may be unread before the task that writes it pauses; None: any number."""
    kept_bytes: int | None = None
    """About how many bytes its topic holds, read or not; None: not known, or a topic of yours."""
    kept_seconds: float | None = None
    """How long ago the oldest record of its topic was written; 0 if it holds none; None as above."""


class PartitionLag(Lag, frozen=True, kw_only=True):
    """What is unread in one partition that a task reads."""

    link: str
    topic: str
    partition: int
    committed: int | None = None
    """The next offset to read, as the task has committed it; None: nothing yet."""
    end: int | None = None
    """The offset after the last record that it is to read, of those that are there."""


class LinkAudit(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a link between two tasks, as committed; None where they are not known."""

    link: str
    writer: str
    reader: str
    written: int | None = None
    """By the task that writes to it."""
    read: int | None = None
    """By the task that reads it."""
    unread: int | None = None
    """Written and not read yet."""
    lost: int | None = None
    """Written, neither read nor there to be read."""
    twice: int | None = None
    """Read or there to be read, and never written."""


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

    @property
    def ended(self) -> bool:
        """Whether it will never change again."""
        return self.status in ENDED

    def task(self, name: str) -> TaskView:
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(name)


class PeerView(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual peer."""

    id: str
    state: PeerState
    job: str | None = None
    task: str | None = None
    slot: int | None = None
    host: str = ""
    pid: int = 0
    daemon: str = ""
    since: float | None = None
    """When it entered its state, seconds since 1970; None if that is not known."""
    version: str = ""
    tags: tuple[str, ...] = ()
    drained: bool = False
    """Whether a user has taken it out: it gets no further task."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """A whole deployment after one event of its log."""

    n: int
    at: float | None
    """When the coordinator took that event in, seconds since 1970."""
    deployment: str
    peers: list[PeerView]
    jobs: list[JobView]
    """The latest first. Only tasks with final counts show rows."""


class JobShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a running job is entitled to."""

    id: str
    has: int
    """Its virtual peers now."""
    share: int
    """How many it is entitled to."""
    least: int
    """How many it cannot go on without."""
    queued: bool
    priority: int
    weight: float
    percentage: float | None
    max_peers: int | None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How virtual peers are divided among jobs."""

    scheduler: Scheduler
    peers: int
    """Virtual peers that are idle or have a task."""
    jobs: list[JobShare]
    """Those that run, in order of submission."""


class Outside(msgspec.Struct, frozen=True):
    """Something that keeps a job, or its clock, from going on, or makes it slow, and that the coordinator's log does not know."""

    code: Literal[
        "not-led",
        "backlog",
        "submitted",
        "kafka-away",
        "clock-held",
        "rows-wait",
        "held",
        "long-batch",
        "late",
        "loop-goes-on",
    ]
    text: str


HOLDING: frozenset[Code] = frozenset(
    {
        "topics-creating",
        "no-live-peers",
        "peers-missing",
        "peers-too-old",
        "starved-by-unbounded-jobs",
        "task-backing-off",
        "unanswered",
    }
)
"""Reasons that keep a job, or a part of it, from going on. Tasks that only wait for their turn are not among them."""


class Why(msgspec.Struct, frozen=True):
    """Why a job does not run, or that it does."""

    explanation: Explanation
    """What follows from the log."""
    outside: list[Outside] = []
    """What does not follow from the log. It matters more."""

    @property
    def in_short(self) -> str | None:
        """The main thing that keeps the job from continuing, in one line, or else the change that is made at a time."""
        if self.outside:
            return self.outside[0].text
        reasons = self.explanation.reasons
        held = next((reason.text for reason in reasons if reason.code in HOLDING), None)
        return held or next((reason.text for reason in reasons if reason.code == "changing-at"), None)


def cluster_view(state: State, at: float | None = None) -> ClusterView:
    """Show the deployment as it is in a state of the coordinator."""
    jobs = [
        job_view(
            name,
            job.spec,
            laid_out(job.spec, state.deployment, name),
            job.note(),
            {task_name: task.note() for task_name, task in job.tasks.items()},
        )
        for name, job in state.jobs.items()
    ]
    peers = [
        peer_view(
            name,
            note,
            PulseNote(peer.daemon, peer.host, peer.pid, peer.version, peer.format, tuple(sorted(peer.tags))),
            peer.since,
        )
        for name, peer in sorted(state.peers.items())
        if (note := peer.note()) is not None
    ]
    return ClusterView(n=state.n, at=at, deployment=state.deployment, peers=peers, jobs=jobs[::-1])


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


WEAKEST: tuple[Precision, ...] = ("unknown", "estimate", "at-most", "exact")


def with_lag(view: JobView, found: Sequence[LinkLag]) -> JobView:
    """The same job, with what each task has not read yet."""
    tasks = [
        msgspec.structs.replace(task, lag=_joint_lag(its)) if its else task
        for task in view.tasks
        for its in [[lag for lag in found if lag.reader == task.name]]
    ]
    return msgspec.structs.replace(view, tasks=tasks)


def with_positions(view: JobView, found: Mapping[str, dict[str, list[int]]]) -> JobView:
    """The same job with the positions of its tasks: by task, by topic, the next offset in each partition."""
    tasks = [msgspec.structs.replace(task, positions=found.get(task.name, task.positions)) for task in view.tasks]
    return msgspec.structs.replace(view, tasks=tasks)


def _joint_lag(lags: Sequence[LinkLag]) -> Lag:
    """Join the lags of several links of one reader.

    Records add up, and the longest wait counts. The least precise link decides the precision.
    """
    records = [lag.records for lag in lags if lag.records is not None]
    seconds = [lag.seconds for lag in lags if lag.seconds is not None]
    return Lag(
        records=sum(records) if len(records) == len(lags) else None,
        unit=lags[0].unit,
        precision=min((lag.precision for lag in lags), key=WEAKEST.index),
        seconds=max(seconds) if len(seconds) == len(lags) else None,
    )


def task_notes(
    read_many: Callable[[Iterable[str]], Mapping[str, bytes]], graph: Graph, job: str
) -> dict[str, TaskNote]:
    """Read those notes of a job's tasks that exist. ``read_many`` returns the data of nodes."""
    paths = {name: node_paths.job_task(job, name) for name in graph.order}
    nodes = read_many(paths.values())
    return {name: msgspec.json.decode(nodes[path], type=TaskNote) for name, path in paths.items() if path in nodes}


def _stage_view(stage: Stage, note: TaskNote | None, counts: Counts | None) -> TaskView:
    note = note or TaskNote(state="pending", n=0)
    return TaskView(
        name=stage.name,
        type=stage.task.type,
        state=note.state,
        peers=len(note.peers),
        peer_ids=sorted(note.peers),
        rows_in=counts.rows_in if counts else None,
        rows_out=counts.rows_out if counts else None,
        skipped=counts.skipped if counts else None,
        late=counts.late if counts else None,
        dead=counts.dead if counts else None,
        failures=note.failures,
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


def peer_view(peer: str, note: PeerNote, pulse: PulseNote | None, since: float | None = None) -> PeerView:
    """One peer from its state node and, while it lives, its pulse; ``since`` from the log."""
    assignment, pulse = note.assignment, pulse or PulseNote()
    return PeerView(
        id=peer,
        state=note.state,
        job=assignment.job if assignment else None,
        task=assignment.task if assignment else None,
        slot=assignment.slot if assignment else None,
        host=pulse.host,
        pid=pulse.pid,
        daemon=pulse.daemon,
        since=since,
        version=pulse.version,
        tags=pulse.tags,
        drained=note.drained,
    )


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
    if view.status == "submitted":
        return "the coordinator has not taken it in yet"
    if view.changing or view.suspended:
        now = "being changed: its peers leave after the batch in hand"
        return f"it is {now if view.changing else f'suspended; `sardonyx job resume {view.id}` lets it go on where it was'}"
    needed = f"{view.waits_for} more virtual {plural(view.waits_for, 'peer')}"
    if view.queued:
        return f"waits for {needed if view.waits_for else 'virtual peers'}: it is queued, and has none until enough are free"
    turns = "; its peers take turns at its tasks" if any(task.peers for task in view.tasks) else ""
    return f"waits for {needed}{turns}" if view.waits_for else None
