"""The replayable log in ZooKeeper, and the snapshots that shorten a replay.

What must be durable first:

- an entry stands in the log before anything is decided about it, and it leaves the inbox in the transaction that puts it
  there, so a request becomes an event once;
- the parts of a snapshot stand before its own node says how many they are and what they hash to, so one that was only
  half written is never taken for one;
- ``/log`` says where the log begins before anything in front of that is removed, so that a compaction is done for every
  reader at once, wherever it breaks off, and an entry that is missing for another reason is known as a hole.

Entries stand in batches, several to a node: what was appended at once costs one create, and is read back in one piece.
"""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import structlog

from coordinator import layout
from coordinator.events import FORMAT, AnyEvent, Create, Delete, Set
from coordinator.leadership import Leadership
from coordinator.operations import ENTRY_LIMIT, OPERATION_OVERHEAD, PIECE, Check, Operation, SetIf, chunked
from coordinator.outcomes import TransactionFailed
from coordinator.tree import Tree
from sardonyx.errors import InternalError, SardonyxError, SetupError
from sardonyx.gates import gate

FIRST = 1
"""The number of the first entry; so 0 says "nothing yet"."""

BATCH = ENTRY_LIMIT
"""Bytes of the entries in one node; a single entry that is larger stands alone."""

PART = 512 * 1024
"""Bytes of one part of a snapshot."""

AHEAD = 3
"""Transactions that are under way while one piece of the log is decided, or its effects are prepared: ZooKeeper takes longer
to answer one than to work on it."""

SNAPSHOTS_KEPT = 2
"""The latest, and the one before it, should the latest turn out unreadable."""

SPARSE = 10_000
"""Of every so many entries one snapshot is kept, for as long as the log behind it is: no moment is far from one."""

log = structlog.get_logger()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One entry of the log."""

    event: AnyEvent
    request: str = ""
    """The uuid of the inbox node that it came in by, if it did."""
    leader: str = ""
    """On the first entry that a leadership appends: who leads from here on, as ``host:pid``. No decision depends on it."""


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``/log/<bucket>/<first>``: entries from number ``first`` on; never none, never across the end of the bucket."""

    format: int
    entries: list[Entry]


class _Encoded(msgspec.Struct, frozen=True):
    """A batch of entries that are encoded already."""

    format: int
    entries: list[msgspec.Raw]


class SnapshotNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``/snapshot/<n>``, written last: what its parts make together."""

    format: int
    parts: int
    sha256: str


class Intake(msgspec.Struct, frozen=True, gc=False):
    """What is to be appended: an event, and the inbox node it came in by, which goes in the same transaction."""

    event: AnyEvent
    inbox: str = ""
    """Name of the node below ``/inbox``; empty for events that the coordinator makes itself."""
    request: str = ""
    """The uuid in that name."""


class _Format(msgspec.Struct):
    format: int = 0


_encoder = msgspec.json.Encoder(order="deterministic")
_batches = msgspec.json.Decoder(Batch)
_notes = msgspec.json.Decoder(SnapshotNote)


# Entries


def append(leadership: Leadership, first: int, intakes: Iterable[Intake]) -> None:
    """Write events as entries ``first``, ``first + 1`` ... and remove the requests they came from, all fenced.

    In one transaction, or in several in order if they are too large for one: what has been appended when it breaks off
    stands in the log and is out of the inbox, the rest is as it was.

    Raises:
        Deposed, TransactionFailed, OutcomeUnknown, SessionLost, LeadershipEnded: as :meth:`Leadership.commit`.
        InternalError: ``SX-INTERNAL-ENTRY-SIZE``: one of them is too large for the log.
    """
    for _ in appending(leadership, first, intakes):
        pass


def appending(leadership: Leadership, first: int, intakes: Iterable[Intake]) -> Iterator[list[Intake]]:
    """Like :func:`append`; gives piece after piece, in order, as soon as it stands in the log.

    While the caller decides on one, up to :data:`AHEAD` more are under way: ``intakes`` are asked for before those in front of
    them are decided. Each is refused unless the one before it stands, so the log has no hole wherever it breaks off.
    """
    under_way: deque[tuple[list[Intake], Callable[[], None]]] = deque()

    def stands() -> list[Intake]:
        piece, finish = under_way.popleft()
        finish()
        leadership.unheard_of = ""
        gate("after-append")
        return piece

    before: list[Operation] = []
    for piece, operations in _transactions(first, intakes, leader=leadership.unheard_of):
        if len(under_way) > AHEAD:
            yield stands()
        gate("before-append")
        under_way.append((piece, leadership.begin([*before, *operations])))
        stands_then = [operation.path for operation in operations if isinstance(operation, Create)]
        before = list(map(Check, stands_then[-1:]))
    while under_way:
        yield stands()


def _transactions(first: int, intakes: Iterable[Intake], leader: str) -> Iterator[tuple[list[Intake], list[Operation]]]:
    """What is appended at a time."""
    piece: list[Intake] = []
    operations: list[Operation] = []
    filled = 0
    for entries, batch, size in _batches_of(first, intakes, leader):
        if operations and filled + size > PIECE:
            yield piece, operations
            piece, operations, filled = [], [], 0
        piece += entries
        operations += batch
        filled += size
    if operations:
        yield piece, operations


def _batches_of(
    first: int, intakes: Iterable[Intake], leader: str
) -> Iterator[tuple[list[Intake], list[Operation], int]]:
    """Per batch: its entries, and the node that holds it with the removals of its requests, which stay together; and about how
    many bytes these are.
    """
    entries: list[Intake] = []
    batch: list[msgspec.Raw] = []
    removals: list[Operation] = []
    filled = paths = 0
    for n, intake in enumerate(intakes, first):
        data = _encoder.encode(Entry(intake.event, intake.request, leader if n == first else ""))
        if len(data) > 2 * ENTRY_LIMIT:  # a request has at most half of it; the rest is the entry around it
            raise InternalError(
                "SX-INTERNAL-ENTRY-SIZE", f"log entry {n} has {len(data):,} bytes; {2 * ENTRY_LIMIT:,} is the most"
            )
        if batch and (filled + len(data) > BATCH or n % layout.LOG_BUCKET == 0):
            yield entries, _batch(n - len(batch), batch, removals), filled + paths
            entries, batch, removals, filled, paths = [], [], [], 0, 0
        entries.append(intake)
        batch.append(msgspec.Raw(data))
        filled += len(data) + 1
        if intake.inbox:
            path = f"{layout.INBOX}/{intake.inbox}"
            removals.append(Delete(path))
            paths += OPERATION_OVERHEAD + len(path)
    if batch:
        yield entries, _batch(n + 1 - len(batch), batch, removals), filled + paths


def _batch(first: int, entries: list[msgspec.Raw], removals: list[Operation]) -> list[Operation]:
    bucket = [Create(layout.log_bucket(first))] if first == FIRST or first % layout.LOG_BUCKET == 0 else []
    return [*bucket, Create(layout.log_batch(first), _encoder.encode(_Encoded(FORMAT, entries))), *removals]


def read_log(tree: Tree, first: int = 0) -> Iterator[tuple[int, AnyEvent]]:
    """The events from number ``first`` on, or from the oldest that is still kept, in order.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
        SardonyxError: ``SX-LOG-COMPACTED``: the leader removed entries that were still to be read.
        InternalError: ``SX-INTERNAL-LOG-GAP``: a number is missing.
    """
    for n, entry in read_entries(tree, first):
        yield n, entry.event


def read_entries(tree: Tree, first: int = 0) -> Iterator[tuple[int, Entry]]:
    """Like :func:`read_log`, with what else an entry holds. Read bucket by bucket: what is appended meanwhile may come."""
    start = begins(tree)
    if FIRST < first < start:
        raise _compacted(first, start)
    wanted = max(first, start)
    begun = False
    for bucket in tree.children(layout.LOG):
        if int(bucket) < wanted // layout.LOG_BUCKET:
            continue
        batches = [int(name) for name in tree.children(f"{layout.LOG}/{bucket}")]
        if not begun:  # the batch that holds the first one wanted may begin before it
            batches = batches[max(bisect_right(batches, wanted) - 1, 0) :]
        found = tree.read_many(map(layout.log_batch, batches))
        for start in batches:
            data = found.get(layout.log_batch(start))
            if data is None or start > wanted or (begun and start < wanted):
                raise _missing(tree, wanted if data is not None else max(start, wanted))
            begun = True
            for n, entry in enumerate(decode_batch(start, data), start):
                if n >= wanted:
                    yield n, entry
                    wanted = n + 1


def begins(tree: Tree) -> int:
    """The number of the oldest entry that is kept: what is in front of it was compacted, also if it still stands."""
    return int(tree.read(layout.LOG) or FIRST)


def decode_batch(first: int, data: bytes) -> list[Entry]:
    """The entries of a batch from its bytes. Raises ``SX-LOG-FORMAT`` on another version's, or on anything else."""
    what = f"the log at entry {first}"
    _refuse_other_format(what, data)
    try:
        return _batches.decode(data).entries
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(what, str(error)) from error


def last(tree: Tree) -> int:
    """The number of the latest entry; 0 if there is none."""
    for bucket in reversed(tree.children(layout.LOG)):
        batches = tree.children(f"{layout.LOG}/{bucket}")
        data = tree.read(f"{layout.LOG}/{bucket}/{batches[-1]}") if batches else None
        if data is not None:
            return int(batches[-1]) + len(decode_batch(int(batches[-1]), data)) - 1
    return 0


def tail(tree: Tree, n: int) -> list[tuple[int, AnyEvent]]:
    """The last ``n`` events, oldest first."""
    return list(read_log(tree, max(last(tree) - n + 1, begins(tree))))[-n:] if n > 0 else []


def read_checkpoint(tree: Tree) -> int:
    """The number of the last event whose effects are in the tree; 0 if there is none."""
    return read_checkpoint_version(tree)[0]


def read_checkpoint_version(tree: Tree) -> tuple[int, int]:
    """The same, and how many times it has been moved."""
    data, version = tree.read_version(layout.CHECKPOINT) or (b"", 0)
    return int(data or 0), version


def checkpoint(n: int, version: int) -> SetIf:
    """The operation that moves the checkpoint, which must have been moved so many times before."""
    return SetIf(layout.CHECKPOINT, str(n).encode(), version)


def moved(version: int) -> int:
    """The checkpoint's version after one more move; ZooKeeper counts with 32 bits and a sign."""
    return (version + 1 + 2**31) % 2**32 - 2**31


# Compaction


def compact(leadership: Leadership, *, keep: int) -> int:
    """Remove what lies in front of a snapshot that is kept for good reason; how many entries.

    That is the newest sparse snapshot (:data:`SPARSE`) which is at least ``keep`` entries behind the latest but one, and
    which can be read. So the log always begins at 1 or right behind a snapshot that stands. First of all ``/log`` says
    so; what an earlier leader had begun to remove is removed as well.
    """
    tree = leadership.tree
    complete = complete_snapshots(tree)
    most = complete[-SNAPSHOTS_KEPT] - keep if len(complete) >= SNAPSHOTS_KEPT else 0
    start = begins(tree)
    possible = [n for n in sparse(complete) if start <= n <= most]
    whole = next((n for n in reversed(possible) if _read_snapshot(tree, n) is not None), None)
    if whole is not None:
        start = whole + 1
        leadership.commit([Set(layout.LOG, str(start).encode())])
        gate("in-compaction")
    for n in map(int, tree.children(layout.SNAPSHOT)):
        if n + 1 < start:
            _remove_snapshot(leadership, n)
    return _remove_entries(leadership, start)


def _remove_entries(leadership: Leadership, start: int) -> int:
    """Remove all batches that end before ``start``, oldest first, and the buckets that become empty for ever."""
    tree = leadership.tree
    removed = 0
    removals: list[list[Operation]] = []
    begun = [bucket for bucket in tree.children(layout.LOG) if int(bucket) <= start // layout.LOG_BUCKET]
    for path, names in tree.children_of(f"{layout.LOG}/{bucket}" for bucket in begun).items():
        bucket = int(path.rpartition("/")[2])
        numbers = list(map(int, names))
        # The one that holds `start` stays, and with it whatever comes behind; in an older bucket that is none.
        old = bisect_right(numbers, start) - 1 if bucket == start // layout.LOG_BUCKET else len(numbers)
        gone: list[Operation] = [Delete(layout.log_batch(n)) for n in numbers[: max(old, 0)]]
        if gone:
            behind = numbers[old] if old < len(numbers) else (bucket + 1) * layout.LOG_BUCKET
            removed += behind - numbers[0]
        if bucket < start // layout.LOG_BUCKET:
            gone.append(Delete(path))
        removals += chunked([operation] for operation in gone)
    for _ in committing(leadership, removals, "in-compaction"):
        pass
    return removed


def committing(leadership: Leadership, transactions: Iterable[Iterable[Operation]], point: str) -> Iterator[None]:
    """Commit them in order, a few under way at once, with a gate behind each; gives way before it waits. Where it breaks off,
    those behind may stand without the one that failed.
    """
    under_way: deque[Callable[[], None]] = deque()

    def stands() -> None:
        under_way.popleft()()
        gate(point)

    for operations in transactions:
        if len(under_way) > AHEAD:
            yield
            stands()
        under_way.append(leadership.begin(operations))
    while under_way:
        yield
        stands()


# Snapshots


def write_snapshot(leadership: Leadership, n: int, state: bytes) -> None:
    """Store the state after event ``n``; of the older snapshots the one before it and the sparse ones stay."""
    for _ in writing_snapshot(leadership, n, state, lambda: True):
        pass
    thin(leadership)


def writing_snapshot(leadership: Leadership, n: int, state: bytes, stands: Callable[[], bool]) -> Iterator[None]:
    """Store the state after event ``n``, in steps so that others can work in between. It counts from when all its parts stand and
    ``stands``, which is asked again and again, says so too.
    """
    parts = [state[at : at + PART] for at in range(0, max(len(state), 1), PART)]
    stored = [Create(layout.snapshot_part(n, number), part) for number, part in enumerate(parts)]
    nodes = [[node] for node in (Create(layout.snapshot(n)), *stored)]
    try:
        yield from committing(leadership, nodes, "in-snapshot")
    except TransactionFailed:  # a leader has died while it wrote this very one
        _remove_snapshot(leadership, n)
        yield from committing(leadership, nodes, "in-snapshot")
    while not stands():
        yield
    note = SnapshotNote(FORMAT, len(parts), hashlib.sha256(state).hexdigest())
    finish = leadership.begin([Set(layout.snapshot(n), _encoder.encode(note))])
    yield
    finish()


def thin(leadership: Leadership) -> None:
    """Remove all snapshots but the latest ones and the sparse ones."""
    complete = complete_snapshots(leadership.tree)
    kept = {*complete[-SNAPSHOTS_KEPT:], *sparse(complete)}
    for number in map(int, leadership.tree.children(layout.SNAPSHOT)):
        if number not in kept:
            _remove_snapshot(leadership, number)


def complete_snapshots(tree: Tree) -> list[int]:
    """The numbers of the snapshots that were written to their end, oldest first."""
    numbers = [int(name) for name in tree.children(layout.SNAPSHOT)]
    notes = tree.read_many(map(layout.snapshot, numbers))
    return [n for n in numbers if notes.get(layout.snapshot(n))]


def sparse(snapshots: Sequence[int]) -> list[int]:
    """Of snapshots in order, the first one at or behind each multiple of :data:`SPARSE`."""
    passed = [0, *(n // SPARSE for n in snapshots)]
    return [n for n, before in zip(snapshots, passed, strict=False) if n // SPARSE > before]


def load_snapshot(tree: Tree) -> tuple[int, bytes] | None:
    """The latest snapshot that is whole: after which event, and the state's bytes. None if there is none.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
    """
    return _newest(tree, sys.maxsize)


def base(tree: Tree, n: int) -> tuple[int, bytes] | None:
    """The newest whole snapshot at or before event ``n``: from there the log leads to ``n``. None: from its beginning.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
        SardonyxError: ``SX-LOG-COMPACTED``: what led to ``n`` is not kept any more.
    """
    found = _newest(tree, n)
    first = begins(tree)  # read last: a compaction says it before it removes anything
    if first > FIRST and (found is None or found[0] + 1 < first):
        raise _compacted(n, first)
    return found


def _newest(tree: Tree, n: int) -> tuple[int, bytes] | None:
    """Looks anew after each failure: while one is read the leader may write another, and remove this one."""
    damaged: set[int] = set()
    while True:
        numbers = [number for number in complete_snapshots(tree) if number <= n and number not in damaged]
        if not numbers:
            return None
        state = _read_snapshot(tree, numbers[-1])
        if state is not None:
            return numbers[-1], state
        damaged.add(numbers[-1])


def _read_snapshot(tree: Tree, n: int) -> bytes | None:
    """The state in a snapshot; None if it was removed meanwhile, or is damaged."""
    data = tree.read(layout.snapshot(n))
    if not data:
        return None
    _refuse_other_format(f"snapshot {n}", data)
    try:
        note = _notes.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(f"snapshot {n}", str(error)) from error
    paths = [layout.snapshot_part(n, part) for part in range(note.parts)]
    found = tree.read_many(paths)
    state = b"".join(found.get(path, b"") for path in paths)
    if hashlib.sha256(state).hexdigest() == note.sha256:
        return state
    if tree.read(layout.snapshot(n)):
        log.warning("snapshot is damaged, the one before it is taken", n=n, snapshot=layout.snapshot(n))
    return None


def _remove_snapshot(leadership: Leadership, n: int) -> None:
    """In one transaction: a snapshot that lacks some of its parts does not exist."""
    tree = leadership.tree
    if tree.read(layout.snapshot(n)) is None:
        return
    parts = [Delete(layout.snapshot_part(n, int(name))) for name in tree.children(layout.snapshot(n))]
    leadership.commit([*parts, Delete(layout.snapshot(n))])


# Errors


def _refuse_other_format(what: str, data: bytes) -> None:
    try:
        found = msgspec.json.decode(data, type=_Format).format
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(what, str(error)) from error
    if found != FORMAT:
        raise _unreadable(what, f"it has format {found}, and this version of Sardonyx reads format {FORMAT}")


def _unreadable(what: str, why: str) -> SetupError:
    return SetupError(
        "SX-LOG-FORMAT",
        f"{what} cannot be read: {why}",
        cause="the deployment was made by another version, or somebody else wrote to it",
        fix="run the version that made it, or choose a fresh deployment",
    )


def _missing(tree: Tree, n: int) -> SardonyxError:
    """Why entry ``n`` is not there: ``/log`` says what was removed before it is removed, so the two cannot be confused."""
    first = begins(tree)
    if n < first:
        return _compacted(n, first)
    return InternalError(
        "SX-INTERNAL-LOG-GAP",
        f"the log has no entry {n}",
        cause="it was removed by hand, or the tree was restored in part",
        fix="restore the whole deployment in ZooKeeper, or start a fresh one under another name",
    )


def _compacted(n: int, first: int) -> SardonyxError:
    return SardonyxError(
        "SX-LOG-COMPACTED",
        f"the log does not reach back to entry {n} any more; it begins at {first}",
        cause="the coordinator removes what is further behind than coordinator.keep_log",
        fix="ask for a later number; a larger coordinator.keep_log keeps more from now on",
    )
