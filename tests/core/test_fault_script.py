"""Fault scripts: a daemon dies and stops at the scripted points, and goes on, one fault after the other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.testing import faults
from sardonyx.testing.faults import Daemon, kill_at, pause_at
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("threads_end")

ROOT = Path(__file__).parents[2]
BUSY = """
import sys, time
from sardonyx.runtime.failpoints import failpoint
for number in range(100_000):
    print(number, flush=True)
    failpoint("passed")
    time.sleep(0.01)  # so that it lives for a quarter of an hour if no fault ends it, longer than a test
"""


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[list[ChildProcess]]:
    found: list[ChildProcess] = []
    yield found
    for life in found:
        life.kill()


def daemon(lives: list[ChildProcess], tmp_path: Path, *script) -> Daemon:
    def start(failpoint: dict[str, str]) -> ChildProcess:
        number = len(lives)
        env = {"PYTHONPATH": str(ROOT), **failpoint}
        log = tmp_path / f"{number}.log"
        lives.append(start_child([sys.executable, "-c", BUSY], name=f"life {number}", log_path=log, env=env))
        return lives[-1]

    return Daemon(start, script)


def test_each_fault_comes_in_a_life_of_its_own(lives: list[ChildProcess], tmp_path: Path) -> None:
    """Killed at the third pass, then stopped at the second and resumed, then killed at the first; the last life goes on."""
    script = [kill_at("passed", 3), pause_at("passed", 0.2, count=2), kill_at("passed")]
    made = daemon(lives, tmp_path, *script)
    until(lambda: len(lives) == 4, what="the last life")
    until(lives[3].log_tail, what="the last life to be at work")
    assert made.happened == script
    assert made.missing == []
    assert (lives[0].log_tail(), lives[0].poll()) == ("0\n1\n2", 137)
    assert lives[1].log_tail().startswith("0\n1")  # it stood there, went on, and was stopped for the next fault
    assert (lives[2].log_tail(), lives[2].poll()) == ("0", 137)
    made.stop()
    assert lives[3].poll() is not None


def test_a_fault_that_does_not_come_is_told(lives: list[ChildProcess], tmp_path: Path) -> None:
    """By what is missing from the script; stopping does not wait for it."""
    made = daemon(lives, tmp_path, kill_at("never"))
    until(lives[0].log_tail, what="it to be at work")
    made.stop()
    assert made.missing == [kill_at("never")]
    assert str(made.missing[0]) == "killed when it passes 'never' for the 1. time"


def test_a_pause_has_come_when_it_begins(lives: list[ChildProcess], tmp_path: Path) -> None:
    """Who is done before it is over need not wait for it."""
    made = daemon(lives, tmp_path, pause_at("passed", 600))
    until(lambda: made.happened, what="the pause")
    made.stop()
    assert made.missing == []
    assert lives[0].poll() is not None


def test_a_death_that_nobody_has_looked_at_yet_has_come(
    lives: list[ChildProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon dies at its last step, and the test is over before the next look at it."""
    monkeypatch.setattr(faults, "_TICK", 600)
    made = daemon(lives, tmp_path, kill_at("passed"))
    until(lambda: lives[0].poll() is not None, what="the death")
    assert made.happened == []
    made.stop()
    assert made.happened == [kill_at("passed")]
    assert len(lives) == 1
