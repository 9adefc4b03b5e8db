"""Keys, conditions, failed edges, errors by record and lifecycles: how they are said, and what is wrong with them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import yaml
from msgspec.structs import replace

from sardonyx import Job, OnError, all_of, any_of, blackhole, connector, generator, kafka, not_
from sardonyx.cli.graph_text import draw
from sardonyx.core.conditions import Condition, condition_text
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import graph_of
from sardonyx.core.job_diff import job_diff
from sardonyx.core.spec import Route, decode_spec, encode_spec
from sardonyx.job.parse import read
from sardonyx.job.validate import problems_of

HERE = __name__


def parse(row: dict) -> dict:
    return row


def clean(rows: pa.Table) -> pa.Table:
    return rows


def is_late(rows: pa.Table) -> pa.Array:
    return rows["late"]


def is_odd(row: dict) -> bool:
    return bool(row["id"] % 2)


def by_pair(row: dict) -> tuple:
    return row["a"], row["b"]


def on_pandas(rows: "pd.DataFrame") -> Any: ...  # noqa: F821, UP037
def on_anything(rows): ...
def needs_more(rows: pa.Table, limit: int) -> pa.Array: ...
def enrich(row: dict, model: object) -> dict: ...


class Models:
    def start(self, context: Any) -> dict:
        return {"model": 1}

    def stop(self) -> None: ...


class Counter:
    def befor_batch(self, rows: int) -> None: ...


class NeedsMore:
    def __init__(self, path: str) -> None: ...
    def stop(self) -> None: ...


class OwnConnector: ...


WHOLE_YAML = f"""
name: whole
workflow: [[read, parse], [parse, late], [parse, mend], [late, out], [mend, out]]
routes:
  parse.late: {{where: "{HERE}:is_late"}}
  parse.mend: {{of: failed, where: "{HERE}:is_odd"}}
  late.out: {{}}
catalog:
  - {{name: read, type: input, connector: "{HERE}:OwnConnector", options: {{depth: 3}}}}
  - name: parse
    type: function
    fn: "{HERE}:parse"
    on_error: {{retries: 2, backoff: "1 s", then: dead_letter}}
    lifecycle: "{HERE}:Models"
  - {{name: late, type: function, fn: "{HERE}:clean", group_by: carrier}}
  - {{name: mend, type: function, fn: "{HERE}:parse", on_error: skip, group_by: "{HERE}:by_pair"}}
  - {{name: out, type: output, connector: blackhole}}
"""


def whole() -> Job:
    job = Job("whole")
    rows = job.input("read", connector(OwnConnector, depth=3))
    policy = OnError(retries=2, backoff="1 s", then="dead_letter")
    parsed = job.task("parse", parse, after=rows, on_error=policy, lifecycle=Models)
    late = job.task("late", clean, after=parsed.where(is_late), group_by=("carrier",))
    mend = job.task("mend", parse, after=parsed.failed.where(f"{HERE}:is_odd"), group_by=by_pair, on_error="skip")
    job.output("out", blackhole(), after=[late, mend])
    return job


def found(job: Job | dict[str, Any]) -> list[SardonyxError]:
    spec, problems = read(job.data() if isinstance(job, Job) else job)
    return problems + problems_of(spec, functions=job.functions if isinstance(job, Job) else {})


def only(job: Job | dict[str, Any]) -> SardonyxError:
    problems = found(job)
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def test_all_ways_of_writing_give_the_same_spec():
    """Python and YAML, with what is unsaid left out and single columns as a list; it survives its encoding."""
    specs = [read(data) for data in (whole().data(), yaml.safe_load(WHOLE_YAML))]
    assert [problems for _, problems in specs] == [[], []]
    (spec, _), (other, _) = specs
    assert other == spec
    assert spec.routes == {
        "parse.late": Route(where=f"{HERE}:is_late"),
        "parse.mend": Route(of="failed", where=f"{HERE}:is_odd"),
    }
    assert spec.task("late").group_by == ["carrier"]
    assert decode_spec(encode_spec(spec)) == spec
    assert found(whole()) == []
    names = ("OwnConnector", "parse", "Models", "clean", "by_pair", "is_late", "is_odd")
    assert spec.references() == [f"{HERE}:{name}" for name in names]


def test_an_edge_has_one_condition():
    """Two would leave open whether both must hold."""
    job = Job("two")
    rows = job.input("read", generator(1))
    with pytest.raises(ValueError, match="all_of"):
        rows.where(is_late).where(is_odd)
    with pytest.raises(TypeError, match="a condition is a function"):
        job.output("out", blackhole(), after=rows.where(5))


def test_conditions_have_parameters_and_are_combined():
    """In Python and in YAML alike; it survives its encoding, its functions travel, and it is shown as one reads it."""
    job = a_job()
    odd_or_far = any_of(is_odd, partial(needs_more, limit=3))
    job.output(
        "some", blackhole(), after=job.task("again", parse, after="read").where(all_of(odd_or_far, not_(is_late)))
    )
    written = f"""
        all_of:
          - any_of: ["{HERE}:is_odd", {{fn: "{HERE}:needs_more", params: {{limit: 3}}}}]
          - not: "{HERE}:is_late"
    """
    spec = job.spec()
    assert read({**job.data(), "routes": {"again.some": {"where": yaml.safe_load(written)}}}) == (spec, [])
    assert decode_spec(encode_spec(spec)) == spec
    assert {f"{HERE}:{name}" for name in ("is_odd", "needs_more", "is_late")} <= {*spec.references()}
    text = f"({HERE}:is_odd or {HERE}:needs_more(limit=3)) and not {HERE}:is_late"
    assert condition_text(spec.route("again", "some").where) == text
    assert f"of again where {text}" in "\n".join(draw(spec, graph_of(spec, "d", "j")))
    assert [each.where for each in job.plan().exchanges if each.name == "again.some"] == [text]
    changed = replace(spec, routes={"again.some": Route(where=Condition(fn=f"{HERE}:needs_more", params={"limit": 4}))})
    found = [each for link in job_diff(spec, changed).links for each in link.differences if each.kind == "route"]
    assert [(each.field, each.before, each.after) for each in found] == [("where", text, f"{HERE}:needs_more(limit=4)")]


def test_a_partial_fixes_names():
    """The job names the parameters, so that a version of the function with others is found out."""
    job = a_job()
    with pytest.raises(TypeError, match="keyword arguments only"):
        job.output(
            "some", blackhole(), after=job.task("again", parse, after="read").where(partial(needs_more, pa.table({})))
        )


def a_job(**late: Any) -> Job:
    job = Job("good")
    rows = job.input("read", generator(10))
    job.task("parse", parse, after=rows)
    job.task("late", clean, after="parse", **late)
    job.output("out", blackhole(), after="late")
    return job


@pytest.mark.parametrize(
    ("late", "code", "said"),
    [
        ({"group_by": []}, "SX-JOB-GROUP", "names no column"),
        ({"group_by": [""]}, "SX-JOB-GROUP", "without a name"),
        ({"group_by": ["a", "b", "a"]}, "SX-JOB-GROUP", "'a' 2 times"),
        ({"group_by": [1]}, "SX-JOB-FIELD", "group_by cannot be [1]"),
        ({"group_by": "nowhere:fn"}, "SX-FN-IMPORT", "no module 'nowhere'"),
        ({"group_by": f"{HERE}:by_pai"}, "SX-FN-IMPORT", "no function 'by_pai'"),
        ({"group_by": lambda row: row}, "SX-FN-NAME", "lambda"),
        ({"group_by": on_pandas}, "SX-FN-ANNOTATION", "pyarrow.Table or dict"),
        ({"group_by": on_anything}, "SX-FN-ANNOTATION", "no annotation"),
        ({"group_by": needs_more}, "SX-FN-PARAMS", "'limit'"),
        ({"on_error": {"retries": -1}}, "SX-JOB-ON-ERROR", "retries cannot be -1"),
        ({"on_error": {"retries": "two"}}, "SX-JOB-FIELD", "retries cannot be 'two'"),
        ({"on_error": {"retry": 2}}, "SX-JOB-FIELD", "did you mean 'retries'"),
        ({"on_error": {"then": "dead-letter"}}, "SX-JOB-FIELD", "did you mean 'dead_letter'"),
        ({"on_error": "deadletter"}, "SX-JOB-FIELD", "did you mean 'dead_letter'"),
        ({"on_error": 3}, "SX-JOB-FIELD", "on_error cannot be 3"),
        ({"on_error": OnError(backoff="soon")}, "SX-JOB-UNITS", "backoff cannot be 'soon'"),
        ({"lifecycle": Counter}, "SX-JOB-LIFECYCLE", "did you mean 'before_batch'"),
        ({"lifecycle": NeedsMore}, "SX-JOB-LIFECYCLE", "'path'"),
        ({"lifecycle": clean}, "SX-FN-IMPORT", "not a class"),
        ({"lifecycle": "nowhere:Models"}, "SX-FN-IMPORT", "no module 'nowhere'"),
        ({"lifecycle": "Models"}, "SX-FN-NAME", "module:function"),
    ],
)
def test_what_is_wrong_with_a_task_is_told(late, code, said):
    """One problem, with its task, the nearest known thing and what to do."""
    problem = only(a_job(**late))
    assert problem.code == code
    assert said in str(problem)
    assert problem.where["task"] == "late"
    assert problem.fix


@pytest.mark.parametrize(
    ("routes", "code", "said"),
    [
        ({"parse.lat": {"where": f"{HERE}:is_late"}}, "SX-JOB-ROUTE", "did you mean 'parse.late'"),
        ({"parse.lat": {}}, "SX-JOB-ROUTE", "choose from the job's links"),
        ({"read.parse": {"of": "failed"}}, "SX-JOB-ROUTE", "no function that can fail"),
        ({"parse.late": {"of": "errors"}}, "SX-JOB-FIELD", "of cannot be 'errors'"),
        ({"parse.late": {"wher": 1}}, "SX-JOB-FIELD", "the route of parse.late has no 'wher'; did you mean 'where'"),
        ({"parse.late": "is_late"}, "SX-JOB-FIELD", "the route of 'parse.late' is a mapping"),
        (["parse.late"], "SX-JOB-FIELD", "routes is a mapping"),
        ({"parse.late": {"where": "is_late"}}, "SX-FN-NAME", "module:function"),
        ({"parse.late": {"where": f"{HERE}:on_pandas"}}, "SX-FN-ANNOTATION", "task 'late'"),
        ({"parse.late": {"where": f"{HERE}:is_lat"}}, "SX-FN-IMPORT", "is_late"),
        ({"parse.late": {"where": f"{HERE}:needs_more"}}, "SX-FN-PARAMS", "needs the parameter 'limit'"),
        (
            {"parse.late": {"where": {"fn": f"{HERE}:needs_more", "params": {"limits": 1}}}},
            "SX-FN-PARAMS",
            "mean 'limit'",
        ),
        ({"parse.late": {"where": {"not": {"fn": f"{HERE}:on_pandas"}}}}, "SX-FN-ANNOTATION", "task 'late'"),
        ({"parse.late": {"where": {"any_of": ["is_late"]}}}, "SX-FN-NAME", "module:function"),
        ({"parse.late": {"where": {"all_of": []}}}, "SX-JOB-ROUTE", "at least one condition"),
        ({"parse.late": {"where": {}}}, "SX-JOB-ROUTE", "says none of them"),
        (
            {"parse.late": {"where": {"fn": f"{HERE}:is_late", "not": f"{HERE}:is_odd"}}},
            "SX-JOB-ROUTE",
            "says fn and not",
        ),
        ({"parse.late": {"where": {"not": f"{HERE}:is_odd", "params": {"a": 1}}}}, "SX-JOB-ROUTE", "nothing takes"),
        ({"parse.late": {"where": {"no": f"{HERE}:is_odd"}}}, "SX-JOB-FIELD", "{all_of: [...]}"),
        ({"parse.late": {"where": {"fn": f"{HERE}:needs_more", "params": {"limit": {1}}}}}, "SX-JOB-PARAMS", "limit"),
        (
            {"parse.late": {"where": {"fn": f"{HERE}:needs_more", "params": {"limit": {"$env": "A"}}}}},
            "SX-JOB-ROUTE",
            "secret",
        ),
    ],
)
def test_what_is_wrong_with_a_route_is_told(routes, code, said):
    """One problem, with the nearest known thing and what to do."""
    problem = only({**a_job().data(), "routes": routes})
    assert problem.code == code
    assert said in str(problem)


def test_an_input_groups_nothing():
    """What is grouped is what a task reads."""
    data = a_job().data()
    data["catalog"][0] = {**data["catalog"][0], "group_by": ["id"]}
    assert only(data).code == "SX-JOB-GROUP"


def test_a_lifecycle_may_give_what_params_do_not():
    """Only one that has a start gives anything."""
    job = a_job()
    job.task("enrich", enrich, after="late", lifecycle=Models)
    job.output("more", blackhole(), after="enrich")
    assert found(job) == []


def test_a_connector_of_the_users_must_be_there():
    """A class that can be imported; the class itself knows what options it takes."""
    job = Job("own")
    job.output("out", connector(f"{HERE}:OwnConnector"), after=job.input("read", connector(f"{HERE}:OwnMedum")))
    assert only(job).code == "SX-FN-IMPORT"
    job = Job("own")
    job.output("out", connector(f"{HERE}:clean"), after=job.input("read", connector(OwnConnector, any=1)))
    assert "not a class" in str(only(job))


# --- The graph --------------------------------------------------------------------------------------------------------


def bound(job: Job) -> list[str]:
    return sorted(graph_of(job.spec(), "d", "j").bound)


def topic_job(**of_input: Any) -> tuple[Job, Any]:
    job = Job("topics")
    return job, job.input("in", kafka("in", start="earliest"), **of_input)


def test_topics_are_bound_in_place_while_nobody_must_look_at_their_rows():
    """Keys, conditions, on_error and lifecycles make a Kafka input run; conditions leave a Kafka output where it is."""
    job, rows = topic_job()
    job.output("out", kafka("out"), after=job.task("work", clean, after=rows).where(is_late))
    assert bound(job) == ["in", "out"]

    for of_input, after, of_task in (
        ({}, lambda rows: rows, {"group_by": "id"}),
        ({}, lambda rows: rows.where(is_late), {}),
        ({}, lambda rows: rows.failed, {}),
        ({"on_error": "dead_letter"}, lambda rows: rows, {}),
        ({"lifecycle": Models}, lambda rows: rows, {}),
    ):
        job, rows = topic_job(**of_input)
        job.output("out", kafka("out"), after=job.task("work", clean, after=after(rows), **of_task))
        assert bound(job) == ["out"], (of_input, of_task)
        assert found(job) == []

    job, rows = topic_job()
    job.output("out", kafka("out"), after=job.task("work", clean, after=rows), group_by="id")
    assert bound(job) == ["in"]

    job, rows = topic_job()
    job.output("out", kafka("out"), after=rows.where(is_late))  # the input runs, so it can write to the output itself
    assert bound(job) == ["out"]


def test_links_know_what_goes_over_them():
    """The route and the key stand on the link; a task that keeps dead letters has a link for them, which no sentinel ends."""
    graph = graph_of(whole().spec(), "d", "j")
    links = {link.name: link for link in graph.links}
    assert links["parse.late"].route.where == f"{HERE}:is_late"
    assert (links["parse.mend"].route.of, links["parse.mend"].group_by) == ("failed", f"{HERE}:by_pair")
    dead = links["parse.dead"]
    assert (dead.kind, dead.topic, dead.owned, dead.has_sentinels) == ("dead", "d.j.parse.dead", True, False)
    assert "mend.dead" not in links


def test_the_drawing_shows_ways_and_keys():
    """What a task gets, by what it groups, and what becomes of its errors, on its line."""
    text = "\n".join(draw(whole().spec(), graph_of(whole().spec(), "d", "j")))
    assert f"(of parse where {HERE}:is_late, grouped by carrier)" in text
    assert f"(failed records of parse where {HERE}:is_odd, grouped by {HERE}:by_pair, on error: skip)" in text
    assert f"(with {HERE}:Models, on error: after 2 more runs, dead letter)" in text
