"""Fixtures for pytest. A ``conftest.py`` loads them: ``pytest_plugins = ["sardonyx.testing.plugin"]``.

It is quick to import: each fixture imports what it needs when a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sardonyx.testing.clocked import ClockedRun
    from sardonyx.testing.cluster import Addresses, Cluster
    from sardonyx.testing.local import AnyJob
    from sardonyx.testing.result import JobResult

ZOOKEEPER, KAFKA = "SARDONYX_TEST_ZOOKEEPER", "SARDONYX_TEST_KAFKA"
SERVERS = "SARDONYX_TEST_CLUSTER"
PEERS = 2


@pytest.fixture(scope="session")
def sardonyx_job() -> Callable[..., JobResult]:
    """:func:`sardonyx.testing.run_job`: run a job on rows, in this process."""
    from sardonyx.testing import run_job

    return run_job


@pytest.fixture
def sardonyx_clocked() -> Iterator[Callable[..., ClockedRun]]:
    """Begins a job that the test leads step by step, in this process: see :class:`sardonyx.testing.ClockedRun`."""
    from sardonyx.testing import ClockedRun

    with ExitStack() as runs:

        def begin(job: AnyJob, **options: Any) -> ClockedRun:
            run = ClockedRun(job, **options)
            runs.callback(run.close)
            return run

        yield begin


@pytest.fixture(scope="session")
def sardonyx_services() -> Iterator[Addresses]:
    """Real ZooKeeper and Kafka for the whole session: embedded ones, which let only the user in who runs the tests.

    ``SARDONYX_TEST_ZOOKEEPER`` and ``SARDONYX_TEST_KAFKA`` name others to use; both or neither. ``SARDONYX_TEST_CLUSTER=3``
    starts three servers of each kind.
    """
    with services() as found:
        yield found


@contextmanager
def services(*, private: bool = True) -> Iterator[Addresses]:
    """What :func:`sardonyx_services` gives. Without ``private`` the services that it starts let every user of the machine in."""
    from sardonyx.dev.services import embedded_services
    from sardonyx.testing.cluster import Addresses

    zookeeper, kafka = os.environ.get(ZOOKEEPER), os.environ.get(KAFKA)
    if zookeeper and kafka:
        yield Addresses(zookeeper, kafka)
        return
    if zookeeper or kafka:
        pytest.fail(f"set both {ZOOKEEPER} and {KAFKA}, or none", pytrace=False)
    with embedded_services(servers=int(os.environ.get(SERVERS) or 1), private=private) as started:
        yield Addresses(started.zookeeper, started.kafka, started.login)


@pytest.fixture(scope="session")
def sardonyx_cluster(sardonyx_services: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A coordinator and two virtual peers on them, for the whole session."""
    from sardonyx.testing import Cluster

    with Cluster(sardonyx_services, tmp_path_factory.mktemp("sardonyx")) as cluster:
        cluster.peers(PEERS)
        yield cluster


@pytest.fixture
def sardonyx_clusters(sardonyx_services: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Cluster]:
    """Makes clusters of the test's own on the same services, without peers yet: for faults, or other settings.

    Each is to be used in a ``with``; arguments are settings, as for :class:`sardonyx.testing.Cluster`.
    """
    from sardonyx.testing import Cluster

    def make(**settings: object) -> Cluster:
        return Cluster(sardonyx_services, tmp_path_factory.mktemp("sardonyx"), settings)

    return make
