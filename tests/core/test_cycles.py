"""Loops end when nothing is on its way in them, and not before: the proof, on random histories of random loops."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sardonyx.core.cycles import Standing, inner_links, outer_links, standing
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.graph import Cycle, Graph, Link, graph_of
from sardonyx.core.link_counts import with_told
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import CycleSpec, JobSpec, TaskSpec
from tests.sizes import histories

HISTORIES = histories(1_200, whole=10_000)
CONTROLS = 1_000
"""Histories of which some must fail without a safeguard."""


def a_spec(workflow: list[tuple[str, str]], back: list[tuple[str, str]], **more: object) -> JobSpec:
    names = dict.fromkeys(name for edge in workflow for name in edge)
    return JobSpec(
        name="loop",
        workflow=workflow,
        catalog=[
            TaskSpec(
                name=name,
                type="input" if name.startswith("in") else "output" if name.startswith("out") else "function",
                connector="generator" if name.startswith("in") else "blackhole" if name.startswith("out") else None,
                options={"count": 1} if name.startswith("in") else {},
                fn=None if name.startswith(("in", "out")) else "m:f",
                **({"fuse": True} if name.endswith("fused") else {}),
            )
            for name in names
        ],
        cycles=[CycleSpec(name="loop", back=back)],
        **more,  # type: ignore[arg-type]
    )


def a_graph(workflow: list[tuple[str, str]], back: list[tuple[str, str]], **more: object) -> Graph:
    return graph_of(a_spec(workflow, back, **more), "d", "j")


SHAPES = [
    a_graph([("in", "a"), ("a", "out")], [("a", "a")]),
    a_graph([("in", "a"), ("a", "b"), ("b", "out")], [("b", "a")]),
    a_graph([("in", "a"), ("a", "b"), ("b", "c"), ("c", "out")], [("c", "a")]),
    a_graph([("in", "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "out")], [("d", "a"), ("b", "b")]),
    a_graph([("in", "a"), ("in2", "b"), ("a", "b"), ("b", "c"), ("c", "out")], [("c", "b"), ("c", "a"), ("b", "a")]),
    a_graph([("in", "a"), ("a", "b"), ("b", "c_fused"), ("c_fused", "out"), ("b", "out2")], [("c_fused", "a")]),
]  # fmt: skip
assert all(len(graph.cycles) == 1 for graph in SHAPES)


@dataclass
class Work:
    """A batch that a peer has in hand: what it has read and what it will write."""

    place: Partition
    rows: list[int]
    into: list[tuple[Partition, int]]
    after: Position


@dataclass
class World:
    """A loop at work over links of a broker. A row holds how many rounds it has left.

    A transaction commits at one moment. Its rows can be read, and its position is answered, some time after that, each by itself:
    the broker writes the end of a transaction to each partition alone. Peers die with batches in hand, and others repeat those.

    ``split``: a control, in which what a batch writes is committed after what it reads.
    """

    graph: Graph
    rng: random.Random
    split: bool = False
    facts: dict[str, LinkFacts] = field(default_factory=dict)
    queues: dict[Partition, deque[int]] = field(default_factory=dict)
    held: dict[str, dict[Partition, Position | None]] = field(default_factory=dict)
    """What is answered."""
    works: dict[Partition, Work] = field(default_factory=dict)
    positions: dict[Partition, Position] = field(default_factory=dict)
    """Committed, but not answered yet."""
    rows: list[tuple[Partition, Partition, int]] = field(default_factory=list)
    """Committed by the peer of the first partition, but not to be read yet."""
    halves: list[Work] = field(default_factory=list)
    """Of a control: batches of which only the first half is committed."""

    def __post_init__(self) -> None:
        self.cycle = self.graph.cycles[0]
        self.inner = inner_links(self.graph, self.cycle)
        self.outer = outer_links(self.graph, self.cycle)
        links = [*self.inner, *self.outer]
        self.facts = {link.name: LinkFacts(self.rng.randint(1, 3)) for link in self.graph.links}
        self.queues = {
            Partition(link.topic, n): deque() for link in links for n in range(self.facts[link.name].partitions)
        }
        self.reader = {place: link.target for link in links for place in self.queues if place.topic == link.topic}
        self.held = {
            name: {p: None for p, reader in self.reader.items() if reader == name} for name in self.cycle.stages
        }
        self.left = {link.name: self.rng.randint(0, 3) for link in self.outer}

    def act(self) -> None:
        """Something of what can happen next."""
        can: list[Callable[[], None]] = []
        if self.rows:
            can += [self._show] * 3
        if self.positions and self.rng.random() < 0.1:
            can.append(lambda: self._answered(self.rng.choice([*self.positions])))
        if self.halves:
            can.append(lambda: self._commit(self.halves.pop(0), whole=True))
        if self.works:
            works = [*self.works]
            can += [lambda: self._commit(self.works.pop(self.rng.choice(works)))] * 3
            can.append(lambda: self._die(self.works.pop(self.rng.choice(works))))
        if places := [place for place, rows in self.queues.items() if rows and place not in self.works]:
            can += [lambda: self._begin(self.rng.choice(places))] * 3
        if not can or self.rng.random() < 0.2:
            can = [lambda: self._feed(self.rng.choice(self.outer))]
        self.rng.choice(can)()

    def _show(self) -> None:
        """A row that is committed can be read from now on."""
        _, to, row = self.rows.pop(0)
        self.queues[to].append(row)

    def _die(self, work: Work) -> None:
        """The next peer reads the rows again."""
        self.queues[work.place].extendleft(reversed(work.rows))

    def _feed(self, link: Link) -> None:
        """A task outside writes a row; or the link is over, and its reader commits that a partition has ended."""
        place = self.rng.choice([place for place in self.queues if place.topic == link.topic])
        if self.left[link.name]:
            self.left[link.name] -= 1
            self.queues[place].append(self.rng.randint(0, 6))
        elif not (self.queues[place] or place in self.works or place in self.positions or self.halves):
            held = self.held[link.target]
            held[place] = (held[place] or Position(0))._replace(drained="sentinel")

    def _begin(self, place: Partition) -> None:
        """A peer reads what is there. It begins no transaction before its last one has ended everywhere."""
        if any(half.place == place for half in self.halves):
            return
        self._answered(place)
        for _, to, row in [each for each in self.rows if each[0] == place]:
            self.queues[to].append(row)
        self.rows = [each for each in self.rows if each[0] != place]
        queue = self.queues[place]
        rows = [queue.popleft() for _ in range(self.rng.randint(1, len(queue)))]
        stage = self.graph.stage(self.reader[place])
        written = [0] * len(stage.counted)
        into: list[tuple[Partition, int]] = []
        for number, link in enumerate(stage.counted):
            for row in rows if link in self.inner else ():
                partitions = self.facts[link.name].partitions
                more = min(row, self.rng.choice([1, 2] if self._unread < 3 else [0, 1] if self._unread < 6 else [0]))
                into += [(Partition(link.topic, self.rng.randrange(partitions)), row - link.feedback)] * more
                written[number] += more
        before = self.held[stage.name][place] or Position(0)
        counts = Counts(before.counts.rows_in + len(rows), before.counts.rows_out + len(into))
        self.works[place] = Work(place, rows, into, with_told(before, written)._replace(counts=counts))

    @property
    def _unread(self) -> int:
        return len(self.rows) + sum(map(len, self.queues.values()))

    def _commit(self, work: Work, *, whole: bool = False) -> None:
        if self.split and not whole:
            before = self.held[self.reader[work.place]][work.place]
            told = (0,) * len(work.after.told or ()) if before is None else before.told
            self.positions[work.place] = work.after._replace(told=told)
            self.halves.append(work)
            return
        self.positions[work.place] = work.after
        self.rows += [(work.place, to, row) for to, row in work.into]

    def _answered(self, place: Partition) -> None:
        if place in self.positions:
            self.held[self.reader[place]][place] = self.positions.pop(place)

    def answer(self, stage: str, *, stable: bool = True) -> dict[Partition, Position | None]:
        """What a stage's group answers at one moment. ``stable``: after the ends of its transactions."""
        for place in [*self.positions] if stable else ():
            if self.reader[place] == stage:
                self._answered(place)
        return dict(self.held[stage])

    @property
    def over(self) -> bool:
        """Whether nothing is left, as one who sees everything at once knows."""
        drained = all(
            (self.held[link.target][place] or Position(0)).drained
            for link in self.outer
            for place in self.queues
            if place.topic == link.topic
        )
        return drained and not (self.rows or self.works or self.halves) and not any(self.queues.values())


Asking = Callable[[World], dict[str, dict[Partition, Position | None]]]


def one_pass(world: World) -> dict[str, dict[Partition, Position | None]]:
    """Ask all stages, in any order, while the loop goes on."""
    answers = {}
    for name in world.rng.sample(world.cycle.stages, len(world.cycle.stages)):
        answers[name] = world.answer(name)
        _go_on(world)
    return answers


def unstable(world: World) -> dict[str, dict[Partition, Position | None]]:
    """A control: the same, without waiting for the ends of transactions."""
    answers = {}
    for name in world.rng.sample(world.cycle.stages, len(world.cycle.stages)):
        answers[name] = world.answer(name, stable=False)
        _go_on(world)
    return answers


def _go_on(world: World) -> None:
    for _ in range(world.rng.choice([0, 1, 3, 10, 30])):
        world.act()


Judge = Callable[[Standing], bool]


def quiescent(found: Standing) -> bool:
    return found.quiescent


def in_total(found: Standing) -> bool:
    """A control: rows are compared in total, and not link by link."""
    return not found.fed and sum(found.read.values()) == sum(rows or 0 for rows in found.written.values())


def counts_alone(found: Standing) -> bool:
    """A control: more may come from outside."""
    return found.read == found.written


def ways_in_alone(found: Standing) -> bool:
    """A control: what is on its way is not counted."""
    return not found.fed


def history(seed: int, asking: Asking = one_pass, judge: Judge = quiescent, *, split: bool = False) -> bool:
    """Whether a history goes well: the loop is found to have ended when it has, and is found to within two passes."""
    rng = random.Random(seed)
    world = World(rng.choice(SHAPES), rng, split)
    looks = 0
    while True:
        found = standing(world.graph, world.cycle, world.facts, asking(world))
        if judge(found):
            return world.over
        looks = looks + 1 if world.over else 0
        if looks > 2:
            return False
        _go_on(world)


@pytest.mark.parametrize("part", range(10))
def test_a_loop_is_found_to_have_ended_when_it_has_and_not_before(part):
    """In 10,000 random histories of six loops, one pass in any order finds the end, never early, and always at last."""
    assert [seed for seed in range(part, HISTORIES, 10) if not history(seed)] == []


@pytest.mark.parametrize(
    ("asking", "judge"),
    [(unstable, quiescent), (one_pass, in_total), (one_pass, counts_alone), (one_pass, ways_in_alone)],
)
def test_without_a_safeguard_some_histories_go_wrong(asking, judge):
    """Each safeguard is needed: without it, some of 1,000 histories end early, or never."""
    assert not all(history(seed, asking, judge) for seed in range(CONTROLS))


def test_counts_outside_the_transaction_are_wrong_in_some_histories():
    """If what a batch writes were counted after what it reads, loops would end early."""
    assert not all(history(seed, split=True) for seed in range(CONTROLS))


def test_answers_that_are_not_of_one_moment_can_lie():
    """A task's positions must be answered at once: partition 0 before it gives two rows to partition 1, and 1 after it has read
    them and given one on, look as if nothing were on its way.
    """
    graph = SHAPES[0]
    link = graph.stage("a").ingress[-1]
    facts = {each.name: LinkFacts(2) for each in graph.links}
    outer = {
        Partition(each.topic, n): Position(1, drained="sentinel", told=(0, 0))
        for each in graph.stage("a").ingress
        for n in (0, 1)
    }
    ways_in = {place: at for place, at in outer.items() if place.topic != link.topic}
    one, two = Partition(link.topic, 0), Partition(link.topic, 1)
    place = [each.name for each in graph.stage("a").counted].index(link.name)

    def at(read: int, written: int) -> Position:
        told = [0, 0]
        told[place] = written
        return Position(read, Counts(rows_in=read), told=tuple(told))

    before = {**ways_in, one: at(0, 1), two: at(0, 0)}  # partition 0 has given itself a row, and has it still to read
    after = {**ways_in, one: at(1, 3), two: at(2, 1)}  # it has, and gave two; these are read, and gave one that is not
    mixed = {**ways_in, one: before[one], two: after[two]}
    found = {
        name: standing(graph, graph.cycles[0], facts, {"a": held})
        for name, held in {"before": before, "after": after, "mixed": mixed}.items()
    }
    assert (found["before"].unread, found["after"].unread) == (1, 1)
    assert not found["before"].quiescent
    assert not found["after"].quiescent
    assert found["mixed"].quiescent


def test_a_loop_is_what_lies_on_a_way_round():
    """Tasks before a loop, after it, and beside it are not in it; a fused task that closes it is, with its stage."""
    graph = a_graph(
        [("in", "before"), ("before", "a"), ("a", "b"), ("b", "c_fused"), ("c_fused", "out"), ("a", "aside"), ("aside", "out2")],
        [("c_fused", "a")],
    )  # fmt: skip
    assert graph.cycles == [Cycle("loop", ["a", "b"])]
    graph = a_graph([("in", "a"), ("a", "c_fused"), ("c_fused", "out")], [("c_fused", "a")])
    assert graph.cycles == [Cycle("loop", ["a"])]
    link = graph.stage("a").ingress[-1]
    assert (link.name, link.source, link.target, link.feedback) == ("c_fused.a", "a", "a", True)


def test_unknown_counts_prove_nothing():
    """Where a release that does not count rows has written, no end is proven."""
    graph = SHAPES[0]
    world = World(graph, random.Random(1))
    held = {place: Position(0, Counts(rows_in=3, rows_out=1), "sentinel") for place in world.held["a"]}
    found = standing(graph, world.cycle, world.facts, {"a": held})
    assert found.written == {"a.a": None}
    assert found.uncounted == ["a.a"]
    assert not found.fed
    assert not found.quiescent


def test_an_answer_that_lacks_a_partition_proves_nothing():
    """What its batches have written would be missing, and the rest might be as many as were read."""
    graph = SHAPES[0]
    world = World(graph, random.Random(1))
    world.facts = {link.name: LinkFacts(2) for link in graph.links}
    places = [Partition(link.topic, number) for link in graph.stage("a").ingress for number in (0, 1)]
    held = {place: Position(1, drained="sentinel", told=(0, 0)) for place in places}
    assert standing(graph, world.cycle, world.facts, {"a": held}).quiescent
    for place in places:
        lacking = {other: position for other, position in held.items() if other != place}
        assert standing(graph, world.cycle, world.facts, {"a": lacking}).written == {"a.a": None}


def test_a_partition_that_was_added_to_an_endless_topic_counts():
    """While a user's topic without an end has a partition that is not read to its end, more may come."""
    spec = a_spec([("in", "a"), ("a", "out")], [("a", "a")], partitions=1)
    topic = TaskSpec(name="in", type="input", connector="kafka", options={"topic": "t"})
    spec = JobSpec(name="loop", workflow=spec.workflow, catalog=[topic, *spec.catalog[1:]], cycles=spec.cycles)
    graph = graph_of(spec, "d", "j")
    facts = {link.name: LinkFacts(1) for link in graph.links}
    held: dict[Partition, Position | None] = {Partition("t", 0): Position(3, drained="end")}
    assert standing(graph, graph.cycles[0], facts, {"a": held}).fed == []
    held[Partition("t", 1)] = None
    assert standing(graph, graph.cycles[0], facts, {"a": held}).fed == ["in.a"]
