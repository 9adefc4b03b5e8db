"""Positions of tasks without peers do not expire, however soon Kafka drops those of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from queues import admin
from queues.renewal import Renewals
from sardonyx.core.positions import Partition
from sardonyx.dev import broker
from sardonyx.dev.services import embedded_services
from sardonyx.runtime.settings import Settings, load_settings
from tests.services.one_task import JOB, PARTITIONS, Task, batch_of, commit, work_off
from tests.waiting import until

KEPT = "offsets.retention.minutes=1\noffsets.retention.check.interval.ms=500\n"
"""The least that a broker takes."""


@pytest.fixture
def forgetful() -> Iterator[Settings]:
    """A broker that drops positions a minute after the last member of their group has left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "_BROKER", broker._BROKER.replace("offsets.retention.minutes=525600\n", KEPT))
        with embedded_services() as found:
            yield load_settings(
                zookeeper={"hosts": found.zookeeper}, kafka={"bootstrap_servers": found.kafka}, deployment="forgetful"
            )


def committed(settings: Settings, group: str, topic: str) -> dict[Partition, int]:
    found = admin.positions(settings, group, [TopicPartition(topic, number) for number in range(PARTITIONS)])
    return {partition: position.offset for partition, position in found.items() if position is not None}


def test_positions_of_a_task_without_peers_outlive_those_of_other_groups(forgetful: Settings) -> None:
    """Two groups lose their members after they have committed. Kafka drops the positions of the one that is left alone. The
    other one is renewed, keeps its positions, and the next peer reads each of the other rows once.
    """
    task = Task(forgetful)
    task.create()
    task.feed(30, sentinel="s")
    reader, writer = task.reader(), task.writer()
    first = batch_of(reader, 12)
    commit(writer, reader, first, [])
    reader.close()
    group, alone = task.stage.group(forgetful.deployment, JOB), f"{forgetful.deployment}.left-alone"
    other = Consumer({**forgetful.kafka.client(), "group.id": alone, "enable.auto.commit": False})
    other.subscribe([task.topic])
    until(lambda: other.consume(1, 0.1) or other.assignment(), what="a member of the other group")
    other.commit(offsets=[TopicPartition(task.topic, number, 1) for number in range(PARTITIONS)], asynchronous=False)
    other.close()
    before = committed(forgetful, group, task.topic)
    assert before
    assert committed(forgetful, alone, task.topic)

    renewals, renewed = Renewals(forgetful, every=10.0), list[str]()

    def dropped() -> bool:
        renewed.extend(renewals.look(task.graph, JOB))
        return not committed(forgetful, alone, task.topic)

    until(dropped, what="the broker to drop the positions of the other group")
    assert set(renewed) == {"b"}, "a group that does not exist is not renewed"
    until(lambda: renewals.look(task.graph, JOB), what="one more renewal")
    assert committed(forgetful, group, task.topic) == before
    assert len(work_off(task, task.reader(), writer)) == 30 - 12
    task.close()
