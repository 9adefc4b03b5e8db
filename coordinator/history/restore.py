"""Restores a deployment from a backup into ZooKeeper, as one act that may be repeated.

What must be durable first:

- ``/restore`` exists before anything else is written, and goes in the last transaction. While it exists, no coordinator leads
  and no backup is taken. So a restore that was interrupted is noticed; the next one removes what it left, and begins anew.
- The restore leads: it is first in the election, alone, and each of its writes checks the epoch. A coordinator that starts
  meanwhile stands behind it.
- What becomes of jobs that cannot go on is entries of the log, after those of the backup. The next leader decides on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from coordinator.core.projection import project
from coordinator.core.restoring import JobOutcome, KafkaTraces, events_of, outcomes
from coordinator.core.state import State
from coordinator.core.stored_state import encode_state
from coordinator.history import reader
from coordinator.history.backup import BackupFile
from coordinator.loop import snapshots
from coordinator.loop.election import Candidate, Leadership, identity
from coordinator.loop.event_log import FIRST, Batch, Entry
from coordinator.loop.pipeline import WritePipeline
from sardonyx.core import node_paths
from sardonyx.core.claims import Claims
from sardonyx.core.effects import Create, Delete, Set
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import FORMAT, AnyEvent, LettersClaimed, RulesRaised
from sardonyx.core.notes import CandidateNote, EpochNote
from sardonyx.core.text import counted
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, Operation, SetIf, chunked

EPOCHS = 1_000
"""How many elections after the backup are allowed for: ``/epoch`` is set more often than the lost one can have been, so a
leader of the lost deployment that still runs cannot take the new one for its own."""

FEW = 3
_CLEARED = (
    node_paths.LOG,
    node_paths.SNAPSHOT,
    node_paths.JOB,
    node_paths.PEER_STATE,
    node_paths.SENTINEL,
    node_paths.REDO,
)


class RestorePlan(msgspec.Struct):
    """What a restore will write besides the backup itself."""

    outcomes: list[JobOutcome]
    events: list[AnyEvent]
    """Entries that follow those of the backup."""
    nodes: dict[str, bytes]
    """Code, claims on dead letters, and votes."""
    letters: list[tuple[str, str]]
    """Jobs and tasks with dead letters that may have been redone since the backup."""


def plan(
    backup: BackupFile, traces: Mapping[str, KafkaTraces], letters: Mapping[tuple[str, str], int], at: float
) -> RestorePlan:
    """Compare a backup with Kafka. Pure.

    Args:
        backup: the file.
        traces: what Kafka holds of the jobs that were running.
        letters: by job and task, the offset after the last dead letter that the backup does not know as redone or dropped.
        at: now, seconds since 1970.
    """
    state, nodes = backup.state, dict(backup.nodes)
    found = outcomes(state, traces)
    for outcome in found:
        for link, elected in outcome.votes.items():
            nodes.setdefault(node_paths.sentinel(outcome.job, link), elected.encode())
    late: list[AnyEvent] = []
    for name, job in state.jobs.items():
        for task, known in job.tasks.items():
            claims = _claims(nodes, name, task)
            if claims.letters > known.claimed:  # a claim was made after the last entry of the backup
                late.append(LettersClaimed(at=at, job=name, task=task, letters=claims.letters))
    for (name, task), end in letters.items():
        claims = msgspec.structs.replace(_claims(nodes, name, task), restored=end)
        nodes[node_paths.redo(name, task)] = msgspec.json.encode(claims)
    return RestorePlan(found, [*events_of(state, found, at), *late], nodes, list(letters))


def claimed(backup: BackupFile) -> dict[tuple[str, str], int]:
    """By job and task, the first dead letter that no claim in the backup covers."""
    return {
        (name, task): _claims(backup.nodes, name, task).next
        for name, job in backup.state.jobs.items()
        for task in job.tasks
    }


def _claims(nodes: Mapping[str, bytes], job: str, task: str) -> Claims:
    data = nodes.get(node_paths.redo(job, task))
    return Claims() if data is None else msgspec.json.decode(data, type=Claims)


def obstacle(zk: ZooKeeperSession, backup: BackupFile) -> SardonyxError | None:
    """Why the backup cannot be restored into a deployment as it stands; None if it can.

    The deployment must be the one of the backup, without a coordinator and without jobs. The remains of an interrupted
    restore, and what coordinators and peers write that find nothing, may stand there; they are replaced.
    """
    zk.sync()
    deployment = zk.root.rpartition("/")[2]
    if backup.header.deployment != deployment:
        return _refused(
            f"it is a backup of deployment {backup.header.deployment}, and this is {deployment}",
            "the names of topics hold the name of their deployment",
            f"give --deployment {backup.header.deployment}",
        )
    if places := zk.children(node_paths.ELECTION):
        return _led(zk, places)
    alive = sorted(set(zk.children(node_paths.PULSE)) & backup.state.peers.keys())
    if alive:
        return _refused(
            f"{counted(len(alive), 'peer')} of the backup {'is' if len(alive) == 1 else 'are'} alive: {_some(alive)}",
            "the deployment has not been lost, or was lost only in part",
            "stop all peers and coordinators first",
        )
    if zk.read(node_paths.RESTORE) is not None:
        return None
    jobs = list(reader.present(zk).jobs)
    if jobs:
        return _refused(
            f"deployment {deployment} has {counted(len(jobs), 'job')}: {_some(jobs)}",
            "a restore replaces everything, and nothing tells which of the two counts",
            f"take a backup of it, delete the node {zk.root} in ZooKeeper, and restore again",
        )
    return None


def restore(zk: ZooKeeperSession, backup: BackupFile, wanted: RestorePlan) -> None:
    """Write the backup and the plan into ZooKeeper.

    Raises:
        SardonyxError: ``SX-RESTORE-REFUSED``: see :func:`obstacle`.
        Deposed, SessionLost, OutcomeUnknown, LeadershipEnded: interrupted. It may be repeated.
    """
    hindrance = obstacle(zk, backup)
    if hindrance is not None:
        raise hindrance
    candidate = Candidate(zk, zk.runtime.signal())
    places = zk.children(node_paths.ELECTION)
    if len(places) > 1:
        raise _led(zk, places)
    # It is the first in line, and gives way to none that comes now, of whatever release: that one would find no deployment.
    leadership = candidate.take()
    _mark(leadership, backup)
    for operations in chunked([Delete(path)] for path in _below_all(zk)):
        leadership.commit(operations)
    pipeline = WritePipeline(leadership, "restore")
    for operations in chunked([operation] for operation in _operations(zk, backup, wanted)):
        pipeline.submit(operations)
    pipeline.drain()
    header = backup.header
    if backup.base is not None:
        snapshots.write(leadership, header.first - 1, backup.base)
    if header.n:
        snapshots.write(leadership, header.n, encode_state(backup.state))
    _outdate(leadership, max(header.epoch, leadership.epoch), header.epoch_version + EPOCHS)
    leadership.commit([Set(node_paths.CHECKPOINT, str(header.n).encode()), Delete(node_paths.RESTORE)])


def _mark(leadership: Leadership, backup: BackupFile) -> None:
    there = leadership.zk.read(node_paths.RESTORE) is not None
    leadership.commit([(Set if there else Create)(node_paths.RESTORE, msgspec.json.encode(backup.header))])


def _below_all(zk: ZooKeeperSession) -> Iterator[str]:
    """The nodes that a restore replaces, children before parents."""
    for top in _CLEARED:
        levels = [[top]]
        while levels[-1]:
            found = zk.children_of(levels[-1])
            levels.append([f"{path}/{name}" for path, names in found.items() for name in names])
        for level in reversed(levels[1:]):
            yield from level


def _operations(zk: ZooKeeperSession, backup: BackupFile, wanted: RestorePlan) -> Iterator[Operation]:
    """All nodes but the snapshots, parents before children."""
    header, state = backup.header, backup.state
    if header.first > FIRST:
        yield Set(node_paths.LOG, str(header.first).encode())
    else:
        yield Set(node_paths.LOG, b"")
    added = ((n, Entry(event, leader=identity())) for n, event in enumerate(wanted.events, header.n + 1))
    yield from _log(chain(backup.entries(), added), header.rules)
    yield from (Create(path, data) for path, data in project(state).items())
    yield from (Create(node_paths.sentinels(name)) for name in _open(state))
    code = set(zk.children(node_paths.CODE))
    for path, data in sorted(wanted.nodes.items()):
        parent, _, name = path.rpartition("/")
        if parent == node_paths.CODE and name in code:
            continue
        if parent.startswith(f"{node_paths.SENTINEL}/") and parent.rpartition("/")[2] not in _open(state):
            continue
        yield Create(path, data)


def _open(state: State) -> list[str]:
    """The jobs whose readers elect sentinels."""
    return [name for name, job in state.jobs.items() if job.status == "running"]


def _log(entries: Iterable[tuple[int, Entry]], rules: int) -> Iterator[Operation]:
    """Nodes of the log, each with as many entries as one may hold, and their buckets. ``rules``: those of the first entry."""
    batch: list[Entry] = []
    first = size = 0
    bucket = -1
    for n, entry in entries:
        length = len(msgspec.json.encode(entry))
        raised = isinstance(entry.event, RulesRaised)
        if batch and (raised or size + length > ENTRY_LIMIT or n % node_paths.LOG_BUCKET == 0):
            yield _batch(first, batch, rules)
            batch, size = [], 0
        if isinstance(entry.event, RulesRaised):
            rules = entry.event.rules
        if n // node_paths.LOG_BUCKET != bucket:
            bucket = n // node_paths.LOG_BUCKET
            yield Create(node_paths.log_bucket(n))
        first = first if batch else n
        batch.append(entry)
        size += length
    if batch:
        yield _batch(first, batch, rules)


def _batch(first: int, entries: list[Entry], rules: int) -> Operation:
    data = msgspec.json.encode(Batch(FORMAT, entries, rules), order="deterministic")
    return Create(node_paths.log_batch(first), data)


def _outdate(leadership: Leadership, epoch: int, version: int) -> None:
    """Set ``/epoch`` to this epoch, and raise the node's version to at least this. We stay the leader."""
    note = msgspec.json.encode(EpochNote(epoch, identity(), "restore"))
    while leadership.version < version:
        last = min(version, leadership.version + EPOCHS)
        leadership.commit([SetIf(node_paths.EPOCH, note, before) for before in range(leadership.version, last)])
        leadership.version = last


def _led(zk: ZooKeeperSession, places: Iterable[str]) -> SardonyxError:
    found = zk.read_many(f"{node_paths.ELECTION}/{place}" for place in places)
    others = sorted({CandidateNote.read(data).name for data in found.values()} - {identity()})
    return _refused(
        f"a coordinator runs: {_some(others)}",
        "it would write to the deployment while it is restored; or another restore runs",
        "stop all coordinators, wait until their sessions have ended, and restore again",
    )


def _refused(why: str, cause: str, fix: str) -> SardonyxError:
    return SardonyxError("SX-RESTORE-REFUSED", f"the backup cannot be restored: {why}", cause=cause, fix=fix)


def _some(names: list[str]) -> str:
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")
