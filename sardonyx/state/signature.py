"""What a function with keyed state takes: the annotations of its parameters say which states, timers and key it is given."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from sardonyx.core import units
from sardonyx.core.errors import FunctionError
from sardonyx.core.keyed import ALL_STATES, KeyedSpec
from sardonyx.core.text import listed
from sardonyx.runtime import functions as fns
from sardonyx.state.codec import Codec, shape_of, type_text, unhashed, unstorable
from sardonyx.state.handles import Cells, Handle, Key, ListState, MapState, State
from sardonyx.state.timers import Timer, Timers

Kind = Literal["value", "list", "map"]
_KINDS: dict[type[Handle], Kind] = {State: "value", ListState: "list", MapState: "map"}
_MAKES: dict[Kind, type[Handle]] = {kind: handle for handle, kind in _KINDS.items()}
_NAMES = {known.__name__: known for known in (State, ListState, MapState, Timers, Timer, Key)}
"""Our own names in annotations, which a module may import for type checking only."""
TABLE = "table"
"""The name under which the state of a function of tables goes."""


class StateType(NamedTuple):
    """A state by its annotation."""

    name: str
    kind: Kind
    codec: Codec[Any]
    parts: tuple[Any, ...]
    """The types in the brackets."""
    ttl: int | None
    """In microseconds."""

    def handle(self, cells: Cells) -> Handle:
        """A handle for one key."""
        return _MAKES[self.kind](self.codec, cells, self.ttl)

    def shape(self) -> dict[str, tuple[str, bool]]:
        """By the path of each part of its type: what it is, and whether it may be added later."""
        found: dict[str, tuple[str, bool]] = {self.name: (self.kind, True)}
        for place, part in zip((".key", ".item") if self.kind == "map" else ("",), self.parts, strict=True):
            for path, text, optional in shape_of(part):
                found[f"{self.name}{place}.{path}" if path else f"{self.name}{place}:"] = (text, optional)
        return found


class Takes(NamedTuple):
    """What one function is given, by its parameters."""

    states: dict[str, StateType]
    timers: str | None
    key: str | None


class Signature(NamedTuple):
    """What the functions of a task with keyed state are given."""

    tables: bool
    """Whether they take two Arrow tables."""
    states: dict[str, StateType]
    row: Takes
    timer: Takes | None
    """What ``on_timer`` takes; None: there is no such function."""
    declared: pa.Schema | None
    """Of functions of tables: the columns of the state."""
    ttl: int | None
    """Of functions of tables: how long a state is kept, in microseconds."""

    def shape(self) -> dict[str, tuple[str, bool]]:
        """By path: what each part of the states is, and whether it may be added later."""
        found: dict[str, tuple[str, bool]] = {}
        for state in self.states.values():
            found |= state.shape()
        return found


def signature_of(
    spec: KeyedSpec,
    fn: Callable[..., Any],
    on_timer: Callable[..., Any] | None = None,
    declared: pa.Schema | None = None,
) -> Signature:
    """What the functions of a task are given.

    Args:
        spec: the task.
        fn: its function.
        on_timer: its function of timers.
        declared: the columns that ``spec.state`` declares.

    Raises:
        FunctionError: ``SX-FN-ANNOTATION``; ``SX-KEYED-FUNCTION``, the functions do not fit the task; ``SX-STATE-TYPE``, a type
            cannot be kept.
    """
    name = fn.__name__
    takes = fns.takes(fn)
    if takes not in ("record", "arrow"):
        raise _unfit(
            name, "it takes a DataFrame", "annotate its first parameter as dict (one row at a time) or pyarrow.Table"
        )
    if takes == "arrow":
        return _of_tables(spec, fn, on_timer, declared)
    if spec.state is not None:
        raise _unfit(
            name, "state= declares columns, but it takes one row at a time", "remove state=, or take two pyarrow.Table"
        )
    row = _taken(fn, spec)
    timer = None if on_timer is None else _of_timer(on_timer, spec)
    if row.timers and on_timer is None:
        fix = "give on_timer=, or remove the parameter"
        raise _unfit(name, f"its parameter {row.timers!r} sets timers, and the task has no on_timer", fix)
    states = dict(row.states)
    for state in () if timer is None else timer.states.values():
        other = states.setdefault(state.name, state)
        if (other.kind, other.parts) != (state.kind, state.parts):
            raise _unfit(
                getattr(on_timer, "__name__", "on_timer"),
                f"its state {state.name!r} is of another type than that of {name!r}",
                "annotate both in the same way: states of one name are one state",
            )
    if not states and row.timers is None:
        fix = "annotate a parameter as State[T], ListState[T], MapState[K, V] or Timers, or make it a plain task"
        raise _unfit(name, "none of its parameters is a state", fix)
    unknown = [each for each in spec.ttl if each not in (*states, ALL_STATES)]
    if unknown:
        raise _unfit(
            name, f"ttl names the state {unknown[0]!r}, which it does not have", f"name {listed(states, last='or')}"
        )
    return Signature(False, states, row, timer, None, None)


def roles_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the parameters behind the first one that are states, timers or the key; others are params.

    Raises:
        FunctionError: ``SX-KEYED-FUNCTION``, an annotation of a state cannot be read.
    """
    parameters = list(inspect.signature(fn).parameters.values())[1:]
    found = {each.name: _resolved(each.annotation, fn) for each in parameters}
    return {name: kind for name, kind in found.items() if _is_role(kind)}


def _is_role(kind: object) -> bool:
    return (typing.get_origin(kind) or kind) in (*_KINDS, Timers, Key)


def _of_timer(on_timer: Callable[..., Any], spec: KeyedSpec) -> Takes:
    name = getattr(on_timer, "__name__", "on_timer")
    first = next(iter(inspect.signature(on_timer).parameters.values()), None)
    if first is None or _resolved(first.annotation, on_timer) is not Timer:
        raise _unfit(name, "it is called for timers", "annotate its first parameter as Timer")
    if inspect.iscoroutinefunction(on_timer):
        raise _unfit(name, "it is async, and functions are called plainly", "define it with def")
    return _taken(on_timer, spec)


def _of_tables(
    spec: KeyedSpec, fn: Callable[..., Any], on_timer: Callable[..., Any] | None, declared: pa.Schema | None
) -> Signature:
    name = fn.__name__
    parameters = list(inspect.signature(fn).parameters.values())
    if on_timer is not None or any(_is_role(_resolved(each.annotation, fn)) for each in parameters[1:]):
        fix = "take one row (dict) at a time, or remove them"
        raise _unfit(name, "a function of tables has neither timers nor states by annotation", fix)
    if len(parameters) < 2 or parameters[1].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        fix = "let it take two: def f(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]"
        raise _unfit(name, "it takes one table, and has no parameter for the state", fix)
    if declared is None:
        fix = 'give state=, such as state="total double, n bigint"'
        raise _unfit(name, "it takes tables, and the columns of its state are not declared", fix)
    unknown = [each for each in spec.ttl if each != ALL_STATES]
    if unknown:
        raise _unfit(
            name, f"ttl names the state {unknown[0]!r}, but the state of tables has no name", 'write ttl="..."'
        )
    takes = Takes({}, None, None)
    return Signature(True, {}, takes, None, declared, _ttl(spec, ALL_STATES))


def _taken(fn: Callable[..., Any], spec: KeyedSpec) -> Takes:
    states: dict[str, StateType] = {}
    timers = key = None
    for name, kind in roles_of(fn).items():
        if kind is Timers:
            timers = name
        elif kind is Key:
            key = name
        else:
            states[name] = _state(fn, name, kind, spec)
    return Takes(states, timers, key)


def _state(fn: Callable[..., Any], name: str, annotation: Any, spec: KeyedSpec) -> StateType:
    origin = typing.get_origin(annotation) or annotation
    kind = _KINDS[origin]
    parts = typing.get_args(annotation) or ((Any,) if kind != "map" else ())
    if kind == "map":
        if len(parts) != 2:
            raise _type(fn, name, annotation, "a map has a type of keys and a type of values", "write MapState[K, V]")
        wrong = unhashed(parts[0])
        if wrong:
            raise _type(fn, name, annotation, wrong, "choose another type of keys")
    for part in parts[-1:]:
        wrong = unstorable(part)
        if wrong:
            fix = "keep numbers, texts, bytes, times, lists, dicts, msgspec Structs or dataclasses of them"
            raise _type(fn, name, annotation, wrong, fix)
    whole = tuple[parts] if kind == "map" else parts[0]  # type: ignore[valid-type]
    return StateType(name, kind, Codec(whole, name), tuple(parts), _ttl(spec, name))


def _ttl(spec: KeyedSpec, name: str) -> int | None:
    text = spec.ttl.get(name, spec.ttl.get(ALL_STATES))
    return None if text is None else round(units.seconds(text) * 1_000_000)


def _resolved(annotation: object, fn: Callable[..., Any]) -> object:
    """The object that an annotation names; of one that cannot be evaluated here and is none of ours, itself."""
    if not isinstance(annotation, str):
        return annotation
    whole = inspect.unwrap(fn)
    scope: Mapping[str, Any] = {**_NAMES, **getattr(whole, "__globals__", {})}
    try:
        return eval(annotation, dict(scope))  # noqa: S307 - the user's own annotation, as typing.get_type_hints does
    except Exception as error:
        if not any(f"{ours}[" in annotation for ours in ("State", "ListState", "MapState")):
            return annotation
        raise _unfit(
            getattr(fn, "__name__", str(fn)),
            f"the annotation {annotation!r} cannot be read: {type(error).__name__}: {error}",
            "import what it names at run time, not only under `if TYPE_CHECKING:`",
        ) from error


def _unfit(name: str, cause: str, fix: str) -> FunctionError:
    return FunctionError(
        "SX-KEYED-FUNCTION",
        f"function {name!r} does not fit a task with keyed state",
        cause=cause,
        fix=fix,
        where={"function": name},
    )


def _type(fn: Callable[..., Any], name: str, annotation: Any, cause: str, fix: str) -> FunctionError:
    return FunctionError(
        "SX-STATE-TYPE",
        f"the state {name!r} of function {fn.__name__!r} cannot be kept: {type_text(annotation)}",
        cause=cause,
        fix=fix,
        where={"function": fn.__name__, "state": name},
    )


def differences(old: Mapping[str, str], new: Mapping[str, tuple[str, bool]]) -> Iterator[str]:
    """What keeps states that were written with one shape from being read with another."""
    for path, text in sorted(old.items()):
        if path not in new:
            yield f"{path.rstrip(':')} is gone"
        elif new[path][0] != text:
            yield f"{path.rstrip(':')} was {text} and is {new[path][0]}"
    for path, (text, optional) in sorted(new.items()):
        whole = path.partition(".")[0].rstrip(":")
        if path not in old and whole in old and not optional:
            yield f"{path.rstrip(':')} ({text}) is new, and has no default"
