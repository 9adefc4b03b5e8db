"""The command as users call it: processes, exit codes, what stands on stdout, against real services."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sardonyx.config import Settings
from sardonyx.embedded import four_letters
from sardonyx.keeper import Keeper, start_child
from tests.waiting import until

SARDONYX = [sys.executable, "-m", "sardonyx"]
JOB = """
from sardonyx import Job, files, generator, kafka


def double(row: dict) -> dict:
    return {**row, "twice": row["id"] * 2}


job = Job("doubles", partitions=2)
made = job.input("make", generator(count=1000, seed=1))
doubled = job.task("double", double, after=made)
job.output("write", files("out", format="json"), after=doubled)
job.output("publish", kafka("doubles-out", format="json", key="id"), after=doubled)
"""
Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


@pytest.fixture
def call(settings: Settings, tmp_path: Path) -> Call:
    """Run a command to its end, with the addresses of the test's services in its environment."""

    def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SARDONYX, *arguments],
            env={**os.environ, **settings.environment()},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def coordinator(settings: Settings, tmp_path: Path) -> Iterator[Keeper]:
    log_path = tmp_path / "coordinator.log"
    with start_child(
        [*SARDONYX, "coordinator"], name="coordinator", log_path=log_path, env=settings.environment()
    ) as child:
        yield child


@pytest.mark.usefixtures("coordinator")
def test_a_jobs_life_from_the_outside(call: Call, job: Path) -> None:
    """submit, list, show, await, kill and log tail, in JSON, with the exit codes that are promised."""
    submitted = call("job", "submit", str(job), "--json")
    assert submitted.returncode == 0, submitted.stderr
    job_id = json.loads(submitted.stdout)["id"]
    assert job_id.startswith("doubles-")

    assert [each["id"] for each in json.loads(call("job", "list", "--json").stdout)] == [job_id]
    shown = json.loads(call("job", "show", job_id, "--json").stdout)
    assert (shown["id"], shown["name"], shown["status"]) == (job_id, "doubles", "running")
    assert [task["name"] for task in shown["tasks"]] == ["make", "double", "write", "publish"]
    assert {"name", "state", "peers", "rows_in", "rows_out"} <= set(shown["tasks"][0])

    late = call("job", "await", job_id, "--timeout", "100 ms")
    assert late.returncode == 4
    assert "SX-JOB-TIMEOUT" in late.stderr
    assert call("job", "kill", "doubles").returncode == 0
    assert call("job", "await", job_id).returncode == 3

    events = [json.loads(line) for line in call("log", "tail", "--json").stdout.splitlines()]
    assert events[0]["kind"] == "submit"
    assert "kill" in [event["kind"] for event in events]
    assert [event["n"] for event in events] == list(range(events[0]["n"], events[0]["n"] + len(events)))
    assert len(call("log", "tail", "-n", "2").stdout.splitlines()) == 2
    assert "no peers" in call("peers", "list").stdout
    unknown = call("job", "show", "nobody", "--json")
    assert unknown.returncode == 1
    assert json.loads(unknown.stdout)["error"]["code"] == "SX-JOB-UNKNOWN"


def test_submit_prints_the_id_alone_and_says_what_it_waits_for(call: Call, job: Path) -> None:
    """Nothing but the id stands on stdout, for scripts; that nobody leads is said beside it."""
    submitted = call("job", "submit", str(job))
    assert submitted.returncode == 0, submitted.stderr
    assert len(submitted.stdout.split()) == 1
    assert "no coordinator leads" in submitted.stderr


def test_the_log_is_followed_as_it_grows(call: Call, settings: Settings, job: Path, coordinator: Keeper) -> None:
    """`log tail --follow` prints what comes, when it comes."""
    until(lambda: call("job", "submit", str(job)).returncode == 0, what="a job to be handed in")
    with subprocess.Popen(
        [*SARDONYX, "log", "tail", "--follow", "-n", "0"],
        env={**os.environ, **settings.environment()},
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        try:
            assert following.stdout is not None
            assert call("job", "kill", "doubles").returncode == 0
            assert any("a user ends job" in line for line in following.stdout)
        finally:
            following.terminate()


def test_services_only_prints_one_line_and_stays_until_sigterm(tmp_path: Path) -> None:
    """One JSON line with both addresses when both serve; SIGTERM stops them, and the command ends well."""
    with subprocess.Popen(
        [*SARDONYX, "dev", "--services-only", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as dev:
        assert dev.stdout is not None
        try:
            addresses = json.loads(dev.stdout.readline())
            assert set(addresses) == {"zookeeper", "kafka"}
            assert four_letters(addresses["zookeeper"], "srvr")
            assert dev.poll() is None
            dev.send_signal(signal.SIGTERM)
            assert dev.wait(60) == 0
            assert dev.stdout.read() == ""
            assert not four_letters(addresses["zookeeper"], "srvr")
        finally:
            dev.kill()
