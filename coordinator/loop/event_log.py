"""The replayable log in ZooKeeper. What shortens a replay stands in :mod:`coordinator.loop.snapshots`.

An entry stands in the log before anything is decided about it, and it leaves the inbox in the transaction that puts it there:
so a request becomes an event once.

Entries stand in batches, several to a node: what was appended at once costs one create, and is read back in one piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from sardonyx.core import node_paths
from sardonyx.core.errors import InternalError, SardonyxError, SetupError
from sardonyx.core.events import FORMAT, AnyEvent
from sardonyx.zookeeper.transactions import SetIf

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession

FIRST = 1
"""The number of the first entry; so 0 says "nothing yet"."""


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


class _Format(msgspec.Struct):
    format: int = 0


_batches = msgspec.json.Decoder(Batch)


# Reading


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


def next_version(version: int) -> int:
    """The checkpoint's version once it is set again; ZooKeeper counts with 32 bits and a sign."""
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
