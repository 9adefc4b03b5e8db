"""A running job in which one task gets other numbers of peers, or batches of another size. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from sardonyx.core.changing_at import pending
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec
from sardonyx.core.text import listed, near, plural


def scaled(
    job: str,
    spec: JobSpec,
    task: str,
    *,
    min_peers: int | None = None,
    max_peers: int | None = None,
    batch_size: int | None = None,
    complete: Collection[str] = (),
) -> JobSpec:
    """The job with other settings of one task. What is None stays. Whether the values can be is for the validation to say.

    Args:
        job: its id, for the texts.
        spec: the job as it runs.
        task: the task.
        min_peers: it begins only when so many peers are free for it.
        max_peers: at most so many peers at a time; 0: as many as there are partitions.
        batch_size: rows that a batch has at most.
        complete: the tasks that are complete.

    Raises:
        SardonyxError: ``SX-JOB-SCALE-TASK``: there is no such task, no peer works on it by itself or any more, or nothing is to
            change. ``SX-JOB-CHANGE-NOW``: the job is being changed at a time.
    """
    names = [each.name for each in spec.catalog]
    if task not in names:
        raise _refused(
            job,
            f"job {job} has no task {task!r}{near(task, names)}",
            f"its tasks are {listed(names)}",
            "name one of them with --task",
        )
    given = {"min_peers": min_peers, "max_peers": max_peers, "batch_size": batch_size}
    values: dict[str, int | None] = {name: value for name, value in given.items() if value is not None}
    if not values:
        what = "give one or more of `--min-peers`, `--max-peers` and `--batch-size`"
        raise _refused(job, f"nothing of task {task} is to change", "no value is given", what)
    _require_own_peers(job, spec, task)
    if task in complete:
        cause = "all that it reads is read, and no peer works on it any more"
        raise _refused(job, f"task {task} of job {job} is complete", cause, "scale a task that still has work")
    waits = pending(spec)
    if waits is not None:
        raise SardonyxError(
            "SX-JOB-CHANGE-NOW",
            f"job {job} cannot be changed now",
            cause=f"its change at {waits.time} is not complete, and until then it takes no other version",
            fix="wait until it is complete, or give it up: change the job to what it was, with `--drop`",
            where={"job": job},
        )
    if values.get("max_peers") == 0:
        values["max_peers"] = None
    catalog = [replace(each, **values) if each.name == task else each for each in spec.catalog]
    return replace(spec, catalog=catalog)


def _require_own_peers(job: str, spec: JobSpec, task: str) -> None:
    graph = graph_of(spec, "", "")
    if task not in graph.bound:
        return
    beside = graph.bound[task]
    if any(each.name == task for stage in graph.stages for each in stage.fused):
        cause = f"it runs in the batches of task {beside[0]}"
    else:
        verb = "reads" if spec.task(task).type == "input" else "writes"
        cause = f"{listed(beside)} {plural(len(beside), verb, verb[:-1])} its topic in place"
    raise _refused(
        job, f"no peer works on task {task} of job {job} by itself", cause, f"scale {listed(beside, last='or')}"
    )


def _refused(job: str, message: str, cause: str, fix: str) -> SardonyxError:
    return SardonyxError("SX-JOB-SCALE-TASK", message, cause=cause, fix=fix, where={"job": job})


__all__ = ["scaled"]
