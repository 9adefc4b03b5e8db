"""Jobs of any shape, drawn from a seeded source of chance."""

from __future__ import annotations

import random

import msgspec

from sardonyx.core.spec import JobSpec, TaskSpec

TAGS = ["gpu", "zone=a"]
"""All tags that a random job asks for."""


def random_spec(rng: random.Random, name: str, endless: float = 0.3, *, tags: float = 0.0) -> JobSpec:
    """A job of two to five tasks in any shape, sometimes with topics in place, sometimes without end. ``endless``: how often an
    input topic has no end. ``tags``: how often a task or the job asks for some.
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
    return JobSpec(
        name=name,
        workflow=sorted(edges),
        catalog=catalog,
        partitions=rng.randint(1, 4),
        failure_limit=rng.randint(0, 5),
        priority=rng.choice([0, 0, 0, 1, -1]),
        weight=rng.choice([1.0, 1.0, 1.0, 2.0, 0.3]),
        percentage=rng.choice([None, None, 70.0, 30.0, 12.5]),
        max_peers=rng.choice([None, None, None, 1, 3]),
        tags=some_tags(),
    )


def spoilt(rng: random.Random, spec: JobSpec) -> JobSpec:
    """The same job with something in it that no client would hand in."""
    first, last = spec.catalog[0], spec.catalog[-1]
    workflow, catalog = list(spec.workflow), list(spec.catalog)
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
