"""A service that cannot be reached: an unknown name, a refused connection and silence are three messages."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from queues import admin, topic_log, topics
from queues.connectivity import reach_kafka
from sardonyx.cli.app import app
from sardonyx.core.errors import SetupError
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.connectivity import reach_zookeeper
from sardonyx.zookeeper.session import ZooKeeperSession

WAIT = 0.4
"""Seconds that the clients wait."""


@pytest.fixture
def addresses() -> Iterator[dict[str, str]]:
    """An address of each kind, without a network: an impossible name, a closed port, and a socket that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closed:
        ports = silent.getsockname()[1], closed.getsockname()[1]
        closed.close()
        yield {
            "unresolvable": "kafka.invalid:9092",
            "refused": f"127.0.0.1:{ports[1]}",
            "silent": f"127.0.0.1:{ports[0]}",
        }


WORDS = {
    "unresolvable": "the host name is unknown",
    "refused": "the connection was refused",
    "silent": "did not answer",
}
FIXES = {"unresolvable": "Correct the host name in", "refused": "Start ", "silent": "Check that "}


def settings_of(address: str) -> Settings:
    return load_settings(
        zookeeper={"hosts": address, "connect_timeout": WAIT, "session_timeout": "1500 ms"},
        kafka={"bootstrap_servers": address, "connect_timeout": WAIT},
    )


CALLS: dict[str, Callable[[Settings], object]] = {
    "kafka": reach_kafka,
    "kafka-topics": admin.topics,
    "zookeeper": reach_zookeeper,
    "zookeeper-session": ZooKeeperSession.connect,
}


@pytest.mark.parametrize("reason", WORDS)
@pytest.mark.parametrize("call", CALLS)
def test_three_reasons_are_three_messages(call: str, reason: str, addresses: dict[str, str]) -> None:
    """The message names the address, the reason and the time that was really waited; the fix belongs to the reason."""
    began = time.monotonic()
    with pytest.raises(SetupError) as caught:
        CALLS[call](settings_of(addresses[reason]))
    took = time.monotonic() - began
    error = caught.value
    assert error.code == f"SX-{call.partition('-')[0].upper()}-UNREACHABLE"
    assert addresses[reason] in error.message
    assert WORDS[reason] in error.message
    assert error.fix.startswith(FIXES[reason])
    waited = re.search(r"waited (\d+\.\d) s", error.message)
    assert waited is not None
    assert WAIT - 0.1 <= float(waited[1]) <= took + 0.1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"kafka.fetch.wait.most.ms": 20}, 'No such configuration property: "fetch.wait.most.ms"'),
        ({"kafka.socket.timeout.ms": "soon"}, 'Invalid value for configuration property "socket.timeout.ms"'),
        ({"kafka.max.poll.interval.ms": 1000}, "Failed to create consumer: `max.poll.interval.ms`"),  # beside others
        ({"kafka.max.in.flight": 10}, "Failed to create producer: `max.in.flight`"),
        ({"kafka.sasl.mechanism": "NONE", "kafka.security.protocol": "SASL_PLAIN"}, 'Invalid value "SASL_PLAIN"'),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        reach_kafka,
        admin.topics,
        lambda settings: topics.create(settings, "orders", 1),
        lambda settings: topic_log.stable_end(settings, Partition("orders", 0)),
    ],
    ids=["reach", "list", "create", "ends"],
)
def test_a_setting_that_librdkafka_does_not_take_is_named(
    call: Callable[[Settings], object], setting: dict[str, Any], said: str, addresses: dict[str, str]
):
    """It is the same error wherever a client is made first, and not that Kafka did not answer. So are settings that it takes for
    clients of another kind, which a task would meet in the middle of its work.
    """
    settings = load_settings(**{"kafka.bootstrap_servers": addresses["refused"]}, **setting)
    with pytest.raises(SetupError, match=re.escape(said)) as caught:
        call(settings)
    assert caught.value.code == "SX-CONFIG-VALUE"


def test_dev_says_at_once_that_it_starts_no_services(addresses: dict[str, str]) -> None:
    """A user who has forgotten that addresses are set sees which, and where they stand, before anything else."""
    settings = settings_of(addresses["refused"])
    said = CliRunner().invoke(app, ["dev"], env=settings.environment())
    assert said.exit_code == 1
    assert said.stderr.startswith("starting no services, because their addresses are set: zookeeper.hosts = ")
    assert "(environment SARDONYX__ZOOKEEPER__HOSTS)" in said.stderr
    assert "SX-ZOOKEEPER-UNREACHABLE" in said.stderr


def test_the_address_that_came_furthest_is_told(addresses: dict[str, str]) -> None:
    """One broker of several that is there and silent matters more than another whose name is mistyped."""
    both = ",".join([addresses["unresolvable"], addresses["refused"]])
    with pytest.raises(SetupError, match="refused"):
        reach_kafka(settings_of(both))
    with pytest.raises(SetupError, match="did not answer"):
        reach_kafka(settings_of(f"{both},{addresses['silent']}"))
