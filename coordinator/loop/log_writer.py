"""Appends events to the log, several transactions in flight at once. :mod:`coordinator.loop.event_log` reads it.

What must be durable first:

- an entry is in the log before anything is decided about it;
- the request that an event came from leaves the inbox in the transaction that appends the event, so it becomes an event once;
- each transaction is refused unless the one before it succeeded, so the log has no hole wherever writing stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from coordinator.loop.event_log import FIRST, Entry
from coordinator.loop.leader_metrics import APPEND_SECONDS
from coordinator.loop.limits import DEFAULT, Limits
from coordinator.loop.pipeline import PendingCommit, WritePipeline
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete
from sardonyx.core.errors import InternalError
from sardonyx.core.events import FORMAT, RULES, AnyEvent
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, OPERATION_OVERHEAD, Check, Operation

if TYPE_CHECKING:
    from coordinator.loop.election import Leadership


class PendingEntry(msgspec.Struct, frozen=True, gc=False):
    """An event that is to be appended, and the inbox node it came from, which is deleted in the same transaction."""

    event: AnyEvent
    inbox: str = ""
    """Name of the node below ``/inbox``; empty for events that the coordinator makes itself."""
    request: str = ""
    """The uuid in that name."""


class _EncodedBatch(msgspec.Struct, frozen=True):
    """A :class:`coordinator.loop.event_log.Batch` whose entries are encoded already."""

    format: int
    entries: list[msgspec.Raw]
    rules: int


_encoder = msgspec.json.Encoder(order="deterministic")


# Packing. Pure.


@dataclass(slots=True)
class LogNode:
    """One node of the log that is to be created: a batch of entries, and the inbox nodes that are deleted with it."""

    first: int
    """The number of its first entry."""
    entries: list[PendingEntry] = field(default_factory=list)
    encoded: list[msgspec.Raw] = field(default_factory=list)
    deletes: list[Operation] = field(default_factory=list)
    filled: int = 0
    """Bytes of the encoded entries."""
    bytes_of_deletes: int = 0
    rules: int = RULES

    @property
    def size(self) -> int:
        """Bytes in a transaction, about."""
        return self.filled + self.bytes_of_deletes

    def add(self, entry: PendingEntry, encoded: bytes) -> None:
        self.entries.append(entry)
        self.encoded.append(msgspec.Raw(encoded))
        self.filled += len(encoded) + 1
        if entry.inbox:
            path = f"{node_paths.INBOX}/{entry.inbox}"
            self.deletes.append(Delete(path))
            self.bytes_of_deletes += OPERATION_OVERHEAD + len(path)

    def operations(self) -> list[Operation]:
        """Creates the node, and its bucket if it is the first one in it; deletes the requests."""
        first = self.first
        opens = first == FIRST or first % node_paths.LOG_BUCKET == 0
        bucket = [Create(node_paths.log_bucket(first))] if opens else []
        data = _encoder.encode(_EncodedBatch(FORMAT, self.encoded, self.rules))
        return [*bucket, Create(node_paths.log_batch(first), data), *self.deletes]


@dataclass(slots=True)
class LogTransaction:
    """Nodes of the log that are created in one transaction."""

    nodes: list[LogNode]
    size: int

    @property
    def last(self) -> int:
        """The number of its last entry."""
        return self.nodes[-1].first + len(self.nodes[-1].entries) - 1

    @property
    def entries(self) -> list[PendingEntry]:
        return [entry for node in self.nodes for entry in node.entries]

    def operations(self) -> list[Operation]:
        return [operation for node in self.nodes for operation in node.operations()]


def pack(
    first: int, entries: Iterable[PendingEntry], *, leader: str = "", limits: Limits = DEFAULT
) -> list[LogTransaction]:
    """The transactions that append these entries, in order.

    Args:
        first: the number of the first entry.
        entries: what is to be appended.
        leader: goes with the first entry, if a leadership appends for the first time.
        limits: ``log_node`` and ``transaction``.

    Raises:
        InternalError: ``SX-INTERNAL-ENTRY-SIZE``: an entry is too large for the log.
    """
    transactions: list[LogTransaction] = []
    for node in _nodes(first, entries, leader, limits.log_node):
        if transactions and transactions[-1].size + node.size <= limits.transaction:
            transactions[-1].nodes.append(node)
            transactions[-1].size += node.size
        else:
            transactions.append(LogTransaction([node], node.size))
    return transactions


def _nodes(first: int, entries: Iterable[PendingEntry], leader: str, most: int) -> list[LogNode]:
    """Nodes of at most so many bytes, unless one entry alone is larger; none across the end of a bucket."""
    nodes: list[LogNode] = []
    node = LogNode(first)
    for n, entry in enumerate(entries, first):
        encoded = _encoder.encode(Entry(entry.event, entry.request, leader if n == first else ""))
        if len(encoded) > 2 * ENTRY_LIMIT:  # a request has at most half of it; the rest is the entry around it
            raise InternalError(
                "SX-INTERNAL-ENTRY-SIZE", f"log entry {n} has {len(encoded):,} bytes; {2 * ENTRY_LIMIT:,} is the most"
            )
        if node.entries and (node.filled + len(encoded) > most or n % node_paths.LOG_BUCKET == 0):
            nodes.append(node)
            node = LogNode(n)
        node.add(entry, encoded)
    return [*nodes, node] if node.entries else nodes


# Writing


class LogChain:
    """Each transaction checks that the last node which the one before it created is there."""

    def __init__(self) -> None:
        self._before: list[Operation] = []

    def link(self, operations: list[Operation], n: int) -> list[Operation]:
        del n
        linked = [*self._before, *operations]
        created = [operation.path for operation in operations if isinstance(operation, Create)]
        self._before = [Check(created[-1])]
        return linked


class Appended:
    """Entries on their way into the log."""

    __slots__ = ("_commit", "entries")

    def __init__(self, entries: Sequence[PendingEntry], commit: PendingCommit) -> None:
        self.entries = entries
        self._commit = commit

    def wait(self) -> Sequence[PendingEntry]:
        """The entries, once they are in the log. Raises as :meth:`PendingCommit.wait`."""
        self._commit.wait()
        return self.entries


class LogWriter:
    """Appends to the log.

    Args:
        leadership: whose epoch each write checks.
        last: the number of the last entry in the log.
        limits: sizes.
        rules: by which the entries are decided.
    """

    def __init__(self, leadership: Leadership, last: int = 0, limits: Limits = DEFAULT, *, rules: int = RULES) -> None:
        self.rules = rules
        """The rules by which what is appended is decided."""
        self._leadership = leadership
        self._limits = limits
        self._next = last + 1
        self._rest: list[PendingEntry] = []
        """Entries that do not fill a transaction yet."""
        self._pipeline = WritePipeline(
            leadership, "append", LogChain(), durable=last, in_flight=limits.in_flight, seconds=APPEND_SECONDS
        )

    @property
    def full(self) -> bool:
        """Whether an entry that is in flight should be waited for before more is appended."""
        return self._pipeline.full

    def add(self, entries: Iterable[PendingEntry]) -> list[LogTransaction]:
        """Take in entries. Returns the transactions that are full; each must be submitted, in order.

        Raises:
            InternalError: ``SX-INTERNAL-ENTRY-SIZE``: an entry is too large for the log.
        """
        leader = self._leadership.unlogged_leader
        transactions = pack(self._next, [*self._rest, *entries], leader=leader, limits=self._limits)
        self._rest = transactions.pop().entries if transactions else []
        return self._packed(transactions)

    def rest(self) -> list[LogTransaction]:
        """What was taken in and is not in a full transaction; must be submitted."""
        rest, self._rest = self._rest, []
        leader = self._leadership.unlogged_leader
        return self._packed(pack(self._next, rest, leader=leader, limits=self._limits))

    def _packed(self, transactions: list[LogTransaction]) -> list[LogTransaction]:
        for transaction in transactions:
            for node in transaction.nodes:
                node.rules = self.rules
        if transactions:
            self._next = transactions[-1].last + 1
            self._leadership.unlogged_leader = ""
        return transactions

    def submit(self, transaction: LogTransaction) -> Appended:
        """Send a transaction; waits for the oldest one first if :attr:`full`. Raises as :meth:`WritePipeline.submit`."""
        return Appended(transaction.entries, self._pipeline.submit(transaction.operations(), transaction.last))


def append(leadership: Leadership, first: int, entries: Iterable[PendingEntry], limits: Limits = DEFAULT) -> None:
    """Append events as entries ``first``, ``first + 1`` ..., and wait until they are in the log.

    In one transaction, or in several in order if they are too large for one: those before the one that fails stay in the log,
    and the other requests stay in the inbox.

    Raises:
        Deposed, TransactionFailed, OutcomeUnknown, SessionLost, LeadershipEnded: as :meth:`Leadership.commit`.
        InternalError: ``SX-INTERNAL-ENTRY-SIZE``: an entry is too large for the log.
    """
    log = LogWriter(leadership, first - 1, limits)
    appended = [log.submit(transaction) for transaction in [*log.add(entries), *log.rest()]]
    for sent in appended:
        sent.wait()
