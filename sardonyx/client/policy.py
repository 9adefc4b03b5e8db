"""How virtual peers are divided among jobs in a state of the coordinator. Pure."""

from __future__ import annotations

from coordinator.core.entitlement import targets
from coordinator.core.state import State
from sardonyx.client.views import JobShare, Policy


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
