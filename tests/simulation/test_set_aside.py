"""The coordinators cannot decide about some events of one job: whatever else goes wrong, that job fails, and no other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

import coordinator.loop.leader
from coordinator.core import decide
from coordinator.core.changeset import ChangeSet
from coordinator.core.decide import Undecided
from coordinator.core.scheduling import Offer
from coordinator.core.setting_aside import concerned
from coordinator.core.state import new_state
from coordinator.core.stored_state import encode_state
from coordinator.history import backup, reader
from coordinator.history.backup import BackupFile
from coordinator.history.replay import Verdict
from sardonyx.client.shares import set_policy
from sardonyx.core.errors import Failure, SardonyxError
from sardonyx.core.events import Acked, Completed, Exhausted, JobSubmitted, LinksCreated, PolicySet, SetAside
from sardonyx.web.live import LiveSource
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from tests.simulation.engine import SimRuntime
from tests.simulation.plans import random_plan
from tests.simulation.verdict import Stuck
from tests.simulation.world import World
from tests.sizes import histories

HISTORIES = histories(16, whole=120)
SHARES = histories(1, whole=8)
"""Tests over which they are spread: several processes run them."""
VICTIM = "j0"
KINDS: list[type] = [JobSubmitted, LinksCreated, Acked, Exhausted, Completed]


def defect(monkeypatch: pytest.MonkeyPatch, kind: type | None) -> None:
    """A handler fails for events of one job; or, without a kind, any event after which that job would get a peer."""
    if kind is None:
        offer = ChangeSet.offer

        def offers(changes: ChangeSet, found: Offer) -> None:
            if found.job == VICTIM:
                raise KeyError("a defect")
            offer(changes, found)

        monkeypatch.setattr(ChangeSet, "offer", offers)
        return
    handler: Callable[[ChangeSet, Any], None] = decide._HANDLERS[kind]

    def handles(changes: ChangeSet, event: Any) -> None:
        job = concerned(changes.state, event)
        handler(changes, event)  # the state is changed, perhaps in part
        if job == VICTIM:
            raise KeyError("a defect")

    monkeypatch.setitem(decide._HANDLERS, kind, handles)


class DefectWorld(World):
    """A history whose log is read all the time, and in the end in every way, by readers that have the defect, too."""

    def __init__(self, seed: str, file: Path, **differently: object) -> None:
        super().__init__(msgspec.structs.replace(random_plan(seed), **differently))
        self.defect = True
        self.file = file
        self.verdict: Verdict | None = None

    def _begin(self) -> None:
        super()._begin()
        self.user.spawn("reads", self._look)

    def _look(self) -> None:
        runtime = SimRuntime(self.user)
        while not self.settling:
            runtime.sleep(0.3)
            try:
                if self._user_tree is not None:
                    reader.present(self._user_tree)
            except (Undecided, ZooKeeperAway, SessionLost):  # at that moment it cannot be decided
                continue

    def _settle(self) -> None:
        super()._settle()
        self.user.spawn("verifies", self._verify)
        # A peer that had been paused may ask for something once more meanwhile, and is answered.
        self._until("is verified", lambda world: self.oracle.unfinished(world) if self.verdict else ["the log is read"])

    def _verify(self) -> None:
        assert self._user_tree is not None
        backup.write(self._user_tree, self.file, "test")
        for state in (BackupFile(self.file).state, reader.present(self._user_tree)):
            wanted = decide.replay(enumerate(self.oracle.events[: state.n], 1), deployment="sim")
            assert encode_state(state) == encode_state(wanted)
        self.verdict = reader.verify(self._user_tree)


@pytest.mark.parametrize("share", range(SHARES))
def test_one_job_never_stops_the_others(seed: int, tmp_path: Path, share: int) -> None:
    """Histories with a defect come to the same end as others: what is not of the job goes its way, and every replay agrees."""
    found: Counter[str] = Counter()
    numbers = range(share, HISTORIES, SHARES)
    for number in numbers:
        name = f"defect/{seed}/{number}"
        kind = [*KINDS, None][number // SHARES % (len(KINDS) + 1)]
        world = DefectWorld(name, tmp_path / "backup")
        with pytest.MonkeyPatch.context() as patch:
            defect(patch, kind)
            world.play()
        assert world.verdict is not None
        assert world.verdict.ok, f"{name}: {world.verdict.findings}"
        aside = [event for event in world.oracle.events if isinstance(event, SetAside)]
        assert {event.job for event in aside} <= {VICTIM}, name
        for job, known in world.oracle.state.jobs.items():
            failed = known.error is not None and known.error.code == "SX-LOG-SET-ASIDE"
            assert failed <= (job == VICTIM), f"{name}: {job} has failed"
        found[getattr(kind, "__name__", "offer")] += bool(aside)
    assert sum(found.values()) > len(numbers) / 3, found
    assert len(found - Counter()) >= len(KINDS), found


def test_without_it_the_defect_stops_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A control: if nothing is set aside, no leadership comes any further."""
    monkeypatch.setattr(coordinator.loop.leader, "set_aside", lambda before, undecided: None)
    defect(monkeypatch, LinksCreated)
    with pytest.raises((Stuck, AssertionError)):
        DefectWorld("defect/0", tmp_path / "backup").play()


def test_what_a_release_without_the_defect_has_decided_stays_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A coordinator with the defect then leads nothing, and changes nothing in the log. The next one without it goes on."""
    there = False
    handler = decide._HANDLERS[JobSubmitted]

    def handles(changes: ChangeSet, event: JobSubmitted) -> None:
        handler(changes, event)
        if there:
            raise KeyError("a defect")

    def change(world: World, *, defect: bool) -> None:
        nonlocal there
        there = defect
        for place in [place for place in world.places if place.startswith("c")]:
            world.places[place].kill()
            world._again(place)

    monkeypatch.setitem(decide._HANDLERS, JobSubmitted, handles)
    world = DefectWorld("defect/0", tmp_path / "backup", faults=[], until=60.0, snapshot_every=1000)
    world.sim.at(30.0, partial(change, world, defect=True))
    world.sim.at(45.0, partial(change, world, defect=False))
    world.play()
    assert world.undecided > 1
    assert not [event for event in world.oracle.events if isinstance(event, SetAside)]


def test_a_command_says_that_what_it_asked_for_was_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure("SX-LOG-SET-ASIDE", "a defect")
    aside = SetAside(event=PolicySet(scheduler="greedy"), error=failure)
    monkeypatch.setattr(reader, "present", lambda _zk: new_state("test"))
    monkeypatch.setattr(reader, "advance", lambda _zk, _state: [aside])
    with pytest.raises(SardonyxError) as caught:
        set_policy(Mock(), "greedy", 10.0)
    assert caught.value.to_failure() == failure


def test_pages_begin_anew_when_the_event_is_set_aside() -> None:
    """What they have read is broken. Until then they say why they stand still."""
    source, book = object.__new__(LiveSource), Mock()
    error = Undecided(7, PolicySet(scheduler="greedy"), KeyError("a defect"))
    source.book, source._away, source._problem = Mock(), None, ""
    source._begin = Mock(side_effect=[error, book])  # type: ignore[method-assign]
    assert source._recover(error)
    assert "SX-LOG-UNDECIDED" in source._problem
    assert source._recover(error)
    assert source.book is book
