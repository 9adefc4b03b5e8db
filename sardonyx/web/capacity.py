"""Which job has how many virtual peers, what it is entitled to, and what it waits for. Pure."""

from __future__ import annotations

from collections import Counter

import msgspec

from coordinator.core.explain import explain
from coordinator.core.scheduling import waits_for
from coordinator.core.state import LIVE, State
from sardonyx.client.policy import JobShare, policy_of
from sardonyx.client.reasons import HOLDING
from sardonyx.core.events import Scheduler
from sardonyx.web.book import Book


class PeerKind(msgspec.Struct, frozen=True, kw_only=True):
    """Virtual peers with the same tags, without drained ones."""

    tags: list[str]
    peers: int
    idle: int


class CapacityLine(JobShare, frozen=True, kw_only=True):
    """What a running job has, and what it is entitled to."""

    name: str
    by: str
    tags: list[str]
    """Those that each of its peers must have."""
    most: int
    """How many peers its tasks can take."""
    waits_for: int
    """How many more it needs to go on."""
    since: float | None
    """Since when it does not go on, seconds since 1970; None: it does."""
    why: str
    """What keeps it from going on; empty if nothing does."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How virtual peers are divided among the jobs that run, after one entry of the log."""

    n: int
    at: float | None
    live: bool
    scheduler: Scheduler
    peers: int
    """Virtual peers that are idle or have a task, without drained ones."""
    idle: int
    kinds: list[PeerKind]
    """The most peers first."""
    jobs: list[CapacityLine]
    """In order of submission."""


def capacity(book: Book, state: State) -> Capacity:
    """Show how peers are divided in ``state``."""
    policy = policy_of(state)
    live = [peer for peer in state.peers.values() if peer.state in LIVE and not peer.drained]
    all_of, idle_of = Counter(peer.tags for peer in live), Counter(p.tags for p in live if p.state == "idle")
    return Capacity(
        n=state.n,
        at=book.time_of(state.n),
        live=state.n == book.last,
        scheduler=policy.scheduler,
        peers=policy.peers,
        idle=sum(idle_of.values()),
        kinds=[PeerKind(tags=sorted(tags), peers=count, idle=idle_of[tags]) for tags, count in all_of.most_common()],
        jobs=[_line(state, share) for share in policy.jobs],
    )


def _line(state: State, share: JobShare) -> CapacityLine:
    job, plan = state.jobs[share.id], state.plans[share.id]
    holding = [reason for reason in explain(state, share.id).reasons if reason.code in HOLDING]
    limits = [plan.limit[stage] for stage in plan.stages if job.tasks[stage].state != "complete"]
    most = sum(limits) if share.max_peers is None else min(sum(limits), share.max_peers)
    return CapacityLine(
        **msgspec.structs.asdict(share),
        name=job.spec.name,
        by=job.by,
        tags=sorted(job.spec.tags),
        most=most,
        waits_for=waits_for(state, share.id),
        since=holding[0].since if holding else None,
        why=holding[0].text if holding else "",
    )
