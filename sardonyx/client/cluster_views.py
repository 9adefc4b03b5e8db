"""A whole deployment, and its virtual peers, as clients see them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sardonyx.client.views import JobView, job_view, laid_out
from sardonyx.core.events import PeerState
from sardonyx.core.notes import PeerNote, PulseNote

if TYPE_CHECKING:
    from coordinator.core.state import State


class PeerView(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual peer."""

    id: str
    state: PeerState
    job: str | None = None
    task: str | None = None
    slot: int | None = None
    host: str = ""
    pid: int = 0
    daemon: str = ""
    since: float | None = None
    """When it entered its state, seconds since 1970; None if that is not known."""
    version: str = ""
    tags: tuple[str, ...] = ()
    drained: bool = False
    """Whether a user has taken it out: it gets no further task."""


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """A whole deployment after one event of its log."""

    n: int
    at: float | None
    """When the coordinator took that event in, seconds since 1970."""
    asked: float | None = None
    """The moment that was asked for, seconds since 1970; None: the event was."""
    deployment: str
    peers: list[PeerView]
    jobs: list[JobView]
    """The latest first. Only tasks with final counts show rows."""


def cluster_view(state: State, at: float | None = None, asked: float | None = None) -> ClusterView:
    """Show the deployment as it is in a state of the coordinator."""
    jobs = [
        job_view(
            name,
            job.spec,
            laid_out(job.spec, state.deployment, name),
            job.note(),
            {task_name: task.note() for task_name, task in job.tasks.items()},
        )
        for name, job in state.jobs.items()
    ]
    peers = [
        peer_view(
            name,
            note,
            PulseNote(peer.daemon, peer.host, peer.pid, peer.version, peer.format, tuple(sorted(peer.tags))),
            peer.since,
        )
        for name, peer in sorted(state.peers.items())
        if (note := peer.note()) is not None
    ]
    return ClusterView(n=state.n, at=at, asked=asked, deployment=state.deployment, peers=peers, jobs=jobs[::-1])


def peer_view(peer: str, note: PeerNote, pulse: PulseNote | None, since: float | None = None) -> PeerView:
    """One peer from its state node and, while it lives, its pulse; ``since`` from the log."""
    assignment, pulse = note.assignment, pulse or PulseNote()
    return PeerView(
        id=peer,
        state=note.state,
        job=assignment.job if assignment else None,
        task=assignment.task if assignment else None,
        slot=assignment.slot if assignment else None,
        host=pulse.host,
        pid=pulse.pid,
        daemon=pulse.daemon,
        since=since,
        version=pulse.version,
        tags=pulse.tags,
        drained=note.drained,
    )
