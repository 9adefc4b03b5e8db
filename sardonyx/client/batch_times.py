"""Where the time of a slow task's batches goes, as peers have told of the last ones: which step takes most, and what helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sardonyx.client.reasons import Outside
from sardonyx.core.text import counted
from sardonyx.core.units import duration

if TYPE_CHECKING:
    from sardonyx.core.spec import TaskSpec
    from sardonyx.core.telemetry import BatchTold
    from sardonyx.runtime.settings import Settings

BACK = 15 * 60.0
"""Seconds of the past of which batches are looked at."""
LOOK = 3.0
"""Seconds for which they are read."""

_FUNCTION = (
    "make the function faster, or give the task more peers (`max_peers`, and partitions of what it reads); with a smaller "
    "`batch_size` each batch is committed sooner"
)
_SPARK = "give it a larger `batch_size`, so that fewer batches go through Spark"
_AWAY = "look at what it writes to: the brokers, the share or the database, and the way there"
_STEPS: Mapping[str, tuple[str, str]] = {
    "function": ("its function", _FUNCTION),
    "spark": ("Spark, around its function,", _SPARK),
    "decode": ("reading its rows", ""),
    "state": ("its state", ""),
    "restore": ("to get its state back", ""),
    "encode": ("to encode its results", ""),
    "write": ("writing", _AWAY),
    "publish": ("to put its files in place", _AWAY),
    "commit": ("the commit", _AWAY),
}
"""By step of a batch: it in words, and what to do if it takes most of the time."""
_OFF = "set metrics.telemetry = true for coordinators and peers, and peers tell with the next job"


class OfTask(NamedTuple):
    """Something that is said of a task."""

    task: str
    text: str


def batch_times(settings: Settings, job: str, tasks: Iterable[TaskSpec]) -> list[Outside]:
    """Say of each of these tasks of a job where the time of its last batches went. Takes some seconds if there is a task.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``, ``SX-KAFKA-DENIED``.
    """
    slow = list(tasks)
    if not slow:
        return []
    from queues.telemetry import batches_of

    told = batches_of(settings, job, LOOK, BACK)
    return [
        in_words(task, None if told is None else [batch for batch in told if batch.task == task.name]) for task in slow
    ]


def in_words(task: TaskSpec, batches: Sequence[BatchTold] | None) -> Outside:
    """The same of one task, from what was told of its committed batches; None: peers do not tell. Pure."""
    spent = Counter[str]()
    for batch in batches or ():
        spent.update(
            {step: took for step, took in batch.seconds.items() if step != "wait"}
        )  # what it waits for has no step
    total = sum(spent.values())
    if total <= 0.0 or not batches:
        return _not_known(task, tells=batches is not None)
    step, took = max(spent.items(), key=lambda each: each[1])
    words, fix = _STEPS.get(step, (f"step {step}", ""))
    many = len(batches)
    last = "last batch" if many == 1 else f"last {many:,} batches"
    each = "" if many == 1 else " each"
    share = f"{took / total:.0%} of the time of its {last}, {duration(took / many)} of {duration(total / many)}{each}"
    rows = counted(round(sum(batch.rows_in for batch in batches) / many), "row")
    return Outside(
        "batch-time", f"task {task.name}: {words} took {share}, with {rows}{' on average' if each else ''}", fix
    )


def _not_known(task: TaskSpec, *, tells: bool) -> Outside:
    why = "no batch of it was committed lately" if tells else "peers do not tell how long the steps of a batch take"
    text = f"task {task.name}: where the time of its batches goes is not known, since {why}"
    if task.fn is None:
        return Outside("batch-time", text, "" if tells else _OFF)
    fix = f"if the function takes long: {_FUNCTION}"
    return Outside("batch-time", f"{text}; mostly it is the function ({task.fn})", fix if tells else f"{_OFF}; {fix}")
