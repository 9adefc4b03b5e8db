"""Specs that cannot run, as the command tells them: every problem at once, the user's traceback first, nothing begun."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sardonyx.cli.app import app

COMMANDS = (["check"], ["run"], ["job", "submit"])
"""All that take a spec. No address is set here, and no service is there: whatever they say, they say before they need one."""


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return call


def codes(result: Result) -> list[str]:
    """The code of every reported error, in order."""
    assert result.exit_code == 1, result.output
    assert result.stderr.count("  fix:   ") == len(re.findall(r"^SX-", result.stderr, re.MULTILINE)), result.stderr
    return re.findall(r"^(SX-[A-Z-]+): ", result.stderr, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (None, "SX-SPEC-MISSING", "job.py"),
        ("x = 1\n", "SX-SPEC-NO-JOB", "Job("),
        ("from sardonyx import Job\nmy_job = Job('a')\n", "SX-SPEC-NO-JOB", "job.py:my_job"),
        ("job = 1\n", "SX-SPEC-NO-JOB", "int"),
        ("def f(:\n", "SX-SPEC-SYNTAX", "line 1"),
        ("import no_such_module\n", "SX-SPEC-RAISED", "no_such_module"),
        ("def make():\n    return {}['rows']\n\njob = make()\n", "SX-SPEC-RAISED", "KeyError: 'rows'"),
        ("raise SystemExit(3)\n", "SX-SPEC-RAISED", "SystemExit"),
    ],
)
def test_a_spec_that_gives_no_job(command: list[str], text: str | None, code: str, says: str, invoke) -> None:
    """One error; what the user's own code raised comes before it, with their lines and none of ours."""
    if text is not None:
        Path("job.py").write_text(text)
    result = invoke(*command, "job.py")
    assert codes(result) == [code]
    assert says in result.stderr
    if code == "SX-SPEC-RAISED":
        assert result.stderr.startswith("Traceback")
        assert 'job.py", line' in result.stderr.partition("SX-SPEC")[0]
        assert "sardonyx/" not in result.stderr.partition("SX-SPEC")[0]


EVERYTHING = """
from sardonyx import Job, blackhole, files, generator, kafka

def plain(row):
    return row

def fine(row: dict) -> dict:
    return row

job = Job("wrong")
read = job.input("read", files("missing.csv", format="csv", header=True))
other = job.input("read", generator(count=3))
alone = job.task("alone", fine, after=[])
one = job.task("one", plain, after=["two", "raed"])
two = job.task("two", lambda row: row, after=one)
three = job.task("three", "job:nothing", after=two)
four = job.task("four", "nowhere:fn", after=three)
job.output("write", files("out", format="parquet"), after=read)
"""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_everything_that_is_wrong_is_told_at_once(command: list[str], invoke) -> None:
    """Cycle, unknown and duplicate names, no way in or out, functions, files: one call reports them all, each with a fix."""
    Path("job.py").write_text(EVERYTHING)
    Path("out").mkdir()
    Path("out", "old.parquet").touch()
    result = invoke(*command, "job.py", "--json")
    expected = {
        "SX-JOB-DUPLICATE": "read",
        "SX-JOB-UNKNOWN-TASK": "did you mean 'read'",
        "SX-JOB-NO-WAY-IN": "alone",
        "SX-JOB-NO-WAY-OUT": "four",
        "SX-JOB-CYCLE": "one -> two -> one",
        "SX-FN-ANNOTATION": "plain",
        "SX-FN-NAME": "lambda",
        "SX-FN-IMPORT": "nowhere",
        "SX-INPUT-MISSING": "missing.csv",
        "SX-OUTPUT-NOT-EMPTY": "old.parquet",
    }
    assert set(codes(result)) == set(expected)
    problems = json.loads(result.stdout)["error"]["problems"]
    for code, word in expected.items():
        texts = [f"{each['message']} {each['cause']} {each['fix']}" for each in problems if each["code"] == code]
        assert any(word in text for text in texts), (code, texts)
    assert result.stderr.rstrip().endswith(f"{len(problems)} problems")


def test_what_is_said_of_a_wrong_key_or_value_is_in_the_words_of_the_file(invoke) -> None:
    """A catalog that is misspelt is found, and an on_error is shown as it was written."""
    text = """
name: wrong
workflow: [[read, write]]
cataloge: []
catalog:
  - {name: read, type: input, connector: generator, options: {count: 1}, on_error: skipp}
  - {name: write, type: output, connector: blackhole}
"""
    result = invoke("check", "-", stdin=text)
    assert set(codes(result)) == {"SX-JOB-FIELD"}
    assert "a job has no 'cataloge'; did you mean 'catalog'?" in result.stderr
    assert "on_error cannot be 'skipp'; did you mean 'skip'?" in result.stderr
    assert "then" not in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_code_bundle_over_the_limit(command: list[str], invoke, rng) -> None:
    """The largest modules are named, and what to do about them."""
    Path("job.py").write_text(
        "import weights\nfrom sardonyx import Job, blackhole, generator\n\ndef same(row: dict) -> dict:\n    return row\n\n"
        'job = Job("fat")\nmade = job.input("make", generator(count=3))\n'
        'job.output("drop", blackhole(), after=job.task("same", same, after=made))\n'
    )
    Path("weights.py").write_text(f"DATA = '{rng.randbytes(900_000).hex()}'\n")
    result = invoke(*command, "job.py")
    assert codes(result) == ["SX-JOB-CODE-TOO-LARGE"]
    assert "weights.py" in result.stderr
    assert "768 KiB" in result.stderr
