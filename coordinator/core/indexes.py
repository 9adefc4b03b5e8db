"""What follows from the coordinator's state, kept up to date for quick decisions. Pure.

:func:`coordinator.core.stored_state.derive` computes it anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from coordinator.core import peer_states
from coordinator.core.plan import Plan
from sardonyx.core.events import PeerState

if TYPE_CHECKING:
    from coordinator.core.state import Peer, Task


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


class Indexes:
    """What follows from a state. It is kept up to date, so that the cost of a decision does not grow with the number of peers or
    jobs.
    """

    __slots__ = (
        "backing_off",
        "by_state",
        "demands",
        "expirable",
        "floors",
        "giving",
        "held",
        "idle_at",
        "idle_of",
        "jobs_with_capacity",
        "live_of",
        "missing",
        "names",
        "plans",
        "queued",
        "requiring",
        "restricted",
        "short",
        "stale",
        "targets",
        "tiers",
    )

    def __init__(self) -> None:
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
        """How many peers each running job has."""
        self.giving: dict[str, int] = {}
        """How many of these are to give their tasks up for other jobs, if any."""
        self.short: set[str] = set()
        """Unbounded jobs whose peers take turns, since a task has no peer."""
        self.queued: set[str] = set()
        """Jobs that run and get no peers now: see :attr:`coordinator.core.state.Job.queued`."""
        self.live_of: dict[Kind, int] = {}
        """How many live peers there are of each kind, without drained ones; no kind has none."""
        self.idle_of: dict[Kind, OrderedDict[str, None]] = {}
        """Those of them that are idle, in the order of ``by_state``; no row is empty."""
        self.idle_at: dict[tuple[Kind, str], OrderedDict[str, None]] = {}
        """The same by kind and home, of peers that have one."""
        self.requiring: set[str] = set()
        """Running jobs that ask for tags or a release."""
        self.restricted: set[str] = set()
        """Those of them with tags, or that not all live peers can read."""
        self.stale: set[str] = set()
        """Jobs whose demand may have changed; :mod:`coordinator.core.entitlement` looks at them when it is asked next."""
        self.demands: dict[str, Demand] = {}
        """Of the running jobs, as far as it was looked at."""
        self.floors = 0
        """The sum of the floors of these demands."""
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
        """How many peers are idle or on a task, without drained ones."""
        return sum(self.live_of.values())

    @property
    def free(self) -> int:
        """How many peers are idle, without drained ones."""
        return sum(map(len, self.idle_of.values()))

    def fitting(self, asked: Kind) -> int:
        """How many idle peers can run what asks for this."""
        return sum(len(row) for kind, row in self.idle_of.items() if kind.fits(asked))

    def supply(self, asked: Kind) -> int:
        """How many live peers can run what asks for this."""
        return sum(count for kind, count in self.live_of.items() if kind.fits(asked))

    def add_idle(self, name: str, peer: Peer) -> None:
        """Add a peer to the idle ones of its kind and home, as the one that came last."""
        if peer.drained:
            return
        self.idle_of.setdefault(peer.kind, OrderedDict())[name] = None
        if peer.home:
            self.idle_at.setdefault((peer.kind, peer.home), OrderedDict())[name] = None

    def remove_idle(self, name: str, peer: Peer) -> None:
        """Remove a peer from the idle ones of its kind and home."""
        kind = peer.kind
        if peer.drained:
            return
        del self.idle_of[kind][name]
        if not self.idle_of[kind]:
            del self.idle_of[kind]
        if peer.home:
            del self.idle_at[kind, peer.home][name]
            if not self.idle_at[kind, peer.home]:
                del self.idle_at[kind, peer.home]

    def idle_in(self, kind: Kind, homes: Collection[str]) -> int:
        """How many idle peers of a kind are in these homes."""
        return sum(len(self.idle_at.get((kind, home), ())) for home in homes)

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
