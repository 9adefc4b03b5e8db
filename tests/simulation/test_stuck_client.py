"""A client of Kafka in which the requests about one group are stuck is given up, and the next attempt has another one."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

import queues.admin
import queues.admin_client
from queues.admin import delete_groups
from queues.admin_client import NEVER
from queues.renewal import Renewals
from sardonyx.core.errors import SetupError
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.settings import Settings, load_settings


class Admin:
    """A client whose broker died while it was the group's coordinator. A later one works."""

    made = 0
    brokers_answer = True

    def __init__(self, *_: Any, **__: Any) -> None:
        Admin.made += 1
        self.stuck = Admin.made == 1

    def delete_consumer_groups(self, groups: list[str], **_: Any) -> dict[str, Future[None]]:
        found: dict[str, Future[None]] = {group: Future() for group in groups}
        for future in found.values() if not self.stuck else ():
            future.set_result(None)
        return found

    def describe_consumer_groups(self, groups: list[str], **known: Any) -> dict[str, Future[Any]]:
        assert known["request_timeout"] == NEVER, (
            "one that the client gives up may end the process (librdkafka issue 4605)"
        )
        found: dict[str, Future[Any]] = {group: Future() for group in groups}
        for future in found.values() if not self.stuck else ():
            future.set_result(SimpleNamespace(state=ConsumerGroupState.STABLE))
        return found

    def list_topics(self, **_: Any) -> None:
        if not self.brokers_answer:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(queues.admin_client, "AdminClient", Admin)
    monkeypatch.setattr(queues.admin_client, "_renewed", {})
    monkeypatch.setattr(Admin, "made", 0)
    for module in (queues.admin, queues.admin_client):
        monkeypatch.setattr(module, "CALL", 0.01)
    queues.admin_client._client_for.cache_clear()
    return load_settings(**{"kafka.bootstrap_servers": "k:9092"})


def test_the_next_attempt_has_a_client_of_its_own(settings: Settings) -> None:
    """The first one says that no broker answered, and not that one refused."""
    with pytest.raises(SetupError) as caught:
        delete_groups(settings, ["g"])
    assert caught.value.code == "SX-KAFKA-UNREACHABLE"
    delete_groups(settings, ["g"])
    assert Admin.made == 2


def test_the_next_round_of_renewals_has_a_client_of_its_own(settings: Settings) -> None:
    """So the positions of a suspended job do not expire because a broker died once."""
    catalog = [
        TaskSpec(name="a", type="input", connector="kafka", options={"topic": "in"}),
        TaskSpec(name="b", type="function", fn="m:f"),
        TaskSpec(name="c", type="output", connector="blackhole"),
    ]
    graph = graph_of(JobSpec(name="q", workflow=[("a", "b"), ("b", "c")], catalog=catalog), "", "q-1")
    renewals = Renewals(settings)
    for _ in range(2):
        assert renewals.look(graph, "q-1") == []
    assert Admin.made == 2


def test_while_no_broker_answers_the_client_stays(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on by itself when they are back; one that is given up is never destroyed."""
    monkeypatch.setattr(Admin, "brokers_answer", False)
    for _ in range(2):
        with pytest.raises(SetupError):
            delete_groups(settings, ["g"])
    assert Admin.made == 1
