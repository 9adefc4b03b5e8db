"""Clocks of event time: what is promised of a partition, of a task, and in a link."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from sardonyx.core.clocks import END, NEVER, SourceClock, Stating, task_clock
from sardonyx.state.times import in_force, late
from tests.sizes import histories

HISTORIES = histories(400, whole=1_500)
TIMES = some.lists(some.integers(-(2**62), 2**62), max_size=30)


def array(times: list[int]) -> np.ndarray:
    return np.array(times, dtype=np.int64)


def moved(clock: SourceClock, times: np.ndarray, delay: int) -> SourceClock:
    """The clock after these rows."""
    return clock.after(int(times.max()), delay) if len(times) else clock


@given(TIMES, some.lists(some.integers(0, 30), max_size=5), some.integers(0, 2**40))
def test_a_partitions_clock_does_not_depend_on_how_batches_are_cut(
    times: list[int], cuts: list[int], delay: int
) -> None:
    """Behind all rows, and before each of them, it is what a loop over the rows gives, and it never falls."""
    expected, seen, value = [], NEVER, NEVER
    for time in times:
        expected.append(value)
        seen = max(seen, time)
        value = max(value, seen - delay)
    clock, found, at = SourceClock(), [], 0
    for cut in [*sorted(cuts), len(times)]:
        batch = array(times[at : max(at, cut)])
        at = max(at, cut)
        found += in_force(clock, batch, delay).tolist()
        before, clock = clock, moved(clock, batch, delay)
        assert clock.value >= before.value
    assert found == expected
    assert clock == SourceClock(seen, value)


def test_a_longer_delay_does_not_set_a_clock_back() -> None:
    """A job that goes on with another delay keeps what was promised."""
    clock = SourceClock().after(100, 10)
    assert clock.after(101, 50) == SourceClock(101, 90)
    assert in_force(clock, array([101, 200, 201]), 50).tolist() == [90, 90, 150]


def test_late_rows_are_those_behind_the_clock_and_the_grace() -> None:
    clock = SourceClock().after(100, 10)
    times = array([90, 89, 85, 84])
    assert late(times, in_force(clock, times, 10)).tolist() == [False, True, True, True]
    assert late(times, in_force(clock, times, 10), grace=5).tolist() == [False, False, False, True]
    assert not late(times, in_force(SourceClock(), times, 10)[:1], grace=5).any(), (
        "nothing is late before the first row"
    )


def test_a_tasks_clock_is_the_least_of_those_that_are_not_idle() -> None:
    """An ended partition holds no task up, one that was never read holds all up, and if all are idle nothing is known."""
    at = [SourceClock(value=value) for value in (5, 7)]
    assert task_clock(at) == 5
    assert task_clock([at[0]._replace(idle=True), at[1]]) == 7
    assert task_clock([at[0].ended(), at[1]]) == 7
    assert task_clock([at[0].ended(), at[1].ended()]) == END
    assert task_clock([*at, SourceClock()]) == NEVER
    assert task_clock([at[0]._replace(idle=True)]) is None


class Entry(NamedTuple):
    """What stands in a link: a row's time and whether it was late at its source, or a statement of the clock."""

    transaction: int
    time: int
    is_row: bool = False
    was_late: bool = False


class Batch(NamedTuple):
    """A transaction that is still open: what it states, and where its partitions stand behind it."""

    transaction: int
    stated: int
    moved: dict[int, tuple[int, SourceClock]]


class World:
    """Partitions of disordered rows, peers that read them and write to links, and a group that answers when it likes.

    ``too_early``: answers also tell what is not committed yet. The promise must break then.
    """

    def __init__(self, name: str, *, too_early: bool = False) -> None:
        self.rng = rng = random.Random(name)
        self.too_early = too_early
        self.delay = rng.choice([0, 3, 10])
        self.rows = [self._disordered() for _ in range(rng.randint(2, 5))]
        count, self.slots = len(self.rows), rng.randint(1, 4)
        self.offsets, self.committed = [0] * count, [SourceClock()] * count
        self.in_hand, self.busy = [SourceClock()] * count, [False] * count
        self.holder = [rng.randrange(self.slots) for _ in range(count)]
        self.stating = [Stating[int](range(count)) for _ in range(self.slots)]
        self.links: list[list[Entry]] = [[], []]
        self.open: dict[int, Batch] = {}
        self.begun = 0
        self.aborted: set[int] = set()

    def _disordered(self) -> np.ndarray:
        time, row = 0, []
        for _ in range(self.rng.randint(5, 30)):
            time += self.rng.randint(0, 6)
            row.append(time - self.rng.choice([0, 0, 0, self.rng.randint(0, 12)]))
        return array(row)

    def play(self) -> World:
        """One history to its end."""
        acts = {self.answer: 25, self.hand_over: 10, self.begin: 40, self.end: 25}
        while self.open or any(offset < len(row) for offset, row in zip(self.offsets, self.rows, strict=True)):
            self.rng.choices(list(acts), list(acts.values()))[0](self.rng.randrange(self.slots))
        return self

    def answer(self, slot: int) -> None:
        """The group tells a peer where the partitions stand."""
        self.stating[slot].heard(dict(enumerate(self.in_hand if self.too_early else self.committed)))

    def hand_over(self, slot: int) -> None:
        """A partition changes hands, but not while it is open what becomes of its last batch."""
        part = self.rng.randrange(len(self.rows))
        if not self.busy[part]:
            self.holder[part] = slot

    def begin(self, slot: int) -> None:
        """A batch: rows first, the statement behind them. The end of its transaction comes some time later."""
        held = [part for part, holder in enumerate(self.holder) if holder == slot and not self.busy[part]]
        ready = [part for part in held if self.offsets[part] < len(self.rows[part])]
        if slot in self.open or not ready:
            return
        self.begun += 1
        own = {part: self.committed[part] for part in held}
        moved = {part: self._read(part) for part in self.rng.sample(ready, self.rng.randint(1, len(ready)))}
        stated = self.stating[slot].clock(own | {part: clock for part, (_, clock) in moved.items()})
        for link in self.links:
            link.append(Entry(self.begun, stated))
        self.open[slot] = Batch(self.begun, stated, moved)

    def _read(self, part: int) -> tuple[int, SourceClock]:
        before, offset = self.committed[part], self.offsets[part]
        end = min(len(self.rows[part]), offset + self.rng.randint(1, 4))
        times = self.rows[part][offset:end]
        is_late = late(times, in_force(before, times, self.delay))
        for time, behind in zip(times.tolist(), is_late.tolist(), strict=True):
            self.rng.choice(self.links).append(Entry(self.begun, time, is_row=True, was_late=behind))
        self.in_hand[part], self.busy[part] = moved(before, times, self.delay), True
        return end, self.in_hand[part]

    def end(self, slot: int) -> None:
        """An open transaction is committed; or aborted, sometimes since its peer died: the next holder knows nothing."""
        batch = self.open.pop(slot, None)
        if batch is None:
            return
        good = self.rng.random() < 0.75
        for part, (end, clock) in batch.moved.items():
            self.busy[part] = False
            if good:
                self.offsets[part], self.committed[part] = end, clock
            self.in_hand[part] = self.committed[part]
        if good:
            self.stating[slot].stated(batch.stated)
            return
        self.aborted.add(batch.transaction)
        if self.rng.random() < 0.3:
            self.stating[slot] = Stating(range(len(self.rows)))

    @property
    def broken(self) -> bool:
        """Whether a row that was on time at its source stands behind a clock that says there is none."""
        for link in self.links:
            clock = NEVER
            for entry in link:
                if entry.transaction in self.aborted:
                    continue
                if not entry.is_row:
                    clock = max(clock, entry.time)
                elif not entry.was_late and entry.time < clock:
                    return True
        return False


def test_what_is_stated_in_a_link_holds_for_all_who_write_there(seed: int) -> None:
    """Whichever peer holds a partition, dies, takes over or gets an old answer: no row that was on time is behind a later one."""
    for number in range(HISTORIES):
        name = f"{seed}/clocks/{number}"
        assert not World(name).play().broken, name


def test_what_others_have_not_committed_must_not_count(seed: int) -> None:
    """The control: if answers also told what others have in hand, some of these histories would break the promise."""
    broken = sum(World(f"{seed}/clocks/{number}", too_early=True).play().broken for number in range(HISTORIES))
    assert broken > HISTORIES // 100


@pytest.mark.parametrize("clock", [SourceClock(), SourceClock(5, 5)])
def test_no_rows_change_nothing(clock: SourceClock) -> None:
    assert clock.stated(clock.value) is clock
    assert in_force(clock, array([]), 3).tolist() == []
