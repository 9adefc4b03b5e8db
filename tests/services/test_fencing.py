"""A transaction that a lost peer left open on Kafka delays no reader, even if no peer takes its slot and the transaction may live
long.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sardonyx.client.client import Client
from sardonyx.runtime.settings import Settings
from tests.faults import processes
from tests.faults.armed import Armed
from tests.faults.flow import Flow
from tests.faults.shapes import SHAPES
from tests.proxy import Proxy
from tests.waiting import until

SESSION = 4.0
LASTING = 360.0
"""Seconds that a transaction may stay open, and that the task's group waits to hear of a member: nothing may wait for that."""


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """Short sessions with ZooKeeper, a patient Kafka, and records sent the moment they are written."""
    return settings.model_copy(
        update={
            "zookeeper": settings.zookeeper.model_copy(update={"session_timeout": SESSION}),
            "kafka": settings.kafka.model_copy(update={"linger.ms": 0}),
            "peer": settings.peer.model_copy(
                update={"virtual_peers": 1, "session_timeout": LASTING, "transaction_timeout": LASTING}
            ),
        }
    )


@pytest.fixture
def flow(quick: Settings, tmp_path: Path) -> Iterator[Flow]:
    """A job from topic to topic, with its feed and its reader."""
    address = quick.kafka.bootstrap_servers
    assert address
    made = Flow(address, SHAPES["copy"], f"{quick.deployment}-copy", 2000, tmp_path, 1.0)
    yield made
    made.close()


def step(flow: Flow, share: float) -> None:
    """Feed on. A flow that has records on their way to Kafka would feed nothing."""
    flow.feed.arrived()
    flow.step(share)


@pytest.mark.parametrize("action", [pytest.param("kill", marks=pytest.mark.gate), "stop"])
def test_what_a_lost_peer_left_on_kafka_is_ended_by_the_leader(
    quick: Settings, flow: Flow, tmp_path: Path, action: str
) -> None:
    """Its transaction and its place in the group: readers of its output, and the others of its task, who share its partitions, go
    on long before either times out; who wakes up later commits nothing.
    """
    failpoints = Armed(tmp_path / "failpoints")
    processes.warm()
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(settings=quick))
        for process in (
            processes.coordinator("coordinator", tmp_path, quick, failpoints.folder),
            *(processes.peers(f"peer{n}", tmp_path, quick, failpoints.folder) for n in range(2)),
        ):
            stack.callback(process.end)
        until(lambda: len(client.peers()) == 2, what="the peers")
        handle = client.submit(str(flow.spec))
        flow.step(0.1)
        until(lambda: len(flow.sight.through) == len(flow.feed.places), what="records of every partition")
        failpoints.arm("positions", action)
        step(flow, 0.2)
        hit = until(lambda: failpoints.struck("positions"), what="a peer inside its transaction")
        step(flow, 0.3)
        marks = {source: sent - 1 for source, sent in enumerate(flow.feed.sent)}
        until(lambda: flow.sight.through == marks, what="all partitions to go on", timeout=LASTING / 2)
        if action == "stop":
            os.kill(hit, signal.SIGCONT)
        flow.feed.finish()
        assert handle.await_completion(300).status == "completed"
        found = flow.check()
    assert found["lost"] == found["doubled"] == found["out_of_order"] == 0, flow.wrong


@pytest.mark.gate
def test_a_peer_that_zookeeper_is_away_from_leaves_its_partitions_to_others(
    quick: Settings, flow: Flow, tmp_path: Path
) -> None:
    """When its session is over it neither keeps its place in the group nor opens its slot again, though Kafka answers it."""
    failpoints = tmp_path / "failpoints"
    processes.warm()
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(str(quick.zookeeper.hosts)))
        far = quick.model_copy(update={"zookeeper": quick.zookeeper.model_copy(update={"hosts": proxy.address})})
        client = stack.enter_context(Client(settings=quick))
        for process in (
            processes.coordinator("coordinator", tmp_path, quick, failpoints),
            processes.peers("far", tmp_path, far, failpoints),
            processes.peers("near", tmp_path, quick, failpoints),
        ):
            stack.callback(process.end)
        until(lambda: len(client.peers()) == 2, what="the peers")
        handle = client.submit(str(flow.spec))
        flow.step(0.1)
        until(lambda: len(flow.sight.through) == len(flow.feed.places), what="records of every partition")
        until(lambda: all(peer.state == "active" for peer in client.peers()), what="both at work")
        proxy.refuse()
        until(lambda: len(client.peers()) == 1, what="the end of its session")
        step(flow, 0.3)
        marks = {source: sent - 1 for source, sent in enumerate(flow.feed.sent)}
        until(lambda: flow.sight.through == marks, what="all partitions to go on", timeout=LASTING / 2)
        proxy.accept_again()
        flow.feed.finish()
        assert handle.await_completion(300).status == "completed"
        found = flow.check()
    assert found["lost"] == found["doubled"] == found["out_of_order"] == 0, flow.wrong
