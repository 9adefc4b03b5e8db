"""A job as written (by the builder, in YAML, TOML or JSON) -> a :class:`JobSpec`. Strict, and reports every mistake at once.

What cannot be read is reported and left at its default, so that the rest can still be validated and reported with it.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from sardonyx.connectors import declarations
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graphing import GraphAlgorithm, GraphSpec
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.joining import RelationKind, RelationSpec
from sardonyx.core.keyed import ALL_STATES, KeyedSpec
from sardonyx.core.spec import CycleSpec, JobSpec, OnError, Route, TaskSpec, late_policy
from sardonyx.core.stores import SqlStore
from sardonyx.core.text import listed, near, nearest
from sardonyx.core.timing import MOST_AHEAD, AggregateKind, AggregateSpec, TimeSpec, WindowSpec
from sardonyx.job.parse_fields import DECIDED_BY_US, fields_of, kind_of, plain, problem, shown

_ON_ERROR = ("fail", "retry_task", "skip", "dead_letter")
_ALSO_CALLED = {
    "sliding": "hopping",
    "fixed": "tumbling",
    "sessions": "session",
    "global": "everything",
    "count": "counted",
}
"""What other systems call a kind of windows."""
_RELATIONS = typing.get_args(RelationKind)
_ALGORITHMS = typing.get_args(GraphAlgorithm)
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
            problem("", f"a job is a mapping with name, workflow and catalog, not {kind_of(data)}", "see docs/jobs.md")
        ]
    entries = data.get("catalog", [])
    catalog: list[TaskSpec] = []
    if isinstance(entries, list):
        catalog = [_task(entry, index, base, problems) for index, entry in enumerate(entries)]
    else:
        problems.append(problem("", f"catalog is a list of tasks, not {kind_of(entries)}", "see docs/jobs.md"))
    rest = {key: value for key, value in data.items() if key not in ("catalog", "routes", "cycles")}
    cycles = list(_cycles(data.get("cycles", []), problems))
    if "workflow" in rest:
        rest["workflow"] = list(_edges(rest["workflow"], problems))
    fields = fields_of(JobSpec, rest, "", problems, skip=("catalog", "routes", "cycles", *DECIDED_BY_US))
    workflow = fields.pop("workflow", [])
    edges = [*workflow, *(edge for cycle in cycles for edge in cycle.back)]
    routes = _routes(data.get("routes", {}), {f"{source}.{target}" for source, target in edges}, problems)
    catalog = [_with_late_edge(task, routes, problems) for task in catalog]
    position = {task.name: index for index, task in reversed(list(enumerate(catalog)))}
    last = len(catalog)

    def rank(edge: tuple[str, str]) -> tuple[int, int]:
        return position.get(edge[1], last), position.get(edge[0], last)

    workflow.sort(key=rank)
    cycles = [msgspec.structs.replace(cycle, back=sorted(cycle.back, key=rank)) for cycle in cycles]
    fields = {"name": "unnamed", **fields, "routes": routes, "cycles": cycles}
    return JobSpec(**fields, workflow=workflow, catalog=catalog), problems


def unread_workflow(problems: list[SardonyxError]) -> bool:
    """Whether a part of the workflow could not be read, so that what it leaves out is not a mistake of its own."""
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
                problems.append(_not_an_edge(f"workflow: an edge is a pair of tasks, not {kind_of(edge)}"))
    else:
        problems.append(_not_an_edge(f"workflow is a list of edges or a nested map, not {kind_of(written)}"))


def _cycles(written: object, problems: list[SardonyxError]) -> Iterator[CycleSpec]:
    """The loops: a list of mappings, each with its feedback edges, as pairs of tasks or a nested map."""
    if not isinstance(written, list | tuple):
        problems.append(problem("", f"cycles is a list of loops, not {kind_of(written)}", "see docs/cycles.md"))
        return
    for index, entry in enumerate(written):
        if not isinstance(entry, Mapping):
            fix = "write a mapping, such as {name: crawl, back: [[fresh, fetch]], max_hops: 20}"
            problems.append(problem("", f"entry {index + 1} of cycles is a mapping, not {kind_of(entry)}", fix))
            continue
        back = list(_edges(entry["back"], problems)) if "back" in entry else []
        fields = fields_of(CycleSpec, dict(entry) | ({"back": back} if "back" in entry else {}), "", problems)
        yield CycleSpec(**{"name": f"entry-{index + 1}", "back": back, **fields})


def _nested(written: Mapping[Any, Any], problems: list[SardonyxError]) -> Iterator[tuple[str, str]]:
    for source, after in written.items():
        for target in after if isinstance(after, list | tuple) else [after]:
            names = list(target) if isinstance(target, Mapping) else [target]
            for name in names:
                if isinstance(source, str) and isinstance(name, str):
                    yield source, name
                else:
                    wrong = f"after {shown(source)} comes a task, a list of tasks or a map of them, not {kind_of(name)}"
                    problems.append(_not_an_edge(f"workflow: {wrong}"))
            if isinstance(target, Mapping):
                yield from _nested(target, problems)


def _not_an_edge(message: str) -> SardonyxError:
    return SardonyxError("SX-JOB-FIELD", message, fix=_WORKFLOW, where={"field": "workflow"})


def _task(entry: object, index: int, base: Path | None, problems: list[SardonyxError]) -> TaskSpec:
    if not isinstance(entry, Mapping):
        problems.append(
            problem("", f"entry {index + 1} of catalog is a mapping, not {kind_of(entry)}", "see docs/jobs.md")
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
    for key, reads in (("relation", _relation), ("graph", _graph), ("iterate", _iterate), ("keyed", _keyed)):
        if written.get(key) is not None:
            written[key] = reads(written[key], base, name, problems)
    if isinstance(written.get("group_by"), str) and ":" not in written["group_by"]:
        written["group_by"] = [written["group_by"]]
    if isinstance(written.get("options"), Mapping):
        connector = str(written.get("connector"))
        options = declarations.normal(connector, written["options"])
        written["options"] = declarations.absolute(connector, options, base) if base else options
    for key in ("params", "options"):
        if key in written:
            written[key], wrong = plain(written[key], key)
            if wrong:
                code = "SX-JOB-PARAMS" if key == "params" else "SX-JOB-CONNECTOR"
                fix = "use texts, numbers, true and false, null, lists, and mappings with texts as keys"
                problems.append(problem(name, f"{wrong} cannot be sent with the job", fix, code=code))
                written.pop(key)
    fields = fields_of(TaskSpec, written, name, problems)
    task = _settled(TaskSpec(**{"name": name, "type": "function", **fields}))
    if task.time is None or task.time.kind != "column" or task.time.ahead is not None or task.connector != "kafka":
        return task
    # The spec says it, and not its default: a job that runs goes on by what it was submitted with.
    return msgspec.structs.replace(task, time=msgspec.structs.replace(task.time, ahead=MOST_AHEAD))


def _settled(task: TaskSpec) -> TaskSpec:
    """An output with ``on_error`` has batches of its own. The spec says so: a job that runs is what it was submitted as."""
    bound = task.type == "output" and task.connector == "kafka" and task.fn is None and not task.fuse
    if bound and task.on_error != OnError() and "independent" not in task.options:
        return msgspec.structs.replace(task, options={**task.options, "independent": True})
    return task


def _on_error(written: object, task: str, problems: list[SardonyxError]) -> OnError:
    """A mapping, or only the word for ``then``."""
    if isinstance(written, str):
        written = {"then": written}
    if not isinstance(written, Mapping):
        fix = f"write {listed(_ON_ERROR, last='or')}, or a mapping with retries, backoff and then"
        problems.append(problem(task, f"on_error cannot be {shown(written)}", fix))
        return OnError()
    then = written.get("then")
    if isinstance(then, str) and then not in _ON_ERROR:
        fix = f"write {listed(_ON_ERROR, last='or')}"
        problems.append(problem(task, f"on_error cannot be {shown(then)}{near(then, _ON_ERROR)}", fix))
        written = {key: value for key, value in written.items() if key != "then"}
    return OnError(**fields_of(OnError, written, task, problems))


def _time(written: object, task: str, problems: list[SardonyxError]) -> TimeSpec:
    """A mapping, or only the name of the column."""
    if isinstance(written, str):
        written = {"column": written}
    if not isinstance(written, Mapping):
        fix = "write the name of a column, or a mapping with column, kind, delay and what else docs/time.md lists"
        problems.append(problem(task, f"time cannot be {shown(written)}", fix))
        return TimeSpec(column=UNREAD)
    return TimeSpec(**{"column": UNREAD, **fields_of(TimeSpec, written, task, problems)})


def _window(
    written: object, aggregate: object, base: Path | None, task: str, problems: list[SardonyxError]
) -> WindowSpec:
    """A mapping, or only the kind; ``aggregate``: what stands beside it, which may stand in it as well."""
    if isinstance(written, str):
        written = {"kind": written}
    if not isinstance(written, Mapping):
        fix = "write a mapping with kind, such as {kind: tumbling, size: 1 min}"
        problems.append(problem(task, f"window cannot be {shown(written)}", fix))
        written = {"kind": "everything", "emit": "changes"}
    if aggregate is not None and "aggregate" in written:
        problems.append(problem(task, "aggregate stands in window and beside it", "write it once"))
    given = dict(written) if aggregate is None else {**written, "aggregate": aggregate}
    kind = given.get("kind")
    if isinstance(kind, str) and kind in _ALSO_CALLED:
        meant = _ALSO_CALLED[kind]
        problems.append(
            problem(task, f"kind cannot be {kind!r}; here such windows are called {meant}", f"write {meant}")
        )
        given["kind"] = meant
    if isinstance(given.get("store"), Mapping):
        given["store"] = _store(given["store"], base, task, problems)
    if isinstance(given.get("aggregate"), Mapping):
        given["aggregate"] = {  # in the order in which JSON has it, so that results have the same columns everywhere
            str(column): _aggregate(str(column), entry, task, problems)
            for column, entry in sorted(given["aggregate"].items(), key=lambda item: str(item[0]))
        }
    fields = fields_of(WindowSpec, given, task, problems)
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
        problems.append(problem(task, f"relation cannot be {shown(written)}", fix))
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
        problems.append(problem(task, f"kind cannot be {kind!r}{near(kind, _RELATIONS)}", fix))
        given["kind"] = "distinct"
    return RelationSpec(**{"kind": "distinct", **fields_of(RelationSpec, given, task, problems)})


_UNREAD_OF_GRAPHS: tuple[tuple[str, Any], ...] = (
    ("start", [UNREAD]),
    ("weight", UNREAD),
    ("pairs", UNREAD),
    ("hops", 1),
    ("state", UNREAD),
)
"""By field of a graph, what stands for a value that cannot be read."""


def _graph(written: object, base: Path | None, task: str, problems: list[SardonyxError]) -> GraphSpec:
    """A mapping. In it ``start`` may be one vertex, or a mapping from vertices to how much each is preferred."""
    if not isinstance(written, Mapping):
        fix = "write a mapping with algorithm, edges, source and target"
        problems.append(problem(task, f"graph cannot be {shown(written)}", fix))
        written = {}
    given = dict(written)
    start = given.get("start")
    if isinstance(start, Mapping):
        given["start"], given["preferences"] = list(start), list(start.values())
    elif isinstance(start, int | str) and not isinstance(start, bool):
        given["start"] = [start]
    elif isinstance(start, tuple | set | frozenset):
        given["start"] = list(start)
    if isinstance(given.get("first"), Mapping):  # JSON has no infinite numbers
        given["first"] = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in given["first"].items()
        }
    if isinstance(given.get("columns"), str):
        given["columns"] = [given["columns"]]
    if isinstance(given.get("store"), Mapping):
        given["store"] = _store(given["store"], base, task, problems)
    if given.get("window") is not None:
        given["window"] = _window(given["window"], None, base, task, problems)
    algorithm = given.get("algorithm")
    if isinstance(algorithm, str) and algorithm not in _ALGORITHMS:
        fix = f"choose from {listed(_ALGORITHMS)}"
        problems.append(problem(task, f"algorithm cannot be {algorithm!r}{near(algorithm, _ALGORITHMS)}", fix))
        given["algorithm"] = "degrees"
    fields = fields_of(GraphSpec, given, task, problems)
    for name, some in _UNREAD_OF_GRAPHS:
        if given.get(name) is not None:  # what cannot be read is not missing as well
            fields.setdefault(name, some)
    return GraphSpec(**{"algorithm": "degrees", "edges": UNREAD, "source": UNREAD, "target": UNREAD, **fields})


def _iterate(written: object, base: Path | None, task: str, problems: list[SardonyxError]) -> IterateSpec:
    """A mapping. In it ``group_by`` may be one column, and ``start`` one row."""
    if not isinstance(written, Mapping):
        fix = "write a mapping, such as {state: cluster bigint, group_by: cluster, aggregate: {x: mean}}"
        problems.append(problem(task, f"iterate cannot be {shown(written)}", fix))
        return IterateSpec(state=UNREAD)
    given = dict(written)
    if isinstance(given.get("group_by"), str):
        given["group_by"] = [given["group_by"]]
    if isinstance(given.get("start"), Mapping):
        given["start"] = [given["start"]]
    given |= {key: dict(sorted(given[key].items())) for key in ("aggregate",) if isinstance(given.get(key), Mapping)}
    if isinstance(given.get("store"), Mapping):
        given["store"] = _store(given["store"], base, task, problems)
    found = fields_of(IterateSpec, given, task, problems)
    for name, some in (("state", UNREAD), ("aggregate", {UNREAD: "count"}), ("group_by", [UNREAD])):
        if given.get(name):  # what cannot be read is not missing as well
            found.setdefault(name, some)
    return IterateSpec(**found)


def _keyed(written: object, base: Path | None, task: str, problems: list[SardonyxError]) -> KeyedSpec:
    """A mapping; ``ttl`` in it may be a duration, which is meant for all states."""
    if not isinstance(written, Mapping):
        fix = "write a mapping, such as {ttl: 30 days}; {} if nothing is to be said"
        problems.append(problem(task, f"keyed cannot be {shown(written)}", fix))
        return KeyedSpec()
    given = dict(written)
    if isinstance(given.get("ttl"), str):
        given["ttl"] = {ALL_STATES: given["ttl"]}
    if isinstance(given.get("store"), Mapping):
        given["store"] = _store(given["store"], base, task, problems)
    return KeyedSpec(**fields_of(KeyedSpec, given, task, problems))


def _store(
    written: Mapping[Any, Any], base: Path | None, task: str, problems: list[SardonyxError]
) -> SqlStore | Literal["memory"]:
    """A database as the store of a task: ``{sql: address}``, with ``user`` and ``password_env`` if need be."""
    said = {"url" if key == "sql" else str(key): value for key, value in written.items()}
    given = declarations.normal("sql", said)
    fields = fields_of(SqlStore, declarations.absolute("sql", given, base) if base else given, task, problems)
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
        problems.append(problem(task, f"{what} cannot be {shown(written)}", _AS_COLUMN))
        return AggregateSpec(of="count")
    given, wrong = dict(written), ""
    if isinstance(given.get("options"), Mapping):
        given["options"], wrong = plain(given["options"], what)
    if wrong:
        problems.append(problem(task, f"{wrong} cannot be sent with the job", "write a number"))
        return AggregateSpec(of="count")
    fields = fields_of(AggregateSpec, given, task, problems, what=what)
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
        problems.append(problem(task.name, message, fix, code="SX-WINDOW-LATE"))
    if task.relation is not None:
        task = msgspec.structs.replace(task, relation=msgspec.structs.replace(task.relation, late="edge"))
    if task.window is not None:
        task = msgspec.structs.replace(task, window=msgspec.structs.replace(task.window, late="edge"))
    return task


def _routes(written: object, edges: set[str], problems: list[SardonyxError]) -> dict[str, Route]:
    """Conditions by link. An empty one is left out, so that equal jobs give equal specs."""
    if not isinstance(written, Mapping):
        problems.append(problem("", f"routes is a mapping of links, not {kind_of(written)}", "see docs/jobs.md"))
        return {}
    found: dict[str, Route] = {}
    for link, entry in written.items():
        if not isinstance(entry, Mapping):
            fix = "write which records use the link: of (results, failed or late), where (a condition), or both"
            problems.append(problem("", f"the route of {shown(link)} is a mapping, not {kind_of(entry)}", fix))
            continue
        route = _route(str(link), entry, problems)
        if route != Route() or link not in edges:
            found[str(link)] = route
    return found


def _route(link: str, written: Mapping[Any, Any], problems: list[SardonyxError]) -> Route:
    what, given = f"the route of {link}", dict(written)
    if isinstance(given.get("where"), Mapping):
        given["where"], wrong = plain(given["where"], "where")
        if wrong:
            fix = "use texts, numbers, true and false, null, lists, and mappings with texts as keys"
            problems.append(problem("", f"{what}: {wrong} cannot be sent with the job", fix, code="SX-JOB-PARAMS"))
            del given["where"]
    return Route(**fields_of(Route, given, "", problems, DECIDED_BY_US, what))
