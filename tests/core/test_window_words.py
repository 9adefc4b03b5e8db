"""Time and windows as users write them: words, builder and YAML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from window_jobs import (
    WHOLE_YAML,
    a_job,
    found,
    only,
    spec_of,
    whole,
)

import sardonyx
from sardonyx import (
    Count,
    Job,
    Quantile,
    Sum,
    event_time,
    every,
    files,
    kafka_time,
    on_count,
    session,
    tumbling,
    wall,
)
from sardonyx.cli.graph_text import draw
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import Route, decode_spec, encode_spec
from sardonyx.core.timing import AggregateSpec, TimeSpec, WindowSpec
from sardonyx.job import windowing
from sardonyx.job.parse import read


@pytest.mark.parametrize(
    ("time", "spec"),
    [
        ("at", TimeSpec(column="at", ahead="1 day")),
        ({"column": "at", "delay": "5 s"}, TimeSpec(column="at", delay="5 s", ahead="1 day")),
        (
            event_time("at", delay="5 s", idle="1 min"),
            TimeSpec(column="at", delay="5 s", idle="1 min", ahead="1 day"),
        ),
        (
            event_time("n", unit="ms", ahead="3 days", idle="1 s", at_rest="wall"),
            TimeSpec(column="n", unit="ms", ahead="3 days", idle="1 s", at_rest="wall"),
        ),
        (kafka_time("stamp", delay="1 s"), TimeSpec(kind="kafka", column="stamp", delay="1 s")),
        (wall("read_at"), TimeSpec(kind="wall", column="read_at")),
    ],
)
def test_where_the_time_of_an_input_comes_from(time, spec):
    """A column alone, a mapping or a word, as the spec has it; it survives its encoding."""
    job = a_job(time=time)
    made = spec_of(job)
    assert made.task("hits").time == spec
    assert decode_spec(encode_spec(made)) == made
    assert found(job) == []


def test_rows_of_topics_have_a_limit_of_their_own():
    """Any producer may write a time far in the future, so one is refused unless the job says otherwise. Jobs that are stored
    without a limit have none, and so have other inputs, whose clocks their rows do not move.
    """
    read_from_files = Job("j")
    read_from_files.input("rows", files("in.json", format="json"), time=event_time("at"))
    assert spec_of(read_from_files).task("rows").time == TimeSpec(column="at")
    assert TimeSpec(column="at").most_ahead is None
    assert TimeSpec(column="at", kind="kafka").most_ahead == "1 day"
    assert TimeSpec(column="at", kind="kafka", ahead="5 min").most_ahead == "5 min"


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"emit": "changes"}, {"emit": "changes"}),
        ({"emit": every("10 s")}, {"emit": "every 10 s"}),
        ({"emit": every("10 s", by="wall")}, {"emit": "every 10 s by wall"}),
        ({"emit": on_count(100)}, {"emit": "count 100"}),
        ({"emit": "changes", "accumulate": False}, {"emit": "changes", "accumulate": False}),
        ({"grace": "10 s", "allowed_lateness": "1 h"}, {"grace": "10 s", "allowed_lateness": "1 h"}),
        ({"late": "dead_letter"}, {"late": "dead_letter"}),
        ({"grace": "0 min", "allowed_lateness": 0}, {"grace": "0 min"}),
        ({"state_limit": 1000, "store": "rocksdb"}, {"state_limit": 1000, "store": "rocksdb"}),
    ],
)
def test_what_a_window_may_say_besides(given, fields):
    """When results come, what is late, and where the state is."""
    job = a_job(**given)
    window = spec_of(job).task("per-user").window
    assert window == WindowSpec(kind="tumbling", size="1 min", aggregate={"hits": AggregateSpec(of="count")}, **fields)
    assert found(job) == []


def test_every_word_is_exported():
    """What the builder's words are, users import from sardonyx."""
    words = {name for name in vars(windowing) if getattr(getattr(windowing, name), "__wrapped__", None) is not None}
    assert words <= set(sardonyx.__all__)
    assert len(words) == 23
    for name in words:
        assert getattr(sardonyx, name) is getattr(windowing, name)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: a_job(time=event_time("at", dealy="5 s")),
            "event_time() has no argument 'dealy'; did you mean 'delay'?",
        ),
        (lambda: a_job(time=wall("read_at", dilay="1 s")), "wall() has no argument 'dilay'"),
        (lambda: a_job(tumbling(sise="1 min")), "tumbling() has no argument 'sise'; did you mean 'size'?"),
        (lambda: a_job(session("1 min", mots="1 h")), "did you mean 'most'?"),
        (lambda: a_job(aggregate={"p": Quantile("ms", 0.5, p=1)}), "Quantile() has no argument 'p'"),
        (lambda: a_job(aggregate={"p": Count("ms", "n")}), "Count() was given 2 arguments without a name"),
        (lambda: a_job(emit=every(duratoin="1 s")), "did you mean 'duration'?"),
        (lambda: a_job(agregate={"hits": Count()}), "did you mean 'aggregate'?"),
        (lambda: a_job(allowed_latness="1 h"), "did you mean 'allowed_lateness'?"),
    ],
)
def test_mistyped_keywords_are_problems_of_the_job(make, said):
    """With the nearest known one and the user's line, as for all other words; nothing raises."""
    problem = only(make())
    assert problem.code == "SX-JOB-FIELD"
    assert said in problem.message
    assert "window_jobs.py:" in problem.cause or Path(__file__).name in problem.cause
    assert problem.where["task"] in ("hits", "per-user")


def test_windows_of_another_kind_raise_at_once():
    """As a connector that is none does."""
    with pytest.raises(TypeError, match="windows are made by"):
        a_job("tumbling")


def test_all_ways_of_writing_give_the_same_spec():
    """Python, a job file in short forms, and a spec as JSON, in long ones, that is read again as a job."""
    built = whole()
    again = json.loads(encode_spec(built.spec()))
    specs = [read(each) for each in (built.data(), yaml.safe_load(WHOLE_YAML), again)]
    assert [[str(problem) for problem in problems] for _, problems in specs] == [[], [], []]
    (spec, _), *others = specs
    for other, _ in others:
        assert other == spec
    assert encode_spec(decode_spec(encode_spec(spec))) == encode_spec(spec)
    window = spec.task("per-user").window
    assert window is not None
    assert (window.late, spec.routes) == ("edge", {"per-user.fix": Route(of="late")})
    assert found(built) == []


@pytest.mark.parametrize(
    ("task", "field", "value", "code", "said"),
    [
        ("hits", "time", 5, "SX-JOB-FIELD", "time cannot be 5"),
        ("hits", "time", {"colum": "at"}, "SX-JOB-FIELD", "time has no 'colum'; did you mean 'column'"),
        ("hits", "time", {"kind": "kafka"}, "SX-JOB-FIELD", "time needs column"),
        ("hits", "time", {"column": 3}, "SX-JOB-FIELD", "column cannot be 3"),
        ("hits", "time", {"column": "stamp", "kind": "kafak"}, "SX-JOB-FIELD", "did you mean 'kafka'"),
        ("hits", "time", {"column": "at", "delay": 5}, "SX-JOB-FIELD", "delay cannot be 5"),
        ("hits", "time", {"column": "at", "unit": "min"}, "SX-JOB-FIELD", "unit cannot be 'min'"),
        ("hits", "time", {"column": "at", "at_rest": "holt"}, "SX-JOB-FIELD", "did you mean 'hold'"),
        ("per-user", "window", ["tumbling"], "SX-JOB-FIELD", "window cannot be ['tumbling']"),
        ("per-user", "window", {"size": "1 min"}, "SX-JOB-FIELD", "window needs kind"),
        ("per-user", "window", {"kind": "tumblin", "size": "1 min"}, "SX-JOB-FIELD", "did you mean 'tumbling'"),
        (
            "per-user",
            "window",
            {"kind": "fixed", "size": "1 min"},
            "SX-JOB-FIELD",
            "here such windows are called tumbling",
        ),
        (
            "per-user",
            "window",
            {"kind": "tumbling", "sise": "1 min", "size": "1 h"},
            "SX-JOB-FIELD",
            "did you mean 'size'",
        ),
        (
            "per-user",
            "window",
            {"kind": "tumbling", "size": "1 min", "grace": 1.5},
            "SX-JOB-FIELD",
            "grace cannot be 1.5",
        ),
        (
            "per-user",
            "window",
            {"kind": "tumbling", "size": "1 min", "late": "dead"},
            "SX-JOB-FIELD",
            "late cannot be 'dead'",
        ),
        ("per-user", "window", {"kind": "tumbling", "size": "1 min", "emit": 10}, "SX-JOB-FIELD", "emit cannot be 10"),
        ("per-user", "window", {"kind": "calendar", "unit": "dya"}, "SX-JOB-FIELD", "did you mean 'day'"),
        ("per-user", "aggregate", {"hits": "coutn"}, "SX-JOB-FIELD", "did you mean 'count'"),
        ("per-user", "aggregate", {"hits": {"mx": "ms"}}, "SX-JOB-FIELD", "did you mean 'max'"),
        ("per-user", "aggregate", {"hits": 5}, "SX-JOB-FIELD", "aggregate hits cannot be 5"),
        ("per-user", "aggregate", {"hits": {"max": "ms", "min": "ms"}}, "SX-JOB-FIELD", "aggregate hits cannot be"),
        (
            "per-user",
            "aggregate",
            {"hits": {"of": "max", "colum": "ms", "column": "ms"}},
            "SX-JOB-FIELD",
            "hits has no 'colum'",
        ),
        ("per-user", "aggregate", {"hits": {"max": 5}}, "SX-JOB-FIELD", "column cannot be 5"),
        ("per-user", "aggregate", {"p": {"quantile": "ms", "q": float("nan")}}, "SX-JOB-FIELD", "cannot be sent"),
        ("per-user", "aggregate", ["count"], "SX-JOB-FIELD", "aggregate cannot be ['count']"),
        ("per-user", "aggregate", {"hits": Count}, "SX-JOB-FIELD", "aggregate hits cannot be <function Count"),
        ("per-user", "grace", "1 s", "SX-JOB-FIELD", "a task has no 'grace'"),
    ],
)
def test_what_cannot_be_read_is_told_in_the_words_of_the_file(task, field, value, code, said):
    """One mistake, one problem, with the nearest known word and what to write."""
    data = a_job().data()
    data["catalog"] = [dict(entry) for entry in data["catalog"]]
    entry = next(entry for entry in data["catalog"] if entry["name"] == task)
    aggregate = entry["window"].pop("aggregate") if field in ("window", "aggregate") else None
    entry[field] = value
    if field == "window":
        entry["aggregate"] = aggregate
    problem = only(data)
    assert problem.code == code
    assert said in problem.message
    assert problem.fix


def test_all_mistakes_are_told_at_once():
    """Of times, windows and aggregates together, in one call."""
    problems = found(
        a_job(
            tumbling("1 mni"),
            time=event_time("att", dealy="1 s"),
            aggregate={"user": Count(), "p": Quantile("ms", 5), "s": Sum("user")},
            emit="chnages",
            store="rocks",
        )
    )
    assert sorted(problem.code for problem in problems) == [
        "SX-JOB-FIELD",
        "SX-JOB-UNITS",
        "SX-TIME-INPUT",
        "SX-WINDOW-AGGREGATE",
        "SX-WINDOW-EMIT",
        "SX-WINDOW-RESULT",
        "SX-WINDOW-STORE",
    ]
    assert all(problem.fix and problem.where["task"] for problem in problems)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["at", "1 min", "tumbling", "count", "every 10 s", "changes", "Europe/Berlin", "user", "edge", "0 s"]
    ),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(
        st.sampled_from(["of", "column", "options", "max", "q", "most", ""]), st.integers() | st.text(), max_size=3
    ),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    time=JUNK | st.dictionaries(st.sampled_from(TimeSpec.__struct_fields__), JUNK),
    window=JUNK | st.dictionaries(st.sampled_from(WindowSpec.__struct_fields__), JUNK),
    aggregate=JUNK | st.dictionaries(st.sampled_from(["hits", "user", "pane", ""]), JUNK),
)
def test_nothing_that_a_file_holds_raises(time, window, aggregate):
    """Whatever stands there is read or is a problem; what is found good survives its encoding."""
    data = a_job().data()
    hits, per_user, out = ({**entry} for entry in data["catalog"])
    data["catalog"] = [hits | {"time": time}, per_user | {"window": window, "aggregate": aggregate}, out]
    if found(data) == []:
        spec, _ = read(data)
        assert decode_spec(encode_spec(spec)) == spec
        graph_of(spec, "d", "j")
        draw(spec, graph_of(spec, "d", "j"))
