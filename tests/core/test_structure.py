"""The structural rules of a job's graph: the client and the coordinator judge by the same ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.admission import refusal
from sardonyx.core import structure
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.job.validate import problems_of

NAMES = ("in", "one", "two", "out", "lost")
TYPES = {"in": "input", "one": "function", "two": "function", "out": "output"}
CONNECTORS = {"in": ("generator", {"count": 1}), "out": ("blackhole", {})}


def a_spec(workflow: list[tuple[str, str]], tasks: list[str] | None = None) -> JobSpec:
    catalog = [
        TaskSpec(
            name=name,
            type=TYPES[name],
            connector=CONNECTORS.get(name, (None, {}))[0],
            options=CONNECTORS.get(name, (None, {}))[1],
            fn="json:loads" if TYPES[name] == "function" else None,
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


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=7))
def test_the_coordinator_refuses_exactly_what_the_client_reports(workflow: list[tuple[str, str]]):
    """For any graph, both accept it or both refuse it."""
    spec = a_spec(workflow)
    refused = refusal("job-1", spec, None) is not None
    assert refused == bool(problems_of(spec, import_functions=False))


@pytest.mark.parametrize("tasks", [["in", "out"], ["in", "one", "out", "one"]])
def test_repeated_names_are_refused_by_both(tasks: list[str]):
    """Two tasks of one name are refused; distinct names are not."""
    spec = a_spec([("in", "out")] if len(tasks) == 2 else [("in", "one"), ("one", "out")], tasks)
    refused = refusal("job-1", spec, None) is not None
    assert refused == bool(problems_of(spec, import_functions=False)) == (len(tasks) == 4)
