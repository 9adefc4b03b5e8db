"""Runs a user's program over a graph, or in rounds, in one of Spark's workers: all its supersteps, from all rows to those of the
result. A worker that dies ends no daemon, and the batch is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from sardonyx.core.errors import FunctionError
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.spec import TaskSpec, whole_of
from sardonyx.graphs.compute import Computed, Graph
from sardonyx.graphs.programs import Program, run_program
from sardonyx.graphs.rounds import run_rounds
from spark_tasks.apply import Abandoned
from spark_tasks.failures import function_raised
from spark_tasks.on_demand import TaskSpark
from spark_tasks.planned import PlannedFunctions
from spark_tasks.worker import USER_ERRORS, function, given_params
from spark_tasks.worker_pool import from_buffer, on_workers, to_buffer


class _Plan(msgspec.Struct, frozen=True):
    """What to run, as data."""

    task: str
    update: str
    bundle: str | None
    """Package of the code bundle that the functions are in."""
    spec: GraphSpec | IterateSpec
    params: dict[str, Any]


class _Got(NamedTuple):
    """What came of a graph, on its way back."""

    rows: pa.Buffer
    rest: Computed
    """All but its rows."""


class GraphFunctions(PlannedFunctions[_Plan]):
    """The functions of one task that computes over a graph or in rounds, ready to be run.

    Args:
        spark: of the assignment.
        task: the task.

    Raises:
        FunctionError: ``SX-FN-NAME``, ``SX-FN-IMPORT``.
    """

    def __init__(self, spark: TaskSpark, task: TaskSpec) -> None:
        spec = whole_of(task)
        assert spec is not None  # noqa: S101 (for the type checker: the caller asks)
        update = str(task.fn)
        for reference in _functions(update, spec).values():
            spark.load(reference)
        plan = _Plan(task.name, update, spark.package, spec, task.params)
        super().__init__(spark, task, plan)

    def __call__(self, spec: GraphSpec | IterateSpec, graph: Graph) -> Computed:
        """What the program makes of a graph.

        Raises:
            FunctionError: a function raised, or gave back what does not fit.
            SetupError: ``SX-SPARK-LOST``, such as that a function ended its process.
            Abandoned: see :meth:`abandon`.
        """
        if self._abandoned.is_set():
            raise Abandoned
        began = time.perf_counter()
        plan = msgspec.structs.replace(self._plan, spec=spec)
        sent = tuple(None if each is None else to_buffer(each) for each in (graph.edges, graph.vertices))
        took: list[float] = []
        (got,) = on_workers(self._spark.session(), f"task {self._task.name}", partial(_run, plan), [sent], took.append)
        self.worked = sum(took)
        self.waited = max(time.perf_counter() - began - self.worked, 0.0)
        return got.rest._replace(rows=from_buffer(got.rows))


def _run(plan: _Plan, sent: tuple[pa.Buffer, pa.Buffer | None]) -> _Got:
    """On a worker: run the program.

    Raises:
        FunctionError: ``SX-FN-RAISED``, ``SX-FN-IMPORT``, and those of :func:`sardonyx.graphs.programs.run_program`
            and :func:`sardonyx.graphs.rounds.run_rounds`.
    """
    edges, vertices = sent
    graph = Graph(from_buffer(edges), None if vertices is None else from_buffer(vertices))
    roles = _functions(plan.update, plan.spec)
    found: dict[str, Callable[..., Any]] = {role: function(plan.bundle, each) for role, each in roles.items()}
    program = Program(
        found["update"],
        found.get("send"),
        found.get("master"),
        params=given_params(plan.bundle, plan.params),
        guard=partial(_guarded, plan),
    )
    where = {"task": plan.task, "function": plan.update}
    try:
        if isinstance(plan.spec, GraphSpec):
            computed = run_program(plan.spec, graph, program)
        else:
            computed = run_rounds(plan.spec, graph.edges, program)
    except FunctionError as error:
        if "task" not in error.where:
            error.where |= where
        raise
    return _Got(to_buffer(computed.rows), computed._replace(rows=None))


def _functions(update: str, spec: GraphSpec | IterateSpec) -> dict[str, str]:
    """What is called, by what for."""
    others = {"send": spec.send, "master": spec.master} if isinstance(spec, GraphSpec) else {}
    return {"update": update} | {role: each for role, each in others.items() if each is not None}


def _guarded(plan: _Plan, name: str, fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except USER_ERRORS as error:
        raised = function_raised(plan.task, f"{plan.update.partition(':')[0]}:{name}", error, may_skip=False)
        raise FunctionError.from_failure(raised.to_failure()) from None  # of a class that travels back
