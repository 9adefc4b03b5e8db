"""The leader's write pipeline: in order, a few in flight, and one notion of how far everything is durable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from coordinator.loop.effects_writer import CheckpointChain, EffectsWriter
from coordinator.loop.limits import Limits
from coordinator.loop.pipeline import WritePipeline
from sardonyx.core.effects import Create
from sardonyx.runtime.clock import REAL
from sardonyx.zookeeper.transactions import Operation, SetIf

if TYPE_CHECKING:
    from coordinator.loop.election import Leadership


class Refused(Exception):
    """What ZooKeeper says to a transaction that it refuses."""


class Server:
    """A leadership whose ZooKeeper answers when it is asked to, and refuses a transaction on ``/refused``."""

    def __init__(self) -> None:
        self.zk = SimpleNamespace(runtime=REAL)
        self.sent: list[list[Operation]] = []
        self.answered = 0

    def begin(self, operations: Iterable[Operation]) -> Callable[[], None]:
        wanted = list(operations)
        self.sent.append(wanted)

        def finish() -> None:
            self.answered += 1
            for operation in wanted:
                if operation.path == "/refused":
                    raise Refused

        return finish


def pipeline(server: Server, **given: Any) -> WritePipeline:
    return WritePipeline(cast("Leadership", server), "test", **given)


def test_so_many_are_in_flight_and_the_oldest_is_waited_for() -> None:
    """Sending more waits for the oldest one first; draining waits for all."""
    server = Server()
    writes = pipeline(server, in_flight=3)
    for n in range(1, 4):
        assert not writes.full
        writes.submit([Create(f"/{n}")], n)
    assert (writes.full, server.answered, writes.in_flight) == (True, 0, 3)
    writes.submit([Create("/4")], 4)
    assert (server.answered, writes.durable, writes.submitted) == (1, 1, 4)
    writes.drain()
    assert (server.answered, writes.durable, writes.in_flight) == (4, 4, 0)


def test_a_commit_is_waited_for_with_all_before_it() -> None:
    """So whatever is durable is so up to one entry."""
    server = Server()
    writes = pipeline(server)
    first, second, third = (writes.submit([Create(f"/{n}")], n) for n in (3, 5, 9))
    second.wait()
    assert (first.done, second.done, third.done) == (True, True, False)
    assert (writes.durable, second.n) == (5, 5)
    second.wait()
    assert server.answered == 2


def test_a_transaction_that_covers_no_further_entry_leaves_durable_as_it_is() -> None:
    """The parts of an entry's effects cover it only with the last one."""
    writes = pipeline(Server(), durable=7)
    part = writes.submit([Create("/part")])
    last = writes.submit([Create("/last")], 8)
    part.wait()
    assert writes.durable == 7
    last.wait()
    assert writes.durable == 8


def test_a_refusal_is_raised_to_who_waits() -> None:
    """Also to who waits for a later one; nothing after it counts as durable."""
    writes = pipeline(Server())
    writes.submit([Create("/fine")], 1)
    writes.submit([Create("/refused")], 2)
    later = writes.submit([Create("/later")], 3)
    with pytest.raises(Refused):
        later.wait()
    assert (writes.durable, later.done) == (1, False)


def checkpoints(server: Server) -> list[tuple[int, int]]:
    """Of each transaction, what it sets the checkpoint to and from which version."""
    sets = [operation for sent in server.sent for operation in sent if isinstance(operation, SetIf)]
    assert len(sets) == len(server.sent), "a transaction does not set the checkpoint"
    return [(int(operation.data), operation.version) for operation in sets]


def test_effects_set_the_checkpoint_from_the_version_before() -> None:
    """Each transaction depends on the one before it, and entries without effects are covered too."""
    server = Server()
    effects = EffectsWriter(cast("Leadership", server), 4, 2, Limits(transaction=1_000))
    effects.add(5, [Create("/a", b"x" * 600)])
    assert server.sent == []
    effects.add(6, [Create("/b", b"x" * 600)])
    effects.add(7, [])
    effects.flush()
    effects.flush()
    assert checkpoints(server) == [(6, 2), (7, 3)]
    assert effects.durable == 4
    effects.drain()
    assert effects.durable == 7


def test_effects_too_large_for_one_transaction_are_covered_by_the_last() -> None:
    """What was gathered before goes in a transaction of its own."""
    server = Server()
    effects = EffectsWriter(cast("Leadership", server))
    effects.add(1, [Create("/small")])
    effects.add(2, [Create(f"/large/{n}", b"x" * 50_000) for n in range(10)])
    effects.flush()
    assert checkpoints(server) == [(1, 0), (1, 1), (2, 2)]
    assert [len(sent) for sent in server.sent] == [2, 6, 6]


def test_the_version_of_the_checkpoint_wraps_around() -> None:
    """ZooKeeper counts versions with 32 bits and a sign."""
    chain = CheckpointChain(2**31 - 1)
    assert [chain.link([], n)[0].version for n in (1, 2)] == [2**31 - 1, -(2**31)]  # type: ignore[union-attr]
