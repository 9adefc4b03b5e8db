"""The replayable log in ZooKeeper: its form, and how it is read. :mod:`coordinator.loop.log_writer` appends to it, and
:mod:`coordinator.loop.snapshots` shortens a replay.

A node holds a batch of entries: what was appended together costs one create, and is read back with one read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from coordinator.core.stored_state import older_rules, refuse_newer_rules
from sardonyx.core import node_paths
from sardonyx.core.effects import Set
from sardonyx.core.errors import InternalError, SardonyxError, SetupError
from sardonyx.core.events import FORMAT, OLDEST, OLDEST_RULES, AnyEvent, SetAside
from sardonyx.core.wire_types import ready_for_threads
from sardonyx.zookeeper.latest_batch import latest_batch
from sardonyx.zookeeper.transactions import SetIf

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession

FIRST = 1
"""The number of the first entry; so 0 means "nothing yet"."""


@ready_for_threads
class InForce(msgspec.Struct, frozen=True):
    """What a coordinator must be able to read, and to decide by, to lead. Both are 0 while the log is empty; a number is 0 if it
    is not said.
    """

    format: int = 0
    rules: int = 0


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One entry of the log."""

    event: AnyEvent
    request: str = ""
    """The uuid of the inbox node that it came from, if it did."""
    leader: str = ""
    """On the first entry that a leadership appends: the leader, as ``host:pid``. No decision depends on it."""


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``/log/<bucket>/<first>``: entries from number ``first`` on. It is never empty, and never crosses the end of a bucket."""

    format: int
    entries: list[Entry]
    rules: int
    """The rules by which these entries are decided."""


_batches = msgspec.json.Decoder(Batch)


# Reading


def read_log(zk: ZooKeeperSession, first: int = 0) -> Iterator[tuple[int, AnyEvent]]:
    """The events from number ``first`` on, or from the oldest that is kept, in order.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
        SardonyxError: ``SX-LOG-COMPACTED``: the leader removed entries that were still to be read.
        InternalError: ``SX-INTERNAL-LOG-GAP``: a number is missing.
    """
    for n, entry in read_entries(zk, first):
        yield n, entry.event


def read_entries(zk: ZooKeeperSession, first: int = 0) -> Iterator[tuple[int, Entry]]:
    """Like :func:`read_log`, with whole entries. Read bucket by bucket, so entries that are appended meanwhile may come too."""
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
    """The number of the oldest entry that is kept. Older ones are compacted, even where their nodes still exist."""
    return int(zk.read(node_paths.LOG) or FIRST)


def decode_batch(first: int, data: bytes) -> list[Entry]:
    """The entries of a batch from its bytes. Raises ``SX-LOG-FORMAT`` on another version's, or on anything else."""
    what = f"the log at entry {first}"
    refuse_other_format(what, data)
    try:
        return _batches.decode(data).entries
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(what, str(error)) from error


def in_force(zk: ZooKeeperSession) -> InForce:
    """The format of the latest batch, and its rules; also of a log that this release cannot read."""
    found = latest_batch(zk)
    return InForce() if found is None else _in_force(f"the log at entry {found[0]}", found[1])


def first_rules(zk: ZooKeeperSession) -> int | None:
    """The rules under which the log begins; None if it is empty, or does not reach back to its first entry."""
    data = zk.read(node_paths.log_batch(FIRST))
    return None if data is None else _in_force("the log at its first entry", data).rules


def _in_force(what: str, data: bytes) -> InForce:
    try:
        return msgspec.json.decode(data, type=InForce)
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(what, str(error)) from error


def last(zk: ZooKeeperSession) -> int:
    """The number of the latest entry; 0 if there is none."""
    found = latest_batch(zk)
    return 0 if found is None else found[0] + len(decode_batch(*found)) - 1


def tail(zk: ZooKeeperSession, n: int) -> list[tuple[int, AnyEvent]]:
    """The last ``n`` events, oldest first."""
    return list(read_log(zk, max(last(zk) - n + 1, begins(zk))))[-n:] if n > 0 else []


def read_checkpoint(zk: ZooKeeperSession) -> int:
    """The number of the last event whose effects are in the tree; 0 if there is none."""
    return read_checkpoint_version(zk)[0]


def read_checkpoint_version(zk: ZooKeeperSession) -> tuple[int, int]:
    """The same, and how many times it has been set."""
    data, version = zk.read_version(node_paths.CHECKPOINT) or (b"", 0)
    return int(data or 0), version


def checkpoint(n: int, version: int) -> SetIf:
    """The operation that sets the checkpoint, if it has been set ``version`` times before."""
    return SetIf(node_paths.CHECKPOINT, str(n).encode(), version)


def replaced(zk: ZooKeeperSession, n: int, event: SetAside) -> Set:
    """The operation that puts an event into the place of entry ``n``, which the caller has read and no leader has decided."""
    first = max(int(name) for name in zk.children(node_paths.log_bucket(n)) if int(name) <= n)
    batch = _batches.decode(zk.read(node_paths.log_batch(first)) or b"")
    entries = list(batch.entries)
    entries[n - first] = replace(entries[n - first], event=event)
    return Set(node_paths.log_batch(first), msgspec.json.encode(replace(batch, entries=entries), order="deterministic"))


def next_version(version: int) -> int:
    """The checkpoint's version once it is set again; ZooKeeper counts with 32 bits and a sign."""
    return (version + 1 + 2**31) % 2**32 - 2**31


# Errors


def refuse_other_format(what: str, data: bytes) -> None:
    """Raises ``SX-LOG-FORMAT`` if this release does not read the format, or knows its rules no more; ``SX-VERSION-RULES`` if it
    does not know them yet.
    """
    found = _in_force(what, data)
    if not OLDEST <= found.format <= FORMAT:
        raise unreadable(
            what, f"it has format {found.format}, and this version of Sardonyx reads formats {OLDEST} to {FORMAT}"
        )
    refuse_newer_rules(found.rules)
    if 0 < found.rules < OLDEST_RULES:  # the note of a snapshot says none: its state does
        raise unreadable(what, older_rules(found.rules))


def unreadable(what: str, why: str) -> SetupError:
    return SetupError(
        "SX-LOG-FORMAT",
        f"{what} cannot be read: {why}",
        cause="another version of Sardonyx made the deployment, or another program wrote to it",
        fix="run the version that made it, or choose a new deployment name",
    )


def restore_unfinished(deployment: str) -> SetupError:
    """The nodes are those of a restore that has not come to its end."""
    return SetupError(
        "SX-RESTORE-UNFINISHED",
        f"the restore of deployment {deployment} is not complete",
        cause="`sardonyx restore` still runs, or it was interrupted",
        fix="wait for it, or run `sardonyx restore FILE` again: it begins anew",
    )


def _missing(zk: ZooKeeperSession, n: int) -> SardonyxError:
    """Why entry ``n`` does not exist. ``/log`` is set before entries are removed, so the two reasons cannot be confused."""
    first = begins(zk)
    return compacted(n, first) if n < first else gap(n)


def gap(n: int) -> InternalError:
    """Entry ``n`` is missing from the log, and no snapshot covers it."""
    return InternalError(
        "SX-INTERNAL-LOG-GAP",
        f"the log has no entry {n}, and no snapshot covers it",
        cause="the entry was removed by hand, or ZooKeeper was restored in part",
        fix="restore the whole deployment in ZooKeeper, or start a new one under another name",
        where={"n": n},
    )


def compacted(n: int, first: int) -> SardonyxError:
    return SardonyxError(
        "SX-LOG-COMPACTED",
        f"the log does not reach back to entry {n} any more; it begins at {first}",
        cause="the coordinator removes entries that are older than coordinator.keep_log allows",
        fix="ask for a later number; from now on a larger coordinator.keep_log keeps more, and coordinator.log_archive all",
    )
