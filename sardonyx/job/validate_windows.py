"""Checks of windows: lengths, aggregates, keys, results, late rows and state.

A part of :mod:`sardonyx.job.validate`; :mod:`sardonyx.job.validate_times` checks where rows have their times. What is probably
not meant, but can run, is a warning of :mod:`sardonyx.job.warn`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from sardonyx.core import units
from sardonyx.core.errors import FunctionError, SardonyxError
from sardonyx.core.graph import has_end
from sardonyx.core.spec import JobSpec, TaskSpec, group_function
from sardonyx.core.text import listed, near, shorten
from sardonyx.core.timing import RESULT_COLUMNS, WINDOW_NUMBER, AggregateSpec, WindowSpec
from sardonyx.job.validate_edges import problem
from sardonyx.job.validate_stores import wrong_stores
from sardonyx.runtime import functions as fns

MOST_WINDOWS = 1_000
"""The most overlapping windows that a row may be in: it costs as much as so many rows."""

MOST_DAYS, MOST_ROWS = 100_000, 10**15
"""The greatest lengths: sums of a time and a few of them fit into 64 bits of microseconds."""

_EMIT = re.compile(r"final|changes|every (?P<every>.+?)(?P<wall> by wall)?|count (?P<count>\d{1,15})")

_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tumbling": (("size",), ()),
    "hopping": (("size", "every"), ()),
    "session": (("gap",), ("most",)),
    "counted": (("size",), ("every",)),
    "calendar": (("unit",), ("zone",)),
    "everything": ((), ()),
}
"""Kind of windows -> the fields that it needs, and those that it may have besides."""

LENGTHS = ("size", "every", "gap", "most")


class Wrong(NamedTuple):
    """A problem of one task."""

    code: str
    message: str
    fix: str
    cause: str = ""


# --- One task ---------------------------------------------------------------------------------------------------------


def problems_of_task(task: TaskSpec) -> Iterator[SardonyxError]:
    """What is wrong with the windows of one task, as far as it alone tells."""
    if task.window is None:
        return
    window = task.window
    found = [*_task(task), *_results(task, window), *_key(task), *_emit(task, window)]
    for rule in (wrong_lengths, _aggregates, _late, _state):
        found += rule(window)
    yield from problems_from(task, found)


def problems_from(task: TaskSpec, found: Iterable[Wrong]) -> Iterator[SardonyxError]:
    """The problems of one task as errors."""
    for wrong in found:
        yield problem(wrong.code, task.name, wrong.message, fix=wrong.fix, cause=wrong.cause)


def _task(task: TaskSpec) -> Iterator[Wrong]:
    if task.type != "function":
        fix = "make it a task of its own: job.window(...)"
        yield Wrong("SX-WINDOW-TASK", f"it has windows, but is an {task.type}", fix)
    if task.consumption == "sequential":
        yield Wrong(
            "SX-WINDOW-TASK",
            "it has windows, so it cannot be sequential",
            "remove sequential; for one order of all rows, leave out group_by",
            "the rows of a key go to one peer at a time, in order, anyway",
        )
    if task.lifecycle is not None and task.fn is None:
        fix = "remove lifecycle, or give it fn"
        yield Wrong("SX-WINDOW-TASK", "it has a lifecycle, but no function that uses it", fix)


def wrong_lengths(window: WindowSpec) -> Iterator[Wrong]:
    """What is wrong with the lengths of windows, or the zone of a calendar."""
    for rule in (_fields_of_kind, _lengths, _zone):
        yield from rule(window)


def _fields_of_kind(window: WindowSpec) -> Iterator[Wrong]:
    needed, allowed = _FIELDS[window.kind]
    for name in needed:
        if getattr(window, name) is None:
            yield Wrong("SX-WINDOW-SIZE", f"{window.kind} windows need {name}", f"give {name}{_EXAMPLES[window.kind]}")
    defaults = WindowSpec(kind=window.kind)
    for name in (*LENGTHS, "unit", "zone"):
        if name not in (*needed, *allowed) and getattr(window, name) != getattr(defaults, name):
            others = listed(kind for kind, (must, may) in _FIELDS.items() if name in (*must, *may))
            yield Wrong(
                "SX-WINDOW-SIZE", f"{window.kind} windows have no {name}", f"remove {name}; it belongs to {others}"
            )


_EXAMPLES = {
    "tumbling": ', such as "1 min"',
    "hopping": ": size is the length of a window, every the time from the start of one to the next",
    "session": ', such as "30 min"',
    "counted": ", the number of rows (n)",
    "calendar": ": hour, day, week, month or year",
}


def _lengths(window: WindowSpec) -> Iterator[Wrong]:
    """Each length by itself, then how they go together."""
    found: dict[str, float] = {}
    needed, allowed = _FIELDS[window.kind]
    for name in (name for name in LENGTHS if name in (*needed, *allowed)):
        value = getattr(window, name)
        if value is None:
            continue
        wrong = list(_rows(name, value, 1) if window.kind == "counted" else _length(name, value, 1))
        yield from wrong
        if not wrong:
            found[name] = units.seconds(value)
    for name in ("grace", "allowed_lateness"):
        yield from _length(name, getattr(window, name), 0)
    if isinstance(window.size, str) is isinstance(window.every, str) and {"size", "every"} <= found.keys():
        yield from _overlap(window, found["size"], found["every"])
    if isinstance(window.gap, str) is isinstance(window.most, str) and found.get("most", math.inf) < found.get(
        "gap", 0
    ):
        message = f"most ({window.most}) is less than gap ({window.gap})"
        yield Wrong(
            "SX-WINDOW-SIZE",
            message,
            "give a longer most, or remove it",
            "a session of one row is as long as gap already",
        )


def _overlap(window: WindowSpec, size: float, every: float) -> Iterator[Wrong]:
    if every > size:
        yield Wrong(
            "SX-WINDOW-SIZE",
            f"every ({window.every}) is more than size ({window.size})",
            "give every of at most size; to use a part of the rows only, select them on the edge with .where(...)",
            "there would be gaps between the windows, and rows that are in none",
        )
    elif size / every > MOST_WINDOWS:
        yield Wrong(
            "SX-WINDOW-SIZE",
            f"each row would be in about {size / every:,.0f} windows; the limit is {MOST_WINDOWS:,}",
            "give a longer every, or add up the results of shorter windows in a second window",
            f"size is {window.size}, and a window begins after each {window.every}; a row costs as much as so many rows",
        )


def _length(name: str, value: str | int, least: int) -> Iterator[Wrong]:
    """A duration, or a number of rows on an ordinal time; which of the two fits, :func:`problems_of_windows` knows."""
    yield from _rows(name, value, least) if isinstance(value, int) else duration(name, value, least=least)


def _rows(name: str, value: str | int, least: int) -> Iterator[Wrong]:
    if not isinstance(value, int):
        yield Wrong("SX-WINDOW-SIZE", f"{name} cannot be {value!r}", "give a number of rows, without a unit")
    elif not least <= value <= MOST_ROWS:
        yield Wrong("SX-WINDOW-SIZE", f"{name} cannot be {value}", f"give {least} or more, and at most {MOST_ROWS:,}")


def duration(name: str, text: str, *, least: int) -> Iterator[Wrong]:
    """``least``: in microseconds, the unit of clocks."""
    try:
        length = units.seconds(text)
    except ValueError as error:
        fix = 'write a number and a unit, such as "10 s"'
        yield Wrong("SX-JOB-UNITS", f"{name} cannot be {shorten(text)!r}", fix, shorten(str(error), 300))
        return
    code = "SX-TIME-INPUT" if name.startswith("time") else "SX-WINDOW-SIZE"
    if length > MOST_DAYS * 86_400:
        yield Wrong(code, f"{name} cannot be {shorten(text)!r}", f"give at most {MOST_DAYS:,} days")
    elif round(length * 1_000_000) < least:
        yield Wrong(code, f"{name} cannot be {text!r}", "give more than 0")


def _zone(window: WindowSpec) -> Iterator[Wrong]:
    zone = window.zone
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError):  # KeyError: ZoneInfoNotFoundError
        fix = "give a name of the IANA time zones, such as Europe/Berlin; how far from UTC it is depends on the day"
        yield Wrong("SX-WINDOW-ZONE", f"there is no time zone {zone!r}{near(zone, available_timezones())}", fix)


def _results(task: TaskSpec, window: WindowSpec) -> Iterator[Wrong]:
    if not window.aggregate and task.fn is None:
        fix = "give it aggregate={...}, fn=..., or both"
        yield Wrong("SX-WINDOW-RESULT", "it has windows, but neither aggregate nor fn says what they give", fix)
    keys = task.group_by if isinstance(task.group_by, list) else []
    for name in window.aggregate:
        if name in keys:
            yield Wrong(
                "SX-WINDOW-RESULT", f"aggregate {name!r} has the name of a column of the key", "give it another name"
            )
        elif name in RESULT_COLUMNS:
            fix = f"give it another name; each result has {listed(RESULT_COLUMNS)}"
            yield Wrong("SX-WINDOW-RESULT", f"aggregate {name!r} has the name of a column that each result has", fix)
        elif not name or name.startswith("sx_"):
            fix = "give it another name; names with sx_ are used inside"
            yield Wrong("SX-WINDOW-RESULT", f"a column of the results cannot be called {name!r}", fix)


def _aggregates(window: WindowSpec) -> Iterator[Wrong]:
    for name, aggregate in window.aggregate.items():
        if aggregate.column is None and aggregate.of != "count":
            fix = f'name it: {{{aggregate.of}: column}}, or {aggregate.of.capitalize()}("column")'
            yield Wrong("SX-WINDOW-AGGREGATE", f"aggregate {name!r}: {aggregate.of} needs a column", fix)
        elif not aggregate.column and aggregate.column is not None:
            yield Wrong("SX-WINDOW-AGGREGATE", f"aggregate {name!r} names a column without a name", "name the column")
        yield from _options(name, aggregate)


def _options(name: str, aggregate: AggregateSpec) -> Iterator[Wrong]:
    known = {"quantile": ("q",), "collect": ("most",), "distinct": ("most",)}.get(aggregate.of, ())
    for option, value in aggregate.options.items():
        if option not in known:
            fix = f"choose from {', '.join(known)}" if known else "remove it"
            yield Wrong(
                "SX-WINDOW-AGGREGATE", f"aggregate {name!r}: {aggregate.of} has no {option!r}{near(option, known)}", fix
            )
        elif option == "most" and (type(value) is not int or value < 1):
            yield Wrong("SX-WINDOW-AGGREGATE", f"aggregate {name!r}: most cannot be {value!r}", "give 1 or more values")
    if aggregate.of != "quantile":
        return
    q: Any = aggregate.options.get("q")
    if type(q) not in (int, float) or not 0 <= q <= 1:
        said = "quantile needs q" if q is None else f"q cannot be {q!r}"
        fix = "give a number from 0 to 1, such as 0.99; 0.5 is the median"
        yield Wrong("SX-WINDOW-AGGREGATE", f"aggregate {name!r}: {said}", fix)


def _key(task: TaskSpec) -> Iterator[Wrong]:
    if group_function(task) is not None:
        yield Wrong(
            "SX-WINDOW-KEY",
            "it has windows, so a function cannot make its key",
            "add the key as a column in a task before it, and name that column",
            "each result holds the columns of its key, and a function's key has no columns",
        )
    numbered = task.window is not None and task.window.kind == "counted" and not task.window.aggregate
    of_ours = (*RESULT_COLUMNS, WINDOW_NUMBER) if numbered else RESULT_COLUMNS
    for name in task.group_by if isinstance(task.group_by, list) else []:
        if name in of_ours:
            fix = f"give the column another name in a task before it; each result has {listed(of_ours)}"
            yield Wrong("SX-WINDOW-KEY", f"group_by names {name!r}, which each result has of its own", fix)


def _emit(task: TaskSpec, window: WindowSpec) -> Iterator[Wrong]:
    match = _EMIT.fullmatch(window.emit)
    if match is None:
        fix = 'give "final", "changes", every("10 s"), every("10 s", by="wall") or on_count(100)'
        fix += '; in YAML "every 10 s", "every 10 s by wall" or "count 100"'
        yield Wrong(
            "SX-WINDOW-EMIT", f"emit cannot be {shorten(window.emit)!r}{near(window.emit, ('final', 'changes'))}", fix
        )
        return
    often = _often(match)
    if match["wall"] is not None and isinstance(often, int):
        fix = f'give a duration, such as every("{often} s", by="wall")'
        yield Wrong("SX-WINDOW-EMIT", f"emit is {window.emit!r}, and the machine's clock counts no rows", fix)
    elif often is not None:
        yield from _length("emit: every", often, 1)
    if match["count"] is not None and int(match["count"]) < 1:
        yield Wrong("SX-WINDOW-EMIT", "emit: a result after each 0 rows", "give on_count(1) or more")
    if window.emit != "final" and not window.aggregate and task.fn is not None:
        yield Wrong(
            "SX-WINDOW-EMIT",
            f"emit is {window.emit!r}, but without aggregate its function is called only when windows close",
            "remove emit, or give it aggregate; fn is then called with the results",
            "a function without aggregate is given all rows of whole windows",
        )


def emit_every(window: WindowSpec) -> str | int | None:
    """How far the clock of the rows goes from one result to the next: a duration or a number of rows; None: results come
    otherwise.
    """
    match = _EMIT.fullmatch(window.emit)
    return None if match is None or match["wall"] is not None else _often(match)


def _often(match: re.Match[str]) -> str | int | None:
    often = match["every"]
    return int(often) if often is not None and re.fullmatch("[0-9]{1,15}", often) else often


def _late(window: WindowSpec) -> Iterator[Wrong]:
    given = [name for name in ("grace", "allowed_lateness") if not nothing(getattr(window, name))]
    if "allowed_lateness" in given and window.by_time and (window.kind == "session" or not window.aggregate):
        cause = _ONCE_ONLY["session" if window.kind == "session" else "rows"]
        yield Wrong("SX-WINDOW-LATE", "its windows cannot have allowed_lateness", "give grace instead", cause)
    given += ["late"] if window.late != "drop" else []
    if given and not window.by_time:
        message = f"no row is late for {window.kind} windows, so {listed(given)} has no effect"
        edge = ", and the tasks after its late rows" if window.late == "edge" else ""
        closes = (
            "they close when they have so many rows" if window.kind == "counted" else "it closes at the end of the job"
        )
        yield Wrong("SX-WINDOW-LATE", message, f"remove {listed(given)}{edge}", closes)


_ONCE_ONLY = {
    "session": "a late row could join two sessions that have given their final results",
    "rows": "without aggregate a function is given the rows of a window once, when it closes",
}
"""Why a window cannot give a further result after its final one."""


def _state(window: WindowSpec) -> Iterator[Wrong]:
    for wrong in wrong_stores(window.store):
        yield Wrong("SX-WINDOW-STORE", *wrong)
    if window.state_limit is not None and not 1 <= window.state_limit <= MOST_ROWS:
        fix = f"give 1 entry or more, and at most {MOST_ROWS:,}"
        yield Wrong("SX-WINDOW-STORE", f"state_limit cannot be {window.state_limit}", fix)


# --- Rules about several tasks ----------------------------------------------------------------------------------------


def problems_of_windows(spec: JobSpec) -> Iterator[SardonyxError]:
    """What is wrong between windows and the tasks before and after them."""
    tasks = {task.name: task for task in spec.catalog}
    for task in spec.catalog:
        if task.window is not None:
            yield from problems_from(task, _among(spec, task, task.window, tasks))


def _among(spec: JobSpec, task: TaskSpec, window: WindowSpec, tasks: dict[str, TaskSpec]) -> Iterator[Wrong]:
    yield from _never(spec, task, window)
    yield from _late_edge(spec, task, window)
    for source, target in spec.workflow:
        if source == task.name and target in tasks:
            yield from _before(spec, task, window, tasks[target])


def _never(spec: JobSpec, task: TaskSpec, window: WindowSpec) -> Iterator[Wrong]:
    endless = [each.name for each in inputs_of(spec, task.name) if not has_end(each)]
    if window.kind == "everything" and window.emit == "final" and endless:
        yield Wrong(
            "SX-WINDOW-EMIT",
            "it would never give a result",
            'give emit="changes", every("10 s") or on_count(100), use windows by time, or give the input an end',
            f'everything() closes at the end of its inputs, and {endless[0]!r} has none; emit is "final"',
        )


def _late_edge(spec: JobSpec, task: TaskSpec, window: WindowSpec) -> Iterator[Wrong]:
    taken = any(spec.route(source, target).of == "late" for source, target in spec.edges if source == task.name)
    if window.late == "edge" and not taken:
        fix = "let a task come after its late rows (.late; in YAML a route with of: late), or write late: drop"
        yield Wrong("SX-WINDOW-LATE", 'late is "edge", but no task takes its late rows', fix)


def _before(spec: JobSpec, task: TaskSpec, window: WindowSpec, after: TaskSpec) -> Iterator[Wrong]:
    """The task right after a window, if it is an output that replaces rows, replaces the right ones."""
    target = after.name
    key = after.options.get("key")
    if after.connector != "sql" or after.options.get("mode") != "upsert" or not isinstance(key, list):
        return
    if after.fn is not None or task.fn is not None or spec.route(task.name, target).of != "results":
        return
    if not window.accumulate and not once(window):
        yield Wrong(
            "SX-WINDOW-EMIT",
            f"output {target!r} would replace each result of a window by the next, which counts only the rows since then",
            "remove accumulate=False, or append the results",
        )
    elif (
        window.by_time and not nothing(window.allowed_lateness) and not {"window_start", "window_end"}.intersection(key)
    ):
        yield Wrong(
            "SX-WINDOW-LATE",
            f"a corrected result of an old window would replace that of a newer one in output {target!r}",
            f"add window_start to the key of {target!r}, or remove allowed_lateness",
            f"it replaces rows with equal {listed(key)}, whichever window they are of",
        )


def nothing(length: str | int | None) -> bool:
    """Whether this is not a length at all, in any form."""
    try:
        return length is None or units.seconds(length) == 0
    except ValueError:  # another check reports it
        return False


def once(window: WindowSpec) -> bool:
    """Whether each window gives one result."""
    return window.emit == "final" and (not window.by_time or nothing(window.allowed_lateness))


def inputs_of(spec: JobSpec, name: str) -> list[TaskSpec]:
    """The inputs whose rows come to a task, in the order of the catalog."""
    found, waiting = {name}, [name]
    while waiting:
        task = waiting.pop()
        new = {source for source, target in spec.workflow if target == task} - found
        found |= new
        waiting += new
    return [task for task in spec.catalog if task.name in found and task.type == "input"]


# --- What is imported -------------------------------------------------------------------------------------------------


def problems_of_imports(spec: JobSpec, find: Callable[[str], Callable[..., Any]]) -> Iterator[SardonyxError]:
    """The function of a window without ``aggregate`` is given whole windows.

    Args:
        spec: the job.
        find: returns what ``module:name`` names, or raises ``FunctionError``.
    """
    for task in spec.catalog:
        if task.window is None or task.fn is None or task.window.aggregate or fns.check_reference(task.fn) is not None:
            continue
        try:
            kind = fns.takes(find(task.fn))
        except FunctionError:  # the check of functions reports it
            continue
        if kind == "record":
            yield problem(
                "SX-WINDOW-RESULT",
                task.name,
                f"function {task.fn!r} takes one record at a time, and its windows have no aggregate",
                fix="let it take a DataFrame, a pyarrow.Table or a pandas.DataFrame, or give it aggregate",
                cause="without aggregate a function is given all rows of whole windows",
            )
