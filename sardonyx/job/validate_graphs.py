"""Checks of tasks that compute over a graph: what they read, where they begin, their numbers and columns.

A part of :mod:`sardonyx.job.validate`. What only the rows show, such as a negative weight, is found when the job runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import has_end
from sardonyx.core.graphing import DURABLE, VERSION_COLUMNS, GraphSpec
from sardonyx.core.positions import COUNTED
from sardonyx.core.spec import JobSpec, OnError, TaskSpec, database_of
from sardonyx.core.text import listed
from sardonyx.core.timing import WindowSpec
from sardonyx.job.parse import UNREAD
from sardonyx.job.validate_programs import wrong_with_program
from sardonyx.job.validate_stores import wrong_stores
from sardonyx.job.validate_windows import LENGTHS, MOST_ROWS, Wrong, inputs_of, problems_from, wrong_lengths

_MOST_SUPERSTEPS = 1_000_000

_OWN: dict[str, tuple[str, ...]] = {
    "pagerank": ("damping", "tolerance", "max_supersteps", "start", "preferences"),
    "bfs": ("start",),
    "shortest_paths": ("start", "weight"),
    "label_propagation": ("max_supersteps",),
    "common_neighbors": ("pairs",),
    "k_hop": ("start", "hops"),
    "program": (
        *("state", "first", "send", "combine", "aggregate", "until", "master", "always", "weight", "columns"),
        "max_supersteps",
    ),
}
"""Algorithm -> the fields that it may have, besides those of every graph."""
_NEEDED: dict[str, tuple[str, ...]] = {
    "bfs": ("start",),
    "shortest_paths": ("start", "weight"),
    "common_neighbors": ("pairs",),
    "k_hop": ("start", "hops"),
    "program": ("state",),
}
_EVERY = (
    *("algorithm", "graph", "edges", "source", "target", "directed", "vertices", "id", "window", "remove", "emit"),
    *("state_limit", "store", "durable"),
)


# --- One task ---------------------------------------------------------------------------------------------------------


def problems_of_task(task: TaskSpec) -> Iterator[SardonyxError]:
    """What is wrong with the graph of one task, as far as it alone tells."""
    graph = task.graph
    if graph is None:
        return
    found = [*_task(task, graph), *_durable(task, graph), *wrong_with_program(task, graph)]
    for rule in (_fields_of_algorithm, _numbers, _start, _columns, _versions, _state):
        found += rule(graph)
    yield from problems_from(task, found)


def _task(task: TaskSpec, graph: GraphSpec) -> Iterator[Wrong]:
    apart = "make it a task of its own, before or after this one"
    if task.type != "function":
        yield Wrong("SX-GRAPH-TASK", f"it computes over a graph, but is an {task.type}", "make it a task of its own")
    others: dict[str, object] = {
        "windows": task.window,
        "a state of its own": task.keyed,
        "a join or the like": task.relation,
    }
    others |= {"a function": None if graph.algorithm == "program" else task.fn, "a lifecycle": task.lifecycle}
    for what, other in others.items():
        if other is not None:
            yield Wrong("SX-GRAPH-TASK", f"it computes over a graph, and has {what} as well", apart)
    if task.group_by:
        yield Wrong("SX-GRAPH-TASK", "it computes over a graph, which has no key", "remove group_by")
    if task.consumption == "sequential":
        cause = "all rows of a graph go to one peer anyway"
        yield Wrong("SX-GRAPH-TASK", "it computes over a graph, so it cannot be sequential", "remove sequential", cause)
    if task.on_error != OnError():
        yield Wrong(
            "SX-GRAPH-TASK",
            "it computes over a graph, and has on_error",
            "remove on_error, and leave bad rows out in the task before",
            "without a bad row the graph would be another one, and so would every result",
        )


def _durable(task: TaskSpec, graph: GraphSpec) -> Iterator[Wrong]:
    """What stands in the way of several peers."""
    if not graph.durable:
        if task.max_peers is not None and task.max_peers > 1:
            fix = "set max_peers to 1, or durable to true: then vertices are divided among the partitions of the task's queues"
            yield Wrong("SX-GRAPH-PEERS", "one peer computes over its graph, and max_peers allows more", fix)
        return
    if graph.algorithm not in DURABLE:
        yield Wrong(
            "SX-GRAPH-PEERS",
            f"several peers cannot compute {graph.algorithm} together",
            "give the graph a max_peers of 1",
            f"of a graph with a greater max_peers they compute {listed(DURABLE)}",
        )
    if graph.window is not None:
        fix = "give the graph a max_peers of 1, or no window"
        yield Wrong("SX-GRAPH-PEERS", "several peers cannot compute over a graph that changes", fix)
    if database_of(task) is not None:
        cause = "a database commits rows before Kafka does, and messages go between peers in Kafka"
        fix = 'give it store="memory" or "rocksdb", or a max_peers of 1'
        yield Wrong(
            "SX-GRAPH-PEERS", "several peers cannot compute over a graph whose state is in a database", fix, cause
        )


def _fields_of_algorithm(graph: GraphSpec) -> Iterator[Wrong]:
    defaults = GraphSpec(algorithm=graph.algorithm, edges="", source="", target="")
    own = _OWN.get(graph.algorithm, ())
    for name in GraphSpec.__struct_fields__:
        if name not in (*_EVERY, *own) and getattr(graph, name) != getattr(defaults, name):
            others = listed(algorithm for algorithm, fields in _OWN.items() if name in fields)
            yield Wrong("SX-GRAPH-TASK", f"{graph.algorithm} has no {name}", f"remove {name}; it belongs to {others}")
    for name in _NEEDED.get(graph.algorithm, ()):
        if getattr(graph, name) is None:
            yield Wrong("SX-GRAPH-TASK", f"{graph.algorithm} needs {name}", f"give {name}=")


def _numbers(graph: GraphSpec) -> Iterator[Wrong]:
    if not 0 <= graph.damping <= 1:
        yield Wrong("SX-GRAPH-NUMBER", f"damping cannot be {graph.damping:g}", "give a number from 0 to 1")
    if graph.tolerance is not None and not 0 < graph.tolerance < math.inf:
        yield Wrong("SX-GRAPH-NUMBER", f"tolerance cannot be {graph.tolerance:g}", "give more than 0, such as 1e-8")
    for name in ("max_supersteps", "hops"):
        value = getattr(graph, name)
        if value is not None and not 1 <= value <= _MOST_SUPERSTEPS:
            fix = f"give 1 or more, and at most {_MOST_SUPERSTEPS:,}"
            yield Wrong("SX-GRAPH-NUMBER", f"{name} cannot be {value}", fix)


def _start(graph: GraphSpec) -> Iterator[Wrong]:
    start, wished = graph.start, graph.preferences
    if start is not None and not start:
        yield Wrong("SX-GRAPH-START", "start has no vertex", "name one or more")
    if start is not None and len({type(each) for each in start}) > 1:
        fix = "give all of them as the graph has them"
        yield Wrong("SX-GRAPH-START", "some vertices in start are numbers and others texts", fix)
    if any(isinstance(each, int) and not -(2**63) <= each < 2**63 for each in start or ()):
        yield Wrong("SX-GRAPH-START", "a vertex in start has more than 64 bits", "name a vertex of the graph")
    if wished is None:
        return
    if start is None or len(start) != len(wished):
        yield Wrong(
            "SX-GRAPH-START",
            f"there are {len(wished)} preferences for {len(start or ())} vertices in start",
            "give start as a mapping from vertices to how much each is preferred",
        )
    if any(not 0 <= each < math.inf for each in wished) or not 0 < sum(wished) < math.inf:
        yield Wrong("SX-GRAPH-START", "the preferences in start are not shares", "give 0 or more each, and one above 0")


def _columns(graph: GraphSpec) -> Iterator[Wrong]:
    named = [graph.source, graph.target, *(each for each in (graph.weight, graph.remove) if each is not None)]
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice and twice[0] != UNREAD:
        fix = "name a column each: source=, target=, weight= and remove="
        yield Wrong("SX-GRAPH-COLUMN", f"{twice[0]!r} is two columns of an edge at once", fix)
    if not all([*named, graph.id]):
        yield Wrong("SX-GRAPH-COLUMN", "the name of a column is empty", "name the column")
    results = graph.results
    of_us = VERSION_COLUMNS if graph.algorithm == "program" else results  # the check of programs looks at the others
    for name in sorted({name for name in of_us if results.count(name) > 1}):
        fix = 'rename the column in the task before, or give id="vertex" or the like'
        yield Wrong("SX-GRAPH-COLUMN", f"two columns of its results would be called {name!r}", fix)


def _versions(graph: GraphSpec) -> Iterator[Wrong]:
    """Windows of a graph follow one another, and each gives one version."""
    code, window = "SX-GRAPH-WINDOW", graph.window
    if window is None:
        for name, given in (("remove", graph.remove is not None), ("emit", graph.emit != "all")):
            if given:
                fix = f'give window=, such as tumbling("10 s"), or remove {name}'
                yield Wrong(
                    code, f"its graph has {name}, but no windows", fix, "a graph without windows has one version"
                )
        return
    if graph.algorithm == "common_neighbors":
        fix = "use another algorithm, or remove window"
        yield Wrong(code, "common_neighbors cannot be computed of each version of a graph", fix)
    if window == WindowSpec(kind="everything", emit="changes"):  # it stands for windows that cannot be read
        return
    if window.kind not in ("tumbling", "calendar"):
        yield Wrong(
            code,
            f"its graph cannot have {window.kind} windows",
            'use tumbling("10 s") or calendar("day"); leave window out if all edges are one graph',
            "each window makes one version out of the one before it, so windows must follow one another",
        )
        return
    defaults = WindowSpec(kind=window.kind)
    for name in WindowSpec.__struct_fields__:
        if name not in ("kind", *LENGTHS, "unit", "zone") and getattr(window, name) != getattr(defaults, name):
            fix = f"remove {name} from window; see docs/graphs.md for what a graph with windows may have"
            yield Wrong(code, f"the windows of its graph have no {name}", fix)
    yield from wrong_lengths(window)


def _state(graph: GraphSpec) -> Iterator[Wrong]:
    for wrong in wrong_stores(graph.store):
        yield Wrong("SX-WINDOW-STORE", *wrong)
    if graph.state_limit is not None and not 1 <= graph.state_limit <= MOST_ROWS:
        fix = f"give 1 entry or more, and at most {MOST_ROWS:,}"
        yield Wrong("SX-WINDOW-STORE", f"state_limit cannot be {graph.state_limit}", fix)


# --- Rules about several tasks ----------------------------------------------------------------------------------------


def problems_of_graphs(spec: JobSpec) -> Iterator[SardonyxError]:
    """What is wrong between graphs and the tasks before them."""
    for task in spec.catalog:
        if task.graph is not None:
            yield from problems_from(task, _among(spec, task, task.graph))


def _among(spec: JobSpec, task: TaskSpec, graph: GraphSpec) -> Iterator[Wrong]:
    before = [source for source, target in spec.workflow if target == task.name]
    if graph.vertices == graph.edges:
        fix = "let a task come between for the vertices, or leave them out: every edge names two"
        yield Wrong("SX-GRAPH-INPUT", f"both its edges and its vertices are {graph.edges!r}", fix)
    elif sorted(set(before)) != sorted(graph.reads) and UNREAD not in graph.reads:
        yield Wrong(
            "SX-GRAPH-INPUT",
            f"its graph is made of {listed(map(repr, graph.reads))}, and {listed(map(repr, before)) or 'nothing'} "
            "comes before it",
            "let exactly the tasks with its edges, vertices and pairs come before it",
        )
    if graph.durable and spec.lineage:
        cause = "lineage says up to where rows have gone through a job, and messages of a graph go round"
        fix = "remove lineage, or give the graph a max_peers of 1"
        yield Wrong(
            "SX-GRAPH-PEERS", "several peers cannot compute over a graph in a job that keeps its lineage", fix, cause
        )
    after = [target for source, target in spec.workflow if source == task.name]
    if graph.durable and len(after) >= COUNTED:
        cause = f"it counts the rows of {COUNTED} queues at most, and one of them is for its own messages"
        fix = "let fewer tasks come after it, or give the graph a max_peers of 1"
        yield Wrong("SX-GRAPH-PEERS", f"{len(after)} tasks come after a graph that several peers compute", fix, cause)
    if graph.window is not None:
        return
    endless = [each.name for each in inputs_of(spec, task.name) if not has_end(each)]
    if endless:
        yield Wrong(
            "SX-GRAPH-ENDLESS",
            "it would never give a result",
            'give the input an end, such as end="latest"; or give the graph windows, such as window=tumbling("10 s")',
            f"it computes when all edges are there, and input {endless[0]!r} has no end",
        )


__all__ = ["problems_of_graphs", "problems_of_task"]
