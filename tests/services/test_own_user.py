"""What ``dev``, ``run`` and the fixtures for tests start: only the user who started it gets in."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from queues.connectivity import reach_kafka
from sardonyx import Job, generator, kafka
from sardonyx.core import node_paths
from sardonyx.core.errors import SardonyxError
from sardonyx.dev.services import Services, embedded_services
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.testing import Addresses, Cluster, plugin
from sardonyx.zookeeper.session import ZooKeeperSession


def settings_of(services: Services | Addresses, **more: Any) -> Settings:
    addresses = {"zookeeper.hosts": services.zookeeper, "kafka.bootstrap_servers": services.kafka}
    return load_settings(**{**addresses, "kafka.connect_timeout": 3, **more})


def looks(settings: Settings) -> list[str]:
    with contextlib.closing(ZooKeeperSession.connect(settings, make_top=False)) as zk:
        return zk.children("")


def code_of(call: Callable[[Settings], Any], settings: Settings) -> str:
    with pytest.raises(SardonyxError) as caught:
        call(settings)
    return caught.value.code


def with_a_wrong_password(login: Mapping[str, str]) -> dict[str, str]:
    secret = ("zookeeper.auth.digest", "kafka.sasl.password")
    return {key: value[:-1] + "?" if key in secret else value for key, value in login.items()}


def test_what_a_test_of_a_user_starts_lets_only_its_own_user_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job runs on it as before, topics are filled and read; another user of the machine gets no further, and no message of
    pytest shows the password.
    """
    for name in (plugin.ZOOKEEPER, plugin.KAFKA):  # or it would be given those that all tests share
        monkeypatch.delenv(name, raising=False)
    with plugin.services() as services, Cluster(services, tmp_path) as cluster:
        stranger = settings_of(services)
        assert code_of(ZooKeeperSession.connect, stranger) == "SX-ZOOKEEPER-DENIED"
        assert code_of(reach_kafka, stranger).startswith("SX-KAFKA-")
        assert services.login["kafka.sasl.password"] not in f"{services} {services!r}"
        cluster.peers(1)
        results = cluster.topic("results")
        job = Job("own")
        job.output("write", kafka(results), after=job.input("read", generator(100)))
        cluster.run(job, timeout="6 min")
        assert len(cluster.records(results)) == 100
        with contextlib.closing(ZooKeeperSession.connect(cluster.settings)) as zk:
            assert zk.read(node_paths.EPOCH) is not None
        seen = stranger.model_copy(update={"deployment": cluster.settings.deployment})
        assert code_of(looks, seen) == "SX-ZOOKEEPER-DENIED"


def test_only_the_own_user_is_let_in(tmp_path: Path) -> None:
    """Another user of the machine, with no password or with a wrong one, reads and makes nothing in ZooKeeper, and gets no answer
    from Kafka. The password lies with the data, for the owner alone, and is the same the next time.
    """
    folder = tmp_path / "kept"
    for _ in range(2):
        with embedded_services(folder, private=True) as services:
            own = settings_of(services, **services.login)
            with contextlib.closing(ZooKeeperSession.connect(own)) as zk:
                assert "inbox" in zk.children("")
            reach_kafka(own)
            assert services.login["kafka.sasl.password"] not in repr(services)
            without, mistaken = settings_of(services), settings_of(services, **with_a_wrong_password(services.login))
            for stranger in (without, mistaken):
                assert code_of(looks, stranger) == "SX-ZOOKEEPER-DENIED"
                another = stranger.model_copy(update={"deployment": "another"})
                assert code_of(ZooKeeperSession.connect, another) == "SX-ZOOKEEPER-DENIED"
            assert code_of(reach_kafka, mistaken) == "SX-KAFKA-DENIED"
            assert code_of(reach_kafka, without).startswith("SX-KAFKA-")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "own-user").stat().st_mode) == 0o600
