"""Spark's JVM dies under a daemon: no task failed for that, others take over at once, and the daemon comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from peer.assignment import AssignmentHandle, RunnerLost
from peer.daemon import PeerDaemon
from peer.task_runner import SparkTaskRunner, warm_up
from sardonyx.client.client import Client
from sardonyx.core import node_paths
from sardonyx.core.notes import TaskNote
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from spark_tasks.on_demand import SparkOnDemand
from spark_tasks.session import start_session
from tests.faults import processes
from tests.faults.armed import Armed
from tests.faults.flow import Flow
from tests.faults.shapes import SHAPES
from tests.services.coordination import SPEC, completed, coordinator, submit
from tests.services.light import LightRunner, set_stage
from tests.waiting import until


class Mortal(LightRunner):
    """Cannot go on after its first task, until the daemon begins its next session."""

    lost = 0

    def work(self, prepared: Any, handle: AssignmentHandle, zk: ZooKeeperSession) -> None:
        if not Mortal.lost:
            Mortal.lost = 1
            raise RunnerLost("Spark has ended")
        super().work(prepared, handle, zk)


@pytest.mark.gate
def test_a_daemon_that_cannot_go_on_begins_a_new_session(settings: Settings, zk: ZooKeeperSession) -> None:
    """Its peers are dead at once, its tasks have not failed, and its next session takes them up again."""
    set_stage(zk)
    lasting = settings.zookeeper.model_copy(update={"session_timeout": 60.0})  # none ends but by the daemon itself
    alone = settings.model_copy(
        update={"peer": settings.peer.model_copy(update={"virtual_peers": 1}), "zookeeper": lasting}
    )
    sessions: list[ZooKeeperSession] = []

    def connect(*arguments: Any, **options: Any) -> ZooKeeperSession:
        sessions.append(ZooKeeperSession.connect(*arguments, **options))
        return sessions[-1]

    daemon = PeerDaemon(alone, Mortal("mortal"), connect=connect)
    thread = zk.runtime.spawn("daemon", daemon.run)
    with coordinator(settings):
        submit(zk, "count-1")
        until(lambda: completed(zk, "count-1"), what="the job to be completed")
        notes = [zk.read(node_paths.job_task("count-1", task.name)) for task in SPEC.catalog]
        daemon.stop()
        thread.join(180)
    assert len(sessions) == 2
    assert [msgspec.json.decode(note or b"", type=TaskNote).failures for note in notes] == [0] * len(notes)


@pytest.mark.long
def test_spark_keeps_its_workers_while_there_are_tasks(settings: Settings, tmp_path: Path) -> None:
    """A record that comes after minutes without any is not held up by the start of new workers, which takes seconds.

    Spark looks every ten seconds for workers that had nothing to do for a minute.
    """
    assert not workers_of()
    spark = SparkOnDemand(lambda: start_session(settings.spark, tmp_path), warm_up)
    runner = SparkTaskRunner(settings, spark, tmp_path / "code")
    try:
        runner._at_work.add("a peer")
        threading.Thread(target=runner.keep_workers, daemon=True).start()
        cores = spark.session().sparkContext.defaultParallelism
        until(lambda: len(workers_of()) == cores, what="Spark's workers")
        began, found = time.monotonic(), workers_of()
        until(lambda: time.monotonic() > began + 80, what="the time in which Spark ends idle workers")
        assert workers_of() == found
    finally:
        spark.stop()


def workers_of() -> list[int]:
    """The process ids of Spark's Python workers: they are forks of its Python daemon."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "pyspark.daemon" in process.cmdline() and "pyspark.daemon" in process.parent().cmdline():
                found.append(process.pid)
    return sorted(found)


@pytest.mark.long
def test_a_job_outlives_the_death_of_spark(settings: Settings, tmp_path: Path) -> None:
    """SIGKILL to the JVM of the only daemon, four peers in it: the job ends, exactly, without one failure."""
    kafka = settings.kafka.bootstrap_servers
    assert kafka
    flow = Flow(kafka, SHAPES["chain"], f"{settings.deployment}-chain", 2000, tmp_path, 1.0)
    processes.warm()
    failpoints = Armed(tmp_path / "failpoints").folder
    with contextlib.ExitStack() as stack:
        stack.callback(flow.close)
        client = stack.enter_context(Client(settings=settings))
        for process in (
            processes.coordinator("coordinator", tmp_path, settings, failpoints),
            daemon := processes.peers("peer", tmp_path, settings, failpoints, spark=True),
        ):
            stack.callback(process.end)
        until(lambda: len(client.peers()) == 4, what="the peers", timeout=300)
        handle = client.submit(str(flow.spec))
        flow.step(0.3)
        until(lambda: flow.sight.count, what="first records", timeout=300)
        (machine,) = (p for p in psutil.Process(daemon.pid).children(recursive=True) if p.name() == "java")
        os.kill(machine.pid, signal.SIGKILL)
        flow.feed.finish()
        view = handle.await_completion(300)
        assert view.status == "completed"
        assert not any(view.task(name).failures for name in ("first", "second", "third"))
        found = flow.check()
    assert found["lost"] == found["doubled"] == 0, flow.wrong
