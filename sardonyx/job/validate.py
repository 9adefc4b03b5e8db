"""Check whether a job can run, and report every problem at once, each with its task and its fix.

All jobs come through here, from Python, YAML, TOML and JSON. The first checks look at the structure only. With
``import_functions`` the functions are imported and checked, too. :func:`check_places` checks files and directories.
:mod:`coordinator.core.admission` repeats the few structural rules that the coordinator depends on.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sardonyx.connectors import declarations
from sardonyx.connectors.check_paths import check_places
from sardonyx.core import structure, units
from sardonyx.core.errors import FunctionError, JobInvalid, SardonyxError
from sardonyx.core.graph import graph_of, has_end
from sardonyx.core.names import TAG_RULE, is_name, is_tag
from sardonyx.core.spec import JobSpec, TaskSpec, encode_spec, function_of, stateful, store_of, whole_of
from sardonyx.core.standby import MOST
from sardonyx.core.text import near
from sardonyx.job import (
    validate_backlogs,
    validate_cycles,
    validate_edges,
    validate_graphs,
    validate_keyed,
    validate_outputs,
    validate_programs,
    validate_relations,
    validate_rounds,
    validate_times,
    validate_windows,
)
from sardonyx.job.validate_edges import given_by_lifecycle, located, problem
from sardonyx.runtime import functions as fns

__all__ = ["MAX_SPEC_BYTES", "check_places", "problems_of", "validate"]

MAX_SPEC_BYTES = 60 * 1024
"""A spec is written in one ZooKeeper transaction with other nodes. Larger data belongs into files."""

_RESERVED = ("splits", "parts", "topic", "dead", "state")
"""A task's own queues are called task.splits, task.parts, task.topic, task.dead and task.state."""


def validate(
    spec: JobSpec,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    import_functions: bool = True,
) -> None:
    """Check a whole job.

    Args:
        spec: the job as data.
        functions: functions that are already imported, by their ``module:function``; others are imported.
        import_functions: False: check the structure only.

    Raises:
        JobInvalid: with every problem that was found.
    """
    problems = problems_of(spec, functions=functions, import_functions=import_functions)
    if problems:
        raise JobInvalid(problems)


def problems_of(
    spec: JobSpec,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    import_functions: bool = True,
) -> list[SardonyxError]:
    """Everything that is wrong with a job, in the order of its catalog; see :func:`validate`."""
    problems = [*_job(spec), *_names(spec), *_graph(spec)]
    for task in spec.catalog:
        problems += [
            *_connector(spec, task),
            *_numbers(spec, task),
            *_tags(task),
            *_function_named(task),
            *validate_edges.problems_of_task(task),
            *validate_windows.problems_of_task(task),
            *validate_relations.problems_of_task(task),
            *validate_keyed.problems_of_task(task),
            *validate_graphs.problems_of_task(task),
            *validate_rounds.problems_of_task(task),
        ]
    problems += [
        *validate_edges.problems_of_routes(spec),
        *validate_edges.problems_of_fusing(spec),
        *validate_windows.problems_of_windows(spec),
        *validate_relations.problems_of_relations(spec),
        *validate_graphs.problems_of_graphs(spec),
        *validate_rounds.problems_of_rounds(spec),
        *validate_cycles.problems_of_cycles(spec),
        *validate_backlogs.problems_of_backlogs(spec),
        *validate_times.problems_of_times(spec),
        *validate_times.problems_of_columns(spec),
        *_shared_places(spec),
        *validate_outputs.problems_of_topics(spec),
    ]
    if import_functions:
        find = partial(_find, functions or {})
        for task in spec.catalog:
            problems += _function(task, find)
        problems += validate_edges.problems_of_imports(spec, find)
        problems += validate_windows.problems_of_imports(spec, find)
        problems += validate_keyed.problems_of_imports(spec, find)
        problems += validate_programs.problems_of_imports(spec, find)
        problems += validate_rounds.problems_of_imports(spec, find)
    return problems or [*_topics(spec), *_size(spec)]


# --- The job and its graph --------------------------------------------------------------------------------------------


def _job(spec: JobSpec) -> Iterator[SardonyxError]:
    if not is_name(spec.name):
        yield _bad_name("the job", spec.name)
    if spec.partitions < 1:
        yield SardonyxError(
            "SX-JOB-PARTITIONS",
            f"a job cannot have {spec.partitions} partitions",
            fix="give 1 or more; at most as many peers can share a task",
        )
    if spec.failure_limit < 0:
        yield SardonyxError(
            "SX-JOB-FAILURE-LIMIT",
            f"failure_limit cannot be {spec.failure_limit}",
            fix="give 0 (the first failure ends the job) or more",
        )
    try:
        units.seconds(spec.keep or "0 s")
    except ValueError as error:
        yield SardonyxError(
            "SX-JOB-UNITS",
            f"keep cannot be {spec.keep!r}",
            cause=str(error),
            fix='write a number and a unit, such as "1 h"',
        )
    if spec.checkpoint_every is not None:
        yield from _checkpoints(spec, spec.checkpoint_every)
    for message in structure.share_problems(spec.priority, spec.weight, spec.percentage, spec.max_peers):
        yield SardonyxError("SX-JOB-SHARE", message, fix="correct it; docs/jobs.md says what each of them does")
    for tag in spec.tags:
        if not is_tag(tag):
            yield SardonyxError("SX-JOB-TAG", f"the job cannot have the tag {tag!r}", fix=f"a tag is {TAG_RULE}")
    for kind in ("input", "output"):
        if not any(task.type == kind for task in spec.catalog):
            yield SardonyxError(
                "SX-JOB-ENDS", f"the job has no {kind}", fix=f"add one: job.{kind}(...), or a task of type {kind}"
            )


def _checkpoints(spec: JobSpec, every: str) -> Iterator[SardonyxError]:
    try:
        length = units.seconds(every)
    except ValueError as error:
        yield SardonyxError(
            "SX-JOB-UNITS",
            f"checkpoint_every cannot be {every!r}",
            cause=str(error),
            fix='write a number and a unit, such as "1 min"',
        )
        return
    if not 1 <= length <= 86_400:
        yield SardonyxError(
            "SX-CHECKPOINT-EVERY",
            f"checkpoint_every cannot be {every!r}",
            cause="each checkpoint is a few more bytes in the log of the state, and holds back the deletion of that log",
            fix="give from 1 s to 1 day",
        )
    if not any(map(stateful, spec.catalog)):
        yield SardonyxError(
            "SX-CHECKPOINT-EVERY",
            "the job has checkpoint_every, and no task with state",
            cause="checkpoints are of the state of windows, keyed functions, joins and the like",
            fix="remove checkpoint_every",
        )


def _names(spec: JobSpec) -> Iterator[SardonyxError]:
    for name, count in Counter(task.name for task in spec.catalog).items():
        if count > 1:
            yield problem(
                "SX-JOB-DUPLICATE",
                name,
                f"{count} tasks have this name",
                fix="name each task differently; its queues are named by it",
            )
        if not is_name(name):
            yield _bad_name("a task", name)
        elif name in _RESERVED:
            yield problem(
                "SX-JOB-NAME",
                name,
                f"a task cannot be called {name!r}",
                cause="the queues that each task keeps for itself have this name",
                fix="give it another name",
            )


def _bad_name(what: str, name: str) -> SardonyxError:
    return SardonyxError(
        "SX-JOB-NAME",
        f"{what} cannot be called {name!r}",
        cause="topics, groups and nodes in ZooKeeper get this name",
        fix="use letters, digits, - and _, beginning with a letter, at most 60 of them",
        where={"task": name} if what == "a task" else {},
    )


def _graph(spec: JobSpec) -> Iterator[SardonyxError]:
    for rule in (_unknown_tasks, _edges, _unlinked_tasks, _cycle):
        yield from rule(spec)


def _unknown_tasks(spec: JobSpec) -> Iterator[SardonyxError]:
    names = [task.name for task in spec.catalog]
    for name, other, side in structure.unknown_tasks(spec):
        message = f"there is no task {name!r} to come {side} it{near(name, names)}"
        yield problem("SX-JOB-UNKNOWN-TASK", other, message, fix=f"name one of its tasks: {', '.join(names) or 'none'}")


def _edges(spec: JobSpec) -> Iterator[SardonyxError]:
    types = {task.name: task.type for task in spec.catalog}
    for source, target in dict.fromkeys(edge for edge in spec.edges if types.keys() >= set(edge)):
        count = spec.edges.count((source, target))
        if count > 1:
            yield problem("SX-JOB-EDGE", target, f"it comes after {source!r} {count} times", fix="link them once")
        if types[target] == "input":
            fix = "make it a function task, or remove the link: an input reads only its connector"
            yield problem("SX-JOB-EDGE", target, f"it is an input, but comes after {source!r}", fix=fix)
        if types[source] == "output":
            fix = f"let {target!r} come after what {source!r} comes after"
            yield problem("SX-JOB-EDGE", source, f"it is an output, but {target!r} comes after it", fix=fix)


def _unlinked_tasks(spec: JobSpec) -> Iterator[SardonyxError]:
    mistyped = {unknown.name for unknown in structure.unknown_tasks(spec)}
    reached, left = structure.reached(spec), structure.left(spec)
    for task in spec.catalog:
        if near(task.name, mistyped):  # its name is mistyped in a link: that is the mistake, and is reported
            continue
        if task.type != "input" and task.name not in reached:
            fix = "name the task before it with after=..., or with an edge in the workflow"
            yield problem("SX-JOB-NO-WAY-IN", task.name, "no task comes before it", fix=fix)
        if task.type != "output" and task.name not in left:
            fix = "add a task or an output after it, or remove it"
            yield problem("SX-JOB-NO-WAY-OUT", task.name, "nothing comes after it", fix=fix)


def _cycle(spec: JobSpec) -> Iterator[SardonyxError]:
    if cycle := structure.shortest_cycle(spec):
        yield SardonyxError(
            "SX-JOB-CYCLE",
            f"the tasks form a cycle: {' -> '.join(cycle)}",
            cause="records would go round the cycle, and no task of it could tell when it has read the last one",
            fix="remove one of these links; if rows are to go round, declare the loop with job.cycle(...), docs/cycles.md",
        )


# --- One task ---------------------------------------------------------------------------------------------------------


def _connector(spec: JobSpec, task: TaskSpec) -> Iterator[SardonyxError]:
    if task.type == "function":
        if task.connector or task.options:
            fix = "make it an input or an output, or remove connector and options"
            yield problem("SX-JOB-CONNECTOR", task.name, "it is a function task, but has a connector", fix=fix)
        return
    for found in declarations.problems_of(task.connector, task.type, task.options):
        yield problem(found.code, task.name, found.message, cause=found.cause, fix=found.fix)
    unbounded = [other.name for other in spec.catalog if other.type == "input" and not has_end(other)]
    if task.type == "output" and task.options.get("mode") == "overwrite" and unbounded:
        yield problem(
            "SX-JOB-MODE",
            task.name,
            'it has mode "overwrite", but the job never ends',
            cause=f"input {unbounded[0]!r} has no end, and overwrite replaces the old files only when the job has ended",
            fix='use mode="append", or give the input an end',
        )


def _numbers(spec: JobSpec, task: TaskSpec) -> Iterator[SardonyxError]:
    def wrong(message: str, fix: str, code: str = "SX-JOB-PEERS") -> SardonyxError:
        return problem(code, task.name, message, fix=fix)

    if task.min_peers < 1:
        yield wrong(f"min_peers cannot be {task.min_peers}", "give 1 or more")
    if task.max_peers is not None and task.max_peers < max(1, task.min_peers):
        fix = f"give max_peers of {max(1, task.min_peers)} or more, or remove it"
        yield wrong(f"max_peers ({task.max_peers}) is less than min_peers ({task.min_peers})", fix)
    elif task.min_peers > spec.partitions:
        message = f"min_peers is {task.min_peers}, but only {spec.partitions} peers can share a task"
        yield wrong(message, f"give the job partitions={task.min_peers} or more, or the task a smaller min_peers")
    if task.consumption == "sequential" and max(task.max_peers or 1, task.min_peers) > 1:
        fix = "remove min_peers and max_peers, or make it concurrent"
        yield wrong("it is sequential, so it runs on one peer at a time, but asks for more", fix)
    if task.standby:
        yield from _standby(task)
    if task.rows_per_batch < 1:
        yield wrong(f"batch_size cannot be {task.batch_size}", "give 1 row or more", "SX-JOB-BATCH")
    try:
        units.seconds(task.batch_timeout)
    except ValueError as error:
        yield problem(
            "SX-JOB-UNITS",
            task.name,
            f"batch_timeout cannot be {task.batch_timeout!r}",
            cause=str(error),
            fix='write a number and a unit, such as "100 ms"',
        )


def _standby(task: TaskSpec) -> Iterator[SardonyxError]:
    store = store_of(task)
    if not 0 <= task.standby <= MOST:
        message, fix = f"standby cannot be {task.standby}", "give 1, or 0 for none"
    elif store is None:
        message, fix = "it has a standby, but keeps no state", "remove standby"
    elif store not in ("memory", "rocksdb"):
        message, fix = (
            "it has a standby, and a store that no other process can follow",
            'remove standby, or use "memory"',
        )
    else:
        return
    yield problem("SX-JOB-STANDBY", task.name, message, fix=fix)


def _tags(task: TaskSpec) -> Iterator[SardonyxError]:
    for tag in task.tags:
        if not is_tag(tag):
            yield problem("SX-JOB-TAG", task.name, f"it cannot have the tag {tag!r}", fix=f"a tag is {TAG_RULE}")


def _function_named(task: TaskSpec) -> Iterator[SardonyxError]:
    needless = any(each is not None for each in (task.window, task.relation, task.graph, task.iterate))
    if task.fn is None and task.type == "function" and not needless:
        fix = "give it one: fn=..., or fn: module:function"
        yield problem("SX-JOB-FUNCTION", task.name, "a function task needs a function", fix=fix)
    if task.fn is None and task.params:
        fix = "remove params, or give it a function"
        yield problem("SX-JOB-FUNCTION", task.name, "it has params, but no function that takes them", fix=fix)
    for reference in (task.fn, *map(function_of, task.params.values())):
        wrong = None if reference is None else fns.check_reference(reference)
        if wrong is not None:
            yield located(task.name, wrong)


Find = Callable[[str], Callable[..., Any]]


def _find(functions: Mapping[str, Callable[..., Any]], reference: str) -> Callable[..., Any]:
    """The function that ``module:name`` names: given, or imported."""
    fn = functions.get(reference)
    if fn is None:
        return fns.import_function(reference)
    _same(reference, fn)
    return fn


def _function(task: TaskSpec, find: Find) -> Iterator[SardonyxError]:
    if task.fn is None or fns.check_reference(task.fn) is not None:
        return
    if whole_of(task) is not None:  # the checks of programs over graphs and of rounds look at it
        return
    try:
        fn = find(task.fn)
        fns.takes(fn)
    except FunctionError as error:
        yield located(task.name, error)
        return
    if task.keyed is None:  # else the check of keyed state tells states from params
        yield from _params(task, fn, given_more=given_by_lifecycle(task, find))


def _same(reference: str, fn: Callable[..., Any]) -> None:
    """A function that was given must be the one that peers will find under its name."""
    name = reference.partition(":")[2]
    module = sys.modules.get(fn.__module__)
    if getattr(module, name, None) is not fn:
        raise FunctionError(
            "SX-FN-NAME",
            f"{reference!r} does not name a function that peers can import",
            cause=f"the module holds {'something else' if hasattr(module, name) else 'nothing'} under that name",
            fix="keep the function under the name with which it was defined (in decorators, use functools.wraps)",
            where={"function": reference},
        )


def _params(task: TaskSpec, fn: Callable[..., Any], *, given_more: bool) -> Iterator[SardonyxError]:
    parameters = list(inspect.signature(fn).parameters.values())[1:]
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for name in task.params:
        if name not in by_name and not takes_any:
            yield problem(
                "SX-FN-PARAMS",
                task.name,
                f"function {task.fn!r} has no parameter {name!r}{near(name, by_name)}",
                fix=f"choose from the parameters that it has besides the rows: {', '.join(by_name) or 'none'}",
            )
    for parameter in parameters:
        needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if needed and parameter.name not in task.params and not given_more:
            fix = f'add params={{"{parameter.name}": ...}}, or give the parameter a default'
            message = f"function {task.fn!r} needs {parameter.name!r}, which params do not give"
            yield problem("SX-FN-PARAMS", task.name, message, fix=fix)


# --- Rules about several tasks -------------------------------------------------------------------------------------


def _shared_places(spec: JobSpec) -> Iterator[SardonyxError]:
    """An output directory belongs to one output, which may replace and clean up what is in it."""
    on_files = [task for task in spec.catalog if task.connector == "files" and declarations.paths_of(task.options)]
    outputs = [task for task in on_files if task.type == "output"]
    for index, task in enumerate(outputs):
        path = declarations.paths_of(task.options)[0]
        for other in outputs[:index]:
            if _within(path, declarations.paths_of(other.options)[0]) or _within(
                declarations.paths_of(other.options)[0], path
            ):
                fix = "give each output its own directory, not inside the other's"
                yield problem("SX-JOB-PATHS", task.name, f"it writes where {other.name!r} writes", cause=path, fix=fix)
        for other in (task for task in on_files if task.type == "input"):
            for read in declarations.paths_of(other.options):
                if _within(re.split(r"[*?\[{]", read)[0], path):
                    fix = "write to another directory"
                    message = f"it writes over what {other.name!r} reads"
                    yield problem("SX-JOB-PATHS", task.name, message, cause=f"{read} is in {path}", fix=fix)


def _within(path: str, folder: str) -> bool:
    return os.path.normpath(path) == os.path.normpath(folder) or path.startswith(folder.rstrip(os.sep) + os.sep)


def _topics(spec: JobSpec) -> Iterator[SardonyxError]:
    """Kafka treats ``.`` and ``_`` in topic names alike, and refuses the second of two such names."""
    seen: dict[str, str] = {}
    for link in graph_of(spec, "d", "j").links:
        if not link.owned:
            continue
        other = seen.setdefault(link.topic.replace(".", "_"), link.name)
        if other != link.name:
            yield SardonyxError(
                "SX-JOB-NAME",
                f"the queues {other} and {link.name} would have names that Kafka cannot distinguish",
                cause="Kafka treats . and _ in the name of a topic alike",
                fix=f"rename {link.name.partition('.')[0]!r} or {link.target!r}, for example with - instead of _",
                where={"task": link.name.partition(".")[0]},
            )


def _size(spec: JobSpec) -> Iterator[SardonyxError]:
    size = len(encode_spec(spec))
    if size > MAX_SPEC_BYTES:
        largest = max(spec.catalog, key=lambda task: len(encode_spec(JobSpec(name="", workflow=[], catalog=[task]))))
        yield SardonyxError(
            "SX-JOB-TOO-LARGE",
            f"the job's spec has {size} bytes; the limit is {MAX_SPEC_BYTES}",
            cause=f"its largest task is {largest.name!r}",
            fix="move long params into a module beside the spec, or into files",
            where={"task": largest.name},
        )
