"""The coordinator's state: peers, jobs and tasks. Pure.

Only :mod:`coordinator.core.decide` changes a state. :mod:`coordinator.core.stored_state` stores it, and
:mod:`coordinator.core.projection` says which nodes it has in ZooKeeper.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Literal

import msgspec

from coordinator.core import peer_states
from coordinator.core.indexes import Indexes, Kind
from coordinator.core.plan import GraphOf, Plan
from sardonyx.core.errors import Failure, InternalError
from sardonyx.core.events import (
    ENDED,
    OLDEST,
    RULES,
    Counts,
    JobStatus,
    LinkFacts,
    PeerState,
    Scheduler,
    TaskState,
    Yields,
)
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import Assignment, JobNote, PeerNote, TaskNote
from sardonyx.core.spec import JobSpec, stateful
from sardonyx.core.state_points import Adopted, CheckpointPoint, EndPoint

REMEMBERED_DEAD = 1_000
"""Dead peers that are still known by id, so that a birth told twice or a late request changes nothing. A pulse is read
again within seconds, so a thousand further deaths lie far beyond any repetition; without a limit the state would grow
for as long as the deployment lives."""
REMEMBERED_PURGED = 1_000
"""Jobs that were forgotten and are still known by id, so that a submission told twice does not begin one again."""


@functools.lru_cache(maxsize=1_000)
def _kind(form: int, tags: frozenset[str]) -> Kind:
    """There are few kinds, and many peers of each."""
    return Kind(form, tags)


class Peer(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A virtual peer."""

    state: PeerState
    n: int
    """The last event that changed its state node."""
    since: float
    """When it entered its state: the wall clock of that event, seconds since 1970."""
    order: int
    """Rank among all entries into any state; a lower rank is older."""
    assignment: Assignment | None = None
    daemon: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    format: int = 0
    tags: frozenset[str] = frozenset()
    yields: Yields = ""
    """When it is to give its task up."""
    pulse_due: bool = False
    """Whether the peer is dead and its pulse must still be deleted."""
    drained: bool = False
    """Whether a user has taken it out: it gets no further task."""
    joins: bool = False
    """Whether it has been offered a task on which others work already, which may soon be complete without it."""

    @property
    def kind(self) -> Kind:
        """A peer that does not say what it reads counts as one of the release before."""
        return _kind(self.format or OLDEST, self.tags)

    @property
    def home(self) -> str:
        """Its process and machine; empty if unknown. Its daemon's name lasts only as long as one session with ZooKeeper."""
        return f"{self.host}:{self.pid}" if self.host and self.pid else ""

    def note(self) -> PeerNote | None:
        """The note of its state node; None for a dead peer."""
        if self.state == "dead":
            return None
        return PeerNote(self.state, self.n, self.assignment, self.yields, self.drained, self.joins)


class Task(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One task of a job's catalog. A bound task never has peers; its state mirrors that of its stages."""

    n: int
    state: TaskState = "pending"
    peers: dict[str, int] = {}
    """Peers on the task -> slot."""
    failures: int = 0
    passing: int = 0
    """How many of these do not count for the job's ``failure_limit``, because their cause may pass."""
    counts: Counts | None = None
    error: Failure | None = None
    """The first failure that counts; it becomes the job's error if there are too many."""
    failed_at: float | None = None
    """Wall clock of the last failure, seconds since 1970."""
    backing_off: bool = False
    """The task failed, and is not offered until its back-off is over."""
    claimed: int = 0
    """Dead letters of this task that users have redone or dropped."""
    letters: int = 0
    """Dead letters on its topic, counted when the job's links were deleted; only if the final counts are not known."""
    positions: dict[str, list[int]] = {}
    """As in :class:`sardonyx.core.notes.TaskNote`. Never changed in place."""
    left: int = 0
    """The event with which its last peer left it; 0: it never had one."""
    last: list[str] = []
    """By slot, the home of the peer that left it last, unless it failed there; or nothing. The slot may have a peer again."""
    avoids: list[str] = []
    """Of a task with a standby, by slot: the home of the peer that failed there, until another one leaves it; or nothing."""
    declined: list[str] = []
    """The homes whose peers declined it, or did not answer. While there are any, its back-off concerns only these."""
    taken_up: bool = False
    """Whether a peer has begun with it by the spec that the job has: its code can be prepared. By rules before 4: never."""

    @property
    def rests(self) -> bool:
        """Whether it backs off for all peers."""
        return self.backing_off and not self.declined

    def forget_homes(self) -> None:
        """Prefer no process any more: the task is over."""
        self.last, self.avoids = [], []

    def forget_home(self, slot: int) -> None:
        """Prefer no process for a slot."""
        if slot < len(self.last):
            self.last[slot] = ""

    def keep_home(self, slot: int, home: str) -> None:
        """Prefer a process for a slot."""
        self.last += [""] * (slot + 1 - len(self.last))
        self.last[slot] = home
        if slot < len(self.avoids):
            self.avoids[slot] = ""

    def avoid_home(self, slot: int, home: str) -> None:
        """Let no peer of a process stand by for a slot; of the one before again."""
        if home:
            self.avoids += [""] * (slot + 1 - len(self.avoids))
        if slot < len(self.avoids):
            self.avoids[slot] = home

    def note(self) -> TaskNote:
        return TaskNote(
            self.state, self.n, dict(self.peers), self.failures, self.backing_off, self.counts, self.positions
        )


class Job(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A submitted job. A refused job has no tasks."""

    number: int
    """The event that submitted it. Jobs take turns in this order."""
    n: int
    """The event that changed its status node last. Once it may be forgotten, that is the event since which it may."""
    spec: JobSpec
    submitted_at: float
    status: JobStatus = "planning"
    tasks: dict[str, Task] = {}
    links: Literal["none", "made", "gone"] = "none"
    """Whether its topics exist, according to the log; during planning some may exist."""
    facts: dict[str, LinkFacts] | None = None
    topics: dict[str, str] = {}
    """The id of each topic that it reads, as far as Kafka tells them. Never changed in place."""
    ended_at: float | None = None
    error: Failure | None = None
    waits_for: int = 0
    waits_since: float | None = None
    """Wall clock of the event since which the job waits for peers."""
    purge: bool = False
    """Whether the ended job must be deleted as soon as its links are gone."""
    purge_letters: bool = False
    """Whether it must be deleted then even if dead letters were neither redone nor dropped."""
    letters: int = 0
    """Dead letters that were neither redone nor dropped. Known once the links are gone; 0 until then."""
    stopping: bool = False
    """Whether a user has stopped it."""
    closes: bool = False
    """Whether its windows close then."""
    resumes: str = ""
    """The job from whose positions it goes on, or whose rows it works once more."""
    resumes_at: int | None = None
    """If it begins with a checkpoint of that job: its time, in microseconds."""
    replays: bool = False
    """Whether it works rows of that job once more with its states, and takes nothing over: others can resume that job, too."""
    begins: dict[str, dict[str, list[int]]] = {}
    """These positions, by task and topic. Never changed in place."""
    adopts: dict[str, Adopted] = {}
    """By task, the state of the job that it resumes, with which it begins. Never changed in place."""
    clocks: dict[str, list[tuple[int, int]]] = {}
    """If it goes on where that job was stopped: by link, its clocks then. Never changed in place."""
    instead_of: str = ""
    """The job that had gone on from there before it, and had ended."""
    resumed_by: str = ""
    """The job that goes on from the positions of this one, or from one of its checkpoints."""
    lends: bool = False
    """Whether a job that began with the state of this one has not ended: all of the log of that state must stay."""
    checkpoints: list[CheckpointPoint] = []
    """Complete ones, in the order of time: the last few that the log has of it while it runs. Once its links are gone, those that
    it had kept when it ended; if it had kept none, those of the log. Never changed in place."""
    end: EndPoint | None = None
    """If it was stopped: where its states stood; known once its links are gone."""
    read: bool = False
    """Whether what its groups had committed last was read, before they are deleted."""
    into: str = ""
    """A user wants another job to go on from it as soon as its links are gone: the id of that one."""
    into_at: int = 0
    """If it was rolled back: at or before which time the checkpoint is from which the other one goes on, in microseconds."""
    into_spec: JobSpec | None = None
    """If it is restarted: the spec of the other one, which goes on from where it was stopped."""
    into_by: str = ""
    """Who wanted that."""
    by: str = ""
    """The user who submitted it, and the version of the client."""
    priority: int = 0
    weight: float = 1.0
    percentage: float | None = None
    max_peers: int | None = None
    suspended: bool = False
    """Whether it has no peers because a user wants that, or because it failed after a change."""
    revision: int = 1
    """How many specs it has had, the first included."""
    next_spec: JobSpec | None = None
    """By which it goes on as soon as its peers have left."""
    goes_on: list[str] = []
    """Meanwhile: the tasks that the change leaves as they are. Their peers stay."""
    switching: bool = False
    """Whether the others have left, and the queues that it has by the next spec are being made."""
    former: JobSpec | None = None
    """The spec by which peers worked last, as long as none works by the present one, which has the same queues. If no peer can
    begin by the present one, the job goes back to it."""
    gone_spec: JobSpec | None = None
    """The spec before, while the queues are being deleted that the present one does not have."""
    retired: list[str] = []
    """The tasks and queues that changes have removed. No other may have their names: what is left of them may still be deleted by
    a coordinator that was deposed."""
    places: int = 0
    """How many numbers were given to internal links (:attr:`sardonyx.core.events.LinkFacts.place`)."""
    queued: bool = False
    """Whether it runs and gets no peers now, because those that there are have been promised to other jobs."""
    gave: int = 0
    """How many times it has given peers to other jobs."""
    gave_at: float | None = None
    """Wall clock of the last time that it gave peers to other jobs."""
    needs: int = 0
    """The format that a peer must read to get its tasks; 0: any peer may."""
    left_alone: bool = False
    """Whether an event about it was set aside when it had ended: what Kafka still holds of it stays until a user purges it."""

    def note(self) -> JobNote:
        return JobNote(
            name=self.spec.name,
            status=self.status,
            n=self.n,
            submitted_at=self.submitted_at,
            ended_at=self.ended_at,
            error=self.error,
            waits_for=self.waits_for,
            waits_since=self.waits_since,
            links=self.links,
            letters=self.letters,
            stopping=self.stopping,
            resumes=self.resumes,
            resumes_at=self.resumes_at,
            replays=self.replays,
            resumed_by=self.resumed_by,
            lends=self.lends,
            checkpoints=[point.at for point in self.checkpoints],
            by=self.by,
            suspended=self.suspended,
            revision=self.revision,
            changing=self.next_spec is not None,
            queued=self.queued,
        )

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def complete(self) -> set[str]:
        """Its tasks that are complete."""
        return {name for name, task in self.tasks.items() if task.state == "complete"}

    @property
    def most_peers(self) -> int | None:
        """How many peers it may have; None: any number."""
        if self.suspended or self.next_spec is None:
            return 0 if self.suspended else self.max_peers
        return sum(len(self.tasks[name].peers) for name in self.goes_on)

    @property
    def pauses(self) -> bool:
        """Whether it gets no peers now."""
        return self.suspended or self.next_spec is not None

    @property
    def refused(self) -> bool:
        return not self.tasks

    @property
    def borrows(self) -> bool:
        """Whether it began with the state of the job that it resumes."""
        return bool(self.adopts) or self.resumes_at is not None

    @property
    def keeps_states(self) -> bool:
        """Of a job that has ended, and whose last commits were read if they must be: whether the logs of its states are needed.
        Another job has begun with them, or can: from where this one was stopped, or from a checkpoint.
        """
        return self.lends or self.end is not None or bool(self.checkpoints)

    @property
    def must_be_read(self) -> bool:
        """Whether what its groups have committed must be in the log before they are deleted: another job may go on from there."""
        keeps = self.spec.checkpoint_every is not None or any(map(stateful, self.spec.catalog))
        return keeps and self.facts is not None and not self.read

    @property
    def purgeable(self) -> bool:
        """Whether a user may have it forgotten: it has ended, its topics are gone, except for dead letters, and no other job
        needs its state.
        """
        return self.ended and (self.refused or self.links == "gone") and not self.lends

    @property
    def expirable(self) -> bool:
        """Whether it may be forgotten without being asked for: no dead letter of it waits to be redone."""
        return self.purgeable and not self.letters and not self.left_alone

    def unclaimed_letters(self) -> int:
        """Dead letters that were neither redone nor dropped, by the tasks' final counts, or else by what their topics hold."""
        return sum(
            max((task.letters if task.counts is None else task.counts.dead) - task.claimed, 0)
            for task in self.tasks.values()
        )


LIVE: tuple[PeerState, ...] = ("idle", *sorted(peer_states.ASSIGNED))


class State(Indexes):
    """Everything that the coordinator knows after event ``n``. What is not stored follows from the attributes here: see
    :class:`coordinator.core.indexes.Indexes`.
    """

    __slots__ = ("deployment", "drained", "jobs", "n", "order", "peers", "purged", "rules", "scheduler", "turn")

    def __init__(self, deployment: str, rules: int = RULES) -> None:
        super().__init__()
        self.deployment = deployment
        self.rules = rules
        """By which decisions are made: see :data:`sardonyx.core.events.RULES`."""
        self.n = 0
        """The last event; the first one has number 1. 0: none yet."""
        self.turn = 0
        """The number of the job that was served last; 0: none yet."""
        self.order = 0
        """The rank of the next entry of a peer into a state."""
        self.peers: dict[str, Peer] = {}
        self.jobs: dict[str, Job] = {}
        self.purged: OrderedDict[str, None] = OrderedDict()
        """Ids of the last deleted jobs, oldest first."""
        self.scheduler: Scheduler = "turns"
        self.drained: list[str] = []
        """Hosts whose peers a user has taken out, in order: those that join there later are drained, too."""

    def fits(self, peer: str, asked: Kind) -> bool:
        """Whether a peer can run what asks for this."""
        return self.peers[peer].kind.fits(asked) and not self.peers[peer].drained

    def on_task(self, task: Task) -> list[str]:
        """The peers of a task, in the order in which they were assigned."""
        return sorted(task.peers, key=lambda peer: (self.assignment(peer).id, task.peers[peer]))

    def assignment(self, peer: str) -> Assignment:
        """The assignment of a peer that must have one."""
        found = self.peers[peer].assignment
        if found is None:
            raise broken("a peer that is listed on a task has an assignment", peer=peer)
        return found


def new_state(deployment: str = "default", rules: int = RULES) -> State:
    """The state of a deployment before its first event, whose log begins under these rules."""
    return State(deployment, rules)


def plan_of(state: State, job: str, graph: GraphOf = graph_of) -> Plan:
    """Make a job's plan from its spec and the facts of its links. ``graph`` makes its graph, as ``graph_of`` does."""
    found = state.jobs[job]
    return Plan(graph(found.spec, state.deployment, job), found.facts or {}, found.spec.tags, state.rules)


def broken(rule: str, **where: object) -> InternalError:
    """The error for a state that breaks an invariant."""
    return InternalError(
        "SX-INVARIANT",
        f"the coordinator's state breaks the rule that {rule}",
        cause="a decision was wrong, or the log was edited by hand",
        fix="please report this with the coordinator's log",
        where=where,
    )


def free_slots(task: Task) -> Iterator[int]:
    """The free slots of a task, smallest first."""
    held = set(task.peers.values())
    return (slot for slot in count() if slot not in held)
