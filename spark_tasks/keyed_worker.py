"""What runs on a Spark worker for a task with keyed state: its functions on some keys, with their rows, states and timers.

A worker keeps nothing between two batches. One that dies has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sardonyx.connectors.records import records_or_errors
from sardonyx.core.errors import Failure, FunctionError
from sardonyx.core.keyed import KeyedSpec
from sardonyx.state.handles import Cell
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import Done, Work
from sardonyx.state.signature import Signature, signature_of
from sardonyx.state.timers import Timer
from spark_tasks.code import in_worker
from spark_tasks.declared import declared_of
from spark_tasks.failures import function_raised, types_of
from spark_tasks.worker import checked, function, given_params, records_table
from spark_tasks.worker_pool import from_buffer, to_buffer


class KeyedPlan(msgspec.Struct, frozen=True):
    """What to do with the keys, as data."""

    task: str
    fn: str
    on_timer: str | None
    bundle: str | None
    """Package of the code bundle that the functions are in."""
    spec: KeyedSpec
    declared: pa.Schema | None
    """Of a function of tables: the columns of its state."""
    schema: str | None
    """Columns that the functions' results have in any case, and their types."""
    params: dict[str, Any]
    may_skip: bool
    """Whether another ``on_error`` would leave out records that the functions raise for."""
    first_fails: bool
    """Whether the first record that raises is all that is to be known."""


class Sent(NamedTuple):
    """Work on its way to a worker: its tables as Arrow IPC streams, which hold no more than their rows."""

    work: Work
    rows: pa.Buffer
    entries: pa.Buffer


class Got(NamedTuple):
    """What came of it, on its way back."""

    done: Done
    results: pa.Buffer
    writes: tuple[list[bytes], list[bytes | None], list[int | None]]
    """Entries, their new values (None: they go), and when they were written."""
    origins: Any
    state: pa.Buffer | None


def send(work: Work) -> Sent:
    """Work as it travels."""
    bare = work._replace(rows=None, entries=None)
    return Sent(bare, to_buffer(work.rows), to_buffer(work.entries))


def received(got: Got) -> Done:
    """What came of work. Its results are a table."""
    writes = {entry: None if value is None else Cell(value, at) for entry, value, at in zip(*got.writes, strict=True)}
    return got.done._replace(
        results=from_buffer(got.results),
        writes=writes,
        origins=got.origins.tolist(),
        state=None if got.state is None else from_buffer(got.state),
    )


def run_keyed(plan: KeyedPlan, given: Sequence[Sent]) -> list[Got]:
    """Run the functions of a task.

    Raises:
        FunctionError: ``SX-FN-RESULT``, ``SX-COLUMN-TYPE``, ``SX-KEYED-RESULT``, ``SX-FN-IMPORT``.
    """
    call = _function(plan)
    return [_run(plan, call, sent) for sent in given]


def _run(plan: KeyedPlan, call: KeyedFunction, sent: Sent) -> Got:
    work = sent.work._replace(rows=from_buffer(sent.rows), entries=from_buffer(sent.entries))
    with types_of(plan.task, plan.fn):
        done = call.run(work)
    if isinstance(done.results, pa.Table):
        results = checked(plan.task, plan.fn, done.results)
    else:
        results = records_table(plan.task, plan.fn, plan.schema, done.results, work.rows.schema)
    cells = done.writes.values()
    writes = (list(done.writes), [cell and cell.value for cell in cells], [cell and cell.at for cell in cells])
    return Got(
        done._replace(results=[], writes={}, origins=[], state=None),
        to_buffer(results),
        writes,
        np.array(done.origins, np.int64),
        None if done.state is None else to_buffer(done.state),
    )


_installed: dict[tuple[str, str | None, str, str], Signature] = {}
"""Signatures of installed functions, by what they follow from. Making one takes as long as some hundred records. Those of a job's
own functions go with its bundle."""


def _function(plan: KeyedPlan) -> KeyedFunction:
    fn: Callable[..., Any] = function(plan.bundle, plan.fn)
    on_timer = None if plan.on_timer is None else function(plan.bundle, plan.on_timer)
    known = (plan.fn, plan.on_timer, repr(plan.spec), str(plan.declared))
    signatures = _installed if plan.bundle is None else in_worker(plan.bundle).made
    signature = signatures.get(known)
    if signature is None:
        signature = signatures[known] = signature_of(plan.spec, fn, on_timer, plan.declared)

    def describe(error: BaseException, given: Any) -> Failure:
        if isinstance(error, FunctionError):
            return error.to_failure()
        name = plan.on_timer if isinstance(given, Timer) else plan.fn
        return function_raised(plan.task, str(name), error, given, may_skip=plan.may_skip).to_failure()

    return KeyedFunction(
        signature,
        fn,
        on_timer,
        given_params(plan.bundle, plan.params),
        to_records=records_or_errors,
        describe=describe,
        declared=declared_of(plan.schema, plan.task, plan.fn),
        first_fails=plan.first_fails,
    )
