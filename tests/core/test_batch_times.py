"""Where the time of a slow task's batches goes: which step takes most of it, and what to do."""

from __future__ import annotations

import pytest

from sardonyx.client.batch_times import in_words
from sardonyx.core.spec import TaskSpec
from sardonyx.core.telemetry import BatchTold

SLOW = TaskSpec(name="slow", type="function", fn="job:slow")
OUT = TaskSpec(name="out", type="output", connector="blackhole")


def batch(rows: int = 1_000, **seconds: float) -> BatchTold:
    return BatchTold(
        job="j-1",
        task="slow",
        peer="p",
        slot=0,
        assignment=1,
        at=1.0,
        outcome="committed",
        rows_in=rows,
        seconds=seconds,
    )


def test_a_function_that_takes_the_time_is_named_with_what_helps() -> None:
    """A batch is made of steps; what a peer waits for rows is none of them."""
    said = in_words(SLOW, [batch(function=11.0, commit=1.0, wait=90.0), batch(500, function=8.0, decode=0.0, wait=1.0)])
    assert said.code == "batch-time"
    assert said.text == (
        "task slow: its function took 95% of the time of its last 2 batches, 9.5 s of 10 s each, with 750 rows on average"
    )
    for words in ("function faster", "more peers (`max_peers`, and partitions", "smaller `batch_size`"):
        assert words in said.fix
    assert in_words(SLOW, [batch(1, function=4.0, write=1.0)]).text == (
        "task slow: its function took 80% of the time of its last batch, 4.0 s of 5.0 s, with 1 row"
    )


@pytest.mark.parametrize(
    ("step", "words", "fix"),
    [
        ("commit", "the commit took", "brokers"),
        ("spark", "Spark, around its function, took", "larger"),
        ("new", "step new took", ""),
    ],
)
def test_another_step_may_take_the_time(step: str, words: str, fix: str) -> None:
    """Also one that this release does not know, of a peer of the next one."""
    said = in_words(SLOW, [batch(function=1.0, **{step: 3.0})])
    assert words in said.text
    assert fix in said.fix
    assert bool(fix) == bool(said.fix)


def test_what_is_not_known_is_said_to_be_so() -> None:
    """No batch was committed yet, or peers do not tell. The function is the likely cause, if the task has one."""
    first, off = in_words(SLOW, []), in_words(SLOW, None)
    assert first.text == (
        "task slow: where the time of its batches goes is not known, since no batch of it was committed lately; "
        "mostly it is the function (job:slow)"
    )
    assert "smaller `batch_size`" in first.fix
    assert "since peers do not tell" in off.text
    assert off.fix.startswith("set metrics.telemetry = true for coordinators and peers")
    assert "function" not in in_words(OUT, []).text + in_words(OUT, None).fix
