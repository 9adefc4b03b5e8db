"""Whether a topic is still the one that a job has read: topics keep their names, and get another id, when they are deleted and
created again. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.core.errors import InputError
from sardonyx.core.graph import Graph

_MADE_ANEW = "The topic was deleted and created again, so the positions say nothing about it."


def other_topics(known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The topics that have another id now than the one that is known of them. Where an id is missing, nothing is known."""
    return {topic for topic, was in known.items() if now.get(topic, was) != was}


def ids_after(known: Mapping[str, str], now: Mapping[str, str], before: Graph, after: Graph) -> dict[str, str]:
    """The ids of the topics that a changed job reads: of those that it has read, the ones that it knew.

    Args:
        known: by topic, before the change.
        now: as Kafka tells them.
        before: the graph of the job.
        after: that of its next version.
    """
    was, reads = ({link.topic for link in graph.links if link.kind == "input"} for graph in (before, after))
    found = {topic: known.get(topic) if topic in was else now.get(topic) for topic in sorted(reads)}
    return {topic: each for topic, each in found.items() if each is not None}


def recreated(topic: str, reader: str, fix: str, where: Mapping[str, str]) -> InputError:
    """The error for a topic with another id than the one that was read.

    Args:
        topic: its name.
        reader: who has read the former one.
        fix: what to do.
        where: what the error is about.
    """
    message = f"Topic {topic} is not the one that {reader} has read: its id is another one."
    return InputError("SX-INPUT-RECREATED", message, cause=_MADE_ANEW, fix=fix, where={**where})


def fewer_partitions(topic: str, now: int, reader: str, read: int, fix: str, where: Mapping[str, str]) -> InputError:
    """The error for a topic that has fewer partitions than were read, where no id says that it is another one."""
    message = f"Topic {topic} has {now} partitions, and {reader} has read {read}."
    return InputError("SX-RESUME-TOPIC", message, cause=_MADE_ANEW, fix=fix, where={**where})


__all__ = ["fewer_partitions", "ids_after", "other_topics", "recreated"]
