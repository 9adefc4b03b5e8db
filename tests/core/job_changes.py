"""Random changes of a job, each with the place where a diff must show it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from sardonyx.core.spec import JobSpec, Route, TaskSpec
from sardonyx.core.spec_fields import JOB_FIELDS
from tests.random_jobs import looped, with_loops

WORDS = ["a", "b", "m:f", "m:g", "pkg.mod:Class"]
"""None is a duration, of which two may mean the same."""


def other_value(rng: random.Random, kind: inspect.Type, now: Any) -> Any:
    """A value of a type that JSON writes otherwise than ``now``."""
    for _ in range(1_000):
        value = random_value(rng, kind)
        if now is msgspec.UNSET or msgspec.json.encode(value) != msgspec.json.encode(now):
            return value
    raise AssertionError(f"{kind} has one value only")


def random_value(rng: random.Random, kind: inspect.Type) -> Any:
    """Some value of a type that a spec uses."""
    found = next((make for cls, make in _VALUES.items() if isinstance(kind, cls)), None)
    assert found is not None, f"specs had no {kind} so far"
    return found(rng, kind)


_VALUES: dict[type, Callable[[random.Random, Any], Any]] = {
    inspect.NoneType: lambda _rng, _kind: None,
    inspect.BoolType: lambda rng, _: rng.random() < 0.5,
    inspect.IntType: lambda rng, _: rng.randint(0, 5),
    inspect.FloatType: lambda rng, _: rng.choice([0.5, 1.5, 2.5]),
    inspect.StrType: lambda rng, _: rng.choice(WORDS),
    inspect.AnyType: lambda rng, _: rng.choice([1, 1.0, True, "a", None, ["a"], {"a": 1}]),
    inspect.LiteralType: lambda rng, kind: rng.choice(kind.values),
    inspect.UnionType: lambda rng, kind: random_value(rng, rng.choice(kind.types)),
    inspect.ListType: lambda rng, kind: [random_value(rng, kind.item_type) for _ in range(rng.randint(0, 2))],
    inspect.DictType: lambda rng, kind: {
        name: random_value(rng, kind.value_type) for name in rng.sample(["x", "y"], rng.randint(0, 2))
    },
    inspect.StructType: lambda rng, kind: kind.cls(
        **{field.name: random_value(rng, field.type) for field in kind.fields}
    ),
}


@cache
def fields_of(cls: type) -> dict[str, inspect.Type]:
    """The fields of a struct with their types."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return {field.name: field.type for field in info.fields}


def change_field(rng: random.Random, struct: Any, field: str) -> tuple[Any, str]:
    """The struct with another value in a field, or in a field of that; and the dotted name of what was changed."""
    now = getattr(struct, field)
    if field == "tags":  # their order does not count
        return replace(struct, tags=[*now, rng.choice(WORDS)]), field
    if isinstance(now, msgspec.Struct) and rng.random() < 0.7:
        inner, name = change_field(rng, now, rng.choice(now.__struct_fields__))
        return replace(struct, **{field: inner}), f"{field}.{name}"
    return replace(struct, **{field: other_value(rng, fields_of(type(struct))[field], now)}), field


def change_task(rng: random.Random, spec: JobSpec) -> tuple[JobSpec, str]:
    """Another value in a field of one of the tasks."""
    task = rng.choice(spec.catalog)
    field = rng.choice([name for name in task.__struct_fields__ if name != "name"])
    if field == "type":  # the place of a task in the graph follows from it, so there is no choice
        field = "fn"
    changed, name = change_field(rng, task, field)
    if changed.connector == "kafka" and not isinstance(changed.options.get("topic"), str):
        changed = replace(changed, options={**changed.options, "topic": rng.choice(["t0", "other"])})
    catalog = [changed if each.name == task.name else each for each in spec.catalog]
    return replace(spec, catalog=catalog), f"task {task.name} {name}"


def change_job(rng: random.Random, spec: JobSpec) -> tuple[JobSpec, str]:
    """Another value in a field of the job. Users cannot write ``next_partitions``."""
    field = rng.choice([*(each for each in JOB_FIELDS if each != "next_partitions"), "code"])
    if field == "keep":
        return replace(
            spec, keep=rng.choice([each for each in (None, "1 h", "90 ms") if each != spec.keep])
        ), "job keep"
    if field == "cycles":
        other = replace(spec, cycles=[]) if spec.cycles else looped(rng, spec)
        if other != spec:
            return other, "job cycles"
        field = "doc"  # without functions there is no loop
    changed, name = change_field(rng, spec, field)
    return changed, f"job {name}"


def add_task(rng: random.Random, spec: JobSpec) -> tuple[JobSpec, str]:
    """One more output, after some task that is not one; or one more input."""
    targets = [each.name for each in spec.catalog if each.type != "input"]
    sources = [each.name for each in spec.catalog if each.type != "output"]
    if targets and (rng.random() < 0.3 or not sources):
        task = TaskSpec(name="more", type="input", connector="kafka", options={"topic": "more", "start": "earliest"})
        edge = ("more", rng.choice(targets))
        catalog = [task, *spec.catalog]
    else:
        task = TaskSpec(name="more", type="output", connector="blackhole", group_by=rng.choice([None, ["a"]]))
        edge = (rng.choice(sources), "more")
        catalog = [*spec.catalog, task]
    return replace(spec, catalog=catalog, workflow=[*spec.workflow, edge]), "task more "


def remove_task(rng: random.Random, spec: JobSpec) -> tuple[JobSpec, str]:
    """One task less, and its edges."""
    gone = rng.choice(spec.catalog).name
    workflow = [edge for edge in spec.workflow if gone not in edge]
    routes = {name: route for name, route in spec.routes.items() if gone not in name.split(".")}
    catalog = [task for task in spec.catalog if task.name != gone]
    return replace(spec, catalog=catalog, workflow=workflow, routes=routes), f"task {gone} "


def change_edge(rng: random.Random, spec: JobSpec) -> tuple[JobSpec, str]:
    """One edge less, or one between two tasks that had none. No cycle: the catalog is in topological order. Nothing leads into an
    input: a job in which something does is not valid.
    """
    pairs = [
        (one.name, other.name)
        for at, one in enumerate(spec.catalog)
        for other in spec.catalog[at + 1 :]
        if other.type != "input"
    ]
    if not pairs:
        return change_job(rng, spec)
    edge = rng.choice(pairs)
    workflow = [each for each in spec.workflow if each != edge]
    if len(workflow) == len(spec.workflow):
        workflow.append(edge)
    routes = {name: route for name, route in spec.routes.items() if name != ".".join(edge)}
    return replace(spec, workflow=workflow, routes=routes), f"link {'.'.join(edge)} "


def change_route(rng: random.Random, spec: JobSpec) -> tuple[JobSpec, str]:
    """Another condition on an edge."""
    if not spec.workflow:
        return change_job(rng, spec)
    name = ".".join(rng.choice(spec.workflow))
    route, field = change_field(rng, spec.routes.get(name, Route()), rng.choice(["of", "where"]))
    return replace(spec, routes={**spec.routes, name: route}), f"link {name} {field}"


CHANGES = [change_task, change_task, change_task, change_job, add_task, remove_task, change_edge, change_route]


def random_change(rng: random.Random, spec: JobSpec) -> tuple[JobSpec, str]:
    """One change of a job, and where it is: ``task NAME FIELD``, ``link NAME FIELD`` or ``job FIELD``."""
    if len(spec.catalog) < 2:
        return change_job(rng, spec)
    changes = [change for change in CHANGES if change is not add_task or not _has(spec, "more")]
    changed, where = rng.choice(changes)(rng, spec)
    return with_loops(replace(changed, cycles=[]), changed.cycles), where


def _has(spec: JobSpec, name: str) -> bool:
    return any(task.name == name for task in spec.catalog)


def enriched(rng: random.Random, spec: JobSpec) -> JobSpec:
    """The job after some changes, so that a part of the tasks has keys, state, times, routes and the like."""
    for _ in range(rng.randint(0, 6)):
        spec, _ = rng.choice([change_task, change_route])(rng, spec)
    return spec
