"""From which messages a batch was made, as the messages say that it has written. Pure.

In a job that keeps its lineage, each block, each entry of a listing of files and each change of a state says which offsets the
batch has read that wrote it. A result of windows or a join is made of rows of earlier batches, too. It says from which offset on
the rows came that its shard held. So the way of a record is found from link to link: the block that holds it was read by the
batch whose messages name its offset. Batches of one partition follow each other, so in each partition that a task writes, the
offsets that messages name of one partition rise.

Records of users' topics say it only if the job has their output do so (``kafka(..., lineage=True)``). Other programs write to
such a topic, too, so there the text begins with the job and the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

LONGEST = 1_500
"""Bytes of the text. A batch that has read so many partitions that it would be longer has none."""


class Span(NamedTuple):
    """What a batch has read of one partition: from ``start`` up to before ``end``."""

    partition: int
    start: int
    end: int
    since: int | None = None
    """Of a result of windows or a join: it may be made of rows from here on, up to before ``end``. None: it is not one."""


class Origin(NamedTuple):
    """What a batch was made from."""

    rows: int
    """How many rows it has read."""
    by: str
    """Who worked it: the peer, the number of its assignment and its slot, with a ``/`` between."""
    spans: Mapping[str, Sequence[Span]]
    """By link, the offsets that it has read."""

    @property
    def own(self) -> Origin:
        """What the batch has read itself, without the rows that its shards held."""
        read = {
            link: [span._replace(since=None) for span in spans if span.start < span.end]
            for link, spans in self.spans.items()
        }
        return self._replace(spans={link: spans for link, spans in read.items() if spans})

    def span(self, links: Iterable[str], partition: int) -> Span | None:
        """What was read of one partition of one of these links."""
        return next((span for link in links for span in self.spans.get(link, ()) if span.partition == partition), None)


def writer_of(job: str, task: str) -> str:
    """Who has written a record of a user's topic: a job's id, and a task of it."""
    return f"{job}/{task}"


def encode(origin: Origin, writer: str = "") -> bytes | None:
    """The origin as text, such as ``20 h1-0/812/0 hits.per-user:3:120-480,5:77-90``; None: it would be too long. A result of
    windows says ``3:120-480<88``, if the rows that the shard held came from offset 88 on.

    Args:
        origin: of what a batch writes.
        writer: in a user's topic: as :func:`writer_of` says it, with which the text begins.
    """
    links = (f"{link}:{','.join(map(_span_text, spans))}" for link, spans in origin.spans.items())
    text = " ".join([*([writer] if writer else []), str(origin.rows), origin.by, *links]).encode()
    return text if len(text) <= LONGEST else None


def decode(text: bytes | None, writer: str = "") -> Origin | None:
    """The reverse of :func:`encode`; None: it says nothing, another writer or a newer release wrote it."""
    if text is None:
        return None
    try:
        first, *words = text.decode().split(" ")
        if writer and first != writer:
            return None
        rows, by, *links = words if writer else [first, *words]
        found = {}
        for each in links:
            link, _, spans = each.partition(":")
            found[link] = [_span(span) for span in spans.split(",")]
        return Origin(int(rows), by, found)
    except ValueError:
        return None


def _span_text(span: Span) -> str:
    text = f"{span.partition}:{span.start}-{span.end}"
    return text if span.since is None else f"{text}<{span.since}"


def _span(text: str) -> Span:
    partition, _, offsets = text.partition(":")
    read, _, since = offsets.partition("<")
    start, _, end = read.partition("-")
    return Span(int(partition), int(start), int(end), int(since) if since else None)


__all__ = ["LONGEST", "Origin", "Span", "decode", "encode", "writer_of"]
