"""Pipelines compile to the job that one would write with `Job`: which operators run together, and filters on edges."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from stream_jobs import (
    OURS,
    clean,
    frame,
    is_large,
    is_small,
    label,
    lines,
    of_job,
    of_pipeline,
    topic,
    whole,
    words,
)

from sardonyx import (
    Count,
    Job,
    blackhole,
    everything,
    not_,
)
from sardonyx.pipeline import Pipeline

# --- Stages -----------------------------------------------------------------------------------------------------------


def test_functions_that_follow_each_other_are_one_stage() -> None:
    """The first one reads a queue; the others, filters among them, run in its batches."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines()).map(clean).flat_map(words).filter(is_large).filter(is_small).map(label)
        rows.sink("out", blackhole())

    def job(j: Job) -> None:
        first = j.task("clean", clean, after=j.input("in", lines()))
        second = j.task("words", words, after=first, fuse=True)
        third = j.task("is_large", f"{OURS}:keep_row", after=second, params={"condition": is_large}, fuse=True)
        fourth = j.task("is_small", f"{OURS}:keep_rows", after=third, params={"condition": is_small}, fuse=True)
        j.output("out", blackhole(), after=j.task("label", label, after=fourth, fuse=True))

    assert of_pipeline(pipeline) == of_job(job)


def test_a_stream_that_branches_has_a_queue() -> None:
    """What two operators read runs in the batches of neither."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines()).map(clean)
        rows.map(label).sink("out", blackhole())
        rows.flat_map(words).sink("other", blackhole())

    assert not any(task.fuse for task in of_pipeline(pipeline).catalog)


@pytest.mark.parametrize(
    ("more", "fused"),
    [({}, True), ({"max_peers": 2}, False), ({"fuse": False}, False), ({"fuse": True}, True), ({"doc": "it"}, True)],
)
def test_settings_for_batches_of_its_own_keep_an_operator_apart(more: dict[str, Any], fused: bool) -> None:
    """And `fuse=` says it in any case."""

    def pipeline(p: Pipeline) -> None:
        p.source("in", lines()).map(clean).map(label, **more).sink("out", blackhole())

    assert of_pipeline(pipeline).task("label").fuse is fused


def test_the_first_of_a_stage_has_the_settings_for_its_batches() -> None:
    """It may have any, and the ones after it run in its batches; so they do after one that keeps a queue before it."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines()).map(clean, max_peers=2, on_error="skip").map(label)
        rows.map(words, fuse=False).map(clean, "again").sink("out", blackhole())

    spec = of_pipeline(pipeline)
    assert [task.name for task in spec.catalog if task.fuse] == ["label", "again"]


def test_functions_of_dataframes_are_a_stage_of_their_own() -> None:
    """They run as one query, and the others on Spark's workers."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines()).map(clean).map(frame).map(frame, "again").map(whole)
        rows.sink("out", blackhole())

    spec = of_pipeline(pipeline)
    assert [task.name for task in spec.catalog if task.fuse] == ["again"]


def test_an_operator_whose_failed_records_are_taken_is_not_fused() -> None:
    """Records fail in the whole batch, so the edge would have none."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines()).map(clean).map(label)
        rows.failed.sink("bad", blackhole())
        rows.sink("out", blackhole())

    spec = of_pipeline(pipeline)
    assert not spec.task("label").fuse
    assert spec.route("label", "bad").of == "failed"


# --- Filters ----------------------------------------------------------------------------------------------------------


def test_a_filter_is_a_condition_of_the_edges_after_it() -> None:
    """Of each of them, if nothing can run in its batches; there is no task for it."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines()).filter(is_large)
        rows.map(clean).sink("out", blackhole())
        rows.sink("other", blackhole())

    def job(j: Job) -> None:
        rows = j.input("in", lines())
        j.output("out", blackhole(), after=j.task("clean", clean, after=rows.where(is_large)))
        j.output("other", blackhole(), after=rows.where(is_large))

    assert of_pipeline(pipeline) == of_job(job)


def test_a_filter_has_one_function() -> None:
    """It may become a task, which knows no more than that: what only an edge can have is refused."""
    for condition in (partial(is_large), not_(is_large)):
        with pytest.raises(TypeError, match="filter takes a function"):
            Pipeline("p").source("in", lines()).filter(condition)  # type: ignore[arg-type]


def test_a_filter_reads_a_topic_in_place() -> None:
    """As a condition of an edge it would have the whole topic copied: it is the first of the stage instead."""

    def pipeline(p: Pipeline) -> None:
        p.source("in", topic()).filter(is_large).map(clean).sink("out", blackhole())

    def job(j: Job) -> None:
        first = j.task("is_large", f"{OURS}:keep_row", after=j.input("in", topic()), params={"condition": is_large})
        j.output("out", blackhole(), after=j.task("clean", clean, after=first, fuse=True))

    assert of_pipeline(pipeline) == of_job(job)


def test_the_second_of_two_filters_is_a_task() -> None:
    """An edge has one condition."""

    def pipeline(p: Pipeline) -> None:
        p.source("in", lines()).filter(is_large).filter(is_small).sink("out", blackhole())

    def job(j: Job) -> None:
        rows = j.input("in", lines()).where(is_large)
        second = j.task("is_small", f"{OURS}:keep_rows", after=rows, params={"condition": is_small})
        j.output("out", blackhole(), after=second)

    assert of_pipeline(pipeline) == of_job(job)


def test_filters_of_one_stream_that_meet_again_stay_tasks() -> None:
    """Two tasks are joined by one edge, so one of the two filters stays a task: no row is lost."""

    def pipeline(p: Pipeline) -> None:
        rows = p.source("in", lines())
        rows.filter(is_large).union(rows.filter(is_small)).sink("out", blackhole())

    spec = of_pipeline(pipeline)
    assert set(spec.workflow) == {("in", "out"), ("in", "is_small"), ("is_small", "out")}
    assert spec.route("in", "out").where == f"{is_large.__module__}:is_large"


def test_a_filter_of_a_union_is_a_condition_of_each_edge() -> None:
    """And failed records can be filtered, too."""

    def pipeline(p: Pipeline) -> None:
        both = p.source("a", topic()).union(p.source("b", topic("more")))
        both.filter(is_large).key_by("shop").aggregate("n", {"n": Count()}).sink("out", blackhole())
        both.failed.filter(is_large, "again").sink("bad", blackhole())

    def job(j: Job) -> None:
        a, b = j.input("a", topic()), j.input("b", topic("more"))
        given = {"group_by": ["shop"], "aggregate": {"n": Count()}}
        n = j.window("n", everything(), after=[a.where(is_large), b.where(is_large)], **given)
        j.output("out", blackhole(), after=n)
        j.output("bad", blackhole(), after=[a.failed.where(is_large), b.failed.where(is_large)])

    assert of_pipeline(pipeline) == of_job(job)


def test_a_condition_that_is_named_is_a_condition_of_an_edge() -> None:
    """What it takes is not known before it is imported, so no task for it can be chosen."""

    def pipeline(p: Pipeline) -> None:
        p.source("in", lines()).map(clean).filter(f"{is_large.__module__}:is_large").map(label).sink("out", blackhole())

    spec = of_pipeline(pipeline)
    assert spec.route("clean", "label").where == f"{is_large.__module__}:is_large"
    assert [task.name for task in spec.catalog] == ["in", "clean", "label", "out"]
