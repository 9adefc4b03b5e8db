"""What the benchmarks of windows compare is right: what must be counted, what was, and how fast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    import kafka_streams
    import window_figures
finally:
    sys.path.remove(str(BENCH))

MINUTE = 60_000
START = 1_767_225_600_000
"""2026-01-01, in milliseconds since 1970."""


def rows(*of: tuple[int, str, int]) -> pa.Table:
    """Records by id, key, and milliseconds since 1970."""
    ids, keys, moments = zip(*of, strict=True)
    at = pa.array([moment * 1000 for moment in moments], pa.timestamp("us", "UTC"))
    return pa.table({"id": pa.array(ids, pa.int64()), "key": list(keys), "at": at})


def results(*of: tuple[int, int, int, float]) -> Any:
    """Results by key, minute, hits, and when they were written."""
    keys, minutes, hits, written = (np.array(column) for column in zip(*of, strict=True))
    return window_figures.Results(keys, START + minutes * MINUTE, hits, written.astype(float))


TWO = rows((0, "customer-000007", START), (1, "customer-000007", START + 1), (2, "customer-000012", START + MINUTE))


def test_a_window_begins_with_its_minute_and_counts_its_key_alone():
    """The windows that must be there are those of each key and minute, with the number of their rows."""
    windows, counts = window_figures.expected(TWO, "key")
    wanted = window_figures.places(np.array([7, 12]), np.array([START, START + MINUTE]))
    assert windows.tolist() == wanted.tolist()
    assert counts.tolist() == [2, 1]


def test_with_a_key_a_row_each_row_is_a_window():
    """Grouped by id, each window has one row."""
    windows, counts = window_figures.expected(TWO, "id")
    assert len(windows) == 3
    assert counts.tolist() == [1, 1, 1]


def test_a_window_is_done_when_its_right_count_first_stood_there():
    """Results before the right one do not count as done, and those that repeat it do not count as later."""
    many = rows(*((minute * 10 + n, "customer-1", START + minute * MINUTE) for minute in range(10) for n in range(10)))
    wanted = window_figures.expected(many, "key")
    once = [(1, minute, 10, float(minute)) for minute in range(10)]
    speed = window_figures.steady(results(*once), wanted, once=True)
    assert speed == pytest.approx(0.8 * 100 / 8)
    changes = [(1, minute, 4, 0.0) for minute in range(10)] + once + [(1, minute, 10, 99.0) for minute in range(10)]
    assert window_figures.steady(results(*changes), wanted, once=False) == speed


@pytest.mark.parametrize(
    ("found", "once"),
    [
        ([(7, 0, 2, 1.0)], True),  # one is missing
        ([(7, 0, 1, 1.0), (12, 1, 1, 1.0)], True),  # a row was not counted
        ([(7, 0, 3, 1.0), (12, 1, 1, 1.0)], True),  # a row was counted twice
        ([(7, 0, 2, 1.0), (7, 0, 3, 2.0), (12, 1, 1, 1.0)], False),  # and here after the right count
        ([(7, 0, 2, 1.0), (12, 1, 1, 1.0), (12, 2, 1, 1.0)], False),  # a window without a row
        ([(7, 0, 2, 1.0), (7, 0, 2, 1.0), (12, 1, 1, 1.0)], True),  # the same window twice
    ],
)
def test_a_run_that_counts_wrongly_does_not_count(found: list[tuple[int, int, int, float]], once: bool):
    """Neither a missing window nor a wrong count nor a stranger passes."""
    with pytest.raises(AssertionError):
        window_figures.steady(results(*found), window_figures.expected(TWO, "key"), once=once)


def test_running_counts_give_a_rate_by_what_they_count():
    """Of two keys with ten records each, a tenth stands in the counts at second 1, nine tenths at second 3."""
    found = [(1, 2, 1.0), (1, 10, 2.0), (2, 8, 3.0), (2, 10, 9.0)]
    assert window_figures.running_rate(found, {1: 10, 2: 10}) == 8.0


@pytest.mark.parametrize(
    "found", [[(1, 10, 1.0), (2, 9, 2.0)], [(1, 10, 1.0), (2, 10, 2.0), (2, 10, 3.0)], [(1, 11, 1.0), (2, 10, 2.0)]]
)
def test_running_counts_that_are_not_right_do_not_count(found):
    """Too few, twice, too many."""
    with pytest.raises(AssertionError):
        window_figures.running_rate(found, {1: 10, 2: 10})


def test_joined_pairs_give_a_rate():
    """Of ten pairs, a tenth stands there at second 1, nine tenths at second 9. Each of them once, or the run does not count."""
    ids, written = np.arange(10), np.arange(10.0)
    assert window_figures.joined_rate(ids, written, 10) == 1.0
    for wrong in ([*range(9)], [*range(10), 3]):
        with pytest.raises(AssertionError):
            window_figures.joined_rate(np.array(wrong), np.arange(float(len(wrong))), 10)


def test_the_last_partition_to_pass_its_end_closes_a_window():
    """Of the first rows that are not before the end, one in each partition, the latest closes it."""
    made = [0.0, 0.4, 0.9, 1.0, 1.3, 2.5]  # partition 0: 0.0, 0.9, 1.3; partition 1: 0.4, 1.0, 2.5
    assert window_figures.closed_at(made, [1.0, 1.0, 1.1, 2.0], 2) == {1.0: 1.3, 1.1: 2.5}


def test_windows_that_count_other_rows_than_there_are_get_named():
    """All results of a window together must count its rows."""
    made = [0.1, 0.2, 1.0, 1.5, 1.9]
    found = [(1.0, 0.0, 1), (1.0, 0.0, 1), (2.0, 0.0, 2)]
    assert window_figures.miscounted(made, found, [1.0, 2.0]) == {2.0: (2, 3)}


def test_the_java_program_is_built_anew_when_its_sources_change(tmp_path: Path):
    """Its folder is named after the content and the names of all sources."""
    (tmp_path / "src").mkdir()
    (tmp_path / "pom.xml").write_text("<project/>")
    source = tmp_path / "src" / "A.java"
    source.write_text("class A {}")
    before = kafka_streams.digest(tmp_path)
    assert kafka_streams.digest(tmp_path) == before
    source.write_text("class A { }")
    changed = kafka_streams.digest(tmp_path)
    source.rename(source.with_name("B.java"))
    assert len({before, changed, kafka_streams.digest(tmp_path)}) == 3


def test_without_maven_kafka_streams_is_left_out_and_it_is_said_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine without Maven still runs all other contestants."""
    monkeypatch.setenv("SARDONYX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    kafka_streams.left_out.cache_clear()
    try:
        assert "mvn" in str(kafka_streams.left_out())
    finally:
        kafka_streams.left_out.cache_clear()
