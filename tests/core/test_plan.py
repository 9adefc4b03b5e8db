"""A job's plan: it holds each task and each edge once, its limits are the coordinator's, and its pictures are valid."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import msgspec
import pytest

from coordinator.core.state import Plan
from sardonyx.cli.plan_text import WIDTH, as_dot, as_mermaid, as_text
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.plan import Exchange, JobPlan, plan_of
from sardonyx.core.spec import JobSpec, Route, TaskSpec
from sardonyx.core.timing import AggregateSpec, WindowSpec
from sardonyx.job.load import load

HISTORIES = 1000
ROOT = Path(__file__).parents[2]
EXAMPLES = ["clicks", "fraud", "traffic", "wordcount"]


def random_spec(rng: random.Random) -> JobSpec:
    """Inputs of both kinds, functions with and without keys, some of them fused, and outputs."""
    count = rng.randint(2, 9)
    inputs = [f"in{n}" for n in range(rng.randint(1, 3))]
    catalog = [_input(rng, name) for name in inputs]
    workflow: list[tuple[str, str]] = []
    names = list(inputs)
    for number in range(count):
        before = rng.sample(names, rng.randint(1, min(2, len(names))))
        fuse = len(before) == 1 and before[0] not in inputs and rng.random() < 0.3
        catalog.append(_function(rng, f"t{number}", fuse=fuse))
        workflow += [(name, f"t{number}") for name in before]
        names.append(f"t{number}")
    for name in [name for name in names if name not in {source for source, _ in workflow}]:
        topic = rng.random() < 0.5
        options = {"topic": f"out-{name}"} if topic else {"path": "/out", "format": "json"}
        catalog.append(
            TaskSpec(name=f"out-{name}", type="output", connector="kafka" if topic else "files", options=options)
        )
        workflow.append((name, f"out-{name}"))
    rng.shuffle(catalog)
    fused = {task.name for task in catalog if task.fuse}
    routes = {
        f"{source}.{target}": Route(where="m:big")
        for source, target in workflow
        if source not in inputs and target not in fused and rng.random() < 0.2
    }
    return JobSpec(name="random", workflow=workflow, catalog=catalog, routes=routes, partitions=rng.randint(1, 6))


def _input(rng: random.Random, name: str) -> TaskSpec:
    if rng.random() < 0.5:
        return TaskSpec(
            name=name, type="input", connector="kafka", options={"topic": name, "end": rng.choice([None, "latest"])}
        )
    return TaskSpec(name=name, type="input", connector="generator", options={"count": 10})


def _function(rng: random.Random, name: str, *, fuse: bool) -> TaskSpec:
    if fuse:
        return TaskSpec(name=name, type="function", fn="m:f", fuse=True)
    if rng.random() < 0.2:
        window = WindowSpec(kind="everything", aggregate={"n": AggregateSpec(of="count")})
        return TaskSpec(name=name, type="function", window=window, group_by=rng.choice([None, ["user"]]))
    return TaskSpec(
        name=name,
        type="function",
        fn="m:f",
        group_by=rng.choice([None, None, ["user", "page"], "m:key"]),
        consumption=rng.choice(["parallel", "parallel", "sequential"]),
        min_peers=rng.choice([1, 1, 1, 3]),
        max_peers=rng.choice([None, None, 2]),
    )


def test_a_plan_holds_each_task_and_each_edge_once(seed: int) -> None:
    """In random jobs. What has a queue has partitions; rows that meet by key say by which one."""
    kinds = set()
    for number in range(HISTORIES):
        spec = random_spec(random.Random(f"{seed}/plan/{number}"))
        plan = plan_of(spec)
        assert sorted(task for each in plan.operators for task in each.tasks) == sorted(
            task.name for task in spec.catalog
        )
        edges = [(each.source, each.target) for each in plan.exchanges if each.kind != "splits"]
        assert sorted(edges) == sorted(spec.workflow), number
        splits = {each.source for each in plan.exchanges if each.kind == "splits"}
        assert splits == {task.name for task in spec.catalog if task.connector == "generator"}
        for each in plan.exchanges:
            assert (each.partitions is None) == (each.kind in ("topic", "forward"))
            assert bool(each.by) == (each.kind == "key")
            assert (each.where == "m:big") == (f"{each.source}.{each.target}" in spec.routes)
        kinds |= {each.kind for each in plan.exchanges}
    assert kinds == {"any", "key", "one", "splits", "topic", "forward"}


def test_groups_are_what_edges_connect(seed: int) -> None:
    """Groups part the operators as a walk over the edges does; the depth is the longest way, found by trying all."""
    several = 0
    for number in range(HISTORIES):
        spec = random_spec(random.Random(f"{seed}/groups/{number}"))
        plan = plan_of(spec)
        runs_in = {task: each.name for each in plan.operators for task in each.tasks}
        edges = {(runs_in[a], runs_in[b]) for a, b in spec.workflow if runs_in[a] != runs_in[b]}
        colour = {each.name: each.name for each in plan.operators}
        for a, b in itertools.chain.from_iterable([sorted(edges)] * len(colour)):
            colour[a] = colour[b] = min(colour[a], colour[b])
        for group in plan.groups:
            assert len({colour[name] for name in group.operators}) == 1
            assert group.depth == max(longest(name, edges) for name in group.operators)
        assert sorted(name for group in plan.groups for name in group.operators) == sorted(colour)
        assert len(plan.groups) == len(set(colour.values()))
        several += len(plan.groups) > 1
    assert several


def longest(name: str, edges: set[tuple[str, str]]) -> int:
    return max((1 + longest(target, edges) for source, target in edges if source == name), default=0)


def test_peers_are_limited_as_the_coordinator_limits_them(seed: int) -> None:
    """Where no topic of the user decides: as many peers as the coordinator lets a task have."""
    unknown = 0
    for number in range(HISTORIES):
        spec = random_spec(random.Random(f"{seed}/peers/{number}"))
        graph = graph_of(spec, "d", "j")
        facts = {link.name: LinkFacts(spec.partitions) for link in graph.links}
        limit = Plan(graph, facts, []).limit
        for each in plan_of(spec).operators:
            assert each.runs == (each.name in limit)
            if each.most_peers is not None:
                assert each.most_peers == limit[each.name], each
                assert each.least_peers <= each.most_peers
            unknown += each.runs and each.most_peers is None
    assert unknown


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_plan_in_words_fits_a_narrow_screen(name: str) -> None:
    """Of the examples; each operator and each exchange has a line, and the JSON gives the same plan back."""
    plan = load(str(ROOT / "examples" / name / "job.py")).plan
    lines = as_text(plan)
    assert max(map(len, lines)) <= WIDTH
    begun = [line.split()[0] for line in lines if line.startswith("  ")]
    assert set(begun) >= {each.name for each in (*plan.operators, *plan.exchanges)}
    assert msgspec.json.decode(msgspec.json.encode(plan), type=JobPlan) == plan


def test_the_plan_in_the_docs_is_the_one_of_the_example() -> None:
    """What docs/cli.md shows is what the command prints, in words and as a picture."""
    page = (ROOT / "docs" / "cli.md").read_text()
    plan = load(str(ROOT / "examples" / "clicks" / "job.py")).plan
    assert "\n".join(as_text(plan)) in page
    assert "\n".join(as_mermaid(plan)) in page


def odd() -> JobPlan:
    """A plan with what quotes, brackets and backslashes may break."""
    plan = load(str(ROOT / "examples" / "clicks" / "job.py")).plan
    column = 'a"b]|\\n<br>#1;'
    strange = Exchange(name="views.bought", source="views", target="bought", kind="key", by=[column], partitions=1)
    return msgspec.structs.replace(plan, exchanges=[strange, *plan.exchanges[1:]])


def test_pictures_are_valid_whatever_a_column_is_called() -> None:
    """Each line is one node or one edge; within a label nothing ends it."""
    for line in as_dot(odd())[3:-1]:
        text = r'"(?:[^"\\]|\\.)*"'
        assert re.fullmatch(rf"  {text}( -> {text})? \[label={text}(, shape=cylinder)?\]", line), line
    for line in as_mermaid(odd())[1:]:
        text = r'"(?:[\w .,:;/-]|#\d+;|<br/>)*"'
        assert re.fullmatch(rf"  n\d+(\[{text}\]|\[\({text}\)\]| -->\|{text}\| n\d+)", line), line
    labels = [re.findall(r'label="(by a.*?[^\\])"\]', line) for line in as_dot(odd())]
    assert [json.loads(f'"{found[0]}"') for found in labels if found] == ['by a"b]|\\n<br>#1;']
