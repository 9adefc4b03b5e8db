"""Calls a user's functions of rows and timers, with the state of the key. Pure: no store, no clock.

Rows are taken in the order of the log. Before a row, the timers of its key fire that are due by the clock in force before its
block. After all rows, those fire that are due by the clock after the batch, in the order of time, key and name. So what a key
meets, and in which order, does not depend on where batches were cut.
"""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import Failure, FunctionError, SardonyxError
from sardonyx.core.text import shorten
from sardonyx.core.tracebacks import user_traceback
from sardonyx.state.base import KEY
from sardonyx.state.handles import Cell, Cells, Handle, Key
from sardonyx.state.keyed_entries import AT, VALUE, read_state_key, state_key
from sardonyx.state.keyed_tables import run_tables
from sardonyx.state.keyed_work import Done, Due, Failed, Work
from sardonyx.state.signature import Signature, StateType, Takes
from sardonyx.state.timers import Setting, Timer, Timers, moment

Describe = Callable[[BaseException, Any], Failure]
"""What users see of an exception; it is given what the function was called with."""

_RAISED = (Exception, SystemExit)


class DeclaredResults(Protocol):
    """The columns that a task declares of its results."""

    def check(self, records: Iterable[dict[str, Any]]) -> None:
        """Raise if records do not fit."""
        ...

    def table(self, table: pa.Table) -> pa.Table:
        """Rows in the declared types. Raises if they do not fit."""
        ...


class KeyedFunction:
    """The functions of a task with keyed state.

    Args:
        signature: what they take.
        fn: is called for rows.
        on_timer: is called for timers.
        params: further arguments, for each function those that it has parameters for.
        to_records: makes dicts of rows; in place of a row that cannot be one, it gives the error.
        describe: makes a failure of an exception.
        declared: what the task declares of results; None: nothing.
        first_fails: stop at the first row or timer that raises: it is the last of ``failed``.
    """

    def __init__(
        self,
        signature: Signature,
        fn: Callable[..., Any],
        on_timer: Callable[..., Any] | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        to_records: Callable[[pa.Table], Sequence[dict[str, Any] | SardonyxError]] = pa.Table.to_pylist,
        describe: Describe | None = None,
        declared: DeclaredResults | None = None,
        first_fails: bool = False,
    ) -> None:
        self.signature = signature
        self.fn, self.on_timer = fn, on_timer
        self.params = dict(params or {})
        self.to_records = to_records
        self.describe = describe or described
        self.declared = declared
        self.first_fails = first_fails

    def run(self, work: Work) -> Done:
        """What the functions make of the work. They change nothing in it.

        Raises:
            FunctionError: of a function of tables, what it gives back does not fit.
        """
        if self.signature.tables:
            fn = self.fn if self.declared is None else _in_types(self.fn, self.declared)
            return run_tables(self.signature, fn, self.params, work, self.describe, first_fails=self.first_fails)
        return _Run(self, work).run()


def _in_types(fn: Callable[..., Any], declared: DeclaredResults) -> Callable[..., Any]:
    """A function of tables whose results have the declared types. One that gives others raises."""

    def call(*given: Any, **params: Any) -> Any:
        found = fn(*given, **params)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], pa.Table):
            return declared.table(found[0]), found[1]
        return found

    return call


class _OfKey:
    """A key in a run: its handles, and its timers that may fire."""

    __slots__ = ("code", "due", "expiring", "handles", "heap", "last", "parts", "row", "timer", "value")

    def __init__(self, run: _Run, code: int) -> None:
        self.code = code
        self.value = run.key_value(code)
        self.parts: list[tuple[bytes, StateType, Cells]] = []
        self.handles: list[Handle] = []
        self.expiring: list[Handle] = []
        self.due: dict[str, Setting] = {}
        self.heap: list[tuple[int, str]] = []
        self.last = run.work.clock
        by_name: dict[str, Handle] = {}
        for name, state in run.signature.states.items():
            cells = run.cells.get((run.work.keys[code], name), {})
            by_name[name] = handle = state.handle(cells)
            self.parts.append((state_key(run.work.keys[code], name), state, cells))
            self.handles.append(handle)
            if state.ttl is not None:
                self.expiring.append(handle)
        self.row = self._arguments(run, run.signature.row, by_name, run.row_params)
        takes = run.signature.timer
        self.timer = {} if takes is None else self._arguments(run, takes, by_name, run.timer_params)

    def _arguments(
        self, run: _Run, takes: Takes, by_name: Mapping[str, Handle], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {**params, **{name: by_name[name] for name in takes.states}}
        if takes.timers is not None:
            found[takes.timers] = run.timers
        if takes.key is not None:
            found[takes.key] = self.value
        return found

    def set(self, name: str, setting: Setting | None) -> None:
        """A timer that may fire in this run is set, moved or deleted."""
        if setting is None:
            self.due.pop(name, None)
        else:
            self.due[name] = setting
            if setting.at <= self.last and not setting.wall:  # others do not fire in this run
                heapq.heappush(self.heap, (setting.at, name))

    def next(self, clock: int) -> str | None:
        """The first timer by the clock of the rows that is due by this clock."""
        while self.heap and self.heap[0][0] <= clock:
            at, name = self.heap[0]
            setting = self.due.get(name)
            if setting is not None and not setting.wall and setting.at == at:
                return name
            heapq.heappop(self.heap)
        return None


class _Stop(Exception):
    """A function raised, and that ends the run."""


class _Run:
    """One run over one work."""

    def __init__(self, function: KeyedFunction, work: Work) -> None:
        self.function, self.work, self.signature = function, work, function.signature
        self.timers = Timers()
        self.row_params = _accepted(function.fn, function.params)
        self.timer_params = _accepted(function.on_timer, function.params)
        self.cells: dict[tuple[bytes, str], Cells] = {}
        columns = (work.entries[name].to_pylist() for name in (KEY, VALUE, AT))
        for entry, value, at in zip(*columns, strict=True):
            found = read_state_key(entry)
            self.cells.setdefault((found.key, found.name), {})[found.part] = Cell(value, at)
        self.keys: dict[int, _OfKey] = {}
        self.done = Done([], [], {}, {}, [], [])

    def key_value(self, code: int) -> Any:
        values = self.work.values[code]
        return values[0] if len(values) == 1 else values or None

    def run(self) -> Done:
        for due in self.work.due:
            self._key(due.code).set(due.name, due.setting)
        try:
            self._rows()
            self._due()
        except _Stop:
            pass
        return self.done

    def _rows(self) -> None:
        work = self.work
        times = [NEVER] * len(work.codes) if work.times is None else work.times.tolist()
        records = self.function.to_records(work.rows)
        for row, (record, code, clock, time) in enumerate(
            zip(records, work.codes.tolist(), work.in_force.tolist(), times, strict=True)
        ):
            key = self.keys.get(code) or self._key(code)
            while key.heap and (name := key.next(clock)) is not None:
                self._fire(key, name)
            self.timers.begin(clock)
            fn = _refuse if isinstance(record, SardonyxError) else self.function.fn
            self._call(key, fn, record, key.row, clock, max(time, clock), row)

    def _due(self) -> None:
        """Fire what is due by the clock after the batch."""
        work, keys = self.work, self.work.keys
        heap = [(at, keys[key.code], name, key.code) for key in self.keys.values() for at, name in key.heap]
        heapq.heapify(heap)
        left = work.most
        while heap and left:
            at, canonical, name, code = heapq.heappop(heap)
            key = self.keys[code]
            setting = key.due.get(name)
            if setting is None or setting.wall or setting.at != at:
                continue
            if at > work.clock or (work.bound is not None and (at, canonical, name) > work.bound):
                break
            key.heap = []
            self._fire(key, name)
            left -= 1
            for further in key.heap:
                heapq.heappush(heap, (*further[:1], canonical, further[1], code))
        walls = [due for due in work.due if due.setting.wall]
        for due in sorted(walls, key=lambda due: (due.setting.at, keys[due.code], due.name)):
            key = self.keys[due.code]
            if left and key.due.get(due.name) == due.setting:
                self._fire(key, due.name)
                left -= 1

    def _fire(self, key: _OfKey, name: str) -> None:
        setting = key.due.pop(name)
        due = Due(key.code, name, setting)
        self.done.timers[key.code, name] = None
        self.done.fired.append(due)
        now = max(setting.set_at, self.work.before if setting.wall else setting.at)
        if self.function.on_timer is None:  # the task had one when the timer was set
            return
        self.timers.begin(now, setting)
        timer = Timer(key.value, name, moment(setting.at), "wall" if setting.wall else "event")
        ends = self.work.ended and (setting.wall or setting.at > self.work.before)
        self._call(key, self.function.on_timer, timer, key.timer, now, now, -len(self.done.fired), due, ends=ends)

    def _call(
        self,
        key: _OfKey,
        fn: Callable[..., Any],
        given: Any,
        arguments: Mapping[str, Any],
        now: int,
        touched: int,
        origin: int,
        due: Due | None = None,
        *,
        ends: bool = False,
    ) -> None:
        """Call a function; keep its results and its changes, or, if it raises, neither.

        ``now`` is the clock by which states expire. What the call writes was written at ``touched``. If the input has ended
        (``ends``), no timer can be set any more.
        """
        for handle in key.expiring:
            handle.begin(now)
        try:
            results = self._results(fn(given, **arguments))
            writes = [handle.writes() for handle in key.handles]
        except _RAISED as error:
            for handle in key.handles:
                handle.undo()
            row = origin if due is None else None
            failure = self.function.describe(error, given)
            self.done.failed.append(Failed(row, due, type(error).__name__, failure))
            if self.function.first_fails:
                raise _Stop from None
            return
        for (prefix, state, cells), found in zip(key.parts, writes, strict=True):
            for part, value in found:
                if value is None:
                    del cells[part]
                    self.done.writes[prefix + part] = None
                    continue
                at = None
                if state.ttl is not None:
                    old = cells.get(part)
                    at = touched if old is None or old.at is None else max(old.at, touched)
                cells[part] = self.done.writes[prefix + part] = Cell(value, at)
        if self.timers.changed:
            for name, setting in self.timers.taken().items():
                if setting is None or not ends:
                    self.done.timers[key.code, name] = setting
                    key.set(name, setting)
        if results:
            assert isinstance(self.done.results, list)  # noqa: S101 (for the type checker)
            self.done.results.extend(results)
            self.done.origins.extend([origin] * len(results))

    def _results(self, given: object) -> list[dict[str, Any]]:
        found = _results(given)
        if self.function.declared is not None:
            self.function.declared.check(found)
        return found

    def _key(self, code: int) -> _OfKey:
        found = self.keys.get(code)
        if found is None:
            found = self.keys[code] = _OfKey(self, code)
        return found


def _refuse(error: SardonyxError, **_: Any) -> None:
    raise error


def _results(given: object) -> list[dict[str, Any]]:
    """The rows that a function gives: none, one, or several."""
    if given is None:
        return []
    if type(given) is dict or isinstance(given, Mapping):  # the former is quickly told
        return [dict(given)]
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]
    rows = [dict(each) for each in found if isinstance(each, Mapping)]
    if len(rows) < len(found):
        raise FunctionError(
            "SX-KEYED-RESULT",
            f"the function gave back {shorten(repr(given))}",
            cause="a function with keyed state gives a dict, several of them, or None",
            fix="let it return or yield dicts",
        )
    return rows


def described(error: BaseException, given: object) -> Failure:
    """What users see of an exception, as far as the exception tells."""
    if isinstance(error, SardonyxError):
        return Failure(error.code, error.message, cause=error.cause, fix=error.fix, where=error.where)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(
        "SX-FN-RAISED",
        f"the function raised {shorten(said)}",
        cause=f"it was called with {shorten(repr(given), 1_000)}",
        traceback=user_traceback(error),
    )


def _accepted(fn: Callable[..., Any] | None, params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the params that a function has parameters for."""
    if fn is None:
        return {}
    parameters = inspect.signature(fn).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in params.items() if takes_any or name in parameters}


__all__ = ["Key", "KeyedFunction", "described"]
