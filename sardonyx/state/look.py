"""What the entries of a shard of keyed state mean, for people and other programs. Pure.

The types of a job's states are those of its code, which need not be here. So values are what MessagePack gives without a type:
a struct is a dict, a tuple is a list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from queues.key_values import key_values
from queues.keys import canonical
from queues.shown_values import records
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.keyed import ALL_STATES
from sardonyx.state.base import KEY, Store
from sardonyx.state.keyed_entries import AT, COLUMN, ENDED, SHAPE, STATE, TIMER, VALUE, Entry, read_state_key
from sardonyx.state.signature import TABLE

_CHUNK = 10_000
"""Entries that are read at once."""
_AFTER_TIMERS = bytes([TIMER[0] + 1])


class TimerSet(msgspec.Struct, frozen=True, kw_only=True):
    """A timer of a key."""

    name: str
    at: int
    """Microseconds since 1970 (UTC); over an ordinal time a number of rows."""
    by: str
    """``event`` or ``wall``: by the clock of the rows, or that of the machine."""


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """What a task keeps of one key."""

    key: list[Any]
    """Its values, in the order of the task's ``group_by``; none if the task has no key."""
    states: dict[str, Any]
    """By name: the value, the elements of a list, or the items of a map, each as a pair. Of a function of tables: its columns."""
    timers: list[TimerSet] = []


class _Part(NamedTuple):
    entry: Entry
    row: dict[str, Any]


class Live(NamedTuple):
    """Which states have not expired. Those that have stay in the store for a while."""

    ttl: Mapping[str, int] = {}
    """By name of the state, or ``*`` for all others: microseconds from its last write on."""
    clock: int = NEVER
    """The clock of the shard. ``END``: the last clock before the end of the input counts."""

    def __call__(self, name: str, at: int | None) -> bool:
        ttl = self.ttl.get(name, self.ttl.get(ALL_STATES))
        return ttl is None or at is None or at + ttl > self.clock


def keyed_states(store: Store, keys: Collection[bytes] | None = None, live: Live = Live()) -> Iterator[KeyState]:  # noqa: B008
    """What a shard keeps, key by key.

    Args:
        store: its entries.
        keys: the canonical bytes of those that are wanted; None: all.
        live: which states count.
    """
    if live.clock >= END:
        live = live._replace(clock=_before_end(store))
    shape, timers = _shape(store), _timers(store)
    for key, parts in groupby(_parts(store), key=lambda part: part.entry.key):
        left = timers.pop(key, [])
        if keys is None or key in keys:
            states = _of_key([part for part in parts if live(part.entry.name, part.row[AT])], shape)
            if states or left:
                yield KeyState(key=list(key_values(key)), states=states, timers=left)
    for key, left in timers.items():  # keys that have a timer, and no state
        if keys is None or key in keys:
            yield KeyState(key=list(key_values(key)), states={}, timers=left)


def printable(row: KeyState | Mapping[str, Any]) -> KeyState | dict[str, Any]:
    """What is kept of a key, or the row of an open window, in a form that JSON can hold: see :func:`json_form`."""
    if isinstance(row, KeyState):
        return msgspec.structs.replace(row, key=json_form(row.key), states=_fields(row.states))
    return _fields(row)


def json_form(value: Any) -> Any:
    """A value in a form that JSON can hold.

    A dict whose keys are all texts is an object, and any other one is a list of pairs. So the keys 1 and "1" differ. NaN and the
    infinities are the texts ``nan``, ``inf`` and ``-inf``. A time with nanoseconds is a text in ISO 8601, as other times are.
    """
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return _fields(value)
        return [[json_form(key), json_form(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [json_form(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, datetime | timedelta) and type(value) not in (datetime, timedelta):  # of pandas
        return key_values(canonical(value))[0]
    return value


def _fields(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: json_form(value) for name, value in found.items()}


def _before_end(store: Store) -> int:
    """The last clock before the end of the input. The shard keeps it while timers are left. Afterwards nothing is left that had
    expired by that clock, so all that is left counts.
    """
    found = store.read(pa.array([ENDED], pa.binary()))[1]
    return msgspec.msgpack.decode(found[VALUE][0].as_py(), type=int) if found.num_rows else NEVER


def _value(data: bytes) -> Any:
    """The value of these bytes. If it cannot be made without its type, as a dict whose keys are structs, the bytes themselves."""
    try:
        return msgspec.msgpack.decode(data)
    except msgspec.DecodeError:
        return data


def _parts(store: Store) -> Iterator[_Part]:
    first: bytes = STATE
    while True:
        found = store.scan(first, TIMER, _CHUNK)
        for row in records(found):
            yield _Part(read_state_key(row[KEY]), row)
        if found.num_rows < _CHUNK:
            return
        first = found[KEY][-1].as_py() + b"\0"


def _shape(store: Store) -> dict[str, str]:
    found = store.read(pa.array([SHAPE], pa.binary()))[1]
    return msgspec.msgpack.decode(found[VALUE][0].as_py(), type=dict[str, str]) if found.num_rows else {}


def _timers(store: Store) -> dict[bytes, list[TimerSet]]:
    found: dict[bytes, list[TimerSet]] = {}
    for row in store.scan(TIMER, _AFTER_TIMERS).select([KEY, VALUE]).to_pylist():
        end = 5 + int.from_bytes(row[KEY][1:5], "big")
        at, wall = msgspec.msgpack.decode(row[VALUE])[:2]
        timer = TimerSet(name=row[KEY][end:].decode(), at=at, by="wall" if wall else "event")
        found.setdefault(row[KEY][5:end], []).append(timer)
    return found


def _of_key(parts: list[_Part], shape: Mapping[str, str]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    ends: dict[str, tuple[int, int]] = {}
    for entry, row in parts:
        kind = shape.get(entry.name, "value")
        if entry.name == TABLE and row[VALUE] is None:
            states |= {name.removeprefix(COLUMN): value for name, value in row.items() if name.startswith(COLUMN)}
        elif kind == "value":
            states[entry.name] = _value(row[VALUE])
        elif entry.part:
            if kind == "list" and not _within(entry, ends):
                continue
            states.setdefault(entry.name, []).append(_value(row[VALUE]))
        elif kind == "list":  # it stands before the elements: where they begin and end
            ends[entry.name] = msgspec.msgpack.decode(row[VALUE], type=tuple[int, int])
    return states


def _within(entry: Entry, ends: Mapping[str, tuple[int, int]]) -> bool:
    first, last = ends.get(entry.name, (0, 0))
    return first <= int.from_bytes(entry.part, "big") < last


__all__ = ["KeyState", "Live", "TimerSet", "json_form", "keyed_states", "printable"]
