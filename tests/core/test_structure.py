"""The structural rules of a job's graph: the client and the coordinator judge by the same ones."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.admission import refusal
from sardonyx.core import structure
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.job.validate import problems_of

NAMES = ("in", "one", "two", "out", "lost")
TASKS = ("in", "a", "b", "c", "d", "out")
TYPES = {"in": "input", "one": "function", "two": "function", "out": "output"}
CONNECTORS = {"in": ("generator", {"count": 1}), "out": ("blackhole", {})}


def a_spec(workflow: list[tuple[str, str]], tasks: list[str] | None = None) -> JobSpec:
    catalog = [
        TaskSpec(
            name=name,
            type=TYPES.get(name, "function"),
            connector=CONNECTORS.get(name, (None, {}))[0],
            options=CONNECTORS.get(name, (None, {}))[1],
            fn=None if name in CONNECTORS else "json:loads",
        )
        for name in tasks or list(TYPES)
    ]
    return JobSpec(name="job", workflow=workflow, catalog=catalog)


def test_each_rule_names_what_breaks_it():
    """Unknown tasks with their side, repeated names and edges with their number, and a cycle in order."""
    spec = a_spec([("in", "one"), ("one", "two"), ("two", "one"), ("two", "lost"), ("in", "one")], [*TYPES, "one"])
    assert list(structure.unknown_tasks(spec)) == [("lost", "two", "after")]
    assert structure.repeated_names(spec) == {"one": 2}
    assert structure.repeated_edges(spec) == {("in", "one"): 2}
    assert structure.cycle_in(spec) == ["one", "two", "one"]
    assert structure.cycle_in(a_spec([("in", "one"), ("one", "out")])) == []


def test_the_client_names_the_shortest_cycle():
    """Of a longer cycle and a shorter one beside it, users see the shorter one; any cycle will do for the coordinator."""
    chain = [("in", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "out")]
    tasks = ["in", "a", "b", "c", "d", "out"]
    spec = a_spec([*chain, ("d", "a"), ("c", "b")], tasks)
    assert structure.shortest_cycle(spec) == ["b", "c", "b"]
    problem = next(each for each in problems_of(spec, import_functions=False) if each.code == "SX-JOB-CYCLE")
    assert problem.message == "the tasks form a cycle: b -> c -> b"
    assert structure.shortest_cycle(a_spec(chain, tasks)) == []
    unknown = a_spec([("in", "one"), ("one", "lost"), ("lost", "one"), ("one", "two"), ("two", "out")])
    assert structure.cycle_in(unknown) == structure.shortest_cycle(unknown) == []


def shortest_by_trying(workflow: list[tuple[str, str]], tasks: tuple[str, ...]) -> int:
    """The number of links of the shortest cycle, found by trying each order of each set of tasks; 0 if there is none."""
    edges = set(workflow)
    for length in range(1, len(tasks) + 1):
        for way in itertools.permutations(tasks, length):
            if edges.issuperset(itertools.pairwise([*way, way[0]])):
                return length
    return 0


@given(st.lists(st.tuples(st.sampled_from((*TASKS, "lost")), st.sampled_from((*TASKS, "lost"))), max_size=12))
def test_the_cycle_that_is_named_is_the_shortest_of_all(workflow: list[tuple[str, str]]):
    """In any graph: along its links in their order, as short as trying all ways finds it, and none where there is none."""
    known = [edge for edge in workflow if "lost" not in edge]
    spec = a_spec(workflow, list(TASKS))
    cycle = structure.shortest_cycle(spec)
    assert max(len(cycle) - 1, 0) == shortest_by_trying(known, TASKS)
    assert set(known).issuperset(itertools.pairwise(cycle))
    found = [each.message for each in problems_of(spec, import_functions=False) if each.code == "SX-JOB-CYCLE"]
    assert found == ([f"the tasks form a cycle: {' -> '.join(cycle)}"] if cycle else [])
    assert not cycle or cycle[0] == cycle[-1]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=7))
def test_the_coordinator_refuses_exactly_what_the_client_reports(workflow: list[tuple[str, str]]):
    """For any graph, both accept it or both refuse it."""
    spec = a_spec(workflow)
    refused = refusal("job-1", spec, None) is not None
    assert refused == bool(problems_of(spec, import_functions=False))
