"""Any past moment of a deployment, read from its log and snapshots in ZooKeeper. Read-only.

All functions work while a coordinator leads and compacts the log. Comparisons use nodes that existed at the same time.
If the leader compacts the log during a read, the functions read it again from its new beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

from coordinator.core.decide import decide
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state
from coordinator.history.export import EntryLine, Header, Mask, lines_of
from coordinator.history.replay import Decided, Finding, Replay, Stand, Verdict, Verifier, missing_entry
from coordinator.history.revisions import RevisionMade, revisions_of
from coordinator.history.timeline import Past, TimelineEvent
from coordinator.history.timeline import timeline_of as told
from coordinator.loop import event_log, snapshots
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import FORMAT, RULES, AnyEvent, WithSpec, happened
from sardonyx.zookeeper.session import ZooKeeperSession

STILL = 3
"""How often the nodes are read until no decision falls into the read; then they are compared as they are."""


class Kept(NamedTuple):
    """The entries that the log holds: numbers ``first`` to ``last``; it is empty if ``last`` is smaller."""

    first: int
    last: int


def kept(zk: ZooKeeperSession) -> Kept:
    """The range of entries that the log holds."""
    first = event_log.begins(zk)
    return Kept(first, max(event_log.last(zk), first - 1))


def until(zk: ZooKeeperSession, time: float) -> int:
    """The number of the last entry that was taken in at or before a time; that before the oldest kept one if there is none.

    Args:
        zk: a session with the deployment.
        time: seconds since 1970.
    """
    there = kept(zk)
    before, behind = there.first - 1, there.last + 1
    while behind - before > 1:
        middle = (before + behind) // 2
        entry = next(event_log.read_log(zk, middle), None)
        if entry is not None and entry[1].at <= time:
            before = middle
        else:
            behind = middle
    return before


def present(zk: ZooKeeperSession) -> State:
    """The state after the last entry."""
    found = snapshots.latest(zk)
    state = _first_state(zk) if found is None else decode_state(found[1])
    return _follow(state, event_log.read_log(zk, state.n + 1))


def advance(zk: ZooKeeperSession, state: State) -> list[AnyEvent]:
    """Bring a state to the end of the log, in place; gives the events since."""
    entries = list(event_log.read_log(zk, state.n + 1))
    _follow(state, entries)
    return [event for _, event in entries]


def at(zk: ZooKeeperSession, n: int) -> State:
    """The state after event ``n``; 0: before the first event.

    Raises:
        SardonyxError: ``SX-LOG-RANGE``: the log no longer holds the event, or it has not happened yet.
    """
    _in_range(n, kept(zk))
    return _state(zk, n)


def decided(zk: ZooKeeperSession, first: int, last: int | None = None) -> Iterator[Decided]:
    """The decisions on entries ``first`` to ``last``, or to the end of the log.

    Raises:
        SardonyxError: ``SX-LOG-RANGE``: the log does not hold ``first``.
    """
    for step in Following(zk, first).new():
        if last is not None and step.n > last:
            return
        yield step


class Following:
    """The log from a given entry on, replayed as it grows.

    Args:
        zk: the deployment.
        first: number of the first entry. One after the last existing entry: only new entries.

    Raises:
        SardonyxError: ``SX-LOG-RANGE``: the log does not hold ``first``.
    """

    def __init__(self, zk: ZooKeeperSession, first: int) -> None:
        _in_range(first - 1, kept(zk))
        self._zk = zk
        self._first = first
        self._replay = Replay(_base(zk, first - 1))

    def new(self) -> Iterator[Decided]:
        """The entries, from the first one on, that earlier calls did not return."""
        for n, event in event_log.read_log(self._zk, self._replay.state.n + 1):
            step = self._replay.step(n, event)
            if n >= self._first:
                yield step


def timeline(zk: ZooKeeperSession, job: str) -> list[TimelineEvent]:
    """The timeline of a job, from its submission (or from the oldest entry that the log holds) to its end.

    Reads and replays that part of the log. Empty for a purged job, and for a job that no coordinator has accepted yet.
    """
    while True:
        known = present(zk).jobs.get(job)
        if known is None:
            return []
        first = max(known.number, kept(zk).first)
        try:
            state = _state(zk, first - 1)
            before = state.jobs.get(job)
            return told(job, _past(zk, state), running=before is not None and not before.ended)
        except SardonyxError as error:
            if error.code != "SX-LOG-COMPACTED":  # the log was compacted while we read
                raise


def revisions(zk: ZooKeeperSession, job: str) -> list[RevisionMade]:
    """The changes of a job that were taken in, since its submission or the oldest entry that the log holds. Empty for a purged
    job.
    """
    while True:
        known = present(zk).jobs.get(job)
        if known is None:
            return []
        first = max(known.number, kept(zk).first)
        try:
            return revisions_of(job, _state(zk, first - 1), event_log.read_log(zk, first))
        except SardonyxError as error:
            if error.code != "SX-LOG-COMPACTED":  # the log was compacted while we read
                raise


def _past(zk: ZooKeeperSession, state: State) -> Iterator[Past]:
    replay = Replay(state)
    for n, entry in event_log.read_entries(zk, state.n + 1):
        yield Past(replay.step(n, entry.event), entry.leader)


def stand(zk: ZooKeeperSession) -> Stand:
    """The nodes that decisions made, and the range of events that they may reflect."""
    for _ in range(STILL):
        zk.sync()
        low = event_log.read_checkpoint(zk)
        nodes = _nodes(zk)
        found = Stand(low, max(event_log.last(zk), low), nodes)
        if found.low == found.high:
            break
    return found


def verify(
    zk: ZooKeeperSession, *, thorough: bool = False, told: Callable[[int, int], None] = lambda *_: None
) -> Verdict:
    """Check the whole log against the invariants, the snapshots and the nodes.

    Args:
        zk: the deployment.
        thorough: check every invariant after every event, also in a large state.
        told: called with the number of the event just replayed and the number of the last one.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: another version of Sardonyx wrote the log.
    """
    while True:
        first = event_log.begins(zk)
        verdict = _verify(zk, first, thorough=thorough, told=told)
        if verdict.ok or first == event_log.begins(zk):
            return verdict
        # a compaction during the read may be the cause of everything that was found


def _verify(zk: ZooKeeperSession, first: int, *, thorough: bool, told: Callable[[int, int], None]) -> Verdict:
    verdict = Verdict(first, last=first - 1)
    try:
        standing = stand(zk)
        begin = _base(zk, first - 1)
        verifier = Verifier(begin, standing, _snapshots(zk), thorough=thorough)
        # Replay up to the last entry at the start of this check; new entries may arrive during the read.
        entries = takewhile(lambda entry: entry[0] <= standing.high, event_log.read_log(zk, begin.n + 1))
        verdict = verifier.verdict
        for n in verifier.run(entries):
            told(n, standing.high)
        return verifier.end()
    except SardonyxError as error:
        if error.code not in ("SX-LOG-COMPACTED", "SX-INTERNAL-LOG-GAP"):
            raise
        verdict.findings.append(Finding(verdict.last, "log", f"{error.code}: {error.message}"))
        return verdict


def _snapshots(zk: ZooKeeperSession) -> Callable[[int], bytes | None]:
    """A function that finds a snapshot by number: empty if it is damaged, None if the leader has removed it meanwhile."""
    known = set(snapshots.complete(zk))

    def find(n: int) -> bytes | None:
        if n not in known:
            return None
        try:
            found = snapshots.base(zk, n)
        except SardonyxError as error:
            if error.code != "SX-LOG-COMPACTED":
                raise
            return None
        if found is not None and found[0] == n:
            return found[1]
        return b"" if n in snapshots.complete(zk) else None

    return find


def export(zk: ZooKeeperSession, version: str, first: int | None = None) -> Iterator[bytes]:
    """The lines of a file with the log from entry ``first`` on (everything it holds if None), without secrets.

    Args:
        zk: the deployment.
        version: the version of Sardonyx, for the header.
        first: the first entry; the file holds the result of all earlier entries as a state.

    Raises:
        SardonyxError: ``SX-LOG-RANGE``, ``SX-LOG-COMPACTED``.
    """
    standing = stand(zk)
    first = event_log.begins(zk) if first is None else first
    if first > standing.low + 1:  # the nodes belong to an earlier event, so nothing could compare them
        raise _out_of_range(first, Kept(event_log.begins(zk), standing.low + 1))
    return file_of(zk, version, first, standing)


def file_of(zk: ZooKeeperSession, version: str, first: int, standing: Stand) -> Iterator[bytes]:
    """The lines of a file with the log from entry ``first`` to the last one of which ``standing`` may be. Raises as
    :func:`export`.
    """
    base = at(zk, first - 1) if first > event_log.FIRST else None
    mask = Mask()
    for job in base.jobs.values() if base is not None else ():
        mask.learn_job(job)
    for entry in _entries(zk, first, standing.high):
        event = happened(entry.event)
        if isinstance(event, WithSpec):
            mask.learn(event.spec)
    header = Header(
        format=FORMAT,
        deployment=_deployment(zk),
        first=first,
        last=standing.high,
        checkpoint=standing.low,
        version=version,
        rules=(event_log.first_rules(zk) or RULES) if base is None else base.rules,
    )
    yield from lines_of(header, base, _entries(zk, first, standing.high), standing.nodes, mask)


def _entries(zk: ZooKeeperSession, first: int, last: int) -> Iterator[EntryLine]:
    expected = first
    for n, entry in event_log.read_entries(zk, first):
        if n > last:
            break
        if n != expected:  # a compaction removed the entry before this read
            raise missing_entry(expected)
        yield EntryLine(n, entry.event, entry.request)
        expected += 1


# Underneath


def _deployment(zk: ZooKeeperSession) -> str:
    return zk.root.rpartition("/")[2]


def _first_state(zk: ZooKeeperSession) -> State:
    """The state before the first entry of the log."""
    return new_state(_deployment(zk), event_log.first_rules(zk) or RULES)


def _base(zk: ZooKeeperSession, n: int) -> State:
    """The newest state that is stored at or before event ``n``."""
    found = snapshots.base(zk, n) if n >= event_log.FIRST else None
    return _first_state(zk) if found is None else decode_state(found[1])


def _state(zk: ZooKeeperSession, n: int) -> State:
    """The state after event ``n``, which the log must hold."""
    state = _base(zk, n)
    return _follow(state, takewhile(lambda entry: entry[0] <= n, event_log.read_log(zk, state.n + 1)))


def _follow(state: State, entries: Iterable[tuple[int, AnyEvent]]) -> State:
    for n, event in entries:
        if n != state.n + 1:
            raise missing_entry(state.n + 1)
        decide(state, n, event)
    return state


def _in_range(n: int, there: Kept) -> None:
    if not there.first - 1 <= n <= there.last:
        raise _out_of_range(n if n > there.last else n + 1, there)


def _out_of_range(n: int, there: Kept) -> SardonyxError:
    if there.last < there.first:
        return SardonyxError(
            "SX-LOG-RANGE",
            f"the log has no entry {n}: it is empty",
            cause="nothing has happened in this deployment yet",
            fix="check the deployment (--deployment); a coordinator must have led it",
        )
    gone = there.first > 1 and n < there.first
    cause = "older ones were compacted away (coordinator.keep_log)" if gone else "that has not happened yet"
    if n < 1 and not gone:
        cause = "it begins with entry 1, and nothing had happened in this deployment before"
    return SardonyxError(
        "SX-LOG-RANGE",
        f"the log has no entry {n}; it holds entries {there.first} to {there.last}",
        cause=cause,
        fix=f"name one of {there.first} to {there.last}"
        + ("; coordinator.log_archive keeps older ones" if gone else ""),
        where={"n": n, "first": there.first, "last": there.last},
    )


def _nodes(zk: ZooKeeperSession) -> dict[str, bytes]:
    """Every node below ``/peer-state`` and ``/job``, with its data."""
    paths = [node_paths.peer_state(name) for name in zk.children(node_paths.PEER_STATE)]
    for job in zk.children(node_paths.JOB):
        below = [f"{node_paths.job(job)}/{name}" for name in zk.children(node_paths.job(job))]
        tasks = [node_paths.job_task(job, name) for name in zk.children(node_paths.job_tasks(job))]
        paths += [node_paths.job(job), *below, *tasks]
    return zk.read_many(paths)
