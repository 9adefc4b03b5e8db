"""Asks, beside a task's work, how many rows are unread on the links that the task writes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from queues import committed
from queues.client import CLIENT_LOG, client_config
from queues.lost import ReaderLost
from sardonyx.core import link_counts
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.background import BackgroundThread
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()

EVERY = 0.5
"""Seconds from one question to the next, as long as a task wants to know. It is a request for each link, and another one."""

_PATIENCE = 10.0
"""Seconds that the broker has to answer."""


class UnreadRows:
    """Clients that never join their groups: of the task, and of each task that reads one of the links. They wait for no open
    transaction, and no thread waits for them: an answer counts until there is a later one.

    Args:
        settings: connection to Kafka.
        job: id of the job.
        writer: the task that writes the links.
        readers: by link, the task that reads it.
        facts: of the job's links.
    """

    def __init__(
        self,
        settings: Settings,
        job: str,
        writer: Stage,
        readers: Mapping[str, Stage],
        facts: Mapping[str, LinkFacts],
    ) -> None:
        self._settings = settings
        self._job = job
        self._writer = writer
        self._readers = readers
        self._facts = facts
        self._thread = BackgroundThread(f"unread-{writer.name}")
        self._clients: dict[str, Consumer] = {}
        self._places: dict[str, tuple[float, list[TopicPartition]]] = {}
        """By topic, until when this holds, and all its partitions, also those of queues that had more once: what was counted
        there counts.
        """
        self._asked: Future[Mapping[str, int | None] | None] | None = None
        self._asked_at = 0.0
        self._told: Mapping[str, int | None] = {}

    def latest(self) -> Mapping[str, int | None]:
        """By link, its unread rows as they were a moment ago; None, or no entry: not known. Asks again by itself."""
        if self._asked is not None and self._asked.done():
            found, self._asked = self._asked.result(), None
            self._told = self._told if found is None else found
        if self._asked is None and time.monotonic() - self._asked_at >= EVERY:
            self._asked_at = time.monotonic()
            self._asked = self._thread.submit(self._ask)
        return self._told

    def close(self) -> None:
        """Give the clients back, without waiting."""
        self._thread.submit(self._leave)
        self._thread.close()

    def _ask(self) -> Mapping[str, int | None] | None:
        """On the thread. Readers are asked before the writer, so that no row counts as read that does not count as written."""
        links = [link for link in self._writer.counted if link.name in self._readers]
        try:
            read = {
                link.name: link_counts.read(link, self._committed(self._readers[link.name], [link])) for link in links
            }
            wrote = self._committed(self._writer, self._writer.positioned)
        except ReaderLost as error:
            log.warning("unread_rows_not_answered", job=self._job, task=self._writer.name, error=str(error))
            return None
        found: dict[str, int | None] = {}
        for name, rows in read.items():
            written = link_counts.written(self._writer, name, wrote, self._facts)
            found[name] = None if written is None else max(written - rows, 0)
        return found

    def _committed(self, stage: Stage, links: Iterable[Link]) -> dict[Partition, Position | None]:
        group = stage.group(self._settings.deployment, self._job)
        client = self._clients.get(group)
        if client is None:
            config = {**client_config(self._settings), "group.id": group, "enable.auto.commit": False}
            client = Consumer({**config, "isolation.level": "read_uncommitted"}, logger=CLIENT_LOG)
            self._clients[group] = client
        places = [place for link in links for place in self._all_of(client, link)]
        found = committed.ask(client, places, _PATIENCE, _PATIENCE)
        if isinstance(found, KafkaError):
            raise ReaderLost(f"group {group}: {found}")
        return dict(found)

    def _all_of(self, client: Consumer, link: Link) -> list[TopicPartition]:
        until, places = self._places.get(link.topic, (-math.inf, []))
        now = time.monotonic()
        if now >= until:
            partitions = range(committed.partitions_of(client, link.topic, _PATIENCE))
            places = [TopicPartition(link.topic, number) for number in partitions]
            self._places[link.topic] = math.inf if link.owned else now + committed.LOOK, places
        return places

    def _leave(self) -> None:
        for client in self._clients.values():
            client.close()


__all__ = ["EVERY", "UnreadRows"]
