"""Time and windows as users write them: words, builder, YAML and TOML, what bad input gets, and the graph."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

import sardonyx
from sardonyx import (
    Collect,
    Count,
    Distinct,
    First,
    Job,
    Last,
    Max,
    Mean,
    Min,
    Quantile,
    Sum,
    Var,
    blackhole,
    calendar,
    counted,
    event_time,
    every,
    everything,
    files,
    generator,
    hopping,
    kafka,
    kafka_time,
    on_count,
    ordinal,
    session,
    sql,
    tumbling,
    wall,
)
from sardonyx.cli.app import app
from sardonyx.cli.graph_text import draw
from sardonyx.core.errors import SardonyxError
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.spec import JobSpec, Route, decode_spec, encode_spec
from sardonyx.core.timing import AggregateSpec, RowTime, TimeSpec, WindowSpec
from sardonyx.job import windowing
from sardonyx.job.parse import read
from sardonyx.job.validate import problems_of
from sardonyx.job.warn import warnings_of

HERE = __name__

SCHEMA = "user string, at timestamp, ms double, n bigint, tags array<string>"


def top(rows: pa.Table) -> pa.Table:
    return rows


def each(row: dict) -> dict:
    return row


def by_user(row: dict) -> str:
    return str(row["user"])


class Hooks:
    def stop(self) -> None: ...


def found(job: Job | dict[str, Any]) -> list[SardonyxError]:
    data = job.data() if isinstance(job, Job) else job
    spec, problems = read(data)
    given = job.problems if isinstance(job, Job) else []
    return [*given, *problems, *problems_of(spec, functions=job.functions if isinstance(job, Job) else {})]


def only(job: Job | dict[str, Any]) -> SardonyxError:
    problems = found(job)
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def a_job(
    windows: Any = None,
    *,
    time: Any = "at",
    source: Any = None,
    out: Any = None,
    more: Callable[[Job, Any], object] | None = None,
    **given: Any,
) -> Job:
    """A good job with windows, for tests to spoil."""
    job = Job("good")
    rows = job.input("hits", source or kafka("hits", schema=SCHEMA, start="earliest", end="latest"), time=time)
    given = {"group_by": "user", **({} if "fn" in given else {"aggregate": {"hits": Count()}}), **given}
    per_user = job.window("per-user", windows or tumbling("1 min"), after=rows, **given)
    job.output("out", out or blackhole(), after=per_user)
    if more is not None:
        more(job, per_user)
    return job


# --- The words --------------------------------------------------------------------------------------------------------


def spec_of(job: Job) -> JobSpec:
    spec, problems = read(job.data())
    assert [*job.problems, *problems] == []
    return spec


@pytest.mark.parametrize(
    ("time", "spec"),
    [
        ("at", TimeSpec(column="at")),
        ({"column": "at", "delay": "5 s"}, TimeSpec(column="at", delay="5 s")),
        (event_time("at", delay="5 s", idle="1 min"), TimeSpec(column="at", delay="5 s", idle="1 min")),
        (
            event_time("n", unit="ms", ahead="1 day", idle="1 s", at_rest="wall"),
            TimeSpec(column="n", unit="ms", ahead="1 day", idle="1 s", at_rest="wall"),
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


def test_only_the_time_of_kafka_records_has_a_limit_of_its_own():
    """Any producer may set a record's timestamp, so one far in the future is refused unless the job says otherwise."""
    assert TimeSpec(column="at").most_ahead is None
    assert TimeSpec(column="at", kind="kafka").most_ahead == "1 day"
    assert TimeSpec(column="at", kind="kafka", ahead="5 min").most_ahead == "5 min"


@pytest.mark.parametrize(
    ("windows", "spec"),
    [
        (tumbling("1 min"), WindowSpec(kind="tumbling", size="1 min")),
        (hopping("10 min", "1 min"), WindowSpec(kind="hopping", size="10 min", every="1 min")),
        (hopping("10 min", every="3 min"), WindowSpec(kind="hopping", size="10 min", every="3 min")),
        (session("30 min"), WindowSpec(kind="session", gap="30 min")),
        (session("30 min", most="12 h"), WindowSpec(kind="session", gap="30 min", most="12 h")),
        (counted(100), WindowSpec(kind="counted", size=100)),
        (counted(100, every=10), WindowSpec(kind="counted", size=100, every=10)),
        (calendar("day", zone="Europe/Berlin"), WindowSpec(kind="calendar", unit="day", zone="Europe/Berlin")),
        (calendar("month"), WindowSpec(kind="calendar", unit="month")),
        (everything(), WindowSpec(kind="everything")),
        ({"kind": "tumbling", "size": "1 min"}, WindowSpec(kind="tumbling", size="1 min")),
    ],
)
def test_kinds_of_windows(windows, spec):
    """Each kind as the spec has it; all of them can run, also a hopping window whose every does not divide its size."""
    job = a_job(windows)
    made = spec_of(job)
    window = made.task("per-user").window
    assert window is not None
    assert msgspec.structs.replace(window, aggregate={}) == spec
    assert found(job) == []


def test_what_windows_aggregate():
    """Every aggregate with its column and options, in the order of the names; it survives its encoding."""
    given = {
        "rows": Count(),
        "known": Count("ms"),
        "sum": Sum("ms"),
        "min": Min("ms"),
        "max": Max("ms"),
        "mean": Mean("ms"),
        "var": Var("ms"),
        "first": First("ms"),
        "last": Last("ms"),
        "users": Distinct("n", most=1000),
        "p99": Quantile("ms", 0.99),
        "all": Collect("ms", most=10),
    }
    job = a_job(aggregate=given)
    spec = spec_of(job)
    window = spec.task("per-user").window
    assert window is not None
    assert list(window.aggregate) == sorted(given)
    assert window.aggregate["rows"] == AggregateSpec(of="count")
    assert window.aggregate["known"] == AggregateSpec(of="count", column="ms")
    assert window.aggregate["users"] == AggregateSpec(of="distinct", column="n", options={"most": 1000})
    assert window.aggregate["p99"] == AggregateSpec(of="quantile", column="ms", options={"q": 0.99})
    assert {name: spec.of for name, spec in window.aggregate.items() if name in given} | {
        "rows": "count",
        "known": "count",
        "users": "distinct",
        "p99": "quantile",
        "all": "collect",
    } == {name: spec.of for name, spec in window.aggregate.items()}
    assert decode_spec(encode_spec(spec)) == spec
    assert list(decode_spec(encode_spec(spec)).task("per-user").window.aggregate) == list(window.aggregate)
    assert found(job) == []


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"emit": "changes"}, {"emit": "changes"}),
        ({"emit": every("10 s")}, {"emit": "every 10 s"}),
        ({"emit": on_count(100)}, {"emit": "count 100"}),
        ({"emit": "changes", "accumulate": False}, {"emit": "changes", "accumulate": False}),
        ({"grace": "10 s", "allowed_lateness": "1 h"}, {"grace": "10 s", "allowed_lateness": "1 h"}),
        ({"late": "dead_letter"}, {"late": "dead_letter"}),
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
    assert Path(__file__).name in problem.cause
    assert problem.where["task"] in ("hits", "per-user")


def test_windows_of_another_kind_raise_at_once():
    """As a connector that is none does."""
    with pytest.raises(TypeError, match="windows are made by"):
        a_job("tumbling")


# --- As data ----------------------------------------------------------------------------------------------------------


WHOLE_YAML = f"""
name: traffic
workflow: [[hits, per-user], [clicks, per-user], [per-user, best], [per-user, fix], [best, out], [fix, out]]
routes:
  per-user.fix: {{of: late}}
catalog:
  - name: hits
    type: input
    connector: kafka
    options: {{topic: hits, schema: "user string, at timestamp, ms double", start: earliest}}
    time: at
  - name: clicks
    type: input
    connector: kafka
    options: {{topic: clicks, schema: "user string, ms double", start: earliest}}
    time: {{kind: kafka, column: at, delay: "5 s", idle: "1 min"}}
  - name: per-user
    type: function
    group_by: user
    window: {{kind: tumbling, size: "1 min", grace: "10 s", emit: every 10 s}}
    aggregate: {{hits: count, slowest: {{max: ms}}, p99: {{quantile: ms, q: 0.99}}, all: {{of: collect, column: ms}}}}
  - {{name: best, type: function, fn: "{HERE}:top", window: {{kind: calendar, unit: day, zone: Europe/Berlin}}}}
  - {{name: fix, type: function, fn: "{HERE}:each"}}
  - {{name: out, type: output, connector: blackhole}}
"""
WHOLE_TOML = f"""
name = "traffic"
workflow = {{hits = "per-user", clicks = {{per-user = [{{best = "out"}}, {{fix = "out"}}]}}}}
[routes]
"per-user.fix" = {{of = "late"}}
[[catalog]]
name = "hits"
type = "input"
connector = "kafka"
options = {{topic = "hits", schema = "user string, at timestamp, ms double", start = "earliest"}}
time = {{column = "at", kind = "column"}}
[[catalog]]
name = "clicks"
type = "input"
connector = "kafka"
options = {{topic = "clicks", schema = "user string, ms double", start = "earliest"}}
time = {{kind = "kafka", column = "at", delay = "5 s", idle = "1 min"}}
[[catalog]]
name = "per-user"
type = "function"
group_by = ["user"]
[catalog.window]
kind = "tumbling"
size = "1 min"
grace = "10 s"
emit = "every 10 s"
late = "drop"
[catalog.window.aggregate]
slowest = {{of = "max", column = "ms"}}
hits = {{count = ""}}
p99 = {{of = "quantile", column = "ms", options = {{q = 0.99}}}}
all = {{collect = "ms"}}
[[catalog]]
name = "best"
type = "function"
fn = "{HERE}:top"
window = {{kind = "calendar", unit = "day", zone = "Europe/Berlin"}}
[[catalog]]
name = "fix"
type = "function"
fn = "{HERE}:each"
[[catalog]]
name = "out"
type = "output"
connector = "blackhole"
"""


def whole() -> Job:
    job = Job("traffic")
    hits = job.input("hits", kafka("hits", schema="user string, at timestamp, ms double", start="earliest"), time="at")
    clicks = job.input(
        "clicks",
        kafka("clicks", schema="user string, ms double", start="earliest"),
        time=kafka_time("at", delay="5 s", idle="1 min"),
    )
    per_user = job.window(
        "per-user",
        tumbling("1 min"),
        after=[hits, clicks],
        group_by="user",
        aggregate={"hits": Count(), "slowest": Max("ms"), "p99": Quantile("ms", 0.99), "all": Collect("ms")},
        emit=every("10 s"),
        grace="10 s",
    )
    best = job.window("best", calendar("day", zone="Europe/Berlin"), after=per_user, fn=top)
    fix = job.task("fix", each, after=per_user.late)
    job.output("out", blackhole(), after=[best, fix])
    return job


def test_all_ways_of_writing_give_the_same_spec():
    """Python, YAML and TOML in short and long forms, and a spec as JSON that is read again as a job."""
    built = whole()
    again = json.loads(encode_spec(built.spec()))
    data = (
        built.data(),
        yaml.safe_load(WHOLE_YAML),
        tomllib.loads(WHOLE_TOML.replace('count = ""', 'of = "count"')),
        again,
    )
    specs = [read(each) for each in data]
    assert [[str(problem) for problem in problems] for _, problems in specs] == [[], [], [], []]
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


# --- What cannot work -------------------------------------------------------------------------------------------------


endless = kafka("hits", schema=SCHEMA, start="earliest")
plain = kafka("hits", start="earliest", end="latest")
upsert = sql("sqlite:////tmp/x.db", table="t", mode="upsert", key="user")


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        # where times come from
        (lambda: a_job(time=None), "SX-TIME-MISSING", "the rows of input 'hits' have none"),
        (lambda: a_job(time=event_time("")), "SX-TIME-INPUT", "without a name"),
        (lambda: a_job(time=event_time("att")), "SX-TIME-INPUT", "no column 'att' for the time; did you mean 'at'"),
        (lambda: a_job(time=event_time("user")), "SX-TIME-INPUT", "of type string, which is not a time"),
        (lambda: a_job(time=event_time("n")), "SX-TIME-INPUT", "what they count"),
        (lambda: a_job(time=event_time("at", unit="ms")), "SX-TIME-INPUT", "needs no unit"),
        (lambda: a_job(time=kafka_time("at")), "SX-TIME-INPUT", "which its schema has already"),
        (lambda: a_job(time={"column": "w", "kind": "wall", "delay": "1 s"}), "SX-TIME-INPUT", "wall has no delay"),
        (lambda: a_job(time={"column": "w", "kind": "kafka", "unit": "s"}), "SX-TIME-INPUT", "unit belongs to"),
        (lambda: a_job(time=event_time("at", delay="5 parsecs")), "SX-JOB-UNITS", "time: delay cannot be '5 parsecs'"),
        (lambda: a_job(time=event_time("at", idle="0 s")), "SX-TIME-INPUT", "time: idle cannot be '0 s'"),
        (lambda: a_job(time=event_time("at", at_rest="wall")), "SX-TIME-IDLE", "without idle"),
        (lambda: a_job(source=generator(9), time=kafka_time("at")), "SX-TIME-INPUT", "reads generator"),
        (
            lambda: a_job(counted(5), time={"column": "nr", "kind": "ordinal", "delay": "1 s"}),
            "SX-TIME-INPUT",
            "ordinal has no delay",
        ),
        (lambda: a_job(time=ordinal("nr")), "SX-TIME-ORDINAL", "numbers as their times"),
        (lambda: a_job(tumbling(9), time=ordinal("nr"), grace="1 s"), "SX-TIME-ORDINAL", "grace is '1 s'"),
        (lambda: a_job(calendar("day"), time=ordinal("nr")), "SX-TIME-ORDINAL", "no days"),
        (lambda: a_job(tumbling(60)), "SX-TIME-ORDINAL", "size is 60, a number without a unit"),
        # lengths
        (lambda: a_job(tumbling()), "SX-WINDOW-SIZE", "tumbling windows need size"),
        (lambda: a_job(tumbling("0 s")), "SX-WINDOW-SIZE", "size cannot be '0 s'"),
        (lambda: a_job(tumbling("-1 s")), "SX-JOB-UNITS", "size cannot be '-1 s'"),
        (lambda: a_job(tumbling("5 parsecs")), "SX-JOB-UNITS", "size cannot be '5 parsecs'"),
        (lambda: a_job(tumbling(0), time=ordinal("nr")), "SX-WINDOW-SIZE", "size cannot be 0"),
        (lambda: a_job(hopping("1 min", "2 min")), "SX-WINDOW-SIZE", "every (2 min) is more than size (1 min)"),
        (lambda: a_job(hopping("1 d", "1 s")), "SX-WINDOW-SIZE", "in about 86,400 windows"),
        (lambda: a_job({"kind": "tumbling", "size": "1 min", "gap": "1 s"}), "SX-WINDOW-SIZE", "have no gap"),
        (lambda: a_job({"kind": "tumbling", "size": "1 min", "zone": "Asia/Tokyo"}), "SX-WINDOW-SIZE", "have no zone"),
        (lambda: a_job(session("1 h", most="1 min")), "SX-WINDOW-SIZE", "most (1 min) is less than gap (1 h)"),
        (lambda: a_job(counted("5")), "SX-WINDOW-SIZE", "size cannot be '5'"),
        (lambda: a_job(counted(0)), "SX-WINDOW-SIZE", "size cannot be 0"),
        (lambda: a_job(counted(5, every=6)), "SX-WINDOW-SIZE", "every (6) is more than size (5)"),
        (lambda: a_job({"kind": "calendar"}), "SX-WINDOW-SIZE", "need unit"),
        (lambda: a_job(calendar("day", "Europe/Berlyn")), "SX-WINDOW-ZONE", "did you mean 'Europe/Berlin'"),
        (lambda: a_job(calendar("day", "../etc/passwd")), "SX-WINDOW-ZONE", "no time zone"),
        (lambda: a_job(grace=-1), "SX-WINDOW-SIZE", "grace cannot be -1"),
        (lambda: a_job(grace="soon"), "SX-JOB-UNITS", "grace cannot be 'soon'"),
        # results
        (lambda: a_job(aggregate=None), "SX-WINDOW-RESULT", "neither aggregate nor fn"),
        (lambda: a_job(aggregate={}), "SX-WINDOW-RESULT", "neither aggregate nor fn"),
        (lambda: a_job(aggregate={"user": Count()}), "SX-WINDOW-RESULT", "'user' has the name of a column of the key"),
        (lambda: a_job(aggregate={"pane": Count()}), "SX-WINDOW-RESULT", "that each result has"),
        (lambda: a_job(aggregate={"": Count()}), "SX-WINDOW-RESULT", "cannot be called ''"),
        (lambda: a_job(aggregate={"sx_rows": Count()}), "SX-WINDOW-RESULT", "cannot be called 'sx_rows'"),
        (lambda: a_job(fn=each), "SX-WINDOW-RESULT", "takes one record at a time"),
        (lambda: a_job(aggregate={"a": "max"}), "SX-WINDOW-AGGREGATE", "max needs a column"),
        (lambda: a_job(aggregate={"a": Max()}), "SX-WINDOW-AGGREGATE", "max needs a column"),
        (lambda: a_job(aggregate={"a": Max("")}), "SX-WINDOW-AGGREGATE", "without a name"),
        (lambda: a_job(aggregate={"a": Quantile("ms", 1.5)}), "SX-WINDOW-AGGREGATE", "q cannot be 1.5"),
        (lambda: a_job(aggregate={"a": {"quantile": "ms"}}), "SX-WINDOW-AGGREGATE", "quantile needs q"),
        (lambda: a_job(aggregate={"a": {"max": "ms", "q": 1}}), "SX-WINDOW-AGGREGATE", "max has no 'q'"),
        (lambda: a_job(aggregate={"a": Collect("ms", most=0)}), "SX-WINDOW-AGGREGATE", "most cannot be 0"),
        (lambda: a_job(aggregate={"a": Max("mss")}), "SX-WINDOW-COLUMN", "did you mean 'ms'"),
        (lambda: a_job(aggregate={"a": Sum("user")}), "SX-WINDOW-TYPE", "'user' is of type string"),
        (lambda: a_job(aggregate={"a": Mean("at")}), "SX-WINDOW-TYPE", "timestamp"),
        # keys
        (lambda: a_job(group_by=by_user), "SX-WINDOW-KEY", "a function cannot make its key"),
        (lambda: a_job(group_by=["user", "window_end"], source=plain), "SX-WINDOW-KEY", "'window_end'"),
        (lambda: a_job(group_by="usr"), "SX-WINDOW-KEY", "did you mean 'user'"),
        (lambda: a_job(group_by="tags"), "SX-WINDOW-KEY", "list<"),
        # when results come
        (lambda: a_job(emit="chnages"), "SX-WINDOW-EMIT", "did you mean 'changes'"),
        (lambda: a_job(emit=every("0 s")), "SX-WINDOW-SIZE", "emit: every cannot be '0 s'"),
        (lambda: a_job(emit=every("")), "SX-WINDOW-EMIT", "emit cannot be 'every '"),
        (lambda: a_job(emit=every(10)), "SX-TIME-ORDINAL", "emit: every is 10, a number without a unit"),
        (lambda: a_job(tumbling(9), time=ordinal("nr"), emit=every(0)), "SX-WINDOW-SIZE", "emit: every cannot be 0"),
        (lambda: a_job(everything(), time=None, emit=every("1 s")), "SX-TIME-MISSING", "which is by their time"),
        (lambda: a_job(emit=every("often")), "SX-JOB-UNITS", "emit: every cannot be 'often'"),
        (lambda: a_job(emit=on_count(0)), "SX-WINDOW-EMIT", "each 0 rows"),
        (lambda: a_job(everything(), source=endless), "SX-WINDOW-EMIT", "it would never give a result"),
        (lambda: a_job(fn=top, emit="changes"), "SX-WINDOW-EMIT", "only when windows close"),
        (
            lambda: a_job(emit="changes", accumulate=False, out=upsert),
            "SX-WINDOW-EMIT",
            "would replace each result of a window by the next",
        ),
        # late rows
        (lambda: a_job(allowed_lateness="1 h", out=upsert), "SX-WINDOW-LATE", "would replace that of a newer one"),
        (lambda: a_job(counted(5), grace="1 s"), "SX-WINDOW-LATE", "no row is late for counted windows, so grace"),
        (lambda: a_job(everything(), late="dead_letter"), "SX-WINDOW-LATE", "so late has no effect"),
        (lambda: a_job(late="edge"), "SX-WINDOW-LATE", "no task takes its late rows"),
        (
            lambda: a_job(late="dead_letter", more=lambda job, it: job.output("late", blackhole(), after=it.late)),
            "SX-WINDOW-LATE",
            "also go to the tasks after them",
        ),
        (
            lambda: a_job(more=lambda job, it: job.output("x", blackhole(), after=job.task("t", each, after=it).late)),
            "SX-JOB-ROUTE",
            "has no windows, so no row is late",
        ),
        # the task
        (lambda: a_job(store="rocks"), "SX-WINDOW-STORE", "did you mean 'rocksdb'"),
        (lambda: a_job(state_limit=0), "SX-WINDOW-STORE", "state_limit cannot be 0"),
        (lambda: a_job(lifecycle=Hooks), "SX-WINDOW-TASK", "a lifecycle, but no function"),
        (lambda: a_job(params={"a": 1}), "SX-JOB-FUNCTION", "params, but no function"),
        (
            lambda: a_job(more=lambda job, it: job.output("o", blackhole(), after=it.failed)),
            "SX-JOB-ROUTE",
            "no function that can fail",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_before_the_job_runs(job, code, said):
    """One mistake, one problem with its code, in words that name it, and what to do."""
    problem = only(job())
    assert problem.code == code
    assert said in problem.message
    assert problem.fix[0].islower() or problem.fix[0] == "`"


@pytest.mark.parametrize(
    ("task", "given", "code"),
    [
        ("per-user", {"fuse": True}, "SX-JOB-FUSE"),
        ("out", {"fuse": True}, "SX-JOB-FUSE"),
        ("per-user", {"consumption": "sequential"}, "SX-WINDOW-TASK"),
        ("per-user", {"time": "at"}, "SX-TIME-INPUT"),
        ("out", {"window": {"kind": "counted", "size": 5}, "aggregate": {"n": "count"}}, "SX-WINDOW-TASK"),
    ],
)
def test_what_python_has_no_words_for_is_told_as_well(task, given, code):
    """A file may say what job.window has no argument for."""
    data = a_job().data()
    data["catalog"] = [{**entry, **(given if entry["name"] == task else {})} for entry in data["catalog"]]
    assert only(data).code == code


def test_the_failed_records_of_an_input_with_time_have_an_edge():
    """A record without a time fails, also where no function runs and nothing is decoded."""
    job = Job("timed")
    rows = job.input("read", generator(9), time=event_time("id", unit="s"))
    job.output("out", blackhole(), after=rows)
    job.output("bad", blackhole(), after=rows.failed)
    assert found(job) == []


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (
            lambda job, a, b: job.window("w", tumbling("1 s"), after=[a, b], aggregate={"n": Count()}),
            "SX-TIME-MIXED",
            "at and ts",
        ),
        (
            lambda job, a, b: job.window("w", tumbling("1 s"), after=[a, b], aggregate={"n": Count()}, time="t"),
            None,
            "",
        ),
        (
            lambda job, a, b: job.window("w", tumbling("1 s"), after=[a.failed, b], aggregate={"n": Count()}),
            "SX-TIME-MISSING",
            "the failed records of 'a' have none",
        ),
        (
            lambda job, a, b: job.window(
                "w",
                tumbling("1 s"),
                after=[job.window("v", counted(5), after=a, aggregate={"n": Count()}), b],
                aggregate={"n": Count()},
            ),
            "SX-TIME-MISSING",
            "the results of 'v' have none",
        ),
        (
            lambda job, a, b: job.window(
                "w",
                tumbling("1 h"),
                after=job.window("v", tumbling("1 s"), after=[a, b], aggregate={"n": Count()}, time="t"),
                aggregate={"n": Sum("n")},
                time="window_start",
            ),
            "SX-TIME-MIXED",
            "wrong windows by their window_start",
        ),
    ],
)
def test_times_that_come_together(make, code, said):
    """Rows of several tasks need one time; what has none, and why, is named."""
    job = Job("two")
    a = job.input("a", kafka("a", start="earliest"), time=event_time("at", idle="1 s"))
    b = job.input("b", kafka("b", start="earliest"), time=event_time("ts", idle="1 s"))
    job.output("other", blackhole(), after=[a, b])
    job.output("out", blackhole(), after=make(job, a, b))
    problems = found(job)
    assert [problem.code for problem in problems] == ([] if code is None else [code])
    assert all(said in problem.message for problem in problems)


def test_numbers_and_moments_do_not_come_together():
    """An ordinal beside a time, whatever the window names."""
    job = Job("two")
    a = job.input("a", kafka("a", start="earliest"), time="at")
    b = job.input("b", kafka("b", start="earliest"), time=ordinal("at"))
    job.output(
        "out", blackhole(), after=job.window("w", tumbling("1 s"), after=[a, b], aggregate={"n": Count()}, time="at")
    )
    assert only(job).code == "SX-TIME-MIXED"


# --- What is probably not meant ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "codes"),
    [
        (a_job, []),
        (lambda: a_job(source=endless), ["SX-WARN-IDLE"]),
        (lambda: a_job(source=endless, time=event_time("at", idle="1 min")), []),
        (lambda: a_job(group_by=None), ["SX-WARN-ONE-KEY"]),
        (lambda: a_job(everything(), source=endless, time=None, emit="changes"), ["SX-WARN-STATE"]),
        (lambda: a_job(everything(), source=endless, time=None, emit="changes", state_limit=9), []),
        (lambda: a_job(everything(), time=None), []),
        (
            lambda: a_job(
                everything(), source=endless, time=None, emit="changes", group_by=None, aggregate={"u": Distinct("n")}
            ),
            ["SX-WARN-STATE", "SX-WARN-ONE-KEY"],
        ),
        (
            lambda: a_job(
                everything(), source=endless, time=None, emit="changes", group_by=None, aggregate={"u": Count("n")}
            ),
            ["SX-WARN-ONE-KEY"],
        ),
        (lambda: a_job(emit="changes", out=files("/data/o", format="json")), ["SX-WARN-RESULTS"]),
        (lambda: a_job(allowed_lateness="1 h", out=files("/data/o", format="json")), ["SX-WARN-RESULTS"]),
        (lambda: a_job(emit="changes", accumulate=False, out=files("/data/o", format="json")), []),
        (lambda: a_job(emit="changes", out=upsert), []),
    ],
)
def test_what_is_probably_not_meant_is_warned_about(job, codes, tmp_path):
    """The job can run; each warning says why and what to do."""
    warnings = warnings_of(job().spec(), tmp_path)
    assert [warning.code for warning in warnings] == codes
    assert all(warning.cause and warning.fix for warning in warnings)


def test_a_store_that_is_not_installed_here_is_warned_about(tmp_path, monkeypatch):
    """Peers may have it, so it is no error."""
    spec = a_job(store="rocksdb").spec()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [warning.code for warning in warnings_of(spec, tmp_path)] == ["SX-WARN-STORE"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert warnings_of(spec, tmp_path) == []


# --- The graph --------------------------------------------------------------------------------------------------------


def graph(job: Job) -> Graph:
    return graph_of(job.spec(), "d", "j")


def test_links_into_a_window_know_what_their_writers_combine_by():
    """The window, its key, and the column with a row's time; the input with times runs, as it must look at its rows."""
    made = graph(whole())
    links = {link.name: link for link in made.links}
    assert links["hits.per-user"].window == whole().spec().task("per-user").window
    assert links["hits.per-user"].group_by == ["user"]
    assert links["hits.per-user"].row_time == links["clicks.per-user"].row_time == RowTime(column="at")
    assert links["per-user.best"].row_time == RowTime(column="window_time")
    assert links["per-user.best"].by_key
    assert links["per-user.fix"].window is None
    assert (links["hits.topic"].time, links["clicks.topic"].time) == (
        TimeSpec(column="at"),
        TimeSpec(kind="kafka", column="at", delay="5 s", idle="1 min"),
    )
    assert made.bound == {}
    assert [stage.name for stage in made.stages if any(link.by_key for link in stage.ingress)] == ["per-user", "best"]


def test_the_reader_of_an_input_that_is_bound_in_place_knows_its_times():
    """A function reads the user's topic itself, so its link says where the times come from."""
    job = Job("bound")
    rows = job.input("in", kafka("in", start="earliest"), time=kafka_time("at"))
    more = job.task("more", each, after=rows)
    job.output("out", blackhole(), after=job.window("w", counted(5), after=more, aggregate={"n": Count()}))
    made = graph(job)
    assert made.bound == {"in": ["more"]}
    (link,) = made.stage("more").ingress
    assert (link.kind, link.time) == ("input", TimeSpec(kind="kafka", column="at"))
    assert made.stage("w").ingress[0].row_time == RowTime(column="at")


@pytest.mark.parametrize(
    ("time", "row_time"),
    [
        (event_time("n", unit="ms"), RowTime(column="n", unit="ms")),
        (wall("w"), RowTime(column="w")),
        (ordinal("nr"), RowTime(column="nr", ordinal=True)),
        (None, None),
    ],
)
def test_where_the_time_of_a_row_stands(time, row_time):
    """By the input; a window that needs no time takes rows without one."""
    made = graph(a_job(counted(5), time=time))
    assert made.stage("per-user").ingress[0].row_time == row_time


def test_the_results_of_windows_over_numbers_have_numbers():
    """Results of windows by number are from right before their end, too."""
    job = Job("nested")
    rows = job.input("in", generator(9), time=ordinal("nr"))
    small = job.window("small", tumbling(10), after=rows, aggregate={"n": Count()})
    large = job.window("large", tumbling(100), after=small, aggregate={"n": Sum("n")})
    job.output("out", blackhole(), after=large)
    assert found(job) == []
    assert graph(job).stage("large").ingress[0].row_time == RowTime(column="window_time", ordinal=True)


def test_a_window_names_another_column_for_its_time():
    """The clock is that of the inputs; the column is the window's own."""
    job = Job("other")
    rows = job.input("in", kafka("in", start="earliest"), time=event_time("n", unit="ms"))
    other = job.window("w", tumbling("1 s"), after=rows, aggregate={"n": Count()}, time="seen")
    job.output("out", blackhole(), after=other)
    assert graph(job).stage("w").ingress[0].row_time == RowTime(column="seen")


def test_a_window_has_a_log_of_its_state():
    """A link of its own that the job makes and no sentinel ends; late rows that become dead letters have one, too."""
    made = graph(a_job(late="dead_letter"))
    links = {link.name: link for link in made.stage("per-user").egress}
    assert list(links) == ["per-user.out", "per-user.dead", "per-user.state"]
    state = links["per-user.state"]
    assert (state.kind, state.topic, state.owned, state.has_sentinels) == ("state", "d.j.per-user.state", True, False)
    assert "hits.state" not in {link.name for link in made.links}
    assert made.timed


def test_state_has_as_many_partitions_as_what_the_window_reads():
    """Partition n of the log is the state of partition n; no queue is trimmed or deleted by mistake for it."""
    from queues.admin import _wanted_partitions
    from queues.membership import requires_copartitioning

    job = whole()
    links = {link.name: link for link in graph(job).links}
    spec = msgspec.structs.replace(job.spec(), partitions=3)
    assert _wanted_partitions(links["per-user.state"], spec) == _wanted_partitions(links["hits.per-user"], spec) == 3
    assert requires_copartitioning([links["hits.per-user"], links["clicks.per-user"]])
    no_key = {"group_by": None, "window": links["hits.per-user"].window}
    assert requires_copartitioning(
        [msgspec.structs.replace(links[name], **no_key) for name in ("hits.per-user", "clicks.per-user")]
    )


def test_the_drawing_shows_times_and_windows():
    """What a window does stands on its line."""
    text = "\n".join(draw(whole().spec(), graph(whole())))
    assert "time in at" in text
    assert "time of Kafka in at, delay 5 s, idle after 1 min" in text
    assert (
        "tumbling 1 min: all collect(ms), hits count, p99 quantile(ms), slowest max(ms); emit every 10 s; grace 10 s; late: edge"
        in text
    )
    assert "late rows of per-user" in text
    assert "calendar day Europe/Berlin" in text


def test_check_shows_a_job_with_windows(tmp_path, monkeypatch):
    """The command accepts the job, draws it and warns."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(WHOLE_YAML.replace(f"{HERE}:top", "fns:top").replace(f"{HERE}:each", "fns:each"))
    Path("fns.py").write_text("import pyarrow as pa\n\ndef top(rows: pa.Table): ...\n\ndef each(row: dict): ...\n")
    result = CliRunner().invoke(app, ["check", "job.yaml"])
    assert result.exit_code == 0, result.output
    assert "tumbling 1 min" in result.stdout
    assert result.stderr.count("warning: SX-WARN-") == 2
