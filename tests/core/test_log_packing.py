"""How entries are packed into nodes of the log and into transactions. Pure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from coordinator.loop.event_log import decode_batch
from coordinator.loop.limits import Limits
from coordinator.loop.log_writer import LogChain, LogTransaction, LogWriter, PendingEntry, pack
from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Delete
from sardonyx.core.errors import InternalError
from sardonyx.core.events import Evicted
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, Check

if TYPE_CHECKING:
    from coordinator.loop.election import Leadership

SIZE = 100
"""Bytes of one encoded entry."""
AROUND = len('{"event":{"kind":"evict","peer":""}}')


def entry(size: int = SIZE, inbox: str = "") -> PendingEntry:
    return PendingEntry(Evicted(peer="p" * (size - AROUND)), inbox)


def layout(transactions: list[LogTransaction]) -> list[list[tuple[int, int]]]:
    """By transaction, the first number and the count of entries of each node."""
    return [[(node.first, len(node.entries)) for node in transaction.nodes] for transaction in transactions]


@pytest.mark.parametrize(
    ("first", "count", "limits", "wanted"),
    [
        (1, 0, Limits(), []),
        (1, 3, Limits(), [[(1, 3)]]),
        (1, 5, Limits(log_node=2 * SIZE), [[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]]),  # a comma follows each
        (1, 5, Limits(log_node=2 * SIZE + 1), [[(1, 2), (3, 2), (5, 1)]]),
        (1, 5, Limits(log_node=SIZE - 1), [[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]]),  # larger than a node: alone
        (998, 5, Limits(), [[(998, 2), (1000, 3)]]),  # never across the end of a bucket
        (1, 5, Limits(log_node=2 * SIZE + 1, transaction=4 * SIZE + 4), [[(1, 2), (3, 2)], [(5, 1)]]),
        (1, 5, Limits(log_node=2 * SIZE + 1, transaction=4 * SIZE + 3), [[(1, 2)], [(3, 2), (5, 1)]]),
        (1, 5, Limits(log_node=2 * SIZE + 1, transaction=1), [[(1, 2)], [(3, 2)], [(5, 1)]]),
    ],
)
def test_entries_are_packed_by_size(
    first: int, count: int, limits: Limits, wanted: list[list[tuple[int, int]]]
) -> None:
    """Nodes are filled up to their limit, and transactions with whole nodes up to theirs."""
    transactions = pack(first, [entry() for _ in range(count)], limits=limits)
    assert layout(transactions) == wanted
    assert sum(len(transaction.entries) for transaction in transactions) == count
    if transactions:
        assert transactions[-1].last == first + count - 1


def test_a_transaction_creates_nodes_and_deletes_the_requests_they_came_from() -> None:
    """The bucket comes first if it is new; the requests of an entry go in its transaction."""
    (transaction,) = pack(999, [entry(), entry(inbox="evict-0f1e-0000000001")], leader="h:1")
    old, bucket, new, delete = transaction.operations()
    assert isinstance(old, Create)
    assert isinstance(new, Create)
    assert [old.path, new.path] == [node_paths.log_batch(999), node_paths.log_batch(1000)]
    assert bucket == Create(node_paths.log_bucket(1000))
    assert delete == Delete("/inbox/evict-0f1e-0000000001")
    assert [found.leader for found in decode_batch(999, old.data)] == ["h:1"]
    assert [found.leader for found in decode_batch(1000, new.data)] == [""]


def test_deleted_requests_count_towards_the_size_of_a_transaction() -> None:
    """A transaction of many small entries with their requests is sent before it grows too large."""
    entries = [entry(inbox=f"evict-0f1e-{n:010d}") for n in range(8)]
    limits = Limits(log_node=2 * SIZE + 1, transaction=4 * SIZE + 4)
    assert layout(pack(1, entries, limits=limits)) == [[(1, 2)], [(3, 2)], [(5, 2)], [(7, 2)]]


def test_an_entry_that_is_too_large_is_refused() -> None:
    """Before anything of the same batch is sent."""
    pack(1, [entry(2 * ENTRY_LIMIT)])
    with pytest.raises(InternalError) as caught:
        pack(1, [entry(), entry(2 * ENTRY_LIMIT + 1)])
    assert caught.value.code == "SX-INTERNAL-ENTRY-SIZE"


def test_each_transaction_checks_the_node_of_the_one_before_it() -> None:
    """So ZooKeeper refuses all that come after a refused one."""
    one, other = (Create(node_paths.log_batch(n)) for n in (1, 5))
    chain = LogChain()
    assert chain.link([one, Delete("/inbox/a")], 4) == [one, Delete("/inbox/a")]
    assert chain.link([other], 9) == [Check(one.path), other]
    assert chain.link([one], 9) == [Check(other.path), one]


def test_a_writer_keeps_back_what_does_not_fill_a_transaction() -> None:
    """What comes in small portions is sent as if it had come at once; only the first entry names the leader."""
    leadership = SimpleNamespace(unlogged_leader="h:1")
    entries = [entry() for _ in range(10)]
    writer = LogWriter(cast("Leadership", leadership), 6, Limits(log_node=4 * SIZE, transaction=4 * SIZE))
    sent = [
        found for portion in (entries[:1], entries[1:3], entries[3:9], entries[9:]) for found in writer.add(portion)
    ]
    assert layout(sent) == [[(7, 3)], [(10, 3)], [(13, 3)]]
    assert leadership.unlogged_leader == ""
    assert layout(writer.rest()) == [[(16, 1)]]
    assert writer.rest() == []
    assert writer.add([]) == []
    assert layout(writer.add(entries) + writer.rest())[0] == [(17, 3)]
