"""Checks of edges (conditions, keys, fusing), of errors by record, and of lifecycles.

A part of :mod:`sardonyx.job.validate`: first the structure, then what is imported.
"""

from __future__ import annotations

import graphlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from sardonyx.connectors.schema import arrow_schema
from sardonyx.core import units
from sardonyx.core.conditions import functions_in, wrong_in
from sardonyx.core.errors import FunctionError, JobInvalid, SardonyxError
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.spec import (
    JobSpec,
    OnError,
    Route,
    TaskSpec,
    database_of,
    function_of,
    group_function,
    is_custom,
    late_policy,
    own_store,
    stateful,
    whole_of,
)
from sardonyx.core.stores import check_store
from sardonyx.core.text import near
from sardonyx.runtime import functions as fns

HOOKS = ("start", "before_batch", "after_batch", "stop")
"""The hooks that a lifecycle class may have."""


# --- Structure --------------------------------------------------------------------------------------------------------


def problems_of_routes(spec: JobSpec) -> Iterator[SardonyxError]:
    """Conditions and edges of failed and late records: the link exists, and its source can give such records."""
    links = [f"{source}.{target}" for source, target in spec.edges]
    tasks = {task.name: task for task in spec.catalog}
    for link, route in spec.routes.items():
        if link not in links:
            yield SardonyxError(
                "SX-JOB-ROUTE",
                f"routes: there is no link {link!r}{near(link, links)}",
                fix=f"choose from the job's links: {', '.join(links) or 'none'}",
                where={"link": link},
            )
            continue
        source = tasks.get(link.partition(".")[0])
        if route.of == "failed" and source is not None and not _can_fail(source):
            yield problem(
                "SX-JOB-ROUTE",
                source.name,
                f"its failed records go to {link.partition('.')[2]!r}, but it has no function that can fail",
                fix="take the failed records of a task with a function, of a kafka input, or of an input with time",
            )
        if route.of == "late" and source is not None and late_policy(source) is None:
            yield problem(
                "SX-JOB-ROUTE",
                source.name,
                f"its late rows go to {link.partition('.')[2]!r}, but it has no windows and is not a join, so no row is late",
                fix="take the late rows of a task with windows, or of a join",
            )
        yield from _wrong_condition(link, route)


def _wrong_condition(link: str, route: Route) -> Iterator[SardonyxError]:
    if route.where is None:
        return
    target = link.partition(".")[2]
    for message in wrong_in(route.where):
        yield problem("SX-JOB-ROUTE", target, f"on the link {link!r}, {message}", fix="correct its condition")
    for reference, _ in functions_in(route.where):
        wrong = fns.check_reference(reference)
        if wrong is not None:
            yield located(target, wrong)


class _Fused(NamedTuple):
    """A task with ``fuse``, and the one task before it, whose batches it would work in."""

    spec: JobSpec
    task: TaskSpec
    source: str
    stage: Stage | None
    """None: a topic is bound in place before it, or the graph is wrong, which other checks report."""


def problems_of_fusing(spec: JobSpec) -> Iterator[SardonyxError]:
    """Tasks with ``fuse`` that cannot run in the batches of the task before: see ``_FUSING_RULES``."""
    names = {task.name for task in spec.catalog}
    stages = _stages_of(spec)
    for task in spec.catalog:
        if not task.fuse:
            continue
        before = [source for source, target in spec.edges if target == task.name and source in names]
        if task.type == "input" or len(before) > 1:
            how = f"it comes after {', '.join(before)}" if before else "it is an input"
            found = [(how, "remove fuse: a task with fuse comes after exactly one task")]
        elif stateful(task):
            found = [("a queue brings the rows of each of its keys together", "remove fuse")]
        elif any(other.relation is not None for other in spec.catalog if other.name in before):
            found = [(f"{before[0]!r} gives results of rows of several batches", "remove fuse")]
        elif any(whole_of(other) is not None for other in spec.catalog if other.name in before):
            found = [(f"{before[0]!r} gives its results at its end, and not for the rows of a batch", "remove fuse")]
        elif any(other.window is not None for other in spec.catalog if other.name in before):
            found = [
                (f"{before[0]!r} gives results when its windows close, and not for the rows of a batch", "remove fuse")
            ]
        elif before:
            stage = next((stage for stage in stages if task in stage.fused), None)
            fused = _Fused(spec, task, before[0], stage)
            found = [wrong for rule in _FUSING_RULES if (wrong := rule(fused)) is not None]
        else:  # nothing comes before it, which the check of the graph reports
            found = []
        for message, fix in found:
            yield problem("SX-JOB-FUSE", task.name, f"it cannot be fused: {message}", fix=fix)


def _read_by_others(fused: _Fused) -> tuple[str, str] | None:
    others = [target for each, target in fused.spec.edges if each == fused.source and target != fused.task.name]
    message = f"{others[0]!r} reads what {fused.source!r} gives, too" if others else ""
    return (message, "remove fuse: a queue serves both") if others else None


def _takes_a_part(fused: _Fused) -> tuple[str, str] | None:
    if fused.spec.route(fused.source, fused.task.name) == Route():
        return None
    return (
        f"only a part of what {fused.source!r} gives goes to it",
        f"let {fused.source!r} give only that part, or remove fuse",
    )


def _has_batches_of_its_own(fused: _Fused) -> tuple[str, str] | None:
    own = [name for name in OF_BATCHES if getattr(fused.task, name) != getattr(_PLAIN, name)]
    if fused.stage is None or not own:
        return None
    message = f"it has {' and '.join(own)} of its own, but works in the batches of {fused.source!r}"
    return message, "give that to the first of the fused tasks, or remove fuse"


def _is_independent(fused: _Fused) -> tuple[str, str] | None:
    if fused.stage is None or not fused.task.options.get("independent"):
        return None
    return f"it is independent, but works in the batches of {fused.source!r}", "remove fuse, or independent"


def _gives_failed_records(fused: _Fused) -> tuple[str, str] | None:
    name = fused.task.name
    targets = [
        target for each, target in fused.spec.edges if each == name and fused.spec.route(name, target).of == "failed"
    ]
    if fused.stage is None or not targets:
        return None
    message = f"its failed records go to {targets[0]!r}, but records fail in the whole batch"
    first = fused.stage.task
    return message, "remove fuse" if first.on_error != OnError() else f"give {first.name!r} an on_error, or remove fuse"


def _keeps_positions(fused: _Fused) -> tuple[str, str] | None:
    if fused.stage is None or fused.task.type != "output":
        return None
    if not _splits(fused.stage.task) or _keeps_no_positions(fused.task):
        return None
    first = fused.stage.name
    message = f"it may keep positions beside its rows, and those of {first!r} begin in Kafka"
    return message, f"remove fuse, here or between it and {first!r}"


def _commits_in_a_database(fused: _Fused) -> tuple[str, str] | None:
    if fused.stage is None or database_of(fused.stage.task) is None:
        return None
    if fused.task.type != "output" or fused.task.connector == "kafka":
        return None
    message = f"the state of {fused.stage.name!r} is in a database, whose commits cannot hold what other outputs write"
    return message, "remove fuse: a queue takes the results"


_FUSING_RULES: tuple[Callable[[_Fused], tuple[str, str] | None], ...] = (
    _read_by_others,
    _takes_a_part,
    _has_batches_of_its_own,
    _is_independent,
    _gives_failed_records,
    _keeps_positions,
    _commits_in_a_database,
)
"""What makes fusing impossible: each gives the message and the fix, or None."""

OF_BATCHES = (
    "batch_size",
    "batch_timeout",
    "consumption",
    "min_peers",
    "max_peers",
    "on_error",
    "group_by",
    "lifecycle",
)
"""Settings of a task that has batches of its own."""

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
    yield from _schema(task)
    if task.on_error.retries < 0:
        message = f"on_error: retries cannot be {task.on_error.retries}"
        yield problem("SX-JOB-ON-ERROR", task.name, message, fix="give 0 (no retry) or more")
    if task.on_error != OnError() and task.options.get("independent") is False:
        message = "it has on_error, which takes batches of its own, but independent is false"
        yield problem("SX-JOB-ON-ERROR", task.name, message, fix="remove independent, or on_error")
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


def _schema(task: TaskSpec) -> Iterator[SardonyxError]:
    if task.schema is None:
        return
    if task.fn is None:
        fix = "remove it; the schema of an input stands in its connector"
        yield problem("SX-JOB-SCHEMA", task.name, "it has a schema, but no function", fix=fix)
    try:
        arrow_schema(task.schema)
    except JobInvalid as error:
        for wrong in error.problems:
            yield problem(wrong.code, task.name, f"schema: {wrong.message}", cause=wrong.cause, fix=wrong.fix)


def _group_by(task: TaskSpec) -> Iterator[SardonyxError]:
    if task.group_by is None:
        return

    def wrong(message: str, fix: str) -> SardonyxError:
        return problem("SX-JOB-GROUP", task.name, message, fix=fix)

    if task.type == "input":
        yield wrong("it is an input, but has group_by", "give group_by to the task that reads it")
    if isinstance(task.group_by, str):
        found = fns.check_reference(task.group_by)
        if found is not None:
            yield located(task.name, found)
        return
    if not task.group_by:
        yield wrong("group_by names no column", "name one, or remove group_by")
    if "" in task.group_by:
        yield wrong("group_by names a column without a name", "give each column its name")
    for column, count in Counter(task.group_by).items():
        if count > 1:
            yield wrong(f"group_by names {column!r} {count} times", "name each column once")


def _can_fail(task: TaskSpec) -> bool:
    """Whether a record may fail in a task: in its function, because it cannot be decoded, or because it has no time that fits."""
    return task.fn is not None or task.time is not None or (task.type == "input" and task.connector == "kafka")


# --- What is imported -------------------------------------------------------------------------------------------------


def problems_of_imports(spec: JobSpec, find: Callable[[str], Callable[..., Any]]) -> Iterator[SardonyxError]:
    """Conditions, group functions, lifecycles and connectors: each can be imported and has the right kind.

    Args:
        spec: the job.
        find: returns what ``module:name`` names, or raises ``FunctionError``.
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
        for value in task.params.values():
            yield from look(task.name, function_of(value), lambda _: None)
        yield from look(task.name, task.connector if is_custom(task.connector) else None, _check_class)
        yield from look(task.name, own_store(task), partial(check_store, reference=own_store(task) or ""))
        yield from look(task.name, task.fn if task.fuse else None, partial(_check_fused, spec, task, find))
    for link, route in spec.routes.items():
        for reference, params in () if route.where is None else functions_in(route.where):
            yield from look(link.partition(".")[2], reference, partial(fns.takes_rows, params=params))


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
        except FunctionError:  # the check of functions reports it
            continue
        if len(kinds) > 1:
            raise FunctionError(
                "SX-JOB-FUSE",
                f"it cannot be fused with {source!r}: one of the two takes a pyspark.sql.DataFrame, the other does not",
                cause="one runs in Spark's plan for the whole batch, the other on its workers, slice by slice",
                fix="write both for DataFrames, or neither, or remove fuse",
            )


def gives_arguments(lifecycle: object) -> bool:
    """Whether a lifecycle may give the task's function further arguments."""
    return callable(getattr(lifecycle, "start", None))


def given_by_lifecycle(task: TaskSpec, find: Callable[[str], Callable[..., Any]]) -> bool:
    """Whether the lifecycle of a task may give its function arguments that are not in params."""
    try:
        return task.lifecycle is not None and gives_arguments(find(task.lifecycle))
    except FunctionError:  # the check of lifecycles reports it
        return True


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
            f"lifecycle {found.__name__!r} cannot be created without arguments",
            cause=str(error),
            fix="remove the arguments of its __init__; start gets a context with what it needs",
            where=where,
        ) from error
    except ValueError:  # a builtin without a signature
        pass
    if any(callable(getattr(found, hook, None)) for hook in HOOKS):
        return
    own = [name for name in vars(found) if not name.startswith("_")]
    hints = [hint for name in own if (hint := near(name, HOOKS))]
    raise FunctionError(
        "SX-JOB-LIFECYCLE",
        f"lifecycle {found.__name__!r} has no hook{hints[0] if hints else ''}",
        cause=f"it has {', '.join(own) or 'no methods'}",
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
