"""What is probably not meant in a job that can run: shown, and no reason to refuse it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sardonyx import Job, blackhole, generator
from sardonyx.cli.app import app
from sardonyx.core.errors import FunctionError
from sardonyx.job import bundle
from sardonyx.job.load import load
from sardonyx.job.warn import warnings_of
from sardonyx.runtime.environment_reads import environment_reads
from spark_tasks.code import CodeBundle

JOB = """
import os
import settings
from sardonyx import Job, blackhole, generator

TOPIC = os.environ["ORDERS_TOPIC"]

def same(row: dict) -> dict:
    return row

job = Job("orders")
orders = job.input("read", generator(3))
job.output("drop", blackhole(), after=job.task("same", same, after=orders, batch_size=20_000_000))
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that reads the environment when it is imported, as does a helper of it; and a script that the job does not import."""
    monkeypatch.setenv("ORDERS_TOPIC", "orders")
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "settings.py").write_text("from os import getenv\nREGION = getenv('ORDERS_REGION', 'eu')\n")
    (tmp_path / "deploy.py").write_text("import os\nos.environ['DEPLOY_KEY']\n")
    return tmp_path / "job.py"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os\nT = os.environ['T']", [(2, "T", True)]),
        ("import os as o\nT = o.environ.get('T', '')\nU = o.getenv('U')", [(2, "T", False), (3, "U", False)]),
        ("from os import environ as e, getenv\nT = e['T'] + getenv('U')", [(2, "T", True), (2, "U", False)]),
        ("import os\ndef topic():\n    return os.environ['T']\nT = topic()", [(3, "T", True)]),
        ("import os\nclass A:\n    t = os.environ['T']\n    def f(self): return os.environ['U']", [(3, "T", True)]),
        ("import os\ndef f(t=os.environ['T']):\n    return os.environ['U']", [(2, "T", True)]),
        ("import os\nfor n in 'ab':\n    os.environ[n]", [(3, "", True)]),
        ("import os\ndef job():\n    return os.environ['T']", []),
        ("import os\nif __name__ == '__main__':\n    os.environ['T']\nelse:\n    os.environ['U']", [(5, "U", True)]),
        ("import os\nos.environ['T'] = 'x'\nf = lambda: os.environ['U']", []),
        ("environ = {}\nenviron['T']", []),
        ("x = = 1", []),
    ],
)
def test_reads_of_the_environment_are_found_in_the_source(source: str, found: list[tuple[int, str, bool]]):
    """What an import executes counts: top-level code, class bodies, defaults, and functions that it calls; nothing else."""
    assert environment_reads(source) == found


def test_modules_that_peers_import_and_that_read_the_environment_are_warned_about(spec: Path):
    """The job's module and its helper are named, with variable and line; a file that the job does not import is not."""
    found = [each for each in load(str(spec)).warnings if each.code == "SX-WARN-ENVIRONMENT"]
    assert [(Path(each.where["path"]).name, each.where["variable"], each.where["line"]) for each in found] == [
        ("job.py", "ORDERS_TOPIC", "6"),
        ("settings.py", "ORDERS_REGION", "2"),
    ]
    assert "there the import fails" in found[0].cause
    assert "there the value may be another one" in found[1].cause
    assert "def job()" in found[0].fix


def test_a_batch_size_that_no_transaction_can_hold_is_warned_about(spec: Path):
    """Rows, not bytes: more than 10 million do not fit into a transaction; up to that there is no warning."""
    assert "SX-WARN-BATCH-SIZE" in [each.code for each in load(str(spec)).warnings]
    spec.write_text(JOB.replace("20_000_000", "10_000_000"))
    assert "SX-WARN-BATCH-SIZE" not in [each.code for each in load(str(spec)).warnings]


def test_sequential_with_several_partitions_is_warned_about(tmp_path: Path):
    """One peer at a time gives no order of all rows; one partition does."""

    def codes(**options: int) -> list[str]:
        job = Job("ordered", **options)
        job.output("write", blackhole(), after=job.input("read", generator(count=3)), sequential=True)
        return [each.code for each in warnings_of(job.spec(), tmp_path)]

    assert codes() == ["SX-WARN-ORDER"]
    assert codes(partitions=1) == []


def test_check_shows_warnings_and_accepts_the_job(spec: Path):
    """On stderr for people, with the fix, and as data with ``--json``; the exit code is 0."""
    result = CliRunner().invoke(app, ["check", str(spec)])
    assert (result.exit_code, result.stderr.count("warning: SX-WARN-")) == (0, 3)
    assert "it can run, with 3 warnings" in result.stdout
    data = json.loads(CliRunner().invoke(app, ["check", str(spec), "--json"]).stdout)
    assert [each["code"] for each in data["warnings"]] == [
        "SX-WARN-BATCH-SIZE",
        "SX-WARN-ENVIRONMENT",
        "SX-WARN-ENVIRONMENT",
    ]


@pytest.mark.parametrize(
    "statement", ["TOPIC = os.environ['ORDERS_TOPIC']", "PORT = int(os.environ.get('ORDERS_TOPIC'))"]
)
def test_a_peer_says_why_a_module_that_reads_the_environment_cannot_be_imported(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The error that fails the job says that peers lack the submitter's environment, and how to write it instead."""
    monkeypatch.delenv("ORDERS_TOPIC", raising=False)
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text(f"import os\n{statement}\ndef same(row: dict) -> dict:\n    return row\n")
    built = bundle.build(code)
    assert built.sha256 == hashlib.sha256(built.data).hexdigest()
    with pytest.raises(FunctionError) as caught:
        CodeBundle.open(built.data, built.sha256, tmp_path / "cache").load("job:same")
    error = caught.value
    assert error.code == "SX-FN-IMPORT"
    assert "importing it reads ORDERS_TOPIC from the environment" in error.cause
    assert "without the environment in which the job was submitted" in error.cause
    assert "def job()" in error.fix
    assert "params" in error.fix
    assert statement in error.traceback
