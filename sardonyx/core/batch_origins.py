"""From which messages a batch was made, as the messages say that it has written. Pure.

In a job that keeps its lineage, each block, each entry of a listing of files and each change of a state says which offsets the
batch has read that wrote it. So the way of a record is found from link to link: the block that holds it was read by the batch
whose messages name its offset. Batches of one partition follow each other, so in each partition that a task writes, the offsets
that messages name of one partition rise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

LONGEST = 1_500
"""Bytes of the text. Of a batch that has read so many partitions that it would be longer, nothing is said."""


class Span(NamedTuple):
    """What a batch has read of one partition: from ``start`` up to before ``end``."""

    partition: int
    start: int
    end: int


class Origin(NamedTuple):
    """What a batch was made from."""

    rows: int
    """How many rows it has read."""
    by: str
    """Who worked it: the peer, the number of its assignment and its slot, with a ``/`` between."""
    spans: Mapping[str, Sequence[Span]]
    """By link, the offsets that it has read."""

    def span(self, links: Iterable[str], partition: int) -> Span | None:
        """What was read of one partition of one of these links."""
        return next((span for link in links for span in self.spans.get(link, ()) if span.partition == partition), None)


def encode(origin: Origin) -> bytes | None:
    """The origin as text, such as ``20 h1-0/812/0 hits.per-user:3:120-480,5:77-90``; None: it would be too long."""
    links = (
        f"{link}:{','.join(f'{span.partition}:{span.start}-{span.end}' for span in spans)}"
        for link, spans in origin.spans.items()
    )
    text = " ".join([str(origin.rows), origin.by, *links]).encode()
    return text if len(text) <= LONGEST else None


def decode(text: bytes | None) -> Origin | None:
    """The reverse of :func:`encode`; None: it says nothing, or a newer release wrote it."""
    if text is None:
        return None
    try:
        rows, by, *links = text.decode().split(" ")
        found = {}
        for each in links:
            link, _, spans = each.partition(":")
            found[link] = [_span(span) for span in spans.split(",")]
        return Origin(int(rows), by, found)
    except ValueError:
        return None


def _span(text: str) -> Span:
    partition, _, offsets = text.partition(":")
    start, _, end = offsets.partition("-")
    return Span(int(partition), int(start), int(end))


__all__ = ["LONGEST", "Origin", "Span", "decode", "encode"]
