"""A job's plan: it holds each task and each edge once, its limits are the coordinator's, and its pictures are valid."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from coordinator.core.plan import Plan
from sardonyx import Count, Job, JobInvalid, files, generator, kafka, tumbling
from sardonyx.cli.app import app
from sardonyx.cli.plan_text import WIDTH, as_dot, as_mermaid, as_text
from sardonyx.core.events import RULES, LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.plan import Exchange, JobPlan, plan_of
from sardonyx.core.spec import JobSpec, Route, TaskSpec
from sardonyx.core.timing import AggregateSpec, WindowSpec
from sardonyx.job.load import load
from tests.sizes import histories

HISTORIES = histories(200, whole=1_000)
ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("plan.json")
EXAMPLES = ["clicks", "crawl", "fraud", "traffic", "wordcount"]


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
    """As many as the coordinator lets a task have if the user's topics are wide. Only they can make it unknown."""
    unknown = 0
    for number in range(HISTORIES):
        spec = random_spec(random.Random(f"{seed}/peers/{number}"))
        graph = graph_of(spec, "d", "j")
        facts = {link.name: LinkFacts(100 if link.kind == "input" else spec.partitions) for link in graph.links}
        limit = Plan(graph, facts, [], RULES).limit
        for each in plan_of(spec).operators:
            assert each.runs == (each.name in limit)
            if each.runs:
                assert limit[each.name] == (each.most_peers or 100), each
                assert each.least_peers <= limit[each.name]
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


ROWS = {"customer_identifier": "key", "at": {"kind": "moment", "start": "2026-01-01T00:00:00Z", "step": "1 s"}}


def rich() -> Job:
    """A job with each kind of operator, and long names."""
    job = Job("customer-relationship-reconciliation", partitions=4)
    reads = [
        job.input(f"read-exports-of-{name}", generator(100, columns=ROWS), time="at", min_peers=2)
        for name in ("customers", "addresses")
    ]
    joined = job.join(
        "customers-with-addresses", reads[0], reads[1], on="customer_identifier", within="10 min", max_peers=3
    )
    cleaned = job.task("normalise-postal-codes", "tests.core.test_plan:clean_postal_codes", after=joined)
    short = job.task("shorten-names", "tests.core.test_plan:clean_postal_codes", after=cleaned, fuse=True)
    counted = job.task("count-per-country", "tests.core.test_plan:count", after=short, group_by=["country_code"])
    job.output("write", files("/out", format="json"), after=counted)
    per_hour = job.window(
        "per-hour", tumbling("1 h"), after=joined, group_by="customer_identifier", aggregate={"n": Count()}
    )
    job.output("keep", files("/kept", format="json"), after=per_hour)
    job.output("publish", kafka("reconciled"), after=short, sequential=True)
    return job


def test_a_job_shows_its_plan_before_it_is_loaded() -> None:
    """``job.plan()`` needs neither the functions nor the files; it is what loading gives, and refuses what is no job."""
    job = rich()
    assert job.plan() == plan_of(job.spec())
    job.task("before", "m:f", after="after")
    job.task("after", "m:f", after="before")
    with pytest.raises(JobInvalid, match="before -> after -> before") as raised:
        job.plan()
    assert "SX-JOB-CYCLE" in [each.code for each in raised.value.problems]


def test_the_json_of_a_plan_is_the_one_that_is_kept() -> None:
    """Programs read it: it stays as the file beside this test has it."""
    shown = msgspec.json.format(msgspec.json.encode(rich().plan()), indent=2).decode()
    assert shown + "\n" == GOLDEN.read_text("utf-8")


def test_long_names_are_put_on_lines_of_their_own() -> None:
    """Nothing is wider than 80 columns, no name is cut, and each function and each key is there."""
    plan = rich().plan()
    text = as_text(plan)
    assert max(map(len, text)) <= WIDTH
    assert not [line for line in text if line.endswith("-")]
    words = set(re.split(r"[\s,;:]+(?!\w)|\s", "\n".join(text)))
    assert words >= {each.name for each in (*plan.operators, *plan.exchanges)}
    assert words >= {"tests.core.test_plan:clean_postal_codes", "customer_identifier", "country_code"}


def test_of_a_running_job_the_peers_of_each_task_are_shown() -> None:
    """Next to how many it can use. What no peer runs has none."""
    spec = load(str(ROOT / "examples" / "clicks" / "job.py")).spec
    lines = as_text(plan_of(spec), {"views": 3})
    assert "  views     source     1 to 8 peers, now 3" in lines
    assert any(line.startswith("  bought ") and "1 to 8 peers, now 0  state in memory" in line for line in lines)
    assert not any("now" in line for line in as_text(plan_of(spec)))


def test_check_shows_the_plan_in_each_form() -> None:
    """JSON as a form is what ``--json`` prints, on one line; the pictures begin as their languages want."""
    spec = str(ROOT / "examples" / "clicks" / "job.py")

    def shown(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["check", spec, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    plan = load(spec).plan
    assert msgspec.json.decode(shown("--plan", "json"), type=JobPlan) == plan
    assert shown("--plan=json") == shown("--plan", "dot", "--json")
    assert shown("--plan", "text").splitlines() == as_text(plan)
    assert shown("--plan", "dot").startswith('digraph "clicks" {')
    assert shown("--plan", "mermaid").startswith("flowchart LR")


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
