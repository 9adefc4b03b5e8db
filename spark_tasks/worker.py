"""What runs on a Spark worker: a user's function on one slice of a batch.

Exceptions of the function are caught here, because the record that caused them is at hand here.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from sardonyx.connectors import frames
from sardonyx.connectors.base import SplitInput
from sardonyx.connectors.records import Record, UnfitColumn, records_or_errors, rows_at, to_table
from sardonyx.core.column_types import UnfitTypes, together
from sardonyx.core.errors import FunctionError
from sardonyx.core.timing import TimeSpec
from sardonyx.runtime.functions import Takes, import_function, with_functions
from sardonyx.state.times import judged
from spark_tasks.code import in_worker
from spark_tasks.declared import Declared, declared_of
from spark_tasks.failures import Bad, error_class, function_raised, types_of, wrong_result
from spark_tasks.isolate import Culprit, DataFault, search
from spark_tasks.read_splits import joined_splits
from spark_tasks.units import Units
from spark_tasks.worker_pool import from_buffer, to_buffer

USER_ERRORS = (Exception, SystemExit)
"""What a user's function may raise: a ``sys.exit()`` in it must not end the worker or the peer."""


class Plan(msgspec.Struct, frozen=True):
    """What to do with a slice, as data."""

    task: str
    fn: str
    bundle: str | None
    """Package of the code bundle that ``fn`` is in."""
    takes: Takes
    params: dict[str, Any]
    may_skip: bool = True
    """Whether another ``on_error`` would leave out records that the function raises for; False if this one does."""
    together: list[str] | None = None
    """See :func:`spark_tasks.units.together`."""
    schema: str | None = None
    """Columns that the function's results have in any case, and their types."""


class Slice(msgspec.Struct, frozen=True):
    """Rows for one worker, and how to go about them."""

    data: pa.Buffer
    """An Arrow IPC stream."""
    isolate: bool
    """Whether to find the rows that the function raises for. If not, the first error is all that comes back."""
    raised: int = 0
    """How often these rows were run before, and raised."""
    traced: bool = False
    """Whether :attr:`Done.origins` is asked for."""


class Done(msgspec.Struct, frozen=True):
    """What came of a slice."""

    data: pa.Buffer | None = None
    """Its results, an Arrow IPC stream."""
    bad: list[Bad] = []
    """Rows that raise by themselves, by their index in the slice; of rows that stay together, the first."""
    places: list[int] = []
    """Of functions that take records, for each bad row: how many rows of the results come before it."""
    fault: Bad | None = None
    """The slice as a whole raised, and there are no results; the index says nothing."""
    origins: list[int] | None = None
    """Of functions that take records, if asked: for each result the index in the slice of the record that it was made of."""


class Share(msgspec.Struct, frozen=True):
    """Splits, or parts of them, for one worker to read and to run functions on."""

    datas: list[dict[str, Any]]
    """For the connector's ``read``, in order."""
    isolate: bool
    """As :attr:`Slice.isolate`."""
    keep: bool
    """Whether the rows are to come back if the functions raise, for another attempt."""
    time: TimeSpec | None = None
    """Where the rows have their times, if the input says so."""
    now: float = 0.0
    """Seconds since 1970, by the peer's machine."""
    of_calendar: bool = False
    """Whether times that no calendar has are bad."""


class ReadAndDone(msgspec.Struct, frozen=True):
    """What came of a share."""

    done: Done
    """Of all its rows as one slice."""
    rows: list[int]
    """How many rows each of its parts held."""
    schema: pa.Schema
    """Of what was read."""
    seconds: float
    """That reading took."""
    kept: pa.Buffer | None = None
    """An Arrow IPC stream: all rows read if ``done`` has a fault, else the rows that ``done`` lists as bad."""
    bad_times: bool = False
    """Whether a row's time is bad. Then no function was called."""


def ready(core: int) -> int:
    """Nothing; but to be here, all that functions need has been imported. What was is not looked through for garbage again."""
    _settle()
    return core


def run(plans: Sequence[Plan], given: Slice) -> Done:
    """Apply functions that take tables or records to one slice, each to what the one before it gave.

    Raises:
        FunctionError: ``SX-FN-RESULT``, ``SX-FN-IMPORT``.
    """
    return _run(plans, from_buffer(given.data), given.isolate, given.raised, traced=given.traced)


def read_and_run(connector: SplitInput, plans: Sequence[Plan], share: Share) -> ReadAndDone:
    """Read splits and apply functions to their rows, which so need not travel in between.

    Raises:
        SardonyxError: what the connector's ``read`` raised; ``SX-INPUT-SCHEMA``, the splits do not fit together.
        FunctionError: as :func:`run`; ``SX-TIME-COLUMN``, ``SX-TIME-TYPE``: the rows cannot have times.
    """
    began = time.perf_counter()
    tables = [connector.read(data) for data in share.datas]
    table = joined_splits(tables)
    seconds = time.perf_counter() - began
    done, kept = Done(to_buffer(pa.table({}))), None
    whose, calendar = f"input {plans[0].task}", share.of_calendar
    if share.time and table.num_rows and judged(table, share.time, share.now, whose, of_calendar=calendar).bad:
        return ReadAndDone(done, [each.num_rows for each in tables], table.schema, seconds, bad_times=True)
    if table.num_rows:  # a function is not called for nothing
        done = _run(plans, table, share.isolate, 0)
    if done.fault is not None and share.keep:
        kept = to_buffer(table)
    elif done.bad:
        kept = to_buffer(rows_at(table, [bad.index for bad in done.bad]))
    return ReadAndDone(done, [each.num_rows for each in tables], table.schema, seconds, kept)


def _run(plans: Sequence[Plan], table: pa.Table, isolate: bool, raised: int, *, traced: bool = False) -> Done:
    last = plans[-1]
    if len(plans) == 1 and last.takes == "record":
        return _records(last, _call(last), table, isolate, raised, traced=traced)
    apply = functools.partial(_through, [functools.partial(_TABLES[plan.takes], plan, _call(plan)) for plan in plans])
    try:
        if traced and all(plan.takes == "record" for plan in plans):
            origins = list(range(table.num_rows))
            return Done(to_buffer(apply(table, origins)), origins=origins)
        return Done(to_buffer(apply(table)))
    except DataFault as fault:
        if not isolate:
            return Done(fault=bad_of(Culprit(0, fault, raised + 1)))
    units = Units(table, plans[0].together)
    found = search(len(units), lambda start, stop: apply(units.rows(start, stop)), raised=raised + 1)
    bad = [bad_of(each._replace(row=units.first(each.row))) for each in found.bad]
    return Done(to_buffer(joined(last.task, last.fn, found.results)), bad)


def _through(steps: Sequence[Callable[..., pa.Table]], table: pa.Table, origins: list[int] | None = None) -> pa.Table:
    """What comes of a table. ``origins``: of its records, if all steps take records; it becomes that of the results."""
    for number, step in enumerate(steps):
        if number and not table.num_rows:  # as over a queue: where nothing came out, the next function is not called
            return pa.table({})
        table = step(table) if origins is None else step(table, origins)
    return table


def run_each(plans: Sequence[Plan], given: Slice) -> list[Done]:
    """Apply a function that takes records to each record by itself. Raises as :func:`run`."""
    (plan,) = plans
    call, table = _call(plan), from_buffer(given.data)
    return [_records(plan, call, table.slice(n, 1), given.isolate, given.raised) for n in range(table.num_rows)]


def bad_of(culprit: Culprit) -> Bad:
    """A row that was found, as it travels."""
    index, fault, attempts = culprit
    return Bad(index, error_class(fault.error), attempts, fault.error.to_failure())


def _call(plan: Plan) -> Callable[..., Any]:
    call = function(plan.bundle, plan.fn)
    return functools.partial(call, **given_params(plan.bundle, plan.params)) if plan.params else call


def given_params(bundle: str | None, params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a user's function, with the functions among them."""
    return with_functions(params, functools.partial(function, bundle))


def function(bundle: str | None, fn: str) -> Callable[..., Any]:
    """A user's function. What was imported is never looked through for garbage again: Spark's worker has all of it collected
    after each of its tasks, which for pandas and Arrow alone took a hundred times as long as a small function.
    """
    if bundle is None:
        return _installed(fn)
    code = in_worker(bundle)
    known = code.has_loaded(fn)
    found = code.load(fn)
    if not known:
        _settle()
    return found


@functools.lru_cache(maxsize=256)
def _installed(fn: str) -> Callable[..., Any]:
    found = import_function(fn)
    _settle()
    return found


def _settle() -> None:
    gc.collect()
    gc.freeze()


def joined(task: str, fn: str, tables: list[pa.Table]) -> pa.Table:
    """Results of one function as one table; those without columns (no row came out) are left out.

    Raises:
        FunctionError: ``SX-COLUMN-TYPE``, a column has types that do not go together.
    """
    tables = [table for table in tables if table.num_columns]
    if not tables:
        return pa.table({})
    with types_of(task, fn):
        return together(tables)


def _arrow(plan: Plan, call: Callable[..., Any], table: pa.Table) -> pa.Table:
    result = _guarded(plan, call, table, table)
    if not isinstance(result, pa.Table):
        raise wrong_result(
            plan.task, plan.fn, f"it takes a pyarrow.Table and gave {_named(result)}", "return a pyarrow.Table"
        )
    return as_declared(plan, checked(plan.task, plan.fn, result))


def _pandas(plan: Plan, call: Callable[..., Any], table: pa.Table) -> pa.Table:
    import pandas as pd  # half a second, which most workers need not spend

    # Arrow's own types inside pandas: whole numbers with nulls stay whole, and every type comes back as it was.
    result = _guarded(plan, call, table.to_pandas(types_mapper=pd.ArrowDtype), table)
    if not isinstance(result, pd.DataFrame):
        raise wrong_result(
            plan.task, plan.fn, f"it takes a pandas.DataFrame and gave {_named(result)}", "return a pandas.DataFrame"
        )
    try:
        with types_of(plan.task, plan.fn):
            back = frames.to_table(result, functools.partial(_objects, plan, frames.by_rule(table.schema)))
    except UnfitColumn as error:
        fix = "give each column values that Arrow knows, and None where there is none"
        raise wrong_result(plan.task, plan.fn, str(error), fix) from error
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise wrong_result(
            plan.task, plan.fn, f"a column holds values of different types: {error}", "give each column one type"
        ) from error
    return as_declared(plan, checked(plan.task, plan.fn, back))


def _objects(plan: Plan, by_rule: frames.Typed, name: str, values: list[Any]) -> pa.Array:
    """A column of objects in the type that is declared, or else by the rule.

    Raises:
        DataFault: it is declared, and a value is of another type.
        UnfitColumn: a value has no type.
        UnfitTypes: values have types that do not go together.
    """
    declared = declared_of(plan.schema, plan.task, plan.fn)
    if declared is None or name not in declared.schema.names:
        return by_rule(name, values)
    try:
        return declared.column(name, values)
    except UnfitTypes as error:
        problem = error
        raise DataFault(problem, lambda: problem) from error


def as_declared(plan: Plan, result: pa.Table) -> pa.Table:
    """A result in the declared types. One that does not fit is what the function could as well have raised for.

    Raises:
        DataFault: a value is of another type.
    """
    declared = declared_of(plan.schema, plan.task, plan.fn)
    try:
        return result if declared is None else declared.table(result)
    except UnfitTypes as error:
        problem = error
        raise DataFault(problem, lambda: problem) from error


def _guarded(plan: Plan, call: Callable[..., Any], given: object, table: pa.Table) -> object:
    try:
        return call(given)
    except USER_ERRORS as error:
        raise fault_of(plan, error, table) from error


def fault_of(plan: Plan, error: BaseException, table: pa.Table, *, of_data: bool = True) -> DataFault:
    """What a function of tables raised, as what the search for the bad rows goes by.

    ``of_data``: False if it would raise the same for any rows.
    """
    record = records_or_errors(table)[0] if table.num_rows == 1 else None
    may_skip = plan.may_skip and of_data
    what = "records" if plan.together is None else "windows"
    return DataFault(error, lambda: function_raised(plan.task, plan.fn, error, record, may_skip=may_skip, what=what))


def checked(task: str, fn: str, table: pa.Table) -> pa.Table:
    """A result with nothing in its schema but names and types, all nullable, so that one batch's equals another's.

    Raises:
        FunctionError: ``SX-FN-RESULT``, two columns have one name.
    """
    doubled = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if doubled:
        raise wrong_result(
            task, fn, f"it has more than one column named {', '.join(doubled)}", "drop or rename all but one of them"
        )
    plain = pa.schema([pa.field(field.name, field.type) for field in table.schema])
    return pa.Table.from_arrays(table.columns, schema=plain) if table.num_columns else table


def _records(
    plan: Plan, call: Callable[..., Any], table: pa.Table, isolate: bool, raised: int, *, traced: bool = False
) -> Done:
    results: list[Record] = []
    origins: list[int] | None = [] if traced else None
    bad: list[Bad] = []
    places: list[int] = []
    declared = declared_of(plan.schema, plan.task, plan.fn)
    for index, record in enumerate(records_or_errors(table)):
        try:
            if isinstance(record, FunctionError):
                raise record
            made = _given(plan, call(record), declared)  # all of them or none: it may raise half-way
            results += made
            if origins is not None:
                origins += [index] * len(made)
        except USER_ERRORS as error:
            problem = _problem(plan, error, table, index)
            bad.append(Bad(index, error_class(problem), raised + 1, problem.to_failure()))
            places.append(len(results))
            if not isolate:
                return Done(fault=bad[0])
    return Done(to_buffer(_table(plan, results, table)), bad, places, origins=origins)


def _in_turn(plan: Plan, call: Callable[..., Any], table: pa.Table, origins: list[int] | None = None) -> pa.Table:
    """A function of records on a whole table, for fused functions. The first record that it raises for fails the table.
    ``origins``: of the records; it becomes that of the results.
    """
    results: list[Record] = []
    made_of: list[int] = []
    declared = declared_of(plan.schema, plan.task, plan.fn)
    for index, record in enumerate(records_or_errors(table)):
        try:
            if isinstance(record, FunctionError):
                raise record
            results += _given(plan, call(record), declared)
            if origins is not None:
                made_of += [origins[index]] * (len(results) - len(made_of))
        except USER_ERRORS as error:
            problem = _problem(plan, error, table, index)
            raise DataFault(problem, lambda problem=problem: problem) from error  # type: ignore[misc]
    if origins is not None:
        origins[:] = made_of
    return _table(plan, results, table)


def _table(plan: Plan, results: list[Record], given: pa.Table) -> pa.Table:
    return records_table(plan.task, plan.fn, plan.schema, results, given.schema)


def records_table(task: str, fn: str, schema: str | None, results: list[Record], like: pa.Schema) -> pa.Table:
    """The records that a function gave as a table. ``schema``: as in a :class:`Plan`.

    Raises:
        FunctionError: ``SX-FN-RESULT``, ``SX-COLUMN-TYPE``.
    """
    try:
        with types_of(task, fn):
            declared = declared_of(schema, task, fn)
            return to_table(results, like, None if declared is None else declared.schema)
    except UnfitColumn as error:
        fix = "give each field a value that Arrow knows, and None where it has none"
        raise wrong_result(task, fn, str(error), fix) from error


_TABLES: dict[Takes, Callable[..., pa.Table]] = {"arrow": _arrow, "pandas": _pandas, "record": _in_turn}


def _given(plan: Plan, result: object, declared: Declared | None) -> list[Record]:
    """The records that a function gave for one, which fit what is declared."""
    if result is None:
        return []
    records = [result] if type(result) is dict else list(_several(plan, result))
    if declared is not None:
        declared.check(records)
    return records


def _several(plan: Plan, result: object) -> Iterator[Record]:
    """The records of a list or iterator, each copied: a generator may give the same dict again and again."""
    if isinstance(result, dict):
        yield dict(result)
        return
    if not isinstance(result, Iterable) or isinstance(result, str | bytes):
        raise _not_records(plan, f"it gave {_named(result)}")
    for item in result:
        if not isinstance(item, dict):
            raise _not_records(plan, f"among what it gave is {_named(item)}")
        yield dict(item)


def _not_records(plan: Plan, cause: str) -> FunctionError:
    return wrong_result(plan.task, plan.fn, cause, "return a dict, a list or an iterator of dicts, or None")


def _problem(plan: Plan, error: BaseException, table: pa.Table, index: int) -> FunctionError:
    if isinstance(error, FunctionError):
        return error
    (given,) = records_or_errors(table.slice(index, 1))  # as it was before the function had it
    return function_raised(plan.task, plan.fn, error, given, may_skip=plan.may_skip)


def _named(value: object) -> str:
    return "None" if value is None else f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
