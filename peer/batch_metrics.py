"""What a peer counts and measures of its batches, by job and task. ``run --profile`` shows it."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.runtime.metrics import REGISTRY

_TASK = ("job", "task")

BATCHES = REGISTRY.counter("sardonyx_batches_total", "Batches with rows that were committed.", _TASK)
ROWS_IN = REGISTRY.counter("sardonyx_rows_in_total", "Rows read by committed batches.", _TASK)
ROWS_OUT = REGISTRY.counter("sardonyx_rows_out_total", "Rows that committed batches gave.", _TASK)
SKIPPED = REGISTRY.counter("sardonyx_rows_skipped_total", "Records that committed batches left out.", _TASK)
DEAD_LETTERS = REGISTRY.counter("sardonyx_dead_letters_total", "Dead letters of committed batches.", _TASK)
STEP_SECONDS = REGISTRY.histogram(
    "sardonyx_batch_step_seconds", "Duration of each step of committed batches.", (*_TASK, "step")
)


def count_batch(
    job: str, task: str, *, rows_in: int, rows_out: int, skipped: int, dead: int, seconds: Mapping[str, float]
) -> None:
    """Count a committed batch.

    Args:
        job: id of the job.
        task: name of the task.
        rows_in: rows that it read.
        rows_out: rows that the function gave.
        skipped: records left out.
        dead: dead letters.
        seconds: duration of each step.
    """
    BATCHES.add(job=job, task=task)
    ROWS_IN.add(rows_in, job=job, task=task)
    ROWS_OUT.add(rows_out, job=job, task=task)
    SKIPPED.add(skipped, job=job, task=task)
    DEAD_LETTERS.add(dead, job=job, task=task)
    for step, spent in seconds.items():
        STEP_SECONDS.observe(spent, job=job, task=task, step=step)
