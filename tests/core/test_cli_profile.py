"""What ``run --profile`` reads out of a peer daemon's metrics."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from peer.peer_metrics import count_batch, count_restore
from sardonyx.cli.profile import STEPS, TaskProfile, must_be_ours, profile_table, profiled, read_profile
from sardonyx.core.errors import SetupError
from sardonyx.runtime.metrics import written_to
from sardonyx.runtime.settings import load_settings


def test_batches_are_summed_up_by_task(tmp_path: Path) -> None:
    """By task, in the order of their first batch, over all peers; other jobs do not count."""
    path = tmp_path / "metrics.json"

    def batch(job: str, task: str, rows_in: int, **seconds: float) -> None:
        result: Any = SimpleNamespace(
            rows_in=rows_in, table=SimpleNamespace(num_rows=1), skipped=0, letters=[], planned=None
        )
        count_batch(job, task, result, seconds)

    with written_to(path):
        batch("count-1", "read", 100, wait=0.01, decode=0.001, function=0.0005, write=0.002)
        batch("count-1", "label", 50, wait=0.001, function=0.007, encode=0.001, write=0.002)
        batch("count-1", "read", 300, wait=0.03, decode=0.003, commit=0.006, publish=0.004)
        batch("other-1", "read", 7)
    read, label = read_profile(path, "count-1")
    assert (read.task, read.batches, read.rows) == ("read", 2, 400)
    told = {"wait": 0.04, "decode": 0.004, "function": 0.0005, "write": 0.002, "commit": 0.006, "publish": 0.004}
    assert read.seconds == pytest.approx({**dict.fromkeys(STEPS, 0), **told})
    assert (label.task, label.batches, label.rows) == ("label", 1, 50)
    assert read_profile(path, "never-ran") == []
    assert read_profile(tmp_path / "none.json", "count-1") == []


def test_the_table_shows_microseconds_a_row() -> None:
    """So that tasks, steps and runs can be compared; a batch without rows divides by nothing."""
    seconds = {**dict.fromkeys(STEPS, 0.002), "restore": 0.0, "state": 0.0}
    without = shown(TaskProfile("read", 4, 1000, seconds))
    assert "250" in without
    assert without.count("2.00") == 8
    assert "state" not in without
    with_state = shown(TaskProfile("read", 4, 1000, seconds | {"state": 0.003}), TaskProfile("none", 1, 0, seconds))
    assert "3.00" in with_state
    assert "restore us/row" in with_state


def shown(*profiles: TaskProfile) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(profile_table(profiles))
    return out.getvalue()


def test_state_that_is_restored_is_counted_without_a_row(tmp_path: Path) -> None:
    """A peer that takes a task over restores its state in a batch that reads nothing. A task without rows has no line."""
    path = tmp_path / "metrics.json"
    result: Any = SimpleNamespace(rows_in=5, table=SimpleNamespace(num_rows=1), skipped=0, letters=[], planned=None)
    with written_to(path):
        count_restore("state-1", "sum", {"restore": 0.5, "state": 0.1})
        count_restore("state-1", "other", {"restore": 0.5})
        count_batch("state-1", "sum", result, {"state": 0.2})
    (profile,) = read_profile(path, "state-1")
    assert (profile.task, profile.seconds["restore"], profile.seconds["state"]) == ("sum", 0.5, 0.2)


def test_only_own_peers_can_be_profiled() -> None:
    """Others log elsewhere: said at once, with what to do."""
    must_be_ours(ours=True)
    with pytest.raises(SetupError, match="Only peers that this command starts") as caught:
        must_be_ours(ours=False)
    assert caught.value.code == "SX-PROFILE-ELSEWHERE"


def test_daemons_are_told_where_to_write(tmp_path: Path) -> None:
    """The settings of the run stay as they are, and the log of its daemons as well."""
    settings = load_settings(log={"level": "error"})
    told = profiled(settings, tmp_path / "m.json")
    assert told.metrics.file == tmp_path / "m.json"
    assert told.environment()["SARDONYX__METRICS__FILE"] == str(tmp_path / "m.json")
    assert (told.log, settings.metrics.file) == (settings.log, None)
