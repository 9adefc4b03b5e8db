"""Keyed state rule by rule: what a state keeps, timers that no random log sets, the end, expiry, and types that change."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from sardonyx.connectors.records import records_or_errors
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError, InputError
from sardonyx.core.keyed import KeyedSpec
from sardonyx.state import handles
from sardonyx.state.codec import Codec, unhashed, unstorable
from sardonyx.state.handles import Key, ListState, MapState, State
from sardonyx.state.keyed_entries import read_state_key
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece, split
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from sardonyx.state.timers import EPOCH, Timer, Timers
from tests.core.keyed_machine import Machine

SECOND = 1_000_000


def machine_of(
    fn: Any, on_timer: Any = None, ttl: dict[str, str] | None = None, columns: tuple[str, ...] = ("user",), **given
):
    signature = signature_of(KeyedSpec(ttl=ttl or {}), fn, on_timer)
    return Machine(signature, KeyedFunction(signature, fn, on_timer), list(columns), MemoryStore, **given)


def rows(*given: tuple[str, int] | str, clock: int = NEVER) -> list[KeyedPiece]:
    """A block of rows (user, seconds); in front of it the clock stood at so many seconds."""
    pairs = [(each, 0) if isinstance(each, str) else each for each in given]
    at = pa.array([second * SECOND for _, second in pairs], pa.timestamp("us", "UTC"))
    table = pa.table({"user": [user for user, _ in pairs], "at": at})
    return [KeyedPiece(table, clock if clock == NEVER else clock * SECOND, at.cast(pa.int64()).to_numpy())]


def given(machine: Machine) -> list[dict[str, Any]]:
    found = [result for result, _ in machine.results]
    machine.results.clear()
    return found


# --- What a state keeps -----------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Note:
    text: str
    when: dt.datetime | None = None


class Deep(msgspec.Struct):
    notes: list[Note]
    by: dict[str, set[int]] = {}


NOON = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**62),
        (float, 0.1),
        (float, float("nan")),
        (str, "ä"),
        (bytes, b"\0\xff"),
        (bool, True),
        (int | None, None),
        (Decimal, Decimal("1.10")),
        (Decimal, Decimal("NaN")),
        (list[Decimal], [Decimal("-sNaN1"), Decimal("Infinity")]),
        (UUID, UUID(int=5)),
        (dt.datetime, NOON),
        (dt.date, dt.date(2026, 2, 28)),
        (dt.timedelta, dt.timedelta(days=1, microseconds=1)),
        (Colour, Colour.RED),
        (Point, Point(1, 2.0)),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (dict[str, list[float]], {"a": [1.0]}),
        (Note, Note("x", NOON)),
        (Deep, Deep([Note("x")], {"a": {1, 2}})),
    ],
)
def test_a_value_comes_back_equal(kind, value):
    """Each kind of value that docs/state.md names."""
    assert unstorable(kind) == ""
    data, back = Codec(kind, "s").encode(value)
    again = Codec(kind, "s").decode(data)
    assert repr(back) == repr(again) == repr(value)
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 1.5),
        (int, "1"),
        (str, 1),
        (list[int], [1, "2"]),
        (Any, (1, 2)),
        (Any, {1, 2}),
        (int, 2**70),
    ],
)
def test_a_value_that_would_not_come_back_equal_is_refused(kind, value):
    """It does not fit the annotation, or bytes would make another value of it."""
    with pytest.raises(FunctionError) as error:
        Codec(kind, "s").encode(value)
    assert error.value.code == "SX-STATE-VALUE"
    assert error.value.fix


def test_types_that_cannot_be_kept_or_be_keys_are_known():
    """A class of the user's own, NumPy's arrays, functions; lists as keys."""
    assert unstorable(object)
    assert unstorable(np.ndarray)
    assert unstorable(list[KeyedFunction])
    assert unhashed(list[int])
    assert unhashed(float) == unhashed(tuple[str, int]) == ""


def test_a_value_that_does_not_fit_fails_its_record_alone():
    """Neither this state nor the others that the record has changed are written."""

    def fn(row: dict, n: State[int], names: ListState[str]) -> dict:
        names.append(row["user"])
        n.value = n.value + 1 if row["user"] != "bad" else "many"
        return {"n": n.value, "names": len(names)}

    machine = machine_of(fn, columns=())
    machine.batch(rows("a", "bad", "b"), NEVER)
    assert given(machine) == [{"n": 1, "names": 1}, {"n": 2, "names": 2}]
    assert machine.failed == ["FunctionError"]


def test_a_result_keeps_the_value_that_it_was_given():
    """Rows that follow in the same batch change the state in place, not what an earlier row gave back."""

    def seen(row: dict, seconds: State[list[int]], by: MapState[str, list[int]], last: ListState[list[int]]) -> dict:
        second = row["at"].second
        if second:
            seconds.value.append(second)
            by.setdefault("all", []).append(second)
            if last:
                last[0].append(second)
            else:
                last.append([second])
        return {"value": seconds.value, "item": by.get("all"), "element": last[0] if last else None}

    machine = machine_of(seen)
    machine.batch(rows(("a", 0), ("a", 1), ("a", 0), ("a", 2), ("a", 0), ("a", 3)), NEVER)
    wanted = [[], [1], [1], [1, 2], [1, 2], [1, 2, 3]]
    found = given(machine)
    assert [each["value"] for each in found] == wanted
    assert [each["item"] or [] for each in found] == wanted
    assert [each["element"] or [] for each in found] == wanted


@pytest.mark.parametrize("kind", ["map", "list"])
def test_a_call_costs_what_it_touches(kind, monkeypatch):
    """Not what the state holds: a batch of many rows of one key must not take ever longer for each row."""
    steps = 0

    def counted(fn):
        def call(*args, **options):
            nonlocal steps
            steps += 1
            return fn(*args, **options)

        return call

    monkeypatch.setattr(handles._Held, "encoded", counted(handles._Held.encoded))
    monkeypatch.setattr(MapState, "_there", counted(MapState._there))

    def into_map(row: dict, of: MapState[int, list[int]]):
        of[row["n"]] = [row["n"]]

    def into_list(row: dict, of: ListState[list[int]]):
        of.append([row["n"]])
        of[-1].append(row["n"])

    fn, rows = into_map if kind == "map" else into_list, 500
    signature = signature_of(KeyedSpec(), fn, None)
    machine = Machine(signature, KeyedFunction(signature, fn), ["user"], MemoryStore)
    for first in (0, rows):
        table = pa.table({"user": ["a"] * rows, "n": range(first, first + rows)})
        machine.batch([KeyedPiece(table, NEVER, np.zeros(rows, np.int64))], NEVER)
    assert len(next(iter(machine.shown(NEVER).values()))) == 2 * rows
    assert steps <= 3 * 2 * rows


def test_a_part_of_the_work_has_its_keys_alone():
    """What goes to one worker holds neither rows nor states of keys that another has."""

    def count(row: dict, n: State[int], by: MapState[str, int]) -> None:
        n.value += 1
        by["all"] = n.value

    machine = machine_of(count)
    given = rows(*(f"u{number}" for number in range(9)))
    machine.batch(given, NEVER)
    work = machine.shard.prepare(given, NEVER, limit=10)
    parts = split(work, 4)
    of_parts = [{read_state_key(entry).key for entry in part.entries["k"].to_pylist()} for part, _ in parts]
    assert [{work.keys[code] for code in part.codes} for part, _ in parts] == of_parts
    assert sum(part.entries.num_rows for part, _ in parts) == work.entries.num_rows == 27


def test_a_key_of_several_columns_and_none():
    """A tuple, a value, or None."""

    def fn(row: dict, n: State[int], key: Key) -> dict:
        return {"key": key}

    for columns, key in (((), None), (("user",), "a"), (("user", "at"), ("a", EPOCH))):
        machine = machine_of(fn, columns=columns)
        machine.batch(rows("a"), NEVER)
        assert given(machine) == [{"key": key}]


@pytest.mark.parametrize("back", [5, "text", [1], [{"a": 1}, None]])
def test_what_is_no_row_fails_its_record(back):
    """A function gives a dict, several, or None."""

    def fn(row: dict, n: State[int]):
        return back

    machine = machine_of(fn)
    machine.batch(rows("a"), NEVER)
    assert (given(machine), machine.failed) == ([], ["FunctionError"])


# --- Timers -----------------------------------------------------------------------------------------------------------


def test_a_row_with_a_value_that_python_does_not_have_is_bad_alone():
    """The other rows of its key go on; the error names the column and the value."""

    def count(row: dict, n: State[int]) -> dict:
        n.value += 1
        return {"n": n.value}

    machine = machine_of(count)
    machine.function.to_records = records_or_errors
    table = pa.table({"user": ["a"] * 3, "day": pa.array([0, 2_932_897, 1], pa.date32())})
    work, done, planned = machine.plan([KeyedPiece(table, NEVER, np.zeros(3, np.int64))], NEVER)
    machine.commit(planned)
    machine.note(work, done)
    (failed,) = done.failed
    assert given(machine) == [{"n": 1}, {"n": 2}]
    assert (failed.row, failed.failure.code) == (1, "SX-FN-INPUT")
    assert "column 'day' holds" in failed.failure.message
    assert "10000-01-01" in failed.failure.message


def at(second: int) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=second)


def in_ten_seconds(row: dict, n: State[int], timers: Timers) -> None:
    n.value += 1
    timers.set(row["at"] + dt.timedelta(seconds=10), "late")


def test_at_the_end_every_timer_fires_once_and_sets_no_more():
    """Those of both clocks; what on_timer sets then is left out, so that the job ends."""

    def fn(row: dict, timers: Timers) -> None:
        timers.set(at(10**6), "far")
        timers.set(at(5), "wall", by="wall")

    def again(timer: Timer, timers: Timers) -> dict:
        timers.set(timer.at + dt.timedelta(days=1), timer.name, by=timer.by)
        return {"name": timer.name}

    machine = machine_of(fn, again, limit=1)
    machine.batch(rows("a", "b"), 1)
    machine.batch([], END, before=1)
    assert sorted(each["name"] for each in given(machine)) == ["far", "far", "wall", "wall"]
    assert machine.shard.next_wall() is None
    assert not machine.failed


@pytest.mark.parametrize(
    ("when", "code"),
    [(at(10), "SX-TIMER-PAST"), (at(9), "SX-TIMER-PAST"), ("noon", "SX-TIMER-TIME"), (5, "SX-TIMER-TIME")],
)
def test_a_timer_that_cannot_be_set_fails_what_sets_it(when, code):
    """In on_timer: not after the timer that is due, which would be due again without end; or no time at all."""

    def again(timer: Timer, n: State[int], timers: Timers) -> None:
        try:
            timers.set(when)
        except FunctionError as error:
            codes.append(error.code)
            raise

    codes: list[str] = []
    machine = machine_of(in_ten_seconds, again)
    machine.batch(rows("a"), 10 * SECOND)
    assert (codes, machine.failed) == ([code], ["FunctionError"])


# --- Expiry -----------------------------------------------------------------------------------------------------------


def test_what_has_expired_leaves_nothing_in_the_store():
    """Neither the values nor the entries that name them."""

    def fn(row: dict, n: State[int], seen: ListState[int], by: MapState[str, int]) -> dict:
        n.value += 1
        seen.append(n.value)
        by[row["user"]] = n.value
        return {"n": n.value, "seen": list(seen), "by": dict(by)}

    machine = machine_of(fn, ttl={"*": "10 s"})
    machine.batch(rows(("a", 1), ("b", 2)), 5 * SECOND)
    machine.batch(rows(("a", 6), clock=5), 11 * SECOND)
    assert given(machine)[-1] == {"n": 2, "seen": [1, 2], "by": {"a": 2}}
    machine.batch(rows(("a", 12), clock=12), 13 * SECOND)
    assert given(machine) == [{"n": 3, "seen": [2, 3], "by": {"a": 3}}]
    machine.batch([], 99 * SECOND)
    assert [entry[:1] for entry in machine.store.scan()["k"].to_pylist()] == [b"\xff"], "only the types are left"


# --- Types that change ------------------------------------------------------------------------------------------------


class Before(msgspec.Struct):
    total: int = 0
    name: str = ""


class Added(msgspec.Struct):
    total: int = 0
    name: str = ""
    more: float = 1.5


class Needed(msgspec.Struct):
    more: float
    total: int = 0
    name: str = ""


class Retyped(msgspec.Struct):
    total: float = 0.0
    name: str = ""


class Dropped(msgspec.Struct):
    total: int = 0


def keeps(kind: Any, handle: Any = State):
    """A function whose state is of this type; it sets ``total`` where it is 0, and shows what there is."""

    def fn(row: dict, account):
        account.value.total = account.value.total or 7
        return msgspec.structs.asdict(account.value)

    fn.__annotations__["account"] = handle[kind]
    return fn


def reopened(fn: Any) -> Machine:
    """The store that a task with ``State[Before]`` has written, under other functions."""
    machine = machine_of(keeps(Before))
    machine.batch(rows("a"), NEVER)
    machine.signature = signature_of(KeyedSpec(), fn)
    machine.function = KeyedFunction(machine.signature, fn)
    machine.restart()
    machine.results.clear()
    return machine


def test_a_field_with_a_default_may_be_added():
    """What was written without it has the default."""
    machine = reopened(keeps(Added))
    machine.batch(rows("a"), NEVER)
    assert given(machine) == [{"total": 7, "name": "", "more": 1.5}]


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (keeps(Needed), "account.more (float) is new, and has no default"),
        (keeps(Retyped), "account.total was int and is float"),
        (keeps(Dropped), "account.name is gone"),
        (keeps(int), "account was record and is int"),
        (keeps(Before, ListState), "account was value and is list"),
    ],
)
def test_other_types_are_refused(fn, said):
    """The states are not touched; the message names the part."""
    with pytest.raises(InputError) as error:
        reopened(fn)
    assert error.value.code == "SX-STATE-SHAPE"
    assert said in error.value.cause
