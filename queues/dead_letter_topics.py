"""The topics that hold dead letters: looked into, and removed when their job is forgotten."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import structlog

from queues import admin
from queues.dead_letters import left_by
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()


def stable_end(settings: Settings, topic: str) -> int:
    """The offset behind everything that is decided: open transactions and what stands behind them is not counted.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """
    return admin.ends(settings, topic)[0]


def read(settings: Settings, topic: str, start: int = 0, end: int | None = None) -> Iterator[Any]:
    """The committed messages of a topic of dead letters from one offset up to another, or up to its stable end.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, it did not get there in time.
    """
    last = stable_end(settings, topic) if end is None else end
    return admin.read_messages(settings, topic, start, last)


def forget(settings: Settings, jobs: Collection[str]) -> None:
    """Remove what jobs that were forgotten have left: topics and groups named after them.

    Raises:
        SetupError: Kafka is away or refuses; some may be gone already.
    """
    topics = left_by(jobs, settings.deployment, admin.topics(settings))
    groups = left_by(jobs, settings.deployment, admin.groups(settings))
    if groups:
        admin.delete_groups(settings, groups)
    if topics:
        admin.delete_topics(settings, topics)
        log.info("dead_letter_topics_removed", topics=topics)
