"""What is counted of a task with windows, and up to where its results are out."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from peer.batch_result import Result, positions_after
from peer.provenance import Provenance
from peer.shard_plans import Planned, ShardCommit
from queues.batch import Batch
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.graph import Stage, graph_of
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.timing import AggregateSpec, TimeSpec, WindowSpec
from sardonyx.state.messages import Mark
from tests.core.test_shards import COUNTED, MINUTE, Peer, rows


@pytest.mark.parametrize("late", ["drop", "dead_letter"])
def test_late_rows_are_counted_one_by_one_also_if_they_were_combined(late: str) -> None:
    """Three rows of one key and one minute are one row on the link, and three late ones."""
    peer = Peer(msgspec.structs.replace(COUNTED, late=late))
    peer.give(rows(("a", 10, 5.0)), clock=MINUTE)
    planned = peer.give(rows(("a", 11, 9.0), ("a", 12, 9.0), ("a", 13, 9.0), ("b", 14, 1.0)))
    assert peer.late == 4
    assert planned.dropped == 4, "combined rows are no dead letters"


def of_two_inputs() -> Stage:
    time = TimeSpec(column="at", unit="us")
    inputs = [
        TaskSpec(name=name, type="input", connector="kafka", options={"topic": name}, time=time)
        for name in ("one", "two")
    ]
    window = WindowSpec(kind="tumbling", size="1 min", aggregate={"hits": AggregateSpec(of="count")})
    spec = JobSpec(
        name="j",
        workflow=[("one", "count"), ("two", "count"), ("count", "out")],
        catalog=[
            *inputs,
            TaskSpec(name="count", type="function", group_by=["user"], window=window),
            TaskSpec(name="out", type="output", connector="blackhole"),
        ],
        partitions=2,
    )
    return graph_of(spec, "d", "j-1").stage("count")


def test_windows_over_two_links_say_for_both_how_far_they_are_closed() -> None:
    """A task states the least clock of all its partitions. One that never moved would hold the tasks after it back."""
    stage = of_two_inputs()
    places = [Partition(link.topic, 1) for link in stage.ingress]
    batch = Batch(positions={place: Position(7, clock=SourceClock(NEVER, 99)) for place in places})
    commit = ShardCommit(places[0], Mark(), 50, done=True)
    nothing = pa.table({})
    planned = Planned(nothing, None, 0, {}, [], [commit], Provenance(), Provenance())
    found = positions_after(stage, batch, Result(nothing, 0, planned=planned), [])
    assert [found[place].clock.seen for place in places] == [50, 50]
