"""Keyed state as users write it: the builder, job files, what cannot work, and what is probably not meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from keyed_jobs import (
    HERE,
    WHOLE_YAML,
    Hooks,
    a_job,
    by_user,
    endless,
    frames,
    lists_as_keys,
    needs_rate,
    no_timer,
    of_frames_with,
    one_table,
    only_for_checking,
    other_state,
    plain,
    review,
    sets,
    spend,
    total,
    unknown_type,
    whole,
)
from window_jobs import found, only, spec_of

import sardonyx
from sardonyx import Job, blackhole, event_time, kafka, ordinal
from sardonyx.cli.graph_text import draw
from sardonyx.core.graph import graph_of
from sardonyx.core.keyed import KeyedSpec
from sardonyx.core.spec import decode_spec, encode_spec
from sardonyx.core.timing import RowTime
from sardonyx.job.parse import read
from sardonyx.job.warn import warnings_of


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({}, KeyedSpec()),
        ({"ttl": "30 days"}, KeyedSpec(ttl={"*": "30 days"})),
        ({"ttl": {"account": "1 h"}}, KeyedSpec(ttl={"account": "1 h"})),
        ({"store": "rocksdb", "state_limit": 5}, KeyedSpec(store="rocksdb", state_limit=5)),
        ({"on_timer": review}, KeyedSpec(on_timer=f"{HERE}:review")),
        ({"on_timer": f"{HERE}:review"}, KeyedSpec(on_timer=f"{HERE}:review")),
        ({"time": "at"}, KeyedSpec(time="at")),
        ({"fn": frames, "state": "total double"}, KeyedSpec(state="total double")),
    ],
)
def test_a_task_with_keyed_state(given, spec):
    """What the builder takes stands in the spec, which survives its encoding; all of it can run."""
    job = a_job(given.pop("fn", total), **given)
    made = spec_of(job)
    assert made.task("spend").keyed == spec
    assert decode_spec(encode_spec(made)) == made
    assert found(job) == []


def test_the_same_job_in_yaml():
    """The builder and YAML give the same bytes."""
    spec, problems = read(yaml.safe_load(WHOLE_YAML))
    assert problems == []
    assert encode_spec(spec) == encode_spec(spec_of(whole()))
    assert found(whole()) == []


def test_on_timer_travels_with_the_job():
    """Peers import it, so it is among what the job names."""
    assert f"{HERE}:review" in spec_of(whole()).references()
    assert whole().functions[f"{HERE}:review"] is review


def test_our_names_can_be_imported_from_the_top():
    """What annotations need is exported."""
    names = ("State", "ListState", "MapState", "Timers", "Timer", "Key")
    assert all(getattr(sardonyx, name).__name__ == name for name in names)
    assert set(names) <= set(sardonyx.__all__)


@pytest.mark.parametrize(
    ("keyed", "said"),
    [
        ("30 days", "keyed cannot be '30 days'"),
        ({"tll": "30 days"}, "keyed has no 'tll'; did you mean 'ttl'"),
        ({"ttl": 5}, "ttl cannot be 5"),
        ({"state_limit": "many"}, "state_limit cannot be 'many'"),
        ({"on_timer": 5}, "on_timer cannot be 5"),
    ],
)
def test_mistakes_in_a_file_are_named(keyed, said):
    """One mistake gives one problem, with what to write."""
    problem = only(a_job(fields={"keyed": keyed}))
    assert problem.code == "SX-JOB-FIELD"
    assert said in problem.message
    assert problem.fix


def test_a_field_of_keyed_beside_it_is_told_where_it_belongs():
    """``ttl`` of the task itself is one of ``keyed``."""
    assert only(a_job(fields={"ttl": "1 h"})).fix == "write it into keyed"
    assert only(a_job(fields={"state_limit": 5})).fix == "write it into keyed"


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        # the task
        (lambda: a_job(fields={"consumption": "sequential"}), "SX-KEYED-TASK", "cannot be sequential"),
        (lambda: a_job(group_by=by_user), "SX-KEYED-KEY", "a function cannot make its key"),
        (lambda: a_job(group_by="usr"), "SX-KEYED-KEY", "did you mean 'user'"),
        (lambda: a_job(group_by="tags"), "SX-KEYED-KEY", "whose values are of type list<"),
        (lambda: a_job(times="at", source=endless, fields={"keyed": {"time": "att"}}), "SX-KEYED-TIME", "mean 'at'"),
        (lambda: a_job(fields={"fuse": True}), "SX-JOB-FUSE", "brings the rows of each of its keys together"),
        (lambda: a_job(fields={"fn": None}), "SX-JOB-FUNCTION", "needs a function"),
        # how long, and where
        (lambda: a_job(ttl="soon"), "SX-JOB-UNITS", "ttl cannot be 'soon'"),
        (lambda: a_job(ttl="0 s"), "SX-KEYED-TTL", "ttl cannot be '0 s'"),
        (lambda: a_job(ttl={"account": "9999999 days"}), "SX-KEYED-TTL", "ttl of 'account' cannot be"),
        (lambda: a_job(store="jdbc"), "SX-KEYED-STORE", "there is no store 'jdbc'"),
        (lambda: a_job(state_limit=0), "SX-KEYED-STORE", "state_limit cannot be 0"),
        # times
        (lambda: a_job(ttl="1 h", times=None), "SX-TIME-MISSING", "its states have a ttl, which goes by the times"),
        (lambda: a_job(ttl="1 h", times=ordinal("nr")), "SX-TIME-ORDINAL", "its states have a ttl"),
        # functions
        (lambda: a_job(plain), "SX-KEYED-FUNCTION", "none of its parameters is a state"),
        (lambda: a_job(sets), "SX-KEYED-FUNCTION", "the task has no on_timer"),
        (lambda: a_job(total, on_timer=no_timer), "SX-KEYED-FUNCTION", "annotate its first parameter as Timer"),
        (lambda: a_job(total, on_timer=other_state), "SX-KEYED-FUNCTION", "is of another type than that of 'total'"),
        (lambda: a_job(total, ttl={"acount": "1 h"}), "SX-KEYED-FUNCTION", "ttl names the state 'acount'"),
        (lambda: a_job(total, state="total double"), "SX-KEYED-FUNCTION", "takes one row at a time"),
        (lambda: a_job(only_for_checking), "SX-KEYED-FUNCTION", "Decimal"),
        (lambda: a_job(frames), "SX-KEYED-FUNCTION", "are not declared"),
        (lambda: a_job(one_table, state="n bigint"), "SX-KEYED-FUNCTION", "no parameter for the state"),
        (lambda: a_job(unknown_type), "SX-STATE-TYPE", "cannot be kept"),
        (lambda: a_job(lists_as_keys), "SX-STATE-TYPE", "a key is a text, a number"),
        (lambda: a_job(frames, state="n bigintt"), "SX-JOB-SCHEMA", "state: "),
        (lambda: a_job(frames, state="user string"), "SX-KEYED-STATE", "which is a column of the key"),
        (lambda: a_job(frames, state="n bigint", ttl={"n": "1 h"}), "SX-KEYED-FUNCTION", "has no name"),
        # what else they are given
        (lambda: a_job(needs_rate), "SX-FN-PARAMS", "needs 'rate'"),
        (lambda: a_job(of_frames_with, state="n bigint"), "SX-FN-PARAMS", "needs 'rate'"),
        (lambda: a_job(total, params={"account": 5}), "SX-FN-PARAMS", "which function"),
        (lambda: a_job(total, params={"rat": 5}), "SX-FN-PARAMS", "none of its functions has a parameter 'rat'"),
        (lambda: a_job(total, on_timer="nowhere:f"), "SX-FN-IMPORT", "nowhere"),
        (lambda: a_job(total, on_timer="no name"), "SX-FN-NAME", "no name"),
        (lambda: a_job(total, on_timer=lambda timer: None), "SX-FN-NAME", "lambda"),
    ],
)
def test_what_cannot_work_is_refused(job, code, said):
    """One mistake gives one problem, which names the task and says what to do."""
    problem = only(job())
    text = f"{problem.message} {problem.cause} {problem.fix}"
    assert (problem.code, said in text) == (code, True), str(problem)
    assert problem.where["task"] == "spend"
    assert problem.fix


def test_only_a_task_of_its_own_has_keyed_state():
    """Inputs and outputs have none, and windows belong into a task of their own."""
    codes = [problem.code for problem in found(a_job(fields={"type": "output", "connector": "blackhole"}))]
    assert "SX-KEYED-TASK" in codes
    problems = found(a_job(fields={"window": {"kind": "tumbling", "size": "1 min", "aggregate": {"n": "count"}}}))
    assert "SX-KEYED-TASK" in [problem.code for problem in problems]


def test_times_in_several_columns_are_refused_where_a_ttl_needs_one():
    """Without a ttl they do no harm."""

    def job(**given):
        made = Job("two")
        both = [
            made.input("a", kafka("a", start="earliest"), time="at"),
            made.input("b", kafka("b", start="earliest"), time="when"),
        ]
        made.output("out", blackhole(), after=made.keyed("spend", total, after=both, group_by="user", **given))
        return made

    assert only(job(ttl="1 h")).code == "SX-TIME-MIXED"
    assert found(job()) == []
    assert found(job(ttl="1 h", time="seen")) == []


def test_params_go_to_the_functions_that_take_them():
    """Those of either function may be given; what a lifecycle may give need not."""
    assert found(a_job(spend, on_timer=review, params={"rate": 2.0, "most": 9})) == []
    assert found(a_job(needs_rate, lifecycle=Hooks)) == []
    assert found(a_job(needs_rate, params={"rate": 2.0})) == []


@pytest.mark.parametrize(
    ("job", "codes"),
    [
        (a_job, []),
        (lambda: a_job(source=endless, times=event_time("at", idle="1 min")), ["SX-WARN-STATE"]),
        (lambda: a_job(source=endless, times=event_time("at", idle="1 min"), ttl="1 d"), []),
        (lambda: a_job(source=endless, times=event_time("at", idle="1 min"), ttl={"account": "1 d"}), []),
        (lambda: a_job(source=endless, times=event_time("at", idle="1 min"), state_limit=10), []),
        (lambda: a_job(frames, state="n bigint", source=endless, times=None), ["SX-WARN-STATE"]),
        (lambda: a_job(group_by=None), ["SX-WARN-ONE-KEY"]),
        (lambda: a_job(group_by=None, source=endless, times=None), ["SX-WARN-ONE-KEY"]),
        (lambda: a_job(spend, on_timer=review, times=None), ["SX-WARN-TIMERS"]),
        (lambda: a_job(spend, on_timer=review, times=ordinal("nr")), ["SX-WARN-TIMERS"]),
    ],
)
def test_what_is_probably_not_meant_is_warned_about(job, codes):
    """A state without end, one key, timers without times."""
    made = job()
    assert found(made) == []
    warnings = warnings_of(spec_of(made), Path(__file__).parent)
    assert [warning.code for warning in warnings] == codes
    assert all("task 'spend'" in warning.message and warning.fix for warning in warnings)


def test_a_warning_names_the_states_without_an_end():
    """Those that the ttl does not name."""
    job = a_job(spend, on_timer=review, source=endless, times=event_time("at", idle="1 min"), ttl={"account": "1 d"})
    (warning,) = warnings_of(spec_of(job), Path(__file__).parent)
    assert warning.code == "SX-WARN-STATE"
    assert "it keeps seen and by for each user for good" in warning.cause


def test_a_missing_store_is_warned_about(monkeypatch):
    """RocksDB must be installed where peers run; here is a hint."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (warning,) = warnings_of(spec_of(a_job(store="rocksdb")), Path(__file__).parent)
    assert warning.code == "SX-WARN-STORE"


def test_the_graph_tells_of_the_state():
    """A link by key with the times of its rows, the log of the state, and a line in the drawing."""
    spec = spec_of(whole())
    graph = graph_of(spec, "d", "j")
    (ingress,) = graph.stage("spend").ingress
    assert (ingress.keyed, ingress.by_key, ingress.row_time) == (True, True, RowTime(column="at"))
    assert [link.kind for link in graph.stage("spend").egress] == ["internal", "state"]
    assert draw(spec, graph)[1].strip() == (
        f"└─ spend   function {HERE}:spend with state; timers {HERE}:review; ttl 30 days; in rocksdb (grouped by user)"
    )
    of_tables = spec_of(a_job(frames, state="total double", ttl="1 h"))
    line = draw(of_tables, graph_of(of_tables, "d", "j"))[1]
    assert line.endswith(f"function {HERE}:frames with state total double; ttl 1 h (grouped by user)")
