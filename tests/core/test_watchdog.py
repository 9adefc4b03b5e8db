"""A leader that decides nothing although requests wait loses its session, so that another coordinator can lead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.loop.watchdog import EVERY, NOTICES, PATIENCE, Watchdog
from sardonyx.client.waiting import requests_waiting
from sardonyx.core.errors import SardonyxError
from sardonyx.runtime.clock import Runtime
from sardonyx.runtime.metrics import REGISTRY

LOOKS = int(PATIENCE / EVERY) + 2


class Clock(Runtime):
    """A clock that is set by hand."""

    passed = 100.0

    def now(self) -> float:
        return self.passed


class Inbox:
    """A session in whose inbox there are these requests."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.away = self.closed = False

    def children(self, path: str) -> list[str]:
        assert path == "/inbox"
        if self.away:
            raise SardonyxError("SX-ZOOKEEPER-AWAY", "no answer")
        return self.names

    def close(self) -> None:
        self.closed = True


class House:
    """A coordinator that leads, and its watchdog."""

    def __init__(self, *names: str) -> None:
        self.inbox = Inbox(*names)
        self.clock = Clock()
        self.leader: Any = SimpleNamespace(left_in_inbox=set())
        self.dog = Watchdog(lambda: None if self.leader is None else (self.leader, self.inbox), self.clock)

    def look(self, times: int = LOOKS) -> bool:
        """Look so many times; whether the session was ended."""
        for _ in range(times):
            self.clock.passed += EVERY
            self.dog.look()
        return self.inbox.closed


def value(name: str) -> float | None:
    found = REGISTRY.snapshot().series(name)
    return found[0].value if found else None


def test_the_request_that_has_waited_longest_is_the_one_with_the_least_number() -> None:
    """Its name begins with what is asked for: `ack` sorts before `submit`, whichever was made first."""
    inbox: Any = Inbox("ack-b-0000000012", "leave-c-0000000011", "submit-a-0000000009")
    assert requests_waiting(inbox) == (3, "/inbox/submit-a-0000000009")
    inbox.names = ["ack-b--2147483648", "submit-a-2147483647"]
    assert requests_waiting(inbox)[1] == "/inbox/submit-a-2147483647", "ZooKeeper counts on with the smallest number"
    inbox.names = []
    assert requests_waiting(inbox) == (0, None)


def test_a_leader_that_decides_nothing_loses_its_session() -> None:
    """Once, with where each thread stands; if the leader does not notice, the process should be started again."""
    house = House("submit-a-0000000002", "ack-b-0000000001")
    before = value("sardonyx_coordinator_stepped_down_total")
    assert not house.look(LOOKS - 2)
    assert (value("sardonyx_coordinator_inbox_requests"), value("sardonyx_coordinator_inbox_oldest_seconds")) == (2, 55)
    with capture_logs() as lines:
        assert house.look()
    (line,) = lines
    assert (line["event"], line["oldest"]) == ("leader_decides_nothing", "ack-b-0000000001")
    assert "test_a_leader_that_decides_nothing" in line["threads"]
    assert value("sardonyx_coordinator_stepped_down_total") == before + 1
    house.clock.passed += NOTICES
    assert "the leader hangs" in house.dog.hangs()
    house.leader = None
    assert house.dog.hangs() == ""
    assert value("sardonyx_coordinator_inbox_requests") is None


def test_a_leader_is_given_time_to_notice() -> None:
    """It leads again in another session, and that one is not ended for what the last one did."""
    house = House("submit-a-0000000001")
    house.look()
    assert house.dog.hangs() == ""
    house.leader = SimpleNamespace(left_in_inbox=set())
    house.inbox = Inbox("submit-a-0000000001")
    assert not house.look(3)
    house.clock.passed += NOTICES
    assert house.dog.hangs() == ""


def test_a_busy_leader_is_left_alone() -> None:
    """As long as the oldest request goes, however many there are."""
    house = House()
    for number in range(10 * LOOKS):
        house.inbox.names = [f"ack-{each}-{each:010}" for each in range(number // 5, number // 5 + 100)]
        assert not house.look(1)
    house.inbox.names = []
    assert not house.look()
    assert value("sardonyx_coordinator_inbox_oldest_seconds") == 0


def test_what_cannot_be_removed_holds_up_nothing() -> None:
    """A request with a node below it stays in the inbox; the leader has read it."""
    house = House("rubbish", "submit-a-0000000001")
    house.leader.left_in_inbox = {"rubbish", "submit-a-0000000001"}
    assert not house.look()
    house.inbox.names.append("submit-a-0000000002")
    assert house.look()


@pytest.mark.parametrize("how", ["away", "paused", "another"])
def test_time_that_proves_nothing_does_not_count(how: str) -> None:
    """ZooKeeper is away, this process was paused, or another leadership began."""
    house = House("submit-a-0000000001")
    for _ in range(3):
        assert not house.look(LOOKS - 3)
        if how == "away":
            house.inbox.away = True
            assert not house.look(4)
            house.inbox.away = False
        elif how == "paused":
            house.clock.passed += 10 * PATIENCE
        else:
            house.leader = SimpleNamespace(left_in_inbox=set())


def test_a_coordinator_that_does_not_lead_has_nothing_to_watch() -> None:
    """Another one may be at it."""
    house = House("submit-a-0000000001")
    house.leader = None
    assert not house.look()
