"""Failpoints: nothing by default, and exactly at the point that is named otherwise."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.runtime.failpoints import VARIABLE, Failpoints

PASSING = (
    "from sardonyx.runtime.failpoints import failpoint\n"
    "for point in 'abababab': failpoint(point); print(point, end='', flush=True)"
)


@pytest.mark.parametrize(("value", "passed", "code"), [("", "abababab", 0), ("b:3:kill", "ababa", -signal.SIGKILL)])
def test_a_process_dies_at_the_failpoint_that_is_named(value: str, passed: str, code: int) -> None:
    """SIGKILL at the third time the point is passed; no variable, no failpoint."""
    ran = subprocess.run(
        [sys.executable, "-c", PASSING],
        env={VARIABLE: value, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    assert (ran.stdout, ran.returncode) == (passed, code)


@pytest.mark.parametrize("value", ["a", "a:1", "a:x:kill", "a:1:explode", ":1:kill"])
def test_a_value_that_is_none_is_refused(value: str) -> None:
    """A fault test that would never strike must not pass for that reason."""
    with pytest.raises(ValueError, match=VARIABLE):
        Failpoints(value)


def test_a_point_is_armed_while_processes_run_and_taken_once(tmp_path: Path) -> None:
    """The first process to come to an armed point is hit, and no other."""
    (tmp_path / "b").write_text("kill")
    ran = [
        subprocess.run(
            [sys.executable, "-c", PASSING],
            env={VARIABLE: str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            check=False,
            text=True,
        )
        for _ in range(2)
    ]
    assert [(each.stdout, each.returncode) for each in ran] == [("a", -signal.SIGKILL), ("abababab", 0)]
    (taken,) = tmp_path.iterdir()
    assert taken.stem == "b"
    assert taken.suffix[1:].isdecimal()


def test_a_point_may_only_say_who_came_by(tmp_path: Path) -> None:
    """So a test knows that something has begun, and arms another point then."""
    (tmp_path / "b").write_text("pass")
    ran = passing(tmp_path, "")
    assert (ran.stdout, ran.returncode) == ("abababab", 0)
    (taken,) = tmp_path.iterdir()
    assert taken.name.startswith("b.")


def passing(folder: Path, before: str) -> subprocess.CompletedProcess[str]:
    """A process that passes the points, and does ``before`` first."""
    return subprocess.run(
        [sys.executable, "-c", before + PASSING],
        env={VARIABLE: str(folder), "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )


def test_who_is_seen_to_have_taken_a_failpoint_is_hit_for_sure(tmp_path: Path) -> None:
    """The test that armed it removes the mark as soon as it is there; the process that left it is hit all the same."""
    (tmp_path / "b").write_text("kill")
    removing = (
        "import pathlib\nrename = pathlib.Path.rename\n"
        "def removed(file, to):\n    rename(file, to)\n    to.name.startswith('.') or to.unlink()\n"
        "pathlib.Path.rename = removed\n"
    )
    ran = passing(tmp_path, removing)
    assert (ran.stdout, ran.returncode) == ("a", -signal.SIGKILL)


def test_a_failpoint_that_is_armed_anew_does_what_it_says_now(tmp_path: Path) -> None:
    """A process that was about to take it, and slept meanwhile, does not do what it said before."""
    (tmp_path / "b").write_text("stop")
    anew = (
        "import pathlib\nrename = pathlib.Path.rename\n"
        "def armed(file, to):\n    file.name == 'b' and file.write_text('kill')\n    return rename(file, to)\n"
        "pathlib.Path.rename = armed\n"
    )
    ran = passing(tmp_path, anew)
    assert (ran.stdout, ran.returncode) == ("a", -signal.SIGKILL)
