"""An explanation of why a job does not run: its reasons, and their words for people. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from sardonyx.core.errors import Failure
from sardonyx.core.events import JobStatus, PeerState
from sardonyx.core.units import duration

Code = Literal[
    "unknown",
    "purged",
    "refused",
    "failed",
    "killed",
    "stopped",
    "completed",
    "topics-deleting",
    "topics-left",
    "topics-creating",
    "stopping",
    "suspended",
    "changing",
    "changing-at",
    "resizing",
    "taken-back",
    "awaits-end-marker",
    "loop-goes-on",
    "no-live-peers",
    "queued-behind",
    "no-tag",
    "tag-busy",
    "peers-missing",
    "peers-drained",
    "takes-turns",
    "over-share",
    "below-share",
    "job-full",
    "peers-too-old",
    "starved-by-unbounded-jobs",
    "task-backing-off",
    "task-short",
    "task-blocked",
    "task-full",
    "unanswered",
    "runs",
]
"""The kind of a reason, for programs. ``docs/coordination.md`` explains each."""

SHOWN = 10
"""How many peers of one reason people see; programs get all."""


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A virtual peer that is not free: what it is, where, and since when (seconds since 1970)."""

    peer: str
    state: PeerState
    since: float
    job: str | None = None
    task: str | None = None


class Reason(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One thing that keeps a job, or a task of it, from going on; or that nothing does."""

    code: Code
    text: str
    """One sentence for people."""
    since: float | None = None
    """Since when, seconds since 1970; None if unknown."""
    task: str | None = None
    """The task concerned, if it is one task."""
    held_by: str | None = None
    """Of a blocked task: the nearest task before it that has no peer for a reason of its own, not because it is blocked too."""
    needed: int | None = None
    """How many virtual peers are needed."""
    free: int | None = None
    """How many are idle."""
    failures: int | None = None
    limit: int | None = None
    """How many failures the job survives, how many peers the task takes, or how often a row may go round."""
    error: Failure | None = None
    peers: list[Holder] = []
    """The peers that hold what is missing, or that are at work; those that have been there longest come first."""
    fix: str = ""
    """What to do about a reason that is not an error; empty where no command and no setting would help."""


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job does not run, or that it does, after event ``n``."""

    job: str
    n: int
    reasons: list[Reason]
    """Never empty; the most important first."""
    status: JobStatus | None = None
    """None for a job that is unknown or purged."""


_MORE_PEERS = "start `sardonyx peer` on another machine, or give a daemon more with `--virtual-peers N`"
FIXES: dict[Code, str] = {
    "no-live-peers": "start a peer daemon: `sardonyx peer`",
    "peers-missing": _MORE_PEERS,
    "queued-behind": "start more peers, end a job, or run `sardonyx job scale {job} --priority N`",
    "takes-turns": _MORE_PEERS,
    "below-share": "wait; `sardonyx job scale {job} --weight N` gives it a larger share",
    "over-share": "nothing; `sardonyx job scale {job} --weight N` gives it a larger share",
    "job-full": "allow more: `sardonyx job scale {job} --max-peers N`",
    "task-short": _MORE_PEERS,
    "awaits-end-marker": "if no job will write them, end this one where it is with `sardonyx job stop {job}`",
    "loop-goes-on": "`sardonyx job show {job} --cycles` says how many rows are on their way, and where",
    "topics-deleting": "wait; if it lasts, the log of the coordinator says why (`links_not_deleted`)",
    "unanswered": "wait; an offer without an answer within coordinator.ack_timeout counts as a failure of the task",
}
"""What to do about a reason that does not say so itself; ``{job}`` stands for the job's id."""


def as_lines(explanation: Explanation, now: float) -> list[str]:
    """An explanation as lines for people; ``now`` (seconds since 1970) gives the durations."""
    lines = [f"{explanation.job} is {explanation.status or 'not known'}"]
    for reason in explanation.reasons:
        spent = _ago(reason.since, now) if reason.code in _PAST else _for(reason.since, now)
        lines.append(f"  {reason.text}{spent}")
        if reason.error is not None and reason.error.fix:
            lines.append(f"    fix: {reason.error.fix}")
        elif reason.fix:
            lines.append(f"    fix: {reason.fix}")
        for held in reason.peers[:SHOWN]:
            place = f" on {held.job}/{held.task}" if held.job else ""
            lines.append(f"    {held.peer} {held.state}{place}{_for(held.since, now)}")
        if len(reason.peers) > SHOWN:
            lines.append(f"    and {len(reason.peers) - SHOWN} more")
    return lines


_PAST = frozenset[Code]({"refused", "failed", "killed", "stopped", "completed"})
"""Reasons that happened, where others last."""


def _ago(at: float | None, now: float) -> str:
    return "" if at is None else f", {duration(now - at)} ago"


def _for(since: float | None, now: float) -> str:
    return "" if since is None else f", for {duration(now - since)}"
