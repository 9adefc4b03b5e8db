"""What ``run --profile`` reads out of a peer daemon's log."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from sardonyx.cli.profile import TaskProfile, must_be_ours, profile_table, profiled, read_profile
from sardonyx.core.errors import SetupError
from sardonyx.runtime.settings import load_settings


def line(**fields: object) -> str:
    return json.dumps({"event": "batch committed", "job": "count-1", "level": "debug", **fields})


def test_batches_are_summed_up_by_task(tmp_path: Path) -> None:
    """By task, in the order of their first batch, over all peers; other jobs and what else is in the log do not count."""
    log = tmp_path / "peer.log"
    said = [
        "java says something",
        line(task="read", peer="a-0", rows_in=100, wait_ms=10.0, decode_ms=1.0, function_ms=0.5, write_ms=2.0),
        line(task="label", peer="a-1", rows_in=50, wait_ms=1.0, function_ms=7.0, encode_ms=1.0, write_ms=2.0),
        line(task="read", peer="a-2", rows_in=300, wait_ms=30.0, decode_ms=3.0, commit_ms=6.0, publish_ms=4.0),
        line(task="read", job="other-1", rows_in=7),
        json.dumps({"event": "sealed", "job": "count-1", "task": "read"}),
    ]
    log.write_text("\n".join(said) + "\n")
    read, label = read_profile(log, "count-1")
    assert (read.task, read.batches, read.rows) == ("read", 2, 400)
    assert read.seconds == pytest.approx(
        {
            "wait": 0.04,
            "decode": 0.004,
            "spark": 0,
            "function": 0.0005,
            "encode": 0,
            "write": 0.002,
            "commit": 0.006,
            "publish": 0.004,
        }
    )
    assert (label.task, label.batches, label.rows) == ("label", 1, 50)
    assert read_profile(log, "never-ran") == []


def test_the_table_shows_microseconds_a_row() -> None:
    """So that tasks, steps and runs can be compared; a batch without rows divides by nothing."""
    seconds = dict.fromkeys(("wait", "decode", "spark", "function", "encode", "write", "commit", "publish"), 0.002)
    out = io.StringIO()
    Console(file=out, width=160).print(profile_table([TaskProfile("read", 4, 1000, seconds)]))
    assert "250" in out.getvalue()
    assert out.getvalue().count("2.00") == 8


def test_only_own_peers_can_be_profiled() -> None:
    """Others log elsewhere: said at once, with what to do."""
    must_be_ours(ours=True)
    with pytest.raises(SetupError, match="only peers that are started here") as caught:
        must_be_ours(ours=False)
    assert caught.value.code == "SX-PROFILE-ELSEWHERE"


def test_daemons_are_told_to_say_it() -> None:
    """The settings of the run stay as they are; those of its daemons make the log readable."""
    settings = load_settings(log={"level": "error"})
    told = profiled(settings)
    assert (told.log.level, told.log.format) == ("debug", "json")
    assert settings.log.level == "error"
