"""The paths of the nodes in ZooKeeper, below the root ``/sardonyx/<deployment>``. ``zk_layout.md`` explains each. Pure.

All paths are relative to the root and begin with a slash; :mod:`sardonyx.zookeeper` puts the root in front.
"""

from __future__ import annotations

ELECTION = "/election"
EPOCH = "/epoch"
LOG = "/log"
CHECKPOINT = "/checkpoint"
SNAPSHOT = "/snapshot"
INBOX = "/inbox"
PULSE = "/pulse"
PEER_STATE = "/peer-state"
JOB = "/job"
SENTINEL = "/sentinel"
CODE = "/code"
REDO = "/redo"
RESTORE = "/restore"
"""Exists as long as a restore is not complete."""

TOP = (ELECTION, EPOCH, LOG, CHECKPOINT, SNAPSHOT, INBOX, PULSE, PEER_STATE, JOB, SENTINEL, CODE, REDO)
"""The nodes that exist from the first start on."""

LOG_BUCKET = 1000
"""Entries under one child of ``/log``. ZooKeeper returns a list of children only as a whole, so lists must stay short."""


def root(deployment: str) -> str:
    return f"/sardonyx/{deployment}"


def election_prefix(token: str) -> str:
    """Prefix of a candidate's ephemeral sequential node; the candidate with the lowest number leads."""
    return f"{ELECTION}/{token}-"


def log_bucket(n: int) -> str:
    return f"{LOG}/{n // LOG_BUCKET:07d}"


def log_batch(n: int) -> str:
    """The batch of entries whose first is number ``n``."""
    return f"{log_bucket(n)}/{n:010d}"


def snapshot(n: int) -> str:
    return f"{SNAPSHOT}/{n:010d}"


def snapshot_part(n: int, part: int) -> str:
    return f"{snapshot(n)}/{part:04d}"


def inbox_prefix(kind: str, uuid: str) -> str:
    """Prefix of a request's sequential node; the uuid lets its writer find it after a lost reply."""
    return f"{INBOX}/{kind}-{uuid}-"


def pulse(peer: str) -> str:
    return f"{PULSE}/{peer}"


def peer_state(peer: str) -> str:
    return f"{PEER_STATE}/{peer}"


def job(job: str) -> str:
    return f"{JOB}/{job}"


def job_spec(job: str) -> str:
    return f"{JOB}/{job}/spec"


def job_status(job: str) -> str:
    return f"{JOB}/{job}/status"


def job_links(job: str) -> str:
    return f"{JOB}/{job}/links"


def job_tasks(job: str) -> str:
    return f"{JOB}/{job}/task"


def job_task(job: str, task: str) -> str:
    return f"{JOB}/{job}/task/{task}"


def sentinels(job: str) -> str:
    return f"{SENTINEL}/{job}"


def sentinel(job: str, link: str) -> str:
    return f"{SENTINEL}/{job}/{link}"


def code(sha256: str) -> str:
    return f"{CODE}/{sha256}"


def redo(job: str, task: str) -> str:
    """Which dead letters of a task were redone."""
    return f"{REDO}/{job}.{task}"
