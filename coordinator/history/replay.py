"""Replay of the log: what each entry changed, and whether log, snapshots and nodes agree. Pure.

A :class:`Replay` runs the decisions and keeps the nodes that they make, so it can report what each event changed. A
:class:`Verifier` checks a whole log against the invariants, the snapshots and the nodes in ZooKeeper. A leader may have
written more nodes while they were read; see :class:`Stand`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from coordinator.core.decide import Undecided, decide
from coordinator.core.invariants import check
from coordinator.core.projection import project
from coordinator.core.state import State
from coordinator.core.stored_state import decode_state, encode_state, same
from sardonyx.core import node_paths
from sardonyx.core.effects import Delete, Effect, TreeEffect
from sardonyx.core.errors import InternalError
from sardonyx.core.events import AnyEvent, happened
from sardonyx.core.notes import Assignment, JobNote, PeerNote, TaskNote

UNHURRIED = 100
"""Peers and tasks up to which the invariants are checked after every event. A larger state is checked after every few events, so
that the checks take about as long as the replay."""

Snapshots = Callable[[int], bytes | None]
"""Finds the bytes of the snapshot after an event; None if there is none."""


Note = PeerNote | JobNote | TaskNote
"""What the status node of a peer, a job or a task holds."""


class Change(NamedTuple):
    """A node before and after an event; None: the node did not exist, or does not exist any more."""

    path: str
    before: bytes | None
    after: bytes | None
    was: Note | None
    """``before`` as a note; None also for other nodes than those of peers' states, jobs' status and tasks."""
    now: Note | None
    """The same of ``after``."""


class Decided(NamedTuple):
    """An event and its decision. ``held``: the assignment that the event's peer had before it."""

    n: int
    event: AnyEvent
    effects: list[Effect]
    changes: list[Change]
    held: Assignment | None = None

    def peer_note(self, peer: str) -> PeerNote | None:
        """The peer's note after the event; None if the event did not change it, or if the peer is dead."""
        note = self._now(node_paths.peer_state(peer))
        return note if isinstance(note, PeerNote) else None

    def job_note(self, job: str) -> JobNote | None:
        """The job's note after the event; None if the event did not change it, or deleted the job."""
        note = self._now(node_paths.job_status(job))
        return note if isinstance(note, JobNote) else None

    def task_note(self, job: str, task: str) -> TaskNote | None:
        """The task's note after the event; None if the event did not change it, or deleted its job."""
        note = self._now(node_paths.job_task(job, task))
        return note if isinstance(note, TaskNote) else None

    def _now(self, path: str) -> Note | None:
        return next((change.now for change in self.changes if change.path == path), None)


class Replay:
    """Replays decisions from a state, which it changes, and keeps the nodes that they make."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.zk = project(state)
        """Path -> data of every node that the decisions so far have made."""
        self._broken: Undecided | None = None

    def step(self, n: int, event: AnyEvent) -> Decided:
        """Decide on the next event.

        Raises:
            InternalError: ``SX-INTERNAL-LOG-GAP``: it is not the next event; and as
            :func:`coordinator.core.decide.decide`: after an Undecided, each step raises it.
        """
        if self._broken is not None:
            raise self._broken
        if n != self.state.n + 1:
            raise missing_entry(self.state.n + 1)
        peer = self.state.peers.get(getattr(happened(event), "peer", ""))
        held = None if peer is None else peer.assignment
        try:
            effects = decide(self.state, n, event)
        except Undecided as error:
            self._broken = error
            raise
        changes = []
        for effect in effects:
            if not isinstance(effect, TreeEffect):
                continue
            before = self.zk.pop(effect.path, None)
            after = None if isinstance(effect, Delete) else effect.data
            if after is not None:
                self.zk[effect.path] = after
            was = None if before is None else _note_in(effect.path, before)
            now = None if after is None else _note_at(self.state, effect.path)
            changes.append(Change(effect.path, before, after, was, now))
        return Decided(n, event, effects, changes, held)

    def steps(self, entries: Iterable[tuple[int, AnyEvent]]) -> Iterator[Decided]:
        """Decide on a part of the log, one event at a time."""
        for n, event in entries:
            yield self.step(n, event)


def differences(before: dict[str, bytes], after: dict[str, bytes]) -> list[Change]:
    """What differs between the nodes of two states, by path."""
    return [
        Change(
            path,
            was := before.get(path),
            now := after.get(path),
            None if was is None else _note_in(path, was),
            None if now is None else _note_in(path, now),
        )
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


def _note_at(state: State, path: str) -> Note | None:
    """The note for a path, made from the state."""
    place = place_of(path)
    if place.peer:
        return state.peers[place.peer].note()
    job = state.jobs[place.job]
    if place.task:
        return job.tasks[place.task].note()
    return job.note() if place.part == "status" else None


def _note_in(path: str, data: bytes) -> Note | None:
    """The note that the node at a path holds."""
    place = place_of(path)
    if place.peer:
        return msgspec.json.decode(data, type=PeerNote)
    if place.task:
        return msgspec.json.decode(data, type=TaskNote)
    return msgspec.json.decode(data, type=JobNote) if place.part == "status" else None


def missing_entry(n: int) -> InternalError:
    """The error for a log with a gap."""
    return InternalError(
        "SX-INTERNAL-LOG-GAP",
        f"the log has no entry {n}, and no snapshot stands for it",
        cause="the tree was edited, or restored in part",
        fix="restore the whole deployment in ZooKeeper, or start a fresh one under another name",
        where={"n": n},
    )


class Stand(NamedTuple):
    """The nodes that decisions made, as they were read, possibly while a leader wrote.

    ``low``: the checkpoint before the first node was read, so every node is at least as new. ``high``: the last log
    entry
    after the last node was read, so no node is newer. A node that the events in between changed may be as it was
    before or
    after any of them. Every other node must be exactly as it was after event ``low``.
    """

    low: int
    high: int
    nodes: dict[str, bytes]


FindingKind = Literal["log", "rule", "snapshot", "tree"]


class Finding(msgspec.Struct, frozen=True):
    """A contradiction. ``n``: the event after which it was found."""

    n: int
    kind: FindingKind
    message: str


class Verdict(msgspec.Struct):
    """The result of a verification."""

    first: int
    """The first event that was replayed."""
    last: int = 0
    events: int = 0
    snapshots: int = 0
    """How many were compared."""
    nodes: int = 0
    """How many nodes were compared; 0 if the comparison did not take place."""
    moving: int = 0
    """Nodes that decisions changed while they were read."""
    findings: list[Finding] = []

    @property
    def ok(self) -> bool:
        return not self.findings


class Verifier:
    """Replays a log and checks everything. Stops at the first event that breaks an invariant, since later states follow from it.

    Args:
        state: the state before the log's first event; changed in place.
        stand: the nodes to compare with, read before the log; None: compare no nodes.
        snapshots: finds the other snapshots.
        thorough: check all invariants after every event, even in a large state.
    """

    def __init__(
        self, state: State, stand: Stand | None = None, snapshots: Snapshots | None = None, *, thorough: bool = False
    ) -> None:
        self._replay = Replay(state)
        self._stand = stand
        self._snapshots = snapshots
        self._thorough = thorough
        self._sound = encode_state(state)
        """The last state for which all invariants were checked."""
        self._since: list[tuple[int, AnyEvent]] = []
        """The events after that state."""
        self._every = 1
        self._base: dict[str, bytes] = {}
        self._moved: dict[str, list[bytes | None]] = {}
        self.verdict = Verdict(first=state.n + 1, last=state.n)
        problem = _broken_rule(self._replay)
        if problem:
            self._find(state.n, "rule", problem)
        self._note_tree(state.n)

    @property
    def state(self) -> State:
        """The state after the last event."""
        return self._replay.state

    def run(self, entries: Iterable[tuple[int, AnyEvent]]) -> Iterator[int]:
        """Replay these events and yield the number of each; stop early at a broken invariant."""
        for n, event in entries:
            if not self.take(n, event):
                return
            yield n

    def take(self, n: int, event: AnyEvent) -> bool:
        """Replay the next event; returns whether to go on."""
        verdict = self.verdict
        try:
            decided = self._replay.step(n, event)
        except Exception as error:  # noqa: BLE001 - every error of a decision is a finding
            self._find(n, "log", _words(error))
            return False
        verdict.last, verdict.events = n, verdict.events + 1
        self._since.append((n, event))
        if len(self._since) >= self._every and not self._check():
            return False
        if self._stand is not None and self._stand.low < n <= self._stand.high:
            for change in decided.changes:
                self._moved.setdefault(change.path, []).append(change.after)
        self._note_tree(n)
        self._compare_snapshot(n)
        return True

    def end(self) -> Verdict:
        """Check the invariants at the end, and the nodes."""
        sound = all(finding.kind not in ("log", "rule") for finding in self.verdict.findings)
        if sound and self._check() and self._stand is not None:
            self._compare_tree(self._stand)
        return self.verdict

    # Underneath

    def _check(self) -> bool:
        """Check every invariant now; if one is broken, find the event that broke it."""
        if not self._since:
            return True
        problem = _broken_rule(self._replay)
        if problem is None:
            state = self._replay.state
            size = len(state.peers) + sum(len(job.tasks) for job in state.jobs.values())
            self._every = 1 if self._thorough else max(1, size // UNHURRIED)
            if self._every > 1:
                self._sound = encode_state(state)
            self._since.clear()
            return True
        self._find(*self._pinned(problem))
        return False

    def _pinned(self, problem: str) -> tuple[int, FindingKind, str]:
        if len(self._since) > 1:
            again = Replay(decode_state(self._sound))
            for n, event in self._since:
                again.step(n, event)
                earlier = _broken_rule(again)
                if earlier:
                    return n, "rule", earlier
        return self._since[-1][0], "rule", problem

    def _compare_snapshot(self, n: int) -> None:
        found = self._snapshots(n) if self._snapshots is not None else None
        if found is None:
            return
        self.verdict.snapshots += 1
        if not found or not same(decode_state(found), self._replay.state):
            self._find(n, "snapshot", f"snapshot {n} is not what the log gives")

    def _note_tree(self, n: int) -> None:
        if self._stand is not None and n == self._stand.low:
            self._base = dict(self._replay.zk)

    def _compare_tree(self, stand: Stand) -> None:
        if self.verdict.last < stand.high or self.verdict.first > stand.low + 1:
            self._find(
                self.verdict.last,
                "log",
                f"the nodes reflect events up to {stand.high}, which the log does not all hold",
            )
            return
        self.verdict.nodes, self.verdict.moving = len(stand.nodes), len(self._moved)
        for path in sorted({*self._base, *self._moved, *stand.nodes}):
            found = stand.nodes.get(path)
            allowed = [self._base.get(path), *self._moved.get(path, ())]
            if found in allowed:
                continue
            if found is None:
                what = "is missing in ZooKeeper"
            elif set(allowed) == {None}:
                what = "exists in ZooKeeper, but no decision created it"
            else:
                what = "differs from what was decided"
            self._find(stand.low, "tree", f"{path} {what}")

    def _find(self, n: int, kind: FindingKind, message: str) -> None:
        self.verdict.findings.append(Finding(n, kind, message))


def _broken_rule(replay: Replay) -> str | None:
    """A description of the invariant that a state breaks; None if the state keeps all of them."""
    try:
        check(replay.state)
    except Exception as error:  # noqa: BLE001 - a check that fails is a finding, too
        return _words(error)
    wanted = project(replay.state)
    if wanted == replay.zk:
        return None
    paths = sorted(path for path in {*wanted, *replay.zk} if wanted.get(path) != replay.zk.get(path))
    return f"the effects do not make the nodes that follow from the state: {', '.join(paths[:3])}"


def _words(error: Exception) -> str:
    if isinstance(error, InternalError):
        place = " ".join(f"{key}={value}" for key, value in error.where.items())
        return f"{error.code}: {error.message}" + (f" ({place})" if place else "")
    return f"{type(error).__name__}: {error}"


# The peers and jobs that an event concerns


class Place(NamedTuple):
    """The peer, job or task to which a node belongs. ``part``: which of a job's nodes."""

    peer: str = ""
    job: str = ""
    task: str = ""
    part: str = ""


def place_of(path: str) -> Place:
    """The peer, job or task to which the node at a path belongs."""
    _, top, name, *rest = path.split("/")
    if f"/{top}" == node_paths.PEER_STATE:
        return Place(peer=name)
    if len(rest) == 2:
        return Place(job=name, task=rest[1])
    return Place(job=name, part=rest[0] if rest else "")


def concerned_peers(decided: Decided) -> set[str]:
    """The peers that an event names or changed."""
    return {
        getattr(happened(decided.event), "peer", ""),
        *(place_of(change.path).peer for change in decided.changes),
    } - {""}


def concerned_jobs(decided: Decided) -> set[str]:
    """The jobs that an event names or changed, and the job for which its peer worked before the event."""
    named = {getattr(event, "job", "") for event in (decided.event, happened(decided.event))}
    jobs = {*named, *(place_of(change.path).job for change in decided.changes)}
    if decided.held is not None:
        jobs.add(decided.held.job)
    return jobs - {""}
