"""What runs on a Spark worker: a user's function on one slice of a batch.

Everything that the function raises is caught here, where the record that did it is at hand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa

from sardonyx.errors import Failure, FunctionError
from sardonyx.functions import Takes, import_function
from spark_tasks.blocks import from_bytes, to_bytes
from spark_tasks.code import in_worker
from spark_tasks.failures import function_raised, wrong_result
from spark_tasks.records import Record, UnfitColumn, to_records, to_table

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
    skip: bool


class Done(msgspec.Struct, frozen=True):
    """What came of a slice: an Arrow IPC stream, how many rows were left out, and why the first of them."""

    data: bytes
    skipped: int = 0
    first: Failure | None = None


class DataFault(Exception):
    """A user's function raised for rows that other rows may be saved from; holds the error to report."""

    def __init__(self, error: FunctionError) -> None:
        super().__init__(error.message)
        self.error = error


def run(plan: Plan, data: bytes) -> Done:
    """Apply a function that takes tables or records to one slice.

    Raises:
        FunctionError: ``SX-FN-RAISED`` (only if nothing may be skipped), ``SX-FN-RESULT``, ``SX-FN-IMPORT``.
    """
    call = _function(plan.bundle, plan.fn)
    if plan.params:
        call = functools.partial(call, **plan.params)
    table = from_bytes(data)
    if plan.takes == "record":
        return _records(plan, call, table)
    apply = _arrow if plan.takes == "arrow" else _pandas
    tables, skipped, first = halving(table, functools.partial(apply, plan, call), skip=plan.skip)
    return Done(to_bytes(joined(plan.task, plan.fn, tables)), skipped, first)


@functools.lru_cache(maxsize=256)
def _function(bundle: str | None, fn: str) -> Callable[..., Any]:
    return in_worker(bundle).load(fn) if bundle else import_function(fn)


def halving(
    table: pa.Table, apply: Callable[[pa.Table], pa.Table], *, skip: bool, most: int | None = None
) -> tuple[list[pa.Table], int, Failure | None]:
    """Apply to a whole table; if rows may be skipped and it raises, to its halves, until the bad rows stand alone.

    One bad row costs about log2(rows) runs more. Results are in the order of the rows.

    Args:
        table: what ``apply`` gets; with no rows there is nothing to skip, and an error gives an empty result.
        apply: raises :class:`DataFault` if cutting may help.
        skip: whether rows may be left out.
        most: more bad rows than this are raised as the first one's error.

    Returns:
        the results, the number of rows left out, and the first one's failure.
    """
    if not skip:
        try:
            return [apply(table)], 0, None
        except DataFault as fault:
            raise fault.error from fault.__cause__
    search = _Search(apply, most)
    search.within(table)
    return search.results, search.skipped, search.first.to_failure() if search.first else None


class _Search:
    """The search for the rows that a function raises for."""

    def __init__(self, apply: Callable[[pa.Table], pa.Table], most: int | None) -> None:
        self._apply = apply
        self._most = most
        self.results: list[pa.Table] = []
        self.skipped = 0
        self.first: FunctionError | None = None

    def within(self, part: pa.Table, *, surely_bad: bool = False) -> None:
        if not surely_bad or part.num_rows <= 1:
            try:
                self.results.append(self._apply(part))
                return
            except DataFault as fault:
                if part.num_rows <= 1:
                    self._leave_out(part.num_rows, fault)
                    return
        half = part.num_rows // 2
        before = self.skipped
        self.within(part.slice(0, half))
        self.within(part.slice(half), surely_bad=self.skipped == before)  # it was not the first half

    def _leave_out(self, rows: int, fault: DataFault) -> None:
        self.first = self.first or fault.error
        self.skipped += rows
        if self._most is not None and self.skipped > self._most:
            raise _too_many(self.first, self._most) from fault.__cause__


def joined(task: str, fn: str, tables: list[pa.Table]) -> pa.Table:
    """Results of one function as one table; those without columns (no row came out) are left out.

    Raises:
        FunctionError: ``SX-FN-RESULT``, their columns have different types.
    """
    tables = [table for table in tables if table.num_columns]
    if not tables:
        return pa.table({})
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise wrong_result(
            task,
            fn,
            f"parts of one batch have different types in one column: {error}",
            "make the function give each column one type, whatever the rows are",
        ) from error


def _too_many(first: FunctionError, most: int) -> FunctionError:
    return FunctionError(
        first.code,
        first.message,
        cause=f"more than {most} records of one batch had to be skipped, each of which costs several Spark jobs",
        fix="let the function handle such rows itself (try_cast, try_divide, where), or take records one at a time (dict)",
        traceback=first.traceback,
        where=first.where,
    )


def _arrow(plan: Plan, call: Callable[..., Any], table: pa.Table) -> pa.Table:
    result = _guarded(plan, call, table, table)
    if not isinstance(result, pa.Table):
        raise wrong_result(
            plan.task, plan.fn, f"it takes a pyarrow.Table and gave {_named(result)}", "return a pyarrow.Table"
        )
    return checked(plan.task, plan.fn, result)


def _pandas(plan: Plan, call: Callable[..., Any], table: pa.Table) -> pa.Table:
    # Arrow's own types inside pandas: whole numbers with nulls stay whole, and every type comes back as it was.
    result = _guarded(plan, call, table.to_pandas(types_mapper=pd.ArrowDtype), table)
    if not isinstance(result, pd.DataFrame):
        raise wrong_result(
            plan.task, plan.fn, f"it takes a pandas.DataFrame and gave {_named(result)}", "return a pandas.DataFrame"
        )
    try:
        back = pa.Table.from_pandas(result, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise wrong_result(
            plan.task, plan.fn, f"a column holds values of different types: {error}", "give each column one type"
        ) from error
    return checked(plan.task, plan.fn, back)


def _guarded(plan: Plan, call: Callable[..., Any], given: object, table: pa.Table) -> object:
    try:
        return call(given)
    except USER_ERRORS as error:
        record = table.to_pylist()[0] if table.num_rows == 1 else None
        raise DataFault(function_raised(plan.task, plan.fn, error, record)) from error


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


def _records(plan: Plan, call: Callable[..., Any], table: pa.Table) -> Done:
    results: list[Record] = []
    skipped = 0
    first: FunctionError | None = None
    for index, record in enumerate(to_records(table)):
        try:
            result = call(record)
            if type(result) is dict:
                results.append(result)
            elif result is not None:
                results += list(_several(plan, result))  # all of them or none: it may raise half-way
        except USER_ERRORS as error:
            problem = _problem(plan, error, table, index)
            if not plan.skip:
                raise problem from error
            first = first or problem
            skipped += 1
    try:
        back = to_table(results, table.schema)
    except UnfitColumn as error:
        raise wrong_result(
            plan.task, plan.fn, str(error), "give each field the same type in every record, and None where it has none"
        ) from error
    return Done(to_bytes(back), skipped, first.to_failure() if first else None)


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
    given = to_records(table.slice(index, 1))[0]  # as it was before the function had it
    return function_raised(plan.task, plan.fn, error, given)


def _named(value: object) -> str:
    return "None" if value is None else f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
