"""A look into a link of a job: rows around the position of the task that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sardonyx.client.links import facts_of
from sardonyx.client.views import laid_out
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import ENDED
from sardonyx.core.graph import Graph, Link, LinkKind
from sardonyx.core.notes import JobNote
from sardonyx.core.spec import JobSpec
from sardonyx.core.text import near

if TYPE_CHECKING:
    from queues.peek import Around, Begin
    from queues.shown_rows import Row
    from sardonyx.runtime.settings import Settings
    from sardonyx.zookeeper.session import ZooKeeperSession

PARTITIONS = 32
"""Partitions that are looked at, if none is named."""
LARGEST = 1_000
"""Rows of a partition that can be asked for."""


class PeekedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a link, or one record of a topic."""

    offset: int
    row: int | None = None
    """Its number within a message that holds several."""
    at: float | None = None
    """When it was written, seconds since 1970."""
    by: str | None = None
    """The peer that wrote it; None on a topic that others write."""
    key: str | None = None
    """The record's key, on a topic of yours."""
    record: Any = None
    """The row; long texts and lists are cut. A record of a topic of yours is not decoded: JSON, text, or bytes in hexadecimal."""
    read: bool | None = None
    """Whether the task that reads the link has processed it; None: no task does."""


class PeekedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one partition."""

    number: int
    first: int
    """The oldest offset that is left."""
    end: int
    """The offset after the newest one that is committed."""
    position: int | None = None
    """The next offset that its reader reads; None: no task reads it, or the reader has committed nothing yet."""
    rows: list[PeekedRow]
    cut: bool = False
    """There may be more rows near by: a limit of time or bytes was reached."""


class Peek(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a link, around its reader's position or before its end. Ends of transactions take offsets, too."""

    job: str
    link: str
    kind: LinkKind
    topic: str
    writer: str
    reader: str | None
    """The task that reads it; None: it leads out of the job."""
    partitions: list[PeekedPartition]
    more: int = 0
    """Partitions that were left out."""


def peek(
    zk: ZooKeeperSession,
    settings: Settings,
    job: str,
    spec: JobSpec,
    note: JobNote | None,
    name: str,
    *,
    most: int,
    partition: int | None = None,
    begin: Begin = "position",
) -> Peek:
    """Look into a link.

    Args:
        zk: a session with the job's deployment.
        settings: of the deployment; its Kafka is read.
        job: the job's id.
        spec: the job as data.
        note: its status; None while no coordinator has taken it in.
        name: of the link.
        most: rows of a partition at most.
        partition: only this one.
        begin: around the reader's position, or the last rows.

    Raises:
        SardonyxError: ``SX-PEEK-LINK``: the job has no such link, or the link no such partition; ``SX-PEEK-GONE``: the links of
            the job do not exist yet, or no more.
        SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``, ``SX-KAFKA-DENIED``.
    """
    graph = laid_out(spec, settings.deployment, job)
    link = _link(graph, job, name)
    facts = facts_of(zk, job) or {}
    settings.require("kafka")
    from queues import admin
    from queues.peek import around

    numbers = admin.topics(settings).get(link.topic, [])
    if name not in facts or not numbers:
        raise _gone(job, link, note)
    if partition is not None:
        if partition not in numbers:
            raise _no_partition(job, name, partition, len(numbers))
        numbers = [partition]
    chosen = numbers[:PARTITIONS]
    stage = next((stage for stage in graph.stages if any(each.name == name for each in stage.ingress)), None)
    group = None if stage is None else stage.group(settings.deployment, job)
    found = around(settings, link, facts[name], chosen, min(max(most, 1), LARGEST), group=group, begin=begin)
    return Peek(
        job=job,
        link=name,
        kind=link.kind,
        topic=link.topic,
        writer=link.source,
        reader=None if stage is None else stage.name,
        partitions=[_told(number, each, reads=stage is not None) for number, each in found.items()],
        more=len(numbers) - len(chosen),
    )


def _told(number: int, found: Around, *, reads: bool) -> PeekedPartition:
    def told(row: Row) -> PeekedRow:
        read = (found.position is not None and row.offset < found.position) if reads else None
        return PeekedRow(
            offset=row.offset, row=row.row, at=row.at, by=row.by, key=row.key, record=row.record, read=read
        )

    return PeekedPartition(
        number=number,
        first=found.first,
        end=found.end,
        position=found.position,
        rows=[told(row) for row in (*found.before, *found.after)],
        cut=found.cut,
    )


def _link(graph: Graph, job: str, name: str) -> Link:
    known = {link.name: link for link in graph.links if link.kind in ("input", "internal", "splits", "output")}
    if name not in known:
        raise SardonyxError(
            "SX-PEEK-LINK",
            f"job {job} has no link {name!r}{near(name, known)}",
            cause=f"its links are {', '.join(known)}" if known else "it has no links",
            fix=f"name one of them; `sardonyx link lag {job}` lists those that tasks read",
            where={"job": job},
        )
    return known[name]


def _no_partition(job: str, name: str, partition: int, count: int) -> SardonyxError:
    return SardonyxError(
        "SX-PEEK-LINK",
        f"link {name} of job {job} has no partition {partition}",
        cause=f"it has partitions 0 to {count - 1}",
        fix="name one of them, or leave --partition out",
        where={"job": job},
    )


def _gone(job: str, link: Link, note: JobNote | None) -> SardonyxError:
    ended = note is not None and note.status in ENDED
    state = "not taken in yet" if note is None else note.status
    return SardonyxError(
        "SX-PEEK-GONE",
        f"link {link.name} of job {job} cannot be looked into",
        cause=f"the job is {state}: its links {'are deleted' if ended else 'do not exist yet'}",
        fix="look while the job runs; its inputs and outputs are topics that any client of Kafka can read",
        where={"job": job, "topic": link.topic},
    )
