"""The replayable log in ZooKeeper. What shortens a replay stands in :mod:`coordinator.loop.snapshots`.

An entry stands in the log before anything is decided about it, and it leaves the inbox in the transaction that puts it there:
so a request becomes an event once.

Entries stand in batches, several to a node: what was appended at once costs one create, and is read back in one piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from coordinator.loop.election import AHEAD, Leadership
from sardonyx.core import node_paths
from sardonyx.core.errors import InternalError, SardonyxError, SetupError
from sardonyx.core.events import FORMAT, AnyEvent, Create, Delete
from sardonyx.runtime.failpoints import failpoint
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, OPERATION_OVERHEAD, PIECE, Check, Operation, SetIf

FIRST = 1
"""The number of the first entry; so 0 says "nothing yet"."""

BATCH = ENTRY_LIMIT
"""Bytes of the entries in one node; a single entry that is larger stands alone."""


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

    While the caller decides on one, up to ``AHEAD`` more are under way: ``intakes`` are asked for before those in front of
    them are decided. Each is refused unless the one before it stands, so the log has no hole wherever it breaks off.
    """
    under_way: deque[tuple[list[Intake], Callable[[], None]]] = deque()

    def stands() -> list[Intake]:
        piece, finish = under_way.popleft()
        finish()
        leadership.unheard_of = ""
        failpoint("after-append")
        return piece

    before: list[Operation] = []
    for piece, operations in _transactions(first, intakes, leader=leadership.unheard_of):
        if len(under_way) > AHEAD:
            yield stands()
        failpoint("before-append")
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
        if batch and (filled + len(data) > BATCH or n % node_paths.LOG_BUCKET == 0):
            yield entries, _batch(n - len(batch), batch, removals), filled + paths
            entries, batch, removals, filled, paths = [], [], [], 0, 0
        entries.append(intake)
        batch.append(msgspec.Raw(data))
        filled += len(data) + 1
        if intake.inbox:
            path = f"{node_paths.INBOX}/{intake.inbox}"
            removals.append(Delete(path))
            paths += OPERATION_OVERHEAD + len(path)
    if batch:
        yield entries, _batch(n + 1 - len(batch), batch, removals), filled + paths


def _batch(first: int, entries: list[msgspec.Raw], removals: list[Operation]) -> list[Operation]:
    bucket = [Create(node_paths.log_bucket(first))] if first == FIRST or first % node_paths.LOG_BUCKET == 0 else []
    return [*bucket, Create(node_paths.log_batch(first), _encoder.encode(_Encoded(FORMAT, entries))), *removals]


def read_log(zk: ZooKeeperSession, first: int = 0) -> Iterator[tuple[int, AnyEvent]]:
    """The events from number ``first`` on, or from the oldest that is still kept, in order.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
        SardonyxError: ``SX-LOG-COMPACTED``: the leader removed entries that were still to be read.
        InternalError: ``SX-INTERNAL-LOG-GAP``: a number is missing.
    """
    for n, entry in read_entries(zk, first):
        yield n, entry.event


def read_entries(zk: ZooKeeperSession, first: int = 0) -> Iterator[tuple[int, Entry]]:
    """Like :func:`read_log`, with what else an entry holds. Read bucket by bucket: what is appended meanwhile may come."""
    start = begins(zk)
    if FIRST < first < start:
        raise compacted(first, start)
    wanted = max(first, start)
    begun = False
    for bucket in zk.children(node_paths.LOG):
        if int(bucket) < wanted // node_paths.LOG_BUCKET:
            continue
        batches = [int(name) for name in zk.children(f"{node_paths.LOG}/{bucket}")]
        if not begun:  # the batch that holds the first one wanted may begin before it
            batches = batches[max(bisect_right(batches, wanted) - 1, 0) :]
        found = zk.read_many(map(node_paths.log_batch, batches))
        for start in batches:
            data = found.get(node_paths.log_batch(start))
            if data is None or start > wanted or (begun and start < wanted):
                raise _missing(zk, wanted if data is not None else max(start, wanted))
            begun = True
            for n, entry in enumerate(decode_batch(start, data), start):
                if n >= wanted:
                    yield n, entry
                    wanted = n + 1


def begins(zk: ZooKeeperSession) -> int:
    """The number of the oldest entry that is kept: what is in front of it was compacted, also if it still stands."""
    return int(zk.read(node_paths.LOG) or FIRST)


def decode_batch(first: int, data: bytes) -> list[Entry]:
    """The entries of a batch from its bytes. Raises ``SX-LOG-FORMAT`` on another version's, or on anything else."""
    what = f"the log at entry {first}"
    refuse_other_format(what, data)
    try:
        return _batches.decode(data).entries
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(what, str(error)) from error


def last(zk: ZooKeeperSession) -> int:
    """The number of the latest entry; 0 if there is none."""
    for bucket in reversed(zk.children(node_paths.LOG)):
        batches = zk.children(f"{node_paths.LOG}/{bucket}")
        data = zk.read(f"{node_paths.LOG}/{bucket}/{batches[-1]}") if batches else None
        if data is not None:
            return int(batches[-1]) + len(decode_batch(int(batches[-1]), data)) - 1
    return 0


def tail(zk: ZooKeeperSession, n: int) -> list[tuple[int, AnyEvent]]:
    """The last ``n`` events, oldest first."""
    return list(read_log(zk, max(last(zk) - n + 1, begins(zk))))[-n:] if n > 0 else []


def read_checkpoint(zk: ZooKeeperSession) -> int:
    """The number of the last event whose effects are in the tree; 0 if there is none."""
    return read_checkpoint_version(zk)[0]


def read_checkpoint_version(zk: ZooKeeperSession) -> tuple[int, int]:
    """The same, and how many times it has been moved."""
    data, version = zk.read_version(node_paths.CHECKPOINT) or (b"", 0)
    return int(data or 0), version


def checkpoint(n: int, version: int) -> SetIf:
    """The operation that moves the checkpoint, which must have been moved so many times before."""
    return SetIf(node_paths.CHECKPOINT, str(n).encode(), version)


def moved(version: int) -> int:
    """The checkpoint's version after one more move; ZooKeeper counts with 32 bits and a sign."""
    return (version + 1 + 2**31) % 2**32 - 2**31


# Errors


def refuse_other_format(what: str, data: bytes) -> None:
    try:
        found = msgspec.json.decode(data, type=_Format).format
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(what, str(error)) from error
    if found != FORMAT:
        raise unreadable(what, f"it has format {found}, and this version of Sardonyx reads format {FORMAT}")


def unreadable(what: str, why: str) -> SetupError:
    return SetupError(
        "SX-LOG-FORMAT",
        f"{what} cannot be read: {why}",
        cause="the deployment was made by another version, or somebody else wrote to it",
        fix="run the version that made it, or choose a fresh deployment",
    )


def _missing(zk: ZooKeeperSession, n: int) -> SardonyxError:
    """Why entry ``n`` is not there: ``/log`` says what was removed before it is removed, so the two cannot be confused."""
    first = begins(zk)
    if n < first:
        return compacted(n, first)
    return InternalError(
        "SX-INTERNAL-LOG-GAP",
        f"the log has no entry {n}",
        cause="it was removed by hand, or the tree was restored in part",
        fix="restore the whole deployment in ZooKeeper, or start a fresh one under another name",
    )


def compacted(n: int, first: int) -> SardonyxError:
    return SardonyxError(
        "SX-LOG-COMPACTED",
        f"the log does not reach back to entry {n} any more; it begins at {first}",
        cause="the coordinator removes what is further behind than coordinator.keep_log",
        fix="ask for a later number; a larger coordinator.keep_log keeps more from now on",
    )
