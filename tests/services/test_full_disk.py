"""A disk that is full for a while: a job that writes files there goes on when there is room again, exactly."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from sardonyx.client.client import Client
from sardonyx.runtime.settings import Settings
from tests.faults import processes
from tests.faults.armed import Armed
from tests.faults.disk import SmallDisk, can_mount
from tests.faults.flow import Flow
from tests.faults.shapes import SHAPES
from tests.waiting import until


@pytest.mark.gate
@pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here")
def test_a_job_outlives_a_full_disk(settings: Settings, tmp_path: Path) -> None:
    """The task fails and rests while there is no room; nothing of its batch is committed, and nothing is lost or doubled."""
    settings = settings.model_copy(
        update={
            "peer": settings.peer.model_copy(update={"virtual_peers": 4}),
            "coordinator": settings.coordinator.model_copy(update={"failure_backoff": 0.2}),
        }
    )
    kafka = settings.kafka.bootstrap_servers
    assert kafka
    processes.warm()
    failpoints = Armed(tmp_path / "failpoints").folder
    folder = tmp_path / "disk"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(folder, 2**20))
        flow = Flow(kafka, SHAPES["files"], f"{settings.deployment}-files", 400, tmp_path, 1.0, disk.path)
        stack.callback(flow.close)
        client = stack.enter_context(Client(settings=settings))
        coordinator = processes.coordinator("coordinator", tmp_path, settings, failpoints)
        stack.callback(coordinator.end)
        peer = processes.peers("peer", tmp_path, settings, failpoints)
        stack.callback(peer.end)
        until(lambda: len(client.peers()) == 4, what="the peers")
        with disk.full():
            handle = client.submit(str(flow.spec))
            flow.feed.finish()
            failed = until(lambda: handle.status().task("write").failures, what="a failure for want of room")
            assert failed >= 1
            assert not list(disk.path.rglob("part-*"))
        assert handle.await_completion(300).status == "completed"
        rows = [json.loads(line) for path in disk.path.rglob("out/part-*") for line in path.read_bytes().splitlines()]
    assert sorted(row["id"] for row in rows) == sorted(flow.feed.expected())
