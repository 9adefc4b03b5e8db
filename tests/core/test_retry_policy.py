"""What a task waits out, and when it is given up."""

from __future__ import annotations

import pytest

from peer.retry_policy import RetryPolicy
from sardonyx.core.errors import SardonyxError, SetupError

REGISTRY, DATABASE, BUSY, KAFKA = (
    SetupError(f"SX-{code}", "no")
    for code in ("REGISTRY-UNREACHABLE", "DATABASE-UNREACHABLE", "DATABASE-REFUSED", "KAFKA-UNREACHABLE")
)


@pytest.fixture
def troubles() -> RetryPolicy:
    return RetryPolicy("clean", "j-1", lambda: 100.0)


@pytest.mark.parametrize("away", [REGISTRY, DATABASE])
def test_what_the_task_has_worked_with_is_waited_for(away: SetupError, troubles: RetryPolicy) -> None:
    """For as long as it takes; what it never worked with may be written wrongly, and counts as a failure."""
    assert not troubles.should_retry_batch(away, None)
    troubles.reset()
    assert all(troubles.should_retry_batch(away, None) for _ in range(1_000))
    assert not troubles.should_retry_batch(SetupError("SX-SPARK-LOST", "no"), None)


def test_an_output_with_the_positions_is_asked_for_them_when_it_is_back(troubles: RetryPolicy) -> None:
    """The batch is not simply read again: whether it is committed is not known."""
    troubles.reset()
    assert not troubles.should_retry_batch(DATABASE, store=True)
    assert troubles.should_reconnect(DATABASE, store=True)
    assert not troubles.should_reconnect(DATABASE, store=False)
    assert not troubles.should_reconnect(DATABASE, None)
    assert troubles.should_reconnect(KAFKA, None)


def test_a_database_may_be_busy_for_a_while(troubles: RetryPolicy) -> None:
    """A batch that it refuses is tried again many times before that counts as a failure; any commit ends the counting."""
    assert not troubles.should_retry_batch(BUSY, store=False)
    for _ in range(2):
        assert [troubles.should_retry_batch(BUSY, store=True) for _ in range(21)] == [True] * 20 + [False]
        troubles.reset()


@pytest.mark.parametrize(("reason", "code"), [(RuntimeError("no"), "SX-KAFKA-LOST"), (DATABASE, DATABASE.code)])
def test_who_begins_afresh_too_often_says_why(reason: Exception, code: str, troubles: RetryPolicy) -> None:
    """Kafka is blamed only where nothing else is known."""
    assert [troubles.rebuilt(reason) for _ in range(5)] == [0.2, 0.4, 0.8, 1.6, 3.2]
    with pytest.raises(SardonyxError) as error:
        troubles.rebuilt(reason)
    assert error.value.code == code


def test_kafka_may_refuse_a_batch_a_few_times(troubles: RetryPolicy) -> None:
    """In a row, that is."""
    for _ in range(2):
        assert [troubles.refused(RuntimeError("no")) for _ in range(4)] == [0.2, 0.4, 0.8, 1.6]
        troubles.reset()
    for _ in range(4):
        troubles.refused(RuntimeError("no"))
    with pytest.raises(SardonyxError) as error:
        troubles.refused(RuntimeError("no"))
    assert error.value.code == "SX-KAFKA-REJECTED"
