"""The command as users call it: processes, exit codes, what stands on stdout, against real services."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sardonyx.client.client import Client
from sardonyx.dev.servers import four_letters
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.settings import Settings
from tests.scrape import get
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
def coordinator(settings: Settings, tmp_path: Path) -> Iterator[ChildProcess]:
    log_path = tmp_path / "coordinator.loop.event_log"
    with start_child(
        [*SARDONYX, "coordinator"], name="coordinator", log_path=log_path, env=settings.environment()
    ) as child:
        with Client(settings=settings) as looking:
            until(looking.led, what="a coordinator that stands for election")
        yield child


@pytest.mark.usefixtures("coordinator")
def test_a_jobs_life_from_the_outside(call: Call, job: Path) -> None:
    """submit, list, show, await, kill and log tail, in JSON, with the exit codes that are promised."""
    submitted = call("job", "submit", str(job), "--json")
    assert submitted.returncode == 0, submitted.stderr
    job_id = json.loads(submitted.stdout)["id"]
    assert job_id.startswith("doubles-")

    assert [each["id"] for each in json.loads(call("job", "list", "--json").stdout)] == [job_id]

    def planned() -> dict[str, Any] | None:
        shown = json.loads(call("job", "show", job_id, "--json").stdout)
        return shown if shown["status"] == "running" else None

    shown = until(planned, what="the job to be planned")
    assert (shown["id"], shown["name"]) == (job_id, "doubles")
    assert [task["name"] for task in shown["tasks"]] == ["make", "double", "write", "publish"]
    assert {"name", "state", "peers", "rows_in", "rows_out"} <= set(shown["tasks"][0])
    plan = json.loads(call("job", "show", job_id, "--plan", "text", "--json").stdout)
    assert [each["name"] for each in plan["operators"]] == ["make", "double", "write", "publish"]
    assert ", now " in call("job", "show", job_id, "--plan", "text").stdout

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
    """Only the id is on stdout, for scripts; stderr says that no coordinator leads."""
    submitted = call("job", "submit", str(job))
    assert submitted.returncode == 0, submitted.stderr
    assert len(submitted.stdout.split()) == 1
    assert "no coordinator leads" in submitted.stderr


@pytest.mark.usefixtures("coordinator")
def test_the_log_is_followed_as_it_grows(call: Call, settings: Settings, job: Path) -> None:
    """`log tail --follow` prints what is there, and then what comes, when it comes."""
    assert call("job", "submit", str(job)).returncode == 0
    with subprocess.Popen(
        [*SARDONYX, "log", "tail", "--follow"],
        env={**os.environ, **settings.environment()},
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        try:
            assert following.stdout is not None
            assert "is submitted: 4 tasks" in following.stdout.readline()
            assert call("job", "kill", "doubles").returncode == 0
            assert any("a user kills job" in line for line in following.stdout)
        finally:
            following.terminate()


def test_services_only_prints_one_line_and_stays_until_sigterm(tmp_path: Path) -> None:
    """One JSON line with both addresses when both serve, and a file that a shell reads to reach them, which only its owner can
    read. SIGTERM stops them, and the command ends well.
    """
    with subprocess.Popen(
        [*SARDONYX, "dev", "--services-only", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as dev:
        assert dev.stdout is not None
        try:
            addresses = json.loads(dev.stdout.readline())
            assert set(addresses) == {"zookeeper", "kafka", "environment"}
            assert stat.S_IMODE(Path(addresses["environment"]).stat().st_mode) == 0o600
            script = f". {addresses['environment']} && {shlex.join(SARDONYX)} topic create t && {shlex.join(SARDONYX)} topic list"
            listed = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
            assert "t" in listed.stdout
            assert four_letters(addresses["zookeeper"], "srvr")
            assert dev.poll() is None
            dev.send_signal(signal.SIGTERM)
            assert dev.wait(180) == 0
            assert dev.stdout.read() == ""
            assert not four_letters(addresses["zookeeper"], "srvr")
        finally:
            dev.kill()


def test_ctrl_c_while_services_start_ends_them_and_leaves_nothing(tmp_path: Path) -> None:
    """Once is enough: there is no job yet. Neither processes nor the folder of their data stay."""
    with subprocess.Popen(
        [*SARDONYX, "dev"], cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    ) as dev:
        try:
            until(lambda: list(tmp_path.glob("sardonyx-embedded-*/peer.log")), what="daemons that wait for services")
            children = psutil.Process(dev.pid).children(recursive=True)
            assert len(children) >= 4
            dev.send_signal(signal.SIGINT)
            assert dev.wait(180) == 130
            assert psutil.wait_procs(children, 180)[1] == []
            assert not list(tmp_path.glob("sardonyx-*"))
            assert dev.stderr is not None
            assert "Traceback" not in dev.stderr.read()
        finally:
            dev.kill()


def test_dev_serves_pages_to_who_has_their_token(settings: Settings, tmp_path: Path) -> None:
    """`web` in its line of JSON is their address, with a token: only a request that brings it gets answers. Only its owner
    can read the file of the token, which is gone in the end, as the pages are.
    """
    with subprocess.Popen(
        [*SARDONYX, "dev", "--json", "--peers", "1"],
        env={**os.environ, **settings.environment(), "SARDONYX__DATA_DIR": str(tmp_path / "data")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as dev:
        try:
            assert dev.stdout is not None
            address, _, token = json.loads(dev.stdout.readline())["web"].partition("#token=")
            status, _, answer = get(f"{address}api/v1/session", Authorization=f"Bearer {token}")
            assert (status, json.loads(answer)["role"]) == (200, "operator")
            status, _, answer = get(f"{address}api/v1/cluster", Authorization=f"Bearer {token}")
            assert (status, json.loads(answer)["standing"]["deployment"]) == (200, settings.deployment)
            for wrong in ({}, {"Authorization": "Bearer " + "0" * len(token)}, {"Authorization": f"Basic {token}"}):
                status, _, answer = get(f"{address}api/v1/cluster", **wrong)
                assert (status, json.loads(answer)["code"]) == (401, "SX-WEB-LOGIN"), wrong
            tokens = tmp_path / "data" / "web.tokens"
            assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
            dev.send_signal(signal.SIGTERM)
            assert dev.wait(180) == 0
            assert not tokens.exists()
            with pytest.raises(urllib.error.URLError):
                get(f"{address}api/v1/cluster")
        finally:
            dev.kill()


@pytest.mark.usefixtures("coordinator")
def test_ctrl_c_ends_the_job_of_a_run_cleanly(settings: Settings, job: Path) -> None:
    """The first Ctrl-C kills the job, waits for that, and the exit code says so. With `--web` the pages show the job meanwhile,
    to who has the token that the run says, and end with it.
    """
    with subprocess.Popen(
        [*SARDONYX, "run", "--web", str(job)],
        env={**os.environ, **settings.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert running.stderr is not None
            said = next(line for line in running.stderr if line.startswith("pages at "))
            address, _, token = said.removeprefix("pages at ").strip().partition("#token=")
            assert any("more virtual peer" in line for line in running.stderr), "the run says what it waits for"

            def listed() -> list[tuple[str, str]]:
                status, _, answer = get(f"{address}api/v1/jobs", Authorization=f"Bearer {token}")
                assert status == 200, answer
                return [(each["name"], each["status"]) for each in json.loads(answer)["items"]]

            until(lambda: listed() == [("doubles", "running")], what="the job on the pages")
            assert get(f"{address}api/v1/jobs")[0] == 401
            running.send_signal(signal.SIGINT)
            rest = running.stderr.read()
            assert running.wait(180) == 3, rest
            assert "SX-JOB-KILLED" in rest
            assert "Traceback" not in rest
            with pytest.raises(urllib.error.URLError):
                get(f"{address}api/v1/jobs")
        finally:
            running.kill()


def test_a_run_with_its_own_daemons_shows_where_its_results_lie(call: Call, job: Path, tmp_path: Path) -> None:
    """`run --peers` on configured services: a coordinator and peers for the run, exact results, and a look at them."""
    done = call("run", str(job), "--peers", "2", "--json", timeout=240)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["status"] == "completed"
    assert {task["name"]: task["rows_out"] for task in result["tasks"]} == dict.fromkeys(
        ["make", "double", "write", "publish"], 1000
    )
    files, topic = result["outputs"]
    assert (files["where"], files["rows"]) == (str(tmp_path / "out"), 1000)
    assert files["first"][0]["twice"] == 2 * files["first"][0]["id"]
    assert (topic["where"], topic["rows"]) == ("doubles-out", 1000)
    assert {"id", "twice"} <= set(json.loads(topic["first"][0]))
    rows = [json.loads(line) for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == list(range(1000))

    again = call("run", str(job), "--peers", "1")
    assert again.returncode == 1
    assert "SX-OUTPUT-NOT-EMPTY" in again.stderr
