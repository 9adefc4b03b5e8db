"""What a batch writes says from which offsets the batch was made, if the job keeps its lineage. Pure.

See :mod:`sardonyx.core.batch_origins`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from queues.messages import FROM_HEADER, Outgoing, Records
from sardonyx.core.batch_origins import Origin, Span, encode, writer_of
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import LinkKind, Stage

if TYPE_CHECKING:
    from peer.prepared_task import PreparedTask
    from queues.batch import Batch

_SAYING: frozenset[LinkKind] = frozenset({"internal", "parts", "state"})
"""On links of these kinds messages say what their batch was made from. Dead letters name their message."""


def worked_by(work: PreparedTask) -> str:
    """Who works the batches of a task, as an origin says it."""
    return f"{work.peer}/{work.assignment.id}/{work.assignment.slot}"


def origin_of(
    stage: Stage,
    batch: Batch,
    facts: Mapping[str, LinkFacts],
    rows: int,
    by: str,
    since: Mapping[int, Sequence[int]] | None = None,
) -> Origin:
    """What a batch was made from.

    Args:
        stage: the task.
        batch: as it was read.
        facts: of the links that it reads.
        rows: how many it has read.
        by: who works it, as an origin says it.
        since: for results of rows that were held: by partition number and link from which offset on these came, 0 for links that
            are missing. Of a number that is missing, the shard held none.
    """
    spans: dict[str, list[Span]] = {}
    for number, link in enumerate(stage.ingress):
        start = facts[link.name].start or ()
        for place, position in batch.positions.items():
            if place.topic == link.topic:
                first = start[place.number] if place.number < len(start) else 0
                began = batch.started.get(place)
                began = first if began is None else began
                if since is not None:
                    held = since.get(place.number)
                    first = began if held is None else min(began, *held[number : number + 1] or [0])
                    spans.setdefault(link.name, []).append(Span(place.number, began, position.offset, first))
                elif began < position.offset:
                    spans.setdefault(link.name, []).append(Span(place.number, began, position.offset))
    return Origin(rows, by, spans)


def saying(
    messages: Sequence[Outgoing | Records], stage: Stage, origin: Origin, job: str, results: Origin | None = None
) -> list[Outgoing | Records]:
    """The messages of a batch, which say what the batch was made from. They are as they were if that would be too long.

    Args:
        messages: what the batch writes.
        stage: the task.
        origin: what the batch was made from.
        job: its id.
        results: what its results were made from; None: the same.
    """
    made = encode(results or origin)
    texts = {link.topic: made for link in stage.egress if link.kind in _SAYING}
    texts |= {link.topic: encode(origin) for link in stage.egress if link.kind == "state"}
    told = {link.topic for link in stage.egress if link.says_its_batch}
    outside = encode(results or origin, writer_of(job, stage.name)) if told else None

    def said(message: Outgoing | Records) -> bytes | None:
        if isinstance(message, Records):
            return outside if message.topic in told else None
        return None if message.value is None else texts.get(message.topic)

    return [
        message
        if (found := said(message)) is None
        else message._replace(headers=[*(message.headers or ()), (FROM_HEADER, found)])
        for message in messages
    ]


__all__ = ["origin_of", "saying", "worked_by"]
