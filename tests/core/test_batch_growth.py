"""How many rows a batch takes: more where much is unread, up to bounds; as before where little is; never more than is said."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from peer.prepared_task import PreparedTask
from queues import batch_growth
from queues.batch import Batch, StartingPoint
from queues.batch_growth import MOST_ROWS, PER_RECORD, BatchGrowth
from queues.messages import ROWS_HEADER
from queues.reading import Reading
from sardonyx import Count, Job, Sum, everything, kafka
from sardonyx.core import spec as specs
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition
from sardonyx.core.spec import TaskSpec, decode_spec, encode_spec
from sardonyx.job.parse import read
from sardonyx.runtime.clock import Runtime
from sardonyx.testing import ClockedRun
from sardonyx.testing.memory import MemoryReader, Stored
from sentinel.rules import BOUND_END

Begin = Callable[..., ClockedRun]

LEAST, MOST = 5, 40
PLACE = Partition("t", 0)


class Clock(Runtime):
    """Time that the test lets pass."""

    passed = 1000.0

    def now(self) -> float:
        return self.passed

    def wall(self) -> float:
        return self.passed


class Backlog(Reading):
    """A reader of one partition that always has more records, and takes them as long as it wants to read ahead."""

    def __init__(self, most: int = MOST, *, value: int = 10, kind: str = "input", rows: int | None = None) -> None:
        self.clock = Clock()
        link = Link("in", "t", cast("Any", kind), "in", "count")
        super().__init__({"in": (link, LinkFacts(1))}, lambda *_: BOUND_END, LEAST, most_rows=most, runtime=self.clock)
        self._begin(PLACE, StartingPoint(None))
        self._value, self._next = bytes(value), 0
        self._headers = [] if rows is None else [(ROWS_HEADER, str(rows).encode())]
        self.ahead = 0
        """Most rows that it had read ahead."""

    def come(self, count: int) -> None:
        """So many messages."""
        messages = [Stored(PLACE, self._next + n, None, self._value, self._headers, 0) for n in range(count)]
        self._next += count
        self._take_records(PLACE, cast("Any", messages))
        self.ahead = max(self.ahead, self._buffer.rows)

    def fill(self) -> None:
        while not self._full:
            self.come(1)

    def batch(self, seconds: float = 0.1) -> tuple[int, Batch]:
        """One batch, and the seconds that it takes."""
        assert self.batch_due_in(LEAST, 1.0) == 0
        batch = self.cut(LEAST)
        self.clock.passed += seconds
        self.committed(batch.positions)
        return sum(batch.rows.values()), batch

    def batches(self, count: int, seconds: float = 0.1) -> list[int]:
        found = []
        for _ in range(count):
            self.fill()
            found.append(self.batch(seconds)[0])
        return found


def test_a_batch_takes_twice_as_many_rows_each_time_while_much_is_unread() -> None:
    """Up to the bound. No more than the next batch can take is read ahead."""
    reader = Backlog()
    assert reader.batches(6) == [5, 10, 20, 40, 40, 40]
    assert reader.ahead == MOST


def test_a_trickle_has_batches_as_before() -> None:
    """Few rows wait for the batch timeout, and a row after a pause for nothing, also after batches that had grown."""
    reader = Backlog()
    assert reader.batches(4)[-1] == MOST
    while reader.batch_due_in(LEAST, 0) == 0:
        reader.batch()
    reader.clock.passed += 10
    reader.come(1)
    assert reader.batch_due_in(LEAST, 0.5) == 0
    assert reader.batch()[0] == 1
    reader.come(3)
    assert reader.batch_due_in(LEAST, 0.5) == pytest.approx(0.4)
    reader.come(2)
    assert reader.batch()[0] == 5, "so many are due at once"
    assert reader.batches(2) == [10, 20], "and then they grow anew"


@pytest.mark.parametrize("value", [744, 7440])
def test_a_batch_grows_no_further_than_the_bytes_of_its_rows_allow(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    """A thousand bytes with what a record itself takes, or more than seven thousand: then none grows."""
    monkeypatch.setattr(batch_growth, "MOST_BYTES", 16_000)
    reader, fits = Backlog(value=value), max(LEAST, 16_000 // (value + PER_RECORD))
    assert reader.batches(5) == [5, min(10, fits), *[fits] * 3]
    assert reader.ahead == max(fits, 2 * LEAST)


def test_what_a_batch_writes_bounds_the_next_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that makes much of each row has transactions that are no larger than those of others."""
    monkeypatch.setattr(batch_growth, "MOST_BYTES", 16_000)
    reader = Backlog()
    assert reader.batches(4)[-1] == MOST
    reader.fill()
    rows, batch = reader.batch()
    reader.made(batch, results=rows, size=rows * (2_000 - PER_RECORD))
    assert reader.batches(2) == [8, 8]


def test_what_is_set_by_hand_is_never_exceeded() -> None:
    reader = Backlog(most=0)
    assert reader.batches(6) == [LEAST] * 6
    assert reader.ahead == 2 * LEAST


def test_what_a_split_holds_is_not_known_and_makes_no_batch_grow() -> None:
    assert Backlog(kind="splits", rows=LEAST).batches(4) == [LEAST] * 4
    assert Backlog(kind="internal", rows=LEAST).batches(4) == [5, 10, 20, 40]


def test_batches_that_take_long_grow_no_more() -> None:
    """Of a slow function, a batch of many rows would be visible late, and all of it lost with its peer."""
    reader = Backlog()
    assert reader.batches(3, seconds=1.5) == [LEAST] * 3
    assert reader.batches(3, seconds=0.5) == [5, 10, 20]
    assert reader.batches(4, seconds=3) == [40, 20, 10, 5]


def test_after_a_batch_that_was_not_committed_comes_a_small_one() -> None:
    growth = BatchGrowth(MOST)
    assert [growth.next(LEAST, 1000, 10_000, 0.1) for _ in range(3)] == [5, 10, 20]
    growth.restart()
    assert [growth.next(LEAST, 1000, 10_000, 0.1) for _ in range(2)] == [5, 10]


def most_of(bounds: dict[str, int], **settings: Any) -> int:
    stage = SimpleNamespace(task=TaskSpec(name="t", type="function", **settings))
    return cast("Any", PreparedTask.most_rows).fget(SimpleNamespace(stage=stage, bounds=bounds))


def test_only_batches_whose_size_the_user_has_not_set_grow() -> None:
    """Also if it is set to the default. A queue with a bound is not filled far beyond it by a single batch."""
    assert most_of({}) == MOST_ROWS
    assert (most_of({}, batch_size=50_000), most_of({}, batch_size=10)) == (0, 0)
    assert most_of({"a.b": 400_000, "a.c": 10**9}) == 100_000


def counts(**settings: Any) -> Job:
    job = Job("counts", partitions=2)
    rows = job.input("read", kafka("in", schema="n long, who string", start="earliest"))
    found = job.keyed("keep", "tests.core.keyed_jobs:total", after=rows, group_by="who", **settings)
    job.output("out", kafka("out"), after=found)
    return job


def test_the_spec_says_whether_the_size_is_set() -> None:
    """The default that was given by hand is kept as such. A job of before says nothing."""
    for given, kept in (({}, msgspec.UNSET), ({"batch_size": 50_000}, 50_000), ({"batch_size": None}, msgspec.UNSET)):
        task = decode_spec(encode_spec(read(counts(**given).data())[0])).task("keep")
        assert task.batch_size == kept
        assert task.rows_per_batch == specs.DEFAULT_BATCH_SIZE


def windows() -> Job:
    job = Job("windows")
    rows = job.input("read", kafka("in", schema="n long", start="earliest", end="latest"))
    job.output(
        "out",
        kafka("out"),
        after=job.window("sum", everything(), after=rows, aggregate={"n": Count(), "total": Sum("n")}),
    )
    return job


@pytest.mark.parametrize("by_hand", [None, LEAST])
def test_a_job_with_a_backlog_takes_larger_batches_and_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, sardonyx_clocked: Begin, by_hand: int | None
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(specs, "DEFAULT_BATCH_SIZE", LEAST)
    cut = MemoryReader.cut

    def seen(self: MemoryReader, size: int, number: int | None = None) -> Batch:
        batch = cut(self, size, number)
        sizes.append(sum(batch.rows.values()))
        return batch

    monkeypatch.setattr(MemoryReader, "cut", seen)
    run = sardonyx_clocked(windows(), batch_size=by_hand)
    values = [random.Random(40).randrange(1000) for _ in range(100)]
    run.give("read", [{"n": value} for value in values])
    run.end()
    (row,) = run.rows()
    assert (row["n"], row["total"]) == (100, sum(values))
    assert max(sizes) == (40 if by_hand is None else LEAST), sizes
