"""One virtual peer and its state node: when it accepts a task, and what it tells in its pulse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import peer.virtual_peer
from peer.assignment import AssignmentHandle
from peer.virtual_peer import LONG, VirtualPeer
from sardonyx.core import node_paths
from sardonyx.core.events import Acked
from sardonyx.core.notes import Assignment, BatchInHand, PeerNote, PulseNote, ServiceAway
from sardonyx.runtime.clock import Runtime
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.errors import ZooKeeperAway

PULSE, STATE = node_paths.pulse("p"), node_paths.peer_state("p")
PLACE = Assignment(id=7, job="j", task="t", slot=0)


class _Clock(Runtime):
    time = 1000.0

    def wall(self) -> float:
        return self.time

    def now(self) -> float:
        return self.time

    def spawn(self, name: str, run: Callable[[], None]) -> Any:
        run()
        return None


class _Tree:
    """As much of a session as a virtual peer needs."""

    connected, away = True, False

    def __init__(self) -> None:
        self.runtime = _Clock()
        self.nodes: dict[str, bytes] = {}
        self.writes = 0
        self.requests: list[object] = []

    def create(self, path: str, data: bytes, *, ephemeral: bool) -> bool:
        assert ephemeral
        self.nodes[path] = data
        return True

    def read(self, path: str, watch: object = None) -> bytes | None:
        return self.nodes.get(path)

    def request(self, event: object) -> None:
        self.requests.append(event)

    def commit(self, operations: list[Any]) -> None:
        if self.away:
            raise ZooKeeperAway("SX-ZK-AWAY", "no answer")
        for operation in operations:
            self.nodes[operation.path] = operation.data
            self.writes += 1

    @property
    def batch(self) -> BatchInHand | None:
        return self.pulse.batch

    @property
    def pulse(self) -> PulseNote:
        return msgspec.json.decode(self.nodes[PULSE], type=PulseNote)


class _Runner:
    handle: AssignmentHandle

    def prepare(self, *_: object) -> object:
        return object()

    def work(self, _prepared: object, handle: AssignmentHandle, _zk: object) -> None:
        self.handle = handle


def _at_work(monkeypatch: pytest.MonkeyPatch) -> tuple[_Tree, _Runner, VirtualPeer]:
    """A peer that works on a task."""
    monkeypatch.setattr(peer.virtual_peer, "_LOOK_ANYWAY", 0.0)
    tree, runner = _Tree(), _Runner()
    found = VirtualPeer(Settings(), tree, runner, "p", PulseNote(host="h"), lambda: None)  # type: ignore[arg-type]
    found._turn()
    for state in ("acking", "active"):
        tree.nodes[STATE] = msgspec.json.encode(PeerNote(state=state, n=7, assignment=PLACE))  # type: ignore[arg-type]
        found._turn()
    return tree, runner, found


def test_a_batch_that_takes_long_is_told_and_one_that_is_over_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writes for a batch that takes long, none for others. While ZooKeeper is away it is tried again, and nothing is lost."""
    tree, runner, found = _at_work(monkeypatch)
    batch = runner.handle.in_hand = BatchInHand(PLACE.id, 5_000, tree.runtime.wall())
    found._turn()
    assert (tree.batch, tree.writes) == (None, 0)
    tree.runtime.time += LONG
    tree.away = True
    found._turn()
    assert tree.batch is None
    tree.away = False
    for _ in range(3):
        found._turn()
    assert (tree.batch, tree.writes) == (batch, 1)
    assert msgspec.json.decode(tree.nodes[PULSE], type=PulseNote).host == "h"
    runner.handle.in_hand = None
    for _ in range(3):
        found._turn()
    assert (tree.batch, tree.writes) == (None, 2)


@pytest.mark.parametrize("joins", [False, True])
def test_a_task_on_which_others_work_is_accepted_a_second_later(monkeypatch: pytest.MonkeyPatch, joins: bool) -> None:
    """Any other one at once. Nothing is said of one that is complete by then."""
    monkeypatch.setattr(peer.virtual_peer, "_LOOK_ANYWAY", 0.0)
    tree = _Tree()
    found = VirtualPeer(Settings(), tree, _Runner(), "p", PulseNote(host="h"), lambda: None)  # type: ignore[arg-type]
    found._turn()

    def offered(place: Assignment | None) -> None:
        state = "idle" if place is None else "acking"
        tree.nodes[STATE] = msgspec.json.encode(PeerNote(state, 7, place, joins=joins))  # type: ignore[arg-type]
        found._turn()

    offered(PLACE)
    assert tree.requests == ([] if joins else [Acked(peer="p", assignment=PLACE.id)])
    offered(None)
    later = Assignment(id=8, job="j", task="t", slot=0)
    offered(later)
    tree.runtime.time += 0.9
    found._turn()
    tree.requests.clear()
    tree.runtime.time += 0.2
    found._turn()
    assert tree.requests == ([Acked(peer="p", assignment=later.id)] if joins else [])


def test_a_service_that_a_task_waits_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has waited for ten seconds, beside a batch, and until it answers."""
    tree, runner, found = _at_work(monkeypatch)
    away = ServiceAway(PLACE.id, "SX-DATABASE-UNREACHABLE", "no answer", tree.runtime.wall())
    runner.handle.away, runner.handle.in_hand = away, BatchInHand(PLACE.id, 7, tree.runtime.wall() + 1)
    found._turn()
    assert (tree.pulse.away, tree.writes) == (None, 0)
    tree.runtime.time += LONG
    for _ in range(3):
        found._turn()
    assert (tree.pulse.away, tree.batch, tree.writes) == (away, None, 1)
    runner.handle.away = None
    found._turn()
    assert (tree.pulse.away, tree.writes) == (None, 2)
