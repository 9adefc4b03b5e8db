"""Timers as the leader asks for them: a defect in one kind stops no other one."""

from __future__ import annotations

from typing import Any

import pytest
from scenario_runner import World
from structlog.testing import capture_logs

from coordinator.core import scheduling
from coordinator.core.timers import due, next_due
from coordinator.loop.due_timers import DueTimers, timers_of
from sardonyx.core.events import AckTimedOut
from sardonyx.runtime.settings_sections import CoordinatorSettings


def test_what_is_due_without_a_defect_is_what_the_core_says() -> None:
    world = World()
    for sentence in ("copy is submitted: read -> write; read is a topic", "the links of copy are made", "P1 is born"):
        world.say(sentence)
    timers = timers_of(CoordinatorSettings())
    asked = DueTimers(timers)
    for now in (0.0, 14.9, 15.0):
        assert asked.events(world.state, now) == due(world.state, now, timers)
    assert asked.next(world.state) == next_due(world.state, timers) == 15.0


def test_a_defect_in_one_kind_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log says it once, not with each turn."""

    def raises(*_: Any) -> Any:
        raise KeyError("a defect")

    world = World()
    for sentence in ("copy is submitted: read -> write; read is a topic", "the links of copy are made", "P1 is born"):
        world.say(sentence)
    monkeypatch.setattr(scheduling, "giving_back", raises)
    asked = DueTimers(timers_of(CoordinatorSettings()))
    with capture_logs() as told:
        assert asked.next(world.state) == 15.0
        assert asked.events(world.state, 15.0) == [AckTimedOut(at=15.0, peer="P1", assignment=3)]
    assert [(each["event"], each["timers"]) for each in told] == [("timers_broken", "rebalances")]
