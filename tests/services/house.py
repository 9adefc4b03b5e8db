"""One coordinator and one peer daemon for many tests, and the real command called against them."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner, Result

from queues.awaited_topics import await_topics
from queues.client import BEGINNING
from sardonyx.cli.app import app
from sardonyx.client.client import Client, JobHandle
from sardonyx.client.views import JobView
from sardonyx.runtime.settings import Settings, load_settings
from tests.services.crew import Crew
from tests.waiting import until

PEERS = 4


class House:
    """A deployment with a coordinator and four virtual peers.

    Args:
        settings: of the deployment.
        crew: its processes.
    """

    def __init__(self, settings: Settings, crew: Crew) -> None:
        self.settings = settings
        self.crew = crew

    @property
    def client(self) -> Client:
        return self.crew.client

    def call(self, *arguments: str) -> Result:
        """The command, with the addresses of the house in its environment."""
        return called(*arguments, env=self.settings.environment())

    def submit(self, folder: Path, text: str) -> JobHandle:
        """Write ``job.py`` into a folder and hand it in."""
        return self.client.submit(written(folder, text))

    def completed(self, handle: JobHandle, timeout: float = 300) -> JobView:
        return self.crew.completed(handle, timeout)

    def clear(self) -> None:
        """End every job that still runs, and wait until its peers are free."""
        running = [self.client.job(view.id) for view in self.client.jobs() if not view.ended]
        for handle in running:
            handle.kill()
        for handle in running:
            self.crew.until(lambda handle=handle: handle.status().ended, f"the end of {handle.id}")

    def make_topic(self, name: str, **config: str) -> str:
        """A topic of two partitions that is this house's alone; gives its full name."""
        return self.make_named(f"{self.settings.deployment}-{name}", **config)

    def make_named(self, topic: str, **config: str) -> str:
        """The same, under this very name."""
        new = NewTopic(topic, num_partitions=2, config=config)
        admin = AdminClient({**self.settings.kafka.client(), "log_level": 0})
        for future in admin.create_topics([new]).values():
            future.result(60)
        await_topics(admin, self.settings, [topic])
        return topic

    def forget(self, topic: str) -> None:
        """Remove a topic, if it is there from another run."""
        admin = AdminClient({**self.settings.kafka.client(), "log_level": 0})
        for future in admin.delete_topics([topic]).values():
            with contextlib.suppress(KafkaException):
                future.result(60)
        until(lambda: topic not in admin.list_topics(timeout=60).topics, what="the topic to be gone")

    def fill(self, topic: str, *values: bytes) -> None:
        """Records into a topic, in turn over its two partitions."""
        for partition in (0, 1):
            self.put(topic, partition, *values[partition::2])

    def put(self, topic: str, partition: int, *values: bytes) -> None:
        """Records into one partition of a topic."""
        producer = Producer({**self.settings.kafka.client(), "log_level": 0, "enable.idempotence": True})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(120) == 0

    def records(self, topic: str) -> list[Any]:
        """The JSON records of a topic that are committed, in no order."""
        settings = {"group.id": "nobody", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        settings |= {"enable.partition.eof": True}
        consumer = Consumer({**self.settings.kafka.client(), **settings})
        try:
            partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, BEGINNING) for number in partitions])
            found: list[Any] = []
            ended: set[int] = set()
            while len(ended) < len(partitions):
                message = consumer.poll(60)
                assert message is not None, f"{topic} cannot be read to its end"
                error = message.error()
                if error is None:
                    found.append(json.loads(message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:  # of one to which a job writes it comes again and again
                    ended.add(message.partition())
                else:
                    assert error.retriable(), error
            return found
        finally:
            consumer.close()


@contextmanager
def house_of(zookeeper: str, kafka: str, folder: Path) -> Iterator[House]:
    """A house on these services, up when the block begins and gone when it ends."""
    settings = load_settings(
        deployment=f"h{uuid.uuid4().hex[:10]}", zookeeper={"hosts": zookeeper}, kafka={"bootstrap_servers": kafka}
    )
    with Crew(settings, folder) as crew:
        crew.coordinator()
        crew.peers(PEERS)
        yield House(settings, crew)


def written(folder: Path, text: str, name: str = "job.py") -> str:
    """A spec in a folder; gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return str(path)


def called(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """The command as a user calls it, within this process: its exit code, its stdout, its stderr."""
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        return CliRunner().invoke(app, list(arguments), env=env)
    finally:
        structlog.reset_defaults()  # it logged to the runner's streams, which are closed by now
        logging.root.handlers[:], logging.root.level = handlers, level


def told(result: Result, code: str, *patterns: str, exit_code: int = 1) -> None:
    """Assert that it ended with this exit code and one clear error: its code, its cause or traceback, and what to do."""
    said = f"exit code {result.exit_code}\n{result.stdout}\n{result.stderr}"
    assert re.findall(r"^(SX-[A-Z-]+):", result.stderr, re.MULTILINE) == [code], said
    assert result.exit_code == exit_code, said
    assert "  fix:   " in result.stderr, said
    assert "  cause: " in result.stderr or "Traceback" in result.stderr, said
    for pattern in patterns:
        assert re.search(pattern, result.stderr), said
