"""How virtual peers are divided among jobs, read from the coordinator's log, and the choice of another scheduler."""

from __future__ import annotations

import time

from msgspec.structs import replace

from coordinator.history import reader
from sardonyx.client.ids import asker
from sardonyx.client.policy import Policy, policy_of
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.core.events import JobScaled, PolicySet, Scheduler, SetAside, happened
from sardonyx.core.structure import share_problems
from sardonyx.zookeeper.session import ZooKeeperSession

LOOK_EVERY = 0.2
"""Seconds between looks at whether a coordinator has processed the request."""
_NONE = ("percentage", "max_peers")
"""What a user may take back with 0."""
_OPTIONS = "`--priority`, `--weight`, `--percentage` and `--max-peers`"


def policy(zk: ZooKeeperSession) -> Policy:
    """The scheduler, and what each running job is entitled to and has, in order of submission."""
    return policy_of(reader.present(zk))


def set_policy(zk: ZooKeeperSession, scheduler: Scheduler, timeout: float) -> Policy:
    """Choose a scheduler, and wait until a coordinator has taken that in.

    Raises:
        SardonyxError: ``SX-POLICY-PENDING``: none has within ``timeout`` seconds. ``SX-POLICY-REPLACED``: it has, and another
            scheduler was chosen right after that. ``SX-LOG-SET-ASIDE``.
    """
    state = reader.present(zk)
    zk.request(PolicySet(scheduler=scheduler, by=asker()))
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
        for event in reader.advance(zk, state):
            told = happened(event)
            if isinstance(told, PolicySet) and told.scheduler == scheduler:
                if isinstance(event, SetAside):
                    raise SardonyxError.from_failure(event.error)
                seen = True
    return policy_of(state)


def check(wanted: JobScaled) -> None:
    """Raises ``SX-JOB-SHARE`` if a value is not possible, or none is given."""
    given = {name: getattr(wanted, name) for name in ("priority", "weight", "percentage", "max_peers")}
    given = {name: value for name, value in given.items() if value is not None}
    wrong = list(share_problems(**{name: value for name, value in given.items() if value or name not in _NONE}))
    if wrong or not given:
        raise SardonyxError(
            "SX-JOB-SHARE",
            "; ".join(wrong) or f"nothing of job {wanted.job} is to change",
            cause="the cluster cannot divide its peers by such a value" if wrong else "no value is given",
            fix="correct it; docs/jobs.md says what each of them does" if wrong else f"give one or more of {_OPTIONS}",
            where={"job": wanted.job},
        )


def scale(zk: ZooKeeperSession, wanted: JobScaled, timeout: float) -> None:
    """Change what a job is entitled to, and wait until a coordinator has taken that in.

    Raises:
        SardonyxError: ``SX-JOB-ENDED``: the job has ended before.
        Interrupted: ``SX-JOB-SCALE-PENDING``: none has within ``timeout`` seconds.
    """
    state = reader.present(zk)
    zk.request(wanted)
    deadline = time.monotonic() + timeout
    while not (
        found := [
            event
            for event in map(happened, reader.advance(zk, state))
            if isinstance(event, JobScaled) and replace(event, at=0.0) == wanted
        ]
    ):
        if time.monotonic() > deadline:
            raise Interrupted(
                "SX-JOB-SCALE-PENDING",
                f"the change of job {wanted.job} was requested, but no coordinator has processed it yet",
                fix="start a coordinator (`sardonyx coordinator`) if none leads; it then processes the request",
                where={"job": wanted.job},
            )
        time.sleep(LOOK_EVERY)
    job = state.jobs.get(wanted.job)
    if job is not None and job.ended and (job.ended_at or 0.0) <= found[0].at:  # and not because of the change
        raise job_ended(wanted.job, job.status)


def job_ended(job: str, status: str) -> SardonyxError:
    return SardonyxError(
        "SX-JOB-ENDED",
        f"job {job} is {status}, and has no peers any more",
        cause="only a job that has not ended may have peers",
        fix="submit it again with the values that you want",
        where={"job": job},
    )
