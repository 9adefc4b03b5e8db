"""Claims: the node in ZooKeeper that says up to which offset the dead letters of a task were redone or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sardonyx.client.ids import asker, job_gone
from sardonyx.core import node_paths
from sardonyx.core.claims import Claims
from sardonyx.core.effects import Create
from sardonyx.core.events import JobSubmitted, LettersClaimed, encode_event, kind_of
from sardonyx.core.names import request_id
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, Append, Check, SetIf

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession


def read(zk: ZooKeeperSession, job: str, task: str) -> tuple[Claims, int | None]:
    """What is claimed of a task's dead letters, and the version of the node that says so; None if there is no such node."""
    found = zk.read_version(node_paths.redo(job, task))
    return (Claims(), None) if found is None else (msgspec.json.decode(found[0], type=Claims), found[1])


def commit(
    zk: ZooKeeperSession,
    job: str,
    task: str,
    claims: Claims,
    version: int | None,
    spec: JobSpec | None = None,
    by: str = "",
) -> bool:
    """Claim, and submit the job if there is one. ``by``: who asks; empty: the user of this process.

    Returns:
        False if it was not done, or the outcome is unknown: then the claims tell.
    """
    from sardonyx.zookeeper.errors import OutcomeUnknown, TransactionFailed  # late: the structs need no client

    requests: list[Append] = []
    by = by or asker()
    events: list[JobSubmitted | LettersClaimed] = (
        [] if spec is None else [JobSubmitted(job=spec.name, spec=spec, by=by)]
    )
    for event in [*events, LettersClaimed(job=job, task=task, letters=claims.letters, by=by)]:
        request = encode_event(event)
        if len(request) > ENTRY_LIMIT:
            zk.request(event)  # raises: it says what is too large
        uuid = request_id(event.by, zk.runtime.token())
        requests.append(Append(node_paths.inbox_prefix(kind_of(event), uuid), request))
    path, data = node_paths.redo(job, task), msgspec.json.encode(claims)
    failpoint("redo-claim")
    try:
        zk.commit(
            [
                Check(node_paths.job_status(job)),  # or the claim would outlive the job
                Create(path, data) if version is None else SetIf(path, data, version),
                *requests,
            ]
        )
    except TransactionFailed:
        if zk.read(node_paths.job_status(job)) is None:
            raise job_gone(job) from None
        return False
    except OutcomeUnknown:
        zk.sync()
        return False
    failpoint("redo-claimed")
    return True
