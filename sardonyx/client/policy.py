"""How virtual peers are divided among jobs in a state of the coordinator. Pure."""

from __future__ import annotations

import msgspec

from coordinator.core.entitlement import targets
from coordinator.core.state import State
from sardonyx.core.events import Scheduler


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
    """Virtual peers that are idle or have a task, without drained ones."""
    jobs: list[JobShare]
    """Those that run, in order of submission."""


def policy_of(state: State) -> Policy:
    """The scheduler, and what each running job is entitled to and has, in order of submission."""
    entitled = targets(state)
    running = [(name, state.jobs[name]) for name in state.plans if name in entitled]
    return Policy(
        scheduler=state.scheduler,
        peers=state.live,
        jobs=[
            JobShare(
                id=name,
                has=state.held[name],
                share=entitled[name].peers,
                least=entitled[name].floor,
                queued=job.queued,
                priority=job.priority,
                weight=job.weight,
                percentage=job.percentage,
                max_peers=job.max_peers,
            )
            for name, job in running
        ],
    )
