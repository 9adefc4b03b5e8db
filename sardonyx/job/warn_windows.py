"""What is probably not meant about time and windows in a job that can run: a part of :mod:`sardonyx.job.warn`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from sardonyx.core.errors import Failure
from sardonyx.core.graph import has_end
from sardonyx.core.spec import JobSpec, TaskSpec, stateful
from sardonyx.core.stores import Store, kind_of
from sardonyx.core.text import listed
from sardonyx.core.timing import WindowSpec
from sardonyx.job.validate_windows import inputs_of, once

_MODULES = {"rocksdb": "rocksdict", "sql": "sqlalchemy"}
"""Kind of store -> a module that it needs."""


def warnings_of_windows(spec: JobSpec) -> Iterator[Failure]:
    """Everything to warn about, in the order of the catalog."""
    for task in spec.catalog:
        yield from _guessed(spec, task)
        yield from _idle(task)
        if task.window is not None:
            yield from _state(spec, task, task.window)
            yield from one_key(task, "its windows have no group_by")
            yield from store_missing(task, task.window.store)
            yield from _several_results(spec, task, task.window)


def _idle(task: TaskSpec) -> Iterator[Failure]:
    if task.type == "input" and task.time is not None and task.time.idle is None and not has_end(task):
        yield warning(
            "SX-WARN-IDLE",
            task,
            "it never ends, and its time has no idle",
            "the clock is the least over all partitions: as long as one has no rows, it stands still and no window closes",
            'give idle, such as "1 min", unless every partition always has rows',
        )


def _guessed(spec: JobSpec, task: TaskSpec) -> Iterator[Failure]:
    """An input whose types its first records settle, in each peer anew, while the state after it needs types that go together."""
    if task.connector != "kafka" or task.type != "input" or task.options.get("format", "json") != "json":
        return
    kept = [each.name for each in spec.catalog if stateful(each) and task in inputs_of(spec, each.name)]
    if kept and not task.options.get("schema"):
        yield warning(
            "SX-WARN-GUESSED",
            task,
            f"it has no schema, and task {kept[0]!r} keeps a state of its rows",
            "the first value in a column of JSON settles its type, and records that do not fit are bad. Each peer that reads, or "
            "takes over, settles types anew: where it is numbers for one peer and texts for another, they do not fit into one "
            "state, and the job fails",
            'give the input schema="user string, amount double" with the columns that the job needs',
        )


def _state(spec: JobSpec, task: TaskSpec, window: WindowSpec) -> Iterator[Failure]:
    if window.kind != "everything" or window.state_limit is not None:
        return
    endless = [each.name for each in inputs_of(spec, task.name) if not has_end(each)]
    grows = [f"a row for each {' and '.join(task.group_by)}"] if isinstance(task.group_by, list) else []
    for name, aggregate in window.aggregate.items():
        if aggregate.of in ("collect", "distinct") and "most" not in aggregate.options:
            grows.append(f"the values of {name}")
    if endless and grows:
        yield warning(
            "SX-WARN-STATE",
            task,
            "its state grows as long as the job runs",
            f"everything() keeps {listed(grows)}, and input {endless[0]!r} has no end",
            "give state_limit, so that the job fails before memory does, or windows by time; to collect and distinct give most",
        )


def one_key(task: TaskSpec, message: str) -> Iterator[Failure]:
    """A task without a key, which one peer does alone."""
    if not task.group_by:
        yield warning(
            "SX-WARN-ONE-KEY",
            task,
            message,
            "all rows have one key, so one peer puts the results together; others have no work in this task",
            "give group_by if the results are wanted by key",
        )


def store_missing(task: TaskSpec, store: Store) -> Iterator[Failure]:
    """A store that needs what is not installed here."""
    kind = kind_of(store)
    needed = _MODULES.get(kind)
    if needed is not None and importlib.util.find_spec(needed) is None:
        yield warning(
            "SX-WARN-STORE",
            task,
            f'its store is "{kind}", which is not installed here',
            f"there is no module {needed}",
            f"run `pip install 'sardonyx[{kind}]'` where peers run",
        )


def _several_results(spec: JobSpec, task: TaskSpec, window: WindowSpec) -> Iterator[Failure]:
    """Results that correct or continue each other, in an output that keeps all of them side by side."""
    if once(window) or not window.accumulate or task.fn is not None:
        return
    for name in [target for source, target in spec.workflow if source == task.name]:
        after = spec.task(name)
        appends = after.connector == "files" or (after.connector == "sql" and after.options.get("mode") != "upsert")
        if appends and after.fn is None and spec.route(task.name, name).of == "results":
            yield warning(
                "SX-WARN-RESULTS",
                task,
                f"a window may give several results, and output {name!r} keeps all of them",
                "each counts all rows of the window so far, so adding them up counts rows twice",
                "read the one with the greatest pane of each key and window, or give accumulate=False and add them up; "
                'sql(mode="upsert") with window_start in its key keeps only the last',
            )


def warning(code: str, task: TaskSpec, message: str, cause: str, fix: str) -> Failure:
    """A warning about one task."""
    return Failure(code, f"task {task.name!r}: {message}", cause=cause, fix=fix, where={"task": task.name})
