"""What a broker says that stood still while another one took its place."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from queues import topic_log, topics
from queues.confirmed_end import confirmed_end, read_all
from sardonyx.dev.services import embedded_services
from sardonyx.runtime.settings import Settings
from tests.services.test_embedded import settings_for
from tests.waiting import until

TOPIC = "listed"


def write(settings: Settings, *values: bytes) -> None:
    producer = Producer({**settings.kafka.client(), "acks": "all", "enable.idempotence": True})
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    until(lambda: producer.flush(1) == 0, what="the records to be acknowledged")


def test_what_a_replaced_leader_does_not_know_is_not_missed(tmp_path: Path) -> None:
    """A broker that wakes up answers as if it still led: it tells an end of before.

    A confirmed end is never such a one, whether it was asked for before the broker woke up or just after. And a client that knows
    the old leader comes to ask the new one.
    """
    with embedded_services(tmp_path / "cluster", servers=3) as services, ThreadPoolExecutor(8) as pool:
        settings = settings_for(services)
        topics.create(settings, TOPIC, 1)
        write(settings, b"before")
        assert read_all(settings, TOPIC) == [b"before"]
        until(lambda: topic_log.ends(settings, TOPIC)[0] >= 3, what="a record, and the end of an aborted one")
        # The only broker that this client is connected to may be the one that stands still. It leaves it after three seconds, not
        # after the minute that is Kafka's default.
        admin = AdminClient({**settings.kafka.client(), "socket.timeout.ms": 3000})

        def leader() -> int:
            try:
                return admin.list_topics(timeout=3).topics[TOPIC].partitions[0].leader
            except KafkaException:  # the client asked the broker that stands still
                return -1

        first = until(lambda: leader() + 1, what="the leader to be known") - 1
        pid = services.pids[f"kafka{first}"]
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: leader() not in (first, -1), what="another leader")
            write(settings, b"meanwhile")
            waiting = [pool.submit(confirmed_end, settings, TOPIC) for _ in range(2)]
        finally:
            os.kill(pid, signal.SIGCONT)
        waiting += [pool.submit(confirmed_end, settings, TOPIC) for _ in range(4)]
        assert min(each.result() for each in waiting) >= 4
        assert read_all(settings, TOPIC) == [b"before", b"meanwhile"]
        until(lambda: topic_log.ends(settings, TOPIC)[1] >= 4, what="the end that the new leader tells")
