"""How virtual peers are divided among jobs, read from the coordinator's log, and the choice of another scheduler."""

from __future__ import annotations

import time

from coordinator.core.entitlement import targets
from coordinator.core.state import State
from coordinator.history import reader
from sardonyx.client.views import JobShare, Policy
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import PolicySet, Scheduler
from sardonyx.zookeeper.session import ZooKeeperSession

LOOK_EVERY = 0.2
"""Seconds between looks at whether a coordinator has processed the request."""


def policy(zk: ZooKeeperSession) -> Policy:
    """The scheduler, and what each running job is entitled to and has, in order of submission."""
    return _policy_of(reader.present(zk))


def _policy_of(state: State) -> Policy:
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


def set_policy(zk: ZooKeeperSession, scheduler: Scheduler, timeout: float) -> Policy:
    """Choose a scheduler, and wait until a coordinator has taken that in.

    Raises:
        SardonyxError: ``SX-POLICY-PENDING``: none has within ``timeout`` seconds. ``SX-POLICY-REPLACED``: it has, and another
            scheduler was chosen right after that.
    """
    state = reader.present(zk)
    zk.request(PolicySet(scheduler=scheduler))
    deadline = time.monotonic() + timeout
    seen = False
    while state.scheduler != scheduler:
        if seen:
            raise SardonyxError(
                "SX-POLICY-REPLACED",
                f"the scheduler {scheduler} was set, but {state.scheduler} has been chosen since",
                cause="another user has chosen it at the same time",
                fix="agree on one, then set it; `sardonyx cluster policy` shows the one in force",
            )
        if time.monotonic() > deadline:
            raise SardonyxError(
                "SX-POLICY-PENDING",
                f"the scheduler {scheduler} was requested, but no coordinator has processed that yet",
                fix="start a coordinator (`sardonyx coordinator`) if none leads; it then changes the scheduler",
            )
        time.sleep(LOOK_EVERY)
        seen = any(isinstance(event, PolicySet) and event.scheduler == scheduler for event in reader.advance(zk, state))
    return _policy_of(state)
