"""Read the topics that hold dead letters, and delete them when their job is forgotten."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import Any

import structlog

from queues import admin, topic_log
from queues.dead_letters import left_by
from sardonyx.core.graph import Graph
from sardonyx.runtime.settings import Settings

log = structlog.get_logger()


def stable_end(settings: Settings, topic: str) -> int:
    """Return the last stable offset of a topic: the position of the first open transaction, or the end if none is open.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """
    return topic_log.ends(settings, topic)[0]


def read(settings: Settings, topic: str, start: int = 0, end: int | None = None) -> Iterator[Any]:
    """Yield the committed messages of a topic of dead letters in [start, end). ``end`` defaults to the stable end.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, reading did not reach ``end`` in time.
    """
    last = stable_end(settings, topic) if end is None else end
    return topic_log.read_messages(settings, topic, start, last)


def letters_left(settings: Settings, graph: Graph, known: Container[str]) -> dict[str, int]:
    """Count the dead letters of an ended job's tasks.

    Args:
        settings: connection to Kafka.
        graph: the job's graph.
        known: tasks to leave out, since their final counts are known.

    Returns:
        The number of committed letters by task; only tasks that have any.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``.
    """
    topics = {link.source: link.topic for link in graph.links if link.kind == "dead" and link.source not in known}
    exist = admin.topics(settings) if topics else {}
    found = {task: sum(1 for _ in read(settings, topic)) for task, topic in topics.items() if topic in exist}
    return {task: letters for task, letters in found.items() if letters}


def forget(settings: Settings, jobs: Collection[str]) -> None:
    """Delete the topics and groups of forgotten jobs, which it finds by their names. One that cannot be deleted keeps no other.

    Raises:
        SetupError: Kafka is unreachable or refuses. It may have deleted some of them already.
    """
    topics = left_by(jobs, settings.deployment, admin.topics(settings))
    groups = left_by(jobs, settings.deployment, admin.groups(settings))
    try:
        if groups:
            admin.delete_groups(settings, groups)
    finally:
        if topics:
            admin.delete_topics(settings, topics)
            log.info("dead_letter_topics_removed", topics=topics)
