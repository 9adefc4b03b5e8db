"""Histories in which each shard that moves is taken from a process that has followed its log, if it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peer.prepared_task import PreparedTask
from peer.shards import Shards
from peer.standby import FollowedShard
from peer.state_keeper import TopicKeeper
from queues.messages import Followed, Logged
from sardonyx.core.positions import Partition
from sardonyx.state.messages import Mark
from sardonyx.state.restore import Restore
from tests.simulation.engine import Waiter, current
from tests.simulation.simulate import drawn
from tests.simulation.timed import TimedRunner, TimedWorld
from tests.simulation.verdict import Wrong
from tests.sizes import histories

HISTORIES = histories(12, whole=60)


class SimStandby:
    """A process that follows the log of each shard that a peer has, and reads now and then. A log may be trimmed before that."""

    def __init__(self, world: TimedWorld) -> None:
        self._world = world
        self._followed: dict[Partition, FollowedShard] = {}
        self._read: dict[Partition, int] = {}
        self.shards: dict[str, Shards] = {}
        """By topic of the state log, shards of the task."""
        self.taken = self.given_up = 0

    def hold(self, place: Partition) -> None:
        mark = self._mark(place)
        if place not in self._followed and mark is not None:
            shards = self.shards[place.topic]
            stores, folder = shards.empty()
            restore = Restore(
                mark, stores.all, topic=place.topic, partition=place.number, others=shards.by_rows, make=stores.open
            )
            self._followed[place] = FollowedShard(place, restore, stores, folder)
            self._read[place] = restore.start
        elif int(self._world.sim.now * 1000) % 2:
            self._go_on(place)

    def let_go(self, place: Partition) -> None:
        if int(self._world.sim.now * 1000) % 2:
            self._go_on(place)

    def take(self, place: Partition, end: Callable[[], int]) -> FollowedShard | None:
        until, log = end(), self._world.kafka.broker.logs.get(place)
        while log is not None and log.stable < until:
            Waiter(current()).park(0.05)
        self._go_on(place)
        found = self._followed.pop(place, None)
        self.taken += found is not None
        return found

    def _go_on(self, place: Partition) -> None:
        log, shard = self._world.kafka.broker.logs.get(place), self._followed.get(place)
        if log is None or shard is None:
            return
        came = [
            Logged(offset, entry.headers, entry.value or b"")
            for offset, entry in log.committed(self._read[place], log.stable)
        ]
        self._read[place] = log.stable
        if not shard.take_in(Followed(came, log.stable)):
            del self._followed[place]
            self.given_up += 1

    def _mark(self, place: Partition) -> Mark | None:
        kafka = self._world.kafka
        for job, graph in kafka.graphs.items():
            for stage in graph.stages:
                if any(link.topic == place.topic for link in stage.egress):
                    position = kafka.group(stage, job).positions().get(Partition(stage.ingress[0].topic, place.number))
                    return None if position is None or position.state is None else Mark(*position.state)
        return None


class StandbyRunner(TimedRunner):
    """A peer whose process has what the others follow."""

    standby: SimStandby

    def _task(self, *given: Any) -> PreparedTask:
        task = super()._task(*given)
        if task.shards is not None:
            state = next(link for link in task.stage.egress if link.kind == "state")
            self.standby.shards[state.topic] = task.shards
            task.shards._standby = self.standby  # type: ignore[assignment]
        return task


class StandbyWorld(TimedWorld):
    """One history."""

    def __init__(self, seed: int) -> None:
        self.standby = SimStandby(self)
        super().__init__(drawn("clocks", str(seed)))

    def _make_runner(self, runtime: Any) -> TimedRunner:
        runner = StandbyRunner(self.kafka, runtime, self)
        runner.standby = self.standby
        return runner


def played() -> Iterator[tuple[int, str]]:
    """Play the histories: of each, how many shards were taken, and what failed."""
    for seed in range(HISTORIES):
        world, wrong = StandbyWorld(seed), ""
        try:
            world.play()
        except Wrong as error:
            wrong = f"history {seed}: {error}"
        yield world.standby.taken, wrong


def test_what_is_taken_over_counts_each_row_once() -> None:
    """Rows, panes and clocks are what the links call for, whether a shard was followed or read anew."""
    found = list(played())
    wrong = [told for _, told in found if told]
    assert not wrong, wrong
    taken = sum(count for count, _ in found)
    assert taken > HISTORIES // 4, taken


def test_the_simulation_notices_a_shard_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process took what it has followed without the rest of the log, and did not compare it with the position, some of these
    histories would fail.
    """

    def unchecked(keeper: TopicKeeper, number: int, mark: Mark, restore: Restore) -> Any:
        restore._seq, restore._parts = mark.seq, []
        return goes_on(keeper, number, mark, restore)

    goes_on = TopicKeeper.goes_on
    monkeypatch.setattr(TopicKeeper, "goes_on", unchecked)
    monkeypatch.setattr(SimStandby, "_go_on", lambda *_: None)
    assert any(wrong for _, wrong in played())
