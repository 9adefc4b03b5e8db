"""What a task waits out, and when it is given up."""

from __future__ import annotations

import pytest

from peer.assignment import AssignmentRevoked
from peer.retry_policy import Reaction, RetryPolicy, may_pass, policy, should_reconnect
from queues.lost import NotLetIn, ReaderLost
from queues.transaction_errors import ProducerLost
from sardonyx.core.errors import FunctionError, InputError, OutputError, SardonyxError, SetupError
from sardonyx.zookeeper.errors import SessionLost, ZooKeeperAway
from sentinel.election import ElectionClosed

REGISTRY, DATABASE, BUSY, KAFKA = (
    SetupError(f"SX-{code}", "no")
    for code in ("REGISTRY-UNREACHABLE", "DATABASE-UNREACHABLE", "DATABASE-REFUSED", "KAFKA-UNREACHABLE")
)


@pytest.fixture
def retries() -> RetryPolicy:
    return RetryPolicy("clean", "j-1", lambda: 100.0)


@pytest.mark.parametrize("away", [REGISTRY, DATABASE])
def test_what_the_task_has_worked_with_is_waited_for(away: SetupError, retries: RetryPolicy) -> None:
    """For as long as it takes; what it never worked with may be written wrongly, and counts as a failure."""
    assert not retries.should_retry_batch(away, None)
    retries.reset()
    assert all(retries.should_retry_batch(away, None) for _ in range(1_000))
    assert not retries.should_retry_batch(SetupError("SX-SPARK-LOST", "no"), None)


def test_an_output_with_the_positions_is_asked_for_them_when_it_is_back(retries: RetryPolicy) -> None:
    """The batch is not simply read again: whether it is committed is not known."""
    retries.reset()
    assert not retries.should_retry_batch(DATABASE, store_reached=True)
    assert should_reconnect(DATABASE, store_reached=True)
    assert not should_reconnect(DATABASE, store_reached=False)
    assert not should_reconnect(DATABASE, None)
    assert should_reconnect(KAFKA, None)


def test_a_database_may_be_busy_for_a_while(retries: RetryPolicy) -> None:
    """A batch that it refuses is tried again many times before that counts as a failure; any commit ends the counting."""
    assert not retries.should_retry_batch(BUSY, store_reached=False)
    for _ in range(2):
        assert [retries.should_retry_batch(BUSY, store_reached=True) for _ in range(21)] == [True] * 20 + [False]
        retries.reset()


@pytest.mark.parametrize(("reason", "code"), [(RuntimeError("no"), "SX-KAFKA-LOST"), (DATABASE, DATABASE.code)])
def test_who_begins_afresh_too_often_says_why(reason: Exception, code: str, retries: RetryPolicy) -> None:
    """Kafka is blamed only where nothing else is known."""
    assert [retries.rebuilt(reason) for _ in range(5)] == [0.2, 0.4, 0.8, 1.6, 3.2]
    with pytest.raises(SardonyxError) as error:
        retries.rebuilt(reason)
    assert error.value.code == code


def test_kafka_may_refuse_a_batch_a_few_times(retries: RetryPolicy) -> None:
    """In a row, that is."""
    for _ in range(2):
        assert [retries.refused(RuntimeError("no")) for _ in range(4)] == [0.2, 0.4, 0.8, 1.6]
        retries.reset()
    for _ in range(4):
        retries.refused(RuntimeError("no"))
    with pytest.raises(SardonyxError) as error:
        retries.refused(RuntimeError("no"))
    assert error.value.code == "SX-KAFKA-REJECTED"


SPARK = SetupError("SX-SPARK-LOST", "no")

TABLE: list[tuple[Exception, bool | None, Reaction, Reaction]] = [
    # error, whether the store has been reached, while the slot is worked on, after the loop has given up
    (ProducerLost("no"), None, Reaction.RESTART, Reaction.FAIL_TASK),
    (ReaderLost("no"), None, Reaction.RESTART, Reaction.FAIL_TASK),
    (NotLetIn("no"), None, Reaction.RESTART, Reaction.FAIL_TASK),
    (KAFKA, None, Reaction.RESTART, Reaction.FAIL_TASK),
    (KAFKA, False, Reaction.RESTART, Reaction.FAIL_TASK),
    (DATABASE, True, Reaction.RESTART, Reaction.FAIL_TASK),
    (DATABASE, False, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (DATABASE, None, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (REGISTRY, None, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (BUSY, True, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (SetupError("SX-KAFKA-LOST", "no"), None, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (AssignmentRevoked(), None, Reaction.STOP, Reaction.STOP),
    (SessionLost("SX-ZOOKEEPER-SESSION", "no"), None, Reaction.STOP, Reaction.STOP),
    (ElectionClosed("SX-SENTINEL-ELECTION", "no"), None, Reaction.FAIL_UNLESS_ENDED, Reaction.FAIL_UNLESS_ENDED),
    (FunctionError("SX-FN-RAISED", "no"), None, Reaction.FAIL_JOB, Reaction.FAIL_JOB),
    (InputError("SX-RECORD-UNDECODABLE", "no"), None, Reaction.FAIL_JOB, Reaction.FAIL_JOB),
    (InputError("SX-STATE-TORN", "no"), None, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (OutputError("SX-OUTPUT-EXISTS", "no"), None, Reaction.FAIL_JOB, Reaction.FAIL_JOB),
    (OutputError("SX-OUTPUT-FULL", "no"), None, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (ZooKeeperAway("SX-ZOOKEEPER-AWAY", "no"), None, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (RuntimeError("no"), None, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
    (TimeoutError(), None, Reaction.FAIL_TASK, Reaction.FAIL_TASK),
]


@pytest.mark.parametrize(("error", "reached", "working", "given_up"), TABLE, ids=lambda value: repr(value)[:40])
def test_every_error_has_one_reaction(
    error: Exception, reached: bool | None, working: Reaction, given_up: Reaction
) -> None:
    """Only a loop that has not given up restarts; what is not known is a failure that the coordinator tries again."""

    def never() -> bool:
        raise AssertionError("whether Spark lives is asked only where it matters")

    for may_restart, expected in ((True, working), (False, given_up)):
        found = policy(error, may_restart=may_restart, store_reached=reached, runner_alive=never)
        assert found is expected


@pytest.mark.parametrize("code", ["SX-FN-RAISED", "SX-FN-LIFECYCLE", "SX-KAFKA-REJECTED"])
def test_a_bad_record_may_let_its_task_begin_again(code: str) -> None:
    """With ``on_error="retry_task"``, what would fail the job is a failure of the task, which ``failure_limit`` counts."""
    kind = OutputError if code == "SX-KAFKA-REJECTED" else FunctionError
    for retries_task, expected in ((True, Reaction.FAIL_TASK), (False, Reaction.FAIL_JOB)):
        found = policy(
            kind(code, "no"),
            may_restart=True,
            store_reached=None,
            runner_alive=lambda: True,
            retries_task=retries_task,
        )
        assert found is expected
    assert not may_pass(kind(code, "no"))  # else it would not be counted


@pytest.mark.parametrize("may_restart", [True, False])
@pytest.mark.parametrize(("alive", "expected"), [(True, Reaction.FAIL_TASK), (False, Reaction.LOSE_RUNNER)])
def test_a_lost_spark_is_the_daemons_matter(alive: bool, expected: Reaction, may_restart: bool) -> None:
    """If it has ended this daemon can run no task; if it lives, the task has failed."""
    assert policy(SPARK, may_restart=may_restart, store_reached=None, runner_alive=lambda: alive) is expected


def test_what_lies_outside_and_may_pass_does_not_count() -> None:
    """A full disk, a folder that another process holds, and a service that is away or refuses, fail no job. A peer that lacks
    something, or a bug, does.
    """
    passing = [
        "SX-OUTPUT-FULL",
        "SX-PEER-FILES",
        "SX-PEER-MODULE",
        "SX-PEER-SIGNATURE",
        "SX-PEER-SIGNERS",
        "SX-STATE-FULL",
        "SX-STATE-HELD",
        "SX-KAFKA-LOST",
        "SX-REGISTRY-UNREACHABLE",
        "SX-DATABASE-UNREACHABLE",
    ]
    assert all(may_pass(SetupError(code, "no")) for code in passing)
    assert not may_pass(SetupError("SX-SPARK-LOST", "no"))
    assert not may_pass(RuntimeError("a bug"))
