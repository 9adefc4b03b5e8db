"""Snapshots of the state, which shorten a replay, and the compaction of the log before them.

What must be durable first:

- the parts of a snapshot, and all effects up to its entry, are written before its own node holds their number and hash. So a
  snapshot that is only half written never counts;
- ``/log`` says where the log begins before older entries are removed. So a compaction takes effect for all readers at once,
  wherever it is interrupted, and an entry that is missing for another reason is known to be a gap.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import structlog

from coordinator.loop.election import Leadership
from coordinator.loop.event_log import FIRST, begins, compacted, refuse_other_format, unreadable
from coordinator.loop.leader_metrics import SNAPSHOT_SECONDS
from coordinator.loop.log_archive import LogArchive, Write
from coordinator.loop.pipeline import PendingCommit, WritePipeline
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete, Set
from sardonyx.core.events import FORMAT
from sardonyx.runtime.failpoints import failpoint
from sardonyx.runtime.settings_sections import CoordinatorSettings
from sardonyx.zookeeper.errors import TransactionFailed
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import Operation, chunked

PART = 512 * 1024
"""Bytes of one part of a snapshot."""

KEPT = 2
"""How many of the latest snapshots are kept: the latest, and the one before it in case the latest is damaged."""

SPARSE = 10_000
"""Of every so many entries one snapshot is kept as long as the log after it, so no moment is far from a snapshot."""

STATE_AN_ENTRY = 256
"""Bytes of state that a snapshot may store for each entry since the last one, so that its cost for each event does not grow
with the state: at ten thousand peers there is a snapshot every eight thousand entries."""

log = structlog.get_logger()


class SnapshotNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``/snapshot/<n>``, written last: the number of its parts and the hash of all, as they are stored."""

    format: int
    parts: int
    sha256: str


_notes = msgspec.json.Decoder(SnapshotNote)


class SnapshotWriter:
    """Writes one snapshot in small steps, so that the leader can do other work in between.

    Args:
        leadership: whose epoch each write checks.
        n: the entry after which the state is stored.
        state: its bytes.
    """

    def __init__(self, leadership: Leadership, n: int, state: bytes) -> None:
        data = stored(state)
        parts = [data[at : at + PART] for at in range(0, len(data), PART)]
        nodes = [Create(node_paths.snapshot_part(n, number), part) for number, part in enumerate(parts)]
        self._leadership = leadership
        self._nodes: list[Create] = [Create(node_paths.snapshot(n)), *nodes]
        self._note = Set(
            node_paths.snapshot(n),
            msgspec.json.encode(SnapshotNote(FORMAT, len(parts), hashlib.sha256(data).hexdigest())),
        )
        self._unsent = deque(self._nodes)
        self._pipeline = WritePipeline(leadership, "snapshot")  # the parts are independent of each other
        self._noted: PendingCommit | None = None
        self._replaced = False
        self.n = n
        """The entry after which the state is stored."""

    @property
    def complete(self) -> bool:
        """Whether the snapshot counts."""
        return self._noted is not None and self._noted.done

    def advance(self, durable: int) -> None:
        """Wait for the oldest write in flight, and send what may be sent next.

        Args:
            durable: the entry up to which all effects are known to be in the tree. The snapshot's note is sent when all parts are
                stored and this has reached :attr:`n`: what a snapshot holds is not replayed, and so not repaired.

        Raises:
            LeadershipEnded, Deposed, SessionLost, TransactionFailed, OutcomeUnknown: as :meth:`WritePipeline.submit`.
        """
        try:
            self._pipeline.wait_for_oldest()
            while self._unsent and not self._pipeline.full:
                self._pipeline.submit([self._unsent.popleft()])
        except TransactionFailed:
            if self._replaced or self._noted is not None:
                raise
            self._start_again()
        if self._noted is None and not self._unsent and not self._pipeline.in_flight and durable >= self.n:
            self._noted = self._pipeline.submit([self._note])

    def _start_again(self) -> None:
        """A leader died while it wrote this very snapshot: remove what it left."""
        _remove(self._leadership, self.n)  # its reads come after what is in flight
        self._replaced = True
        self._unsent = deque(self._nodes)
        self._pipeline = WritePipeline(self._leadership, "snapshot")


def stored(state: bytes) -> bytes:
    """A state as the parts of a snapshot hold it. Mostly specs of ended jobs, which resemble each other: it takes a tenth."""
    return zlib.compress(state, 1)


def state_of(data: bytes) -> bytes:
    """The reverse of :func:`stored`. Snapshots of format 6 hold the state as it is."""
    return data if data.startswith(b"{") else zlib.decompress(data)


def write(leadership: Leadership, n: int, state: bytes) -> None:
    """Store the state after entry ``n``; of the older snapshots the one before it and the sparse ones stay."""
    writer = SnapshotWriter(leadership, n, state)
    while not writer.complete:
        writer.advance(n)
    thin(leadership)


class SnapshotSchedule:
    """Decides when a snapshot is due, writes it while the leader goes on, and removes what it makes superfluous.

    Args:
        leadership: whose epoch each write checks.
        settings: ``snapshot_every`` and ``keep_log``, both in entries.
        archive: writes entries to a file before they are removed; None: they are removed.
    """

    def __init__(self, leadership: Leadership, settings: CoordinatorSettings, archive: Write | None = None) -> None:
        self._leadership = leadership
        self._archive = None if archive is None else LogArchive(leadership.zk, archive)
        self._settings = settings
        self._writer: SnapshotWriter | None = None
        self._began = 0.0
        self.last: int = 0
        """The entry of the snapshot that was begun last; 0 if there is none."""
        self.size: int = 0
        """Bytes of the state in it."""
        self.log_begins: int = FIRST
        """The oldest entry that is kept, as this leadership knows it."""
        self.started(0, 0)

    def started(self, n: int, size: int) -> None:
        """The last snapshot is that after entry ``n``, and its state has so many bytes."""
        self.last, self.size = n, size
        self._distance = max(self._settings.snapshot_every, size // STATE_AN_ENTRY)

    def due(self, n: int) -> bool:
        """Whether the state after entry ``n`` should be stored."""
        return n - self.last >= self._distance

    def begin(self, n: int, state: bytes) -> None:
        """Begin to store the state after entry ``n``; the snapshot before it must be finished."""
        self.started(n, len(state))
        self._began = self._leadership.zk.runtime.now()
        self._writer = SnapshotWriter(self._leadership, n, state)
        self._writer.advance(0)

    @property
    def writing(self) -> bool:
        """Whether a snapshot is being written."""
        return self._writer is not None

    def advance(self, durable: int) -> None:
        """Go on with the snapshot that is being written, if there is one. Raises as :meth:`SnapshotWriter.advance`."""
        if self._writer is not None and not self._writer.complete:
            self._writer.advance(durable)

    def finish(self, durable: int) -> None:
        """Wait until the snapshot is complete, then remove old snapshots and entries.

        Call it when few writes are in flight: removal asks many small questions one after the other, and each would wait
        for all that was sent before it.

        Args:
            durable: the entry up to which all effects are in the tree; must have reached the snapshot's.
        """
        if self._writer is None:
            return
        while not self._writer.complete:
            self._writer.advance(durable)
        self._writer = None
        thin(self._leadership)
        self.log_begins, removed = compact(self._leadership, keep=self._settings.keep_log, archive=self._archive)
        SNAPSHOT_SECONDS.observe(self._leadership.zk.runtime.now() - self._began)
        log.debug("snapshot_written", n=self.last, entries_removed=removed)


def thin(leadership: Leadership) -> None:
    """Remove all snapshots but the latest ones and the sparse ones."""
    whole = complete(leadership.zk)
    kept = {*whole[-KEPT:], *sparse(whole)}
    for number in map(int, leadership.zk.children(node_paths.SNAPSHOT)):
        if number not in kept:
            _remove(leadership, number)


def complete(zk: ZooKeeperSession) -> list[int]:
    """The numbers of the snapshots that are complete, oldest first."""
    numbers = [int(name) for name in zk.children(node_paths.SNAPSHOT)]
    notes = zk.read_many(map(node_paths.snapshot, numbers))
    return [n for n in numbers if notes.get(node_paths.snapshot(n))]


def sparse(snapshots: Sequence[int]) -> list[int]:
    """Of snapshots in order, the first one at or after each multiple of :data:`SPARSE`."""
    passed = [0, *(n // SPARSE for n in snapshots)]
    return [n for n, before in zip(snapshots, passed, strict=False) if n // SPARSE > before]


def latest(zk: ZooKeeperSession) -> tuple[int, bytes] | None:
    """The latest complete snapshot: its entry, and the state's bytes. None if there is none.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
    """
    return _newest(zk, sys.maxsize)


def base(zk: ZooKeeperSession, n: int) -> tuple[int, bytes] | None:
    """The newest complete snapshot at or before entry ``n``: a replay to ``n`` starts there. None: at the beginning of the log.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
        SardonyxError: ``SX-LOG-COMPACTED``: the entries that lead to ``n`` are not kept any more.
    """
    found = _newest(zk, n)
    first = begins(zk)  # read last: a compaction sets it before it removes anything
    if first > FIRST and (found is None or found[0] + 1 < first):
        raise compacted(n, first)
    return found


def _newest(zk: ZooKeeperSession, n: int) -> tuple[int, bytes] | None:
    """Looks again after each failure: while one is read, the leader may write another and remove this one."""
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
    """The state in a snapshot; None if the snapshot was removed meanwhile, or is damaged."""
    about = zk.read(node_paths.snapshot(n))
    if not about:
        return None
    refuse_other_format(f"snapshot {n}", about)
    try:
        note = _notes.decode(about)
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(f"snapshot {n}", str(error)) from error
    paths = [node_paths.snapshot_part(n, part) for part in range(note.parts)]
    found = zk.read_many(paths)
    data = b"".join(found.get(path, b"") for path in paths)
    if hashlib.sha256(data).hexdigest() == note.sha256:
        return state_of(data)
    if zk.read(node_paths.snapshot(n)):
        log.warning("snapshot_damaged", n=n, node=node_paths.snapshot(n), consequence="an older one is used")
    return None


def _remove(leadership: Leadership, n: int) -> None:
    """Remove a snapshot in one transaction, so that no complete snapshot lacks parts."""
    zk = leadership.zk
    if zk.read(node_paths.snapshot(n)) is None:
        return
    parts = [Delete(node_paths.snapshot_part(n, int(name))) for name in zk.children(node_paths.snapshot(n))]
    leadership.commit([*parts, Delete(node_paths.snapshot(n))])


class Compacted(NamedTuple):
    """What a compaction has left and done."""

    begins: int
    """The oldest entry that is kept."""
    removed: int
    """How many entries were removed."""


def compact(leadership: Leadership, *, keep: int, archive: LogArchive | None = None) -> Compacted:
    """Remove the log and the snapshots before a certain snapshot.

    That is the newest sparse snapshot (:data:`SPARSE`) that can be read and is at least ``keep`` entries before the latest but
    one, and, with an archive, up to which that holds all entries. So the log always begins at 1 or right after a snapshot that
    exists. ``/log`` is set first. What an earlier leader had begun to remove is removed as well.
    """
    zk = leadership.zk
    whole = complete(zk)
    most = whole[-KEPT] - keep if len(whole) >= KEPT else 0
    start = begins(zk)
    possible = [n for n in sparse(whole) if start <= n <= most]
    if archive is not None:
        reached = archive.reached(start, possible)
        possible = [n for n in possible if n <= reached]
    newest = next((n for n in reversed(possible) if _read(zk, n) is not None), None)
    if newest is not None:
        start = newest + 1
        leadership.commit([Set(node_paths.LOG, str(start).encode())])
        failpoint("in-compaction")
    for n in map(int, zk.children(node_paths.SNAPSHOT)):
        if n + 1 < start:
            _remove(leadership, n)
    return Compacted(start, _remove_entries(leadership, start))


def _remove_entries(leadership: Leadership, start: int) -> int:
    """Remove all batches that end before ``start``, oldest first, and the buckets that stay empty."""
    zk = leadership.zk
    removed = 0
    removals: list[list[Operation]] = []
    begun = [bucket for bucket in zk.children(node_paths.LOG) if int(bucket) <= start // node_paths.LOG_BUCKET]
    for path, names in zk.children_of(f"{node_paths.LOG}/{bucket}" for bucket in begun).items():
        bucket = int(path.rpartition("/")[2])
        numbers = list(map(int, names))
        # The batch that holds `start` stays, and all after it; an older bucket holds none of these.
        old = bisect_right(numbers, start) - 1 if bucket == start // node_paths.LOG_BUCKET else len(numbers)
        gone: list[Operation] = [Delete(node_paths.log_batch(n)) for n in numbers[: max(old, 0)]]
        if gone:
            following = numbers[old] if old < len(numbers) else (bucket + 1) * node_paths.LOG_BUCKET
            removed += following - numbers[0]
        if bucket < start // node_paths.LOG_BUCKET:
            gone.append(Delete(path))
        removals += chunked([operation] for operation in gone)
    # The removals do not depend on each other: `/log` says already where the log begins.
    pipeline = WritePipeline(leadership, "compaction")
    for removal in removals:
        pipeline.submit(removal)
    pipeline.drain()
    return removed
