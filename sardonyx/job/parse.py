"""A job as written (by the builder, in YAML, TOML or JSON) -> a :class:`JobSpec`. Strict, and reports every mistake at once.

What cannot be read is reported and left at its default, so that the rest can still be validated and reported with it.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec

from sardonyx.connectors import declarations
from sardonyx.core.errors import SardonyxError
from sardonyx.core.joining import RelationKind, RelationSpec
from sardonyx.core.keyed import ALL_STATES, KeyedSpec
from sardonyx.core.spec import JobSpec, OnError, Route, TaskSpec, late_policy
from sardonyx.core.stores import SqlStore
from sardonyx.core.text import listed, near, nearest, shorten
from sardonyx.core.timing import AggregateKind, AggregateSpec, TimeSpec, WindowSpec

_DECIDED_BY_US = ("code",)
_ON_ERROR = ("fail", "skip", "dead_letter")
_WHAT: dict[type[msgspec.Struct], str] = {
    JobSpec: "a job",
    TaskSpec: "a task",
    OnError: "on_error",
    TimeSpec: "time",
    WindowSpec: "window",
    RelationSpec: "relation",
    KeyedSpec: "keyed",
    SqlStore: "store",
}
_WANTED = {
    "batch_size": "a number of rows (not a size in bytes), such as 50000",
    "batch_timeout": 'a duration, such as "100 ms"',
    "backoff": 'a duration, such as "100 ms"',
    "ahead": 'a duration, such as "1 day"',
    "aggregate": "a mapping from the columns of the results to what they hold, such as {hits: count, slowest: {max: ms}}",
    "allowed_lateness": 'a duration, such as "1 h" (over an ordinal time a number of rows)',
    "column": "the name of a column",
    "delay": 'a duration, such as "5 s"',
    "emit": 'final, changes, "every 10 s" or "count 100"',
    "every": 'a duration, such as "10 s" (over an ordinal time, and for counted, a number of rows)',
    "gap": 'a duration, such as "30 min" (over an ordinal time a number of rows)',
    "grace": 'a duration, such as "10 s" (over an ordinal time a number of rows)',
    "idle": 'a duration, such as "1 min"',
    "most": 'a duration, such as "12 h" (over an ordinal time a number of rows)',
    "size": 'a duration, such as "1 min" (over an ordinal time, and for counted, a number of rows)',
    "accumulate": "true or false",
    "state_limit": "a number of entries",
    "store": 'memory, rocksdb, a database: {sql: "postgresql://host/name"}, or your own class: module:Class',
    "state": 'columns with their types, such as "total double, n bigint"',
    "on_timer": "a function, as module:function",
    "ttl": 'a duration, such as "30 days", or a mapping from the names of states to durations',
    "time": "the name of a column",
    "how": "inner or left",
    "kind": "one of the kinds that docs/time.md and docs/joins.md list",
    "left": "the name of a task",
    "prefix": "a text",
    "right": "the name of a task",
    "right_on": "a column, or a list of columns",
    "wait": 'a duration, such as "10 s" (over an ordinal time a number of rows)',
    "within": 'a duration, such as "10 min", or for a join a list of two, such as ["-1 min", "10 min"]',
    "zone": "the name of a time zone, such as Europe/Berlin",
    "group_by": "a column, a list of columns, or a function (module:function)",
    "min_peers": "a number of peers",
    "max_peers": "a number of peers",
    "retries": "a number of times",
    "partitions": "a number",
    "failure_limit": "a number of failures",
    "lineage": "true or false",
    "keep": 'a duration, such as "1 h"',
    "params": "a mapping from the function's parameters to values",
    "options": "a mapping from the connector's options to values",
    "fn": "a function, as module:function",
    "where": "a function, as module:function",
    "lifecycle": "a class, as module:Class",
    "connector": "the name of a connector, such as kafka, or a class, as module:Class",
    "fuse": "true or false",
    "name": "a text",
    "doc": "a text",
}
"""What the value of a field is, for the message about one of a wrong type."""
_ALSO_CALLED = {
    "sliding": "hopping",
    "fixed": "tumbling",
    "sessions": "session",
    "global": "everything",
    "count": "counted",
}
"""What other systems call a kind of windows."""
_OF_WINDOWS = frozenset(WindowSpec.__struct_fields__)
_RELATIONS = typing.get_args(RelationKind)
_OF_KEYED = frozenset(KeyedSpec.__struct_fields__)
_AGGREGATES = typing.get_args(AggregateKind)
_AS_COLUMN = "write what it aggregates, such as count, {max: ms} or {quantile: ms, q: 0.99}"
UNREAD = "(unreadable)"
"""Stands for a column that cannot be read."""
_WORKFLOW = (
    "write a list of edges such as [[read, clean], [clean, write]], or a nested map such as {read: {clean: write}}"
)


def read(data: object, base: Path | None = None) -> tuple[JobSpec, list[SardonyxError]]:
    """A spec and what is wrong with how it is written; ``base``: the folder that relative paths are relative to.

    The edges are put in the order of the catalog, so that equal jobs give equal specs.
    """
    problems: list[SardonyxError] = []
    if not isinstance(data, Mapping):
        return JobSpec(name="unnamed", workflow=[], catalog=[]), [
            _problem("", f"a job is a mapping with name, workflow and catalog, not {_kind(data)}", "see docs/jobs.md")
        ]
    entries = data.get("catalog", [])
    catalog: list[TaskSpec] = []
    if isinstance(entries, list):
        catalog = [_task(entry, index, base, problems) for index, entry in enumerate(entries)]
    else:
        problems.append(_problem("", f"catalog is a list of tasks, not {_kind(entries)}", "see docs/jobs.md"))
    rest = {key: value for key, value in data.items() if key not in ("catalog", "routes")}
    if "workflow" in rest:
        rest["workflow"] = list(_edges(rest["workflow"], problems))
    fields = _fields(JobSpec, rest, "", problems, skip=("catalog", "routes", *_DECIDED_BY_US))
    workflow = fields.pop("workflow", [])
    routes = _routes(data.get("routes", {}), {f"{source}.{target}" for source, target in workflow}, problems)
    catalog = [_with_late_edge(task, routes, problems) for task in catalog]
    position = {task.name: index for index, task in reversed(list(enumerate(catalog)))}
    last = len(catalog)
    workflow.sort(key=lambda edge: (position.get(edge[1], last), position.get(edge[0], last)))
    return JobSpec(**{"name": "unnamed", **fields}, workflow=workflow, catalog=catalog, routes=routes), problems


def unread_workflow(problems: list[SardonyxError]) -> bool:
    """Whether a part of the workflow could not be read, so that what it leaves out is no mistake of its own."""
    return any(problem.where.get("field") == "workflow" for problem in problems)


def _edges(written: object, problems: list[SardonyxError]) -> Iterator[tuple[str, str]]:
    """The edges of a workflow: a list of pairs, or a nested map as in Onyx, ``{in: {inc: out}}``.

    In a map each key is a task, and its value is what comes after it: a task, a list of tasks and maps, or a map. A task
    may be a key in several places.
    """
    if isinstance(written, Mapping):
        yield from dict.fromkeys(_nested(written, problems))
    elif isinstance(written, list | tuple):
        for edge in written:
            if isinstance(edge, list | tuple) and len(edge) == 2 and all(isinstance(name, str) for name in edge):
                yield edge[0], edge[1]
            else:
                problems.append(_not_an_edge(f"workflow: an edge is a pair of tasks, not {_kind(edge)}"))
    else:
        problems.append(_not_an_edge(f"workflow is a list of edges or a nested map, not {_kind(written)}"))


def _nested(written: Mapping[Any, Any], problems: list[SardonyxError]) -> Iterator[tuple[str, str]]:
    for source, after in written.items():
        for target in after if isinstance(after, list | tuple) else [after]:
            names = list(target) if isinstance(target, Mapping) else [target]
            for name in names:
                if isinstance(source, str) and isinstance(name, str):
                    yield source, name
                else:
                    wrong = f"after {_shown(source)} comes a task, a list of tasks or a map of them, not {_kind(name)}"
                    problems.append(_not_an_edge(f"workflow: {wrong}"))
            if isinstance(target, Mapping):
                yield from _nested(target, problems)


def _not_an_edge(message: str) -> SardonyxError:
    return SardonyxError("SX-JOB-FIELD", message, fix=_WORKFLOW, where={"field": "workflow"})


def _task(entry: object, index: int, base: Path | None, problems: list[SardonyxError]) -> TaskSpec:
    if not isinstance(entry, Mapping):
        problems.append(
            _problem("", f"entry {index + 1} of catalog is a mapping, not {_kind(entry)}", "see docs/jobs.md")
        )
        return TaskSpec(name=f"entry-{index + 1}", type="function")
    name = entry["name"] if isinstance(entry.get("name"), str) else f"entry-{index + 1}"
    written = dict(entry)
    if "on_error" in written:
        written["on_error"] = _on_error(written["on_error"], name, problems)
    if written.get("time") is not None:
        written["time"] = _time(written["time"], name, problems)
    if written.get("window") is not None or "aggregate" in written:
        written["window"] = _window(written.get("window", {}), written.pop("aggregate", None), base, name, problems)
    if written.get("relation") is not None:
        written["relation"] = _relation(written["relation"], base, name, problems)
    if written.get("keyed") is not None:
        written["keyed"] = _keyed(written["keyed"], base, name, problems)
    if isinstance(written.get("group_by"), str) and ":" not in written["group_by"]:
        written["group_by"] = [written["group_by"]]
    if isinstance(written.get("options"), Mapping):
        connector = str(written.get("connector"))
        options = declarations.normal(connector, written["options"])
        written["options"] = declarations.absolute(connector, options, base) if base else options
    for key in ("params", "options"):
        if key in written:
            written[key], wrong = _plain(written[key], key)
            if wrong:
                code = "SX-JOB-PARAMS" if key == "params" else "SX-JOB-CONNECTOR"
                fix = "use texts, numbers, true and false, null, lists, and mappings with texts as keys"
                problems.append(_problem(name, f"{wrong} cannot be sent with the job", fix, code=code))
                written.pop(key)
    fields = _fields(TaskSpec, written, name, problems)
    return TaskSpec(**{"name": name, "type": "function", **fields})


def _on_error(written: object, task: str, problems: list[SardonyxError]) -> OnError:
    """A mapping, or only the word for ``then``."""
    if isinstance(written, str):
        written = {"then": written}
    if not isinstance(written, Mapping):
        fix = f"write {listed(_ON_ERROR, last='or')}, or a mapping with retries, backoff and then"
        problems.append(_problem(task, f"on_error cannot be {_shown(written)}", fix))
        return OnError()
    then = written.get("then")
    if isinstance(then, str) and then not in _ON_ERROR:
        fix = f"write {listed(_ON_ERROR, last='or')}"
        problems.append(_problem(task, f"on_error cannot be {_shown(then)}{near(then, _ON_ERROR)}", fix))
        written = {key: value for key, value in written.items() if key != "then"}
    return OnError(**_fields(OnError, written, task, problems))


def _time(written: object, task: str, problems: list[SardonyxError]) -> TimeSpec:
    """A mapping, or only the name of the column."""
    if isinstance(written, str):
        written = {"column": written}
    if not isinstance(written, Mapping):
        fix = "write the name of a column, or a mapping with column, kind, delay and what else docs/time.md lists"
        problems.append(_problem(task, f"time cannot be {_shown(written)}", fix))
        return TimeSpec(column=UNREAD)
    return TimeSpec(**{"column": UNREAD, **_fields(TimeSpec, written, task, problems)})


def _window(
    written: object, aggregate: object, base: Path | None, task: str, problems: list[SardonyxError]
) -> WindowSpec:
    """A mapping, or only the kind; ``aggregate``: what stands beside it, which may stand in it as well."""
    if isinstance(written, str):
        written = {"kind": written}
    if not isinstance(written, Mapping):
        fix = "write a mapping with kind, such as {kind: tumbling, size: 1 min}"
        problems.append(_problem(task, f"window cannot be {_shown(written)}", fix))
        written = {"kind": "everything", "emit": "changes"}
    if aggregate is not None and "aggregate" in written:
        problems.append(_problem(task, "aggregate stands in window and beside it", "write it once"))
    given = dict(written) if aggregate is None else {**written, "aggregate": aggregate}
    kind = given.get("kind")
    if isinstance(kind, str) and kind in _ALSO_CALLED:
        meant = _ALSO_CALLED[kind]
        problems.append(
            _problem(task, f"kind cannot be {kind!r}; here such windows are called {meant}", f"write {meant}")
        )
        given["kind"] = meant
    if isinstance(given.get("store"), Mapping):
        given["store"] = _store(given["store"], base, task, problems)
    if isinstance(given.get("aggregate"), Mapping):
        given["aggregate"] = {  # in the order in which JSON has it, so that results have the same columns everywhere
            str(column): _aggregate(str(column), entry, task, problems)
            for column, entry in sorted(given["aggregate"].items(), key=lambda item: str(item[0]))
        }
    fields = _fields(WindowSpec, given, task, problems)
    if given.get("aggregate") and "aggregate" not in fields:
        fields["aggregate"] = {UNREAD: AggregateSpec(of="count")}
    if "kind" not in fields:  # nor can its lengths be checked
        return WindowSpec(kind="everything", emit="changes", aggregate=fields.get("aggregate", {}))
    return WindowSpec(**fields)


def _relation(written: object, base: Path | None, task: str, problems: list[SardonyxError]) -> RelationSpec:
    """A mapping, or only the kind."""
    if isinstance(written, str):
        written = {"kind": written}
    if not isinstance(written, Mapping):
        fix = "write a mapping with kind, such as {kind: join, left: orders, right: payments, within: 10 min}"
        problems.append(_problem(task, f"relation cannot be {_shown(written)}", fix))
        return RelationSpec(kind="distinct")
    given = dict(written)
    if isinstance(given.get("right_on"), str):
        given["right_on"] = [given["right_on"]]
    if isinstance(given.get("within"), tuple):
        given["within"] = list(given["within"])
    if isinstance(given.get("store"), Mapping):
        given["store"] = _store(given["store"], base, task, problems)
    kind = given.get("kind")
    if isinstance(kind, str) and kind not in _RELATIONS:
        fix = f"choose from {listed(_RELATIONS)}"
        problems.append(_problem(task, f"kind cannot be {kind!r}{near(kind, _RELATIONS)}", fix))
        given["kind"] = "distinct"
    return RelationSpec(**{"kind": "distinct", **_fields(RelationSpec, given, task, problems)})


def _keyed(written: object, base: Path | None, task: str, problems: list[SardonyxError]) -> KeyedSpec:
    """A mapping; ``ttl`` in it may be a duration, which is meant for all states."""
    if not isinstance(written, Mapping):
        fix = "write a mapping, such as {ttl: 30 days}; {} if nothing is to be said"
        problems.append(_problem(task, f"keyed cannot be {_shown(written)}", fix))
        return KeyedSpec()
    given = dict(written)
    if isinstance(given.get("ttl"), str):
        given["ttl"] = {ALL_STATES: given["ttl"]}
    if isinstance(given.get("store"), Mapping):
        given["store"] = _store(given["store"], base, task, problems)
    return KeyedSpec(**_fields(KeyedSpec, given, task, problems))


def _store(
    written: Mapping[Any, Any], base: Path | None, task: str, problems: list[SardonyxError]
) -> SqlStore | Literal["memory"]:
    """A database as the store of a task: ``{sql: address}``, with ``user`` and ``password_env`` if need be."""
    said = {"url" if key == "sql" else str(key): value for key, value in written.items()}
    given = declarations.normal("sql", said)
    fields = _fields(SqlStore, declarations.absolute("sql", given, base) if base else given, task, problems)
    return SqlStore(**fields) if "url" in fields else "memory"  # the rest is checked; what is wrong is reported


def _aggregate(column: str, written: object, task: str, problems: list[SardonyxError]) -> AggregateSpec:
    """A kind, as ``count``; a kind with its column and options, as ``{quantile: ms, q: 0.99}``; or the fields of the spec."""
    what = f"aggregate {column}"
    if isinstance(written, str):
        written = {"of": written}
    if isinstance(written, Mapping) and "of" not in written:
        kinds = [key for key in written if nearest(str(key), _AGGREGATES)]
        if len(kinds) == 1:
            options = {key: value for key, value in written.items() if key != kinds[0]}
            written = {"of": kinds[0], "column": written[kinds[0]]} | ({"options": options} if options else {})
    if not isinstance(written, Mapping) or "of" not in written:
        problems.append(_problem(task, f"{what} cannot be {_shown(written)}", _AS_COLUMN))
        return AggregateSpec(of="count")
    given, wrong = dict(written), ""
    if isinstance(given.get("options"), Mapping):
        given["options"], wrong = _plain(given["options"], what)
    if wrong:
        problems.append(_problem(task, f"{wrong} cannot be sent with the job", "write a number"))
        return AggregateSpec(of="count")
    fields = _fields(AggregateSpec, given, task, problems, what=what)
    if given.get("column") is not None and "column" not in fields:
        return AggregateSpec(of="count")
    return AggregateSpec(**{"of": "count", **fields})


def _with_late_edge(task: TaskSpec, routes: Mapping[str, Route], problems: list[SardonyxError]) -> TaskSpec:
    """The task, with late rows going over an edge if something comes after them."""
    taken = any(route.of == "late" and link.partition(".")[0] == task.name for link, route in routes.items())
    if late_policy(task) is None or not taken:
        return task
    if late_policy(task) == "dead_letter":
        fix = 'remove late="dead_letter", or the task after the late rows'
        message = "its late rows would be dead letters, and also go to the tasks after them"
        problems.append(_problem(task.name, message, fix, code="SX-WINDOW-LATE"))
    if task.relation is not None:
        task = msgspec.structs.replace(task, relation=msgspec.structs.replace(task.relation, late="edge"))
    if task.window is not None:
        task = msgspec.structs.replace(task, window=msgspec.structs.replace(task.window, late="edge"))
    return task


def _routes(written: object, edges: set[str], problems: list[SardonyxError]) -> dict[str, Route]:
    """Conditions by link. An empty one is left out, so that equal jobs give equal specs."""
    if not isinstance(written, Mapping):
        problems.append(_problem("", f"routes is a mapping of links, not {_kind(written)}", "see docs/jobs.md"))
        return {}
    found: dict[str, Route] = {}
    for link, entry in written.items():
        if not isinstance(entry, Mapping):
            fix = "write which records use the link: of (results, failed or late), where (module:function), or both"
            problems.append(_problem("", f"the route of {_shown(link)} is a mapping, not {_kind(entry)}", fix))
            continue
        route = Route(**_fields(Route, entry, "", problems, what=f"the route of {link}"))
        if route != Route() or link not in edges:
            found[str(link)] = route
    return found


def _fields(
    kind: type[msgspec.Struct],
    written: Mapping[Any, Any],
    task: str,
    problems: list[SardonyxError],
    skip: tuple[str, ...] = (),
    what: str = "",
) -> dict[str, Any]:
    """The values that can be read, by field; the others are added to ``problems``."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    known = {name: field for name, field in fields.items() if name not in skip}
    named = [name for name in fields if name not in _DECIDED_BY_US]
    what = what or _WHAT[kind]
    for key in written:
        if key not in known:
            hint = near(str(key), named)
            fix = f"choose from {', '.join(named)}"
            if kind is TaskSpec and key in _OF_KEYED and (key not in _OF_WINDOWS or "keyed" in written):
                fix = "write it into keyed"
            elif kind is TaskSpec and key in _OF_WINDOWS:
                fix = "write it into window"
            problems.append(_problem(task, f"{what} has no {key!r}{hint}", fix))
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name not in written:
            if field.required and not any(nearest(str(key), named) == name for key in written if key not in known):
                problems.append(_problem(task, f"{what} needs {name}", f"add {name}"))
            continue
        try:
            value = msgspec.convert(written[name], field.type)
            if value != field.default:  # a default that is written and one that is not give the same spec
                values[name] = value
        except msgspec.ValidationError as error:
            wanted = _WANTED.get(name) or _choice(field.type)
            cause = "" if wanted else str(error).replace(" - at `$`", "").replace("`", "")
            meant = nearest(written[name], _words(field.type)) if isinstance(written[name], str) else None
            hint = f"; did you mean {meant!r}?" if meant else ""
            fix = f"write {wanted}" if wanted else f"correct {name}"
            problems.append(_problem(task, f"{name} cannot be {_shown(written[name])}{hint}", fix, cause=cause))
            if meant:  # the rest is checked as it was meant: one mistake, one problem
                values[name] = meant
    return values


def _choice(kind: Any) -> str:
    """The words that a field may hold; empty if it is no choice of words."""
    return listed(_words(kind), last="or")


def _words(kind: Any) -> tuple[str, ...]:
    """The words of a choice, which a field may also leave out."""
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    return tuple(word for inner in typing.get_args(kind) for word in _words(inner))


def _plain(value: Any, at: str) -> tuple[Any, str]:
    """The value as JSON holds it (tuples become lists), and the part of it that JSON cannot hold."""
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        wrong = ""
        for key, item in value.items():
            found[key], inner = _plain(item, f"{at}.{key}")
            wrong = wrong or ("" if isinstance(key, str) else f"{at}: the key {_shown(key)}") or inner
        return found, wrong
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{at}[{index}]") for index, item in enumerate(value)]
        return [item for item, _ in items], next((inner for _, inner in items if inner), "")
    if value is None or type(value) in (str, bool, int, float):
        finite = not isinstance(value, float) or math.isfinite(value)
        fits = not isinstance(value, int) or -(2**63) <= value < 2**63
        return value, "" if finite and fits else f"{at}: {_shown(value)}"
    hint = " (write it as a text)" if isinstance(value, date) else ""
    return value, f"{at}: {_shown(value)} of type {type(value).__name__}{hint}"


def _shown(value: Any) -> str:
    return shorten(repr(value))


def _kind(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} ({_shown(value)})"


def _problem(task: str, message: str, fix: str, *, cause: str = "", code: str = "SX-JOB-FIELD") -> SardonyxError:
    message = f"task {task!r}: {message}" if task else message
    return SardonyxError(code, message, cause=cause, fix=fix, where={"task": task} if task else {})
