"""What a change takes over from the version before: where its tasks begin to read."""

from __future__ import annotations

from typing import Any

from sardonyx import Job, kafka
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.positions import Partition, Position
from sardonyx.core.taking_over import begun, offsets


def graph(*tasks: str, end: str | None = None) -> Graph:
    """Of a job whose tasks read one topic in place."""
    made = Job("copy", partitions=1)
    read = made.input("in", kafka("in", schema="n long", start="earliest", end=end))
    for task in tasks:
        made.output(f"{task}-out", kafka(f"{task}-out"), after=made.task(task, lambda row: row, after=read))
    return graph_of(made.spec(), "d", "copy-1")


def test_a_new_reader_begins_in_added_partitions_where_the_others_stand() -> None:
    """A user has added one to the topic since. From its beginning, the new task would work rows of before the change."""
    before, after = graph("one"), graph("one", "two")
    held: dict[str, Any] = {"one": {Partition("in", 0): Position(40), Partition("in", 1): None}}
    added: dict[str, Any] = {"one": {**held["one"], Partition("in", 2): Position(7), Partition("in", 3): None}}
    facts = {link.name: LinkFacts(2, start=[5, 5]) for link in before.links}
    (new,) = after.stage("two").ingress
    links = {link.name: LinkFacts(4) for link in after.links}
    assert begun([new], links, before.stages, held, facts)[new.name].start == [40, 5, 0, 0]
    assert begun([new], links, before.stages, added, facts)[new.name].start == [40, 5, 7, 0]
    assert offsets(before.stage("one"), added["one"], facts) == {"in": [40, None, 7, None]}


def test_of_a_topic_with_an_end_no_partition_is_read_that_was_added() -> None:
    """The job ends where the topic ended when it began."""
    ends = graph("one", end="latest")
    facts = {link.name: LinkFacts(1, start=[0], end=[9]) for link in ends.links}
    held: dict[Partition, Position | None] = {Partition("in", 0): Position(4), Partition("in", 1): None}
    assert offsets(ends.stage("one"), held, facts) == {"in": [4]}
