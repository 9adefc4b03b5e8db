"""Bounds of queues: whom a full queue holds, that no job ever stands still by it, and what is said about it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from peer.back_pressure import BackPressure
from sardonyx import Job, blackhole, generator
from sardonyx.client.held_tasks import holds_of
from sardonyx.client.lags import LinkLag
from sardonyx.client.views import TaskView
from sardonyx.core import node_paths
from sardonyx.core.back_pressure import bounds_of, held, holds, with_default
from sardonyx.core.changing import obstacles
from sardonyx.core.errors import JobInvalid
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Stage, graph_of
from sardonyx.core.notes import Assignment, LinksNote, TaskNote
from sardonyx.core.spec import CycleSpec, JobSpec, TaskSpec
from sardonyx.core.untouched import untouched
from sardonyx.job.validate import validate
from tests.random_jobs import random_spec
from tests.sizes import histories

GRAPHS = histories(400, whole=4_000)
BATCH = 3
STEPS = 20_000


def job(*edges: str, back: Iterable[str] = (), end: str | None = None, **fields: Any) -> JobSpec:
    """A job whose tasks are named by its edges, such as ``a.b``."""
    workflow = [(edge[: edge.index(".")], edge[edge.index(".") + 1 :]) for edge in edges]
    names = list(dict.fromkeys(name for edge in workflow for name in edge))
    catalog = []
    for name in names:
        first, last = all(b != name for _, b in workflow), all(a != name for a, _ in workflow)
        kind = "input" if first else "output" if last else "function"
        catalog.append(
            TaskSpec(
                name=name,
                type=kind,  # type: ignore[arg-type]
                connector="kafka" if first else "blackhole" if last else None,
                options={"topic": name, "end": end} if first else {},
                fn=None if last else "m:f",
            )
        )
    cycles = [CycleSpec(name=f"loop{n}", back=[tuple(edge.split("."))]) for n, edge in enumerate(back)]  # type: ignore[list-item]
    return JobSpec(name="j", workflow=workflow, catalog=catalog, cycles=cycles, **fields)


def layout(spec: JobSpec) -> Graph:
    return graph_of(spec, "d", "j-1")


# --- The rule ---------------------------------------------------------------------------------------------------------


class Machine:
    """A job at work: rows as numbers, tasks that read any of their queues that has some, and peers that come to them by the rules
    of ``docs/coordination.md``, as far as these matter here.
    """

    def __init__(self, rng: random.Random, graph: Graph, bounds: Mapping[str, int], peers: int) -> None:
        self.rng, self.graph, self.bounds = rng, graph, bounds
        self.free = peers
        self.goes_on = not graph.bounded
        self.peers: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self.source = {s.name: rng.randint(1, 12) for s in graph.stages if not self._queues(s)}
        self.again = 20
        """Rows that may still go over feedback links."""
        self.complete: set[str] = set()
        self.is_held: Callable[..., list[Any]] = held

    def _queues(self, stage: Stage) -> list[str]:
        return [link.name for link in stage.ingress if link.kind == "internal"]

    def _has_rows(self, stage: Stage) -> bool:
        return bool(self.source.get(stage.name)) or any(self.unread[name] for name in self._queues(stage))

    def _held(self) -> set[str]:
        found = self.is_held(self.graph, self.bounds, self.unread, self.peers, goes_on=self.goes_on)
        return {hold.task for hold in found}

    def run(self) -> bool:
        """Work until everything is read; whether it came to that."""
        for _ in range(STEPS):
            self._end_tasks()
            self._place_peers()
            on_hold = self._held()
            ready = [s for s in self.graph.stages if self.peers[s.name] and s.name not in on_hold and self._has_rows(s)]
            if ready:
                self._batch(self.rng.choice(ready))
            elif not any(self._has_rows(stage) for stage in self.graph.stages):
                return True
            elif not (self.goes_on and self._turn(on_hold)):
                return False
        return False

    def _batch(self, stage: Stage) -> None:
        full = [name for name in self._queues(stage) if self.unread[name]]
        if full:
            name = self.rng.choice(full)
            rows = min(BATCH, self.unread[name])
            self.unread[name] -= rows
        else:
            rows = min(BATCH, self.source[stage.name])
            self.source[stage.name] -= rows
        for link in stage.counted:
            made = self.rng.randint(0, 2 * rows)
            if link.feedback:
                made = min(made, self.again)
                self.again -= made
            bound = self.bounds.get(link.name)
            assert bound is None or self.unread[link.name] < bound or not self.goes_on, "it wrote to a full queue"
            self.unread[link.name] += made

    def _end_tasks(self) -> None:
        """A task of a job that ends is complete when those before it are, a loop as a whole, and nothing is unread."""
        for stage in self.graph.stages if not self.goes_on else ():
            cycle = self.graph.cycle_of(stage.name)
            group = [self.graph.stage(name) for name in cycle.stages] if cycle else [stage]
            inside = {each.name for each in group}
            before = {link.source for each in group for link in each.ingress if link.kind == "internal"} - inside
            if before <= self.complete and not any(map(self._has_rows, group)):
                self.complete |= inside
                for name in inside:
                    self.free += self.peers.pop(name, 0)

    def _place_peers(self) -> None:
        for stage in self.rng.sample(self.graph.stages, len(self.graph.stages)) if self.goes_on else self.graph.stages:
            if self.free and not self.peers[stage.name] and stage.name not in self.complete and self._may_begin(stage):
                self.free -= 1
                self.peers[stage.name] += 1

    def _may_begin(self, stage: Stage) -> bool:
        """In a job that ends no task is begun while one right before it has no peer and is not complete; but in a loop."""
        if self.goes_on or self.graph.cycles:
            return True
        before = {link.source for link in stage.ingress if link.kind == "internal"}
        return all(name in self.complete or self.peers[name] for name in before)

    def _turn(self, on_hold: set[str]) -> bool:
        """A peer that has nothing to read, or is held, gives its task up for one that has no peer."""
        idle = [
            s.name for s in self.graph.stages if self.peers[s.name] and (s.name in on_hold or not self._has_rows(s))
        ]
        lacking = [s.name for s in self.graph.stages if not self.peers[s.name] and self._has_rows(s)]
        if not idle or not lacking:
            return False
        self.peers[self.rng.choice(idle)] -= 1
        self.peers[self.rng.choice(lacking)] += 1
        return True


def drawn(number: int) -> tuple[random.Random, JobSpec]:
    rng = random.Random(f"bounds/{number}")
    return rng, random_spec(rng, "r", endless=0.9 if number % 2 else 0.0, loops=0.4)


def played(number: int, change: Callable[[Machine], None] = lambda _: None) -> Machine | None:
    """The machine of a random job, if it has come to a standstill."""
    rng, spec = drawn(number)
    spec = msgspec.structs.replace(spec, max_backlog=rng.choice([1, 1, 4]))
    graph = layout(spec)
    least = (
        len(graph.stages) if graph.cycles and graph.bounded else 1
    )  # tasks of a loop take turns, which is not played
    peers = rng.randint(least, len(graph.stages))
    machine = Machine(rng, graph, bounds_of(graph.links, {}), peers)
    change(machine)
    return None if machine.run() else machine


def test_no_job_stands_still_by_its_bounds() -> None:
    """Jobs of any shape, with diamonds and loops, with an end and without, on any number of peers: all rows are read."""
    stuck = [number for number in range(GRAPHS) if played(number)]
    assert stuck == [], "bounds/N of these"


def test_the_machine_notices_a_queue_of_a_loop_that_holds() -> None:
    """With bounds in loops, too, some of these jobs stand still: that is what the rule excepts."""

    def everywhere(machine: Machine) -> None:
        links = [link for stage in machine.graph.stages for link in stage.counted]
        machine.bounds = {link.name: 1 for link in links}
        machine.is_held = lambda *_, goes_on: [
            SimpleNamespace(task=link.source)
            for link in links
            if holds(machine.unread[link.name], 1, is_read=machine.peers[link.target] > 0, goes_on=goes_on)
        ]

    assert any(played(number, everywhere) for number in range(GRAPHS))


def test_the_machine_notices_a_queue_that_nobody_reads() -> None:
    """If a queue also holds whose reader gets no peer before its writer is complete, jobs that end stand still."""

    def stubborn(machine: Machine) -> None:
        machine.is_held = lambda *of, goes_on: held(*of, goes_on=True)

    assert any(played(number, stubborn) for number in range(GRAPHS))


def test_a_diamond_whose_one_branch_is_full_goes_on() -> None:
    """A join waits for one branch while the other is full: it reads on, and keeps the rows in its state. So the branch with room
    is never starved for good by the full one, whose reader no queue holds.
    """
    spec = job("read.left", "read.right", "left.join", "right.join", "join.out", max_backlog=10)
    graph = layout(spec)
    unread = {"left.join": 10, "right.join": 0, "read.left": 10}
    found = held(graph, bounds_of(graph.links, {}), unread, {"join": 1, "left": 1}, goes_on=True)
    assert [(hold.task, hold.link, hold.last) for hold in found] == [
        ("read", "read.left", "join"),
        ("left", "left.join", "join"),
    ]
    assert "join" not in {hold.task for hold in found}


@pytest.mark.parametrize(
    ("unread", "is_read", "goes_on", "expected"),
    [
        (9, True, True, False),
        (10, True, True, True),
        (10, False, True, True),
        (10, True, False, True),
        (10, False, False, False),
        (None, True, True, False),
    ],
)
def test_when_a_queue_holds(unread: int | None, is_read: bool, goes_on: bool, expected: bool) -> None:
    assert holds(unread, 10, is_read=is_read, goes_on=goes_on) is expected


def test_no_queue_between_tasks_from_which_rows_come_back_has_a_bound() -> None:
    """Neither within a loop, nor between two loops that lead into each other."""
    spec = job("read.a", "a.b", "b.a2", "a2.out", back=["b.a"], max_backlog=5)
    assert bounds_of(layout(spec).links, {}) == {"read.a": 5, "b.a2": 5, "a2.out": 5}
    twice = job("read.a", "read.d", "a.b", "d.c", "a.c", "d.b", "b.out", "c.out", back=["b.a", "c.d"], max_backlog=5)
    assert set(bounds_of(layout(twice).links, {})) == {"read.a", "read.d", "b.out", "c.out"}


def test_a_job_may_say_another_bound_than_the_cluster() -> None:
    """Of all its queues, or of one; 0: none."""
    facts = {name: LinkFacts(2, max_backlog=100) for name in ("a.b", "b.out")}
    edges = "a.b", "b.out"
    assert bounds_of(layout(job(*edges)).links, facts) == {"a.b": 100, "b.out": 100}
    assert bounds_of(layout(job(*edges, max_backlog=7)).links, facts) == {"a.b": 7, "b.out": 7}
    assert bounds_of(layout(job(*edges, max_backlog={"a.b": 0})).links, facts) == {"b.out": 100}
    assert bounds_of(layout(job(*edges, max_backlog=0)).links, facts) == {}
    assert bounds_of(layout(job(*edges)).links, {}) == {}


def test_the_cluster_has_a_default_for_queues_between_tasks() -> None:
    """Not for topics of the user, nor for queues of a loop. What the job says takes its place."""
    graph = layout(job("read.a", "a.b", "b.a2", "a2.out", back=["b.a"], max_backlog={"b.a2": 7}))
    made = {link.name: LinkFacts(2) for link in graph.links}
    assert with_default(graph, made, None) == made
    facts = with_default(graph, made, 100)
    bounded = {name for name, known in facts.items() if known.max_backlog == 100}
    assert bounded == {link.name for link in graph.links if link.kind == "internal"}
    assert {link.kind for link in graph.links} - {"internal"}
    assert bounds_of(graph.links, facts) == {"read.a": 100, "b.a2": 7, "a2.out": 100}


# --- In a job's definition, and its changes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (-1, "max_backlog cannot be -1"),
        ({"a.b": -1}, "max_backlog of a.b cannot be -1"),
        ({"a.c": 5}, "'a.c' is not a queue between two tasks"),
        ({"b.b2": 5}, "the queue b.b2 lies within a loop"),
    ],
)
def test_a_bound_that_cannot_be(bound: Any, words: str) -> None:
    spec = job("a.b", "b.b2", "b2.out", back=["b2.b"], max_backlog=bound)
    with pytest.raises(JobInvalid) as found:
        validate(spec, import_functions=False)
    (said,) = [problem for problem in found.value.problems if problem.code == "SX-JOB-BACKLOG"]
    assert words in said.message


def test_a_job_is_written_with_bounds() -> None:
    flow = Job("j", max_backlog={"read.out": 50_000})
    flow.output("out", blackhole(), after=flow.input("read", generator(count=3)))
    assert flow.spec().max_backlog == {"read.out": 50_000}
    with pytest.raises(JobInvalid, match="a number of rows"):
        Job("j", max_backlog="2 GiB").spec()  # type: ignore[arg-type]


def test_a_bound_changes_in_a_running_job() -> None:
    """Only the peers of the tasks that write the queues leave for it."""
    before = job("a.b", "b.out", max_backlog={"a.b": 5})
    after = msgspec.structs.replace(before, max_backlog={"a.b": 6})
    assert list(obstacles(before, after)) == []
    facts = {link.name: LinkFacts(2) for link in layout(before).links}
    assert untouched(before, after, ["a", "b", "out"], facts) == ["b", "out"]


# --- In a peer ------------------------------------------------------------------------------------------------------------


class Broker:
    """Tells what a test wants to be unread."""

    def __init__(self) -> None:
        self.rows: dict[str, int | None] = {}
        self.closed = False

    def latest(self) -> dict[str, int | None]:
        return self.rows

    def close(self) -> None:
        self.closed = True


def work(broker: Broker, **fields: Any) -> Any:
    graph = layout(job("a.b", "b.out", end="latest"))
    return SimpleNamespace(
        assignment=Assignment(1, "j-1", "a", 0),
        bounds={"a.b": 10},
        readers={"a.b": graph.stage("b")},
        unread_rows=lambda: broker,
        **{"goes_on": True, **fields},
    )


def tree(peers: dict[str, int]) -> Any:
    notes = {
        node_paths.job_task("j-1", "b"): TaskNote(state="running", n=1, peers=peers),
        node_paths.job_links("j-1"): LinksNote({"a.b": LinkFacts(1)}),
    }
    return SimpleNamespace(read=lambda path: msgspec.json.encode(notes[path]))


def test_a_peer_pauses_while_a_queue_is_full() -> None:
    broker = Broker()
    pressure = BackPressure(work(broker), tree({}))
    assert not pressure.holds, "nothing is known yet"
    for rows, expected in ((9, False), (10, True), (11, True), (None, False), (10, True), (0, False)):
        broker.rows = {"a.b": rows}
        assert pressure.holds is expected
    pressure.close()
    assert broker.closed


@pytest.mark.parametrize(("peers", "expected"), [({}, False), ({"p": 0}, True)])
def test_in_a_job_that_ends_a_queue_holds_only_while_it_is_read(peers: dict[str, int], expected: bool) -> None:
    broker = Broker()
    broker.rows = {"a.b": 10}
    assert BackPressure(work(broker, goes_on=False), tree(peers)).holds is expected


def test_a_queue_that_nobody_reads_holds_its_writer_until_the_job_is_stopped() -> None:
    """The writer keeps its peer then, which was made when the job still went on."""
    broker, links = Broker(), {"a.b": LinkFacts(1), "a.topic": LinkFacts(1)}
    notes = {node_paths.job_links("j-1"): LinksNote(links)}
    zookeeper: Any = SimpleNamespace(read=lambda path: msgspec.json.encode(notes[path]) if path in notes else None)
    pressure = BackPressure(work(broker), zookeeper)
    for stops, expected in ((False, True), (True, False)):
        broker.rows = {"a.b": 10}
        links["a.topic"] = LinkFacts(1, stops=stops)
        assert pressure.holds is expected


def test_a_task_without_bounds_asks_nobody() -> None:
    def asked() -> None:
        raise AssertionError("it asks")

    bare = SimpleNamespace(bounds={}, unread_rows=asked)
    pressure = BackPressure(bare, tree({}))  # type: ignore[arg-type]
    assert not pressure.holds
    pressure.close()


# --- What is said ---------------------------------------------------------------------------------------------------------


def test_who_is_held_and_what_is_waited_for_in_the_end() -> None:
    graph = layout(job("a.b", "b.c", "c.out", max_backlog={"a.b": 10, "b.c": 1_000}))
    facts = {link.name: LinkFacts(2) for link in graph.links}

    def lag(link: str, records: int, precision: str = "exact") -> LinkLag:
        reader = link.partition(".")[2]
        return LinkLag(link=link, reader=reader, kind="internal", topic=link, records=records, precision=precision)  # type: ignore[arg-type]

    tasks = [TaskView(name=name, type="function", state="running", peers=1) for name in ("a", "b", "c", "out")]
    first, second = holds_of(graph, facts, [lag("a.b", 12), lag("b.c", 1_200), lag("c.out", 99)], tasks)
    assert first.text == (
        "task a pauses: a.b is full, with 12 unread rows of at most 10, and waits for task b, which is held itself; all of them "
        "wait for task c"
    )
    assert second.text == ("task b pauses: b.c is full, with 1,200 unread rows of at most 1,000, and waits for task c")
    assert holds_of(graph, facts, [lag("a.b", 12, "estimate")], tasks) == []
