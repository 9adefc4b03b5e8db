"""The replayable log in ZooKeeper, and the snapshots that shorten a replay.

What must be durable first: an entry stands in the log before anything is decided about it, and it leaves the inbox in the
transaction that puts it there, so a request becomes an event once. The parts of a snapshot stand before its own node
says how many they are and what they hash to, so a snapshot that was only half written is never taken for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgspec
import structlog

from coordinator import layout
from coordinator.events import FORMAT, AnyEvent, Create, Delete, Set
from coordinator.leadership import Leadership
from coordinator.operations import ENTRY_LIMIT, Operation, chunked
from coordinator.tree import Tree
from sardonyx.errors import InternalError, SetupError
from sardonyx.gates import gate

FIRST = 1
"""The number of the first entry; so 0 says "nothing yet"."""

PART = 512 * 1024
"""Bytes of one part of a snapshot."""

SNAPSHOTS_KEPT = 2
"""The latest, and the one before it, should the latest turn out unreadable."""

log = structlog.get_logger()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry as it stands in the log. ``request``: the uuid of the inbox node that it came in by, if it did."""

    format: int
    event: AnyEvent
    request: str = ""


class SnapshotNote(msgspec.Struct, frozen=True):
    """``/snapshot/<n>``, written last: what its parts make together."""

    format: int
    parts: int
    sha256: str


class Intake(msgspec.Struct, frozen=True):
    """What is to be appended: an event, and the inbox node it came in by, which goes in the same transaction."""

    event: AnyEvent
    inbox: str = ""
    """Name of the node below ``/inbox``; empty for events that the coordinator makes itself."""
    request: str = ""
    """The uuid in that name."""


_decoder = msgspec.json.Decoder(Entry)


class _Format(msgspec.Struct):
    format: int = 0


# Entries


def append(leadership: Leadership, first: int, intakes: Sequence[Intake]) -> None:
    """Write events as entries ``first``, ``first + 1`` ... and remove the requests they came from, all fenced.

    In one transaction, or in several in order if they are too large for one: what has been appended when it breaks off
    stands in the log and is out of the inbox, the rest is as it was.

    Raises:
        Deposed, TransactionFailed, OutcomeUnknown, SessionLost, LeadershipEnded: as :meth:`Leadership.commit`.
        InternalError: ``SX-INTERNAL-ENTRY-SIZE``.
    """
    for chunk in chunked(_entry_operations(n, intake) for n, intake in enumerate(intakes, first)):
        gate("before-append")
        leadership.commit(chunk)
        gate("after-append")


def _entry_operations(n: int, intake: Intake) -> list[Operation]:
    data = msgspec.json.encode(Entry(FORMAT, intake.event, intake.request), order="deterministic")
    if len(data) > 2 * ENTRY_LIMIT:  # a request has at most half of it; the rest is the entry around it
        raise InternalError(
            "SX-INTERNAL-ENTRY-SIZE", f"log entry {n} has {len(data):,} bytes; {ENTRY_LIMIT:,} is the most"
        )
    operations: list[Operation] = [Create(layout.log_entry(n), data)]
    if n == FIRST or n % layout.LOG_BUCKET == 0:
        operations.insert(0, Create(layout.log_bucket(n)))
    if intake.inbox:
        operations.append(Delete(f"{layout.INBOX}/{intake.inbox}"))
    return operations


def read_log(tree: Tree, first: int = 0) -> Iterator[tuple[int, AnyEvent]]:
    """The events from number ``first`` on, or from the oldest that is still kept, in order.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
        InternalError: ``SX-INTERNAL-LOG-GAP``: a number is missing.
    """
    for n, entry in read_entries(tree, first):
        yield n, entry.event


def read_entries(tree: Tree, first: int = 0) -> Iterator[tuple[int, Entry]]:
    """Like :func:`read_log`, with what else an entry holds. Read bucket by bucket: what is appended meanwhile may come."""
    before: int | None = None
    for bucket in tree.children(layout.LOG):
        if int(bucket) < first // layout.LOG_BUCKET:
            continue
        numbers = [n for n in map(int, tree.children(f"{layout.LOG}/{bucket}")) if n >= first]
        found = tree.read_many(map(layout.log_entry, numbers))
        for n in numbers:
            data = found.get(layout.log_entry(n))
            if data is None or (before is not None and n != before + 1):
                raise InternalError(
                    "SX-INTERNAL-LOG-GAP",
                    f"the log has no entry {n if data is None else (before or 0) + 1}",
                    cause="it was removed while the log was read, by compaction or by hand",
                    fix="read again; if it stays, the tree has been edited and cannot be replayed",
                )
            yield n, decode_entry(n, data)
            before = n


def decode_entry(n: int, data: bytes) -> Entry:
    """An entry from its bytes. Raises ``SX-LOG-FORMAT`` on another version's."""
    _refuse_other_format(f"log entry {n}", data)
    return _decoder.decode(data)


def last(tree: Tree) -> int:
    """The number of the latest entry; 0 if there is none."""
    for bucket in reversed(tree.children(layout.LOG)):
        entries = tree.children(f"{layout.LOG}/{bucket}")
        if entries:
            return int(entries[-1])
    return 0


def tail(tree: Tree, n: int) -> list[tuple[int, AnyEvent]]:
    """The last ``n`` events, oldest first."""
    return list(read_log(tree, max(last(tree) - n + 1, 0)))[-n:] if n > 0 else []


def read_checkpoint(tree: Tree) -> int:
    """The number of the last event whose effects are in the tree; 0 if there is none."""
    return int(tree.read(layout.CHECKPOINT) or 0)


def checkpoint(n: int) -> Set:
    """The operation that moves the checkpoint."""
    return Set(layout.CHECKPOINT, str(n).encode())


def compact(leadership: Leadership, *, keep: int) -> int:
    """Remove whole buckets that are behind the latest-but-one snapshot by more than ``keep`` entries. How many entries."""
    tree = leadership.tree
    kept = complete_snapshots(tree)
    if len(kept) < SNAPSHOTS_KEPT:
        return 0
    oldest_bucket = max(kept[-SNAPSHOTS_KEPT] - keep, 0) // layout.LOG_BUCKET
    removed = 0
    for bucket in tree.children(layout.LOG):
        if int(bucket) >= oldest_bucket:
            break
        entries = [Delete(layout.log_entry(int(name))) for name in tree.children(f"{layout.LOG}/{bucket}")]
        removed += len(entries)
        for chunk in chunked([entry] for entry in [*entries, Delete(f"{layout.LOG}/{bucket}")]):
            leadership.commit(chunk)
    return removed


# Snapshots


def write_snapshot(leadership: Leadership, n: int, state: bytes) -> None:
    """Store the state after event ``n``, and remove all but the latest two snapshots."""
    tree = leadership.tree
    _remove_snapshot(leadership, n)  # a leader may have died while it wrote this very one
    parts = [state[at : at + PART] for at in range(0, max(len(state), 1), PART)]
    leadership.commit([Create(layout.snapshot(n))])
    for number, part in enumerate(parts):
        leadership.commit([Create(layout.snapshot_part(n, number), part)])
        gate("in-snapshot")
    note = SnapshotNote(FORMAT, len(parts), hashlib.sha256(state).hexdigest())
    leadership.commit([Set(layout.snapshot(n), msgspec.json.encode(note))])
    kept = set(complete_snapshots(tree)[-SNAPSHOTS_KEPT:])
    for name in tree.children(layout.SNAPSHOT):
        if int(name) not in kept:
            _remove_snapshot(leadership, int(name))


def complete_snapshots(tree: Tree) -> list[int]:
    """The numbers of the snapshots that were written to their end, oldest first."""
    numbers = list(map(int, tree.children(layout.SNAPSHOT)))
    notes = tree.read_many(map(layout.snapshot, numbers))
    return [n for n in numbers if notes.get(layout.snapshot(n))]


def load_snapshot(tree: Tree) -> tuple[int, bytes] | None:
    """The latest snapshot that is whole: after which event, and the state's bytes. None if there is none.

    Raises:
        SetupError: ``SX-LOG-FORMAT``: written by another version of Sardonyx.
    """
    for n in reversed(complete_snapshots(tree)):
        data = tree.read(layout.snapshot(n)) or b"{}"
        _refuse_other_format(f"snapshot {n}", data)
        note = msgspec.json.decode(data, type=SnapshotNote)
        found = tree.read_many(layout.snapshot_part(n, part) for part in range(note.parts))
        state = b"".join(found.get(layout.snapshot_part(n, part), b"") for part in range(note.parts))
        if hashlib.sha256(state).hexdigest() == note.sha256:
            return n, state
        log.warning("snapshot is damaged, the one before it is taken", n=n, snapshot=layout.snapshot(n))
    return None


def _remove_snapshot(leadership: Leadership, n: int) -> None:
    """Its note goes first: from then on it is no snapshot."""
    tree = leadership.tree
    if tree.read(layout.snapshot(n)) is None:
        return
    parts = [Delete(layout.snapshot_part(n, int(name))) for name in tree.children(layout.snapshot(n))]
    leadership.commit([Set(layout.snapshot(n), b""), *parts, Delete(layout.snapshot(n))])


def _refuse_other_format(what: str, data: bytes) -> None:
    found = msgspec.json.decode(data, type=_Format).format
    if found != FORMAT:
        raise SetupError(
            "SX-LOG-FORMAT",
            f"{what} has format {found}, and this version of Sardonyx reads format {FORMAT}",
            cause="the deployment was made by another version",
            fix="run the version that made it, or choose a fresh deployment",
        )
