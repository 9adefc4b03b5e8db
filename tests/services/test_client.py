"""The client against a real ZooKeeper, a real Kafka and a real coordinator, without any peers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from sardonyx import Job, blackhole, generator
from sardonyx.client.client import Client
from sardonyx.core import node_paths
from sardonyx.core.errors import Interrupted, SardonyxError
from sardonyx.runtime.child_process import start_child
from sardonyx.runtime.settings import Settings
from tests.waiting import until

YAML = """
name: tiny
workflow: [[make, drop]]
catalog:
  - {name: make, type: input, connector: generator, options: {count: 3}}
  - {name: drop, type: output, connector: blackhole}
"""


def tiny(name: str = "tiny") -> Job:
    job = Job(name)
    job.output("drop", blackhole(), after=job.input("make", generator(count=3)))
    return job


@pytest.fixture
def connected(settings: Settings) -> Iterator[Client]:
    with Client(settings=settings) as found:
        yield found


@pytest.fixture
def coordinator(settings: Settings, tmp_path: Path) -> Iterator[None]:
    """A coordinator in a process of its own."""
    command = [sys.executable, "-m", "sardonyx", "coordinator"]
    log_path = tmp_path / "coordinator.loop.event_log"
    with start_child(command, name="coordinator", log_path=log_path, env=settings.environment()) as child:
        with Client(settings=settings) as looking:
            until(looking.led, what="a coordinator that stands for election")
        yield
        assert child.poll() is None, child.log_tail(50)


def test_submitting_from_python_logs_what_is_probably_not_meant(connected: Client) -> None:
    """The command prints warnings about a job; from Python they are log lines."""
    job = Job("large")
    job.output("drop", blackhole(), after=job.input("read", generator(3), batch_size=20_000_000))
    with capture_logs() as lines:
        connected.submit(job)
    (warning,) = [line for line in lines if line["event"] == "job_warning"]
    assert warning["task"] == "read"
    assert "batch_size" in warning["warning"]


def test_a_job_without_a_coordinator_is_submitted_and_says_so(connected: Client) -> None:
    """It is listed and found by its name; it says that no coordinator leads; waiting for it times out with that reason."""
    handle = connected.submit(tiny())
    assert handle.id.startswith("tiny-")
    assert handle.status().status == "submitted"
    assert [task.name for task in handle.status().tasks] == ["make", "drop"]
    assert "no coordinator leads" in (handle.waits_for() or "")
    assert [view.id for view in connected.jobs()] == [handle.id]
    assert connected.job("tiny").id == handle.id
    with pytest.raises(Interrupted) as caught:
        handle.await_completion("50 ms")
    assert caught.value.code == "SX-JOB-TIMEOUT"
    assert "no coordinator" in caught.value.cause


@pytest.mark.usefixtures("coordinator")
def test_a_job_without_peers_runs_and_waits_until_it_is_killed(connected: Client, settings: Settings) -> None:
    """It is planned and runs, says how many peers it waits for, refuses a second of its name, and ends when killed."""
    handle = connected.submit(tiny())
    until(lambda: handle.status().status == "running", what="the job to run")
    assert "no virtual peer at all" in (handle.waits_for() or "")
    assert [(task.state, task.rows_in, task.peers) for task in handle.status().tasks] == [("pending", 0, 0)] * 2
    with pytest.raises(SardonyxError) as taken:
        connected.submit(tiny())
    assert taken.value.code == "SX-JOB-NAME-TAKEN"
    assert handle.id in taken.value.message
    with Client(settings=settings) as other:
        other.job("tiny").kill()
    with pytest.raises(Interrupted) as killed:
        handle.await_completion("30 s")
    assert killed.value.code == "SX-JOB-KILLED"
    view = connected.jobs()[0]
    assert (view.id, view.status) == (handle.id, "killed")
    assert view.ended_at is not None
    assert connected.submit(tiny()).id != handle.id


@pytest.mark.usefixtures("coordinator")
def test_waiting_is_woken_by_a_watch(connected: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper's watch reports the end of a job. Asking again does not: here that is an hour away."""
    monkeypatch.setattr("sardonyx.client.waiting.REREAD", 3600.0)
    handle = connected.submit(tiny())
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            handle.await_completion()
        except Interrupted as error:
            ends.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: handle.status().status == "running", what="the job to run")
    handle.kill()
    waiting.join(20)
    assert [getattr(end, "code", None) for end in ends] == ["SX-JOB-KILLED"]


@pytest.mark.usefixtures("coordinator")
def test_without_kafka_a_job_is_shown_without_rows(connected: Client, settings: Settings) -> None:
    """`status` needs no Kafka: it is quick, and never an error, when Kafka is away or has no address."""
    handle = connected.submit(tiny())
    until(lambda: handle.status().status == "running", what="the job to run")
    away = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:1"})})
    began = time.monotonic()
    with Client(settings=away) as looking:
        assert looking.job(handle.id).status().status == "running"
    assert time.monotonic() - began < 10
    with Client(settings.zookeeper.hosts, deployment=settings.deployment) as looking:
        assert looking.job("tiny").status().status == "running"
    handle.kill()


def test_code_travels_under_its_hash(connected: Client, settings: Settings, tmp_path: Path) -> None:
    """The modules beside a spec are uploaded once, under the hash that the spec names."""
    from sardonyx.zookeeper.session import ZooKeeperSession

    (tmp_path / "steps.py").write_text("def keep(row: dict) -> dict:\n    return row\n")
    (tmp_path / "job.yaml").write_text(
        "name: coded\nworkflow: [[make, keep], [keep, drop]]\ncatalog:\n"
        "  - {name: make, type: input, connector: generator, options: {count: 3}}\n"
        "  - {name: keep, type: function, fn: 'steps:keep'}\n"
        "  - {name: drop, type: output, connector: blackhole}\n"
    )
    handle = connected.submit(tmp_path / "job.yaml")
    digest = handle.spec().code
    assert digest is not None
    zk = ZooKeeperSession.connect(settings)
    try:
        assert (zk.read(node_paths.code(digest)) or b"").startswith(b"PK")
    finally:
        zk.close()


def test_code_that_stands_is_written_again_by_each_who_submits(connected: Client, settings: Settings) -> None:
    """So that the leader sees that it is wanted; also by two at a time, and while it is removed between two writes."""
    path, code = node_paths.code("0" * 64), b"PK" + bytes(100_000)
    zk = connected.zk
    connected.put_code(path, code)
    _, first = zk.read_version(path) or (b"", -1)
    connected.put_code(path, code)
    _, second = zk.read_version(path) or (b"", -1)
    assert second > first

    def put(client: Client) -> None:
        for _ in range(50):
            client.put_code(path, code)
            assert client.zk.read(path) in (code, None)

    with Client(settings=settings) as other, ThreadPoolExecutor(3) as pool:
        putting = [pool.submit(put, client) for client in (connected, other)]
        removals = 0
        while not all(each.done() for each in putting):
            zk.delete(path)
            removals += 1
        for each in putting:
            each.result()
    assert removals > 1
    connected.put_code(path, code)
    assert zk.read(path) == code


def test_a_request_that_nobody_understands_hides_no_job(connected: Client, settings: Settings) -> None:
    """Garbage in the inbox is the coordinator's to refuse; looking at jobs goes on."""
    connected.zk.create(f"{node_paths.INBOX}/submit-garbage-0", b"not json")
    connected.zk.create(f"{node_paths.INBOX}/submit-garbage-1", msgspec.json.encode({"kind": "unheard of"}))
    handle = connected.submit(tiny())
    assert [view.id for view in connected.jobs()] == [handle.id]
