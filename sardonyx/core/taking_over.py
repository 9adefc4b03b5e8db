"""What a new revision of a job takes over from the one before, whose queues it changes: where tasks stand, and what they counted.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from sardonyx.core import link_counts
from sardonyx.core.changing import Rewiring
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Link, Stage, is_endless
from sardonyx.core.positions import Partition, Position


def offsets(
    stage: Stage, held: Mapping[Partition, Position | None], facts: Mapping[str, LinkFacts]
) -> dict[str, list[int | None]]:
    """Where a task stands in each topic that it reads, by partition, also in those that users have added to a topic without an
    end; None where it has committed nothing.
    """
    return {link.topic: _committed(link, held, facts[link.name]) for link in stage.ingress}


def _committed(link: Link, held: Mapping[Partition, Position | None], facts: LinkFacts) -> list[int | None]:
    """Of a topic without an end also in the partitions that users have added since the job was planned."""
    added = [each.number + 1 for each in held if each.topic == link.topic] if is_endless(link) else []
    found = [held.get(Partition(link.topic, number)) for number in range(max(facts.partitions, *added, 0))]
    return [None if position is None else position.offset for position in found]


def begun(
    new: Collection[Link],
    links: Mapping[str, LinkFacts],
    stages: Sequence[Stage],
    held: Mapping[str, Mapping[Partition, Position | None]],
    facts: Mapping[str, LinkFacts],
) -> dict[str, LinkFacts]:
    """The facts of links, with where a new reader of a topic begins that tasks of the job read already: where the hindmost of
    them stands. It ends where they do, and leaves out the rows that they leave out, as a checkpoint holds them: it may take the
    place of one of them.

    Args:
        new: the new links.
        links: the facts of all links, as the topics are now.
        stages: of the job so far.
        held: their positions.
        facts: the facts of the links so far.
    """
    found = dict(links)
    for link in new:
        beside = [
            (stage, other)
            for stage in stages
            for other in stage.ingress
            if link.kind == "input" and (other.topic, other.source) == (link.topic, link.source)
        ]
        if not beside:
            continue
        starts = [_next(other, held[stage.name], facts[other.name]) for stage, other in beside]
        size = found[link.name].partitions
        hindmost = [min(row) for row in zip_longest(*starts, fillvalue=0)]
        start = (hindmost + [0] * size)[:size]
        end = facts[beside[0][1].name].end
        if end is not None:  # nothing is read of partitions that were added to a topic with an end
            end = end + start[len(end) :]
        since = max((known for _, other in beside if (known := facts[other.name].since) is not None), default=None)
        found[link.name] = replace(found[link.name], start=start, end=end, since=since)
    return found


def carried(
    links: Mapping[str, LinkFacts],
    found: Rewiring,
    held: Mapping[str, Mapping[Partition, Position | None]],
    facts: Mapping[str, LinkFacts],
) -> dict[str, LinkFacts]:
    """The facts of links, with the rows that were written to them and that only positions on links count which go.

    Args:
        links: the facts of all links from now on.
        found: what changes.
        held: the positions of the tasks that stay and read or write other links.
        facts: the facts of the links so far.
    """
    result = {
        name: replace(known, carried=facts[name].carried) if name in facts else known for name, known in links.items()
    }
    gone = {link.name for link in found.gone}
    for stage in found.touched:
        for name, rows in link_counts.carried_over(stage, gone, held[stage.name], facts).items():
            if name in result:
                result[name] = replace(result[name], carried=rows)
    return result


def _next(link: Link, held: Mapping[Partition, Position | None], facts: LinkFacts) -> list[int]:
    """The next offset that a task reads in each partition of a topic."""
    starts = facts.start or [0] * facts.partitions
    return [
        first if offset is None else offset
        for first, offset in zip_longest(starts, _committed(link, held, facts), fillvalue=0)
    ]


__all__ = ["begun", "carried", "offsets"]
