"""Nodes that other programs put below those of the coordinator go with them: what cannot be deleted would stop all jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
from kazoo.exceptions import NotEmptyError

from sardonyx.core import node_paths
from sardonyx.core.events import Evicted
from sardonyx.zookeeper.errors import TransactionFailed
from tests.simulation.oracle import ROOT
from tests.simulation.plans import random_plan
from tests.simulation.world import World, instrumented
from tests.sizes import histories

HISTORIES = histories(4, whole=60)


class _Hears(instrumented):
    """A leadership may end because a node cannot be deleted that has others below it."""

    _world: ForeignWorld

    def _heard(self, logger: object, method: str, event: dict[str, Any]) -> Any:
        error = event.get("exc_info")
        if isinstance(error, TransactionFailed) and isinstance(error.reason, NotEmptyError):
            self._world.broken.append(error.where["path"])
            raise structlog.DropEvent
        return super()._heard(logger, method, event)


class ForeignWorld(World):
    """A history in which a program puts nodes below those of each job, and of a peer that is evicted then. Jobs that have ended
    are purged at once.
    """

    def __init__(self, seed: str) -> None:
        super().__init__(msgspec.structs.replace(random_plan(seed), faults=[], keep_jobs=0))
        self.broken: list[object] = []
        """The nodes at whose deletion leaderships have ended."""
        self._put_below: set[str] = set()
        self._evicted = ""

    def _instrumented(self) -> Any:
        return _Hears(self)

    def _begin(self) -> None:
        super()._begin()
        self.sim.at(0.5, self._look)

    def _look(self) -> None:
        for job in self.oracle.children(node_paths.JOB):
            self._put_nodes(node_paths.job(job), "note", "note/of", "note/of/someone", "task/more")
        for peer in self.oracle.children(node_paths.PEER_STATE)[:1]:
            if not self._evicted:
                self._evicted = peer
                self._put_nodes(node_paths.peer_state(peer), "note")
                self._ask(Evicted(peer=peer))
        if not self.settling:
            self.sim.at(0.5, self._look)

    def _put_nodes(self, path: str, *names: str) -> None:
        if path in self._put_below:
            return
        self._put_below.add(path)
        told, self.zookeeper.on_commit = self.zookeeper.on_commit, []  # the oracle lets only the leader write there
        for name in names:
            change = self.zookeeper._do("+", f"{ROOT}{path}/{name}", b"", 0)
            self.zookeeper._commit(None, [change], [])
        self.zookeeper.on_commit = told


def test_foreign_nodes_go_with_those_above_them(seed: int) -> None:
    """A job that is purged and a peer that dies leave nothing in the tree, though other programs have nodes there. The leadership
    that finds that out ends; the next one removes them, and all jobs come to their ends.
    """
    for number in range(HISTORIES):
        world = ForeignWorld(f"foreign/{seed}/{number}")
        world.play()  # which ends with a look at all nodes of jobs and peers
        assert world._put_below
        assert 0 < len(world.broken) <= len(world._put_below), world.broken
