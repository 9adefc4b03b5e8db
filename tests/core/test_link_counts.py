"""Rows written to links and read from them are counted exactly, and blocks get their numbers where they are written to Kafka."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from peer.batch_result import Result, positions_after
from peer.provenance import Provenance
from peer.shard_plans import Planned, ShardCommit
from queues.batch import Batch, Chunk, HeldPartition, StartingPoint
from queues.losses import hear, totals_differ
from queues.messages import CHAIN_HEADER, OF_HEADER, ROWS_HEADER, WRITER_HEADER, Outgoing, Records, numbered, rows_to
from queues.read_buffer import chunk_of
from sardonyx.core import link_counts
from sardonyx.core.chains import Heard, WriterChains
from sardonyx.core.checkpoints import Checkpoints
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import InputError, SetupError
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import COUNTED, Partition, Position
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.state.messages import Mark
from tests.sizes import histories

SPEC = JobSpec(
    name="two",
    workflow=[("read", "sum"), ("read", "keep"), ("sum", "out"), ("keep", "out")],
    catalog=[
        TaskSpec(name="read", type="input", connector="files"),
        TaskSpec(name="sum", type="function", fn="m:f"),
        TaskSpec(name="keep", type="function", fn="m:f"),
        TaskSpec(name="out", type="output", connector="blackhole"),
    ],
    partitions=2,
)
GRAPH = graph_of(SPEC, "test", "two-1")
READ, SUM = GRAPH.stage("read"), GRAPH.stage("sum")
TO_SUM, TO_KEEP = (link.topic for link in READ.counted)


class Message:
    """As the client gives it."""

    def __init__(self, offset: int, *headers: tuple[str, bytes]) -> None:
        self._offset, self._headers = offset, list(headers)

    def offset(self) -> int:
        return self._offset

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers

    def __len__(self) -> int:
        return 4


def a_block(topic: str, rows: int, partition: int = 0) -> Outgoing:
    return Outgoing(topic, b"rows", partition, headers=[(ROWS_HEADER, b"%d" % rows), (WRITER_HEADER, b"p.1")])


def chain_of(message: Outgoing | Records) -> str | None:
    assert isinstance(message, Outgoing)
    found = dict(message.headers or ()).get(CHAIN_HEADER)
    return None if found is None else found.decode().split(" ")[1]


def test_blocks_are_numbered_by_partition_and_only_what_commits_counts():
    """Sentinels and other topics get no number; after an abort the numbers are used again."""
    chains = WriterChains(7, 0, 1, "p.1")
    batch = [
        a_block(TO_SUM, 5),
        a_block(TO_SUM, 5, 1),
        a_block(TO_SUM, 5),
        Outgoing(TO_SUM, None, 0, headers=[("sx-sentinel", b"u")]),
        Outgoing("dead", b"letter"),
        Records("users", [(None, b"row")]),
    ]
    topics = {TO_SUM, TO_KEEP}
    for _ in range(2):  # the first is aborted
        found = numbered(batch, chains, topics)
        assert [chain_of(each) for each in found[:5]] == ["0", "0", "1", None, None]
        assert found[5] is batch[5]
    chains.committed()
    assert [chain_of(each) for each in numbered(batch, chains, topics)[:3]] == ["2", "1", "3"]
    assert all(chain_of(each) is None for each in batch[:5]), "what an outbox keeps has no number yet"


def test_a_batch_counts_what_it_writes_to_each_link():
    """The rows of all links together are no more than once in the positions, whichever partitions the batch read."""
    splits = READ.ingress[0].topic
    first, other = Partition(splits, 0), Partition(splits, 1)
    batch = Batch(rows={first: 10, other: 4}, positions={first: Position(3), other: Position(2)})
    messages = [a_block(TO_SUM, 6), a_block(TO_SUM, 1, 1), a_block(TO_KEEP, 3), Records("users", [(None, b"row")])]
    assert (rows_to(messages, TO_SUM), rows_to(messages, TO_KEEP)) == (7, 3)
    found = positions_after(READ, batch, Result(pa.table({"n": range(8)}), 14), messages)
    assert found[first] == Position(3, Counts(10, 8, sent={}), told=(7, 3))
    assert found[other] == Position(2, Counts(4, 0, sent={}), told=(0, 0))
    again = Batch(rows={other: 4}, positions={other: found[other]})
    found |= positions_after(READ, again, Result(pa.table({"n": range(8)}), 5), messages)
    assert found[other] == Position(2, Counts(9, 8, sent={}), told=(7, 3)), (
        "the number of rows of splits is an estimate"
    )
    assert link_counts.written(READ, "read.sum", found) == 14
    assert link_counts.written(READ, "read.keep", found) == 6


def test_rows_of_internal_links_count_where_they_were_read():
    """Also if what is read beside them gives other numbers of rows than were expected."""
    here, topic = Partition(SUM.ingress[0].topic, 0), Partition("users", 0)
    batch = Batch(rows={here: 10, topic: 4}, positions={here: Position(3), topic: Position(2)})
    found = positions_after(SUM, batch, Result(pa.table({}), 13), [])
    assert (found[here].counts.rows_in, found[topic].counts.rows_in) == (10, 3)
    assert link_counts.read(SUM.ingress[0], found) == 10


def test_windows_that_close_without_rows_count_what_they_write():
    """A clock alone can close windows: their results count on the partition of the first shard. A batch that only looked at its
    shards changes no position.
    """
    here, there = Partition(SUM.ingress[0].topic, 0), Partition(SUM.ingress[0].topic, 1)
    topic = SUM.counted[0].topic
    before = {here: Position(3, Counts(10), told=(2,)), there: Position(2, Counts(4), told=(0,))}
    shard = ShardCommit(here, Mark(), NEVER, done=True)
    closed = Planned(pa.table({}), None, 0, {}, [], [shard], Provenance(), Provenance())
    result = Result(pa.table({"n": [1, 2]}), 0, planned=closed)
    found = positions_after(SUM, Batch(positions=before), result, [a_block(topic, 2)])
    assert (found[here].told, found[there].told) == ((4,), (0,))
    assert link_counts.written(SUM, SUM.counted[0].name, found) == 4
    nothing = Result(pa.table({}), 0, planned=closed)
    assert positions_after(SUM, Batch(positions=before), nothing, []) == before
    fresh = {here: Position(3)}
    assert positions_after(SUM, Batch(positions=fresh), nothing, []) == fresh


def test_combined_rows_count_one_by_one():
    """What is combined before a link counts as the rows that went in, where it is written and where it is read."""
    combined = a_block(TO_SUM, 3)._replace(headers=[(ROWS_HEADER, b"3"), (OF_HEADER, b"50")])
    assert rows_to([combined, a_block(TO_SUM, 2)], TO_SUM) == 52


def test_what_a_release_before_has_written_is_unknown():
    """A position with rows and without counts by link stays without them, and no total comes of it."""
    old = Position(5, Counts(9, 9))
    assert link_counts.with_told(old, [3, 4]).told is None
    assert link_counts.with_told(Position(5), [3, 4]).told == (3, 4)
    here, there = Partition("t", 0), Partition("t", 1)
    assert link_counts.written(READ, "read.sum", {here: old, there: Position(1, Counts(1), told=(3, 4))}) is None
    assert link_counts.written(READ, "read.sum", {here: None, there: Position(1, Counts(1), told=(3, 4))}) == 3


def test_a_task_with_very_many_links_does_not_count():
    """Its positions would become too long for a broker."""
    assert link_counts.with_told(Position(5), [1] * COUNTED).told == (1,) * COUNTED
    assert link_counts.with_told(Position(5), [1] * (COUNTED + 1)).told is None


def test_rows_are_counted_however_many_links_come_and_go():
    """Three partitions of a task whose links are changed three hundred times, and that have not all committed in between: of each
    link that is there, what was written to it. A broker takes the text.
    """
    for seed in range(20):
        rng = random.Random(f"links {seed}")
        numbers, given = [0, 1], 2
        held: list[Position | None] = [None] * 3
        wrote: list[dict[int, int]] = [{} for _ in held]
        for _ in range(300):
            kept = [number for number in numbers if rng.random() < 0.6]
            added = range(given, given + rng.randint(0 if kept else 1, 4 if len(kept) < COUNTED - 4 else 0))
            numbers, given = [*kept, *added], given + len(added)
            rng.shuffle(numbers)
            places = link_counts.Places(numbers, added=min(numbers) > 1)
            for partition in range(len(held)):
                if rng.random() < 0.5:
                    rows = [rng.randint(0, 10 ** rng.randint(0, 14)) for _ in numbers]
                    after = link_counts.with_told(held[partition] or Position(5), rows, places)
                    for number, more in zip(numbers, rows, strict=True):
                        wrote[partition][number] = wrote[partition].get(number, 0) + more
                    held[partition] = Position.read(5, after.metadata())
                    assert held[partition] == after
                wanted = tuple(wrote[partition].get(number, 0) for number in numbers)
                assert link_counts.told_by(held[partition], len(numbers), places) == wanted
        assert given > 5 * COUNTED, seed


def test_many_links_with_large_numbers_find_room_beside_everything_else():
    """The longest list of counts by number, with as many chains as a position has, is a text that a broker takes."""
    numbers = link_counts.Places(list(range(10_000, 10_000 + COUNTED)), added=True)
    heard = Heard({f"812.0.1.9f3{n:x}": 10**9 for n in range(16)})
    position = Position(5, Counts(10**12, 10**12), heard=heard, state=(10**9, 10**9, 10**9))
    text = link_counts.with_told(position, [10**12] * COUNTED, numbers).metadata()
    assert len(text) < 3_500
    with pytest.raises(
        SetupError, match="SX-POSITION-UNREADABLE"
    ):  # a release that does not know this form must not count zero
        Position.read(5, text.replace('"format":4', '"format":5'))


def test_positions_that_brokers_have_dropped_are_no_total():
    """A task that has ended has a position in each partition, unless its group is gone."""
    facts = {"read.splits": LinkFacts(2)}
    splits = READ.ingress[0].topic
    held = {Partition(splits, 0): Position(1), Partition(splits, 1): None}
    assert not link_counts.all_committed(READ, facts, held)
    assert link_counts.all_committed(READ, facts, {**held, Partition(splits, 1): Position(2)})


def _taken(held: HeldPartition, offset: int, chain: bytes) -> Chunk:
    here = Partition(SUM.ingress[0].topic, 1)
    message = Message(offset, (ROWS_HEADER, b"3"), (WRITER_HEADER, b"p.1"), (CHAIN_HEADER, chain))
    chunk = chunk_of(here, message, 1000)  # type: ignore[arg-type]
    held.view.record(offset)
    hear(held, SUM.ingress[0], chunk)
    return chunk


def test_the_reader_says_where_a_block_is_missing():
    """The error names link, partition, both offsets, the writer, and how many messages are missing."""
    held = HeldPartition(StartingPoint(Position(4, Counts(9), heard=Heard({"7.0.1.ab": 3}))), 1, 0, None)
    _taken(held, 4, b"7.0.1.ab 3")
    with pytest.raises(InputError) as caught:
        _taken(held, 9, b"7.0.1.ab 6")
    error = caught.value
    assert error.code == "SX-LINK-LOSS"
    assert (
        "read.sum has lost 2 messages of peer p.1 in test.two-1.read.sum[1], between offsets 4 and 9" in error.message
    )
    assert error.where["count"] == "2"
    with pytest.raises(InputError, match="SX-LINK-TWICE"):
        _taken(held, 9, b"7.0.1.ab 3")


def test_a_dropped_batch_is_heard_again_and_a_commit_is_kept():
    """What is to be committed holds what the batch has heard; a rewind goes back to what is committed."""
    held = HeldPartition(StartingPoint(None), 1, 0, None)
    assert held.commit_point().heard is None
    for _ in range(2):
        _taken(held, 0, b"7.0.1.ab 0")
        _taken(held, 1, b"7.0.1.ab 1")
        assert held.commit_point() == Position(2, heard=Heard({"7.0.1.ab": 2}))
        held.rewind()
    _taken(held, 0, b"7.0.1.ab 0")
    held.start = StartingPoint(held.commit_point()._replace(counts=Counts(3), told=(5,)))
    held.rewind()
    _taken(held, 1, b"7.0.1.ab 1")
    assert held.commit_point() == Position(2, Counts(3), heard=Heard({"7.0.1.ab": 2}), told=(5,))


def test_a_partition_that_is_read_on_keeps_what_batches_say_of_its_shard():
    """What a batch changes of it is changed by the shard. A peer that takes over goes on from what stands there."""
    known = Position(4, Counts(9), state=(3, 0, 0), told=(5,), checkpoints=Checkpoints(1, 60, (60,)))
    held = HeldPartition(StartingPoint(known), 1, 0, None)
    _taken(held, 4, b"7.0.1.ab 0")
    assert held.commit_point()._replace(heard=None) == known._replace(offset=5)


def test_totals_say_which_way_they_differ():
    """Fewer rows read than written are lost; more are there twice."""
    lost, twice = totals_differ(SUM.ingress[0], 1_204_331, 1_204_330), totals_differ(SUM.ingress[0], 5, 7)
    assert (lost.code, lost.where["count"]) == ("SX-LINK-LOSS", "1")
    assert "has lost 1 row: task read has written 1,204,331" in lost.message
    assert (twice.code, twice.where["count"]) == ("SX-LINK-TWICE", "2")


def _audited(seed: int, lost: int) -> link_counts.LinkTally:
    """A link on which tasks write and read while it is looked at, as :mod:`queues.audit` does it."""
    rng = random.Random(f"audit {seed}")
    written = rng.randint(0, 50)
    read = rng.randint(0, written)
    lost = min(lost, written - read)

    def goes_on() -> int:
        return rng.choice([0, 0, 0, rng.randint(1, 9)])

    tally = link_counts.LinkTally(read, written + goes_on())
    asked = tally.written
    for _ in range(30):
        end = asked + goes_on()
        tally.look(asked, end - read - lost)
        present = end - read - lost
        before, asked = asked, end + goes_on()
        if asked == before:
            break
    tally.close(present, exact=asked == before)
    return tally


def test_an_audit_of_a_running_job_never_takes_what_moves_for_a_loss():
    """Rows that are written between the requests of an audit are unread; rows that are gone are lost, and as many as are gone."""
    for seed in range(histories(400, whole=2_000)):
        whole = _audited(seed, 0)
        if not whole.settled:
            assert (whole.lost, whole.twice) == (0, 0), seed
            assert whole.written == whole.read + whole.unread, seed
        short = _audited(seed, 3)
        if short.lost is not None:
            assert short.lost <= 3, seed
            assert short.written == short.read + short.unread + short.lost, seed
    assert sum(_audited(seed, 3).lost == 3 for seed in range(200)) > 150


def test_an_audit_says_what_it_knows():
    """All read: nothing to count. Written by a release that does not count: unknown. More there than written: twice."""
    settled, unknown, twice = (link_counts.LinkTally(7, written) for written in (7, None, 5))
    assert [each.settled for each in (settled, unknown, twice)] == [True, True, False]
    settled.close(None, exact=True)
    assert (settled.unread, settled.lost, settled.twice) == (0, 0, 0)
    unknown.close(None, exact=True)
    assert (unknown.unread, unknown.lost) == (None, None)
    twice.look(5, 1)
    twice.close(1, exact=True)
    assert (twice.unread, twice.lost, twice.twice) == (1, 0, 3)
