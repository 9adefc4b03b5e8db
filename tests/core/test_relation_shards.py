"""Joins and the like over the shards of peers, from rows on links to results, with a state log that outlives each peer."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from peer.relation_operator import RelationOperator, declared_columns
from peer.shard_plans import Planned
from peer.shards import Shards
from peer.sinks import LinkSink
from queues.batch import Batch
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.errors import FunctionError
from sardonyx.core.graph import graph_of
from sardonyx.core.joining import RelationSpec
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.core.timing import TimeSpec
from sardonyx.runtime.functions import import_function
from sardonyx.state.held_back import held_back
from sardonyx.state.kinds import less
from sardonyx.state.sides import LEFT, RIGHT
from tests.core.relation_histories import Block, counted, interleaved, judged, log
from tests.core.test_joins import twin
from tests.core.test_shards import Message, Topic, in_topic
from tests.sizes import histories

PARTITIONS = 3


def spec_of(relation: RelationSpec, *, schema: str | None = None) -> JobSpec:
    options = {"topic": "t", "start": "earliest", "end": "latest", **({} if schema is None else {"schema": schema})}
    time = TimeSpec(column="t", kind="ordinal")
    inputs = [
        TaskSpec(name=name, type="input", connector="kafka", options={**options, "topic": name}, time=time)
        for name in ("views", "orders")
    ]
    sides = ["views", "orders"] if relation.two_sided else ["views"]
    return JobSpec(
        name="j",
        workflow=[*((side, "meet") for side in sides), ("meet", "out")],
        catalog=[
            *inputs[: len(sides)],
            TaskSpec(name="meet", type="function", group_by=["k"], relation=relation),
            TaskSpec(name="out", type="output", connector="blackhole"),
        ],
        partitions=PARTITIONS,
    )


class Peer:
    """One peer after the other, on the same links and the same log.

    Args:
        relation: of the task.
        most: results of a batch.
        schema: of both inputs.
    """

    every: int | None = None
    """How far its checkpoints are apart."""

    def __init__(self, relation: RelationSpec, most: int = 1000, schema: str | None = None) -> None:
        graph = graph_of(spec_of(relation, schema=schema), "d", "j-1")
        self.stage = graph.stage("meet")
        self.known = declared_columns(self.stage, graph)
        self.links = [next(link for link in self.stage.ingress if link.source == "views")]
        self.links += [link for link in self.stage.ingress if link.source == "orders"]
        self.topic, self.most = Topic(), most
        self.positions: dict[Partition, Position] = {}
        self.results: list[dict] = []
        self.tables: list[pa.Table] = []
        self.late: list[dict] = []
        self.late_rows = self.offset = self.incarnation = 0
        self.time = "join_time" if relation.kind == "join" else "t"
        self.stated = NEVER
        self.behind: list[dict] = []
        """Results that were behind the clock which the task had stated before them."""
        self.shards: Shards | None = None
        self.take_over()

    def take_over(self) -> None:
        """A peer that knows nothing holds all partitions from now on."""
        if self.shards is not None:
            self.shards.close()
        operator = RelationOperator(self.stage, self.most, self.known)
        self.shards = Shards(self.stage, operator, in_topic(self.stage, self.topic), every=self.every)
        self.incarnation += 1

    def batch(self, blocks: Sequence[Block]) -> Batch:
        """These blocks of either side, as the tasks before write them; after each its clock is stated in each partition."""
        batch, clocks = Batch(), {place: self._at(place).clock for place in self._places()}
        for block in sorted(blocks, key=lambda each: self.stage.ingress.index(self.links[each.side])):
            link = self.links[block.side]
            sink = LinkSink(link, PARTITIONS, "writer", import_function)
            for made in sink.messages(block.piece().rows) if block.rows else ():
                place = Partition(link.topic, made.partition)
                self.offset += 1
                batch.messages.setdefault(link.name, []).append(Message(made.value, place, self.offset))
                batch.spans.setdefault(link.name, []).append((place, 1))
                batch.in_force.setdefault(link.name, []).append(clocks[place].value)
                batch.rows[place] = batch.rows.get(place, 0) + 1
            for number in range(PARTITIONS):
                place = Partition(link.topic, number)
                clocks[place] = clocks[place].stated(block.clock)
        for place in self._places():
            at = self._at(place)
            batch.positions[place] = at._replace(offset=self.offset, clock=clocks[place])
            batch.clocks[place] = at.clock
            batch.started[place] = self.positions[place].offset if place in self.positions else None
            batch.incarnations[place] = self.incarnation
        return batch

    def _places(self) -> list[Partition]:
        return [Partition(link.topic, number) for link in self.links for number in range(PARTITIONS)]

    def _at(self, place: Partition) -> Position:
        return self.positions.get(place, Position(0))

    def commit(self, batch: Batch, planned: Planned) -> None:
        self.positions |= batch.positions
        for shard in planned.shards:
            position = self.positions[shard.partition]
            self.positions[shard.partition] = position._replace(
                state=tuple(shard.mark) if shard.mark.seq else None,
                clock=position.clock._replace(seen=shard.closed),
                checkpoints=shard.checkpoints,
            )
        self.topic.write(planned)
        self.shards.committed()
        rows = planned.results.to_pylist()
        self.results += rows
        self.behind += [row for row in rows if row[self.time] < self.stated]
        reached = min(self.positions[Partition(self.stage.ingress[0].topic, n)].clock.seen for n in range(PARTITIONS))
        self.stated = max(self.stated, less(reached, held_back(self.stage.task)))
        self.tables += [planned.results] if planned.results.num_rows else []
        self.late += [] if planned.late_results is None else planned.late_results.to_pylist()
        self.late_rows += planned.late_rows

    def give(self, *blocks: Block) -> None:
        batch = self.batch(blocks)
        self.commit(batch, self.shards.plan(batch))
        while self.shards.due(dict.fromkeys(self._places(), self.incarnation)):
            batch = self.batch([])
            self.commit(batch, self.shards.plan(batch))


def join(**given: object) -> RelationSpec:
    return RelationSpec(kind="join", left="views", right="orders", prefix="r_", **{"within": [0, 10], **given})


def block(side: int, *rows: tuple[str, int, int], clock: int = NEVER) -> Block:
    return Block(side, [{"k": key, "t": time, "v": value} for key, time, value in rows], NEVER, clock)


def test_declared_columns_of_the_right_side_are_null_before_it_has_a_row() -> None:
    """They have their types. Without a schema they are not known, and missing, until the partition has had a right row."""
    known, unknown = (Peer(join(how="left"), schema=schema) for schema in ("k string, v bigint", None))
    for peer in (known, unknown):
        peer.give(block(LEFT, ("a", 5, 1), clock=END), block(RIGHT, clock=END))
    assert known.tables[0].schema.field("r_v").type == pa.int64()
    assert known.results == [{"k": "a", "v": 1, "t": 5, "r_v": None, "r_t": None, "join_time": 5}]
    assert unknown.results == [{"k": "a", "t": 5, "v": 1, "join_time": 5}]


@pytest.mark.parametrize("late", ["drop", "edge", "dead_letter"])
def test_late_rows_of_either_side_say_how_late_they_were(late: str) -> None:
    """Each is judged by the clock of its own side, whatever that of the other is."""
    peer = Peer(join(late=late, grace=2))
    peer.give(block(LEFT, ("a", 50, 1), clock=50))
    peer.give(block(RIGHT, ("a", 45, 1)), block(LEFT, ("a", 48, 2), ("a", 47, 3)))
    assert peer.late_rows == 1
    assert peer.late == ([] if late == "drop" else [{"k": "a", "t": 47, "v": 3, "late_side": "left", "late_by": 1}])


def test_a_state_that_grows_beyond_its_limit_is_an_error() -> None:
    """The error says what an entry is."""
    peer = Peer(join(state_limit=3))
    with pytest.raises(FunctionError) as caught:
        peer.give(block(LEFT, *(("a", 100 * number, 1) for number in range(9))))
    assert caught.value.code == "SX-STATE-LIMIT"
    assert "stretch of time" in str(caught.value)


def test_latest_rows_come_at_the_end_over_several_batches() -> None:
    """At most so many at once; a peer that takes over in between gives the rest."""
    peer = Peer(RelationSpec(kind="latest", emit="final"), most=2)
    peer.give(block(LEFT, *((f"k{n % 7}", n, n) for n in range(20))))
    batch = peer.batch([block(LEFT, clock=END)])
    peer.commit(batch, peer.shards.plan(batch))
    peer.take_over()
    peer.give()
    assert sorted(row["v"] for row in peer.results) == [13, 14, 15, 16, 17, 18, 19]


@pytest.mark.parametrize("history", range(histories(6, whole=20)))
def test_random_histories_give_what_all_pairs_give(seed: int, history: int) -> None:
    """Whatever is read beside what, cut where, dropped, or taken over: the results and late rows of the whole logs."""
    rng = random.Random(f"{seed}/relation-shards/{history}")
    relation = join(
        how=rng.choice(["inner", "left"]),
        within=rng.choice([3, 20, [-5, 0], [2, 9]]),
        grace=rng.choice([0, 4]),
        late="edge",
        store=rng.choice(["memory", "rocksdb"]),
    )
    logs = log(rng, LEFT), log(rng, RIGHT)
    on_time, late = judged(relation, logs)
    wanted = twin(relation, on_time)
    peer = Peer(relation, rng.choice([1, 3, 1000]), "k string, v bigint, extra string")
    blocks = interleaved(rng, logs)
    while blocks:
        size = rng.randint(1, 4)
        if rng.random() < 0.3:
            peer.shards.plan(peer.batch(blocks[: rng.randint(1, 4)]))
            peer.shards.dropped() if rng.random() < 0.5 else peer.take_over()
        peer.give(*blocks[:size])
        blocks = blocks[size:]
        if rng.random() < 0.3:
            peer.take_over()
    assert counted(peer.results) == counted(wanted), f"seed {seed}, history {history}"
    assert peer.late_rows == len(late) == len(peer.late)
    assert not peer.behind, f"seed {seed}, history {history}: a result came after the clock had passed it"


@pytest.mark.parametrize("history", range(histories(6, whole=20)))
def test_no_result_is_behind_the_clock_that_the_task_has_stated(seed: int, history: int) -> None:
    """Else it would be late for a window after the task, although no row was late for the task. It holds for all kinds."""
    rng = random.Random(f"{seed}/relation-clocks/{history}")
    sides = {"left": "views", "right": "orders", "prefix": "r_"}
    relation = rng.choice(
        [
            RelationSpec(kind="lookup", **sides, grace=rng.choice([0, 4]), wait=rng.choice([None, 3, 30])),
            RelationSpec(kind="distinct", within=rng.choice([1, 20]), grace=rng.choice([0, 4])),
            RelationSpec(kind="latest", emit=rng.choice(["changes", "every 7", "every 40"])),
            RelationSpec(kind="latest", emit="every 9", within=rng.choice([5, 50])),
        ]
    )
    logs = [log(rng, side) for side in ((LEFT, RIGHT) if relation.two_sided else (LEFT,))]
    for each in (block for one in logs for block in one):
        each.rows = [row for row in each.rows if row["t"] >= each.in_force]
    peer, blocks = Peer(relation, rng.choice([1, 1000])), interleaved(rng, logs)
    while blocks:
        size = rng.randint(1, 3)
        peer.give(*blocks[:size])
        blocks = blocks[size:]
        if rng.random() < 0.2:
            peer.take_over()
    assert not peer.behind, f"seed {seed}, history {history}, {relation}"
