"""A deployment whose coordinator decides for real, and a client of it: peers and Kafka are played, step by step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scenario_runner import World

import coordinator.history
from sardonyx.client import change, restarting
from sardonyx.client.job_handle import JobHandle
from sardonyx.core.clocks import NEVER
from sardonyx.core.events import Acked, AnyEvent, Completed, Event, Exhausted, JobSubmitted, LinksRead
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import EndPoint

Step = Callable[[], object]


class Played:
    """A deployment with one job, which a peer for each task works on, and a client of it."""

    def __init__(self, patch: pytest.MonkeyPatch, spec: JobSpec, rules: int = 4) -> None:
        self.world, self.asked, self.steps = World(), cast("list[Any]", []), cast("list[Step]", [])
        self.world.state.rules = rules
        self.deliver(JobSubmitted(job="hits-1", spec=spec))
        for sentence in ("the links of hits-1 are made", "3 peers are born", "the offers are acked"):
            self.world.say(sentence)
        reader = SimpleNamespace(present=lambda _zk: self.world.state, advance=lambda _zk, _state: self.advance())
        patch.setattr(coordinator.history, "reader", reader, raising=False)
        for module in (change, restarting):
            patch.setattr(module, "LOOK_EVERY", 0.0)
        zk = SimpleNamespace(request=self.asked.append, read=lambda path, watch=None: self.world.zk.get(path))
        settings = SimpleNamespace(deployment="test")
        self.client = cast("Any", SimpleNamespace(zk=zk, settings=settings, loaded=lambda job: job))
        self.handle = JobHandle(self.client, "hits-1")

    def advance(self) -> list[AnyEvent]:
        """What the client reads of the log when it looks: one step more."""
        before = len(self.world.log)
        if self.steps:
            self.steps.pop(0)()
        return [event for _, event in self.world.log[before:]]

    def deliver(self, event: Event) -> None:
        self.world.deliver(cast("Any", event))

    def taken_in(self) -> None:
        """The coordinator decides about what the client has asked for."""
        self.deliver(self.asked[0])

    def ended(self) -> None:
        """What the inputs have read has gone through all tasks."""
        state = self.world.state
        for stage in list(state.plans["hits-1"].stages):
            self.all_of(stage, "acking", Acked)
            self.all_of(stage, "active", Exhausted)
            self.all_of(stage, "sealing", Completed, **({"positions": {"hits": [7]}} if stage == "read" else {}))

    def all_of(self, stage: str, state: str, kind: Any, **more: Any) -> None:
        """Each peer of a task that is in a state says something."""
        found = self.world.state
        for peer in list(found.on_task(found.jobs["hits-1"].tasks[stage])):
            if found.peers[peer].state == state:
                self.deliver(kind(peer=peer, assignment=found.assignment(peer).id, **more))

    def gone(self) -> None:
        """Where the states stand is in the log, and the topics are deleted."""
        self.deliver(LinksRead(job="hits-1", end=EndPoint(NEVER, {"count": [(0, 0, 0)]})))
        self.world.say("the links of hits-1 are gone")

    def say(self, sentence: str) -> Step:
        """A step: something happens to the next job, ``NEXT``."""
        return lambda: self.world.say(sentence.replace("NEXT", self.asked[0].into))
