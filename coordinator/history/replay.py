"""The log played again: what each entry decided, and whether all that is kept fits together. Pure.

A :class:`Replay` is the deciding core with the tree that it makes beside it, so that of every event can be told what it
changed. A :class:`Verifier` holds a whole log against the rules, the snapshots and the nodes that stand in ZooKeeper; the
nodes may have been read while a leader wrote on, see :class:`Stand`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from coordinator.core.decide import decide
from coordinator.core.state import State, check, decode_state, encode_state, project
from sardonyx.core import node_paths
from sardonyx.core.errors import InternalError
from sardonyx.core.events import AnyEvent, Assignment, Delete, Effect, JobNote, PeerNote, TaskNote, TreeEffect

UNHURRIED = 100
"""Peers and tasks up to which the rules are checked after every event; of a larger state after every few, so that the
checks take about as long as the replay."""

Snapshots = Callable[[int], bytes | None]
"""The bytes of the snapshot after an event; None if there is none."""


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
    """An event, and what was decided about it. ``held``: what the peer that it is about worked on when it came."""

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
    """The deciding core, going on from a state (which it changes), with the tree as its decisions make it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.zk = project(state)
        """Path -> data of every node that the decisions up to now have made."""
        self._notes = {path: note for path in self.zk if (note := _note_at(state, path)) is not None}

    def step(self, n: int, event: AnyEvent) -> Decided:
        """Decide the next event.

        Raises:
            InternalError: ``SX-INTERNAL-LOG-GAP``: it is not the next one; and as :func:`coordinator.core.decide.decide`.
        """
        if n != self.state.n + 1:
            raise missing_entry(self.state.n + 1)
        peer = self.state.peers.get(getattr(event, "peer", ""))
        held = None if peer is None else peer.assignment
        effects = decide(self.state, n, event)
        changes = []
        for effect in effects:
            if not isinstance(effect, TreeEffect):
                continue
            before = self.zk.pop(effect.path, None)
            after = None if isinstance(effect, Delete) else effect.data
            if after is not None:
                self.zk[effect.path] = after
            was = self._notes.pop(effect.path, None)
            now = None if after is None else _note_at(self.state, effect.path)
            if now is not None:
                self._notes[effect.path] = now
            changes.append(Change(effect.path, before, after, was, now))
        return Decided(n, event, effects, changes, held)

    def steps(self, entries: Iterable[tuple[int, AnyEvent]]) -> Iterator[Decided]:
        """Decide a stretch of the log, one event at a time."""
        for n, event in entries:
            yield self.step(n, event)


def _note_at(state: State, path: str) -> Note | None:
    """The note that stands at a path, made from the state."""
    place = place_of(path)
    if place.peer:
        return state.peers[place.peer].note()
    job = state.jobs[place.job]
    if place.task:
        return job.tasks[place.task].note()
    return job.note() if place.part == "status" else None


def missing_entry(n: int) -> InternalError:
    """The error for a log with a hole."""
    return InternalError(
        "SX-INTERNAL-LOG-GAP",
        f"the log has no entry {n}, and no snapshot stands for it",
        cause="the tree was edited, or restored in part",
        fix="restore the whole deployment in ZooKeeper, or start a fresh one under another name",
        where={"n": n},
    )


class Stand(NamedTuple):
    """The nodes of the decisions as they were read, maybe while a leader wrote.

    ``low``: the checkpoint before the first was read, so all of them are at least as new as that. ``high``: the last entry
    in the log after the last was read, so none is newer. What the events between changed may be found as it was before
    or after any of them; all else must be exactly as after event ``low``.
    """

    low: int
    high: int
    nodes: dict[str, bytes]


FindingKind = Literal["log", "rule", "snapshot", "tree"]


class Finding(msgspec.Struct, frozen=True):
    """Something that does not fit. ``n``: the event after which."""

    n: int
    kind: FindingKind
    message: str


class Verdict(msgspec.Struct):
    """What holding a log against everything has given."""

    first: int
    """The first event that was played."""
    last: int = 0
    events: int = 0
    snapshots: int = 0
    """How many were compared."""
    nodes: int = 0
    """How many nodes were compared; 0 if it did not come to that."""
    moving: int = 0
    """Nodes that were decided on while they were read."""
    findings: list[Finding] = []

    @property
    def ok(self) -> bool:
        return not self.findings


class Verifier:
    """Plays a log and looks at everything. Ends at the first event that breaks a rule: what follows from it says nothing.

    Args:
        state: where the log begins; changed.
        stand: the nodes to compare with, read before the log was; None: none.
        snapshots: what other snapshots there are.
        thorough: check all rules after every event, however large the state is.
    """

    def __init__(
        self, state: State, stand: Stand | None = None, snapshots: Snapshots | None = None, *, thorough: bool = False
    ) -> None:
        self._replay = Replay(state)
        self._stand = stand
        self._snapshots = snapshots
        self._thorough = thorough
        self._sound = encode_state(state)
        """The last state of which all rules are known to hold."""
        self._since: list[tuple[int, AnyEvent]] = []
        """Events after that."""
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
        """Play these events, giving the number of each after it was; ends early when something is broken for good."""
        for n, event in entries:
            if not self.take(n, event):
                return
            yield n

    def take(self, n: int, event: AnyEvent) -> bool:
        """Play the next event. Whether it makes sense to go on."""
        verdict = self.verdict
        try:
            decided = self._replay.step(n, event)
        except Exception as error:  # noqa: BLE001 - whatever a decision raises is what was looked for
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
        """Look at what is left to look at: the rules at the end, and the tree."""
        sound = all(finding.kind not in ("log", "rule") for finding in self.verdict.findings)
        if sound and self._check() and self._stand is not None:
            self._compare_tree(self._stand)
        return self.verdict

    # Underneath

    def _check(self) -> bool:
        """Check every rule now; if one is broken, find the event that broke it."""
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
        if found != encode_state(self._replay.state):
            self._find(n, "snapshot", f"snapshot {n} is not what the log gives")

    def _note_tree(self, n: int) -> None:
        if self._stand is not None and n == self._stand.low:
            self._base = dict(self._replay.zk)

    def _compare_tree(self, stand: Stand) -> None:
        if self.verdict.last < stand.high or self.verdict.first > stand.low + 1:
            self._find(
                self.verdict.last, "log", f"the tree is that of events up to {stand.high}, which are not all there"
            )
            return
        self.verdict.nodes, self.verdict.moving = len(stand.nodes), len(self._moved)
        for path in sorted({*self._base, *self._moved, *stand.nodes}):
            found = stand.nodes.get(path)
            allowed = [self._base.get(path), *self._moved.get(path, ())]
            if found in allowed:
                continue
            if found is None:
                what = "is missing in the tree"
            elif set(allowed) == {None}:
                what = "stands in the tree, and no decision put it there"
            else:
                what = "is not what was decided"
            self._find(stand.low, "tree", f"{path} {what}")

    def _find(self, n: int, kind: FindingKind, message: str) -> None:
        self.verdict.findings.append(Finding(n, kind, message))


def _broken_rule(replay: Replay) -> str | None:
    """The rule that a state breaks, in words; None if it keeps all."""
    try:
        check(replay.state)
    except Exception as error:  # noqa: BLE001 - a check that cannot even look has found something
        return _words(error)
    wanted = project(replay.state)
    if wanted == replay.zk:
        return None
    paths = sorted(path for path in {*wanted, *replay.zk} if wanted.get(path) != replay.zk.get(path))
    return f"the effects do not make the tree that follows from the state: {', '.join(paths[:3])}"


def _words(error: Exception) -> str:
    if isinstance(error, InternalError):
        place = " ".join(f"{key}={value}" for key, value in error.where.items())
        return f"{error.code}: {error.message}" + (f" ({place})" if place else "")
    return f"{type(error).__name__}: {error}"


# Whom an event is about


class Place(NamedTuple):
    """Whose node a path is. ``part``: which of a job's nodes."""

    peer: str = ""
    job: str = ""
    task: str = ""
    part: str = ""


def place_of(path: str) -> Place:
    """Whose node stands at a path."""
    _, top, name, *rest = path.split("/")
    if f"/{top}" == node_paths.PEER_STATE:
        return Place(peer=name)
    if len(rest) == 2:
        return Place(job=name, task=rest[1])
    return Place(job=name, part=rest[0] if rest else "")


def concerned_peers(decided: Decided) -> set[str]:
    """The peers that an event is about, or that it changed."""
    return {getattr(decided.event, "peer", ""), *(place_of(change.path).peer for change in decided.changes)} - {""}


def concerned_jobs(decided: Decided) -> set[str]:
    """The jobs that an event is about, that it changed, or that its peer worked for when it came."""
    jobs = {getattr(decided.event, "job", ""), *(place_of(change.path).job for change in decided.changes)}
    if decided.held is not None:
        jobs.add(decided.held.job)
    return jobs - {""}
