"""The coordinator's daemon on a real ZooKeeper: without ZooKeeper, and at a log of another version."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import structlog.testing

from sardonyx.core import node_paths
from sardonyx.core.effects import Create, Set
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.proxy import Proxy
from tests.services.coordination import (
    coordinator,
    with_timers,
)
from tests.waiting import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def quick(settings: Settings) -> Settings:
    return with_timers(settings)


@pytest.fixture
def zk(settings: Settings) -> Iterator[ZooKeeperSession]:
    opened = ZooKeeperSession.connect(settings, survive_expiry=True)
    yield opened
    opened.close()


DAEMON = """
from coordinator.daemon import main
from sardonyx.runtime.settings import load_settings

raise SystemExit(main(load_settings()))
"""


def test_the_daemon_waits_for_zookeeper_and_leaves_when_told(
    zk: ZooKeeperSession, quick: Settings, zookeeper: str
) -> None:
    """It says what it waits for; SIGTERM ends it with exit code 0, and its place in the election is free at once."""
    with Proxy(zookeeper) as proxy:
        proxy.refuse()
        settings = load_settings(
            deployment=quick.deployment,
            zookeeper={"hosts": proxy.address, "session_timeout": 20},
            kafka={"bootstrap_servers": "127.0.0.1:9"},
        )
        environment = {**os.environ, **settings.environment(), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-u", "-c", DAEMON]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as daemon:
            try:
                said = iter(daemon.stdout)
                start = next(said)
                assert quick.deployment in start
                assert proxy.address in start
                waits = next(line for line in said if "waiting_for_zookeeper" in line)
                assert proxy.address in waits
                proxy.accept_again()
                until(lambda: zk.read(node_paths.EPOCH), what="it to lead")
                daemon.send_signal(signal.SIGTERM)
                daemon.stdout.read()
                assert daemon.wait(180) == 0
                assert zk.children(node_paths.ELECTION) == []
            finally:
                daemon.kill()


def test_a_log_that_no_release_wrote_is_refused(zk: ZooKeeperSession, quick: Settings) -> None:
    """A coordinator ends with an error that says so; it does not try again and again."""
    _log_of_format(zk, 1)
    with pytest.raises(Exception, match="format 1") as caught, coordinator(quick) as running:  # noqa: PT012
        until(lambda: not zk.children(node_paths.ELECTION) and zk.read(node_paths.EPOCH), what="it to give up")
        running.stop()
    assert caught.value.code == "SX-LOG-FORMAT"


def test_a_coordinator_does_not_lead_a_deployment_of_a_newer_release(zk: ZooKeeperSession, quick: Settings) -> None:
    """It says so, raises no epoch, and does not stand in the way of others; it goes on running."""
    _log_of_format(zk, 99)
    with structlog.testing.capture_logs() as said, coordinator(quick) as running:
        until(lambda: any(line["event"] == "cannot_lead" for line in said), what="it to say that it cannot lead")
        until(lambda: not zk.children(node_paths.ELECTION), what="it to leave the election")
        assert not zk.read(node_paths.EPOCH)
        running.stop()
    assert {line["code"] for line in said if line["event"] == "cannot_lead"} == {"SX-VERSION-COORDINATOR"}


def _log_of_format(zk: ZooKeeperSession, version: int) -> None:
    zk.commit(
        [
            Create(node_paths.log_bucket(1)),
            Create(node_paths.log_batch(1), b'{"format":%d,"event":{"kind":"new"}}' % version),
            Set(node_paths.CHECKPOINT, b"1"),
        ]
    )
