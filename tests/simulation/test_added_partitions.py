"""What is shown of a job when users have added partitions to its topics. The broker's answers are simulated."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import queues.admin
import queues.group_clocks
from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.clocks import Positions, job_clock
from sardonyx.core.clocks import SourceClock
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.notes import LinksNote
from sardonyx.core.positions import Partition, Position


def counting() -> Job:
    made = Job("traffic", partitions=2)
    hits = made.input("hits", kafka("in", schema="at timestamp"), time=event_time("at"))
    made.output(
        "out", kafka("out"), after=made.window("count", tumbling("1 min"), after=hits, aggregate={"n": Count()})
    )
    return made


def test_a_partition_that_was_added_holds_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows count, as for the peers that read it. A change at a time would end too early by a clock that goes without it."""
    spec = counting().spec()
    graph = graph_of(spec, "d", "traffic-1")
    facts = {link.name: LinkFacts(2) for link in graph.links}
    reads: Any = SimpleNamespace(
        read=lambda _: msgspec.json.encode(LinksNote(facts)), read_many=lambda _: dict[str, bytes]()
    )
    settings: Any = SimpleNamespace(deployment="d", require=lambda _: None)
    note: Any = SimpleNamespace(status="running")

    def committed(_: Any, stage: Stage, __: str, sizes: Mapping[str, int]) -> Positions:
        places = [Partition(link.topic, number) for link in stage.ingress for number in range(sizes[link.topic])]
        return {p: Position(5, clock=SourceClock(value=9 - p.number if p.topic == "in" else 4)) for p in places}

    monkeypatch.setattr(queues.group_clocks, "committed_by", committed)
    monkeypatch.setattr(queues.admin, "topics", lambda _: {"in": [0, 1, 2]})
    hits, count = job_clock(reads, settings, "traffic-1", spec, note).tasks
    assert (hits.clock, hits.held_by) == (7, ["in[2]"])
    assert (count.clock, count.held_by) == (4, ["hits.count[0]", "hits.count[1]"])
