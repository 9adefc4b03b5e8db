"""Slots that lost peers left are fenced beside the loop, while no peer holds them and as long as it helps."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from coordinator.loop.leader_metrics import FENCES
from coordinator.loop.slot_fencing import THREADS, SlotFencer
from sardonyx.core.slot import Slot
from sardonyx.core.spec import JobSpec
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("threads_end")

SPEC = JobSpec(name="j", workflow=[], catalog=[])
ONE, OTHER = Slot("j1", "work", 0), Slot("j1", "work", 1)

Start = Callable[..., "tuple[SlotFencer, Kafka]"]


class Kafka:
    """What was ended there, in order."""

    def __init__(self, meanwhile: Callable[[Slot], None]) -> None:
        self._meanwhile = meanwhile
        self.fenced: queue.Queue[Slot] = queue.Queue()
        self.dismissed: queue.Queue[Slot] = queue.Queue()

    def fence(self, slot: Slot, spec: JobSpec) -> None:
        assert spec is SPEC
        self._meanwhile(slot)
        self.fenced.put(slot)

    def remove_static_member(self, slot: Slot, spec: JobSpec) -> None:
        assert spec is SPEC
        self.dismissed.put(slot)


@pytest.fixture
def start() -> Iterator[Start]:
    begun: list[SlotFencer] = []

    def make(
        vacant: Callable[[Slot], bool] = lambda _slot: True,
        lasting: float = 3600,
        meanwhile: Callable[[Slot], None] = lambda _slot: None,
    ) -> tuple[SlotFencer, Kafka]:
        kafka = Kafka(meanwhile)
        begun.append(SlotFencer(kafka, vacant, lasting))
        return begun[-1], kafka

    yield make
    for fences in begun:
        fences.close()


def test_a_slot_that_was_left_is_fenced(start: Start) -> None:
    """Each of them, once."""
    fences, kafka = start()
    fences.submit(1, ONE, SPEC)
    fences.submit(2, OTHER, SPEC)
    assert {kafka.fenced.get(timeout=PATIENCE), kafka.fenced.get(timeout=PATIENCE)} == {ONE, OTHER}


def test_a_slot_that_a_peer_has_taken_meanwhile_is_left_alone(start: Start) -> None:
    """The peer that has it ends by itself what was open, and would only be fenced."""
    fences, kafka = start(vacant=lambda slot: slot == OTHER)
    fences.submit(1, ONE, SPEC)
    fences.submit(2, OTHER, SPEC)
    assert kafka.fenced.get(timeout=PATIENCE) == OTHER
    assert kafka.fenced.empty()


def test_what_the_broker_has_ended_by_itself_needs_no_fence(start: Start) -> None:
    """When there are more of them than can be fenced in the life of a transaction."""
    fences, kafka = start(lasting=-1)
    fences.submit(1, ONE, SPEC)
    fences.close()
    with pytest.raises(queue.Empty):
        kafka.fenced.get(timeout=0.1)


def test_a_fence_that_fails_holds_no_other_up(start: Start) -> None:
    """Kafka is away: that is logged, and the next slot is fenced."""

    def breaks(slot: Slot) -> None:
        if slot == ONE:
            raise OSError("Kafka is away")

    before = steps()
    with capture_logs() as told:
        fences, kafka = start(meanwhile=breaks)
        fences.submit(1, ONE, SPEC)
        fences.submit(2, OTHER, SPEC)
        assert kafka.fenced.get(timeout=PATIENCE) == OTHER
        # Each leaves its group after the log line about its fence, in the same thread.
        assert {kafka.dismissed.get(timeout=PATIENCE) for _ in range(2)} == {ONE, OTHER}
        fences.close()
    assert any(line.get("error") == "Kafka is away" and line["job"] == "j1" for line in told)
    until(lambda: steps() - before == {"failed": 1, "done": 3}, what="all to be counted")
    until(lambda: fences.pending == 0, what="nothing to be left")


def steps() -> Counter[str]:
    """As the metrics tell them."""
    return Counter({each.labels["outcome"]: int(each.value) for each in FENCES.taken().series})


def test_only_so_many_are_fenced_at_a_time(start: Start) -> None:
    """However many peers are lost at once."""
    release, running, most = threading.Event(), threading.Semaphore(0), 5 * THREADS

    def waits(_slot: Slot) -> None:
        running.release()
        assert release.wait(PATIENCE)

    fences, kafka = start(meanwhile=waits)
    for number in range(most):
        fences.submit(number, Slot("j1", "work", number), SPEC)
    assert all(running.acquire(timeout=PATIENCE) for _ in range(THREADS))
    assert not running.acquire(timeout=0.1)
    release.set()
    assert len({kafka.fenced.get(timeout=PATIENCE) for _ in range(most)}) == most


def test_a_slots_place_in_its_group_is_given_up_after_its_transaction(start: Start) -> None:
    """Unless a peer takes the slot in between: the place is its own then. If one of the two fails, the other is done."""
    taken: list[Slot] = []
    asked: queue.Queue[Slot] = queue.Queue()

    def meanwhile(slot: Slot) -> None:
        if slot == ONE:
            taken.append(slot)
        else:
            raise OSError("Kafka is away")

    def vacant(slot: Slot) -> bool:
        asked.put(slot)
        return slot not in taken

    fences, kafka = start(vacant=vacant, meanwhile=meanwhile)
    fences.submit(1, ONE, SPEC)
    fences.submit(2, OTHER, SPEC)
    assert sorted(asked.get(timeout=PATIENCE) for _ in range(4)) == [ONE, ONE, OTHER, OTHER]
    assert kafka.dismissed.get(timeout=PATIENCE) == OTHER
    assert kafka.fenced.get(timeout=PATIENCE) == ONE
    assert kafka.dismissed.empty()
