"""Checks of outputs to users' topics.

A part of :mod:`sardonyx.job.validate`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.core.errors import SardonyxError
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.job.validate_edges import problem


def problems_of_topics(spec: JobSpec) -> Iterator[SardonyxError]:
    """What is wrong with options of ``kafka`` outputs that depend on the rest of the job."""
    outputs = [task for task in spec.catalog if task.type == "output" and task.connector == "kafka"]
    for task in outputs:
        if task.options.get("lineage") and not spec.lineage:
            yield problem(
                "SX-JOB-CONNECTOR",
                task.name,
                "its records are to say from which offsets they are made, and the job does not keep that",
                fix="give Job(..., lineage=True), or remove lineage from the output",
            )
    yield from _end_markers(outputs)


def _end_markers(outputs: list[TaskSpec]) -> Iterator[SardonyxError]:
    writers: dict[str, list[TaskSpec]] = {}
    for task in outputs:
        writers.setdefault(str(task.options.get("topic")), []).append(task)
    for topic, tasks in writers.items():
        marking = next((task for task in tasks if task.options.get("end_marker")), None)
        if marking is not None and len(tasks) > 1:
            other = next(task for task in tasks if task is not marking)
            yield problem(
                "SX-JOB-END-MARKER",
                marking.name,
                f"it has end_marker, but {other.name!r} writes to topic {topic!r}, too",
                cause="each output writes its end marker when it has ended, and readers stop at the first one",
                fix="make them one output that comes after all these tasks, or give each a topic of its own",
            )
