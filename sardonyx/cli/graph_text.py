"""A job's graph as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.changing_at import bounds_text
from sardonyx.core.conditions import condition_text
from sardonyx.core.graph import Graph
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.joining import RelationSpec
from sardonyx.core.keyed import ALL_STATES, KeyedSpec
from sardonyx.core.plan import Ending, ending_of
from sardonyx.core.spec import CycleSpec, JobSpec, OnError, Route, TaskSpec, function_of
from sardonyx.core.stores import store_text
from sardonyx.core.text import counted, shorten
from sardonyx.core.timing import TimeSpec, WindowSpec

ENDINGS: dict[Ending, str] = {
    "ends": "ends by itself",
    "marker": "ends at the end markers of its topics",
    "never": "runs until it is stopped",
}


def draw(spec: JobSpec, graph: Graph) -> list[str]:
    """The graph as an indented tree: one task a line, with a description.

    A task with several inputs is drawn below the last of them; the others point to it with an arrow.
    """
    outs: dict[str, list[str]] = {name: [] for name in graph.order}
    last_way_in: dict[str, str] = {}
    position = {name: index for index, name in enumerate(graph.order)}
    for source, target in spec.workflow:
        outs[source].append(target)
        if target not in last_way_in or position[source] > position[last_way_in[target]]:
            last_way_in[target] = source
    rows: list[tuple[str, str]] = []

    def put(name: str, lead: str, below: str) -> None:
        rows.append((lead + name, describe(spec.task(name), graph, ways_in=_ways_in(spec, name))))
        rows.extend(
            (f"{below}{'├' if outs[name] else '└'}─ ↺ {target}", feedback_text(spec, cycle, source, target))
            for cycle in spec.cycles
            for source, target in cycle.back
            if source == name
        )
        targets = sorted(outs[name], key=position.__getitem__)
        for index, target in enumerate(targets):
            last = index == len(targets) - 1
            lead_there = below + ("└─ " if last else "├─ ")
            if last_way_in[target] == name:
                put(target, lead_there, below + ("   " if last else "│  "))
            else:
                rows.append((f"{lead_there}→ {target}", ""))

    for name in graph.order:
        if name not in last_way_in:
            put(name, "", "")
    width = max(len(left) for left, _ in rows)
    return [f"{left:<{width}}  {right}".rstrip() for left, right in rows]


def feedback_text(spec: JobSpec, cycle: CycleSpec, source: str, target: str) -> str:
    """What comes back over a feedback edge: ``back in loop crawl, at most 20 times (where job:is_inside)``."""
    route = spec.route(source, target)
    most = "" if cycle.max_hops is None else f", at most {counted(cycle.max_hops, 'time')}"
    which = [*(["failed records"] if route.of == "failed" else []), *_where(route)]
    return f"back in loop {cycle.name}{most}" + (f" ({', '.join(which)})" if which else "")


def _where(route: Route) -> list[str]:
    return [f"where {condition_text(route.where)}"] if route.where else []


def headline(spec: JobSpec, graph: Graph) -> str:
    """The job in one line."""
    tasks, links = counted(len(spec.catalog), "task"), counted(len(spec.workflow), "link")
    return f"job {spec.name}: {tasks}, {links}; {ENDINGS[ending_of(spec, graph)]}"


def _ways_in(spec: JobSpec, name: str) -> list[str]:
    """What comes to a task, where that is not simply all results of the tasks before it."""
    found: list[str] = []
    for source, target in spec.workflow:
        route = spec.route(source, target)
        if target == name and route != Route():
            what = {"failed": "failed records of ", "late": "late rows of "}.get(route.of, "of ") + source
            what = " ".join([what, *_where(route)])
            found.append(what if route.bounds is None else f"{what}, rows {bounds_text(route.bounds)}")
    return found


def describe(task: TaskSpec, graph: Graph, ways_in: Sequence[str] = ()) -> str:
    """One task in one line: what it is, where its rows come from or go to, and what is not left at its default."""
    words: list[str] = [task.type]
    if task.connector:
        words.append(task.connector)
    words += [str(task.options[key]) for key in ("format", "path", "topic", "count") if key in task.options]
    if task.fn:
        words.append(f"{task.fn}{_with(task)}")
    words += [] if task.window is None else window_text(task.window)
    words += [] if task.relation is None else relation_text(task.relation)
    words += [] if task.keyed is None else keyed_text(task.keyed)
    words += [] if task.graph is None else computed_text(task.graph)
    words += [] if task.iterate is None else rounds_text(task.iterate)
    extra = list(ways_in)
    if task.time is not None:
        extra.append(_time_text(task.time))
    if task.group_by:
        extra.append(f"grouped by {task.group_by if isinstance(task.group_by, str) else ', '.join(task.group_by)}")
    if task.lifecycle:
        extra.append(f"with {task.lifecycle}")
    if task.on_error != OnError():
        again = f"after {task.on_error.retries} more runs, " if task.on_error.retries else ""
        extra.append(f"on error: {again}{task.on_error.then.replace('_', ' ')}")
    if task.max_peers:
        extra.append(f"at most {task.max_peers} peers")
    if task.min_peers > 1:
        extra.append(f"at least {task.min_peers} peers")
    if task.consumption == "sequential":
        extra.append("one peer at a time")
    if any(task in stage.fused for stage in graph.stages):
        extra.append(f"in the batches of {graph.bound[task.name][0]}")
    elif task.name in graph.bound:
        extra.append("the topic itself is the link")
    return " ".join(words) + (f" ({', '.join(extra)})" if extra else "")


def _with(task: TaskSpec) -> str:
    """The functions among the params of a task."""
    found = [reference for reference in map(function_of, task.params.values()) if reference is not None]
    return f" with {', '.join(found)}" if found else ""


def window_text(window: WindowSpec) -> list[str]:
    """Windows in a few words: ``tumbling 1 min: hits count, slowest max(ms); late: edge``."""
    lengths = [window.size, window.every, window.gap, window.most, window.unit]
    words = [window.kind, *(str(length) for length in lengths if length is not None)]
    if window.kind == "calendar":
        words.append(window.zone)
    found = [" ".join(words)]
    results = [
        f"{name} {each.of}" + (f"({each.column})" if each.column else "") for name, each in window.aggregate.items()
    ]
    if results:
        found[-1] += ":"
        found.append(", ".join(results))
    more = [f"emit {window.emit}"] if window.emit != "final" else []
    more += [] if window.accumulate else ["only what is new"]
    more += [f"grace {window.grace}"] if window.grace else []
    more += [f"corrected for {window.allowed_lateness}"] if window.allowed_lateness else []
    more += [f"late: {window.late.replace('_', ' ')}"] if window.late != "drop" else []
    more += [f"in {store_text(window.store)}"] if window.store != "memory" else []
    return _with_more(found, more)


def relation_text(relation: RelationSpec) -> list[str]:
    """A join or the like in a few words: ``left join of orders with payments within -1 min to 10 min; late: edge``."""
    what = {"join": f"{relation.how or 'inner'} join", "distinct": "distinct rows", "latest": "latest rows"}
    found = [what.get(relation.kind, relation.kind)]
    if relation.two_sided:
        found.append(f"of {relation.left} {'in' if relation.kind == 'lookup' else 'with'} {relation.right}")
    if relation.within is not None:
        within = relation.within
        found.append(f"within {f'{within[0]} to {within[-1]}' if isinstance(within, list) and within else within}")
    more = [f"emit {relation.emit}"] if relation.emit != "changes" else []
    more += ["only matches"] if relation.kind == "lookup" and relation.how == "inner" else []
    more += [f"wait {relation.wait}"] if relation.wait is not None else []
    more += [f"grace {relation.grace}"] if relation.grace else []
    more += [f"late: {relation.late.replace('_', ' ')}"] if relation.late != "drop" else []
    more += [f"in {store_text(relation.store)}"] if relation.store != "memory" else []
    return _with_more(found, more)


def computed_text(graph: GraphSpec) -> list[str]:
    """A graph in a few words: ``pagerank of the undirected graph web; edges links from src to dst; until moved 1e-08``."""
    words = " ".join([*([] if graph.directed else ["undirected"]), "graph", *([graph.graph] if graph.graph else [])])
    found = [f"{graph.algorithm.replace('_', ' ')} of the {words}"]
    more = [f"edges {graph.edges} from {graph.source} to {graph.target}"]
    more += [f"weights {graph.weight}"] if graph.weight is not None else []
    more += [f"vertices {graph.vertices}"] if graph.vertices is not None else []
    more += [f"pairs {graph.pairs}"] if graph.pairs is not None else []
    if graph.window is not None:
        more.append(f"a version each {' '.join(window_text(graph.window))}")
    more += [f"edges removed by {graph.remove}"] if graph.remove is not None else []
    more += [f"emit {graph.emit}"] if graph.emit != "all" else []
    more += [f"start {shorten(', '.join(map(str, graph.start)), 80)}"] if graph.start is not None else []
    more += [f"within {counted(graph.hops, 'hop')}"] if graph.hops is not None else []
    more += [f"until moved {graph.tolerance:g}"] if graph.tolerance is not None else []
    more += [f"state {graph.state}"] if graph.state is not None else []
    more += [f"messages {', '.join(f'{name} {how}' for name, how in graph.combine.items())}"] if graph.combine else []
    more += [f"until {graph.until}"] if graph.until is not None else []
    if graph.algorithm in ("pagerank", "label_propagation", "program"):
        more.append(f"at most {counted(graph.most, 'superstep')}")
    more += [f"in {store_text(graph.store)}"] if graph.store != "memory" else []
    return _with_more(found, more)


def rounds_text(spec: IterateSpec) -> list[str]:
    """Rounds in a few words: ``in rounds; state cluster bigint; aggregates x mean by cluster; at most 100 rounds``."""
    more = [f"state {spec.state}"] if spec.state is not None else []
    by = f" by {', '.join(spec.group_by)}" if spec.group_by else ""
    more += (
        [f"aggregates {', '.join(f'{name} {how}' for name, how in spec.aggregate.items())}{by}"]
        if spec.aggregate
        else []
    )
    more += [f"start with {counted(len(spec.start), 'row')}"] if spec.start else []
    more += [f"until {spec.until}"] if spec.until is not None else []
    more.append(f"at most {counted(spec.most, 'round')}")
    more += ["gives the aggregates"] if spec.results == "aggregates" else []
    more += [f"in {store_text(spec.store)}"] if spec.store != "memory" else []
    return _with_more(["in rounds"], more)


def keyed_text(keyed: KeyedSpec) -> list[str]:
    """Keyed state in a few words: ``with state total double; timers job:review; ttl 30 days``."""
    found = ["with state" + (f" {keyed.state}" if keyed.state else "")]
    ttl = [length if name == ALL_STATES else f"{length} of {name}" for name, length in sorted(keyed.ttl.items())]
    more = [f"timers {keyed.on_timer}"] if keyed.on_timer else []
    more += [f"ttl {', '.join(ttl)}"] if ttl else []
    more += [f"in {store_text(keyed.store)}"] if keyed.store != "memory" else []
    return _with_more(found, more)


def _with_more(found: list[str], more: Sequence[str]) -> list[str]:
    for text in more:
        found[-1] += ";"
        found.append(text)
    return found


def _time_text(time: TimeSpec) -> str:
    source = {"column": "", "kafka": "of Kafka ", "wall": "of the wall ", "ordinal": "of the number "}[time.kind]
    words = f"time {source}in {time.column}{'' if time.unit is None else f' ({time.unit})'}"
    words += f", delay {time.delay}" if time.delay != "0 s" else ""
    words += f", idle after {time.idle}" if time.idle else ""
    words += ", at rest: wall" if time.at_rest == "wall" else ""
    return words + (f", at most {time.most_ahead} ahead" if time.most_ahead else "")
