"""From the rows of a graph to the rows of a result, by a program of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sardonyx.core.graphing import GraphSpec
from sardonyx.graphs.compute import Computed, Graph, Reason
from sardonyx.graphs.program import Functions, Rules, Superstep, Vertex, VertexProgram, Wrong
from sardonyx.graphs.rows import COLUMN, SOURCE, TARGET, VERTEX, WEIGHT, Vertices
from sardonyx.graphs.shards import Edges, Shards
from sardonyx.graphs.tables import TableProgram
from sardonyx.graphs.vertex_run import ClassProgram

Guard = Callable[..., Any]
"""Calls a function of the user's: given its name, itself, and its arguments. It makes errors for people of what that raises."""


def unguarded(name: str, fn: Callable[..., Any], *args: Any) -> Any:  # noqa: ARG001
    """Calls a function; what it raises stays as it is."""
    return fn(*args)


class Program(NamedTuple):
    """What the user has written, as objects.

    ``update``: a function of tables, or a class derived from :class:`~sardonyx.graphs.program.VertexProgram`; ``params``: further
    arguments of all functions, each of which is given those that it names.
    """

    update: Callable[..., Any]
    send: Callable[..., Any] | None = None
    master: Callable[..., Any] | None = None
    params: Mapping[str, Any] = {}
    guard: Guard = unguarded


def is_class(update: object) -> bool:
    """Whether a program has the form of a class."""
    return isinstance(update, type) and issubclass(update, VertexProgram)


def run_program(spec: GraphSpec, graph: Graph, program: Program, shards: int = 1) -> Computed:
    """Run a program.

    Args:
        spec: the task.
        graph: all rows that it reads.
        program: what the user wrote.
        shards: into how many the edges are divided. It changes no bit of the result, if the functions treat each row by itself.

    Raises:
        FunctionError: ``SX-GRAPH-RESULT``, ``SX-GRAPH-ID``, ``SX-GRAPH-VERTEX``; what the guard makes of others.
    """
    rows, columns = _in_order(spec, graph.edges)
    named = [rows[SOURCE], rows[TARGET]] + ([] if graph.vertices is None else [graph.vertices[VERTEX]])
    vertices = Vertices(named)
    edges = Edges(len(vertices), vertices.column(0), vertices.column(1), np.arange(rows.num_rows))
    parts = Shards(edges if spec.directed else edges.both_ways(), shards)
    rules = Rules(spec, Wrong(_master_name(program)), _master_of(program), len(vertices), rows.num_rows)
    running: TableProgram | ClassProgram
    if is_class(program.update):
        running = _of_class(spec, program, rules, vertices.ids, parts, columns)
    else:
        running = _of_tables(spec, program, rules, vertices.ids, parts, columns)
    supersteps, reason = running.run()
    given = pa.table({spec.id: vertices.ids, **running.columns()})
    return Computed(given, len(vertices), rows.num_rows, supersteps, cast("Reason", reason), aggregates=rules.last)


def _in_order(spec: GraphSpec, edges: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The edges in an order that follows from what they bear, and the columns that they bear, by the user's names."""
    own = {name: name.removeprefix(COLUMN) for name in edges.column_names if name.startswith(COLUMN)}
    if spec.weight is not None:
        own = {WEIGHT: spec.weight} | own
    keys = [SOURCE, TARGET, *(name for name in own if not pa.types.is_nested(edges[name].type))]
    if edges.num_rows:
        edges = edges.take(pc.sort_indices(edges, [(name, "ascending") for name in keys]))
    return edges, pa.table({name: _one(edges[column]) for column, name in own.items()})


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _of_tables(
    spec: GraphSpec, program: Program, rules: Rules, ids: pa.Array, parts: Shards, columns: pa.Table
) -> TableProgram:
    send = program.send
    functions = Functions(bound(program, program.update), None if send is None else bound(program, send))
    names = (name_of(program.update), "send" if send is None else name_of(send))
    return TableProgram(spec, functions, names, rules, ids, parts, columns)


def _of_class(
    spec: GraphSpec, program: Program, rules: Rules, ids: pa.Array, parts: Shards, columns: pa.Table
) -> ClassProgram:
    name, guard = f"{name_of(program.update)}.compute", program.guard
    user: VertexProgram = guard(name_of(program.update), _made, program.update)
    user.params = dict(program.params)

    def call(vertex: Vertex, messages: Iterator[Any]) -> None:
        guard(name, user.compute, vertex, messages)

    return ClassProgram(spec, user, name, call, rules, ids, parts, columns)


def _made(program: type[VertexProgram]) -> VertexProgram:
    made = program()
    if not hasattr(made, "_sent"):  # its __init__ does not call that of the base
        VertexProgram.__init__(made)
    return made


def _master_of(program: Program) -> Callable[[Superstep], Any] | None:
    return None if program.master is None else bound(program, program.master)


def _master_name(program: Program) -> str:
    return "master" if program.master is None else name_of(program.master)


def name_of(fn: Callable[..., Any]) -> str:
    """A function's name, for people."""
    return str(getattr(fn, "__name__", fn))


STEP = "step"
"""The parameter that is given the superstep."""


def bound(program: Program, fn: Callable[..., Any], second: str = STEP) -> Callable[..., Any]:
    """A function of a program, with the params that it names. A second argument goes to its parameter ``second``, if any."""
    others = list(inspect.signature(fn).parameters.values())[1:]
    named = {each.name for each in others}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in others)
    given = {name: value for name, value in program.params.items() if takes_any or name in named}
    takes_second = second in named

    def call(first: Any, value: Any = None) -> Any:
        more = {**given, second: value} if takes_second else given
        return program.guard(name_of(fn), partial(fn, **more), first)

    return call


__all__ = ["STEP", "Guard", "Program", "bound", "is_class", "name_of", "run_program", "unguarded"]
