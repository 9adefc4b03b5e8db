"""In which batch a record was worked, and where what was made of it went: what is said is true, and the rest is unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.origins import with_files
from sardonyx.core.batch_origins import LONGEST, Origin, Span, decode, encode
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.core.record_way import MOST, Place, Seen, TaskWay, Told, Written, record_way
from sardonyx.core.spec import OnError, TaskSpec
from tests.core.progress_world import World
from tests.sizes import histories

HISTORIES = histories(20, whole=60)
DROPPING = "1/way/21"
"""A history in which records are dropped and it is certain: of the random ones about one in thirty has that."""
NAMES = st.text("abcdefghij-_0123456789", min_size=1, max_size=20)


@given(
    st.integers(0, 10**9),
    st.dictionaries(
        st.tuples(NAMES, NAMES).map(".".join),
        st.lists(
            st.builds(Span, st.integers(0, 999), *[st.integers(0, 10**12)] * 2, st.none() | st.integers(0, 10**12)),
            min_size=1,
            max_size=4,
        ),
        max_size=4,
    ),
)  # fmt: skip
def test_an_origin_is_read_as_it_was_written(rows: int, spans: dict[str, list[Span]]) -> None:
    """Whatever was read; one that is too long is not written, and one of a newer release says nothing."""
    origin = Origin(rows, "host-ab12-0/812/3", spans)
    text = encode(origin)
    if text is not None:
        assert decode(text) == origin
        assert decode(encode(origin, "j-1/count"), "j-1/count") == origin
        assert decode(text, "j-1/count") is decode(encode(origin, "j-1/count"), "j-2/count") is None
    long = {f"a.b{number}": [Span(number, 10**9, 10**9 + 1)] for number in range(LONGEST // 20)}
    assert encode(Origin(rows, "p/1/0", long)) is None
    assert decode(None) is None
    for other in (b"", b"x", b"1", b"1 p a.b", b"1 p a.b:3", b"1 p a.b:3:4", "\N{SNOWMAN}".encode()[:2]):
        assert decode(other) is None


class ReadBack:
    """What a task of a random history has written, as it would be read now, after some of it was deleted."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cut = {
            place: self._readable(place) if world.rng.random() < 0.3 else 0
            for place in world.log
            if place.topic not in world.sources.names
        }
        self.silent = world.rng.random() < 0.1
        """Some messages say nothing of their batch."""

    def _readable(self, place: Partition) -> int:
        """An offset up to which the reader has read."""
        reader = next(s for s in self.world.graph.stages if place in self.world.positions[s.name])
        position = self.world.positions[reader.name][place]
        return self.world.rng.randint(0, 0 if position is None else position.offset)

    def committed(self, place: Partition) -> tuple[list[tuple[int, int, frozenset[tuple[int, int, int]]]], int]:
        """Offset, transaction and true origins of the rows that a reader sees; and where it must stop."""
        rows, log = [], self.world.log[place]
        for offset, entry in enumerate(log):
            if self.world._undecided(entry):
                return rows, offset
            if self.world.outcome[entry.transaction] and entry.is_row:
                rows.append((offset, entry.transaction, entry.origins))
        return rows, len(log)

    def __call__(self, link: Link, enough: Callable[[Sequence[Written]], bool]) -> dict[int, Seen]:
        found = {}
        for place in self.world.partitions[link.topic]:
            rows, end = self.committed(place)
            cut = self.cut[place]
            messages = [
                Written(offset, 1.0, 1, None if self.silent and offset % 3 == 0 else self.world.made_from[transaction])
                for offset, transaction, _ in rows
                if offset >= cut
            ]
            begins = cut
            while len(messages) > 1 and enough(messages[1:]):  # it is read backwards
                begins, messages = messages[1].offset, messages[1:]
            found[place.number] = Seen(messages, begins, cut, to_end=end == len(self.world.log[place]))
        return found


def test_what_is_said_of_a_record_is_true_in_random_histories(seed: int) -> None:
    """Peers die, transactions abort, partitions move, and links are trimmed. Each message that holds something of the record,
    also by way of windows and joins, is among those that are told, unless it is said that not all is known. What is said to
    hold something of it does. Nothing exists of what is said to be dropped.
    """
    told = Counter[str]()
    for number in range(HISTORIES + 1):
        world = World(f"{seed}/way/{number}" if number < HISTORIES else DROPPING)
        for _ in range(4):
            world.steps(world.rng.randint(10, 150))
            for _ in range(5):
                _check(world, told, number)
    assert all(
        told[what] for what in ("batch", "output", "sure", "dropped", "unknown", "not reached", "of held rows")
    ), told


def _check(world: World, told: Counter[str], number: int) -> None:
    source = world.rng.randrange(len(world.sources.names))
    topic = world.sources.names[source]
    place = world.rng.choice(world.partitions[topic])
    if not world.log[place]:
        return
    record = source, place.number, world.rng.randrange(len(world.log[place]))
    holding = {name for name, kind in world.kinds.items() if kind != "pass"}
    facts = {link.name: LinkFacts(len(world.partitions[link.topic])) for link in world.graph.links}
    positions = {stage.name: world.asked(stage) for stage in world.graph.stages}
    read = ReadBack(world)
    done = {name for name in holding if record not in world.alive({*world.sources.reach.before(name)})}
    ways = {
        way.task: way
        for way in record_way(
            world.graph, facts, positions, (topic, *record[1:]), read, ended=world.sealed, holding=holding, done=done
        )
    }
    if world.forgotten:
        return  # what these tasks have read of their sources is not known any more
    for stage in world.graph.stages:
        if record[0] not in world.sources.of_task(stage.name):
            continue
        way = ways.get(stage.name)
        if way is None:
            told["not reached"] += 1
            way = TaskWay(stage.name)
        told["batch"] += len(way.batches)
        told["output"] += len(way.outputs)
        told["unknown"] += bool(way.unknown)
        told["dropped"] += way.dropped
        told["of held rows"] += stage.name in holding and bool(way.outputs)
        for link in stage.egress:
            _check_link(world, read, record, way, link, told, f"history {number}, {record}: {way}")


def _check_link(
    world: World, read: ReadBack, record: tuple[int, int, int], way: TaskWay, link: Link, told: Counter[str], said: str
) -> None:
    claimed = {
        (each.partition, offset): each.sure for each in way.outputs if each.link == link for offset in each.offsets
    }
    whole = way.whole and not any(link.name in text or "too many" in text for text in way.unknown)
    for place in world.partitions[link.topic]:
        true = {offset for offset, _, origins in read.committed(place)[0] if record in origins}
        assert not (way.dropped and true), f"{said}: {place} has {true}"
        if whole:
            assert {(place.number, offset) for offset in true} <= {*claimed}, f"{said}: {place} has {true}"
        sure = {offset for (partition, offset), certain in claimed.items() if certain and partition == place.number}
        told["sure"] += len(sure)
        assert sure <= true, f"{said}: {place} has {true}"


def chain(**more: object) -> tuple[Graph, dict[str, LinkFacts]]:
    """``read -> label -> count -> out``: count has windows, out writes a topic of the user's."""
    links = {
        name: Link(name, f"d.j.{name}", "internal", *name.split("."))
        for name in ("read.label", "label.count", "count.out")
    }
    given = Link("read.topic", "hits", "input", "read", "read")
    stages = [
        Stage(TaskSpec(name="read", type="input", connector="kafka"), [given], [links["read.label"]]),
        Stage(TaskSpec(name="label", type="function", **more), [links["read.label"]], [links["label.count"]]),  # type: ignore[arg-type]
        Stage(
            TaskSpec(name="count", type="function"),
            [links["label.count"]],
            [links["count.out"], Link("count.state", "d.j.count.state", "state", "count", "count")],
        ),
        Stage(
            TaskSpec(name="out", type="output", connector="kafka"),
            [links["count.out"]],
            [Link("out.topic", "counts", "output", "out", "out")],
        ),
    ]
    graph = Graph([stage.name for stage in stages], stages, {}, bounded=False, lineage=True)
    return graph, {link.name: LinkFacts(2) for link in graph.links}


def message(offset: int, link: str, *span: int, rows: int = 20, by: str = "p/7/0") -> Written:
    return Written(offset, 100.0 + offset, rows, Origin(rows, by, {link: [Span(*span)]}))


READ = {
    "read.label": {
        0: Seen([message(4, "read.topic", 1, 80, 100), message(6, "read.topic", 1, 100, 120)], 0, 0, to_end=True),
        1: Seen([message(3, "read.topic", 1, 80, 100)], 0, 0, to_end=True),
    },
    "label.count": {
        0: Seen([message(1, "read.label", 0, 0, 5), message(9, "read.label", 0, 5, 8)], 0, 0, to_end=True),
        1: Seen([message(2, "read.label", 0, 5, 8)], 0, 0, to_end=True),
    },
    "count.state": {
        0: Seen([message(7, "label.count", 0, 9, 10, rows=5)], 0, 0, to_end=True),
        1: Seen([], 0, 0, to_end=True),
    },
    "count.out": {0: Seen([], 0, 0, to_end=True), 1: Seen([], 0, 0, to_end=True)},
}

POSITIONS: dict[str, dict[Partition, Position | None]] = {
    "read": {Partition("hits", 1): Position(130)},
    "label": {Partition("d.j.read.label", 0): Position(8), Partition("d.j.read.label", 1): Position(4)},
    "count": {Partition("d.j.label.count", 0): Position(10), Partition("d.j.label.count", 1): Position(0)},
    "out": {Partition("d.j.count.out", 0): Position(0)},
}


def ways(offset: int, read: dict[str, dict[int, Seen]] = READ, **more: object) -> list[TaskWay]:
    graph, facts = chain(**more)
    return record_way(
        graph, facts, POSITIONS, ("hits", 1, offset), lambda link, _enough: read[link.name], holding={"count"}
    )


def test_a_result_of_windows_says_from_where_on_its_rows_came() -> None:
    """The record may be in each one from the batch that took it in until its shard holds it no longer, and in no other. While it
    may be held, more may come; and where a release before this one wrote a result, not all is known.
    """

    def result(offset: int, start: int, end: int, since: int | None) -> Written:
        return Written(offset, 100.0 + offset, 5, Origin(5, "p/7/0", {"label.count": [Span(0, start, end, since)]}))

    results = [result(3, 4, 9, 2), result(5, 9, 10, 6), result(8, 10, 20, 8), result(9, 20, 25, 10)]
    graph, facts = chain()

    def told(*found: Written, done: bool) -> list[TaskWay]:
        read = READ | {"count.out": {0: Seen(found, 0, 0, to_end=True), 1: Seen([], 0, 0, to_end=True)}}
        return record_way(
            graph,
            facts,
            POSITIONS,
            ("hits", 1, 110),
            lambda link, _enough: read[link.name],
            holding={"count"},
            done={"count"} if done else (),
        )[2:]

    count, out = told(*results, done=True)
    assert [(each.partition, each.offsets, each.sure) for each in count.outputs] == [(0, [5, 8], False)]
    assert [batch.read for batch in count.batches] == [[("label.count", Span(0, 9, 10))]]
    assert count.unknown == []
    assert (out.whole, out.places) == (True, {"count.out": [Place(0, 5), Place(0, 8)]})
    count, out = told(*results, done=False)
    assert [each.offsets for each in count.outputs] == [[5, 8]]
    assert count.unknown == ["what it gives of it from now on: it may still hold it, or give it again"]
    assert not out.whole
    count, out = told(*results[:2], result(6, 10, 12, None), *results[2:], done=True)
    assert any("do not say of which batch they are" in text for text in count.unknown)
    assert not out.whole
    (count,) = told(*results[:1], *results[3:], done=True)
    assert (count.outputs, count.unknown) == ([], [])


def test_the_way_of_a_record_is_told_from_task_to_task() -> None:
    """Batches, and what they wrote; a window tells the batch that took it in, and has given no result yet."""
    read, label, count, out = ways(110)
    assert [(batch.by, batch.read, batch.at) for batch in read.batches] == [
        ("p/7/0", [("read.topic", Span(1, 100, 120))], 106.0)
    ]
    assert [(each.link.name, each.partition, each.offsets, each.sure) for each in read.outputs] == [
        ("read.label", 0, [6], False)
    ]
    assert [batch.read for batch in label.batches] == [[("read.label", Span(0, 5, 8))]]
    assert [(each.partition, each.offsets) for each in label.outputs] == [(0, [9]), (1, [2])]
    assert [batch.read for batch in count.batches] == [[("label.count", Span(0, 9, 10))]]
    assert count.outputs == []
    assert count.unknown[0].startswith("what it gives of it from now on")
    assert (out.whole, out.unknown) == (False, ["all that came to it"])
    assert not any(way.dropped for way in (read, label, count, out))
    assert read.unknown == label.unknown == []


def test_a_batch_that_wrote_nothing_has_dropped_its_rows() -> None:
    """It is said only if nothing that it may have written is deleted, unread or silent, and all was read that came."""
    (read,) = ways(125)
    assert read.dropped
    assert read.batches == []
    assert read.unknown == []
    assert ways(135)[0] == TaskWay("read", {"read.topic": [ways(135)[0].places["read.topic"][0]]})
    for number, seen, text in (
        (1, READ["read.label"][1]._replace(to_end=False), "a transaction there is open"),
        (1, Seen([], 0, 0, to_end=True, why="it may not be read"), "it may not be read"),
        (1, Seen([Written(3, None, 1, None)], 0, 0, to_end=True), "do not say of which batch they are"),
        (1, Seen([], 4, 4, to_end=True), "read.label[1] before offset 4: it is deleted"),
        (1, Seen([], 4, 0, to_end=True), "before offset 4: it was not read in time"),
    ):
        told = ways(125, READ | {"read.label": READ["read.label"] | {number: seen}})
        assert not told[0].dropped
        assert any(text in each for each in told[0].unknown), (text, told[0].unknown)
        assert not told[1].whole
    graph, facts = chain()
    asked = record_way(graph, facts, POSITIONS, ("hits", 1, 125), lambda link, _: READ[link.name], changed=True)
    assert not asked[0].dropped, "a queue, a topic in place or a topic of dead letters that is gone may have got it"
    label = ways(110, READ | {"label.count": {0: Seen([], 0, 0, to_end=True), 1: Seen([], 0, 0, to_end=True)}})[1]
    assert label.dropped
    late = POSITIONS | {"label": {Partition("d.j.read.label", 0): Position(6)}}
    unread = record_way(graph, facts, late, ("hits", 1, 110), lambda link, _enough: READ[link.name])[1]
    assert (unread.batches, unread.dropped) == ([], False)


def test_what_peers_tell_stands_in_for_what_is_not_written() -> None:
    """A task that writes only to topics of the user's tells its batch in no other way; and where a queue was trimmed, they may
    still say that the batch has given nothing. It is not asked where what was written tells.
    """
    graph, facts = chain()
    positions = POSITIONS | {"out": {Partition("d.j.count.out", 0): Position(9)}}

    def way_to(task: str, read: dict[str, dict[int, Seen]], *told: Told) -> TaskWay:
        asked = record_way(
            graph,
            facts,
            positions,
            ("hits", 1, 110),
            lambda link, _: read[link.name],
            told=lambda name: told if name == task else (),
        )
        return next(way for way in asked if way.task == task)

    came = READ | {
        "count.out": {0: Seen([message(3, "label.count", 0, 9, 10)], 0, 0, to_end=True), 1: Seen([], 0, 0, to_end=True)}
    }
    quiet = way_to("out", came)
    assert quiet.batches == []
    assert any("in which batch it was worked: it writes nothing that says it" in text for text in quiet.unknown)
    gave = Told(50.0, 4, 0, Origin(7, "q/9/1", {"count.out": [Span(0, 2, 6)]}))
    out = way_to("out", came, gave, gave._replace(origin=Origin(1, "q/9/1", {"count.out": [Span(0, 6, 8)]})))
    assert [(batch.by, batch.read, batch.rows, batch.at) for batch in out.batches] == [
        ("q/9/1", [("count.out", Span(0, 2, 6))], 7, 50.0)
    ]
    assert not out.dropped
    assert ["which records of counts" in text for text in out.unknown] == [True]
    nothing = way_to("out", came, gave._replace(rows_out=0))
    assert (nothing.dropped, nothing.unknown) == (True, [])
    assert not way_to("out", came, gave._replace(rows_out=0, dead=1)).dropped
    trimmed = READ | {"read.label": {0: Seen([], 9, 9, to_end=True), 1: Seen([], 4, 4, to_end=True)}}
    first = Told(50.0, 0, 0, Origin(20, "q/9/1", {"read.topic": [Span(1, 100, 120)]}))
    assert not way_to("read", trimmed).dropped
    assert way_to("read", trimmed, first).dropped


def test_a_way_that_spreads_over_too_many_messages_is_not_followed() -> None:
    """What is not followed is unknown, and nothing is said to be dropped behind it."""
    many = [message(offset, "read.topic", 1, 100, 120) for offset in range(MOST + 1)]
    told = ways(110, READ | {"read.label": {0: Seen(many, 0, 0, to_end=True), 1: Seen([], 0, 0, to_end=True)}})
    assert sum(len(each.offsets) for each in told[0].outputs) == MOST + 1
    assert "too many messages" in told[1].unknown[0]
    assert not told[2].whole
    assert not any(way.dropped for way in told)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_batch_of_one_row_wrote_only_what_is_made_of_it(rows: int) -> None:
    """Otherwise what it wrote may be made of other rows."""
    first = {
        0: Seen([message(4, "read.topic", 1, 110, 111, rows=rows)], 0, 0, to_end=True),
        1: Seen([], 0, 0, to_end=True),
    }
    (output,) = ways(110, READ | {"read.label": first}, on_error=OnError(then="skip"))[0].outputs
    assert output.sure == (rows == 1)


def test_a_chunk_is_in_the_file_to_which_it_was_merged() -> None:
    """By the listing of an output whose files hold the rows of several batches; what is not merged yet is in no file."""
    listing: list[Written] = [
        message(number, "a.b", 0, number, number + 1)._replace(file=f"c{number}", chunk=f"s{number}")
        for number in range(4)
    ]
    origin = Origin(0, "p/1/0", {})
    merged = [
        *listing[:2],
        Written(2, None, 0, origin, merges=("s1", "f1")),
        listing[2],
        Written(5, None, 0, origin, merges=("s2", "")),
        listing[3],
    ]
    assert [each.file for each in with_files(merged) if each.rows] == ["f1", "f1", "c2", ""]
    assert [each.file for each in with_files(merged[2:]) if each.rows] == ["c2", ""]
    alone = [listing[0]._replace(chunk="")]
    assert with_files(alone) == alone
