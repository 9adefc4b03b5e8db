"""Jobs of any shape, drawn from a seeded source of chance."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from sardonyx.core.spec import CycleSpec, JobSpec, TaskSpec
from sardonyx.core.structure import loop_problems, reach_of, unknown_tasks
from sardonyx.core.timing import TimeSpec

TAGS = ["gpu", "zone=a"]
"""All tags that a random job asks for."""


def random_spec(
    rng: random.Random,
    name: str,
    endless: float = 0.3,
    *,
    tags: float = 0.0,
    clocked: float = 0.0,
    loops: float = 0.0,
) -> JobSpec:
    """A job of two to five tasks in any shape, sometimes with topics in place, sometimes without end.

    Args:
        rng: chance.
        name: of the job.
        endless: how often an input topic has no end.
        tags: how often a task or the job asks for some.
        clocked: how often its rows have times, and the job checkpoints.
        loops: how often a job with a function, and without checkpoints, has a loop.
    """

    def some_tags() -> list[str]:
        return rng.sample(TAGS, rng.randint(1, 2)) if tags and rng.random() < tags else []

    size = rng.randint(2, 5)
    edges: set[tuple[str, str]] = set()
    for task in range(1, size):
        for source in rng.sample(range(task), rng.randint(1, min(2, task))):
            edges.add((f"t{source}", f"t{task}"))
    catalog = []
    for task in (f"t{index}" for index in range(size)):
        has_in, has_out = any(edge[1] == task for edge in edges), any(edge[0] == task for edge in edges)
        kind = "input" if not has_in else "function" if has_out else "output"
        options: dict[str, object] = {}
        connector = {"input": "generator", "output": "blackhole", "function": None}[kind]
        if kind != "function" and rng.random() < max(endless, 0.3):
            connector = "kafka"
            options = {"topic": task, "end": None if kind == "input" and rng.random() < endless else "latest"}
        catalog.append(
            TaskSpec(
                name=task,
                type=kind,
                connector=connector,
                options=options,
                fn="m:f" if kind == "function" else None,
                consumption="sequential" if rng.random() < 0.2 else "concurrent",
                min_peers=rng.choice([1, 1, 1, 2, 3]),
                max_peers=rng.choice([None, None, 2]),
                tags=some_tags(),
            )
        )
    every = rng.choice(["1 min", "1 min", "2 min"]) if clocked and rng.random() < clocked else None
    if every is not None:
        clocked = msgspec.structs.replace
        catalog = [clocked(task, time=TimeSpec(column="at")) if task.type == "input" else task for task in catalog]
    spec = JobSpec(
        name=name,
        workflow=sorted(edges),
        catalog=catalog,
        checkpoint_every=every,
        partitions=rng.randint(1, 4),
        failure_limit=rng.randint(0, 5),
        priority=rng.choice([0, 0, 0, 1, -1]),
        weight=rng.choice([1.0, 1.0, 1.0, 2.0, 0.3]),
        percentage=rng.choice([None, None, 70.0, 30.0, 12.5]),
        max_peers=rng.choice([None, None, None, 1, 3]),
        tags=some_tags(),
    )
    own = of_its_own(spec)
    return looped(own, spec) if every is None and own.random() < loops else spec


def of_its_own(spec: JobSpec) -> random.Random:
    """Chance that follows from a job. So what is drawn from it does not change what is drawn beside it."""
    return random.Random(msgspec.json.encode(spec))


def looped(rng: random.Random, spec: JobSpec) -> JobSpec:
    """The job with a loop, if it has a function."""
    functions = [task.name for task in spec.catalog if task.type == "function"]
    if not functions:
        return spec
    first, reach = rng.choice(functions), reach_of(spec)
    ends = [name for name in functions if name in reach.after(first)]
    back = {(rng.choice(ends), first) for _ in range(rng.randint(1, 2))}
    return with_loops(spec, [CycleSpec(name="loop", back=sorted(back), max_hops=rng.choice([None, 5]))])


def with_loops(spec: JobSpec, cycles: list[CycleSpec]) -> JobSpec:
    """The job with these loops, or without any if they do not fit."""
    found = msgspec.structs.replace(spec, cycles=cycles)
    return spec if any(unknown_tasks(found)) or any(loop_problems(found)) else found


def regrown(rng: random.Random, spec: JobSpec, names: Iterator[str]) -> JobSpec:
    """The job with a task or two more, or with some less, or both. ``names``: for new ones."""
    catalog, workflow = list(spec.catalog), [*map(tuple, spec.workflow)]
    if rng.random() < 0.6:
        gone = rng.choice(catalog).name
        catalog = [task for task in catalog if task.name != gone]
        workflow = [edge for edge in workflow if gone not in edge]
    if catalog and rng.random() < 0.6:
        sources = [task.name for task in catalog if task.type != "output"]
        for source in rng.sample(sources, min(len(sources), rng.randint(1, 2))):
            if rng.random() < 0.5:
                name = next(names)
                catalog.append(TaskSpec(name=name, type="function", fn="m:f"))
                workflow.append((source, name))
                source = name  # noqa: PLW2901 - the output comes after it
            name, topic = next(names), rng.random() < 0.3
            options = {"topic": name} if topic else {}
            catalog.append(
                TaskSpec(name=name, type="output", connector="kafka" if topic else "blackhole", options=options)
            )
            workflow.append((source, name))
    while True:  # what has lost its beginning or its end goes, too
        reached, left = {b for _, b in workflow}, {a for a, _ in workflow}
        stand = {
            task.name
            for task in catalog
            if (task.type == "input" or task.name in reached) and (task.type == "output" or task.name in left)
        }
        if all(task.name in stand for task in catalog):
            break
        catalog = [task for task in catalog if task.name in stand]
        workflow = [(a, b) for a, b in workflow if a in stand and b in stand]
    if not catalog:
        return spec
    return with_loops(msgspec.structs.replace(spec, catalog=catalog, workflow=workflow, cycles=[]), spec.cycles)


def spoilt(rng: random.Random, spec: JobSpec) -> JobSpec:
    """The same job with something in it that no client would hand in."""
    first, last = spec.catalog[0], spec.catalog[-1]
    workflow, catalog = list(spec.workflow), list(spec.catalog)
    own = of_its_own(spec)
    if own.random() < 0.1:
        back = own.choice([[], [(first.name, last.name)], [(last.name, "nowhere")], [workflow[0]]])
        return msgspec.structs.replace(spec, cycles=[CycleSpec(name="loop", back=back)])
    match rng.randrange(11):
        case 9:
            return msgspec.structs.replace(spec, weight=0.0, max_peers=rng.choice([None, 0]))
        case 10:
            return msgspec.structs.replace(spec, tags=["a b"])
        case 0:
            workflow.append(workflow[0])
        case 1:
            workflow.append((last.name, first.name))
        case 2:
            workflow.append((first.name, "nowhere"))
        case 3:
            catalog.append(first)
        case 4:
            catalog.append(msgspec.structs.replace(last, name="a/b"))
        case 5:
            catalog.append(msgspec.structs.replace(rng.choice([first, last]), name="alone"))
        case 6:
            catalog[0] = msgspec.structs.replace(first, connector="kafka", options={})
        case 7:
            index = rng.randrange(len(catalog))
            catalog[index] = msgspec.structs.replace(catalog[index], type=rng.choice(["input", "output"]))
        case _:
            workflow, catalog = [], []
    return msgspec.structs.replace(spec, workflow=workflow, catalog=catalog)
