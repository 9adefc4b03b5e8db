"""Arguments that do not exist, in jobs written in Python: all of them at once, each with the nearest known one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from sardonyx import Job, OnError, SardonyxError, blackhole, console, files, generator, kafka, sql
from sardonyx.core.errors import JobInvalid
from sardonyx.job.load import load

MISTYPED = """\
from sardonyx import Job, console, files, generator, kafka, sql

def same(row: dict) -> dict:
    return row

job = Job("orders", partitons=3)
orders = job.input("read", kafka("orders", strat="earliest", ed="latest", shema="id strin"))
made = job.input("make", generator(cuont=5), max_pears=2)
kept = job.task("keep", same, afer=[orders, made], bach_size=20)
job.output("write", files("out", fromat="parquet"), after=kept)
job.output("store", conector=sql("sqlite:////tmp/a.db", tabel="t"), after=kept)
job.output("show", console(row=3), after=kept)
"""


def problems_of(job: Job | str) -> list[SardonyxError]:
    with pytest.raises(JobInvalid) as caught:
        load(job)
    return caught.value.problems


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "orders_job.py"
    path.write_text(MISTYPED)
    return path


def test_every_mistyped_keyword_is_reported_with_the_nearest_known_one(spec: Path):
    """One mistake gives one problem, with the task, the nearest name and the user's line; other problems come along."""
    found = [
        (each.message.rpartition(": ")[2], each.where.get("task"), each.where.get("line"))
        for each in problems_of(str(spec))
    ]
    wanted = [
        ("Job() has no argument 'partitons'; did you mean 'partitions'?", None, "6"),
        ("kafka() has no argument 'strat'; did you mean 'start'?", "read", "7"),
        ("kafka() has no argument 'ed'; did you mean 'end'?", "read", "7"),
        ("kafka() has no argument 'shema'; did you mean 'schema'?", "read", "7"),
        ("generator() has no argument 'cuont'; did you mean 'count'?", "make", "8"),
        ("job.input() has no argument 'max_pears'; did you mean 'max_peers'?", "make", "8"),
        ("job.task() has no argument 'afer'; did you mean 'after'?", "keep", "9"),
        ("job.task() has no argument 'bach_size'; did you mean 'batch_size'?", "keep", "9"),
        ("files() has no argument 'fromat'; did you mean 'format'?", "write", "10"),
        ("sql() has no argument 'tabel'; did you mean 'table'?", "store", "11"),
        ("job.output() has no argument 'conector'; did you mean 'connector'?", "store", "11"),
        ("console() has no argument 'row'; did you mean 'rows'?", "show", "12"),
        ("there is no type 'strin'; did you mean 'string'?", "read", None),
    ]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_an_argument_without_a_near_name_lists_what_there_is():
    """The fix lists every argument when none is similar."""
    (problem,) = kafka("orders", banana=1).problems  # type: ignore[call-arg]
    assert problem.message == "kafka() has no argument 'banana'"
    assert "choose from its arguments: topic, format, schema, start" in problem.fix
    assert (problem.code, problem.where["path"]) == ("SX-JOB-CONNECTOR", __file__)


def test_arguments_without_a_name_and_arguments_given_twice_are_problems_too():
    """Python raises for these as well; here they are collected like the others."""
    several = kafka("orders", "json")  # type: ignore[misc]
    assert several.problems[0].message == "kafka() was given 2 arguments without a name, but it takes 1 without a name"
    twice = console(3, rows=4)  # type: ignore[misc]
    assert (twice.options, twice.problems[0].fix) == ({"rows": 3}, "write rows once")
    assert blackhole(1).problems[0].message.endswith("it takes none without a name")  # type: ignore[call-arg]


def test_what_is_missing_is_said_by_validation():
    """A call without a required argument is no bare TypeError: the job's validation says what is needed."""
    job = Job("orders")
    job.input("read", files("orders.csv"))  # type: ignore[call-arg]
    job.task("keep")  # type: ignore[call-arg]
    job.output("write")  # type: ignore[call-arg]
    messages = [problem.message for problem in problems_of(job)]
    for wanted in (
        "task 'read': files as an input needs format",
        "task 'keep': a function task needs a function",
        "task 'keep': no task comes before it",
        "task 'write': an output needs a connector",
    ):
        assert wanted in messages, wanted


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (files, ["path", "format", "schema"]),
        (kafka, ["topic", "format", "schema", "start", "end"]),
        (sql, ["url", "table"]),
        (generator, ["count", "seed", "rate", "columns"]),
        (Job, ["name", "partitions", "failure_limit", "keep", "priority", "weight"]),
        (Job("x").task, ["name", "fn", "after", "params"]),
        (Job("x").input, ["name", "connector", "fn", "time", "params"]),
        (Job("x").window, ["name", "windows", "after", "group_by", "aggregate", "fn"]),
    ],
)
def test_signatures_stay_introspectable(function, parameters: list[str]):
    """Editors and ``help()`` see the typed parameters, not ``*args, **kwargs``."""
    found = inspect.signature(function).parameters
    assert list(found)[: len(parameters)] == parameters
    assert all(each.annotation is not each.empty for each in found.values())
    assert function.__doc__


def test_a_mistyped_option_in_yaml_is_one_problem(tmp_path: Path):
    """An option that is mistyped is not reported as missing as well."""
    path = tmp_path / "orders.yaml"
    path.write_text(
        "name: orders\nworkflow: [[read, drop]]\ncatalog:\n"
        "- {name: read, type: input, connector: kafka, options: {topic: orders, strat: earliest}}\n"
        "- {name: drop, type: output, connector: blackhole}\n"
    )
    assert [each.message for each in problems_of(str(path))] == [
        "task 'read': kafka has no option 'strat'; did you mean 'start'?"
    ]


def test_mistyped_keywords_of_on_error_are_reported_all_at_once() -> None:
    """A struct that users make by hand names each unknown keyword with the nearest known one."""
    with pytest.raises(SardonyxError) as caught:
        OnError(retrys=2, bakoff="1 s")  # type: ignore[call-arg]
    assert caught.value.code == "SX-JOB-FIELD"
    assert "no parameter 'retrys'; did you mean 'retries'?" in caught.value.message
    assert "no parameter 'bakoff'; did you mean 'backoff'?" in caught.value.message
    assert OnError(retries=2).retries == 2
