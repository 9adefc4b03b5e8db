"""Checks of users' programs over graphs: their words and names, and whether their functions fit.

A part of :mod:`sardonyx.job.validate`. What functions return is only known when the job runs.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sardonyx.core.errors import FunctionError, SardonyxError
from sardonyx.core.graphing import (
    ACTIVE,
    OUT_DEGREE,
    SEND,
    ColumnType,
    Combiner,
    GraphSpec,
    Reducer,
    read_columns,
    read_combine,
    read_until,
)
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.text import listed, near, shorten
from sardonyx.job.parse import UNREAD
from sardonyx.job.validate_edges import located, problem
from sardonyx.job.validate_windows import Wrong
from sardonyx.runtime import functions as fns

Find = Callable[[str], Callable[..., Any]]

_TYPES = typing.get_args(ColumnType)
_COMBINERS = typing.get_args(Combiner)
_REDUCERS = typing.get_args(Reducer)
_CODE = "SX-GRAPH-PROGRAM"
_STEP = "step"


def wrong_with_program(task: TaskSpec, graph: GraphSpec) -> Iterator[Wrong]:
    """What is wrong with a program, as far as its task alone tells."""
    if graph.algorithm != "program":
        return
    if task.fn is None:
        yield Wrong(_CODE, "it is a program without a function", "give it update, or in a job file fn: module:function")
    if graph.send is not None and not graph.combine:
        fix = 'name each column that send returns: combine={"via": "min double"}'
        yield Wrong(_CODE, "it has send, and combine does not say what becomes of messages", fix)
    yield from wrong_state(_CODE, graph.state)
    for rule in (_first, _combine, _names):
        yield from rule(graph)
    yield from wrong_until(_CODE, graph.until, graph.aggregate, "; what is more belongs into master")


def wrong_state(code: str, state: str | None) -> Iterator[Wrong]:
    """What is wrong with the columns of a state."""
    if state is None or state == UNREAD:
        return
    columns = read_columns(state)
    fix = f'write each name once, with its type, such as "distance double, hops bigint"; types are {listed(_TYPES)}'
    if columns is None:
        yield Wrong(code, f"state cannot be {shorten(repr(state), 200)}", fix)
        return
    for name, type_ in columns.items():
        if type_ not in _TYPES:
            yield Wrong(code, f"{name!r} of state cannot be {type_!r}{near(type_, _TYPES)}", fix)


def _first(graph: GraphSpec) -> Iterator[Wrong]:
    columns = read_columns(graph.state or "") or {}
    for name, value in graph.first.items():
        if name not in columns:
            fix = f"name columns of the state: {listed(columns)}"
            yield Wrong(_CODE, f"first names {name!r}, which is not in state{near(name, columns)}", fix)
        elif not _fits(value, columns[name]):
            fix = "give a value of that type, or leave it out: then the state is null at first"
            yield Wrong(_CODE, f"{name!r} cannot be {shorten(repr(value), 100)} at first: it is {columns[name]}", fix)


def _fits(value: object, type_: str) -> bool:
    if type_ == "double":
        return (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("inf", "-inf", "nan")
    if type_ == "bigint":
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, bool if type_ == "boolean" else str)


def _combine(graph: GraphSpec) -> Iterator[Wrong]:
    for name, text in graph.combine.items():
        how, type_ = read_combine(text)
        fix = f'write how and the type, such as "min double"; choose from {listed(_COMBINERS)}, and {listed(_TYPES)}'
        if how not in _COMBINERS or type_ not in _TYPES:
            yield Wrong(_CODE, f"messages {name!r} cannot be combined by {shorten(repr(text), 100)}", fix)
        elif how == "sum" and type_ in ("string", "boolean"):
            yield Wrong(_CODE, f"messages {name!r} have no sum: they are {type_}", 'write "min", "max" or "collect"')


def wrong_until(code: str, text: str | None, aggregate: Mapping[str, str], more: str) -> Iterator[Wrong]:
    """What is wrong with aggregates, and with a condition that names one of them; ``more``: what else is possible."""
    for name, how in aggregate.items():
        if how not in _REDUCERS:
            fix = f"choose from {listed(_REDUCERS)}"
            yield Wrong(code, f"aggregate {name!r} cannot be {how!r}{near(how, _REDUCERS)}", fix)
    if text is None or text == UNREAD:
        return
    until = read_until(text)
    if until is None:
        fix = f'compare an aggregate with a number, such as "moved <= 1e-8"{more}'
        yield Wrong(code, f"until cannot be {shorten(repr(text), 100)}", fix)
    elif until.aggregate not in aggregate:
        hint = near(until.aggregate, aggregate)
        fix = f"name one that aggregate declares: {listed(aggregate) or 'there is none'}"
        yield Wrong(code, f"until names {until.aggregate!r}, which is not an aggregate{hint}", fix)


def _names(graph: GraphSpec) -> Iterator[Wrong]:
    """The columns of each table that functions are given or return have names of their own."""
    state = list(read_columns(graph.state or "") or {})
    edge = [graph.source, graph.target, *([] if graph.weight is None else [graph.weight])]
    tables = {
        "that update is given": [graph.id, OUT_DEGREE, *state, *graph.combine],
        "that update returns": [*state, *graph.aggregate, SEND, ACTIVE],
        "that send is given": [*edge, *graph.columns, OUT_DEGREE, *state],
    }
    for table, names in tables.items():
        allowed = {name: max(edge.count(name), 1) for name in names}  # another check tells of the edge itself
        twice = next((name for name in names if names.count(name) > allowed[name] and name != UNREAD), None)
        if twice is not None:
            fix = f"give one of the two another name; {OUT_DEGREE}, {SEND} and {ACTIVE} have meanings of their own"
            yield Wrong(_CODE, f"two columns of the table {table} would be called {twice!r}", fix)
            return


# --- What is imported -------------------------------------------------------------------------------------------------


def problems_of_imports(spec: JobSpec, find: Find) -> Iterator[SardonyxError]:
    """Whether the functions of each program fit it.

    Args:
        spec: the job.
        find: returns what ``module:name`` names, or raises ``FunctionError``.
    """
    for task in spec.catalog:
        if task.graph is not None and task.graph.algorithm == "program" and task.fn is not None:
            try:
                yield from _imported(task, task.graph, task.fn, find)
            except FunctionError as error:
                yield located(task.name, error)


def _imported(task: TaskSpec, graph: GraphSpec, reference: str, find: Find) -> Iterator[SardonyxError]:
    from sardonyx.graphs.program import VertexProgram  # with Arrow, which a job without a program does not need

    others = [fns.check_reference(each) for each in (graph.send, graph.master) if each is not None]
    if any(others) or fns.check_reference(reference) is not None:  # another check tells of the latter
        yield from (located(task.name, wrong) for wrong in others if wrong is not None)
        return
    given: dict[str, Callable[..., Any]] = {}
    update = find(reference)
    if isinstance(update, type):
        yield from _class(task, graph, update, VertexProgram)
    else:
        given[reference] = of_tables(update, "or write a class derived from sardonyx.VertexProgram")
        if graph.combine and graph.send is None:
            fix = "give send as well, or remove combine"
            yield problem(_CODE, task.name, "it combines messages, and nothing sends any", fix=fix)
    if graph.send is not None and not isinstance(update, type):
        given[graph.send] = of_tables(find(graph.send), "or write a class derived from sardonyx.VertexProgram")
    if graph.master is not None:
        given[graph.master] = find(graph.master)
    yield from wrong_params(task, given, (_STEP, "the superstep"), takes_any=isinstance(update, type))


def _class(task: TaskSpec, graph: GraphSpec, update: type, base: type) -> Iterator[SardonyxError]:
    if not issubclass(update, base):
        fix = "derive it from sardonyx.VertexProgram, or give a function of a pyarrow.Table"
        yield problem(_CODE, task.name, f"class {update.__name__} is no VertexProgram", fix=fix)
    elif vars(base)["compute"] is update.compute:  # type: ignore[attr-defined]  # of the base
        yield problem(
            _CODE, task.name, f"class {update.__name__} has no compute", fix="define compute(self, vertex, messages)"
        )
    if graph.send is not None or graph.always or len(graph.combine) > 1:
        what = "send" if graph.send is not None else "always" if graph.always else "several columns in combine"
        fix = f"remove {what}; a class sends with self.send, and is called until its vertices halt"
        yield problem(_CODE, task.name, f"it is a class, and has {what}", fix=fix)


def of_tables(fn: Callable[..., Any], otherwise: str = "") -> Callable[..., Any]:
    """A function, if it takes tables.

    Args:
        fn: the function.
        otherwise: what else the user may do.

    Raises:
        FunctionError: ``SX-FN-ANNOTATION``.
    """
    name = getattr(fn, "__name__", str(fn))
    kind = fns.takes(fn)
    if kind != "arrow":
        raise FunctionError(
            "SX-FN-ANNOTATION",
            f"function {name!r} of {'a program over a graph' if otherwise else 'rounds'} takes tables",
            cause=f"its first parameter is annotated as {kind}",
            fix=", ".join(filter(None, ("annotate it as pyarrow.Table", otherwise))),
        )
    return fn


def wrong_params(
    task: TaskSpec, given: Mapping[str, Callable[..., Any]], ours: tuple[str, str], *, takes_any: bool
) -> Iterator[SardonyxError]:
    """What the params of the task leave out, and what they give that nothing takes.

    Args:
        task: the task.
        given: its functions, by their references.
        ours: the parameter that we give, and what it stands for.
        takes_any: whether one of them takes all.
    """
    known: list[str] = []
    for reference, fn in given.items():
        for parameter in list(inspect.signature(fn).parameters.values())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                takes_any = True
            elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name != ours[0]:
                known.append(parameter.name)
                if parameter.default is parameter.empty and parameter.name not in task.params:
                    fix = f'add params={{"{parameter.name}": ...}}, or give the parameter a default'
                    message = f"function {reference!r} needs {parameter.name!r}, which params do not give"
                    yield problem("SX-FN-PARAMS", task.name, message, fix=fix)
    for name in task.params:
        if name == ours[0]:
            fix = "give it another name"
            yield problem("SX-FN-PARAMS", task.name, f"params give {name!r}, which stands for {ours[1]}", fix=fix)
        elif name not in known and not takes_any:
            fix = f"choose from the parameters that they have: {', '.join(dict.fromkeys(known)) or 'none'}"
            yield problem(
                "SX-FN-PARAMS", task.name, f"none of its functions has a parameter {name!r}{near(name, known)}", fix=fix
            )


__all__ = ["of_tables", "problems_of_imports", "wrong_params", "wrong_state", "wrong_until", "wrong_with_program"]
