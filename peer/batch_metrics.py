"""What a peer counts and measures of its batches, by job and task. ``run --profile`` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sardonyx.runtime.metrics import REGISTRY

if TYPE_CHECKING:
    from peer.batch_result import Result

_TASK = ("job", "task")

BATCHES = REGISTRY.counter("sardonyx_batches_total", "Batches with rows that were committed.", _TASK)
ROWS_IN = REGISTRY.counter("sardonyx_rows_in_total", "Rows read by committed batches.", _TASK)
ROWS_OUT = REGISTRY.counter("sardonyx_rows_out_total", "Rows that committed batches gave.", _TASK)
SKIPPED = REGISTRY.counter("sardonyx_rows_skipped_total", "Records that committed batches left out.", _TASK)
DEAD_LETTERS = REGISTRY.counter("sardonyx_dead_letters_total", "Dead letters of committed batches.", _TASK)
LATE = REGISTRY.counter(
    "sardonyx_late_rows_total", "Rows that came after their windows had closed, and were dropped.", _TASK
)
STEP_SECONDS = REGISTRY.histogram(
    "sardonyx_batch_step_seconds", "Duration of each step of committed batches.", (*_TASK, "step")
)


def count_batch(job: str, task: str, result: Result, seconds: Mapping[str, float]) -> None:
    """Count a committed batch.

    Args:
        job: id of the job.
        task: name of the task.
        result: what became of the batch's rows.
        seconds: duration of each step.
    """
    BATCHES.add(job=job, task=task)
    ROWS_IN.add(result.rows_in, job=job, task=task)
    ROWS_OUT.add(result.table.num_rows, job=job, task=task)
    SKIPPED.add(result.skipped, job=job, task=task)
    DEAD_LETTERS.add(len(result.letters), job=job, task=task)
    LATE.add(result.planned.dropped if result.planned is not None else 0, job=job, task=task)
    for step, spent in seconds.items():
        STEP_SECONDS.observe(spent, job=job, task=task, step=step)


def count_restore(job: str, task: str, seconds: Mapping[str, float]) -> None:
    """Of a batch without rows, which is not counted: the time in which state was made again from its log."""
    if "restore" in seconds:
        STEP_SECONDS.observe(seconds["restore"], job=job, task=task, step="restore")
