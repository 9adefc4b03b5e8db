"""What a task puts up with: which troubles it waits out, how often in a row, and when it is given up. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable

from sardonyx.core.errors import OutputError, SardonyxError, SetupError

_REBUILDS = 5
"""New producers and consumers in a row, without a commit between, before the task is given up."""

_FORGOTTEN = 60.0
"""Seconds without trouble after which earlier ones count no more; an input may be quiet for days."""

_REFUSALS = 5
"""Times in a row that Kafka may refuse a batch before the job fails."""

_BUSY = 20
"""Times in a row that a database may refuse a batch before the task counts as failed: some refusals never pass."""


class RetryPolicy:
    """Those of one assignment since its last commit.

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
        """A batch is committed."""
        self._committed = True
        self._rebuilds = self._refusals = self._busy = 0

    def should_retry_batch(self, error: SetupError, store: bool | None) -> bool:
        """Whether to rest, and to read the batch again: what this task has worked with before is away, or busy.

        What it never worked with is more likely written wrongly. To be asked once for each trouble.

        Args:
            error: what was raised while a batch was in hand.
            store: whether the output that keeps the positions has been reached; None: there is none.
        """
        if error.code == "SX-DATABASE-REFUSED" and store:
            self._busy += 1
            return self._busy <= _BUSY
        if error.code == "SX-DATABASE-UNREACHABLE" and store is not None:
            return False  # what is committed is not known: see should_reconnect
        return self._committed and error.code in {"SX-REGISTRY-UNREACHABLE", "SX-DATABASE-UNREACHABLE"}

    def should_reconnect(self, away: SetupError, store: bool | None) -> bool:
        """Whether to begin afresh as soon as it answers: what cannot be reached is known to have been there."""
        return away.code == "SX-KAFKA-UNREACHABLE" or (bool(store) and away.code == "SX-DATABASE-UNREACHABLE")

    def refused(self, reason: Exception) -> float:
        """Kafka does not take the batch, for a reason that will not pass by itself: a few times may be chance.

        Returns: seconds to rest before the next attempt.

        Raises:
            OutputError: ``SX-KAFKA-REJECTED``, it was too often.
        """
        self._refusals += 1
        if self._refusals >= _REFUSALS:
            raise OutputError(
                "SX-KAFKA-REJECTED",
                f"Kafka refused the results of task {self._task}, {_REFUSALS} times in a row",
                cause=str(reason),
                fix="look at the topic's settings and at the rights of this client; nothing of the batch was written",
            )
        return float(0.1 * 2**self._refusals)

    def rebuilt(self, reason: Exception) -> float:
        """The task begins afresh, though all that it needs answers.

        Returns: seconds to rest before it does.

        Raises:
            SetupError: ``SX-KAFKA-LOST``, it was too often; the reason itself, if that is one.
        """
        now = self._now()
        self._rebuilds = 1 if now - self._rebuilt_at > _FORGOTTEN else self._rebuilds + 1
        self._rebuilt_at = now
        if self._rebuilds > _REBUILDS:
            if isinstance(reason, SardonyxError):  # which need not be about Kafka
                raise reason
            raise SetupError(
                "SX-KAFKA-LOST",
                f"Kafka did not let task {self._task} commit, {_REBUILDS} times in a row",
                cause=str(reason),
                fix="look at the brokers; `sardonyx doctor` shows whether they answer",
                where={"task": self._task, "job": self._job},
            ) from reason
        return float(0.1 * 2**self._rebuilds)
