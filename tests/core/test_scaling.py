"""A task of a running job gets other numbers of peers, or other batches: nothing else of the job changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from sardonyx import Job, event_time, kafka
from sardonyx.cli.app import app
from sardonyx.core.changing import change_failure
from sardonyx.core.changing_at import side_by_side
from sardonyx.core.errors import JobInvalid, SardonyxError
from sardonyx.core.scaling import scaled
from sardonyx.core.spec import JobSpec
from sardonyx.core.spec_fields import task_changes
from sardonyx.job.validate import validate


def same(row: dict) -> dict:
    return row


def a_job(*more: str) -> JobSpec:
    """``read`` and ``out`` are topics in place, and ``clean`` runs in the batches of ``label``."""
    job = Job("job", partitions=4)
    read = job.input("read", kafka("in", schema="at timestamp", start="earliest"), time=event_time("at"))
    label = job.task("label", same, after=read, min_peers=2, max_peers=3, batch_size=100)
    clean = job.task("clean", same, after=label, fuse=True)
    job.output("out", kafka("out"), after=clean)
    for name in more:
        job.output(f"{name}-out", kafka(name), after=job.task(name, same, after=clean))
    return job.spec()


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"max_peers": 4}, {"max_peers": 4}),
        ({"max_peers": 0}, {"max_peers": None}),
        ({"min_peers": 1, "batch_size": 500}, {"min_peers": 1, "batch_size": 500}),
        ({"min_peers": 2, "max_peers": 3}, {}),
    ],
)
def test_only_what_is_given_changes(given: dict[str, int], changed: dict[str, Any]) -> None:
    """The new spec differs in these settings of this task, and the running job can be changed to it."""
    before = a_job("more")
    after = scaled("j", before, "label", **given)
    validate(after, import_functions=False)
    assert {field: new for field, _, new in task_changes(before.task("label"), after.task("label"))} == changed
    assert replace(after, catalog=before.catalog) == before
    assert [task for task in after.catalog if task.name != "label"] == [
        task for task in before.catalog if task.name != "label"
    ]
    assert change_failure("j", before, after) is None


@pytest.mark.parametrize(
    ("task", "given", "text", "fix"),
    [
        ("labl", {"max_peers": 2}, "no task 'labl'; did you mean 'label'", "name one of them"),
        ("label", {}, "no value is given", "--batch-size"),
        ("clean", {"max_peers": 2}, "runs in the batches of task label", "scale label"),
        ("read", {"max_peers": 2}, "label reads its topic in place", "scale label"),
        ("out", {"max_peers": 2}, "label writes its topic in place", "scale label"),
        ("more", {"max_peers": 2}, "is complete", "still has work"),
    ],
)
def test_what_cannot_be_scaled_is_refused(task: str, given: dict[str, int], text: str, fix: str) -> None:
    """The error says why, and what to scale in place of it."""
    with pytest.raises(SardonyxError) as raised:
        scaled("j", a_job("more"), task, **given, complete=["more"])
    assert raised.value.code == "SX-JOB-SCALE-TASK"
    assert text in f"{raised.value.message}; {raised.value.cause}"
    assert fix in (raised.value.fix or "")


def test_values_that_cannot_be_are_refused_by_the_validation() -> None:
    """It is the one that a spec goes through."""
    wrong = {"max_peers": "SX-JOB-PEERS", "min_peers": "SX-JOB-PEERS", "batch_size": "SX-JOB-BATCH"}
    for name, code in wrong.items():
        value = 1 if name == "max_peers" else 0
        with pytest.raises(JobInvalid) as raised:
            validate(scaled("j", a_job(), "label", **{name: value}), import_functions=False)
        assert raised.value.code == code
        assert raised.value.where["task"] == "label"


def test_a_job_that_is_being_changed_at_a_time_is_not_scaled() -> None:
    """The change takes no third version, and its command would not know this one."""
    both = side_by_side(a_job(), a_job("more"), 1_000)
    with pytest.raises(SardonyxError, match="SX-JOB-CHANGE-NOW") as raised:
        scaled("j", both, "label", max_peers=4)
    assert "1970-01-01T00:00:00.001Z" in (raised.value.cause or "")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--task", "label", "--weight", "2"], "--weight does not go with --task"),
        (["--batch-size", "2", "--min-peers", "1"], "--min-peers and --batch-size need --task"),
        (["--restart"], "--restart goes with --partitions only"),
        (["--restart", "--partitions", "2", "--weight", "2"], "--partitions does not go with --weight"),
    ],
)
def test_the_command_tells_the_settings_of_a_task_and_of_a_job_apart(
    flags: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it connects."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["job", "scale", "orders", *flags])
    assert result.exit_code == 2, result.output
    assert "SX-USAGE" in result.output
    assert text in result.output
