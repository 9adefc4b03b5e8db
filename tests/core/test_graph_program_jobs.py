"""Users' programs over graphs in a job: what users write, what ``check`` finds, and what a job file says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sardonyx import Job, Superstep, VertexProgram, blackhole, kafka
from sardonyx.cli.graph_text import computed_text
from sardonyx.core.graphing import GraphSpec, Until, read_columns, read_until
from sardonyx.core.spec import decode_spec, encode_spec
from sardonyx.job.graphing import GraphView
from sardonyx.job.parse import read
from tests.core.graph_programs import Distances, depth_send, depth_update, rank_send, rank_update
from tests.core.window_jobs import found, only

HERE = "tests.core.graph_programs"
FOLLOWS = "src long, dst long, km double"
DEPTHS: dict[str, Any] = {"state": "depth bigint", "combine": {"near": "min bigint"}, "params": {"start": 1}}
RANKS: dict[str, Any] = {
    "state": "rank double",
    "combine": {"share": "sum double"},
    "aggregate": {"lost": "sum", "moved": "sum"},
    "until": "moved <= 1e-8",
    "always": True,
}


def a_job(add: Callable[[GraphView], Any], **given: Any) -> Job:
    """A job with a program, for tests to spoil."""
    job = Job("web")
    links = job.input("links", kafka("links", schema=FOLLOWS, start="earliest", end="latest"))
    graph = job.graph("web", **{"edges": links, "source": "src", "target": "dst", **given})
    job.output("out", blackhole(), after=add(graph))
    return job


def master(step: Superstep, limit: int = 3) -> None:
    if step.number == limit:
        step.finish()


def records(v: dict) -> dict:
    return v


def bare(v) -> pa.Table:  # type: ignore[no-untyped-def]
    return v


class NoProgram:
    pass


class Idle(VertexProgram):
    pass


def test_the_same_job_as_data() -> None:
    """A job file says the same as the builder, and ZooKeeper holds it, also a state that is infinite at first."""
    job = a_job(
        lambda graph: graph.compute(
            "near", Distances, state="distance double", first={"distance": math.inf}, weight="km"
        )
    )
    spec = job.spec()
    task = spec.task("near")
    assert (task.fn, task.type, task.max_peers) == (f"{HERE}:Distances", "function", 1)
    assert task.graph == GraphSpec(
        algorithm="program",
        graph="web",
        edges="links",
        source="src",
        target="dst",
        weight="km",
        state="distance double",
        first={"distance": "inf"},
    )
    assert decode_spec(encode_spec(spec)) == spec
    graph = {"algorithm": "program", "graph": "web", "edges": "links", "source": "src", "target": "dst"}
    more = {"weight": "km", "state": "distance double", "first": {"distance": math.inf}}
    written = {"name": "near", "type": "function", "max_peers": 1, "fn": f"{HERE}:Distances", "graph": graph | more}
    data = job.data()
    catalog = [written if each["name"] == "near" else each for each in data["catalog"]]
    assert read({**data, "catalog": catalog}) == (spec, [])
    job = a_job(lambda graph: graph.compute("ranks", rank_update, rank_send, master=master, columns="km", **RANKS))
    assert job.spec().references() == [f"{HERE}:rank_update", f"{HERE}:rank_send", f"{__name__}:master"]
    assert job.spec().task("ranks").graph.columns == ["km"]  # type: ignore[union-attr]
    assert found(job) == []


def test_the_text_of_a_program() -> None:
    """What a program computes stands in one line."""
    job = a_job(lambda graph: graph.compute("ranks", rank_update, rank_send, **RANKS), directed=False)
    graph = job.spec().task("ranks").graph
    assert graph is not None
    assert " ".join(computed_text(graph)) == (
        "program of the undirected graph web; edges links from src to dst; state rank double; "
        "messages share sum double; until moved <= 1e-8; at most 1,000 supersteps"
    )
    assert graph.results == ("id", "rank")


def test_words() -> None:
    """Conditions and columns as they may be written."""
    assert read_until(" moved<=1e-8 ") == Until("moved", "<=", 1e-8)
    assert read_until("n == -3") == Until("n", "==", -3.0)
    assert [read_until(text) for text in ("moved", "moved = 1", "moved < x", "moved < 1 and n < 2", "")] == [None] * 5
    assert read_columns("a bigint,b  double") == {"a": "bigint", "b": "double"}
    assert [read_columns(text) for text in ("a", "a bigint,", "", "a b c", "1 bigint")] == [None] * 5
    holds = {
        sign: [Until("x", sign, 2.0).holds(value) for value in (1, 2, 3, None)] for sign in ("<", "<=", "==", ">=", ">")
    }
    assert holds == {
        "<": [True, False, False, False],
        "<=": [True, True, False, False],
        "==": [False, True, False, False],
        ">=": [False, True, True, False],
        ">": [False, False, True, False],
    }
    assert not Until("x", "<", 2.0).holds(math.nan)


def depths(**given: Any) -> Callable[[GraphView], Any]:
    return lambda graph: graph.compute("x", depth_update, depth_send, **{**DEPTHS, **given})


def ranks(**given: Any) -> Callable[[GraphView], Any]:
    return lambda graph: graph.compute("x", rank_update, rank_send, **{**RANKS, **given})


def program(update: Any, send: Any = None, **given: Any) -> Callable[[GraphView], Any]:
    return lambda graph: graph.compute("x", update, send, **{"state": "n double", **given})


BAD: list[tuple[str, Callable[[GraphView], Any], str]] = [
    ("SX-GRAPH-TASK", depths(state=None), "program needs state"),
    ("SX-JOB-FIELD", depths(state=5), "state cannot be 5"),
    ("SX-GRAPH-PROGRAM", depths(state="depth"), "state cannot be 'depth'"),
    ("SX-GRAPH-PROGRAM", depths(state="depth int"), "'depth' of state cannot be 'int'"),
    ("SX-GRAPH-PROGRAM", depths(state="depth bigint, depth double"), "state cannot be"),
    ("SX-GRAPH-PROGRAM", depths(first={"deep": 0}), "first names 'deep', which is not in state; did you mean 'depth'?"),
    ("SX-GRAPH-PROGRAM", depths(first={"depth": 0.5}), "'depth' cannot be 0.5 at first: it is bigint"),
    ("SX-GRAPH-PROGRAM", depths(first={"depth": math.inf}), "'depth' cannot be 'inf' at first"),
    ("SX-GRAPH-PROGRAM", depths(combine={"near": "least"}), "'near' cannot be combined by 'least'"),
    ("SX-GRAPH-PROGRAM", depths(combine={"near": "min"}), "'near' cannot be combined by 'min'"),
    ("SX-GRAPH-PROGRAM", depths(combine={"near": "sum string"}), "have no sum"),
    ("SX-GRAPH-PROGRAM", depths(combine=None), "combine does not say what becomes of messages"),
    ("SX-GRAPH-PROGRAM", ranks(aggregate={"lost": "sum", "moved": "total"}), "aggregate 'moved' cannot be 'total'"),
    ("SX-GRAPH-PROGRAM", ranks(until="moved is small"), "until cannot be 'moved is small'"),
    ("SX-GRAPH-PROGRAM", ranks(until="movd < 1"), "'movd', which is not an aggregate; did you mean 'moved'?"),
    ("SX-GRAPH-PROGRAM", ranks(columns=["rank"]), "two columns of the table that send is given would be called 'rank'"),
    ("SX-GRAPH-PROGRAM", ranks(weight="rank"), "two columns of the table that send is given would be called 'rank'"),
    ("SX-GRAPH-COLUMN", ranks(weight="dst"), "'dst' is two columns of an edge at once"),
    ("SX-GRAPH-PROGRAM", depths(state="id bigint"), "update is given would be called 'id'"),
    ("SX-GRAPH-PROGRAM", depths(combine={"id": "min bigint"}), "update is given would be called 'id'"),
    ("SX-GRAPH-PROGRAM", ranks(aggregate={"moved": "sum", "send": "sum"}), "update returns would be called 'send'"),
    ("SX-GRAPH-PROGRAM", program(depth_update, combine={"a": "min double"}, params={"start": 1}), "nothing sends any"),
    ("SX-GRAPH-PROGRAM", program(NoProgram), "class NoProgram is no VertexProgram"),
    ("SX-GRAPH-PROGRAM", program(Idle), "class Idle has no compute"),
    ("SX-GRAPH-PROGRAM", program(Distances, always=True), "it is a class, and has always"),
    ("SX-GRAPH-PROGRAM", program(Distances, depth_send, combine={"a": "min double"}), "it is a class, and has send"),
    ("SX-GRAPH-NUMBER", depths(max_supersteps=0), "max_supersteps cannot be 0"),
    ("SX-FN-ANNOTATION", program(records), "takes tables"),
    ("SX-FN-ANNOTATION", program(bare), "no annotation"),
    ("SX-FN-PARAMS", depths(params={}), "needs 'start', which params do not give"),
    ("SX-FN-PARAMS", depths(params={"start": 1, "strat": 2}), "none of its functions has a parameter 'strat'"),
    ("SX-FN-PARAMS", depths(params={"start": 1, "step": 2}), "'step', which stands for the superstep"),
    ("SX-FN-NAME", program(lambda v: v), "<lambda>"),
    ("SX-FN-NAME", depths(master=lambda step: None), "<lambda>"),
    ("SX-JOB-FIELD", depths(aggregates={}), "graph.compute() has no argument 'aggregates'; did you mean 'aggregate'?"),
    ("SX-JOB-FIELD", depths(always="no"), "always cannot be 'no'"),
]


@pytest.mark.parametrize(("code", "add", "said"), BAD, ids=[f"{code}: {said}" for code, _, said in BAD])
def test_what_is_wrong_with_a_program(code: str, add: Callable[[GraphView], Any], said: str) -> None:
    """One mistake is one problem, with its task, and what to do."""
    problem = only(a_job(add))
    assert problem.code == code, problem
    assert said in f"{problem.message} {problem.cause}"
    assert problem.where["task"] == "x"
    assert problem.fix


def test_a_program_without_a_function() -> None:
    """In a job file the function may be forgotten, or stand where no algorithm takes one."""
    job = a_job(depths(params=None))
    data = job.data()
    task = next(each for each in data["catalog"] if each["name"] == "x")
    bare_task = {key: value for key, value in task.items() if key != "fn"}
    problems = found({**data, "catalog": [bare_task if each is task else each for each in data["catalog"]]})
    assert [(each.code, each.message) for each in problems] == [
        ("SX-GRAPH-PROGRAM", "task 'x': it is a program without a function")
    ]
    declared = {**task, "graph": {**task["graph"], "algorithm": "degrees"}}
    problems = found({**data, "catalog": [declared if each is task else each for each in data["catalog"]]})
    assert {each.code for each in problems} == {"SX-GRAPH-TASK"}
    assert any("a function as well" in each.message for each in problems)
    assert any("degrees has no state" in each.message for each in problems)
