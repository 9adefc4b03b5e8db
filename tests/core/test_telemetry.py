"""What peers tell of their batches: what they tell and what they do not, how it is read, and how much of it is kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from peer import telemetry
from peer.batch_result import Result
from sardonyx.core.notes import Assignment
from sardonyx.core.telemetry import VERSION, BatchTold, read, steps_of, topic_of
from sardonyx.web.batches import JOBS, KEPT, STREAM, TASKS, WORKED, KeptBatches

GIVEN = Assignment(id=17, job="j-1", task="label", slot=2)


class Heard:
    def __init__(self) -> None:
        self.told: list[BatchTold] = []

    def tell(self, told: BatchTold) -> None:
        self.told.append(told)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    heard = Heard()
    monkeypatch.setattr(telemetry, "_tellers", [heard])
    return heard


def test_a_committed_batch_is_told_with_its_rows_and_steps(heard: Heard) -> None:
    """As they are counted; a step that took no time is left out."""
    result = Result(pa.table({"n": [1, 2]}), 3, skipped=1)
    telemetry.tell_committed(
        "h-0", GIVEN, result, {"wait": 0.123456, "function": 0.5, "write": 0.0}, lambda: "3 p/1/0 a.b:0:1-4"
    )
    (told,) = heard.told
    assert (told.job, told.task, told.peer, told.slot, told.assignment) == ("j-1", "label", "h-0", 2, 17)
    assert (told.outcome, told.rows_in, told.rows_out, told.skipped, told.dead, told.late) == (
        "committed",
        3,
        2,
        1,
        0,
        0,
    )
    assert told.seconds == {"wait": 0.1235, "function": 0.5}
    assert told.made_from == "3 p/1/0 a.b:0:1-4"


def test_a_batch_that_was_not_committed_is_told_with_its_cause(heard: Heard) -> None:
    """Cut where it is long."""
    telemetry.tell_uncommitted("h-0", GIVEN, "dropped", "rebalance " * 100, {})
    (told,) = heard.told
    assert (told.outcome, told.rows_in, len(told.cause)) == ("dropped", 0, telemetry.CAUSE)


def test_nothing_is_told_outside_of_a_daemon() -> None:
    """Tests of jobs, the simulation and commands have no one to tell."""
    telemetry.tell_committed("h-0", GIVEN, Result(pa.table({"n": [1]}), 1), {}, lambda: "")
    telemetry.tell_uncommitted("h-0", GIVEN, "delayed", "", {})
    assert telemetry._tellers == []


def told(n: int = 0, **fields: Any) -> BatchTold:
    plain: dict[str, Any] = {"job": "j-1", "task": "t", "peer": "p", "slot": 0, "assignment": 3, "at": float(n)}
    return BatchTold(**{**plain, "outcome": "committed", **fields})


def test_a_message_is_read_as_it_was_told() -> None:
    """What is none of ours, or a later release's, is left out."""
    batch = told(rows_in=5, seconds={"function": 0.1})
    assert read(msgspec.json.encode(batch)) == batch
    assert read(msgspec.json.encode(told(version=VERSION + 1))) is None
    assert read(b"{}") is read(b"\xff") is read(None) is None
    assert steps_of({"a": 0.00001, "b": 1.23456}) == {"b": 1.2346}


def test_the_topic_is_never_taken_for_one_of_a_job() -> None:
    """Those have two dots or three."""
    assert topic_of("prod").count(".") == 1


def test_the_last_batches_of_the_last_tasks_are_kept() -> None:
    """The newest first."""
    kept = KeptBatches()
    kept.take(told(n) for n in range(KEPT + 10))
    assert [batch.at for batch in kept.last("j-1", "t", 3)] == [KEPT + 9, KEPT + 8, KEPT + 7]
    assert len(kept.last("j-1", "t", 10 * KEPT)) == KEPT
    assert kept.last("j-1", "other", 3) == []
    kept.take(told(n, task=f"t{n}") for n in range(TASKS))
    assert kept.last("j-1", "t", 3) == []
    assert len(kept.last("j-1", "t0", 3)) == 1


def test_the_batches_of_a_job_are_given_from_where_the_last_answer_ended() -> None:
    """Of all its tasks, in the order in which they were told; of more than are wanted, the latest."""
    kept = KeptBatches()
    kept.take([told(1), told(2, task="u"), told(3, job="k-1")])
    items, last = kept.after("j-1", 0, 10)
    assert [(batch.at, batch.task) for batch in items] == [(1.0, "t"), (2.0, "u")]
    kept.take([told(4), told(5), told(6, job="k-1")])
    assert [batch.at for batch in kept.after("j-1", last, 10)[0]] == [4.0, 5.0]
    assert [batch.at for batch in kept.after("j-1", 0, 1)[0]] == [5.0]
    assert kept.after("j-1", kept.after("j-1", 0, 1)[1], 10)[0] == []
    assert kept.after("other", 0, 10)[0] == []


def test_how_many_peers_a_task_fills_is_told_by_its_last_batches() -> None:
    """Without their waits; of one that began before those seconds, what lies in them. What ended before them does not count."""
    kept = KeptBatches()
    kept.take([told(80, seconds={"spark": 99.0}), told(92, seconds={"wait": 9.0, "spark": 5.0, "commit": 1.0})])
    assert kept.worked("j-1", 92 + WORKED) == {}
    assert kept.worked("j-1", 95) == {"t": pytest.approx(6 / WORKED)}
    assert kept.worked("j-1", 92 + WORKED - 2) == {"t": pytest.approx(2 / WORKED)}
    kept.take([told(94, seconds={"spark": 60.0}), told(94, task="u", seconds={"write": 3.0}), told(94, job="k-1")])
    assert kept.worked("j-1", 95) == {"t": pytest.approx((6 + WORKED - 1) / WORKED), "u": pytest.approx(3 / WORKED)}


def test_a_number_that_there_was_not_yet_gives_all() -> None:
    """It is of a process before this one."""
    kept = KeptBatches()
    kept.take([told(1), told(2)])
    assert [batch.at for batch in kept.after("j-1", 99, 10)[0]] == [1.0, 2.0]


def test_the_streams_of_the_last_jobs_are_kept() -> None:
    """So many batches of so many jobs."""
    kept = KeptBatches()
    kept.take(told(n) for n in range(STREAM + 5))
    assert [batch.at for batch in kept.after("j-1", 0, STREAM)[0]][:1] == [5.0]
    kept.take(told(n, job=f"k-{n}") for n in range(JOBS))
    assert kept.after("j-1", 0, STREAM)[0] == []
    assert len(kept.after("k-0", 0, STREAM)[0]) == 1
