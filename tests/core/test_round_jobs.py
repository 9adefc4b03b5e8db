"""Rounds in a job: what users write, what ``check`` finds, what a job file says. Results are in tests/services/test_rounds.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sardonyx import Job, Sum, blackhole, kafka, sql, tumbling
from sardonyx.cli.graph_text import rounds_text
from sardonyx.client.task_state import _readable
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.iterating import IterateSpec
from sardonyx.core.plan import plan_of
from sardonyx.core.redoing import redo_spec
from sardonyx.core.spec import decode_spec, encode_spec
from sardonyx.job.parse import read
from sardonyx.pipeline import Pipeline
from sardonyx.state.release import holds_rows
from tests.core.round_functions import mixed, moving, nearest
from tests.core.window_jobs import each, found, only

HERE = "tests.core.round_functions"
SCHEMA = "x double, y double, at timestamp"
CENTRES = [{"cluster": 0, "x": 1.5, "y": 2}, {"cluster": 1, "x": 0, "y": 0.5}]
KMEANS: dict[str, Any] = {
    "state": "cluster bigint",
    "group_by": "cluster",
    "aggregate": {"x": "mean", "y": "mean", "moved": "sum"},
    "start": CENTRES,
    "until": "moved == 0",
    "max_rounds": 100,
}


def a_job(fn: Any = moving, *, end: str | None = "latest", **given: Any) -> Job:
    """A job with rounds, for tests to spoil."""
    job = Job("points")
    points = job.input("points", kafka("points", schema=SCHEMA, start="earliest", end=end))
    job.output("out", blackhole(), after=job.iterate("x", fn, **{"rows": points, **KMEANS, **given}))
    return job


def records(row: dict) -> dict:
    return row


def test_the_same_job_as_data() -> None:
    """A job file says the same as the builder, and ZooKeeper holds it."""
    job = a_job()
    assert found(job) == []
    spec = job.spec()
    task = spec.task("x")
    assert (task.fn, task.type, task.max_peers) == (f"{HERE}:moving", "function", 1)
    assert task.iterate == IterateSpec(
        state="cluster bigint",
        group_by=["cluster"],
        aggregate={"moved": "sum", "x": "mean", "y": "mean"},
        start=CENTRES,
        until="moved == 0",
        max_rounds=100,
    )
    assert decode_spec(encode_spec(spec)) == spec
    written = {**KMEANS, "group_by": "cluster", "store": "memory"}
    data = job.data()
    entry = {"name": "x", "type": "function", "max_peers": 1, "fn": f"{HERE}:moving", "iterate": written}
    catalog = [entry if each["name"] == "x" else each for each in data["catalog"]]
    assert read({**data, "catalog": catalog}) == (spec, [])
    assert read(job.data()) == (spec, [])


def test_start_may_be_a_row_or_a_table() -> None:
    """Of numpy's numbers, of Arrow's, or one row for all."""
    wanted = [{"n": 3, "m": 0.5}]
    given: dict[str, Any] = {"aggregate": {"n": "sum", "m": "max"}, "group_by": (), "until": None}
    for start in (wanted, wanted[0], pa.Table.from_pylist(wanted), iter([{"n": np.int64(3), "m": np.float32(0.5)}])):
        iterate = a_job(start=start, **given).spec().task("x").iterate
        assert iterate is not None
        assert iterate.start == wanted


def test_the_text_and_the_plan_of_rounds() -> None:
    """They stand in one line; the plan has an iterator, with one peer, that needs its function."""
    spec = a_job(store="rocksdb", results="aggregates").spec()
    iterate = spec.task("x").iterate
    assert iterate is not None
    assert " ".join(rounds_text(iterate)) == (
        "in rounds; state cluster bigint; aggregates moved sum, x mean, y mean by cluster; start with 2 rows; "
        "until moved == 0; at most 100 rounds; gives the aggregates; in rocksdb"
    )
    assert rounds_text(IterateSpec(state="n bigint")) == ["in rounds;", "state n bigint;", "at most 1,000 rounds"]
    operator = next(each for each in plan_of(spec).operators if each.name == "x")
    assert (operator.kind, operator.most_peers, operator.store) == ("iterator", 1, "rocksdb")
    assert operator.functions == [f"{HERE}:moving"]
    assert holds_rows(spec.task("x"))


def test_all_rows_go_to_one_partition() -> None:
    """Also those of a topic, which is not read in place; and the task keeps a state, with a log."""
    links = {link.name: link for link in graph_of(a_job().spec(), "d", "j").links}
    assert (links["points.x"].kind, links["points.x"].by_key, links["points.x"].group_by) == ("internal", True, None)
    assert "x.state" in links


def test_several_tasks_may_give_the_rows() -> None:
    """And a pipeline has rounds as well."""
    job = Job("both")
    source = kafka("points", schema=SCHEMA, start="earliest", end="latest")
    parts = [job.input(name, source).where(f"{HERE}:nearest") for name in "ab"]
    job.output("out", blackhole(), after=job.iterate("x", nearest, rows=parts, state="cluster bigint"))
    assert ("a", "x") in job.spec().workflow
    assert ("b", "x") in job.spec().workflow
    pipeline = Pipeline("both")
    one, other = (pipeline.source(name, source) for name in "ab")
    found_there = one.union(other).iterate(nearest, state="cluster bigint")
    found_there.map(each).sink("out", blackhole())
    assert pipeline.spec().task("nearest").iterate == IterateSpec(state="cluster bigint")
    assert found(pipeline) == []


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("SX-ITERATE-ENDLESS", {"end": None}, "input 'points' has no end"),
    ("SX-ITERATE-SPEC", {"state": "cluster"}, "state cannot be 'cluster'"),
    ("SX-ITERATE-SPEC", {"state": "cluster int"}, "'cluster' of state cannot be 'int'"),
    ("SX-ITERATE-SPEC", {"aggregate": {"x": "mean", "y": "average", "moved": "sum"}}, "'y' cannot be 'average'"),
    ("SX-ITERATE-SPEC", {"until": "moved is small"}, "until cannot be 'moved is small'"),
    ("SX-ITERATE-SPEC", {"until": "movd < 1"}, "'movd', which is not an aggregate; did you mean 'moved'?"),
    (
        "SX-ITERATE-SPEC",
        {"aggregate": None, "group_by": (), "start": None, "until": None, "results": "aggregates"},
        "has none",
    ),
    (
        "SX-ITERATE-SPEC",
        {"state": None, "aggregate": None, "group_by": (), "start": None, "until": None},
        "neither state nor aggregates",
    ),
    ("SX-ITERATE-SPEC", {"aggregate": None, "start": None, "until": None}, "it has group_by, and no aggregates"),
    ("SX-ITERATE-SPEC", {"aggregate": {"cluster": "max", "moved": "sum"}, "start": None}, "would be called 'cluster'"),
    ("SX-ITERATE-SPEC", {"group_by": "", "start": None}, "the name of a column is empty"),
    ("SX-ITERATE-SPEC", {"group_by": (), "start": [{"x": 1}, {"x": 2}]}, "start has 2 rows for the one group"),
    ("SX-ITERATE-SPEC", {"start": [{"cluster": 1, "z": 2}]}, "start has a column 'z', which is not an aggregate"),
    ("SX-ITERATE-SPEC", {"start": [{"x": 2}]}, "a row of start has no 'cluster'"),
    ("SX-ITERATE-SPEC", {"start": [{"cluster": 1, "x": math.nan}]}, "'x' cannot be nan in start"),
    (
        "SX-ITERATE-SPEC",
        {"start": [{"cluster": 1, "x": 1}, {"cluster": 2, "x": "a"}]},
        "'x' of start has numbers and texts",
    ),
    ("SX-ITERATE-SPEC", {"start": [{"cluster": 1}, {"cluster": 1}]}, "start has two rows for 1"),
    ("SX-ITERATE-SPEC", {"max_rounds": 0}, "max_rounds cannot be 0"),
    ("SX-WINDOW-STORE", {"state_limit": 0}, "state_limit cannot be 0"),
    ("SX-FN-ANNOTATION", {"fn": records}, "function 'records' of rounds takes tables"),
    ("SX-FN-NAME", {"fn": lambda rows: rows}, "<lambda>"),
    ("SX-FN-PARAMS", {"fn": mixed}, "needs 'modulus', which params do not give"),
    ("SX-FN-PARAMS", {"params": {"modulus": 2}}, "none of its functions has a parameter 'modulus'"),
    ("SX-FN-PARAMS", {"params": {"aggregates": 2}}, "'aggregates', which stands for those of the round before"),
    ("SX-JOB-FIELD", {"results": "row"}, "results cannot be 'row'; did you mean 'rows'?"),
    ("SX-JOB-FIELD", {"aggregate": {"x": Sum("x")}}, "aggregate cannot be {'x': {'of': 'sum', 'column': 'x'}}"),
    ("SX-JOB-FIELD", {"max_round": 7}, "job.iterate() has no argument 'max_round'; did you mean 'max_rounds'?"),
]


@pytest.mark.parametrize(("code", "given", "said"), BAD, ids=[f"{code}: {said}" for code, _, said in BAD])
def test_what_is_wrong_with_rounds(code: str, given: dict[str, Any], said: str) -> None:
    """One mistake is one problem, with its task, and what to do."""
    problem = only(a_job(**given))
    assert problem.code == code, problem
    assert said in f"{problem.message} {problem.cause}"
    assert problem.where["task"] == "x"
    assert problem.fix


SPOILT: list[tuple[str, dict[str, Any], str]] = [
    ("SX-ITERATE-TASK", {"fn": None}, "has no function"),
    ("SX-ITERATE-TASK", {"group_by": ["x"]}, "which have no key"),
    ("SX-ITERATE-TASK", {"consumption": "sequential"}, "cannot be sequential"),
    ("SX-ITERATE-TASK", {"on_error": "skip"}, "has on_error"),
    ("SX-ITERATE-TASK", {"keyed": {}}, "a state of keys as well"),
    ("SX-ITERATE-TASK", {"window": {"kind": "everything"}}, "windows as well"),
    ("SX-ITERATE-TASK", {"lifecycle": "job:Life"}, "a lifecycle as well"),
    ("SX-JOB-FIELD", {"iterate": 5}, "iterate cannot be 5"),
    ("SX-JOB-FIELD", {"iterate": {"state": 5}}, "state cannot be 5"),
    ("SX-JOB-FIELD", {"iterate": {**KMEANS, "group_by": 5}}, "group_by cannot be 5"),
    ("SX-JOB-FIELD", {"iterate": {"stat": "n bigint", "state": "n bigint"}}, "iterate has no 'stat'"),
]


@pytest.mark.parametrize(("code", "changes", "said"), SPOILT, ids=[f"{code}: {said}" for code, _, said in SPOILT])
def test_what_cannot_be_with_rounds(code: str, changes: dict[str, Any], said: str) -> None:
    """Of job files, which may say more than the builder."""
    data = a_job().data()
    catalog = [{**each, **changes} if each["name"] == "x" else each for each in data["catalog"]]
    catalog = [{key: value for key, value in each.items() if value is not None} for each in catalog]
    problems = [
        each for each in found({**data, "catalog": catalog}) if each.code in ("SX-ITERATE-TASK", "SX-JOB-FIELD")
    ]
    assert [each.code for each in problems] == [code], problems
    assert said in problems[0].message


def test_what_cannot_come_before_and_after_rounds() -> None:
    """Their results have no times; they cannot be in a loop; a job with checkpoints cannot have them."""
    job = a_job()
    job.output("out2", blackhole(), after=job.window("w", tumbling("1 s"), after="x", aggregate={"n": "count"}))
    assert {problem.code for problem in found(job)} == {"SX-TIME-MISSING"}
    job = a_job()
    job.output("out2", blackhole(), after=job.task("t", each, after="x", fuse=True))
    assert [problem.code for problem in found(job)] == ["SX-JOB-FUSE"]
    job = Job("loop")
    points = job.input("points", kafka("points", schema=SCHEMA, start="earliest", end="latest"))
    with job.cycle("again", after=points) as again:
        task = job.iterate("x", nearest, rows=again, state="cluster bigint")
        again.feedback(task)
    job.output("out", blackhole(), after=task)
    problem = only(job)
    assert (problem.code, "it has rounds" in problem.message) == ("SX-CYCLE-TASK", True)
    job = Job("kept", checkpoint_every="1 min")
    source = kafka("points", schema=SCHEMA, start="earliest", end="latest")
    points = job.input("points", source, time="at")
    job.output("out", blackhole(), after=job.iterate("x", nearest, rows=points, state="cluster bigint"))
    assert [problem.code for problem in found(job)] == ["SX-CHECKPOINT-STORE"]


def test_letters_of_rounds_are_not_redone_and_their_state_is_not_shown() -> None:
    """A redo would work on the letters alone; and rows that wait are nothing to look at."""
    job = Job("points")
    source = kafka("points", schema=SCHEMA, start="earliest", end="latest")
    points = job.input("points", source, on_error="dead_letter")
    job.output("out", blackhole(), after=job.iterate("x", nearest, rows=points, state="cluster bigint"))
    with pytest.raises(SardonyxError) as caught:
        redo_spec(job.spec(), "points", "again", "letters", 0, 9)
    assert (caught.value.code, "in rounds" in caught.value.message) == ("SX-DLQ-GRAPH", True)
    with pytest.raises(SardonyxError) as caught:
        _readable(job.spec(), "x", graph_of(job.spec(), "x", "points").stage("x"), counts=False)
    assert (caught.value.code, "keeps its rows" in caught.value.cause) == ("SX-STATE-NONE", True)


def test_a_database_may_keep_the_rows() -> None:
    """As for every state; its address is checked."""
    assert found(a_job(store=sql("postgresql://db/points"))) == []
    assert only(a_job(store=sql("nonsense"))).code == "SX-WINDOW-STORE"
