"""How far the partitions of sources are through all tasks: never further than is true, and to the end in the end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from sardonyx.core import positions, progress
from sardonyx.core.clocks import END
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.front_text import LONGEST_FRONT
from sardonyx.core.fronts import UNKNOWN, Front, Held, greatest, least, offset_of
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import LONGEST, Partition, Position
from sardonyx.core.progress import Look, SourceProgress, source_progress
from sardonyx.core.source_fronts import Fronts, HeldRows, Sources, inner
from sardonyx.core.spec import TaskSpec
from sardonyx.core.trace import TaskTrace, trace
from tests.core.progress_world import Batch, World
from tests.sizes import histories

HISTORIES = histories(50, whole=400)
CONTROLS = 3000
KNOWN = (542,)
"""A history that shows what few of them show: it is looked at first, which is quicker."""
"""A safeguard that is gone shows itself in one of so many histories, which are the same in each run."""

Patch = pytest.MonkeyPatch


def looked(world: World, pause: int) -> list[tuple[SourceProgress, int]]:
    """What is said of each source partition, and the least offset that is not everywhere."""
    holding = {name for name, kind in world.kinds.items() if kind != "pass"}
    said = source_progress(world.graph, world.sources, world.look(pause), holding=holding)
    alive = world.alive()
    found = []
    for one in said:
        source = world.sources.names.index(one.source)
        mine = [offset for number, part, offset in alive if (number, part) == (source, one.partition)]
        found.append((one, min([*mine, one.read or 0])))
    return found


def wrong(name: str, room: int = LONGEST_FRONT) -> str | None:
    """What is wrong with one history: the first partition that is said to be further than it is."""
    world = World(name, room)
    for _ in range(12):
        world.steps(world.rng.randint(1, 40))
        for said, true in looked(world, world.rng.choice([0, 0, 5, 30])):
            if said.everywhere is not None and said.everywhere > true:
                return f"{name}: {said}, but a row of offset {true} is still on its way"
    return None


def test_progress_is_never_beyond_the_truth(seed: int) -> None:
    """Whatever a job looks like, whichever peer dies or takes over, and whatever commits while the groups are asked: each row
    below ``everywhere`` has been through all tasks, was dropped, or is in a result.
    """
    for number in range(HISTORIES):
        found = wrong(f"{seed}/progress/{number}")
        assert found is None, found


def test_fronts_that_find_no_room_say_less_and_nothing_wrong(seed: int, monkeypatch: Patch) -> None:
    """Where sources have too many partitions for the texts of statements and positions, fronts are coarser, say nothing, or are
    left out: progress is never beyond the truth, still moves while rows are under way, and reaches the end.
    """
    for number in range(HISTORIES // 4):
        name = f"{seed}/room/{number}"
        rng = random.Random(name)
        monkeypatch.setattr(positions, "LONGEST", rng.choice([100, 140, 165]))
        found = wrong(name, room=rng.choice([2, 8, 12, 16]))
        assert found is None, found
    monkeypatch.setattr(positions, "LONGEST", 165)
    said_rows, true_rows = moved_of(f"{seed}/room", 12)
    assert said_rows > true_rows / 20, (said_rows, true_rows)
    world = World(f"{seed}/room", 2)
    world.finish()
    assert not any(said.pending for said, _ in looked(world, 0))


def test_progress_reaches_what_was_read(seed: int) -> None:
    """When all rows are through and all windows have closed, nothing is pending, also where rows were dropped on their way."""
    for number in range(HISTORIES // 4):
        world = World(f"{seed}/progress/{number}")
        world.steps(60)
        world.finish()
        assert not world.alive()
        for said, _ in looked(world, 0):
            ends = len(world.log[Partition(said.source, said.partition)])
            assert said.read in (None, ends)
            assert said.read is None or (said.pending, said.held_by, said.why) == (0, (), ""), (number, said)


def test_progress_moves_while_rows_are_under_way(seed: int) -> None:
    """A job at work is not told to stand at 0: much of what is true is said, though no link was ever read to its end."""
    said_rows, true_rows = moved_of(f"{seed}/moves", LONGEST_FRONT)
    assert true_rows > 20
    assert said_rows > true_rows / 5, (said_rows, true_rows)


def moved_of(name: str, room: int) -> tuple[int, int]:
    """The rows below ``everywhere`` of partitions that have others under way: as it is said, and as it is true."""
    said_rows = true_rows = 0
    for number in range(100):  # fewer may happen to say little
        world = World(f"{name}/{number}", room)
        world.steps(250)
        for said, true in looked(world, 0):
            if said.pending:
                said_rows, true_rows = said_rows + (said.everywhere or 0), true_rows + true
    return said_rows, true_rows


# --- Mass's rule, by walking all paths --------------------------------------------------------------------------------


def test_it_is_the_least_over_all_paths_of_the_greatest_along_a_path(seed: int) -> None:
    """A walk over all paths, where an offset counts if nothing is unread or held after it, gives no more than the tables do; and
    both are at most the truth.
    """
    equal = 0
    for number in range(HISTORIES):
        world = World(f"{seed}/walk/{number}")
        world.steps(world.rng.randint(1, 150))
        look = world.look()
        for said, true in looked(world, 0):
            if said.everywhere is None:
                continue
            walked = min(of_paths(world, look, said))
            assert walked <= said.everywhere <= true, (number, walked, said, true)
            equal += walked == said.everywhere
    assert equal > HISTORIES


def of_paths(world: World, look: Look, said: SourceProgress) -> Iterator[int]:
    """The greatest offset along each path from a reader of the source to a task that nothing comes after."""
    source = world.sources.names.index(said.source)
    after: dict[str, list[Link]] = {stage.name: [] for stage in world.graph.stages}
    for stage in world.graph.stages:
        for link in inner(stage):
            after[link.source].append(link)

    def walk(task: str, path: list[Link], tasks: list[str]) -> Iterator[int]:
        if after[task]:
            for link in after[task]:
                yield from walk(link.target, [*path, link], [*tasks, link.target])
            return
        best = 0
        for at in range(len(tasks) - 1, -1, -1):
            stage = world.graph.stage(tasks[at])
            best = max(best, own_offset(world, look, stage, source, said))
            held = any(position is not None and position.held for position in look.first[stage.name].values())
            if held or (at and not progress._is_read(world.graph.stage(tasks[at - 1]), stage, path[at - 1], look)):
                break
        yield min(best, said.read or 0)

    for reader in world.sources.readers[source]:
        yield from walk(reader, [], [reader])


def own_offset(world: World, look: Look, stage: Stage, source: int, said: SourceProgress) -> int:
    """The offset of one task for itself: the least over all that it reads."""
    if stage.name in look.ended:
        return END
    fronts = Fronts(world.sources, stage, [])
    known = {
        partition: position or Position(0, front=UNKNOWN) for partition, position in look.first[stage.name].items()
    }
    return offset_of(fronts.front(known), source, said.partition)


# --- What each safeguard is for ---------------------------------------------------------------------------------------


def nothing_unread_is_not_asked_for(patch: Patch) -> None:
    """An offset counts although rows are unread after it, as in one process."""
    patch.setattr(progress, "_is_read", lambda *_: True)


def open_windows_hold_nothing(patch: Patch) -> None:
    """What a shard holds is not kept with its position."""
    patch.setattr(HeldRows, "merged", property(lambda _: None))


def a_takeover_forgets_what_is_held(patch: Patch) -> None:
    """A peer begins with an empty list of what its shards hold."""
    patch.setattr(HeldRows, "committed", classmethod(lambda cls, _: cls()))


def rows_are_as_new_as_their_batch(patch: Patch) -> None:
    """What is held is put down with the front after its batch, not with the one before it."""

    def in_force(world: World, topic: str, before: Position | None, after: Position) -> object:
        return world.sources.in_partition(topic, after._replace(held=None))

    patch.setattr(World, "in_force", in_force)


def a_peer_states_for_itself_alone(patch: Patch) -> None:
    """A peer does not ask for the partitions of others."""
    before = Fronts.front

    def front(fronts: Fronts, own: dict[Partition, Position | None]) -> object:
        fronts._offsets, fronts._fronts = {}, {}
        return before(fronts, own)

    patch.setattr(Fronts, "front", front)


def what_is_not_committed_counts(patch: Patch) -> None:
    """The group also tells what is in open transactions."""

    def ask(world: World, stage: Stage, number: int) -> None:
        found = dict(world.positions[stage.name])
        for slot in world.slots[stage.name]:
            found |= {} if slot.open is None else slot.open.positions
        world.slots[stage.name][number].answer = found

    patch.setattr(World, "ask", ask)


def statements_stand_before_the_rows(patch: Patch) -> None:
    """A statement is written before the rows that it is about."""
    before = World._write

    def write(world: World, batch: Batch, partitions: list[Partition], front: object) -> None:
        if front is None:
            before(world, batch, partitions, None)
            return
        for partition in partitions:
            log = world.log[partition]
            own = len(log) - sum(entry.transaction == batch.transaction for entry in log)
            before(world, batch, [partition], front)  # type: ignore[arg-type]
            log.insert(own, log.pop())

    patch.setattr(World, "_write", write)


def what_is_forgotten_counts_as_nothing(patch: Patch) -> None:
    """A task that has ended, and whose positions the brokers have forgotten, has written nothing."""
    before = progress._is_read
    patch.setattr(
        progress,
        "_is_read",
        lambda writer, reader, link, look: before(
            writer, reader, link, look._replace(ended={reader.name} & set(look.ended))
        ),
    )


def links_of_a_shard_are_heard_one_by_one(patch: Patch) -> None:
    """A peer keeps the greatest front of each partition, and not of all links of a shard together. What the shard holds stands in
    the position of its first link only, also rows of the others.
    """
    before = Fronts.front

    def by_place(fronts: Fronts, known: dict[Partition, Position | None]) -> object:
        return {p: fronts._sources.in_partition(p.topic, known.get(p)) for p in known if p.topic in fronts._inner}

    def front(fronts: Fronts, own: dict[Partition, Position | None]) -> object:
        kept = dict(fronts._fronts)
        for partition in own:
            fronts._fronts.pop(partition, None)  # type: ignore[call-overload]
        try:
            return before(fronts, own)
        finally:
            fronts._fronts = kept

    patch.setattr(Fronts, "_by_number", by_place)
    patch.setattr(Fronts, "front", front)


SAFEGUARDS: list[Callable[[Patch], None]] = [
    nothing_unread_is_not_asked_for,
    open_windows_hold_nothing,
    a_takeover_forgets_what_is_held,
    rows_are_as_new_as_their_batch,
    a_peer_states_for_itself_alone,
    what_is_not_committed_counts,
    statements_stand_before_the_rows,
    what_is_forgotten_counts_as_nothing,
    links_of_a_shard_are_heard_one_by_one,
]


@pytest.mark.parametrize("without", SAFEGUARDS, ids=lambda each: each.__name__)
def test_each_safeguard_is_needed(without: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """With any of them taken out, some history is said to be further than it is."""
    without(monkeypatch)
    names = (f"without/{number}" for number in (*KNOWN, *range(CONTROLS)))
    assert any(wrong(name) is not None for name in names), without.__doc__


# --- Parts ------------------------------------------------------------------------------------------------------------


def chain(*kinds: str) -> Graph:
    """Tasks one after the other, the first of which reads a topic."""
    links = [Link("hits.a", "hits", "input", "hits", "a")]
    names = "abcdef"[: len(kinds)]
    links += [Link(f"{x}.{y}", f"d.j.{x}.{y}", "internal", x, y) for x, y in pairwise(names)]
    stages = [
        Stage(TaskSpec(name=name, type="function"), [links[at]], links[at + 1 : at + 2])
        for at, name in enumerate(names)
    ]
    return Graph(list(names), stages, {}, bounded=False)


def test_a_window_that_is_open_is_named() -> None:
    """What is pending is held by the task whose window is open, and not by the tasks after it."""
    graph = chain("pass", "time", "pass")
    first = {
        "a": {Partition("hits", 0): Position(120, told=(100,))},
        "b": {Partition("d.j.a.b", 0): Position(9, _rows(100), front=((110,),), held=Held(60, ((89,),)), told=(7,))},
        "c": {Partition("d.j.b.c", 0): Position(4, _rows(7), front=((80,),))},
    }
    (found,) = source_progress(graph, Sources(graph), Look(first, first))
    assert found == ("hits", 0, 120, 89, 31, ("b",), "it holds rows, as open windows do")


def test_what_is_written_while_the_groups_are_asked_makes_up_for_nothing() -> None:
    """A reader has read as many rows as were written, but newer ones: the second answer shows that there are more."""
    graph = chain("pass", "pass")
    writer = {Partition("hits", 0): Position(120, told=(5,), front=())}
    later = {Partition("hits", 0): Position(130, told=(8,), front=())}
    reader = {
        Partition("d.j.a.b", 0): Position(6, _rows(5), front=((110,),)),
        Partition("d.j.a.b", 1): Position(1, front=((90,),)),
    }
    sources = Sources(graph)
    (found,) = source_progress(graph, sources, Look({"a": writer, "b": reader}, {"a": later, "b": reader}))
    assert (found.read, found.everywhere, found.held_by) == (120, 90, ("b",))
    (found,) = source_progress(graph, sources, Look({"a": writer, "b": reader}, {"a": writer, "b": reader}))
    assert (found.everywhere, found.pending) == (120, 0)


def _rows(count: int) -> Counts:
    return Counts(rows_in=count)


@pytest.mark.parametrize("behind", [Position(1, front=((90,),)), None])
def test_partitions_that_are_not_used_any_more_hold_nothing_back(behind: Position | None) -> None:
    """A queue that had two partitions has one: what was stated in the other one stands forever, and has no effect."""
    graph = chain("pass", "pass")
    writer = {Partition("hits", 0): Position(130, told=(8,), front=())}
    reader = {Partition("d.j.a.b", 0): Position(6, _rows(5), front=((110,),)), Partition("d.j.a.b", 1): behind}
    look = Look({"a": writer, "b": reader}, {"a": writer, "b": reader}, facts={"a.b": LinkFacts(partitions=1)})
    (found,) = source_progress(graph, Sources(graph), look)
    assert (found.read, found.everywhere) == (130, 110)
    (_, found_b) = trace(graph, Sources(graph), look, (0, 0, 100), holding=())
    assert found_b == TaskTrace("b", "through")


def test_without_lineage_it_is_known_only_where_nothing_is_unread_or_held() -> None:
    """For a job that does not ask for lineage, progress holds what is known without it, and which task makes it unknown."""
    graph = chain("pass", "pass")
    writer = {Partition("hits", 0): Position(120, told=(100,))}
    reader = {Partition("d.j.a.b", 0): Position(9, _rows(100))}
    look = Look({"a": writer, "b": reader}, {"a": writer, "b": reader})
    (found,) = source_progress(graph, Sources(graph), look, stated=False)
    assert (found.everywhere, found.pending) == (120, 0)
    (found,) = source_progress(graph, Sources(graph), look, holding={"b"}, stated=False)
    assert (found.read, found.everywhere, found.held_by) == (120, None, ("b",))
    behind = {Partition("d.j.a.b", 0): Position(9, _rows(99))}
    look = Look({"a": writer, "b": behind}, {"a": writer, "b": behind})
    (found,) = source_progress(graph, Sources(graph), look, stated=False)
    assert (found.everywhere, found.held_by) == (None, ("b",))


def test_a_row_of_another_link_that_a_shard_takes_holds_the_fronts_of_all_peers_back() -> None:
    """A join keeps what it holds in the position of its first link, also rows of the second. A peer that has heard that a shard
    of another peer was empty does not go on with that when the shard has taken a row: not of the source that only the second link
    carries, and not of one that both do.
    """
    to_join = [Link(f"{name}.join", f"d.j.{name}.join", "internal", name, "join") for name in ("a", "b")]
    first, second = (link.topic for link in to_join)
    reads = {"a": ["y"], "b": ["x", "y"]}
    stages = [
        Stage(
            TaskSpec(name=name, type="function"),
            [Link(f"{topic}.{name}", topic, "input", topic, name) for topic in topics],
            [link for link in to_join if link.source == name],
        )
        for name, topics in reads.items()
    ]
    join = Stage(TaskSpec(name="join", type="function"), to_join, [])
    sources = Sources(Graph(["a", "b", "join"], [*stages, join], {}, bounded=False))
    x, y = sources.names.index("x"), sources.names.index("y")

    def front(**offsets: int) -> Front:
        return tuple((offsets[name],) if name in offsets else None for name in sources.names)

    others = {
        Partition(first, 1): Position(1, front=front(y=9)),
        Partition(second, 1): Position(1, front=front(x=2, y=2)),
    }
    own = {Partition(first, 0): Position(3, front=front(y=9)), Partition(second, 0): Position(3, front=front(x=9, y=9))}
    peer = Fronts(sources, join, [*own, *others])
    peer.heard(others)
    held = Held(END, front(x=2, y=2))
    later = {
        Partition(first, 1): Position(1, front=front(y=9), held=held),
        Partition(second, 1): Position(3, front=front(x=9, y=9)),
    }
    peer.heard(later)
    said = peer.front(own)
    assert (said[x], said[y]) == ((2,), (2,))
    peer.heard({place: position._replace(held=None) for place, position in later.items()})
    said = peer.front(own)
    assert (said[x], said[y]) == ((9,), (9,))


def test_a_text_without_room_for_a_front_says_nothing() -> None:
    """If there is no room for a front at all, it is left out of a position's text. Then nothing is known, also of what is held
    and of partitions that are drained.
    """
    graph = chain("pass", "time")
    full = Position(7, drained="s" * 3_460, front=((1,),), held=Held(5, ((1,),)))
    text = full.metadata()
    assert len(text) < LONGEST
    read = Position.read(7, text)
    assert (read.front, read.held) == (None, None)
    assert Sources(graph).in_partition("d.j.a.b", read) == ((),)
    assert HeldRows.committed(read).merged == Held(END, UNKNOWN)
    assert Sources(graph).in_partition("d.j.a.b", Position(7, drained="s", front=((1,),))) == (None,)


def test_a_shard_whose_position_has_no_room_may_hold_anything() -> None:
    """All of a link is read, and still nothing is called through."""
    graph = chain("pass", "time")
    first = {
        "a": {Partition("hits", 0): Position(120, told=(5,), front=())},
        "b": {Partition("d.j.a.b", 0): Position(9, _rows(5))},
    }
    (found,) = source_progress(graph, Sources(graph), Look(first, first), holding={"b"})
    assert (found.read, found.everywhere, found.held_by) == (120, 0, ("b",))


def test_stretches_are_joined_and_never_say_more(seed: int) -> None:
    """However many stretches a shard holds, they are few, and each row stays in one that is not newer and not out sooner."""
    rng = random.Random(seed)
    held, rows = HeldRows(), list[tuple[int, int]]()
    for number in range(3000):
        closed = number // 3
        until = closed + rng.randint(1, 900)
        held = held.after(Held(until, ((number,),)), closed)
        rows = [row for row in [*rows, (number, until)] if row[1] > closed]
        assert len(held.stretches) <= 64
        merged = held.merged
        assert merged is not None
        assert (merged.front[0] or ())[0] <= min(row[0] for row in rows)
        assert merged.until >= max(row[1] for row in rows)
    assert held.after(None, 10**9) == HeldRows()
    assert not held.without_end
    assert held.after(Held(END, UNKNOWN), 0).without_end


def test_fronts_are_put_together_by_offset() -> None:
    """What holds at several places is the least; what is known twice of one, the greatest. What no place knows is 0."""
    assert least([((3, 5), None), ((4, 2), (7,))], 2) == ((3, 2), (7,))
    assert least([((3, 5),), ((4,), (1,))], 2) == ((3,), ())
    assert least([], 1) == (None,)
    assert greatest(((3, 5), (1,)), ((4,),)) == ((4, 5), (1,))
    assert greatest(((3,),), (None, (2,))) == (None, (2,))


def test_what_lies_before_the_start_of_a_job_is_through() -> None:
    """A job that began to read at an offset has nothing pending below it, although no front says so yet."""
    graph = chain("pass", "pass")
    first = {
        "a": {Partition("hits", 0): Position(120, told=(5,), front=())},
        "b": {Partition("d.j.a.b", 0): Position(3, _rows(2), front=())},
    }
    (found,) = source_progress(graph, Sources(graph), Look(first, first, starts={"hits": [100, 7]}))[:1]
    assert (found.everywhere, found.pending, found.held_by) == (100, 20, ("b",))
