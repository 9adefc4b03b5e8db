"""The builder, and how functions are named and read."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import pandas as pd
import pyarrow as pa
import pytest

import sardonyx
from sardonyx import Job, blackhole, files, generator, kafka
from sardonyx.core.errors import FunctionError, JobInvalid
from sardonyx.core.spec import DEFAULT_BATCH_SIZE, OnError, decode_spec, encode_spec
from sardonyx.job.load import load
from sardonyx.runtime.functions import check_reference, reference, takes

if TYPE_CHECKING:
    import pyspark.sql as ps
    from pyspark.sql import DataFrame
    from pyspark.sql import DataFrame as Frame


class Flight(TypedDict):
    carrier: str


def on_frame(rows: DataFrame) -> DataFrame: ...
def on_renamed(rows: Frame): ...
def on_dotted(rows: ps.DataFrame): ...
def on_quoted(rows: "DataFrame"): ...  # noqa: UP037 - quoted as in older code
def on_table(rows: pa.Table, *, limit: int = 3) -> pa.Table: ...
def on_pandas(rows: pd.DataFrame): ...
def on_record(row: dict) -> dict: ...
def on_typed_record(row: dict[str, Any]): ...
def on_typed_dict(row: Flight): ...
def on_list(rows: list): ...
def on_unknown(rows: Nothing): ...  # noqa: F821
def on_batch(rows: pa.RecordBatch): ...
def on_anything(rows): ...
def on_nothing(): ...
def on_keywords(*, rows: dict): ...
async def on_waiting(row: dict): ...


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (on_frame, "dataframe"),
        (on_renamed, "dataframe"),
        (on_dotted, "dataframe"),
        (on_quoted, "dataframe"),
        (on_table, "arrow"),
        (on_pandas, "pandas"),
        (on_record, "record"),
        (on_typed_record, "record"),
        (on_typed_dict, "record"),
    ],
)
def test_the_annotation_says_what_a_function_takes(fn, kind):
    """The first parameter's annotation decides, also when its import stands under TYPE_CHECKING only."""
    assert takes(fn) == kind


@pytest.mark.parametrize("fn", [on_list, on_unknown, on_batch, on_anything, on_nothing, on_keywords, on_waiting, print])
def test_without_a_usable_annotation_the_error_says_what_it_may_be(fn):
    """No annotation, one that is none of the four, or a function that cannot be called with rows."""
    with pytest.raises(FunctionError) as caught:
        takes(fn)
    assert caught.value.code == "SX-FN-ANNOTATION"
    assert "pyarrow.Table" in caught.value.fix


def test_a_function_needs_a_name_to_be_imported_by():
    """A lambda, a nested function and a method have none; a function at the top level has."""

    def nested(row: dict): ...

    assert reference(on_record) == f"{__name__}:on_record"
    for fn in (lambda row: row, nested, Job.spec, dict.get):
        with pytest.raises(FunctionError) as caught:
            reference(fn)
        assert caught.value.code == "SX-FN-NAME"


def test_a_function_of_a_cell_says_what_to_do_and_the_page_about_notebooks_does_it(tmp_path, monkeypatch):
    """A cell is in no file. The page writes one from its cell, and the job of that file is valid."""
    problem = check_reference(":late")
    assert problem is not None
    assert problem.code == "SX-FN-NAME"
    assert "%%writefile NAME.py" in problem.fix
    page = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text("utf-8")
    for name, text in re.findall(r"```text\n%%writefile (\S+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert load("orders.py").spec.references() == ["orders:late"]
    finally:
        sys.modules.pop("orders", None)


def test_a_function_of_the_script_that_runs_goes_by_its_file(tmp_path):
    """``python job.py`` and ``python -m package.job`` name functions as an import would."""
    text = "from sardonyx.runtime.functions import reference\ndef f(row: dict): ...\nprint(reference(f))\n"
    (tmp_path / "package").mkdir()
    for file in ("myjob.py", "package/__init__.py", "package/job.py"):
        (tmp_path / file).write_text(text if file.endswith("job.py") else "")
    for how, name in ((["myjob.py"], "myjob:f"), (["-m", "package.job"], "package.job:f")):
        ran = subprocess.run(
            [sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        assert ran.stdout.strip() == name


def flights(job: Job) -> Job:
    raw = job.input("read", files("flights.csv", format="csv", header=True, schema="carrier string"))
    ok = job.task("clean", on_table, after=raw, params={"limit": 5})
    tagged = job.task("label", on_record, after=ok, max_peers=2, batch_size=20_000, on_error="skip")
    job.output("write", files(Path("out"), format="parquet"), after=[tagged, "clean"])
    job.output("publish", kafka("flights-out", key="carrier"), after=tagged)
    return job


def test_a_job_is_plain_data():
    """The builder gives the spec that a YAML file would, edges in the order of the catalog, defaults left out."""
    spec = flights(Job("flights", partitions=4, doc="all of them")).spec()
    assert decode_spec(encode_spec(spec)) == spec
    assert (spec.name, spec.partitions, spec.doc) == ("flights", 4, "all of them")
    assert spec.workflow == [
        ("read", "clean"),
        ("clean", "label"),
        ("clean", "write"),
        ("label", "write"),
        ("label", "publish"),
    ]
    read, clean, label, write, publish = spec.catalog
    assert (read.type, read.connector, read.fn) == ("input", "files", None)
    assert read.options == {"path": "flights.csv", "format": "csv", "header": True, "schema": "carrier string"}
    assert (clean.fn, clean.params, clean.rows_per_batch) == (f"{__name__}:on_table", {"limit": 5}, DEFAULT_BATCH_SIZE)
    assert (label.max_peers, label.batch_size, label.on_error) == (2, 20_000, OnError(then="skip"))
    assert write.options == {"path": "out", "format": "parquet"}
    assert publish.options == {"topic": "flights-out", "format": "json", "key": "carrier"}


def test_what_is_said_and_what_is_left_unsaid_give_the_same_spec():
    """A default that is given is not stored, so that equal jobs have equal bytes."""
    one, other = Job("one"), Job("one", partitions=8, failure_limit=3)
    one.input("read", generator(5))
    other.input("read", generator(5), sequential=False, min_peers=1, on_error={"then": "fail"}, params={})
    assert encode_spec(one.spec()) == encode_spec(other.spec())


def test_options_have_one_form():
    """A spec holds paths, moments and partition numbers as texts, and leaves out what is None."""
    start = datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert kafka("t", start=start, end={0: 5}).options == {
        "topic": "t",
        "format": "json",
        "start": "2026-01-31T08:00:00+00:00",
        "end": {"0": 5},
    }
    assert files([Path("a"), "b"], format="text").options == {"path": ["a", "b"], "format": "text"}
    assert blackhole().options == {}


def test_plain_misuse_is_a_type_error_at_once():
    """What cannot be meant is refused where it is written."""
    job = Job("one")
    with pytest.raises(TypeError, match="a connector is made by"):
        job.input("read", "flights.csv")
    with pytest.raises(TypeError, match="fn is a function or its name"):
        job.task("clean", 5, after="read")
    with pytest.raises(TypeError, match="after= takes tasks"):
        job.task("clean", on_record, after=[5])
    with pytest.raises(TypeError, match="a job's name is a text"):
        Job(5)
    with pytest.raises(ValueError, match="within one job"):
        job.task("clean", on_record, after=Job("other").input("read", generator(1)))


def test_values_of_the_wrong_type_are_reported_together():
    """All of them at once, each with its task."""
    job = Job("one", partitions="many")
    job.input("read", generator(1), batch_size="big", params={"day": datetime(2026, 1, 1, tzinfo=UTC)}, on_error="die")
    job.task("clean", on_record, after="read", on_error={"retries": "3"}, params={"x": float("nan"), "y": {1: 2}})
    with pytest.raises(JobInvalid) as caught:
        job.spec()
    text = str(caught.value)
    for part in (
        "partitions cannot be 'many'",
        "batch_size cannot be 'big'",
        "params.day",
        "retries",
        "'die'",
        "params.x",
    ):
        assert part in text, part
    assert {problem.code for problem in caught.value.problems} == {"SX-JOB-FIELD", "SX-JOB-PARAMS"}


def test_importing_sardonyx_is_light():
    """Neither Spark nor the clients of Kafka and ZooKeeper are imported by ``import sardonyx``; names are."""
    code = (
        "import sys, sardonyx, sardonyx.job.load\n"
        "heavy = {'kazoo', 'confluent_kafka', 'pyspark', 'py4j', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_can_be_imported():
    """What ``sardonyx`` lists is there, also what it imports when it is first used. A shell completes these and no others."""
    assert dir(sardonyx) == sorted(sardonyx.__all__)
    assert [name for name in sardonyx.__all__ if not hasattr(sardonyx, name)] == []
    assert sardonyx.Split({"file": "a"}, rows=2).rows == 2
