"""A disk that is full for a while: a job whose files or whose state is there goes on when there is room again, exactly."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sardonyx.client.client import Client, JobHandle
from sardonyx.runtime.settings import Settings
from sardonyx.testing import Cluster
from tests.faults import processes
from tests.faults.armed import Armed
from tests.faults.disk import SmallDisk, can_mount
from tests.faults.flow import Flow
from tests.faults.shapes import SHAPES
from tests.services.test_windows import closed, counting, expected, found, rows
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


@pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here")
def test_a_job_outlives_a_full_disk_of_its_state(
    seed: int, tmp_path: Path, sardonyx_clusters: Callable[..., Cluster]
) -> None:
    """A peer takes windows over and has no room for RocksDB: the task waits, says for what, and however often it has failed, the
    job does not. When there is room, the state is made from its log: no window lacks a row, and none has two results.
    """
    given = rows(seed, 6_000)
    folder = tmp_path / "disk"
    folder.mkdir()
    with SmallDisk(folder, 2**26) as disk, sardonyx_clusters(**{"coordinator.failure_backoff": 0.2}) as cluster:
        topic, out = cluster.topic("in", given[:3_000]), cluster.topic("out")
        first = cluster.peers(3)
        handle = cluster.submit(counting(topic, out, end=None, store="rocksdb", max_peers=1))
        until(lambda: cluster.records(out), what="the first windows")
        cluster.temporary = disk.path
        cluster.peers(3)
        with disk.full():
            first.stop()
            cluster.fill(topic, given[3_000:])
            limit = handle.spec().failure_limit
            until(lambda: handle.status().task("count").failures > limit, what="more failures than would count")
            until(lambda: waits_for_room(handle), what="the reason")
            assert handle.status().status == "running"
        wanted = closed(given)
        until(lambda: wanted.items() <= found(cluster.records(out)).items(), what="all windows")
        handle.kill()
        results = cluster.records(out)
    assert len(found(results)) == len(results), "a window gave two final results"
    assert found(results).items() <= expected(given).items()


def waits_for_room(handle: JobHandle) -> bool:
    """Whether `explain` says that the windows wait for room on the disk of their state, however long that takes."""
    reasons = [each for each in handle.explain().explanation.reasons if each.task == "count"]
    wanted = "the job survives any number), first SX-STATE-FULL: the disk of a task's state is full"
    return any(each.code == "task-backing-off" and wanted in each.text for each in reasons)
