"""Joins, lookups, distinct and latest rows in a job: the builder, job files, and what ``check`` finds before a job runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sardonyx import Job, blackhole, event_time, every, files, kafka, ordinal
from sardonyx.cli.graph_text import relation_text
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.joining import RelationSpec
from sardonyx.core.redoing import redo_spec
from sardonyx.core.timing import RowTime
from sardonyx.job.parse import read
from sardonyx.job.warn import warnings_of
from sardonyx.state.held_back import held_back
from tests.core.window_jobs import each, found

SECOND = 1_000_000


def a_job(kind: str = "join", *, time: Any = "at", end: str | None = "latest", more: Any = None, **given: Any) -> Job:
    """A good job with a relation, for tests to spoil."""
    job = Job("clicks")
    views, orders = (
        job.input(
            name,
            kafka(name, schema="id string, order string, tags array<string>, at timestamp", start="earliest", end=end),
            time=time,
        )
        for name in ("views", "orders")
    )
    if kind in ("join", "lookup"):
        given = {"on": "id", **({"within": "10 min"} if kind == "join" else {}), **given}
        sides = {"left": views, ("right" if kind == "join" else "table"): orders}
        task = getattr(job, kind)("meet", **{**sides, **given})
    else:
        key = {"distinct": "by", "latest": "group_by"}[kind]
        task = getattr(job, kind)("meet", after=views, **{key: "id", **given})
        job.output("orders-out", blackhole(), after=orders)
    job.output("out", blackhole(), after=task)
    if more is not None:
        more(job, task)
    return job


def relation(job: Job) -> RelationSpec:
    spec = job.spec().task("meet").relation
    assert spec is not None
    return spec


def test_the_builder_and_a_job_file_say_the_same() -> None:
    """What YAML has to say stands in ``relation``, and the key in ``group_by``."""
    job = a_job(on={"id": "order"}, within=("-1 min", "10 min"), how="left", grace="5 s")
    written = {
        "kind": "join",
        "left": "views",
        "right": "orders",
        "right_on": "order",
        "within": ["-1 min", "10 min"],
        "how": "left",
        "grace": "5 s",
    }
    data = {**job.data(), "catalog": [dict(entry) for entry in job.data()["catalog"]]}
    (entry,) = [entry for entry in data["catalog"] if entry["name"] == "meet"]
    entry["relation"] = written
    spec, problems = read(data)
    assert not problems
    assert spec == job.spec()
    assert found(job) == []


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (lambda: a_job(how="left", within=("-1 s", "9 s")), "left join of views with orders within -1 s to 9 s"),
        (lambda: a_job("lookup", wait="5 s"), "lookup of views in orders; wait 5 s"),
        (lambda: a_job("lookup", how="inner"), "lookup of views in orders; only matches"),
        (lambda: a_job("distinct", within="1 h", late="dead_letter"), "distinct rows within 1 h; late: dead letter"),
        (lambda: a_job("latest", emit=every("10 s"), store="rocksdb"), "latest rows; emit every 10 s; in rocksdb"),
    ],
)
def test_a_graph_shows_a_relation_in_a_few_words(job: Callable[[], Job], words: str) -> None:
    """``graph`` and ``job explain`` show them."""
    made = job()
    assert found(made) == []
    assert " ".join(relation_text(relation(made))).replace(" ;", ";") == words


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        (lambda: a_job(within=None), "SX-JOIN-WITHIN", "a join needs within"),
        (lambda: a_job(within=("10 s", "1 s")), "SX-JOIN-WITHIN", "from 10 s to 1 s, so no two rows are in it"),
        (lambda: a_job(within=("1 s", "2 s", "3 s")), "SX-JOIN-WITHIN", "cannot have 3 bounds"),
        (lambda: a_job(within=10), "SX-TIME-ORDINAL", "a number without a unit"),
        (lambda: a_job(within="10 s", time=ordinal("nr")), "SX-TIME-ORDINAL", "numbers as their times"),
        (lambda: a_job(on={}), "SX-JOIN-KEY", "it has no key"),
        (lambda: a_job(on="join_time"), "SX-JOIN-KEY", "which each result has of its own"),
        (lambda: a_job("distinct", by=each), "SX-JOIN-KEY", "a function cannot make its key"),
        (lambda: a_job(on="ad"), "SX-JOIN-KEY", "its key names 'ad', which the rows of 'views' do not have"),
        (lambda: a_job(on={"id": "ordr"}), "SX-JOIN-KEY", "'ordr', which the rows of 'orders' do not have"),
        (lambda: a_job(on={"id": "tags"}), "SX-JOIN-KEY", "its key names 'tags', whose values are of type list<"),
        (lambda: a_job("lookup", on="tags"), "SX-JOIN-KEY", "whose values are of type list<"),
        (lambda: a_job("distinct", by="tags"), "SX-JOIN-KEY", "whose values are of type list<"),
        (lambda: a_job("latest", group_by="tags"), "SX-JOIN-KEY", "whose values are of type list<"),
        (lambda: a_job(right="views"), "SX-JOIN-SIDE", "both of its sides are 'views'"),
        (lambda: a_job(time=None), "SX-TIME-MISSING", "a join goes by the times of rows"),
        (lambda: a_job(prefix="sx_"), "SX-JOIN-COLUMN", "prefix cannot be 'sx_'"),
        (lambda: a_job("distinct", grace="1 s"), "SX-JOIN-LATE", "so grace has no effect"),
        (lambda: a_job("latest", emit="chnages"), "SX-JOIN-EMIT", "did you mean 'changes'"),
        (lambda: a_job("latest", emit="final", end=None), "SX-JOIN-EMIT", "it would never give a result"),
        (lambda: a_job(store="rocks"), "SX-WINDOW-STORE", "did you mean 'rocksdb'"),
        (lambda: a_job(state_limit=0), "SX-WINDOW-STORE", "state_limit cannot be 0"),
        (lambda: a_job(params={"a": 1}), "SX-JOB-FUNCTION", "params, but no function"),
        (lambda: a_job(hwo="left"), "SX-JOB-FIELD", "did you mean 'how'"),
        (
            lambda: a_job(late="dead_letter", more=lambda job, it: job.output("late", blackhole(), after=it.late)),
            "SX-WINDOW-LATE",
            "also go to the tasks after them",
        ),
        (
            lambda: a_job(more=lambda job, it: job.task("each", each, after=it, fuse=True)),
            "SX-JOB-FUSE",
            "gives results of rows of several batches",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_before_the_job_runs(job: Callable[[], Job], code: str, said: str) -> None:
    """In words that name it, with a code, and what to do."""
    made = job()
    if any(entry["name"] == "each" for entry in made.data()["catalog"]):
        made.output("each-out", blackhole(), after="each")
    problem = next(each for each in found(made) if each.code == code)
    assert said in str(problem)
    assert problem.fix


@pytest.mark.parametrize(
    ("add", "code", "said"),
    [
        (
            lambda job: job.latest("new", after="views", group_by="id", time="when"),
            "SX-JOIN-COLUMN",
            "time names 'when'",
        ),
        (lambda job: job.task("new", each, after="views", group_by="tags"), "SX-JOB-GROUP", "of type list<"),
        (lambda job: job.task("new", each, after="views", group_by=["id", "ordr"]), "SX-JOB-GROUP", "mean 'order'"),
        (lambda job: job.task("new", each, after="orders", group_by=["id", "order"]), None, ""),
    ],
)
def test_what_the_schema_of_an_input_lacks_is_told_before_the_job_runs(
    add: Callable[[Job], Any], code: str | None, said: str
) -> None:
    """Also of a task that only groups rows: once it runs, the first row would fail the job."""
    job = a_job()
    job.output("new-out", blackhole(), after=add(job))
    problems = found(job)
    assert [each.code for each in problems] == ([] if code is None else [code])
    assert all(said in str(each) and each.fix for each in problems)


@pytest.mark.parametrize(
    ("kind", "given", "codes"),
    [
        ("join", {}, []),
        ("lookup", {}, ["SX-WARN-STATE", "SX-WARN-SILENT-TABLE"]),
        ("lookup", {"within": "1 h"}, ["SX-WARN-SILENT-TABLE"]),
        ("distinct", {}, ["SX-WARN-STATE"]),
        ("distinct", {"within": "1 h"}, []),
        ("latest", {}, ["SX-WARN-STATE"]),
        ("latest", {"state_limit": 9}, []),
    ],
)
def test_a_state_without_an_end_and_a_table_that_holds_up_are_warned_about(
    kind: str, given: dict[str, Any], codes: list[str], tmp_path: Path
) -> None:
    """Only where the input has none either."""
    for end, wanted in ((None, ["SX-WARN-IDLE", "SX-WARN-IDLE", *codes]), ("latest", [])):
        assert [each.code for each in warnings_of(a_job(kind, end=end, **given).spec(), tmp_path)] == wanted


def test_a_table_whose_clock_goes_on_by_the_wall_is_not_warned_about(tmp_path: Path) -> None:
    """Its rows may come as rarely as they like."""
    job = a_job("lookup", within="1 h", time=event_time("at", idle="10 s", at_rest="wall"))
    assert warnings_of(job.spec(), tmp_path) == []


def test_each_side_has_its_own_key_and_time() -> None:
    """Rows of the right side are sent by the columns that they call the key."""
    stage = graph_of(a_job(on={"id": "order"}).spec(), "d", "j").stage("meet")
    known = {link.source: (link.group_by, link.row_time) for link in stage.ingress}
    assert known == {"views": (["id"], RowTime(column="at")), "orders": (["order"], RowTime(column="at"))}


@pytest.mark.parametrize(
    ("job", "behind"),
    [
        (lambda: a_job(grace="1 s"), 1 * SECOND),
        (lambda: a_job(how="left", within=("-1 s", "10 s"), grace="1 s"), 11 * SECOND),
        (lambda: a_job(how="left", within=("-9 s", "-2 s")), 0),
        (lambda: a_job("lookup", grace="3 s"), 3 * SECOND),
        (lambda: a_job("distinct"), 0),
        (lambda: a_job("latest", emit=every("10 s")), 10 * SECOND),
    ],
)
def test_a_task_states_a_clock_that_none_of_its_results_is_behind(job: Callable[[], Job], behind: int) -> None:
    """So no result is late for the windows and joins after it."""
    assert held_back(job().spec().task("meet")) == behind


def test_the_time_of_joined_rows_is_that_of_windows_after_the_join() -> None:
    """They have it in ``join_time``."""
    job = a_job(more=lambda job, it: job.distinct("once", after=it, by="id", within="1 h"))
    job.output("once-out", blackhole(), after="once")
    (link,) = graph_of(job.spec(), "d", "j").stage("once").ingress
    assert link.row_time == RowTime(column="join_time")


@pytest.mark.parametrize("task", ["meet", "before"])
def test_letters_that_a_join_would_meet_with_other_rows_are_not_redone(task: str) -> None:
    """A redo has the letters and no other rows, so the join would give wrong results."""
    job = Job("clicks")
    source = kafka("views", schema="id string, at timestamp", start="earliest", end="latest")
    views, orders = (job.input(name, source, time="at") for name in ("views", "orders"))
    before = job.task("before", each, after=views, on_error="dead_letter")
    joined = job.join("meet", before, orders, on="id", within="10 s", late="dead_letter")
    job.output("out", files("out", format="json"), after=joined)
    with pytest.raises(SardonyxError) as caught:
        redo_spec(job.spec(), task, "again", "letters", 0, 9)
    assert caught.value.code == "SX-DLQ-JOIN"
