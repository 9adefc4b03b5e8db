"""Secrets that a job refers to: in specs only as references, with their values where they are used, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sardonyx import Job, Secret, blackhole, connector, generator
from sardonyx.core.errors import Failure, JobInvalid, SetupError
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.secrets import MASK, Secrets, masked, reference, refers
from sardonyx.core.spec import JobSpec, TaskSpec, encode_spec
from sardonyx.job.parse import read
from sardonyx.runtime.secret_values import KNOWN, resolved, unquoted


def call(row: dict[str, Any], api_key: str, options: dict[str, Any]) -> dict[str, Any]:
    return {**row, "key": api_key, "options": options}


def spec_with(**params: Any) -> JobSpec:
    return JobSpec(
        name="j",
        workflow=[("read", "call"), ("call", "drop")],
        catalog=[
            TaskSpec(name="read", type="input", connector="own:Source", options={"login": [{"$env": "PLANTED"}]}),
            TaskSpec(name="call", type="function", fn="m:call", params=params),
            TaskSpec(name="drop", type="output", connector="blackhole"),
        ],
    )


def stage_of(spec: JobSpec) -> Stage:
    return graph_of(spec, "d", "j-1").stage("call")


def test_a_job_holds_references_only() -> None:
    """From Python, at any depth, in params and in options of connectors of one's own."""
    job = Job("calls")
    read = job.input("read", connector("own:Source", login=Secret.file("/run/secrets/login"), topic="t"))
    called = job.task(
        "call", call, after=read, params={"api_key": Secret.env("API_KEY"), "options": {"deep": [Secret.env("OTHER")]}}
    )
    job.output("drop", blackhole(), after=called)
    catalog = {task["name"]: task for task in json.loads(encode_spec(job.spec()))["catalog"]}
    assert catalog["read"]["options"] == {"login": {"$file": "/run/secrets/login"}, "topic": "t"}
    assert catalog["call"]["params"] == {"api_key": {"$env": "API_KEY"}, "options": {"deep": [{"$env": "OTHER"}]}}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"$env": "A-B"}, "'A-B' is not a name of an environment variable"),
        ({"$env": 7}, "one key, $env or $file, and a text"),
        ({"$env": "A", "other": 1}, "one key, $env or $file, and a text"),
        ({"$file": "relative/path"}, "is not absolute"),
    ],
)
def test_a_reference_that_cannot_be_is_told_by_check(value: dict[str, Any], says: str) -> None:
    """Before anything runs, with the task and where it stands."""
    data = {
        "name": "j",
        "workflow": [["read", "drop"]],
        "catalog": [
            {
                "name": "read",
                "type": "input",
                "connector": "generator",
                "options": {"count": 1},
                "params": {"a": [value]},
            },
            {"name": "drop", "type": "output", "connector": "blackhole"},
        ],
    }
    (problem,) = read(data)[1]
    assert (problem.code, problem.where["task"]) == ("SX-JOB-PARAMS", "read")
    assert says in problem.message
    assert "params.a[0]" in problem.message


def test_values_are_read_where_they_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only those of the task that runs here: another peer may have the others. A file's last newline is no part of a secret."""
    file = tmp_path / "key"
    file.write_text("planted-file\n")
    monkeypatch.setenv("PLANTED", "planted-env")
    spec = spec_with(api_key={"$file": str(file)}, options={"n": 3, "list": [1, {"$env": "PLANTED"}]})
    stage = stage_of(spec)
    found = resolved(stage)
    assert found.task.params == {"api_key": "planted-file", "options": {"n": 3, "list": [1, "planted-env"]}}
    assert refers(stage.task.params)
    assert not refers(found.task.params)
    plain = stage_of(spec_with(api_key="known"))
    assert resolved(plain) is plain


@pytest.mark.parametrize("missing", [{"$env": "NOT_SET_ANYWHERE"}, {"$file": "/nowhere/at/all"}])
def test_a_secret_that_is_missing_is_told_with_its_place(missing: dict[str, str]) -> None:
    """The task, and the variable or file, and never a value."""
    with pytest.raises(SetupError) as raised:
        resolved(stage_of(spec_with(api_key=missing)))
    assert raised.value.code == "SX-SECRET-MISSING"
    assert next(iter(missing.values())) in raised.value.message
    assert raised.value.where == {"task": "call"}


def test_an_error_quotes_no_secret_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a library says of it: message, cause, traceback and places."""
    monkeypatch.setenv("PLANTED", "planted-quoted")
    resolved(stage_of(spec_with(api_key={"$env": "PLANTED"})))
    said = "401 for planted-quoted"
    failure = unquoted(Failure("SX-X", said, cause=said, fix=said, traceback=said, where={"url": said}))
    shown = f"401 for {MASK}"
    assert failure == Failure("SX-X", shown, cause=shown, fix=shown, traceback=shown, where={"url": shown})
    assert KNOWN.plain({"a": [said]}) == {"a": [shown]}


def test_a_reference_is_shown_and_no_secret_to_be_masked() -> None:
    """Under the name of a secret, too: it says where the value comes from. Its text is not masked elsewhere."""
    shown = masked({"api_key": {"$env": "API_KEY"}, "password": {"$file": "/run/pw"}, "token": {"plain": "x"}})
    assert shown == {"api_key": {"$env": "API_KEY"}, "password": {"$file": "/run/pw"}, "token": MASK}
    secrets = Secrets()
    secrets.learn({"api_key": {"$env": "API_KEY"}})
    assert secrets.text("API_KEY is not set") == "API_KEY is not set"
    assert reference({"$env": "A"}) == Secret.env("A")
    assert reference({"$file": "/a"}) == Secret.file("/a")
    assert reference({"env": "A"}) is reference({"$env": 3}) is reference("$env") is None


def test_a_generator_takes_no_reference() -> None:
    """Options of connectors that come with Sardonyx are what they are; a database has ``password_env``."""
    job = Job("j")
    job.output("drop", blackhole(), after=job.input("read", generator(count=Secret.env("COUNT"))))  # type: ignore[arg-type]
    with pytest.raises(JobInvalid, match="count"):
        job.plan()
