"""The coordinators cannot decide about some events of one job: whatever else goes wrong, that job fails, and no other one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import coordinator.loop.leader
from coordinator.core import decide
from coordinator.core.changeset import ChangeSet
from coordinator.core.scheduling import Offer
from coordinator.core.setting_aside import concerned
from sardonyx.core.events import Acked, Completed, Exhausted, JobSubmitted, LinksCreated, SetAside
from tests.simulation.engine import Stuck
from tests.simulation.plans import random_plan
from tests.simulation.world import World
from tests.sizes import histories

HISTORIES = histories(40, whole=400)
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


def world_of(seed: str) -> World:
    world = World(random_plan(seed))
    world.defect = True
    return world


def test_one_job_never_stops_the_others(seed: int) -> None:
    """Histories with a defect come to the same end as others: what is not of the job goes its way, and every replay agrees."""
    found: Counter[str] = Counter()
    for number in range(HISTORIES):
        name = f"defect/{seed}/{number}"
        kind = random.Random(name).choice([*KINDS, None])
        world = world_of(name)
        with pytest.MonkeyPatch.context() as patch:
            defect(patch, kind)
            world.play()
        aside = [event for event in world.oracle.events if isinstance(event, SetAside)]
        assert {event.job for event in aside} <= {VICTIM}, name
        for job, known in world.oracle.state.jobs.items():
            failed = known.error is not None and known.error.code == "SX-LOG-SET-ASIDE"
            assert failed <= (job == VICTIM), f"{name}: {job} has failed"
        found[getattr(kind, "__name__", "offer")] += bool(aside)
    assert sum(found.values()) > HISTORIES / 3, found
    assert len(found - Counter()) >= len(KINDS), found


def test_without_it_the_defect_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: if nothing is set aside, no leadership comes any further."""
    monkeypatch.setattr(coordinator.loop.leader, "set_aside", lambda before, undecided: None)
    defect(monkeypatch, LinksCreated)
    with pytest.raises((Stuck, AssertionError)):
        world_of("defect/0").play()
