"""The fields of a job's spec as a flat table, and what a change of each one means. Pure.

A field is named as users write it: ``batch_size``, ``on_error.retries``, ``window.aggregate.hits``, ``options.topic``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.units import seconds

DifferenceKind = Literal[
    "added",
    "removed",
    "type",
    "function",
    "settings",
    "key",
    "state",
    "input",
    "output",
    "link",
    "route",
    "share",
    "doc",
]
"""What differs. ``type``: a task is an input, a function or an output. ``function``: the user's code, or what it is given.
``settings``: how the task runs. ``key``: what its rows are grouped by. ``state``: the shape of its state, or where it is kept.
``input``, ``output``: what it reads or writes, and how. ``link``: what carries the rows of an edge, such as a queue or the user's
topic. ``route``: which rows go over an edge. ``share``: what the job gets of the cluster's peers. ``doc``: only a description."""

JOB_FIELDS: Mapping[str, DifferenceKind] = {
    "name": "settings",
    "partitions": "settings",
    "next_partitions": "settings",
    "failure_limit": "settings",
    "max_backlog": "settings",
    "keep": "settings",
    "priority": "share",
    "weight": "share",
    "percentage": "share",
    "max_peers": "share",
    "tags": "settings",
    "lineage": "settings",
    "checkpoint_every": "settings",
    "cycles": "settings",
    "doc": "doc",
}
"""The fields of a job: all but its tasks, its edges with their routes, and the hash of its code."""

TASK_FIELDS: Mapping[str, DifferenceKind] = {
    "type": "type",
    "connector": "input",
    "options": "input",
    "time": "input",
    "fn": "function",
    "params": "function",
    "lifecycle": "function",
    "schema": "function",
    "consumption": "settings",
    "min_peers": "settings",
    "max_peers": "settings",
    "batch_size": "settings",
    "batch_timeout": "settings",
    "on_error": "settings",
    "fuse": "settings",
    "tags": "settings",
    "standby": "settings",
    "group_by": "key",
    "window": "state",
    "window.emit": "settings",
    "window.accumulate": "settings",
    "window.grace": "settings",
    "window.allowed_lateness": "settings",
    "window.late": "settings",
    "window.state_limit": "settings",
    "keyed": "state",
    "keyed.on_timer": "function",
    "keyed.state_limit": "settings",
    "relation": "state",
    "relation.right_on": "key",
    "relation.how": "settings",
    "relation.prefix": "settings",
    "relation.wait": "settings",
    "relation.emit": "settings",
    "relation.grace": "settings",
    "relation.late": "settings",
    "relation.state_limit": "settings",
    "graph": "state",
    "graph.graph": "doc",
    "graph.directed": "settings",
    "graph.id": "settings",
    "graph.start": "settings",
    "graph.preferences": "settings",
    "graph.damping": "settings",
    "graph.tolerance": "settings",
    "graph.max_supersteps": "settings",
    "graph.hops": "settings",
    "graph.send": "function",
    "graph.state": "settings",
    "graph.first": "settings",
    "graph.combine": "settings",
    "graph.aggregate": "settings",
    "graph.until": "settings",
    "graph.master": "function",
    "graph.always": "settings",
    "graph.remove": "settings",
    "graph.emit": "settings",
    "graph.state_limit": "settings",
    "iterate": "state",
    "iterate.state": "settings",
    "iterate.aggregate": "settings",
    "iterate.group_by": "settings",
    "iterate.start": "settings",
    "iterate.until": "settings",
    "iterate.max_rounds": "settings",
    "iterate.results": "settings",
    "iterate.state_limit": "settings",
    "doc": "doc",
}
"""Of a task: all but its name. A field of a field that is not listed is of the same kind as the field around it."""

_LENGTHS = frozenset(
    {
        "keep",
        "checkpoint_every",
        "batch_timeout",
        "on_error.backoff",
        "time.delay",
        "time.idle",
        "time.ahead",
        "window.size",
        "window.every",
        "window.gap",
        "window.most",
        "window.emit",
        "window.grace",
        "window.allowed_lateness",
        "graph.window.size",
        "relation.within",
        "relation.wait",
        "relation.emit",
        "relation.grace",
    }
)
"""Fields that hold durations, besides those of ``keyed.ttl``: "60 s" and "1 min" are the same."""


class Change(NamedTuple):
    """A field with two values. None: there is none, or it is not set."""

    field: str
    before: Any
    after: Any


def job_changes(old: JobSpec, new: JobSpec) -> Iterator[Change]:
    """The fields of :data:`JOB_FIELDS` in which two jobs differ."""
    for field in JOB_FIELDS:
        before, after = (msgspec.to_builtins(getattr(spec, field)) for spec in (old, new))
        if not same(field, before, after):
            yield Change(field, before, after)


def task_changes(old: TaskSpec, new: TaskSpec) -> Iterator[Change]:
    """The fields in which two tasks differ, except for their names."""
    for field in old.__struct_fields__:
        if field != "name":
            yield from _changes(field, getattr(old, field), getattr(new, field))


def _changes(field: str, old: Any, new: Any) -> Iterator[Change]:
    """Of two structs, the fields that differ; of two dicts, the values. A database is one value, and so is what a dict holds."""
    old, new = (None if value is msgspec.UNSET else value for value in (old, new))
    if isinstance(old, msgspec.Struct) and type(old) is type(new) and not field.endswith(".store"):
        for name in old.__struct_fields__:
            yield from _changes(f"{field}.{name}", getattr(old, name), getattr(new, name))
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            before, after = msgspec.to_builtins(old.get(name)), msgspec.to_builtins(new.get(name))
            if name not in old or name not in new or not same(f"{field}.{name}", before, after):
                yield Change(f"{field}.{name}", before, after)
    elif not same(field, before := msgspec.to_builtins(old), after := msgspec.to_builtins(new)):
        yield Change(field, before, after)


def kind_of_field(field: str, task: TaskSpec) -> DifferenceKind:
    """What a change of a task's field means."""
    name = field
    while name not in TASK_FIELDS:
        name = name.rpartition(".")[0]
    kind = TASK_FIELDS[name]
    return "output" if kind == "input" and task.type == "output" else kind


def same(field: str, one: Any, other: Any) -> bool:
    """Whether two values of a field mean the same: durations may be written in several ways, and tags in any order.

    To a user's function 1, 1.0 and true are three values, so they are compared as JSON writes them.
    """
    meaning = _meaning_of(field)
    return _json(meaning(one)) == _json(meaning(other))


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _meaning_of(field: str) -> Callable[[Any], Any]:
    if field == "tags":
        return sorted
    return _length if field in _LENGTHS or field.startswith("keyed.ttl.") else lambda value: value


def _length(value: Any) -> Any:
    """A duration in seconds. Bare numbers count rows, and stay as they are."""
    if isinstance(value, list):
        return [_length(each) for each in value]
    if not isinstance(value, str):
        return value
    before, every, length = value.rpartition("every ")
    positive = length.removeprefix("-")  # the bounds of a join may begin with a minus
    try:
        return [before, every, positive != length, seconds(positive)]
    except ValueError:
        return value


__all__ = [
    "JOB_FIELDS",
    "TASK_FIELDS",
    "Change",
    "DifferenceKind",
    "job_changes",
    "kind_of_field",
    "same",
    "task_changes",
]
