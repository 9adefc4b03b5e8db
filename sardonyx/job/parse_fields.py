"""The values of fields as they are written in a job file, and what is wrong with them."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

import msgspec

from sardonyx.core.errors import SardonyxError
from sardonyx.core.graphing import GraphSpec
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.joining import RelationSpec
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.secrets import Secret, reference_problem
from sardonyx.core.spec import CycleSpec, JobSpec, OnError, TaskSpec
from sardonyx.core.stores import SqlStore
from sardonyx.core.text import listed, near, nearest, shorten
from sardonyx.core.timing import TimeSpec, WindowSpec
from sardonyx.job.wanted import WANTED

DECIDED_BY_US = ("code", "bounds", "next_partitions")
"""Fields of a job and of its routes that no job file has."""
_WHAT: dict[type[msgspec.Struct], str] = {
    JobSpec: "a job",
    TaskSpec: "a task",
    OnError: "on_error",
    TimeSpec: "time",
    WindowSpec: "window",
    RelationSpec: "relation",
    KeyedSpec: "keyed",
    GraphSpec: "graph",
    IterateSpec: "iterate",
    CycleSpec: "a loop",
    SqlStore: "store",
}
_OF_WINDOWS = frozenset(WindowSpec.__struct_fields__)
_OF_KEYED = frozenset(KeyedSpec.__struct_fields__)


def fields_of(
    kind: type[msgspec.Struct],
    written: Mapping[Any, Any],
    task: str,
    problems: list[SardonyxError],
    skip: tuple[str, ...] = (),
    what: str = "",
) -> dict[str, Any]:
    """The values that can be read, by field; the others are added to ``problems``."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    known = {name: field for name, field in fields.items() if name not in skip}
    named = [name for name in fields if name not in DECIDED_BY_US]
    what = what or _WHAT[kind]
    for key in written:
        if key not in known:
            hint = near(str(key), named)
            fix = f"choose from {', '.join(named)}"
            if kind is TaskSpec and key in _OF_KEYED and (key not in _OF_WINDOWS or "keyed" in written):
                fix = "write it into keyed"
            elif kind is TaskSpec and key in _OF_WINDOWS:
                fix = "write it into window"
            problems.append(problem(task, f"{what} has no {key!r}{hint}", fix))
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name not in written:
            if field.required and not any(nearest(str(key), named) == name for key in written if key not in known):
                problems.append(problem(task, f"{what} needs {name}", f"add {name}"))
            continue
        try:
            value = msgspec.convert(written[name], field.type)
            if value != field.default:  # a default that is written and one that is not give the same spec
                values[name] = value
        except msgspec.ValidationError as error:
            wanted = _choice(field.type) or WANTED.get(name)
            cause = "" if wanted else str(error).replace(" - at `$`", "").replace("`", "")
            meant = nearest(written[name], _words(field.type)) if isinstance(written[name], str) else None
            hint = f"; did you mean {meant!r}?" if meant else ""
            fix = f"write {wanted}" if wanted else f"correct {name}"
            problems.append(problem(task, f"{name} cannot be {shown(written[name])}{hint}", fix, cause=cause))
            if meant:  # the rest is checked as it was meant: one mistake, one problem
                values[name] = meant
    return values


def _choice(kind: Any) -> str:
    """The words that a field may hold; empty if it is not a choice of words."""
    return listed(_words(kind), last="or")


def _words(kind: Any) -> tuple[str, ...]:
    """The words of a choice, which a field may also leave out."""
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    return tuple(word for inner in typing.get_args(kind) for word in _words(inner))


def plain(value: Any, at: str) -> tuple[Any, str]:
    """The value as JSON holds it (tuples become lists), and the part of it that JSON cannot hold."""
    if isinstance(value, Secret):
        value = value.plain()
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        wrong = reference_problem(dict(value))
        wrong = f"{at}: {wrong}, so it" if wrong else ""
        for key, item in value.items():
            found[key], inner = plain(item, f"{at}.{key}")
            wrong = wrong or ("" if isinstance(key, str) else f"{at}: the key {shown(key)}") or inner
        return found, wrong
    if isinstance(value, list | tuple):
        items = [plain(item, f"{at}[{index}]") for index, item in enumerate(value)]
        return [item for item, _ in items], next((inner for _, inner in items if inner), "")
    if value is None or type(value) in (str, bool, int, float):
        finite = not isinstance(value, float) or math.isfinite(value)
        fits = not isinstance(value, int) or -(2**63) <= value < 2**63
        return value, "" if finite and fits else f"{at}: {shown(value)}"
    hint = " (write it as a text)" if isinstance(value, date) else ""
    return value, f"{at}: {shown(value)} of type {type(value).__name__}{hint}"


def shown(value: Any) -> str:
    return shorten(repr(value))


def kind_of(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} ({shown(value)})"


def problem(task: str, message: str, fix: str, *, cause: str = "", code: str = "SX-JOB-FIELD") -> SardonyxError:
    message = f"task {task!r}: {message}" if task else message
    return SardonyxError(code, message, cause=cause, fix=fix, where={"task": task} if task else {})


__all__ = ["DECIDED_BY_US", "fields_of", "kind_of", "plain", "problem", "shown"]
