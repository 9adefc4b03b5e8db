"""Checks of tasks that work on all rows in rounds. A part of :mod:`sardonyx.job.validate`.

What functions return is only known when the job runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from sardonyx.core.errors import FunctionError, SardonyxError
from sardonyx.core.graph import has_end
from sardonyx.core.iterating import AGGREGATES, IterateSpec
from sardonyx.core.spec import JobSpec, OnError, TaskSpec
from sardonyx.core.text import listed, near, shorten
from sardonyx.job.parse import UNREAD
from sardonyx.job.validate_edges import located, problem
from sardonyx.job.validate_programs import of_tables, wrong_params, wrong_state, wrong_until
from sardonyx.job.validate_stores import wrong_stores
from sardonyx.job.validate_windows import MOST_ROWS, Wrong, inputs_of, problems_from
from sardonyx.runtime import functions as fns

_TASK, _CODE = "SX-ITERATE-TASK", "SX-ITERATE-SPEC"
_MOST = 1_000_000


def problems_of_task(task: TaskSpec) -> Iterator[SardonyxError]:
    """What is wrong with the rounds of one task, as far as it alone tells."""
    spec = task.iterate
    if spec is None:
        return
    found = [*_task(task), *wrong_state(_CODE, spec.state), *_numbers(spec)]
    if UNREAD not in (*spec.aggregate, *spec.group_by):
        found += wrong_until(_CODE, spec.until, spec.aggregate, "; the function can return more columns for aggregates")
        for rule in (_columns, _start, _results):
            found += rule(spec)
    yield from problems_from(task, found)


def _task(task: TaskSpec) -> Iterator[Wrong]:
    apart = "make it a task of its own, before or after this one"
    if task.type != "function":
        yield Wrong(_TASK, f"it works in rounds, but is an {task.type}", "make it a task of its own")
    elif task.fn is None:
        yield Wrong(_TASK, "it works in rounds, and has no function", "give it one: fn=..., or fn: module:function")
    others: dict[str, object] = {
        "windows": task.window,
        "a state of keys": task.keyed,
        "a join or the like": task.relation,
        "a graph": task.graph,
        "a lifecycle": task.lifecycle,
    }
    for what, other in others.items():
        if other is not None:
            yield Wrong(_TASK, f"it works in rounds, and has {what} as well", apart)
    if task.group_by:
        fix = "remove group_by from the task; what is aggregated together stands in iterate"
        yield Wrong(_TASK, "it works in rounds on all rows, which have no key", fix)
    if task.consumption == "sequential":
        cause = "all its rows go to one peer anyway"
        yield Wrong(_TASK, "it works in rounds, so it cannot be sequential", "remove sequential", cause)
    if task.on_error != OnError():
        yield Wrong(
            _TASK,
            "it works in rounds, and has on_error",
            "remove on_error, and leave bad rows out in the task before",
            "each round needs all rows, so none can be left out",
        )


def _columns(spec: IterateSpec) -> Iterator[Wrong]:
    if spec.state is None and not spec.aggregate:
        fix = "declare what changes from round to round in state=, aggregate= or both"
        yield Wrong(_CODE, "its rounds have neither state nor aggregates, so each is like the first", fix)
    names = [*spec.group_by, *spec.aggregate]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        fix = "aggregate the column under another name, which the function returns"
        yield Wrong(_CODE, f"two columns of its aggregates would be called {twice!r}", fix)
    if spec.group_by and not spec.aggregate:
        yield Wrong(_CODE, "it has group_by, and no aggregates", 'give aggregate={"x": "mean"} or the like')
    if "" in names:
        yield Wrong(_CODE, "the name of a column is empty", "name the column")


def _start(spec: IterateSpec) -> Iterator[Wrong]:
    known = [*spec.group_by, *spec.aggregate]
    if spec.start and not spec.group_by and len(spec.start) > 1:
        fix = "give one row, or say by group_by which rows are aggregated together"
        yield Wrong(_CODE, f"start has {len(spec.start)} rows for the one group of all rows", fix)
    for row in spec.start:
        strange = next((name for name in row if name not in known), None)
        if strange is not None:
            fix = f"name columns of group_by and aggregate: {listed(known) or 'there is none'}"
            yield Wrong(_CODE, f"start has a column {strange!r}, which is not an aggregate{near(strange, known)}", fix)
            return
        missing = next((name for name in spec.group_by if row.get(name) is None), None)
        if missing is not None:
            fix = "give each row the columns of group_by"
            yield Wrong(_CODE, f"a row of start has no {missing!r}: {shorten(repr(row), 200)}", fix)
            return
        odd = next((name for name, value in row.items() if not _is_finite(value)), None)
        if odd is not None:
            yield Wrong(_CODE, f"{odd!r} cannot be {row[odd]} in start", "give a finite number, or leave it out")
            return
    for name in known:
        found = {_kind(row[name]) for row in spec.start if row.get(name) is not None}
        if len(found) > 1:
            fix = "give values of one type in a column"
            yield Wrong(_CODE, f"column {name!r} of start has {listed(sorted(found))}", fix)
    keys = [tuple(row.get(name) for name in spec.group_by) for row in spec.start]
    if spec.group_by and len(set(keys)) < len(keys):
        again = next(key for key in keys if keys.count(key) > 1)
        yield Wrong(_CODE, f"start has two rows for {listed(map(repr, again))}", "give one row for each group")


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _kind(value: object) -> str:
    return "texts" if isinstance(value, str) else "booleans" if isinstance(value, bool) else "numbers"


def _numbers(spec: IterateSpec) -> Iterator[Wrong]:
    if spec.max_rounds is not None and not 1 <= spec.max_rounds <= _MOST:
        yield Wrong(_CODE, f"max_rounds cannot be {spec.max_rounds}", f"give 1 or more, and at most {_MOST:,}")
    for wrong in wrong_stores(spec.store):
        yield Wrong("SX-WINDOW-STORE", *wrong)
    if spec.state_limit is not None and not 1 <= spec.state_limit <= MOST_ROWS:
        fix = f"give 1 entry or more, and at most {MOST_ROWS:,}"
        yield Wrong("SX-WINDOW-STORE", f"state_limit cannot be {spec.state_limit}", fix)


def _results(spec: IterateSpec) -> Iterator[Wrong]:
    if spec.results == "aggregates" and not spec.aggregate:
        fix = 'declare them, such as aggregate={"x": "mean"}, or leave results out'
        yield Wrong(_CODE, "it is to give its aggregates, and has none", fix)


# --- Rules about several tasks ----------------------------------------------------------------------------------------


def problems_of_rounds(spec: JobSpec) -> Iterator[SardonyxError]:
    """What is wrong between rounds and the tasks before them."""
    for task in spec.catalog:
        endless = [] if task.iterate is None else [each for each in inputs_of(spec, task.name) if not has_end(each)]
        if endless:
            yield problem(
                "SX-ITERATE-ENDLESS",
                task.name,
                "it would never give a result",
                cause=f"its rounds begin when all rows are there, and input {endless[0].name!r} has no end",
                fix='give the input an end, such as end="latest"',
            )


# --- What is imported -------------------------------------------------------------------------------------------------


def problems_of_imports(spec: JobSpec, find: Callable[[str], Callable[..., Any]]) -> Iterator[SardonyxError]:
    """Whether the function of each task with rounds fits it.

    Args:
        spec: the job.
        find: returns what ``module:name`` names, or raises ``FunctionError``.
    """
    for task in spec.catalog:
        if task.iterate is None or task.fn is None or fns.check_reference(task.fn) is not None:
            continue
        try:
            fn = of_tables(find(task.fn))
        except FunctionError as error:
            yield located(task.name, error)
            continue
        yield from wrong_params(task, {task.fn: fn}, (AGGREGATES, "those of the round before"), takes_any=False)


__all__ = ["problems_of_imports", "problems_of_rounds", "problems_of_task"]
