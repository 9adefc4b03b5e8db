"""Which nodes in ZooKeeper a state has, and what they hold. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from coordinator.core.state import Job, State
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete, Set, TreeEffect
from sardonyx.core.notes import JobNote, LinksNote, PeerNote, TaskNote
from sardonyx.core.spec import encode_spec

_notes = msgspec.json.Encoder(order="deterministic")


def encode_note(note: PeerNote | JobNote | TaskNote | LinksNote) -> bytes:
    """A node's data: canonical JSON."""
    return _notes.encode(note)


def project(state: State) -> dict[str, bytes]:
    """Every node that the coordinator's decisions create, path -> data, parents before children."""
    zk: dict[str, bytes] = {}
    for name, peer in state.peers.items():
        note = peer.note()
        if note is not None:
            zk[node_paths.peer_state(name)] = encode_note(note)
    for name, job in state.jobs.items():
        zk |= job_nodes(name, job)
    return zk


def job_nodes(name: str, job: Job) -> dict[str, bytes]:
    """Every node of a job, path -> data, parents before children."""
    nodes = {
        node_paths.job(name): b"",
        node_paths.job_spec(name): encode_spec(job.spec),
        node_paths.job_status(name): encode_note(job.note()),
        node_paths.job_tasks(name): b"",
    }
    nodes |= {node_paths.job_task(name, task): encode_note(job.tasks[task].note()) for task in job.tasks}
    if job.facts is not None:
        nodes[node_paths.job_links(name)] = encode_note(LinksNote(job.facts, job.topics))
    return nodes


def repairs(paths: Iterable[str], found: Mapping[str, bytes], projected: Mapping[str, bytes]) -> list[TreeEffect]:
    """The effects that turn the nodes at these paths from what was found there into what is projected."""
    changes: list[TreeEffect] = []
    for path in paths:
        before, after = found.get(path), projected.get(path)
        if after is None:
            changes += [] if before is None else [Delete(path)]
        elif before is None:
            changes.append(Create(path, after))
        elif before != after:
            changes.append(Set(path, after))
    return changes
