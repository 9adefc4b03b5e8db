"""The coordinator's state: peers, jobs and tasks. Pure.

Only :mod:`coordinator.core.decide` changes a state. :mod:`coordinator.core.stored_state` stores it, and
:mod:`coordinator.core.projection` says which nodes it has in ZooKeeper.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Literal, NamedTuple

import msgspec

from coordinator.core import peer_states
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
from sardonyx.core.graph import Graph, Stage, graph_of
from sardonyx.core.notes import Assignment, JobNote, PeerNote, TaskNote
from sardonyx.core.spec import JobSpec

REMEMBERED_DEAD = 1_000
"""Dead peers that are still known by id, so that a birth told twice or a late request changes nothing. A pulse is read
again within seconds, so a thousand further deaths lie far beyond any repetition; without a limit the state would grow
for as long as the deployment lives."""
REMEMBERED_PURGED = 1_000
"""Jobs that were forgotten and are still known by id, so that a submission told twice does not begin one again."""


class Demand(NamedTuple):
    """What a running job asks for: peers without which it cannot go on, one for each task, and the most that it can use."""

    floor: int
    width: int
    cap: int


class Target(NamedTuple):
    """What a job is entitled to: the peers without which it cannot go on, its share as a fraction, and as a whole number."""

    floor: int
    share: float
    peers: int


class Kind(NamedTuple):
    """What a peer is, for the choice of its tasks: the format that its release reads, and its tags. Or what a task asks for."""

    format: int
    tags: frozenset[str]

    def fits(self, asked: Kind) -> bool:
        """Whether such a peer can run what asks for this."""
        return self.format >= asked.format and asked.tags <= self.tags


class Bounds:
    """For jobs of one priority the least and the most that each gets, and its weight. ``turns``: the levels, in order, from
    which on a share rises, or does so no more, and by how much the sum of all rises faster from there.
    """

    __slots__ = ("high", "low", "turns", "weights")

    def __init__(self, low: list[int], high: list[int], weights: list[float]) -> None:
        self.low, self.high, self.weights = low, high, weights
        self.turns = sorted(
            [(least / weight, weight) for least, weight in zip(low, weights, strict=True)]
            + [(most / weight, -weight) for most, weight in zip(high, weights, strict=True)]
        )


class Tier(NamedTuple):
    """The jobs of one priority: from floors to caps, from floors to widths, from widths to caps."""

    names: list[str]
    all: Bounds
    narrow: Bounds
    wide: Bounds


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

    @property
    def kind(self) -> Kind:
        """A peer that does not say what it reads is of the release before."""
        return Kind(self.format or OLDEST, self.tags)

    @property
    def home(self) -> str:
        """Its process and machine; empty if unknown. Its daemon's name lasts only as long as one session with ZooKeeper."""
        return f"{self.host}:{self.pid}" if self.host and self.pid else ""

    def note(self) -> PeerNote | None:
        """The note of its state node; None for a dead peer."""
        return None if self.state == "dead" else PeerNote(self.state, self.n, self.assignment, self.yields)


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

    def forget_home(self, slot: int) -> None:
        """Prefer no process for a slot."""
        if slot < len(self.last):
            self.last[slot] = ""

    def keep_home(self, slot: int, home: str) -> None:
        """Prefer a process for a slot."""
        self.last += [""] * (slot + 1 - len(self.last))
        self.last[slot] = home

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
    resumes: str = ""
    """The job from whose positions it goes on."""
    begins: dict[str, dict[str, list[int]]] = {}
    """These positions, by task and topic. Never changed in place."""
    resumed_by: str = ""
    """The job that goes on from the positions of this one."""
    by: str = ""
    """The user who submitted it, and the version of the client."""
    priority: int = 0
    weight: float = 1.0
    percentage: float | None = None
    max_peers: int | None = None
    queued: bool = False
    """Whether it runs and gets no peers now, because those that there are have been promised to other jobs."""
    gave: int = 0
    """How many times it has given peers to other jobs."""
    gave_at: float | None = None
    """Wall clock of the last time that it gave peers to other jobs."""
    needs: int = 0
    """The format that a peer must read to get its tasks; 0: any peer may."""

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
            resumed_by=self.resumed_by,
            by=self.by,
            queued=self.queued,
        )

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def refused(self) -> bool:
        return not self.tasks

    @property
    def purgeable(self) -> bool:
        """Whether a user may have it forgotten: it has ended, and its topics are gone, except for dead letters."""
        return self.ended and (self.refused or self.links == "gone")

    @property
    def expirable(self) -> bool:
        """Whether it may be forgotten without being asked for: no dead letter of it waits to be redone."""
        return self.purgeable and not self.letters

    def unclaimed_letters(self) -> int:
        """Dead letters that were neither redone nor dropped, by the tasks' final counts, or else by what their topics hold."""
        return sum(
            max((task.letters if task.counts is None else task.counts.dead) - task.claimed, 0)
            for task in self.tasks.values()
        )


class Plan:
    """What follows from a job's spec and the facts of its links. Kept until the job ends, never stored.

    ``stages`` in topological order; ``upstream``: the stages right before each; ``limit``: the most peers each can take;
    ``places``: the most that all can take together; ``bounded``: whether the job ends by itself, by its spec or because it was
    stopped; ``tags``: of the stages that ask for any; ``pool``: the tags that all of them ask for.
    """

    __slots__ = ("bounded", "graph", "limit", "places", "pool", "stages", "tags", "upstream")

    def __init__(self, graph: Graph, facts: dict[str, LinkFacts], tags: list[str]) -> None:
        self.graph = graph
        self.bounded = graph.bounded or any(known.stops for known in facts.values())
        self.stages = {stage.name: stage.task for stage in graph.stages}
        self.upstream = {
            stage.name: [
                link.source for link in stage.ingress if link.source in self.stages and link.source != stage.name
            ]
            for stage in graph.stages
        }
        self.limit = {stage.name: _limit(stage, facts) for stage in graph.stages}
        self.places = sum(self.limit.values())
        asked = {
            stage.name: frozenset([*tags, *(tag for task in (stage.task, *stage.fused) for tag in task.tags)])
            for stage in graph.stages
        }
        self.tags = {stage: found for stage, found in asked.items() if found}
        self.pool = frozenset[str].intersection(*asked.values()) if asked else frozenset()


def _limit(stage: Stage, facts: dict[str, LinkFacts]) -> int:
    """The most peers of a task: as many as its widest link has partitions; one if it is sequential."""
    if stage.task.consumption == "sequential":
        return 1
    widest = max((facts[link.name].partitions for link in stage.ingress if link.name in facts), default=1)
    return max(1, widest if stage.task.max_peers is None else min(widest, stage.task.max_peers))


LIVE: tuple[PeerState, ...] = ("idle", *sorted(peer_states.ASSIGNED))


class State:
    """Everything that the coordinator knows after event ``n``.

    The first eight attributes are stored. The others follow from them. They are kept up to date, so that the cost of a decision
    does not grow with the number of peers or jobs.
    """

    __slots__ = (
        "backing_off",
        "by_state",
        "demands",
        "deployment",
        "expirable",
        "floors",
        "giving",
        "held",
        "idle_at",
        "idle_of",
        "jobs",
        "jobs_with_capacity",
        "live_of",
        "missing",
        "n",
        "names",
        "order",
        "peers",
        "plans",
        "purged",
        "queued",
        "requiring",
        "restricted",
        "rules",
        "scheduler",
        "short",
        "stale",
        "targets",
        "tiers",
        "turn",
    )

    def __init__(self, deployment: str, rules: int = RULES) -> None:
        self.deployment = deployment
        self.rules = rules
        """By which decisions are made: see :data:`sardonyx.core.events.RULES`."""
        self.n = 0
        """The last event; 0: none yet. The first event has number 1."""
        self.turn = 0
        """Number of the job that was served last."""
        self.order = 0
        """The rank of the next entry into a state."""
        self.peers: dict[str, Peer] = {}
        self.jobs: dict[str, Job] = {}
        self.purged: OrderedDict[str, None] = OrderedDict()
        """Ids of the last deleted jobs, oldest first."""
        self.scheduler: Scheduler = "turns"

        self.by_state: dict[PeerState, OrderedDict[str, None]] = {name: OrderedDict() for name in peer_states.STATES}
        """The peers in each state; the one that has been in it longest comes first."""
        self.plans: dict[str, Plan] = {}
        """Of the jobs that have not ended."""
        self.names: dict[str, str] = {}
        """Name -> id of the jobs that have not ended."""
        self.jobs_with_capacity: set[str] = set()
        """Running jobs that may take another peer. It contains every job that can, or that can after a back-off."""
        self.backing_off: dict[int, list[tuple[float, str, str]]] = {}
        """Number of failures -> tasks that back off, as (failed_at, job, task), sorted. All of a row back off equally long."""
        self.expirable: OrderedDict[str, None] = OrderedDict()
        """Jobs that may expire; the one that has been so longest comes first."""
        self.missing = 0
        """How many more virtual peers all jobs together wait for."""
        self.held: dict[str, int] = {}
        self.giving: dict[str, int] = {}
        """How many peers each running job has; and how many of them are to give their tasks up for other jobs, if any."""
        self.short: set[str] = set()
        """Unbounded jobs whose peers take turns, since a task has no peer."""
        self.queued: set[str] = set()
        self.live_of: dict[Kind, int] = {}
        self.idle_of: dict[Kind, OrderedDict[str, None]] = {}
        self.idle_at: dict[tuple[Kind, str], OrderedDict[str, None]] = {}
        """How many live peers there are of each kind; which are idle, in the order of ``by_state``; these by kind and home, if
        they have one. Without empty rows."""
        self.requiring: set[str] = set()
        self.restricted: set[str] = set()
        """Running jobs that ask for tags or a release; and those of them with tags, or that not all live peers can read."""
        self.stale: set[str] = set()
        """Jobs whose demand may have changed; :mod:`coordinator.core.entitlement` looks at them when it is asked next."""
        self.demands: dict[str, Demand] = {}
        self.floors = 0
        """Of the running jobs, as far as it was looked at; and the sum of their floors."""
        self.targets: dict[int, dict[str, Target]] = {}
        """What jobs are entitled to, by the number of live peers, as far as it was asked for since a demand changed."""

        self.tiers: list[Tier] = []
        """The running jobs by priority, as far as they were asked for since a demand changed."""

    def forget_targets(self) -> None:
        """A demand has changed."""
        self.targets.clear()
        self.tiers = []

    @property
    def live(self) -> int:
        """How many peers are idle or on a task."""
        return sum(len(self.by_state[state]) for state in LIVE)

    @property
    def free(self) -> int:
        """How many peers are idle."""
        return len(self.by_state["idle"])

    def fitting(self, asked: Kind) -> int:
        """How many idle peers can run what asks for this."""
        return sum(len(row) for kind, row in self.idle_of.items() if kind.fits(asked))

    def supply(self, asked: Kind) -> int:
        """How many live peers can run what asks for this."""
        return sum(count for kind, count in self.live_of.items() if kind.fits(asked))

    def add_idle(self, name: str) -> None:
        """Add a peer to the idle ones of its kind and home, as the one that came last."""
        peer = self.peers[name]
        self.idle_of.setdefault(peer.kind, OrderedDict())[name] = None
        if peer.home:
            self.idle_at.setdefault((peer.kind, peer.home), OrderedDict())[name] = None

    def remove_idle(self, name: str) -> None:
        """Remove a peer from the idle ones of its kind and home."""
        peer = self.peers[name]
        kind = peer.kind
        del self.idle_of[kind][name]
        if not self.idle_of[kind]:
            del self.idle_of[kind]
        if peer.home:
            del self.idle_at[kind, peer.home][name]
            if not self.idle_at[kind, peer.home]:
                del self.idle_at[kind, peer.home]

    def fits(self, peer: str, asked: Kind) -> bool:
        """Whether a peer can run what asks for this."""
        return self.peers[peer].kind.fits(asked)

    def on_task(self, task: Task) -> list[str]:
        """The peers of a task, in the order in which they were assigned."""
        return sorted(task.peers, key=lambda peer: (self.assignment(peer).id, task.peers[peer]))

    def assignment(self, peer: str) -> Assignment:
        """The assignment of a peer that must have one."""
        found = self.peers[peer].assignment
        if found is None:
            raise broken("a peer that is listed on a task has an assignment", peer=peer)
        return found

    def note_backoff(self, job: str, name: str, task: Task) -> None:
        """Add a task that backs off to its row."""
        if task.backing_off and task.failed_at is not None:
            insort(self.backing_off.setdefault(task.failures, []), (task.failed_at, job, name))

    def forget_backoff(self, job: str, name: str, task: Task) -> None:
        """Remove a task that backs off from its row. Call it before you change the task's failures."""
        if task.backing_off and task.failed_at is not None:
            row = self.backing_off[task.failures]
            del row[bisect_left(row, (task.failed_at, job, name))]
            if not row:
                del self.backing_off[task.failures]


def new_state(deployment: str = "default", rules: int = RULES) -> State:
    """The state of a deployment before its first event, whose log begins under these rules."""
    return State(deployment, rules)


def plan_of(state: State, job: str) -> Plan:
    """Make a job's plan from its spec and the facts of its links."""
    found = state.jobs[job]
    return Plan(graph_of(found.spec, state.deployment, job), found.facts or {}, found.spec.tags)


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
