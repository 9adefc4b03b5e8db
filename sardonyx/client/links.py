"""The links of a job: whether they stand, and the facts about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import msgspec

from sardonyx.core import node_paths
from sardonyx.core.events import ENDED, LinkFacts
from sardonyx.core.notes import JobNote, LinksNote

if TYPE_CHECKING:
    from sardonyx.zookeeper.session import ZooKeeperSession


def links_stand(note: JobNote | None) -> TypeGuard[JobNote]:
    """Whether the topics of a job's links exist: a coordinator has made them, and the job has not ended.

    Args:
        note: the status of the job; None while no coordinator has taken it in.
    """
    return note is not None and note.links == "made" and note.status not in ENDED


def facts_of(zk: ZooKeeperSession, job: str) -> dict[str, LinkFacts] | None:
    """The facts about the links of a job, by name; None: they are not made yet, or are gone."""
    links = links_of(zk, job)
    return None if links is None else links.links


def facts_that_stand(zk: ZooKeeperSession, job: str, note: JobNote | None) -> dict[str, LinkFacts] | None:
    """The facts about the links of a job, by name, if their topics exist: see :func:`links_stand`."""
    return facts_of(zk, job) if links_stand(note) else None


def links_of(zk: ZooKeeperSession, job: str) -> LinksNote | None:
    """What is known of the links of a job; None: they are not made yet, or are gone."""
    data = zk.read(node_paths.job_links(job))
    return None if data is None else msgspec.json.decode(data, type=LinksNote)


__all__ = ["facts_of", "facts_that_stand", "links_of", "links_stand"]
