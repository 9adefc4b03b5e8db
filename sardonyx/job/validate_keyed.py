"""Checks of keyed state: the task, its key, how long states are kept, and whether its functions fit.

A part of :mod:`sardonyx.job.validate`. What is probably not meant, but can run, is a warning of :mod:`sardonyx.job.warn_keyed`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sardonyx.connectors.schema import arrow_schema
from sardonyx.core import units
from sardonyx.core.errors import FunctionError, JobInvalid, SardonyxError
from sardonyx.core.keyed import ALL_STATES, KeyedSpec
from sardonyx.core.spec import JobSpec, TaskSpec, group_function
from sardonyx.core.text import near, shorten
from sardonyx.job.validate_edges import given_by_lifecycle, located, problem
from sardonyx.job.validate_stores import wrong_stores
from sardonyx.job.validate_windows import MOST_DAYS, MOST_ROWS, Wrong, problems_from
from sardonyx.runtime import functions as fns

if TYPE_CHECKING:
    from sardonyx.state.signature import Takes

Find = Callable[[str], Callable[..., Any]]

# --- One task ---------------------------------------------------------------------------------------------------------


def problems_of_task(task: TaskSpec) -> Iterator[SardonyxError]:
    """What is wrong with the keyed state of one task, as far as it alone tells."""
    keyed = task.keyed
    if keyed is None:
        return
    yield from problems_from(task, [*_task(task), *_key(task), *_ttl(keyed), *_columns(task, keyed), *_store(keyed)])
    wrong = None if keyed.on_timer is None else fns.check_reference(keyed.on_timer)
    if wrong is not None:
        yield located(task.name, wrong)


def _task(task: TaskSpec) -> Iterator[Wrong]:
    if task.type != "function":
        fix = "make it a task of its own: job.keyed(...)"
        yield Wrong("SX-KEYED-TASK", f"it has keyed state, but is an {task.type}", fix)
    if task.window is not None or task.relation is not None:
        fix = "make two tasks, one after the other"
        yield Wrong("SX-KEYED-TASK", "it has keyed state, and windows or a join as well", fix)
    if task.consumption == "sequential":
        yield Wrong(
            "SX-KEYED-TASK",
            "it has keyed state, so it cannot be sequential",
            "remove sequential; for one order of all rows, leave out group_by",
            "the rows of a key go to one peer at a time, in order, anyway",
        )


def _key(task: TaskSpec) -> Iterator[Wrong]:
    if group_function(task) is not None:
        yield Wrong(
            "SX-KEYED-KEY",
            "it has keyed state, so a function cannot make its key",
            "add the key as a column in a task before it, and name that column",
            "timers are given the values of the key's columns, and a function's key has no columns",
        )


def _ttl(keyed: KeyedSpec) -> Iterator[Wrong]:
    for name, text in keyed.ttl.items():
        what = "ttl" if name == ALL_STATES else f"ttl of {name!r}"
        try:
            length = units.seconds(text)
        except ValueError as error:
            fix = 'write a number and a unit, such as "30 days"'
            yield Wrong("SX-JOB-UNITS", f"{what} cannot be {shorten(text)!r}", fix, shorten(str(error), 300))
            continue
        if round(length * 1_000_000) < 1:
            yield Wrong("SX-KEYED-TTL", f"{what} cannot be {text!r}", "give more than 0, or remove ttl")
        elif length > MOST_DAYS * 86_400:
            yield Wrong("SX-KEYED-TTL", f"{what} cannot be {shorten(text)!r}", f"give at most {MOST_DAYS:,} days")


def _columns(task: TaskSpec, keyed: KeyedSpec) -> Iterator[Wrong]:
    """The columns of the state of a function of tables."""
    if keyed.state is None:
        return
    try:
        names = arrow_schema(keyed.state).names
    except JobInvalid as error:
        for wrong in error.problems:
            yield Wrong(wrong.code, f"state: {wrong.message}", wrong.fix, wrong.cause)
        return
    for name in names:
        if isinstance(task.group_by, list) and name in task.group_by:
            fix = (
                f"leave {name!r} out of state=; the state that the function is given has the columns of the key anyway"
            )
            yield Wrong("SX-KEYED-STATE", f"state declares {name!r}, which is a column of the key", fix)
        elif names.count(name) > 1 or not name:
            yield Wrong("SX-KEYED-STATE", f"state declares {name!r} {names.count(name)} times", "name each column once")
            return


def _store(keyed: KeyedSpec) -> Iterator[Wrong]:
    for wrong in wrong_stores(keyed.store):
        yield Wrong("SX-KEYED-STORE", *wrong)
    if keyed.state_limit is not None and not 1 <= keyed.state_limit <= MOST_ROWS:
        fix = f"give 1 entry or more, and at most {MOST_ROWS:,}"
        yield Wrong("SX-KEYED-STORE", f"state_limit cannot be {keyed.state_limit}", fix)


# --- What is imported -------------------------------------------------------------------------------------------------


def problems_of_imports(spec: JobSpec, find: Find) -> Iterator[SardonyxError]:
    """Whether the functions of each task with keyed state fit it, and can keep what their states are to hold.

    Args:
        spec: the job.
        find: returns what ``module:name`` names, or raises ``FunctionError``.
    """
    for task in spec.catalog:
        if task.keyed is not None and task.fn is not None and fns.check_reference(task.fn) is None:
            try:
                yield from _imported(task, task.keyed, task.fn, find)
            except FunctionError as error:
                yield located(task.name, error)


def _imported(task: TaskSpec, keyed: KeyedSpec, reference: str, find: Find) -> Iterator[SardonyxError]:
    try:
        fn = find(reference)
        takes = fns.takes(fn)
    except FunctionError:  # the check of functions reports it
        return
    from sardonyx.state.signature import signature_of  # with Arrow, which a job without keyed state does not need

    on_timer = None
    if keyed.on_timer is not None and fns.check_reference(keyed.on_timer) is None:
        on_timer = find(keyed.on_timer)
    if list(_ttl(keyed)) or (keyed.state is not None and list(_columns(task, keyed))):
        return
    declared = None if keyed.state is None else arrow_schema(keyed.state)
    signature = signature_of(keyed, fn, on_timer, declared)
    second = [list(inspect.signature(fn).parameters)[1]] if takes == "arrow" else []
    given = {reference: (fn, {*second, *_roles(signature.row)})}
    if on_timer is not None and keyed.on_timer is not None and signature.timer is not None:
        given[keyed.on_timer] = (on_timer, _roles(signature.timer))
    yield from _params(task, given, more=given_by_lifecycle(task, find))


def _roles(takes: Takes) -> set[str]:
    """The parameters that are states, timers or the key."""
    return {*takes.states, *(name for name in (takes.timers, takes.key) if name is not None)}


def _params(
    task: TaskSpec, given: Mapping[str, tuple[Callable[..., Any], Collection[str]]], *, more: bool
) -> Iterator[SardonyxError]:
    """What the params of the task leave out, and what they give that nothing takes.

    Args:
        task: the task.
        given: its functions by name, each with the parameters that are given to it otherwise.
        more: whether a lifecycle may give further arguments.
    """
    known: list[str] = []
    takes_any = False
    for reference, (fn, roles) in given.items():
        for parameter in list(inspect.signature(fn).parameters.values())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                takes_any = True
            elif parameter.kind is parameter.VAR_POSITIONAL:
                continue
            elif parameter.name in roles:
                if parameter.name in task.params:
                    fix = "give one of the two another name"
                    message = f"params give {parameter.name!r}, which function {reference!r} is given as a state"
                    yield problem("SX-FN-PARAMS", task.name, message, fix=fix)
            else:
                known.append(parameter.name)
                if parameter.default is parameter.empty and parameter.name not in task.params and not more:
                    fix = f'annotate it as a state, add params={{"{parameter.name}": ...}}, or give it a default'
                    message = (
                        f"function {reference!r} needs {parameter.name!r}, which is not a state and is not in params"
                    )
                    yield problem("SX-FN-PARAMS", task.name, message, fix=fix)
    roles_of_all = {name for _, roles in given.values() for name in roles}
    for name in task.params:
        if name not in known and name not in roles_of_all and not takes_any:
            others = ", ".join(dict.fromkeys(known)) or "none"
            yield problem(
                "SX-FN-PARAMS",
                task.name,
                f"none of its functions has a parameter {name!r}{near(name, known)}",
                fix=f"choose from the parameters that they have besides states: {others}",
            )
