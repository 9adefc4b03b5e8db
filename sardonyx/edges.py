"""Checks of what stands between tasks (conditions, keys) and around them (errors by record, lifecycles).

A part of :mod:`sardonyx.validation`: first the structure, without touching anything, then what is imported.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from sardonyx import functions as fns
from sardonyx import media, units
from sardonyx.document import near
from sardonyx.errors import FunctionError, SardonyxError
from sardonyx.spec import JobSpec, TaskSpec, group_function

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
    wrong = fns.check_reference(task.medium) if task.medium and media.is_own(task.medium) else None
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
    return task.type == "input" and task.medium == "kafka"


# --- What is imported -------------------------------------------------------------------------------------------------


def problems_of_imports(spec: JobSpec, find: Callable[[str], Callable[..., Any]]) -> Iterator[SardonyxError]:
    """Conditions, group functions, lifecycles and media: they can be imported, and are what they must be.

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
        yield from look(task.name, task.medium if media.is_own(task.medium) else None, _check_class)
    for link, route in spec.routes.items():
        yield from look(link.partition(".")[2], route.where, fns.takes_rows)


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
