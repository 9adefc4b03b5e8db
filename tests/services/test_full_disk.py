"""A disk that is full for a while: a job that writes files there goes on when there is room again, exactly."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.client.client import Client
from sardonyx.runtime.settings import Settings
from tests.faults import processes
from tests.faults.armed import Armed
from tests.faults.flow import Flow
from tests.faults.shapes import SHAPES
from tests.waiting import until

MAY_MOUNT = (
    sys.platform == "linux"
    and shutil.which("unshare") is not None
    and not subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "small", "/mnt"],
        capture_output=True,
        check=False,
    ).returncode
)


@pytest.mark.skipif(not MAY_MOUNT, reason="a small disk cannot be mounted here")
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
    flow = Flow(kafka, SHAPES["files"], f"{settings.deployment}-files", 400, tmp_path, 1.0)
    processes.warm()
    failpoints = Armed(tmp_path / "failpoints").folder
    with contextlib.ExitStack() as stack:
        stack.callback(flow.close)
        client = stack.enter_context(Client(settings=settings))
        coordinator = processes.coordinator("coordinator", tmp_path, settings, failpoints)
        stack.callback(coordinator.end)
        peer = processes.peers("peer", tmp_path, settings, failpoints, small=flow.folder)
        stack.callback(peer.end)
        until(lambda: len(client.peers()) == 4, what="the peers", timeout=60)
        ballast = processes.seen_by(peer, flow.folder / "ballast")
        with contextlib.suppress(OSError):  # which is what it is for
            ballast.write_bytes(bytes(2 * processes.SMALL))
        handle = client.submit(str(flow.spec))
        flow.feed.finish()
        failed = until(lambda: handle.status().task("write").failures, what="a failure for want of room", timeout=60)
        assert failed >= 1
        assert not list(processes.seen_by(peer, flow.folder / "out").glob("part-*"))
        ballast.unlink()
        assert handle.await_completion(60).status == "completed"
        out = processes.seen_by(peer, flow.folder / "out")
        rows = [json.loads(line) for path in out.glob("part-*") for line in path.read_bytes().splitlines()]
    assert sorted(row["id"] for row in rows) == sorted(flow.feed.expected())
