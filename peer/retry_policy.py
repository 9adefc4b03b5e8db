"""What a task loop does about an error: restart, fail, stop, or wait and try again, and how often. No I/O."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

from peer.assignment import AssignmentRevoked
from queues.lost import ReaderLost
from queues.transaction_errors import ProducerLost
from sardonyx.core.errors import FunctionError, InputError, OutputError, SardonyxError, SetupError
from sardonyx.zookeeper.errors import SessionLost
from sentinel.election import ElectionClosed

_REBUILDS = 5
"""New producers and consumers in a row, without a commit between, before the task fails."""

_FORGOTTEN = 60.0
"""Seconds without an error after which earlier ones count no more; an input may be quiet for days."""

_REFUSALS = 5
"""Times in a row that Kafka may refuse a batch before the job fails."""

_BUSY = 20
"""Times in a row that a database may refuse a batch before the task fails: some refusals never pass."""


_PASSING = frozenset(
    {
        "SX-DISK-FULL",
        "SX-INPUT-AWAY",
        "SX-OUTPUT-FULL",
        "SX-OUTPUT-AWAY",
        "SX-STATE-FULL",
        "SX-STATE-HELD",
        "SX-KAFKA-DENIED",
        "SX-KAFKA-LOST",
        "SX-KAFKA-REFUSED",
        "SX-KAFKA-UNREACHABLE",
        "SX-PEER-FILES",
        "SX-PEER-MODULE",
        "SX-PEER-SIGNATURE",
        "SX-PEER-SIGNERS",
        "SX-REGISTRY-UNREACHABLE",
        "SX-SECRET-MISSING",
        "SX-SIGNED-MISSING",
        "SX-DATABASE-REFUSED",
        "SX-DATABASE-UNREACHABLE",
    }
)
"""Codes of failures whose cause lies outside the job and may pass without a change of the job, however long that takes."""

_SEEN_AGAIN = frozenset({"SX-STATE-TORN"})
"""Codes of failures that fail a job only if they are seen again after the back-off, up to its ``failure_limit``: while brokers
come back, a log has been read as if it ended too early, although Kafka had lost nothing."""


class Reaction(enum.Enum):
    """What a task loop does about an error that ended its batches."""

    RESTART = "new clients, from the committed positions"
    STOP = "end without a word: the assignment or the session is gone"
    FAIL_TASK = "report a failure; the coordinator tries again after a back-off"
    FAIL_JOB = "report a failure that would come again: the job fails"
    FAIL_UNLESS_ENDED = "wait for news that the job has ended; report a failure if none comes"
    LOSE_RUNNER = "this daemon can run no task: others take over"


def policy(
    error: Exception,
    *,
    may_restart: bool,
    store_reached: bool | None,
    runner_alive: Callable[[], bool],
    retries_task: bool = False,
) -> Reaction:
    """What to do about an error that came out of a task's batches.

    Args:
        error: what was raised.
        may_restart: whether the slot was being opened or worked on; otherwise the loop has given up already.
        store_reached: whether the output that keeps the positions has been reached; None: there is none.
        runner_alive: whether Spark can still run tasks. Asked only if the error leaves that open.
        retries_task: whether the task's ``on_error`` is to begin it again where it would fail the job.
    """
    if may_restart and (isinstance(error, (ProducerLost, ReaderLost)) or should_reconnect(error, store_reached)):
        return Reaction.RESTART
    if isinstance(error, (AssignmentRevoked, SessionLost)):
        return Reaction.STOP
    if isinstance(error, ElectionClosed):
        return Reaction.FAIL_UNLESS_ENDED
    if isinstance(error, (FunctionError, InputError, OutputError)):
        # After the back-off there may be room again, and the share be back; the other errors would come again.
        again = retries_task or may_pass(error) or error.code in _SEEN_AGAIN
        return Reaction.FAIL_TASK if again else Reaction.FAIL_JOB
    if isinstance(error, SetupError) and error.code == "SX-SPARK-LOST" and not runner_alive():
        return Reaction.LOSE_RUNNER
    return Reaction.FAIL_TASK


def may_pass(error: Exception) -> bool:
    """Whether the cause of a failure lies outside and may pass, so that no number of such failures fails the job."""
    return isinstance(error, SardonyxError) and error.code in _PASSING


def should_reconnect(error: Exception, store_reached: bool | None) -> bool:
    """Whether to restart as soon as it answers: what cannot be reached is known to have been there."""
    if not isinstance(error, SetupError):
        return False
    return error.code == "SX-KAFKA-UNREACHABLE" or (bool(store_reached) and error.code == "SX-DATABASE-UNREACHABLE")


class RetryPolicy:
    """The failures of one assignment since its last commit, and whether one more is too many.

    Args:
        task: its name.
        job: the job's id.
        now: seconds on a clock that never goes back.
    """

    def __init__(self, task: str, job: str, now: Callable[[], float] = time.monotonic) -> None:
        self._task = task
        self._job = job
        self._now = now
        self._committed = False
        self._rebuilds = 0
        self._rebuilt_at = 0.0
        self._refusals = 0
        self._busy = 0

    def reset(self) -> None:
        """A batch is committed: earlier failures count no more."""
        self._committed = True
        self._rebuilds = self._refusals = self._busy = 0

    def should_retry_batch(self, error: SetupError, store_reached: bool | None) -> bool:
        """Whether to pause and read the batch again: something that this task has worked with before is away, or busy.

        What it never worked with is more likely configured wrongly. Ask once for each failure: it is counted.

        Args:
            error: what was raised while a batch was in hand.
            store_reached: whether the output that keeps the positions has been reached; None: there is none.
        """
        if error.code == "SX-DATABASE-REFUSED" and store_reached:
            self._busy += 1
            return self._busy <= _BUSY
        if error.code == "SX-DATABASE-UNREACHABLE" and store_reached is not None:
            return False  # what is committed is not known: see should_reconnect
        return self._committed and error.code in {"SX-REGISTRY-UNREACHABLE", "SX-DATABASE-UNREACHABLE"}

    def refused(self, reason: Exception) -> float:
        """Kafka refuses the batch, for a reason that will not pass by itself. A few times may be chance.

        Returns: seconds to pause before the next attempt.

        Raises:
            OutputError: ``SX-KAFKA-REJECTED``, too many in a row.
        """
        self._refusals += 1
        if self._refusals >= _REFUSALS:
            raise OutputError(
                "SX-KAFKA-REJECTED",
                f"Kafka refused the results of task {self._task} {_REFUSALS} times in a row.",
                cause=str(reason),
                fix="Check the settings of the topic. Nothing of the batch was written.",
            )
        return float(0.1 * 2**self._refusals)

    def rebuilt(self, reason: Exception) -> float:
        """The task restarts, although everything that it needs answers.

        Returns: seconds to pause before it does.

        Raises:
            SetupError: ``SX-KAFKA-LOST``, too many in a row; the reason itself, if that is one of our errors.
        """
        now = self._now()
        self._rebuilds = 1 if now - self._rebuilt_at > _FORGOTTEN else self._rebuilds + 1
        self._rebuilt_at = now
        if self._rebuilds > _REBUILDS:
            if isinstance(reason, SardonyxError):  # which need not be about Kafka
                raise reason
            raise SetupError(
                "SX-KAFKA-LOST",
                f"Kafka did not let task {self._task} commit {_REBUILDS} times in a row.",
                cause=str(reason),
                fix="Check the brokers; `sardonyx doctor` shows whether they answer.",
                where={"task": self._task, "job": self._job},
            ) from reason
        return float(0.1 * 2**self._rebuilds)
