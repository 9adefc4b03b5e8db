"""The blocks on the internal links of the simulated Kafka, with the chains of their writers, by the product's own rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from queues.losses import broken_chain
from sardonyx.core import link_counts
from sardonyx.core.chains import ChainCheck, WriterChains
from sardonyx.core.changing import NOTHING
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, Position, add

if TYPE_CHECKING:
    from tests.simulation import kafka


def goes(link: Link) -> bool:
    """Whether rows go over a link. A condition lets all of them through here, or none."""
    return link.route.where != NOTHING


def heard(
    stage: Stage, where: tuple[str, int], partition: kafka.Partition, size: int, facts: Mapping[str, LinkFacts]
) -> Position:
    """What a task commits with the records that come next.

    Args:
        stage: the task.
        where: the link's name, and the number of its partition.
        partition: what it holds.
        size: how many records come next.
        facts: of the job's links.

    Raises:
        InputError: ``SX-LINK-LOSS``: a block before them is missing.
    """
    before, (name, number) = partition.committed, where
    check = ChainCheck(before.heard, before.counts.rows_in)
    for first, chain in partition.blocks:
        if before.offset <= first < before.offset + size and (broken := check.hear(chain, first)):
            link = next(link for link in stage.ingress if link.name == name)
            raise broken_chain(link, Partition(link.topic, number), broken, before.offset, first, "?")
    rows = [size if goes(link) else 0 for link in stage.counted]
    told = link_counts.with_told(before, rows, link_counts.places(stage, facts))
    return told._replace(counts=add(before.counts, Counts(size)), heard=check.heard())


def write(broker: kafka.SimKafka, job: str, chains: WriterChains, link: Link, number: int, size: int) -> None:
    """Put records of a transaction that is committed on a link; they are lost at this moment, if a test says so.

    Args:
        broker: the simulated Kafka.
        job: the job's id.
        chains: of the producer.
        link: where to.
        number: of its partition.
        size: how many records.
    """
    topic = broker.topic(job, link)
    assert topic is not None
    to = topic.partitions[number]
    if link.kind == "internal":
        chain = chains.number(link.topic, number)
        if broker.loses is not None and broker.loses(link.name, written(broker, job, link)):
            broker.lost.append((job, link.name))
            return
        to.blocks.append((to.records, chain))
    to.records += size


def written(
    broker: kafka.SimKafka,
    job: str,
    link: Link,
    graph: Graph | None = None,
    facts: Mapping[str, LinkFacts] | None = None,
) -> int:
    """How many records the task before a link has committed as written to it."""
    stage = (graph or broker.graphs[job]).stage(link.source)
    held = {}
    for way in stage.ingress:
        topic = broker.topic(job, way)
        for number, partition in enumerate(topic.partitions if topic else ()):
            held[Partition(way.topic, number)] = partition.committed
    rows = link_counts.written(stage, link.name, held, facts or {})
    assert rows is not None, "the rows of a link are not counted"
    return rows
