"""Checks of what stands between tasks (conditions, keys) and around them (errors by record, lifecycles).

A part of :mod:`sardonyx.job.validate`: first the structure, without touching anything, then what is imported.
"""

from __future__ import annotations

import graphlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from sardonyx.core import units
from sardonyx.core.errors import FunctionError, SardonyxError
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.spec import JobSpec, Route, TaskSpec, group_function, is_custom
from sardonyx.core.text import near
from sardonyx.runtime import functions as fns

HOOKS = ("start", "before_batch", "after_batch", "stop")
"""What a lifecycle class may have."""


# --- Structure --------------------------------------------------------------------------------------------------------


def problems_of_routes(spec: JobSpec) -> Iterator[SardonyxError]:
    """Conditions and failed-edges: the link is there, and something can come over it."""
    links = [f"{source}.{target}" for source, target in spec.workflow]
    tasks = {task.name: task for task in spec.catalog}
    for link, route in spec.routes.items():
        if link not in links:
            yield SardonyxError(
                "SX-JOB-ROUTE",
                f"routes: there is no link {link!r}{near(link, links)}",
                fix=f"the job's links are {', '.join(links) or 'none'}",
                where={"link": link},
            )
            continue
        source = tasks.get(link.partition(".")[0])
        if route.of == "failed" and source is not None and source.fn is None and not _reads_messages(source):
            yield problem(
                "SX-JOB-ROUTE",
                source.name,
                f"its failed records are to go to {link.partition('.')[2]!r}, but it has no function that could fail",
                fix="take the failed records of a task with a function, or of a kafka input",
            )
        wrong = None if route.where is None else fns.check_reference(route.where)
        if wrong is not None:
            yield located(link.partition(".")[2], wrong)


def problems_of_fusing(spec: JobSpec) -> Iterator[SardonyxError]:
    """Tasks that are to run in the micro-batches of the one before: there is one such, it has no other reader, and nothing is
    asked for that only a task with batches of its own could have.
    """
    tasks = {task.name: task for task in spec.catalog}
    stages = _stages_of(spec)
    for task in spec.catalog:
        if not task.fuse:
            continue

        def wrong(message: str, fix: str, name: str = task.name) -> SardonyxError:
            return problem("SX-JOB-FUSE", name, f"it cannot be fused: {message}", fix=fix)

        before = [source for source, target in spec.workflow if target == task.name and source in tasks]
        if task.type == "input" or len(before) > 1:
            how = f"it comes after {', '.join(before)}" if before else "it is an input"
            yield wrong(how, "a task with fuse comes after exactly one; leave fuse out")
        if task.type == "input" or len(before) != 1:
            continue
        source = before[0]
        others = [target for each, target in spec.workflow if each == source and target != task.name]
        if others:
            yield wrong(f"{others[0]!r} reads what {source!r} gives, too", "leave fuse out: the queue serves both")
        if spec.route(source, task.name) != Route():
            yield wrong(f"only a part of what {source!r} gives goes to it", f"let {source!r} give that part alone")
        stage = next((stage for stage in stages if task in stage.fused), None)
        if stage is None:  # beside a topic that is bound in place; or the graph is wrong, which is told elsewhere
            continue
        own = [name for name in _OF_BATCHES if getattr(task, name) != getattr(_PLAIN, name)]
        if own:
            message = f"it has {' and '.join(own)} of its own, but works in the batches of {source!r}"
            yield wrong(message, "give that to the first of the fused tasks, or leave fuse out")
        for target in (target for each, target in spec.workflow if each == task.name):
            if spec.route(task.name, target).of == "failed":
                message = f"its failed records are to go to {target!r}, but records fail in the whole batch"
                yield wrong(message, f"give {stage.name!r} an on_error, or leave fuse out")
        if task.type == "output" and _splits(stage.task) and not _keeps_no_positions(task):
            message = f"it may keep positions beside its rows, and those of {stage.name!r} begin in Kafka"
            yield wrong(message, f"leave fuse out, here or between it and {stage.name!r}")


_OF_BATCHES = (
    "batch_size",
    "batch_timeout",
    "consumption",
    "min_peers",
    "max_peers",
    "on_error",
    "group_by",
    "lifecycle",
)
"""What is said of a task that has batches of its own."""

_PLAIN = TaskSpec(name="", type="function")


def _stages_of(spec: JobSpec) -> list[Stage]:
    try:
        return graph_of(spec, "d", "j").stages
    except (graphlib.CycleError, KeyError):
        return []


def _splits(task: TaskSpec) -> bool:
    """Whether what it reads is listed first, on a link of its own."""
    return task.type == "input" and task.connector != "kafka"


def _keeps_no_positions(task: TaskSpec) -> bool:
    return task.connector in ("kafka", "files", "blackhole")


def problems_of_task(task: TaskSpec) -> Iterator[SardonyxError]:
    """Keys, errors by record and the lifecycle of one task, as far as names alone tell."""
    yield from _group_by(task)
    if task.on_error.retries < 0:
        message = f"on_error: retries cannot be {task.on_error.retries}"
        yield problem("SX-JOB-ON-ERROR", task.name, message, fix="give 0 (never again) or more")
    try:
        units.seconds(task.on_error.backoff)
    except ValueError as error:
        yield problem(
            "SX-JOB-UNITS",
            task.name,
            f"on_error: backoff cannot be {task.on_error.backoff!r}",
            cause=str(error),
            fix='write a number and a unit, such as "100 ms"',
        )
    wrong = None if task.lifecycle is None else fns.check_reference(task.lifecycle)
    if wrong is not None:
        yield located(task.name, wrong)
    wrong = fns.check_reference(task.connector) if task.connector and is_custom(task.connector) else None
    if wrong is not None:
        yield located(task.name, wrong)


def _group_by(task: TaskSpec) -> Iterator[SardonyxError]:
    if task.group_by is None:
        return

    def wrong(message: str, fix: str) -> SardonyxError:
        return problem("SX-JOB-GROUP", task.name, message, fix=fix)

    if task.type == "input":
        yield wrong("it is an input, but has group_by", "let the task that reads it have group_by")
    if isinstance(task.group_by, str):
        found = fns.check_reference(task.group_by)
        if found is not None:
            yield located(task.name, found)
        return
    if not task.group_by:
        yield wrong("group_by names no column", "name one, or leave group_by out")
    if "" in task.group_by:
        yield wrong("group_by names a column without a name", "give each column its name")
    for column, count in Counter(task.group_by).items():
        if count > 1:
            yield wrong(f"group_by names {column!r} {count} times", "name each column once")


def _reads_messages(task: TaskSpec) -> bool:
    """Whether a task without a function may still meet a record that it cannot read."""
    return task.type == "input" and task.connector == "kafka"


# --- What is imported -------------------------------------------------------------------------------------------------


def problems_of_imports(spec: JobSpec, find: Callable[[str], Callable[..., Any]]) -> Iterator[SardonyxError]:
    """Conditions, group functions, lifecycles and connectors: they can be imported, and are what they must be.

    ``find`` gives what a ``module:name`` stands for, or raises ``FunctionError``.
    """

    def look(task: str, reference: str | None, check: Callable[[Any], object]) -> Iterator[SardonyxError]:
        if reference is None or fns.check_reference(reference) is not None:
            return
        try:
            check(find(reference))
        except FunctionError as error:
            yield located(task, error)

    for task in spec.catalog:
        yield from look(task.name, group_function(task), fns.takes_rows)
        yield from look(task.name, task.lifecycle, _check_lifecycle)
        yield from look(task.name, task.connector if is_custom(task.connector) else None, _check_class)
        yield from look(task.name, task.fn if task.fuse else None, partial(_check_fused, spec, task, find))
    for link, route in spec.routes.items():
        yield from look(link.partition(".")[2], route.where, fns.takes_rows)


def _check_fused(spec: JobSpec, task: TaskSpec, find: Callable[[str], Callable[..., Any]], fn: Any) -> None:
    """The functions of one micro-batch run in one place: Spark's driver (of DataFrames), or its workers (all others).

    Raises:
        FunctionError: ``SX-JOB-FUSE``.
    """
    for source, target in spec.workflow:
        other = next((each.fn for each in spec.catalog if each.name == source), None)
        if target != task.name or other is None or fns.check_reference(other) is not None:
            continue
        try:
            kinds = {fns.takes(each) == "dataframe" for each in (fn, find(other))}
        except FunctionError:  # told where functions are looked at
            continue
        if len(kinds) > 1:
            raise FunctionError(
                "SX-JOB-FUSE",
                f"it cannot be fused with {source!r}: one of the two takes a pyspark.sql.DataFrame, the other does not",
                cause="the one runs in Spark's plan for the whole batch, the other on its workers, slice by slice",
                fix="write both for DataFrames, or none, or leave fuse out",
            )


def gives_arguments(lifecycle: object) -> bool:
    """Whether a lifecycle may give the task's function further arguments."""
    return callable(getattr(lifecycle, "start", None))


def _check_class(found: Any) -> None:
    if not inspect.isclass(found):
        name = getattr(found, "__name__", str(found))
        raise FunctionError(
            "SX-FN-IMPORT",
            f"{name!r} is not a class",
            cause=f"it is of type {type(found).__name__}",
            fix="name a class at the top level of a module",
        )


def _check_lifecycle(found: Any) -> None:
    _check_class(found)
    where = {"function": found.__name__}
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise FunctionError(
            "SX-JOB-LIFECYCLE",
            f"lifecycle {found.__name__!r} cannot be made without arguments",
            cause=str(error),
            fix="let its __init__ take nothing; what it needs to know stands in the context that start is given",
            where=where,
        ) from error
    except ValueError:  # a builtin that tells no signature
        pass
    if any(callable(getattr(found, hook, None)) for hook in HOOKS):
        return
    own = [name for name in vars(found) if not name.startswith("_")]
    hints = [hint for name in own if (hint := near(name, HOOKS))]
    raise FunctionError(
        "SX-JOB-LIFECYCLE",
        f"lifecycle {found.__name__!r} has no hook{hints[0] if hints else ''}",
        cause=f"it has {', '.join(own) or 'nothing of its own'}",
        fix=f"give it one or more of {', '.join(HOOKS)}",
        where=where,
    )


# --- Errors -----------------------------------------------------------------------------------------------------------


def problem(code: str, task: str, message: str, *, fix: str, cause: str = "") -> SardonyxError:
    """What is wrong with one task."""
    return SardonyxError(code, f"task {task!r}: {message}", cause=cause, fix=fix, where={"task": task})


def located(task: str, error: SardonyxError) -> FunctionError:
    """The error with the task that it is about."""
    return FunctionError(
        error.code,
        f"task {task!r}: {error.message}",
        cause=error.cause,
        fix=error.fix,
        traceback=error.traceback,
        where={"task": task, **error.where},
    )
