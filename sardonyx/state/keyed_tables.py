"""Calls a user's function of two Arrow tables: the rows, and the state of their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from queues.shown_values import records
from sardonyx.core.clocks import NEVER
from sardonyx.core.column_types import UnfitTypes, converted, together
from sardonyx.core.errors import Failure, FunctionError
from sardonyx.core.text import listed, shorten
from sardonyx.state.base import KEY
from sardonyx.state.combine import keys_of
from sardonyx.state.groups import Numbers, numpy, one
from sardonyx.state.keyed_entries import AT, COLUMN, read_state_key
from sardonyx.state.keyed_work import Done, Failed, Work
from sardonyx.state.signature import Signature

Function: TypeAlias = Callable[..., Any]


class _States(NamedTuple):
    """The state by the number of the key: a row for each key that has had one, and when each was written last."""

    codes: Numbers
    at: Numbers
    columns: pa.Table


def run_tables(
    signature: Signature,
    fn: Function,
    params: Mapping[str, Any],
    work: Work,
    describe: Callable[[BaseException, Any], Failure],
    *,
    first_fails: bool,
) -> Done:
    """What a function of tables makes of work.

    It is called once for all rows, unless a state expires between two rows of its key: then once before and once after. If it
    raises, the rows are halved until those that it raises for are found, one by one.

    Raises:
        FunctionError: ``SX-KEYED-RESULT``, it does not give back two tables, or they do not fit.
    """
    run = _Run(signature, fn, params, work, describe)
    for rows in _stretches(signature, work):
        run.apply(rows, first_fails=first_fails)
        if first_fails and run.failed:
            break
    states = run.states
    mine = np.isin(states.codes, sorted(run.given))
    states = _States(states.codes[mine], states.at[mine], states.columns.filter(pa.array(mine)))
    state = states.columns.append_column("code", pa.array(states.codes)).append_column(AT, pa.array(states.at))
    results = together(run.results) if run.results else pa.table({})
    return Done(results, [], {}, {}, [], run.failed, state, sorted(run.given))


def _stretches(signature: Signature, work: Work) -> list[Numbers]:
    """The rows in stretches in which no state expires between two rows of its key."""
    rows = np.arange(len(work.codes))
    if signature.ttl is None or not len(rows):
        return [rows]
    cuts: list[int] = []
    start, written = 0, dict[int, int]()
    times = work.in_force if work.times is None else np.maximum(work.times, work.in_force)
    for row, (code, clock, time) in enumerate(
        zip(work.codes.tolist(), work.in_force.tolist(), times.tolist(), strict=True)
    ):
        if code in written and written[code] + signature.ttl <= clock:
            cuts.append(row)
            written = {}
        written[code] = max(time, written.get(code, NEVER))
    found = []
    for cut in [*cuts, len(rows)]:
        found.append(rows[start:cut])
        start = cut
    return found


class _Run:
    def __init__(
        self,
        signature: Signature,
        fn: Function,
        params: Mapping[str, Any],
        work: Work,
        describe: Callable[[BaseException, Any], Failure],
    ) -> None:
        assert signature.declared is not None  # noqa: S101 (for the type checker: the signature is of tables)
        self._declared = signature.declared
        self._ttl = signature.ttl
        self._fn, self._params, self._work, self._describe = fn, params, work, describe
        self._keys = {name: work.rows[name] for name in work.key_columns} if work.rows.num_rows else {}
        self._code_of = {key: code for code, key in enumerate(work.keys)}
        self.results: list[pa.Table] = []
        self.failed: list[Failed] = []
        self.given: set[int] = set()
        self.states = self._stored()

    def apply(self, rows: Numbers, *, first_fails: bool) -> None:
        """Call the function with these rows, or with parts of them if it raises."""
        if not len(rows):
            return
        table = self._work.rows.take(pa.array(rows))
        codes = self._work.codes[rows]
        distinct, heads = np.unique(codes, return_index=True)
        order = np.argsort(heads)
        distinct, heads = distinct[order], heads[order]
        state = self._state_of(distinct, rows, heads)
        try:
            given = self._fn(table, state, **self._params)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's function raises
            if len(rows) == 1 or first_fails:
                shown = records(table.slice(0, 1))[0] if len(rows) == 1 else f"{len(rows)} rows"
                self.failed.append(Failed(int(rows[0]), None, type(error).__name__, self._describe(error, shown)))
                return
            middle = len(rows) // 2
            self.apply(rows[:middle], first_fails=False)
            self.apply(rows[middle:], first_fails=False)
            return
        results, new = self._checked(given, state)
        if results.num_rows:
            self.results.append(results)
        self._replace(distinct, rows, codes, new)

    def _stored(self) -> _States:
        entries = self._work.entries
        keys = [read_state_key(entry).key for entry in entries[KEY].to_pylist()]
        codes = np.array([self._code_of[key] for key in keys], np.int64)
        at = numpy(one(entries[AT].cast(pa.int64()).fill_null(NEVER))) if keys else np.zeros(0, np.int64)
        columns = pa.table([entries[COLUMN + name] for name in self._declared.names], schema=self._declared)
        return _States(codes, at, columns)

    def _state_of(self, distinct: Numbers, rows: Numbers, heads: Numbers) -> pa.Table:
        """What the function is given as the state: the columns of the key, then the declared ones; null where there is none."""
        states = self.states
        place = np.full(len(self._work.keys), -1, np.int64)
        place[states.codes] = np.arange(len(states.codes))
        found = place[distinct]
        if self._ttl is not None:
            clocks = self._work.in_force[rows[heads]]
            there = found >= 0
            expired = np.zeros(len(found), np.bool_)
            expired[there] = states.at[found[there]] + self._ttl <= clocks[there]
            found = np.where(expired, -1, found)
        taken = pa.array(found, mask=found < 0)
        columns = {name: column.take(pa.array(rows[heads])) for name, column in self._keys.items()}
        columns |= {name: states.columns[name].take(taken) for name in self._declared.names}
        return pa.table(columns)

    def _checked(self, given: object, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        if not (isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, pa.Table) for each in given)):
            raise _wrong(f"it gave back {shorten(repr(given), 200)}", "return (results, state), two pyarrow.Table")
        results, new = given
        missing = [name for name in state.column_names if name not in new.column_names]
        if missing:
            raise _wrong(f"its state has no column {missing[0]!r}", f"give it the columns {listed(state.column_names)}")
        try:
            declared = [converted(new[field.name], field.type, field.name) for field in self._declared]
        except UnfitTypes as error:
            raise _wrong(error.message, "give the state columns of the types that state= declares") from error
        fitted = pa.table([*(new[name] for name in self._keys), *declared], names=state.column_names)
        return results, fitted

    def _replace(self, distinct: Numbers, rows: Numbers, codes: Numbers, new: pa.Table) -> None:
        """Put the new state of these keys in place of the old one."""
        numbers, canonical = keys_of(new, list(self._keys))
        if len(canonical) < new.num_rows:
            raise _wrong("its state has several rows of one key", "give one row for each key")
        known = set(distinct.tolist())
        by_number = [self._code_of.get(key, -1) for key in canonical.to_pylist()]
        if not known.issuperset(by_number):
            raise _wrong(
                "its state has a key that its rows do not have", "give rows for keys of the state that it was given"
            )
        new_codes = np.array(by_number, np.int64)[numbers] if len(numbers) else np.zeros(0, np.int64)
        work = self._work
        written = np.full(len(work.keys), NEVER, np.int64)
        times = work.in_force[rows] if work.times is None else np.maximum(work.times[rows], work.in_force[rows])
        np.maximum.at(written, codes, times)
        old = np.full(len(work.keys), NEVER, np.int64)
        old[self.states.codes] = self.states.at
        keep = ~np.isin(self.states.codes, distinct)
        declared = new.select(self._declared.names).cast(self._declared)
        self.states = _States(
            np.concatenate([self.states.codes[keep], new_codes]),
            np.concatenate([self.states.at[keep], np.maximum(written, old)[new_codes]]),
            pa.concat_tables([self.states.columns.filter(pa.array(keep)), declared]),
        )
        self.given |= known


def _wrong(cause: str, fix: str) -> FunctionError:
    return FunctionError(
        "SX-KEYED-RESULT", "a function of tables gave back what is not rows and a state", cause=cause, fix=fix
    )
