"""Snapshots of the state, which shorten a replay, and the compaction of the log in front of them.

What must be durable first:

- the parts of a snapshot, and all effects up to its moment, stand before its own node says how many parts they are and what
  they hash to: so one that was only half written is never taken for one;
- ``/log`` says where the log begins before anything in front of that is removed, so that a compaction is done for every
  reader at once, wherever it breaks off, and an entry that is missing for another reason is known as a hole.
"""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import msgspec
import structlog

from coordinator.loop.election import Leadership
from coordinator.loop.event_log import FIRST, begins, compacted, refuse_other_format, unreadable
from sardonyx.core import node_paths
from sardonyx.core.events import FORMAT, Create, Delete, Set
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.errors import TransactionFailed
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import Operation, chunked

PART = 512 * 1024
"""Bytes of one part of a snapshot."""

KEPT = 2
"""The latest, and the one before it, should the latest turn out unreadable."""

SPARSE = 10_000
"""Of every so many entries one snapshot is kept, for as long as the log behind it is: no moment is far from one."""

log = structlog.get_logger()


class SnapshotNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``/snapshot/<n>``, written last: what its parts make together."""

    format: int
    parts: int
    sha256: str


_notes = msgspec.json.Decoder(SnapshotNote)


def write(leadership: Leadership, n: int, state: bytes) -> None:
    """Store the state after event ``n``; of the older snapshots the one before it and the sparse ones stay."""
    for _ in writing(leadership, n, state, lambda: True):
        pass
    thin(leadership)


def writing(leadership: Leadership, n: int, state: bytes, stands: Callable[[], bool]) -> Iterator[None]:
    """Store the state after event ``n``, in steps so that others can work in between. It counts from when all its parts stand and
    ``stands``, which is asked again and again, says so too.
    """
    parts = [state[at : at + PART] for at in range(0, max(len(state), 1), PART)]
    stored = [Create(node_paths.snapshot_part(n, number), part) for number, part in enumerate(parts)]
    nodes = [[node] for node in (Create(node_paths.snapshot(n)), *stored)]
    try:
        yield from leadership.committing(nodes, "in-snapshot")
    except TransactionFailed:  # a leader has died while it wrote this very one
        _remove(leadership, n)
        yield from leadership.committing(nodes, "in-snapshot")
    while not stands():
        yield
    note = SnapshotNote(FORMAT, len(parts), hashlib.sha256(state).hexdigest())
    finish = leadership.begin([Set(node_paths.snapshot(n), msgspec.json.encode(note))])
    yield
    finish()


def thin(leadership: Leadership) -> None:
    """Remove all snapshots but the latest ones and the sparse ones."""
    whole = complete(leadership.zk)
    kept = {*whole[-KEPT:], *sparse(whole)}
    for number in map(int, leadership.zk.children(node_paths.SNAPSHOT)):
        if number not in kept:
            _remove(leadership, number)


def complete(zk: ZooKeeperSession) -> list[int]:
    """The numbers of the snapshots that were written to their end, oldest first."""
    numbers = [int(name) for name in zk.children(node_paths.SNAPSHOT)]
    notes = zk.read_many(map(node_paths.snapshot, numbers))
    return [n for n in numbers if notes.get(node_paths.snapshot(n))]


def sparse(snapshots: Sequence[int]) -> list[int]:
    """Of snapshots in order, the first one at or behind each multiple of :data:`SPARSE`."""
    passed = [0, *(n // SPARSE for n in snapshots)]
    return [n for n, before in zip(snapshots, passed, strict=False) if n // SPARSE > before]


def latest(zk: ZooKeeperSession) -> tuple[int, bytes] | None:
    """The latest snapshot that is whole: after which event, and the state's bytes. None if there is none.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
    """
    return _newest(zk, sys.maxsize)


def base(zk: ZooKeeperSession, n: int) -> tuple[int, bytes] | None:
    """The newest whole snapshot at or before event ``n``: from there the log leads to ``n``. None: from its beginning.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
        SardonyxError: ``SX-LOG-COMPACTED``: what led to ``n`` is not kept any more.
    """
    found = _newest(zk, n)
    first = begins(zk)  # read last: a compaction says it before it removes anything
    if first > FIRST and (found is None or found[0] + 1 < first):
        raise compacted(n, first)
    return found


def _newest(zk: ZooKeeperSession, n: int) -> tuple[int, bytes] | None:
    """Looks anew after each failure: while one is read the leader may write another, and remove this one."""
    damaged: set[int] = set()
    while True:
        numbers = [number for number in complete(zk) if number <= n and number not in damaged]
        if not numbers:
            return None
        state = _read(zk, numbers[-1])
        if state is not None:
            return numbers[-1], state
        damaged.add(numbers[-1])


def _read(zk: ZooKeeperSession, n: int) -> bytes | None:
    """The state in a snapshot; None if it was removed meanwhile, or is damaged."""
    data = zk.read(node_paths.snapshot(n))
    if not data:
        return None
    refuse_other_format(f"snapshot {n}", data)
    try:
        note = _notes.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(f"snapshot {n}", str(error)) from error
    paths = [node_paths.snapshot_part(n, part) for part in range(note.parts)]
    found = zk.read_many(paths)
    state = b"".join(found.get(path, b"") for path in paths)
    if hashlib.sha256(state).hexdigest() == note.sha256:
        return state
    if zk.read(node_paths.snapshot(n)):
        log.warning("snapshot is damaged, the one before it is taken", n=n, snapshot=node_paths.snapshot(n))
    return None


def _remove(leadership: Leadership, n: int) -> None:
    """In one transaction: a snapshot that lacks some of its parts does not exist."""
    zk = leadership.zk
    if zk.read(node_paths.snapshot(n)) is None:
        return
    parts = [Delete(node_paths.snapshot_part(n, int(name))) for name in zk.children(node_paths.snapshot(n))]
    leadership.commit([*parts, Delete(node_paths.snapshot(n))])


def compact(leadership: Leadership, *, keep: int) -> int:
    """Remove what lies in front of a snapshot that is kept for good reason; how many entries.

    That is the newest sparse snapshot (:data:`SPARSE`) which is at least ``keep`` entries behind the latest but one, and
    which can be read. So the log always begins at 1 or right behind a snapshot that stands. First of all ``/log`` says
    so; what an earlier leader had begun to remove is removed as well.
    """
    zk = leadership.zk
    whole = complete(zk)
    most = whole[-KEPT] - keep if len(whole) >= KEPT else 0
    start = begins(zk)
    possible = [n for n in sparse(whole) if start <= n <= most]
    newest = next((n for n in reversed(possible) if _read(zk, n) is not None), None)
    if newest is not None:
        start = newest + 1
        leadership.commit([Set(node_paths.LOG, str(start).encode())])
        failpoint("in-compaction")
    for n in map(int, zk.children(node_paths.SNAPSHOT)):
        if n + 1 < start:
            _remove(leadership, n)
    return _remove_entries(leadership, start)


def _remove_entries(leadership: Leadership, start: int) -> int:
    """Remove all batches that end before ``start``, oldest first, and the buckets that become empty for ever."""
    zk = leadership.zk
    removed = 0
    removals: list[list[Operation]] = []
    begun = [bucket for bucket in zk.children(node_paths.LOG) if int(bucket) <= start // node_paths.LOG_BUCKET]
    for path, names in zk.children_of(f"{node_paths.LOG}/{bucket}" for bucket in begun).items():
        bucket = int(path.rpartition("/")[2])
        numbers = list(map(int, names))
        # The one that holds `start` stays, and with it whatever comes behind; in an older bucket that is none.
        old = bisect_right(numbers, start) - 1 if bucket == start // node_paths.LOG_BUCKET else len(numbers)
        gone: list[Operation] = [Delete(node_paths.log_batch(n)) for n in numbers[: max(old, 0)]]
        if gone:
            behind = numbers[old] if old < len(numbers) else (bucket + 1) * node_paths.LOG_BUCKET
            removed += behind - numbers[0]
        if bucket < start // node_paths.LOG_BUCKET:
            gone.append(Delete(path))
        removals += chunked([operation] for operation in gone)
    for _ in leadership.committing(removals, "in-compaction"):
        pass
    return removed
