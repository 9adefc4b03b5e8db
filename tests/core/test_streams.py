"""Pipelines compile to the job that one would write with `Job`: windows, joins, graphs; and what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stream_jobs import (
    OURS,
    add,
    clean,
    codes,
    is_large,
    lines,
    of_job,
    of_pipeline,
    spend,
    topic,
)

from sardonyx import (
    Count,
    Distinct,
    Job,
    Max,
    SardonyxError,
    Sum,
    blackhole,
    event_time,
    everything,
    ordinal,
    tumbling,
)
from sardonyx.job.load import load, load_job
from sardonyx.pipeline import Environment, KeyedStream, Pipeline, Stream, Window

# --- Windows ----------------------------------------------------------------------------------------------------------

TIMED = event_time("at", delay="5 s", idle="1 min")


@pytest.mark.parametrize(
    ("window", "time", "windows"),
    [
        (Window.all(), None, everything()),
        (Window.size(100), ordinal("row_number"), tumbling(100)),
        (Window.time("1 min", by="at"), event_time("at"), tumbling("1 min")),
        (Window.time("1 min", by=TIMED), TIMED, tumbling("1 min")),
    ],
)
def test_aggregates_have_the_windows_of_the_source(window: Window, time: Any, windows: Any) -> None:
    """The code after the source is the same."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", topic(), window=window).map(clean).key_by("shop")
        rows.aggregate("n", {"n": Count(), "most": Max("amount")}, max_peers=2).sink("out", blackhole())

    def job(j: Job) -> None:
        rows = j.task("clean", clean, after=j.input("in", topic(), time=time))
        aggregate = {"n": Count(), "most": Max("amount")}
        n = j.window("n", windows, after=rows, group_by="shop", aggregate=aggregate, max_peers=2)
        j.output("out", blackhole(), after=n)

    assert of_pipeline(pipeline) == of_job(job)


def test_totals_that_run_across_windows_are_carried_on_by_a_second_task() -> None:
    """The first one gives the results of each window, in which late rows are left out; it has the settings for that."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", topic(), window=Window.size(100)).key_by("shop")
        given = {"grace": 5, "state_limit": 9, "tags": ["a"]}
        totals = rows.aggregate(
            "n",
            {"n": Count(), "sum": {"sum": "amount"}, "all": {"collect": "at", "most": 3}},
            across="windows",
            **given,
        )
        totals.sink("out", blackhole())
        totals.late.sink("late", blackhole())

    def job(j: Job) -> None:
        rows = j.input("in", topic(), time=ordinal("row_number"))
        aggregate = {"n": Count(), "sum": {"sum": "amount"}, "all": {"collect": "at", "most": 3}}
        both = {"group_by": "shop", "state_limit": 9, "tags": ["a"]}
        first = j.window("n-window", tumbling(100), after=rows, aggregate=aggregate, grace=5, **both)
        merge = {"n": ["count", None], "sum": ["sum", None], "all": ["collect", 3]}
        second = j.keyed("n", f"{OURS}:add_to_here", after=first, params={"merge": merge}, **both)
        j.output("out", blackhole(), after=second)
        j.output("late", blackhole(), after=first.late)

    assert of_pipeline(pipeline) == of_job(job)


def test_with_one_window_nothing_is_carried_on() -> None:
    """A batch has one window, so totals across windows are those of the window."""

    def build(across: Any) -> Callable[[Pipeline], None]:
        def pipeline(p: Pipeline) -> None:
            rows = p.source("in", topic()).key_by()
            rows.aggregate("n", {"n": Count()}, across=across).sink("out", blackhole())
            rows.reduce(add, across=across).sink("other", blackhole())

        return pipeline

    assert of_pipeline(build("window")) == of_pipeline(build("windows"))


def test_reduce_becomes_windows_and_a_state() -> None:
    """In a batch a state that is given at the end; else a function over each window, and a state that carries it on."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", topic(), window=Window.size(9)).key_by("shop")
        rows.reduce(add, across="windows", ttl=None).sink("out", blackhole())
        rows.reduce(add, "each").sink("each-out", blackhole())
        batch = p.source("b", topic("more")).key_by("shop")
        batch.reduce(add, "once").sink("once-out", blackhole())

    def job(j: Job) -> None:
        rows = j.input("in", topic(), time=ordinal("row_number"))
        given = {"params": {"reduce": add, "keys": ["shop"]}, "group_by": "shop"}
        first = j.window("add-window", tumbling(9), after=rows, fn=f"{OURS}:reduce_windows", **given)
        j.output("out", blackhole(), after=j.keyed("add", f"{OURS}:reduce_to_here", after=first, **given))
        each = j.window("each", tumbling(9), after=rows, fn=f"{OURS}:reduce_windows", **given)
        j.output("each-out", blackhole(), after=each)
        on_timer = f"{OURS}:give_reduced"
        batch = j.input("b", topic("more"))
        once = j.keyed("once", f"{OURS}:reduce_until_end", after=batch, on_timer=on_timer, **given)
        j.output("once-out", blackhole(), after=once)

    found, wanted = of_pipeline(pipeline), of_job(job)
    assert sorted(found.workflow) == sorted(wanted.workflow)
    assert {task.name: task for task in found.catalog} == {task.name: task for task in wanted.catalog}


def test_a_function_with_state_has_the_key() -> None:
    """`process` is `job.keyed`."""

    def pipeline(p: Pipeline) -> None:
        p.source("in", topic()).key_by("shop").process(spend, ttl=None, state_limit=5).sink("out", blackhole())

    def job(j: Job) -> None:
        j.output(
            "out",
            blackhole(),
            after=j.keyed("spend", spend, after=j.input("in", topic()), group_by="shop", state_limit=5),
        )

    assert of_pipeline(pipeline) == of_job(job)


# --- Two streams, graphs ----------------------------------------------------------------------------------------------


def test_joins_and_lookups_are_those_of_the_job() -> None:
    """A filter on a side is a condition of its edge, and the side is the task before it."""

    def pipeline(p: Pipeline) -> None:
        window = Window.time("1 min", by="at")
        left = p.source("a", topic(), window=window).filter(is_large)
        right = p.source("b", topic("more"), window=window)
        pairs = left.join("pairs", right, on="shop", within="5 min")
        found = pairs.lookup("found", p.source("t", topic("table"), time="at"), on="shop")
        found.key_by("shop").aggregate("n", {"n": Count()}).sink("out", blackhole())

    def job(j: Job) -> None:
        left = j.input("a", topic(), time="at").where(is_large)
        right = j.input("b", topic("more"), time="at")
        pairs = j.join("pairs", left, right, on="shop", within="5 min")
        found = j.lookup("found", pairs, j.input("t", topic("table"), time="at"), on="shop")
        n = j.window("n", tumbling("1 min"), after=found, group_by="shop", aggregate={"n": Count()})
        j.output("out", blackhole(), after=n)

    assert of_pipeline(pipeline) == of_job(job)


def test_graphs_are_those_of_the_job() -> None:
    """A stream is the edges, and results are streams. A filter is a condition of the edge there, too."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines())
        web = p.graph_view(
            "web", edges=rows.filter(is_large), source="shop", target="at", vertices=p.source("v", lines())
        )
        web.pagerank("ranks", damping=0.9).map(clean).sink("out", blackhole())

    def job(j: Job) -> None:
        rows = j.input("in", lines())
        vertices = j.input("v", lines())
        web = j.graph("web", edges=rows.where(is_large), source="shop", target="at", vertices=vertices)
        j.output("out", blackhole(), after=j.task("clean", clean, after=web.pagerank("ranks", damping=0.9)))

    found, wanted = of_pipeline(pipeline), of_job(job)
    assert {task.name: task for task in found.catalog} == {task.name: task for task in wanted.catalog}
    assert (set(found.workflow), found.routes) == (set(wanted.workflow), wanted.routes)


def test_a_filter_whose_rows_meet_all_rows_again_is_a_task() -> None:
    """One edge carries the pairs of a graph, so its edges need another one."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines())
        web = p.graph_view("web", edges=rows.filter(is_large), source="shop", target="at")
        web.common_neighbors("common", pairs=rows).sink("both", blackhole())  # type: ignore[arg-type]

    graph = of_pipeline(pipeline).task("common").graph
    assert graph is not None
    assert (graph.edges, graph.pairs) == ("is_large", "in")


def test_a_pipeline_is_a_job() -> None:
    """Methods of both go together, and the loader takes it."""
    made = Pipeline("j", partitions=3)
    task = made.input("in", topic())
    made.output("out", blackhole(), after=made.stream(task).map(clean).parts)
    loaded = load_job(made, places=False)
    assert loaded.spec.partitions == 3
    assert [each.name for each in loaded.spec.catalog] == ["in", "clean", "out"]
    assert loaded.plan.operators
    assert repr(made.stream(task)) == "<stream of in of pipeline 'j'>"


# --- Mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes_are_reported_together() -> None:
    """Each with the name of the operator, besides what is wrong with the job."""
    p = Pipeline("j")
    rows = p.source("a", topic(), window=Window.size(5), time="at")
    other = p.source("b", topic("more"), window=Window.time("1 min", by="at"))
    both = rows.union(other)
    both.key_by("shop").aggregate("n", {"n": Count()}).sink("out", blackhole())
    rows.key_by("shop").aggregate("d", {"d": Distinct("at")}, across="windows").sink("d-out", blackhole())
    rows.key_by("shop").reduce(clean, across="windows", emit="changes").sink("r-out", blackhole())
    rows.key_by("shop").aggregate("w", {"s": Sum("amount")}, across="rows").sink("w-out", blackhole())  # type: ignore[arg-type]
    both.join("pairs", rows, on="shop", within=5).sink("p-out", blackhole())
    found = [each for each in p.problems if each.code.startswith(("SX-PIPELINE", "SX-FN"))]
    assert [(each.code, each.where["task"]) for each in found] == [
        ("SX-PIPELINE-WINDOW", "a"),
        ("SX-PIPELINE-WINDOW", "n"),
        ("SX-PIPELINE-ACROSS", "d"),
        ("SX-FN-PARAMS", "clean"),
        ("SX-PIPELINE-ACROSS", "clean"),
        ("SX-PIPELINE-ACROSS", "w"),
        ("SX-PIPELINE-SIDE", "pairs"),
    ]
    assert set(codes(p)) >= {each.code for each in found}


def test_two_operators_of_one_name_are_reported() -> None:
    """No number is added: the next version of the pipeline would have other names."""
    p = Pipeline("j")
    p.source("in", lines()).map(clean).map(clean).sink("out", blackhole())
    assert "SX-JOB-DUPLICATE" in codes(p)


def test_a_batch_needs_an_end() -> None:
    """`Window.all()` of a source without end would never give a result."""
    p = Pipeline("j")
    rows = p.source("in", topic(end=None)).key_by("shop")
    rows.aggregate("n", {"n": Count()}).sink("out", blackhole())
    assert codes(p) == ["SX-WINDOW-EMIT"]


def test_an_unknown_setting_names_the_nearest() -> None:
    """As for the methods of a job."""
    p = Pipeline("j")
    p.source("in", lines()).map(clean, max_peer=2).sink("out", blackhole())
    assert "max_peers" in str(p.problems[0])


def test_a_stream_is_known_by_its_pipeline() -> None:
    """A stream of one pipeline cannot be read in another."""
    stream = Pipeline("one").source("in", lines())
    with pytest.raises(ValueError, match="within one job"):
        Pipeline("two").source("in", lines()).union(stream).map(clean)
    assert isinstance(stream, Stream)


# --- Environments -----------------------------------------------------------------------------------------------------


def test_an_environment_connects_when_it_is_needed() -> None:
    """Mistakes are found before that; and a closed one stays closed."""
    with Environment.cluster() as here:

        def two(p: Pipeline) -> None:
            rows = p.source("in", lines())
            rows.sink("out", blackhole())
            rows.sink("other", blackhole())

        execution = here.pipeline("j", two, partitions=3)
        assert execution.pipeline.spec().partitions == 3
        for sink, cause in ((None, "the sinks out and other"), ("out", "writes to blackhole"), ("in", "the sinks")):
            with pytest.raises(SardonyxError, match=cause) as raised:
                execution.collect(sink)
            assert raised.value.code == "SX-PIPELINE-COLLECT"
    with pytest.raises(SardonyxError) as raised:
        execution.execute()
    assert raised.value.code == "SX-PIPELINE-CLOSED"


# --- The page ---------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs/pipeline.md").read_text("utf-8")


@pytest.mark.parametrize("window", ["Window.all()", "Window.size(1000)"])
def test_the_pipeline_of_the_page_is_valid(window: str, tmp_path: Path) -> None:
    """As it stands there, with either window; its tasks are those of the picture."""
    code = next(iter(re.findall(r"```python\n(.*?)```", PAGE, re.S))).replace("Window.size(1000)", window)
    (tmp_path / "page.py").write_text(code)
    loaded = load(str(tmp_path / "page.py"))
    assert loaded.warnings == ()
    picture = next(iter(re.findall(r"```mermaid\n(.*?)```", PAGE, re.S)))
    if "size" in window:
        shown = re.findall(r'\["([\w-]+)<br/>', picture)
        assert sorted(shown) == sorted(task.name for task in loaded.spec.catalog)
    assert [task.name for task in loaded.spec.catalog if task.fuse] == ["in_euros"]


def test_operators_of_the_page_exist() -> None:
    """Each in the table, with the task that it compiles to."""
    table = PAGE[PAGE.index("| operator | gives |") : PAGE.index("**Reduce.**")]
    owners = {"pipeline": Pipeline, "stream": Stream, "keyed": KeyedStream}
    found = re.findall(r"`(pipeline|stream|keyed)\.(\w+)", table)
    assert len(found) > 15
    assert [each for each in found if not hasattr(owners[each[0]], each[1])] == []
    assert [name for name in re.findall(r"`job\.(\w+)`", table) if not hasattr(Job, name)] == []
