"""Which inputs' rows come to a task in one version of a job and not in the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sardonyx.cli.diff_text import diff_lines
from sardonyx.core.diff_reach import change
from sardonyx.core.job_diff import job_diff
from sardonyx.core.reach import Reach
from sardonyx.core.spec import JobSpec, TaskSpec

NAMES = "abcdef"
EDGES = [(one, two) for one in NAMES for two in NAMES if one < two]


def job(names: str, edges: list[tuple[str, str]]) -> JobSpec:
    """A job with these tasks, of which those without an edge to them read a topic of their own."""
    fed = {target for _, target in edges}
    catalog = [
        TaskSpec(name=name, type="function", fn=f"job:{name}")
        if name in fed
        else TaskSpec(name=name, type="input", connector="kafka", options={"topic": f"topic-{name}", "start": "latest"})
        for name in names
    ]
    return JobSpec(name="job", catalog=catalog, workflow=edges)


@st.composite
def versions(draw: st.DrawFn) -> JobSpec:
    names = "".join(sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1))))
    return job(names, [edge for edge in draw(st.lists(st.sampled_from(EDGES), unique=True)) if {*edge} <= {*names}])


@given(versions(), versions())
def test_the_tables_of_one_version_become_those_of_another(old: JobSpec, new: JobSpec) -> None:
    """Whatever tasks and edges come and go, they are then as if they were made whole."""
    reach = Reach((task.name for task in old.catalog), old.edges)
    change(reach, old, new)
    whole = Reach((task.name for task in new.catalog), new.edges)
    for task in new.catalog:
        assert dict(reach.after(task.name)) == dict(whole.after(task.name))
        assert dict(reach.before(task.name)) == dict(whole.before(task.name))


def test_a_task_far_behind_is_cut_off_from_an_input() -> None:
    """Over no edge of ``d`` and ``e`` anything differs. ``a`` no longer comes to ``d``; to ``e`` it does over another path."""
    old = job("abcde", [("a", "c"), ("b", "c"), ("c", "d"), ("d", "e"), ("a", "e")])
    new = job("abcdef", [("b", "c"), ("f", "c"), ("c", "d"), ("d", "e"), ("a", "e")])
    diff = job_diff(old, new)
    assert [(each.task, each.gone, each.new) for each in diff.other_inputs] == [
        ("c", ["a"], ["f"]),
        ("d", ["a"], ["f"]),
        ("e", [], ["f"]),
    ]
    lines = diff_lines(diff, "new.py")
    at = lines.index("rows")
    assert lines[at + 1 : at + 4] == [
        "  c  rows of a no longer come to it; rows of f come to it from then on",
        "  d  rows of a no longer come to it; rows of f come to it from then on",
        "  e  rows of f come to it from then on",
    ]
    assert "rows" not in diff_lines(job_diff(old, old), "old.py")
