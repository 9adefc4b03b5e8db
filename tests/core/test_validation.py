"""Validation: all that is wrong with a job, at once, with where and what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sardonyx import Job, blackhole, files, generator, kafka
from sardonyx.connectors.declarations import Connector
from sardonyx.core.errors import JobInvalid
from sardonyx.job.parse import read
from sardonyx.job.validate import check_places, problems_of, validate


def clean(rows: pa.Table, *, limit: int = 5) -> pa.Table:
    return rows[:limit]


def label(row: dict, *, late: int, **more: Any) -> dict:
    return {**row, "late": late, **more}


def bare(rows):
    return rows


renamed = clean


def wrapped(row: dict) -> dict:
    return row


inner, wrapped = wrapped, 5


def a_job(**job_options: Any) -> Job:
    """A job with nothing wrong in it, for tests to spoil."""
    job = Job("good", **job_options)
    job.input("read", generator(10))
    job.task("clean", clean, after="read")
    job.output("drop", blackhole(), after="clean")
    return job


def problems(job: Job):
    spec, found = read(job.data())
    return found + problems_of(spec, functions=job.functions)


def codes(job: Job) -> list[str]:
    return [problem.code for problem in problems(job)]


def only(job: Job):
    found = problems(job)
    assert len(found) == 1, [str(problem) for problem in found]
    return found[0]


def test_a_good_job_passes():
    """A correct job has no problems, with functions given, imported, or not checked."""
    job = a_job()
    validate(job.spec(), functions=job.functions)
    validate(job.spec())
    validate(job.spec(), import_functions=False)


def test_tasks_without_a_way():
    """A function or output that nothing comes before; a function or input that nothing comes after."""
    job = a_job()
    job.input("alone", generator(1))
    job.task("middle", clean, after=[])
    job.output("last", blackhole(), after=[])
    assert [(problem.code, problem.where["task"]) for problem in problems(job)] == [
        ("SX-JOB-NO-WAY-OUT", "alone"),
        ("SX-JOB-NO-WAY-IN", "middle"),
        ("SX-JOB-NO-WAY-OUT", "middle"),
        ("SX-JOB-NO-WAY-IN", "last"),
    ]


def test_inputs_come_first_and_outputs_last():
    """A link into an input, out of an output, or given twice, is refused."""
    job = a_job()
    job.input("second", generator(1))
    job.task("after", clean, after=["second", "drop", "clean", "clean"])
    job.output("last", blackhole(), after="after")
    data = job.data()
    data["workflow"].append(("clean", "second"))
    spec, _ = read(data)
    found = problems_of(spec, functions=job.functions)
    assert [(problem.code, problem.where["task"]) for problem in found] == [
        ("SX-JOB-EDGE", "second"),
        ("SX-JOB-EDGE", "after"),
        ("SX-JOB-EDGE", "drop"),
    ]


def test_a_job_needs_both_ends():
    """A job without an input or an output gets an error that says so."""
    assert codes(Job("empty")) == ["SX-JOB-ENDS", "SX-JOB-ENDS"]


@pytest.mark.parametrize("name", ["1st", "with space", "a.b", "ü", "", "x" * 61, "splits", "parts", "topic"])
def test_names_that_cannot_be_used(name):
    """Topics, groups and paths are named by tasks; the names of a task's own queues are taken."""
    job = Job("good")
    job.input("read", generator(10))
    job.task(name, clean, after="read")
    job.output("drop", blackhole(), after=name)
    assert codes(job) == ["SX-JOB-NAME"]
    if name not in ("splits", "parts", "topic"):
        job = a_job()
        job.name = name
        assert codes(job) == ["SX-JOB-NAME"]


def test_queues_whose_names_kafka_cannot_tell_apart():
    """Kafka refuses a topic that differs from another in . and _ only; it is found before."""
    job = Job("good")
    job.input("a", generator(10))
    job.input("a_b", generator(10))
    job.task("b_c", clean, after="a")
    job.task("c", clean, after="a_b")
    job.output("drop", blackhole(), after=["b_c", "c"])
    problem = only(job)
    assert problem.code == "SX-JOB-NAME"
    assert "a.b_c" in problem.message
    assert "a_b.c" in problem.message


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"min_peers": 0}, "SX-JOB-PEERS"),
        ({"max_peers": 0}, "SX-JOB-PEERS"),
        ({"min_peers": 3, "max_peers": 2}, "SX-JOB-PEERS"),
        ({"min_peers": 9}, "SX-JOB-PEERS"),
        ({"sequential": True, "max_peers": 2}, "SX-JOB-PEERS"),
        ({"sequential": True, "min_peers": 2}, "SX-JOB-PEERS"),
        ({"batch_size": 0}, "SX-JOB-BATCH"),
        ({"batch_timeout": "soon"}, "SX-JOB-UNITS"),
        ({"params": {"limits": 3}}, "SX-FN-PARAMS"),
    ],
)
def test_numbers_of_a_task(options, code):
    """Each value that cannot work is one problem."""
    job = a_job()
    job.task("extra", clean, after="read", **options)
    job.output("out", blackhole(), after="extra")
    problem = only(job)
    assert (problem.code, problem.where["task"]) == (code, "extra")


@pytest.mark.parametrize(
    ("options", "code"), [({"partitions": 0}, "SX-JOB-PARTITIONS"), ({"failure_limit": -1}, "SX-JOB-FAILURE-LIMIT")]
)
def test_numbers_of_a_job(options, code):
    """Partitions and the failure limit have a least value."""
    assert code in codes(a_job(**options))


def with_function(fn: Any, **options: Any) -> Job:
    job = a_job()
    job.task("extra", fn, after="read", **options)
    job.output("out", blackhole(), after="extra")
    return job


@pytest.mark.parametrize(
    ("fn", "code"),
    [
        (bare, "SX-FN-ANNOTATION"),
        (lambda row: row, "SX-FN-NAME"),
        (inner, "SX-FN-NAME"),
        ("clean", "SX-FN-NAME"),
        ("no_such_module:clean", "SX-FN-IMPORT"),
        (f"{__name__}:no_such_function", "SX-FN-IMPORT"),
        (f"{__name__}:bare", "SX-FN-ANNOTATION"),
        (None, "SX-JOB-FUNCTION"),
    ],
)
def test_functions_that_peers_could_not_run(fn, code):
    """A function must be there, importable under its name, and say what it takes."""
    problem = only(with_function(fn))
    assert (problem.code, problem.where["task"]) == (code, "extra")


def test_a_module_that_raises_is_shown_with_its_own_traceback(tmp_path, monkeypatch):
    """The user's traceback, beginning with the user's code."""
    (tmp_path / "raising_module.py").write_text("def f():\n    1 / 0\nf()\n")
    monkeypatch.syspath_prepend(tmp_path)
    problem = only(with_function("raising_module:f"))
    assert problem.code == "SX-FN-IMPORT"
    lines = problem.traceback.splitlines()
    assert "raising_module.py" in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_params_are_held_against_the_signature():
    """Missing ones are named; **more takes any; none may be given where there is no function."""
    assert only(with_function(label)).message.endswith("needs 'late', which params do not give")
    assert codes(with_function(label, params={"late": 3, "whatever": [1, None, {"a": "b"}]})) == []
    job = a_job()
    job.output("more", blackhole(), after="clean", params={"a": 1})
    assert only(job).code == "SX-JOB-FUNCTION"


def ends(connector: Connector, use: str = "output") -> list[str]:
    """Messages about a connector at one end of a job."""
    job = a_job()
    if use == "input":
        job.input("end", connector)
        job.output("out", blackhole(), after="end")
    else:
        job.output("end", connector, after="clean")
    return [f"{problem.code} {problem.message} {problem.cause}" for problem in problems(job)]


@pytest.mark.parametrize(
    ("use", "connector", "says"),
    [
        ("input", Connector("fils", {}), "did you mean 'files'"),
        ("input", blackhole(), "blackhole cannot be an input"),
        ("output", generator(1), "generator cannot be an output"),
        ("output", files("/o", format="text"), "format cannot be 'text'"),
        ("input", files("/o", format="parqet"), "did you mean 'parquet'"),
        ("input", files("/o", format="json"), "needs schema"),
        ("input", files("/o", format="csv", sep="||"), "one character"),
        ("input", files("/o", format="csv", quote="''"), "one character"),
        ("output", files("/o", format="csv", compression="snappy"), "csv has gzip"),
        ("input", generator(1, columns={"a": "keys"}), "did you mean 'key'"),
        ("input", generator(1, columns={"a": {"kind": "key", "most": 5}}), "kind key has distinct, prefix, not most"),
        ("input", files("/o", format="text", mode="append"), "takes mode only as an output"),
        ("input", files("/o", format="text", header=True), "format text has no header"),
        ("input", files([], format="text"), "it is empty"),
        ("input", files("s3a://b/o", format="text"), "only paths of the file system"),
        ("output", files("hdfs://b/o", format="json"), "only paths of the file system"),
        ("input", files("/o", format="csv", split_size="4 MiBs"), "units are"),
        ("input", files("/o", format="csv", schema="a strin"), "did you mean 'string'"),
        ("output", Connector("files", {"path": ["/a"], "format": "csv"}), "path cannot be ['/a']"),
        ("output", Connector("files", {"path": "/a", "format": "csv", "mod": "error"}), "did you mean 'mode'"),
        ("output", Connector("files", {"path": "/a", "format": "csv", "mode": "replace"}), "mode cannot be"),
        ("input", kafka("t"), "kafka as an input needs start"),
        ("input", kafka("t", start="erliest"), "neither a time nor one of"),
        ("input", kafka("t", start="2026-01-01T00:00:00"), "needs its zone"),
        ("input", kafka("t", start={0: -5}), "whole numbers of at least 0"),
        ("input", kafka("t", start="earliest", end="earliest"), "end cannot be 'earliest'"),
        ("input", kafka("t", start="earliest", format="raw", schema="a int"), "format raw has no schema"),
        ("input", kafka("t", start="earliest", key="a"), "takes key only as an output"),
        ("output", kafka("t", partitions=0), "at least 1"),
        ("output", kafka("t", key=""), "it is empty"),
        ("output", kafka("/t"), "the name of a topic has at most 249 letters"),
        ("output", Connector("kafka", {"topic": "t", "format": "json", "key": ["a"]}), "key cannot be ['a']"),
        ("input", generator(-1), "at least 0"),
        ("input", generator(1, rate=0), "above 0"),
        ("output", Connector("blackhole", {"size": 3}), "no option 'size'"),
    ],
)
def test_connectors_and_their_options(use, connector, says):
    """Each mistake about a connector is one problem, with the nearest known name where there is one."""
    found = ends(connector, use)
    assert len(found) == 1, found
    assert found[0].startswith(("SX-JOB-CONNECTOR", "SX-JOB-SCHEMA"))
    assert says in found[0]


def test_what_is_declared_is_what_there_is():
    """The tables that declarations are checked against say the same as the code that runs."""
    from sardonyx.connectors import generator as made
    from sardonyx.connectors.files import output
    from sardonyx.connectors.options import CODECS, GENERATED

    assert {kind: settings for kind, (_, settings) in made._KINDS.items()} == GENERATED
    assert {name: set(codecs) for name, codecs in output._CODECS.items()} == {
        name: set(codecs) for name, codecs in CODECS.items()
    }


@pytest.mark.parametrize("start", ["earliest", "latest", "2026-01-01T00:00:00Z", {0: 5, 1: 0}])
def test_good_positions(start):
    """Every way to say where to begin."""
    assert ends(kafka("t", start=start, end="latest"), "input") == []


def test_a_function_task_has_no_connector():
    """It can only come from YAML or TOML."""
    data = a_job().data()
    data["catalog"][1] |= {"connector": "files", "options": {"path": "x"}}
    spec, _ = read(data)
    assert [problem.code for problem in problems_of(spec)] == ["SX-JOB-CONNECTOR"]


def test_what_never_ends_replaces_nothing():
    """Mode overwrite is for results that are whole at some time."""
    job = Job("endless")
    job.input("read", kafka("t", start="earliest"))
    job.output("write", files("/o", format="json", mode="overwrite"), after="read")
    assert only(job).code == "SX-JOB-MODE"


def test_outputs_do_not_share_directories_nor_write_over_inputs():
    """A directory belongs to one output, and no output replaces what an input reads."""
    job = Job("paths")
    job.input("read", files("/data/in/*.csv", format="csv"))
    for name, path in (("one", "/data/in"), ("two", "/out/a"), ("three", "/out/a/b"), ("four", "/out/ab")):
        job.output(name, files(path, format="json"), after="read")
    assert [(problem.code, problem.where["task"]) for problem in problems(job)] == [
        ("SX-JOB-PATHS", "one"),
        ("SX-JOB-PATHS", "three"),
    ]


def test_a_spec_has_a_size_limit():
    """What does not fit into a ZooKeeper transaction is refused with the task that takes most of it."""
    job = with_function(label, params={"late": 1, "table": "x" * 70_000})
    problem = only(job)
    assert problem.code == "SX-JOB-TOO-LARGE"
    assert "'extra'" in problem.cause


# --- Places -----------------------------------------------------------------------------------------------------------


def on_disk(source: Connector, target: Connector | None = None):
    job = Job("places")
    job.input("read", source)
    job.output("write", target or blackhole(), after="read")
    return job.spec()


def test_missing_input_says_what_is_there(tmp_path):
    """A path or a glob without a file names the nearest name that lies beside it."""
    (tmp_path / "flights.csv").write_text("a\n")
    for name in ("flihgts.csv", "*.json"):
        with pytest.raises(JobInvalid) as caught:
            check_places(on_disk(files(tmp_path / name, format="csv")))
        assert caught.value.code == "SX-INPUT-MISSING"
        assert name in caught.value.message
    with pytest.raises(JobInvalid) as caught:
        check_places(on_disk(files(tmp_path / "flihgts.csv", format="csv")))
    assert "did you mean 'flights.csv'" in caught.value.cause
    check_places(on_disk(files(tmp_path / "*.csv", format="csv")))
    check_places(on_disk(files(tmp_path, format="csv")))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("\ufeffcarrier,delay,other\n", {}),
        ('"carrier";delay\n', {"sep": ";"}),
        ("'carrier'\tdelay\n", {"sep": "\t", "quote": "'"}),
        ("", {}),
    ],
)
def test_a_header_with_the_named_columns(tmp_path, text, options):
    """Columns are matched by name, in any order, however the line is written; an empty file has nothing to match."""
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    schema = "delay int, carrier string"
    check_places(on_disk(files(tmp_path / "a.csv", format="csv", header=True, schema=schema, **options)))


def test_a_header_without_a_named_column(tmp_path):
    """The error names the file, the column, the nearest one and all that there are; every file is looked at."""
    (tmp_path / "a.csv").write_text("carrier,delay\n")
    (tmp_path / "b.csv").write_text("carrier,dealy\n")
    with pytest.raises(JobInvalid) as caught:
        check_places(on_disk(files(tmp_path, format="csv", header=True, schema="delay int")))
    assert [problem.code for problem in caught.value.problems] == ["SX-INPUT-SCHEMA"]
    assert caught.value.message.startswith("task 'read': ")
    assert "b.csv" in caught.value.message
    assert "did you mean 'dealy'" in caught.value.fix
    assert "carrier, dealy" in caught.value.cause


def test_where_results_go(tmp_path):
    """A directory that is not empty needs a mode; a file is never overwritten by a directory."""
    source = generator(1)
    target = tmp_path / "out"
    check_places(on_disk(source, files(target, format="csv")))
    target.mkdir()
    (target / "_sardonyx").mkdir()
    (target / ".hidden").write_text("")
    check_places(on_disk(source, files(target, format="csv")))
    (target / "part.csv").write_text("")
    for mode in ("append", "overwrite"):
        check_places(on_disk(source, files(target, format="csv", mode=mode)))
    for path, code in ((target, "SX-OUTPUT-NOT-EMPTY"), (target / "part.csv" / "x", "SX-OUTPUT-NOT-DIRECTORY")):
        with pytest.raises(JobInvalid) as caught:
            check_places(on_disk(source, files(path, format="csv")))
        assert caught.value.code == code


def test_a_files_output_without_a_path_is_one_problem() -> None:
    """A spec that was written by hand may lack any option; the check of places does without it."""
    job = Job("raw")
    job.output("write", files("/out", format="json"), after=job.input("make", generator(count=3)))
    spec = job.spec()
    pathless = msgspec.structs.replace(spec.catalog[1], options={"format": "json"})
    (found,) = problems_of(msgspec.structs.replace(spec, catalog=[spec.catalog[0], pathless]), import_functions=False)
    assert found.code == "SX-JOB-CONNECTOR"
    assert "needs path" in found.message


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"priority": 5000}, "SX-JOB-SHARE"),
        ({"weight": 0.0}, "SX-JOB-SHARE"),
        ({"weight": float("nan")}, "SX-JOB-SHARE"),
        ({"percentage": 101.0}, "SX-JOB-SHARE"),
        ({"max_peers": 0}, "SX-JOB-SHARE"),
        ({"tags": ["a b"]}, "SX-JOB-TAG"),
    ],
)
def test_what_a_job_asks_of_the_cluster(options, code):
    """Each value that cannot be is one problem; a task's tags are checked as well."""
    assert only(a_job(**options)).code == code
    job = Job("tagged", tags=["pool-a"], priority=-3, weight=2, percentage=30, max_peers=4)
    job.output("drop", blackhole(), after=job.input("read", generator(10), tags=["gpu"]), tags=["zone=a", "gpu"])
    assert problems(job) == []
    spec = job.spec()
    assert [task.tags for task in spec.catalog] == [["gpu"], ["zone=a", "gpu"]]
    assert (spec.tags, spec.priority, spec.weight, spec.percentage, spec.max_peers) == (["pool-a"], -3, 2, 30, 4)
    job.task("see", clean, after="read", tags=["1"])
    assert "SX-JOB-TAG" in codes(job)
