"""What a peer daemon counts and measures. ``/metrics`` serves it, and ``run --profile`` shows it.

A job is named by its name, without what the client appends to make an id of it: there are any number of ids.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from peer.peer_machine import STATES
from sardonyx.core.names import job_name
from sardonyx.runtime.metrics import REGISTRY

if TYPE_CHECKING:
    from peer.batch_result import Result

_TASK = ("sx_job", "task")
_TASKS = 32
"""Tasks of a daemon that have series of their own. Further ones are counted together, as task ``_other``."""

BATCHES = REGISTRY.counter(
    "sardonyx_task_batches_total",
    "Batches by outcome: committed (with rows), dropped (to be read again), delayed (a service was away).",
    (*_TASK, "outcome"),
    most=3 * _TASKS,
)
ROWS = REGISTRY.counter(
    "sardonyx_task_rows_total",
    "Rows of committed batches: in (read), out (given), skipped (bad records left out), dead (dead letters), late (their windows "
    "had closed).",
    (*_TASK, "what"),
    most=5 * _TASKS,
)
STEP_SECONDS = REGISTRY.counter(
    "sardonyx_task_step_seconds_total",
    "Seconds spent in each step of committed batches.",
    (*_TASK, "step"),
    most=10 * _TASKS,
)
BATCH_SECONDS = REGISTRY.histogram(
    "sardonyx_task_batch_seconds",
    "Duration of committed batches, without the wait for rows.",
    _TASK,
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    most=_TASKS,
)
BATCH_ROWS = REGISTRY.histogram(
    "sardonyx_task_batch_rows", "Rows read by committed batches.", _TASK, (1, 10, 100, 1e3, 1e4, 5e4, 1e5), most=_TASKS
)
LAST_COMMIT = REGISTRY.gauge(
    "sardonyx_task_last_commit_timestamp_seconds",
    "When this daemon committed the last batch with rows, in seconds since 1970.",
    _TASK,
    most=_TASKS,
)
DELAY = REGISTRY.histogram(
    "sardonyx_task_delay_seconds",
    "Time from when the oldest record of a committed batch was written to its topic until the commit, by the record's time.",
    _TASK,
    (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
    most=_TASKS // 2,
)
BUSY = REGISTRY.gauge(
    "sardonyx_task_busy_ratio",
    "Share of the last ten seconds in which this daemon's virtual peers on the task had a batch in hand, from 0 to 1.",
    _TASK,
    most=_TASKS,
)
RETRIES = REGISTRY.counter(
    "sardonyx_task_retry_runs_total",
    "How often the function of a task was run again because it had raised, as its on_error says.",
    _TASK,
    most=_TASKS,
)
FAILURES = REGISTRY.counter(
    "sardonyx_task_failures_total",
    "Failures that peers reported of tasks, by error code. Fatal: the job fails at once.",
    (*_TASK, "code", "fatal"),
    most=2 * _TASKS,
)
REBUILDS = REGISTRY.counter(
    "sardonyx_task_rebuilds_total",
    "How often a task went on with a new producer and consumer after an error of Kafka.",
    _TASK,
    most=_TASKS,
)
SEAL_SECONDS = REGISTRY.histogram(
    "sardonyx_seal_seconds",
    "Time from when a peer was told to seal a task until the task is complete.",
    bounds=(0.1, 0.5, 1, 5, 30),
    most=1,
)
OFFERS = REGISTRY.counter(
    "sardonyx_offers_total",
    "Offers of tasks to peers of this daemon, by answer: accepted or declined.",
    ["answer"],
    most=2,
)
VIRTUAL_PEERS = REGISTRY.gauge(
    "sardonyx_virtual_peers", "Virtual peers of the daemon, by what they have done so far.", ["state"], most=len(STATES)
)
SPARK_RESTARTS = REGISTRY.counter("sardonyx_spark_restarts_total", "How often the daemon started Spark again.", most=1)


def count_batch(job: str, task: str, result: Result, seconds: Mapping[str, float], oldest: float | None = None) -> None:
    """Count a committed batch.

    Args:
        job: id of the job.
        task: name of the task.
        result: what became of the batch's rows.
        seconds: duration of each step.
        oldest: when its oldest record was written, in seconds since 1970; None: that is not known.
    """
    job = job_name(job)
    BATCHES.add(sx_job=job, task=task, outcome="committed")
    late = result.planned.dropped if result.planned is not None else 0
    for what, count in (
        ("in", result.rows_in),
        ("out", result.table.num_rows),
        ("skipped", result.skipped),
        ("dead", len(result.letters)),
        ("late", late),
    ):
        ROWS.add(count, sx_job=job, task=task, what=what)
    for step, spent in seconds.items():
        STEP_SECONDS.add(spent, sx_job=job, task=task, step=step)
    BATCH_SECONDS.observe(sum(seconds.values()) - seconds.get("wait", 0.0), sx_job=job, task=task)
    BATCH_ROWS.observe(result.rows_in, sx_job=job, task=task)
    LAST_COMMIT.set(time.time(), sx_job=job, task=task)
    if oldest is not None:
        DELAY.observe(max(time.time() - oldest, 0.0), sx_job=job, task=task)


def count_restore(job: str, task: str, seconds: Mapping[str, float]) -> None:
    """Of a batch without rows, which is not counted: the time in which state was made again from its log."""
    if "restore" in seconds:
        STEP_SECONDS.add(seconds["restore"], sx_job=job_name(job), task=task, step="restore")


def count_uncommitted(job: str, task: str, outcome: str) -> None:
    """Count a batch that was ``dropped`` or ``delayed``."""
    BATCHES.add(sx_job=job_name(job), task=task, outcome=outcome)


def count_retry(job: str, task: str) -> None:
    """Count one more run of a task's function for records that it raised for."""
    RETRIES.add(sx_job=job_name(job), task=task)


def count_failure(job: str, task: str, code: str, *, fatal: bool) -> None:
    """Count a failure of a task that is reported to the coordinator."""
    FAILURES.add(sx_job=job_name(job), task=task, code=code, fatal="yes" if fatal else "no")


def count_rebuild(job: str, task: str) -> None:
    """Count a task that goes on with new clients of Kafka."""
    REBUILDS.add(sx_job=job_name(job), task=task)


_SPAN = 10.0
"""Seconds over which :data:`BUSY` is averaged; what is longer ago counts less and less."""


class Busy:
    """How much of its time one virtual peer has a batch in hand, in one assignment.

    Args:
        job: id of the job.
        task: name of the task.
        now: seconds on a clock that never goes back.
    """

    def __init__(self, job: str, task: str, now: Callable[[], float] = time.monotonic) -> None:
        self.labels = (job_name(job), task)
        self._now = now
        self._known = (0.0, now(), False)
        _AT_WORK[id(self)] = self

    def set(self, busy: bool) -> None:
        """From now on it has a batch in hand, or has none."""
        if busy != self._known[2]:
            self._known = (self.share, self._now(), busy)

    @property
    def share(self) -> float:
        """The share of the last seconds. It may be read in any thread."""
        share, since, busy = self._known
        kept = math.exp((since - self._now()) / _SPAN)
        return share * kept + (1 - kept) * busy

    def close(self) -> None:
        """The assignment is over."""
        _AT_WORK.pop(id(self), None)


_AT_WORK: dict[int, Busy] = {}


def _shares() -> dict[tuple[str, ...], float]:
    """Of each task, the mean of its virtual peers."""
    found: dict[tuple[str, ...], list[float]] = {}
    for each in list(_AT_WORK.values()):
        found.setdefault(each.labels, []).append(each.share)
    return {labels: sum(shares) / len(shares) for labels, shares in found.items()}


BUSY.follow(_shares)
