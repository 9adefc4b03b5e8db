"""Time and windows: what cannot work, and what is probably not meant."""

from __future__ import annotations

import pytest
from window_jobs import (
    Hooks,
    a_job,
    by_user,
    each,
    endless,
    found,
    only,
    plain,
    top,
    upsert,
)

from sardonyx import (
    Collect,
    Count,
    Distinct,
    Job,
    Max,
    Mean,
    Quantile,
    Sum,
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
)
from sardonyx.job.warn import warnings_of


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
        (lambda: a_job(tumbling("1000000 d")), "SX-WINDOW-SIZE", "size cannot be '1000000 d'"),
        (lambda: a_job(tumbling("9" * 400)), "SX-WINDOW-SIZE", "size cannot be '9999"),
        (lambda: a_job(counted(2**70)), "SX-WINDOW-SIZE", "size cannot be 1180591620717411303424"),
        (lambda: a_job(state_limit=2**70), "SX-WINDOW-STORE", "state_limit cannot be 1180591620717411303424"),
        (lambda: a_job(emit=on_count(10**15)), "SX-WINDOW-EMIT", "emit cannot be 'count 1000000000000000'"),
        (lambda: a_job(time=event_time("at", delay="1000000 d")), "SX-TIME-INPUT", "delay cannot be '1000000 d'"),
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
        (lambda: a_job(emit=every("often", by="wall")), "SX-JOB-UNITS", "emit: every cannot be 'often'"),
        (lambda: a_job(emit=every(10, by="wall")), "SX-WINDOW-EMIT", "the machine's clock counts no rows"),
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
        (lambda: a_job(session("1 s"), allowed_lateness="1 h"), "SX-WINDOW-LATE", "cannot have allowed_lateness"),
        (lambda: a_job(fn=top, allowed_lateness="1 h"), "SX-WINDOW-LATE", "cannot have allowed_lateness"),
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
            "has no windows and is not a join, so no row is late",
        ),
        # the task
        (lambda: a_job(store="rocks"), "SX-WINDOW-STORE", "did you mean 'rocksdb'"),
        (lambda: a_job(store=files("/data", format="json")), "SX-WINDOW-STORE", "files() is not a store of state"),
        (lambda: a_job(store=sql("mysql://host/name")), "SX-WINDOW-STORE", "store: "),
        (lambda: a_job(store="shop:<lambda>"), "SX-WINDOW-STORE", "store: "),
        (lambda: a_job(store="builtins:dict"), "SX-STATE-CLASS", "cannot be used as a store of state"),
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


@pytest.mark.parametrize(
    ("job", "codes"),
    [
        (a_job, []),
        (lambda: a_job(source=endless), ["SX-WARN-IDLE"]),
        (lambda: a_job(source=endless, time=event_time("at", idle="1 min")), []),
        (lambda: a_job(source=kafka("t", start="earliest", end="latest")), ["SX-WARN-GUESSED"]),
        (lambda: a_job(group_by=None), ["SX-WARN-ONE-KEY"]),
        (lambda: a_job(everything(), source=endless, time=None, emit="changes"), ["SX-WARN-STATE"]),
        (lambda: a_job(everything(), source=endless, time=None, emit=every("10 s", by="wall")), ["SX-WARN-STATE"]),
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
    for store in ("rocksdb", sql("sqlite:////data/state.db")):
        spec = a_job(store=store).spec()
        with monkeypatch.context() as without:
            without.setattr("importlib.util.find_spec", lambda name: None)
            assert [warning.code for warning in warnings_of(spec, tmp_path)] == ["SX-WARN-STORE"]
        with monkeypatch.context() as installed:
            installed.setattr("importlib.util.find_spec", lambda name: object())
            assert warnings_of(spec, tmp_path) == []
