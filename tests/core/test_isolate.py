"""The search for bad rows: how many runs it takes, and that nothing is lost or done twice."""

from __future__ import annotations

import random
import threading
from bisect import bisect_left

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.core.errors import FunctionError
from sardonyx.core.spec import TaskSpec
from sardonyx.core.timing import WindowSpec
from spark_tasks.isolate import DataFault, Found, search
from spark_tasks.units import Units, together


def searched(rows: int, bad: list[int], *, threads: int = 1, raised: int = 1) -> Found[tuple[int, int]]:
    """A search in a batch of so many rows; each run's result is the rows that it was given."""

    def run(start: int, stop: int) -> tuple[int, int]:
        at = bisect_left(bad, start)
        if at < len(bad) and bad[at] < stop:
            raise DataFault(ValueError(bad[at]), lambda: FunctionError("SX-FN-RAISED", "no"))
        return start, stop

    return search(rows, run, threads=threads, raised=raised)


@given(st.data(), st.integers(1, 400), st.sampled_from([1, 4]))
def test_exactly_the_bad_rows_are_found(data: st.DataObject, rows: int, threads: int) -> None:
    """Whatever is bad: just these rows stand alone, and every other is in one run that succeeds, in order."""
    bad = sorted(data.draw(st.sets(st.integers(0, rows - 1))))
    found = searched(rows, bad, threads=threads)
    assert [alone.row for alone in found.bad] == bad
    assert [n for start, stop in found.results for n in range(start, stop)] == [n for n in range(rows) if n not in bad]


@pytest.mark.parametrize("rows", [2, 1_000, 50_000, 1_000_000])
def test_one_bad_row_costs_about_log2_of_the_batch(rows: int) -> None:
    """On the mean one and a half runs for each halving, at most two; wherever the row is."""
    chance = random.Random(5)
    places = [0, rows - 1, *(chance.randrange(rows) for _ in range(50))]
    counts = [searched(rows, [place]).runs for place in places]
    halvings = rows.bit_length()
    assert max(counts) <= 2 * halvings, counts
    assert sum(counts) / len(counts) <= 1.7 * halvings, counts


@pytest.mark.parametrize(("rows", "bad", "most"), [(1_000_000, 1_000, 17_000), (50_000, 50_000, 65_000)])
def test_many_bad_rows_cost_little_more_than_they_must(rows: int, bad: int, most: int) -> None:
    """A thousand scattered over a million take 15.6 runs each, where no search could do with less than 11.4 on the mean; a
    batch in which all are bad takes hardly more runs than it has rows.
    """
    places = sorted(random.Random(3).sample(range(rows), bad))
    found = searched(rows, places)
    assert len(found.bad) == bad
    assert found.runs <= most


def test_attempts_are_the_runs_that_raised() -> None:
    """Those of the whole batch before, and those of every part with the row in it; what was not run was no attempt."""
    assert [alone.attempts for alone in searched(1, [0], raised=4).bad] == [5]
    assert [alone.attempts for alone in searched(2, [0], raised=1).bad] == [2]
    assert [alone.attempts for alone in searched(8, [0], raised=1).bad] == [4]
    assert [alone.attempts for alone in searched(8, [7], raised=1).bad] == [2], "it was always the half not tried"


def test_a_whole_that_raised_by_chance_loses_nothing() -> None:
    """What raised once and not again has no bad rows, and all of its results."""
    found = searched(7, [])
    assert not found.bad
    assert [n for start, stop in found.results for n in range(start, stop)] == list(range(7))


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_no_fault_of_the_rows_ends_the_search(threads: int) -> None:
    """It is raised as it was, and no thread is left behind."""

    def run(start: int, stop: int) -> int:
        raise ConnectionError(f"{start} to {stop}")

    before = set(threading.enumerate())
    with pytest.raises(ConnectionError):
        search(100, run, threads=threads)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("group_by", [None, ["key"]])
def test_a_counted_window_is_a_unit(group_by: list[str] | None) -> None:
    """No time tells them apart, but their numbers do: a bad one takes no other window of its key with it."""
    task = TaskSpec(name="t", type="function", fn="m:f", group_by=group_by, window=WindowSpec(kind="counted", size=2))
    numbers = [0, 0, 1, 1, 2]
    rows = pa.table({"key": ["a"] * 5, "window_start": pa.nulls(5, pa.timestamp("us")), "window_number": numbers})
    units = Units(rows, together(task))
    assert [units.rows(n, n + 1)["window_number"].to_pylist() for n in range(len(units))] == [[0, 0], [1, 1], [2]]
