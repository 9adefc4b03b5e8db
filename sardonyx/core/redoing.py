"""The job that works on dead letters again. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import order_of
from sardonyx.core.reach import Reach
from sardonyx.core.resizing import awake
from sardonyx.core.row_times import row_times
from sardonyx.core.spec import LETTERS_FORMAT, LETTERS_ORIGINS, JobSpec, OnError, TaskSpec, stateful, whole_of
from sardonyx.core.timing import RowTime, TimeSpec

LETTERS = "letters"
"""Name of the input task that a redo reads its letters with, if the job has no task of that name."""


def redo_spec(spec: JobSpec, task: str, name: str, topic: str, start: int, end: int) -> JobSpec:
    """The job that works on dead letters: the task and all tasks after it, with the letters as input. If the task is in a loop,
    the whole loop is after it.

    Args:
        spec: the job that they come from, or a corrected one.
        task: the task that failed on them.
        name: of the new job, which is its id too.
        topic: of the letters.
        start: the first of them.
        end: the offset after the last one.

    Raises:
        SardonyxError: ``SX-DLQ-TASK``, there is no such task. ``SX-DLQ-JOIN``, it would need rows that are no letters.
    """
    tasks = {each.name: each for each in spec.catalog}
    if task not in tasks:
        raise SardonyxError(
            "SX-DLQ-TASK",
            f"job {spec.name} has no task {task}",
            cause=f"its tasks are {', '.join(tasks)}",
            fix="name one of them with --task, or give a job that has this task",
            where={"job": spec.name},
        )
    kept = set(Reach(tasks, (edge for edge in spec.edges if edge[0] in tasks and edge[1] in tasks)).after(task))
    _check_sides(spec, task, kept)
    edges = [(source, target) for source, target in spec.workflow if source in kept]
    before = [tasks[source] for source, target in spec.workflow if target == task]
    formats: dict[str, Any] = {}
    for each in (*before, tasks[task]):
        formats |= _formats(each)
    options = {
        "topic": topic,
        "format": LETTERS_FORMAT,
        "start": {"0": start},
        "end": {"0": end},
        LETTERS_ORIGINS: formats,
    }
    catalog = [appending(each) for each in spec.catalog if each.name in kept]
    if tasks[task].type == "input":
        changed = {"connector": "kafka", "options": options, "time": _in_any_order(tasks[task].time)}
        catalog = [msgspec.structs.replace(each, **changed) if each.name == task else each for each in catalog]
    else:
        letters = next(n for n in (LETTERS, *(f"{LETTERS}{i}" for i in range(2, len(kept) + 3))) if n not in kept)
        time = _time_of_letters(spec, task, kept)
        # A task without state reads the letters itself, and its own `on_error` takes those that hold no row for it.
        on_error = OnError(then="dead_letter") if stateful(tasks[task]) else OnError()
        catalog.insert(
            0, TaskSpec(name=letters, type="input", connector="kafka", options=options, time=time, on_error=on_error)
        )
        edges.insert(0, (letters, task))
    cycles = [cycle for cycle in spec.cycles if any(source in kept for source, _ in cycle.back)]
    links = {f"{source}.{target}" for source, target in (*edges, *(edge for cycle in cycles for edge in cycle.back))}
    return msgspec.structs.replace(
        awake(spec),
        name=name,
        workflow=edges,
        catalog=catalog,
        cycles=cycles,
        routes={link: route for link, route in spec.routes.items() if link in links},
        checkpoint_every=None,  # letters are in no order, and it ends with the last one
    )


def _check_sides(spec: JobSpec, task: str, kept: set[str]) -> None:
    """A join needs the rows of both sides, a graph and rounds need all; and letters stand for the rows of one task only."""
    for each in spec.catalog:
        if whole_of(each) is not None and each.name in kept:
            what = "computes over a graph" if each.graph is not None else "works on all rows in rounds"
            raise SardonyxError(
                "SX-DLQ-GRAPH",
                f"dead letters of task {task} cannot be redone: {each.name} {what}",
                cause="it would compute over the letters alone, and a redo does not have the other rows",
                fix=f"look at them with `sardonyx dlq show`, send what they hold to the inputs of job {spec.name} again, "
                "or drop them with `sardonyx dlq drop`",
                where={"job": spec.name, "task": task},
            )
        relation = each.relation
        if each.name not in kept or relation is None or not relation.two_sided:
            continue
        if each.name == task or not kept.issuperset((str(relation.left), str(relation.right))):
            raise SardonyxError(
                "SX-DLQ-JOIN",
                f"dead letters of task {task} cannot be redone: {each.name} is a {relation.kind}",
                cause="it would meet the letters with the rows of its other side, and a redo does not have these",
                fix=f"look at them with `sardonyx dlq show`, send what they hold to the inputs of job {spec.name} again, "
                "or drop them with `sardonyx dlq drop`",
                where={"job": spec.name, "task": task},
            )


def _time_of_letters(spec: JobSpec, task: str, kept: set[str]) -> TimeSpec | None:
    """Where the letters of a task have their times, if tasks with state among those that are kept may need them."""
    if not any(stateful(each) for each in spec.catalog if each.name in kept):
        return None
    known = [each for each in row_times(spec, order_of(spec))[task] if isinstance(each, RowTime)]
    if len(known) != 1 or known[0].ordinal:
        return None
    return _in_any_order(TimeSpec(column=known[0].column, unit=known[0].unit))


def _in_any_order(time: TimeSpec | None) -> TimeSpec | None:
    """Letters are not in the order of their times: none is late before all are read."""
    return time if time is None or time.kind != "column" else msgspec.structs.replace(time, delay="100000 d", idle=None)


def _formats(task: TaskSpec) -> dict[str, Any]:
    """By topic, how to read the records of a Kafka input. An input of dead letters says so itself."""
    if task.type != "input" or task.connector != "kafka":
        return {}
    if task.options.get("format") == LETTERS_FORMAT:
        return dict(task.options[LETTERS_ORIGINS])
    return {str(task.options["topic"]): task.options}


def appending(task: TaskSpec) -> TaskSpec:
    """The task as a job runs it that works rows of another one again: an output of files appends to what that has written."""
    if task.type == "output" and task.connector == "files":
        return msgspec.structs.replace(task, options={**task.options, "mode": "append"})
    return task
