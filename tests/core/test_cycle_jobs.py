"""Loops as users declare them: what they become, what is refused, and how they are shown."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from coordinator.core.admission import refusal
from peer.loops import loop_of
from queues.batch import Chunk
from queues.messages import HOPS_HEADER, ROWS_HEADER, Outgoing, Records, with_hops
from queues.read_buffer import ReadBuffer
from sardonyx import Job, Sum, blackhole, files, generator, kafka, tumbling
from sardonyx.cli.app import app
from sardonyx.cli.call import Call
from sardonyx.cli.graph_text import draw
from sardonyx.cli.plan_text import as_dot, as_mermaid, as_text
from sardonyx.client.cycles import JobCycle, cycle_of, in_words, job_cycles
from sardonyx.core.changing import obstacles
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Cycle, graph_of
from sardonyx.core.plan import plan_of
from sardonyx.core.positions import COUNTED, Counts, Partition, Position
from sardonyx.core.redoing import redo_spec
from sardonyx.core.spec import CycleSpec, JobSpec, decode_spec, encode_spec
from sardonyx.job.parse import read
from sardonyx.job.validate import problems_of
from sardonyx.runtime.settings import Settings


def crawl(**more: Any) -> Job:
    """The job of docs/cycles.md, with functions by name."""
    job = Job("crawl", partitions=4)
    seeds = job.input("seeds", generator(10))
    with job.cycle("crawl", after=seeds, **more) as again:
        pages = job.task("fetch", "m:fetch", after=again)
        fresh = job.keyed("fresh", "m:unseen", after=pages, group_by="url")
        again.feedback(fresh.where("m:is_inside"))
    job.output("pages", blackhole(), after=pages)
    return job


def codes(job: Job | JobSpec) -> list[str]:
    spec = job if isinstance(job, JobSpec) else job.spec()
    return [problem.code for problem in problems_of(spec, import_functions=False)]


def test_a_loop_is_its_feedback_edges():
    """The builder gives the workflow without them, and each feedback edge to each task that the loop begins with."""
    spec = crawl(max_hops=20).spec()
    assert spec.workflow == [("seeds", "fetch"), ("fetch", "fresh"), ("fetch", "pages")]
    assert spec.cycles == [CycleSpec(name="crawl", back=[("fresh", "fetch")], max_hops=20)]
    assert spec.routes["fresh.fetch"].where == "m:is_inside"
    assert codes(spec) == []
    assert decode_spec(encode_spec(spec)) == spec
    graph = graph_of(spec, "d", "j")
    assert graph.cycles == [Cycle("crawl", ["fetch", "fresh"], 20)]
    assert [(link.name, link.feedback) for link in graph.stage("fetch").ingress] == [
        ("seeds.fetch", False),
        ("fresh.fetch", True),
    ]


def test_a_loop_may_begin_with_several_tasks_and_be_fed_by_several():
    """What comes from outside and what comes back goes to each of its first tasks."""
    job = Job("j")
    again = job.cycle("loop", after=[job.input("one", generator(1)), job.input("two", generator(1)).where("m:some")])
    left, right = job.task("left", "m:f", after=again), job.task("right", "m:f", after=again)
    again.feedback(left, right.failed)
    job.output("out", blackhole(), after=[left, right])
    spec = job.spec()
    assert spec.cycles[0].back == [("left", "left"), ("right", "left"), ("left", "right"), ("right", "right")]
    assert spec.routes["two.right"].where == "m:some"
    assert spec.routes["right.left"].of == "failed"
    assert codes(spec) == []
    assert repr(again) == "<loop 'loop' of job 'j'>"


def test_yaml_and_python_give_the_same_loop():
    """A file may name feedback edges as pairs or as a map."""
    given = yaml.safe_load("""
        name: crawl
        partitions: 4
        workflow: [[seeds, fetch], [fetch, fresh], [fetch, pages]]
        cycles: [{name: crawl, back: {fresh: fetch}, max_hops: 20}]
        routes: {fresh.fetch: {where: "m:is_inside"}}
        catalog:
        - {name: seeds, type: input, connector: generator, options: {count: 10}}
        - {name: fetch, type: function, fn: "m:fetch"}
        - {name: fresh, type: function, fn: "m:unseen", group_by: url, keyed: {}}
        - {name: pages, type: output, connector: blackhole}
    """)
    assert read(given) == (crawl(max_hops=20).spec(), [])
    for cycles, message in (
        (3, "cycles is a list of loops, not int (3)"),
        ([3], "entry 1 of cycles is a mapping, not int (3)"),
        ([{"back": [["fresh", "fetch"]]}], "a loop needs name"),
        ([{"name": "x", "back": 3}], "workflow is a list of edges or a nested map, not int (3)"),
        ([{"name": "x", "back": [], "max_hop": 3}], "a loop has no 'max_hop'; did you mean 'max_hops'?"),
        ([{"name": "x", "back": [], "max_hops": "many"}], "max_hops cannot be 'many'"),
    ):
        assert message in [problem.message for problem in read(given | {"cycles": cycles})[1]]


def looped(workflow: list[tuple[str, str]], cycles: list[CycleSpec], **tasks: dict[str, Any]) -> JobSpec:
    names = dict.fromkeys(itertools.chain.from_iterable(workflow))
    job = Job("j")
    catalog = []
    for name in names:
        kind = "input" if name == "in" else "output" if name.startswith("out") else "function"
        entry: dict[str, Any] = {"name": name, "type": kind}
        entry |= {"fn": "m:f"} if kind == "function" else {"connector": "generator", "options": {"count": 1}}
        entry |= {"connector": "blackhole", "options": {}} if kind == "output" else {}
        catalog.append(entry | tasks.get(name, {}))
    spec, problems = read(
        {"name": job.name, "workflow": workflow, "catalog": catalog, "cycles": msgspec.to_builtins(cycles)}
    )
    assert problems == []
    return spec


RING = [("in", "a"), ("a", "b"), ("b", "out")]


@pytest.mark.parametrize(
    ("workflow", "cycles", "code"),
    [
        (RING, [CycleSpec(name="x", back=[])], "SX-CYCLE-EDGES"),
        ([*RING, ("in", "c"), ("c", "out")], [CycleSpec(name="x", back=[("c", "a")])], "SX-CYCLE-EDGES"),
        (RING, [CycleSpec(name="x", back=[("a", "a"), ("b", "b")])], "SX-CYCLE-EDGES"),
        ([("in", "out"), ("a", "b")], [CycleSpec(name="x", back=[("b", "a")])], "SX-CYCLE-EDGES"),
        (RING, [CycleSpec(name="x", back=[("b", "a")]), CycleSpec(name="y", back=[("a", "a")])], "SX-CYCLE-OVERLAP"),
        (RING, [CycleSpec(name="x", back=[("b", "a")], max_hops=0)], "SX-CYCLE-LIMIT"),
        (RING, [CycleSpec(name="a/b", back=[("b", "a")])], "SX-JOB-NAME"),
        (RING, [CycleSpec(name="x", back=[("a", "a")]), CycleSpec(name="x", back=[("b", "b")])], "SX-JOB-DUPLICATE"),
        (RING, [CycleSpec(name="x", back=[("nowhere", "a")])], "SX-JOB-UNKNOWN-TASK"),
        (RING, [CycleSpec(name="x", back=[("b", "a"), ("b", "a")])], "SX-JOB-EDGE"),
        (RING, [CycleSpec(name="x", back=[("b", "a"), ("a", "b")])], "SX-JOB-EDGE"),
        (RING, [CycleSpec(name="x", back=[("b", "in")])], "SX-JOB-EDGE"),
        (RING, [CycleSpec(name="x", back=[("out", "a")])], "SX-JOB-EDGE"),
        ([*RING, ("b", "a")], [], "SX-JOB-CYCLE"),
    ],
)  # fmt: skip
def test_edges_that_close_no_loop_are_refused(workflow, cycles, code):
    """By the client with a code of its own, and by the coordinator, which could not go on with them."""
    spec = looped(workflow, cycles)
    assert code in codes(spec)
    assert refusal("j-1", spec, None) is not None


@pytest.mark.parametrize(
    "tasks",
    [
        {"a": {"window": {"kind": "everything"}, "fn": None, "aggregate": {"n": "count"}}},
        {"a": {"relation": {"kind": "distinct"}, "fn": None}},
        {"a": {"keyed": {"ttl": "1 h"}}},
        {"a": {"keyed": {"on_timer": "m:f"}}},
        {"a": {"keyed": {"store": {"sql": "postgresql://h/d"}}, "group_by": "k"}},
    ],
)
def test_what_waits_for_a_time_or_an_end_cannot_be_in_a_loop(tasks):
    """Windows, joins, timers and states that expire are refused there, and states in a database."""
    assert "SX-CYCLE-TASK" in codes(looped(RING, [CycleSpec(name="x", back=[("b", "a")])], **tasks))
    assert "SX-CYCLE-TASK" not in codes(
        looped([*RING, ("b", "c"), ("c", "out2")], [CycleSpec(name="x", back=[("b", "b")])], **tasks)
    )


def test_a_task_that_does_not_count_its_rows_cannot_be_in_a_loop():
    """With more queues after it than positions count, no end could be proven."""
    many = [*RING, *(("b", f"out{n}") for n in range(COUNTED))]
    assert codes(looped(many, [CycleSpec(name="x", back=[("b", "a")])])) == ["SX-CYCLE-TASK"]


def test_the_first_task_of_a_loop_cannot_be_fused():
    """It comes after several tasks."""
    assert "SX-JOB-FUSE" in codes(looped(RING, [CycleSpec(name="x", back=[("b", "b")])], b={"fuse": True}))
    assert codes(looped(RING, [CycleSpec(name="x", back=[("b", "a")])], b={"fuse": True})) == []


def test_a_job_with_a_loop_keeps_no_lineage():
    """Nor checkpoints: both say how far rows are through the job."""
    spec = crawl().spec()
    assert codes(msgspec.structs.replace(spec, lineage=True)) == ["SX-CYCLE-JOB"]
    assert "SX-CYCLE-JOB" in codes(msgspec.structs.replace(spec, checkpoint_every="1 min"))


def test_windows_after_a_loop_need_inputs_that_end():
    """The clock stands still after a loop until it ends."""

    def job(source: Any) -> Job:
        job = Job("j")
        rows = job.input("in", source, time="at")
        again = job.cycle("loop", after=rows)
        task = job.task("retry", "m:f", after=again)
        again.feedback(task.failed)
        job.output("out", blackhole(), after=job.window("w", tumbling("1 min"), after=task, aggregate={"n": Sum("n")}))
        return job

    schema = "n bigint, at timestamp"
    assert codes(job(kafka("in", format="json", schema=schema, start="earliest"))) == ["SX-CYCLE-TIME"]
    assert codes(job(kafka("in", format="json", schema=schema, start="earliest", end="latest"))) == []
    assert codes(job(files("in", format="csv", schema=schema))) == []


def test_only_tasks_of_the_job_are_fed_back():
    """What cannot be meant raises at once, with the user's line."""
    job = Job("j")
    again = job.cycle("loop", after=job.input("in", generator(1)))
    with pytest.raises(ValueError, match="tasks are linked within one job"):
        again.feedback(Job("other").input("in", generator(1)))
    with pytest.raises(TypeError, match="a loop cannot begin with another loop"):
        job.cycle("inner", after=again)


def test_plans_and_trees_show_loops():
    """As text, as pictures and as data."""
    spec = crawl(max_hops=20).spec()
    plan = plan_of(spec)
    assert as_text(plan)[-2:] == ["loops", "  crawl: fetch, fresh; back from fresh to fetch, at most 20 times"]
    assert '  n2 -.->|"to any partition, where m#58;is_inside, feedback"| n1' in [
        line.replace("m:", "m#58;") for line in as_mermaid(plan)
    ]
    assert any("style=dashed" in line for line in as_dot(plan))
    assert [(each.name, each.operators, each.max_hops) for each in plan.cycles] == [("crawl", ["fetch", "fresh"], 20)]
    assert plan.least_peers == 1
    tree = draw(spec, graph_of(spec, "d", "j"))
    assert any(
        "↺ fetch" in line and "back in loop crawl, at most 20 times (where m:is_inside)" in line for line in tree
    )


def test_a_running_job_keeps_its_loops():
    """No change adds, removes or alters a loop, or adds a queue into one."""
    spec = crawl().spec()
    other = msgspec.structs.replace(spec, cycles=[msgspec.structs.replace(spec.cycles[0], max_hops=3)])
    assert [found.text for found in obstacles(spec, other)] == ["cycles of the job differs"]
    more = msgspec.structs.replace(spec, workflow=[*spec.workflow, ("seeds", "fresh")])
    assert "task fresh is in a loop, so the queues that it reads must stay" in [
        found.text for found in obstacles(spec, more)
    ]
    beyond = looped([*RING, ("b", "out2")], [CycleSpec(name="x", back=[("b", "a")])])
    assert list(obstacles(looped(RING, [CycleSpec(name="x", back=[("b", "a")])]), beyond)) == []


def test_letters_of_a_task_in_a_loop_go_through_the_whole_loop_again():
    """A redo has the loop, with the letters as what comes into it, at whichever task of it they are."""
    spec = crawl(max_hops=20).spec()
    for task in ("fetch", "fresh"):
        again = redo_spec(spec, task, "redo", "t", 0, 3)
        assert again.cycles == spec.cycles
        assert again.routes == spec.routes
        assert codes(again) == []
    assert redo_spec(spec, "pages", "redo", "t", 0, 3).cycles == []


# --- Hops -------------------------------------------------------------------------------------------------------------


def a_chunk(number: int, offset: int, hops: int, rows: int = 1) -> Chunk:
    return Chunk(Partition("t", number), [(number, offset)] * 1, rows, hops=hops)  # type: ignore[list-item]


@pytest.mark.parametrize("seed", range(200))
def test_batches_hold_rows_of_one_hop_count_in_order(seed):
    """Each batch is of one hop count; each partition keeps its order, with what is no row; and nothing is left out."""
    rng = random.Random(seed)
    buffer, given = ReadBuffer(), []
    for offset in range(rng.randint(1, 40)):
        number = rng.randrange(3)
        chunk = a_chunk(number, offset, rng.randrange(3), rng.randint(1, 4))
        if rng.random() < 0.2:
            chunk = Chunk(Partition("t", number), end=offset)
        buffer.add(chunk)
        given.append(chunk)
    taken: list[Chunk] = []
    while buffer:
        number = rng.choice([None, None, *buffer.numbers])
        batch = buffer.take(rng.choice([1, 5, 100]), number)
        assert batch
        assert len({chunk.hops for chunk in batch if chunk.messages}) <= 1
        taken += batch
    assert buffer.rows == 0
    for number in range(3):
        of = [chunk for chunk in given if chunk.partition.number == number]
        assert [chunk for chunk in taken if chunk.partition.number == number] == of


def test_hops_are_counted_over_feedback_links_only():
    """A block in a loop says how often its rows have come back; one that leaves the loop says nothing."""
    job = crawl(max_hops=2)
    loop = loop_of(graph_of(job.spec(), "d", "j"), "fresh")
    assert loop is not None
    assert list(loop.links.items()) == [("d.j.fresh.fetch", 1), ("d.j.fetch.fresh", 0)]
    messages = [
        Outgoing(topic, b"rows", 0, headers=[(ROWS_HEADER, b"1")]) for topic in (*loop.links, "d.j.fetch.pages")
    ]
    hops = [
        dict(each.headers or ()).get(HOPS_HEADER)
        for each in with_hops([*messages, Outgoing("d.j.fresh.fetch", None, 0)], 2, loop.links)
        if not isinstance(each, Records)
    ]
    assert hops == [b"3", b"2", None, None]
    assert not loop.is_beyond(2)
    assert loop.is_beyond(3)
    assert [each.topic for each in loop.leaving(messages, 3)] == ["d.j.fetch.pages"]
    assert loop.leaving(messages, 2) == with_hops(messages, 2, loop.links)
    endless = dataclasses.replace(loop, cycle=Cycle("crawl", ["fetch", "fresh"]))
    assert not endless.is_beyond(10**9)
    assert not endless.counts_hops
    assert endless.leaving(messages, 0) == messages


def test_the_message_of_a_row_that_came_back_too_often_says_what_to_do():
    """It names the loop, the task, the limit and the ways out."""
    loop = loop_of(graph_of(crawl(max_hops=1).spec(), "d", "j"), "fetch")
    assert loop is not None
    failure = loop.bad(0, 2, "fetch").failure
    assert failure.message == "a row of loop 'crawl' has come back to task 'fetch' 2 times"
    assert "1 time " in failure.cause


# --- How it stands ----------------------------------------------------------------------------------------------------


def standing_of(read: int, told: tuple[int, int], *, drained: bool) -> JobCycle:
    """The loop of one task, of which partition 0 of each queue was read: ``told`` its rows to the output, and back to itself."""
    graph = graph_of(
        looped([("in", "a"), ("a", "out")], [CycleSpec(name="x", back=[("a", "a")], max_hops=2)]), "d", "j"
    )
    (way_in, back), out = graph.stage("a").ingress, graph.stage("a").counted
    counts = {link.name: rows for link, rows in zip(out, told, strict=True)}
    first = Position(
        5, Counts(rows_in=5), drained="s" if drained else None, told=tuple(counts[link.name] for link in out)
    )
    held: dict[Partition, Position | None] = {
        Partition(way_in.topic, 0): first,
        Partition(back.topic, 0): Position(read, Counts(rows_in=read), told=(0, 0)),
    }
    facts = {link.name: LinkFacts(1) for link in graph.links}
    return cycle_of(graph, graph.cycles[0], facts, {"a": held})


@pytest.mark.parametrize(
    ("read", "back", "drained", "text", "short"),
    [
        (
            3,
            5,
            False,
            "on their way: 2 rows; more may come over in.a",
            "2 rows are on their way in it (2 for a); more may come over in.a",
        ),
        (
            5,
            5,
            False,
            "nothing is on its way; more may come over in.a",
            "0 rows are on their way in it; more may come over in.a",
        ),
        (4, 5, True, "on their way: 1 row; it ends when nothing is on its way", "1 row is on its way in it (1 for a)"),
        (5, 5, True, "it has ended: nothing is on its way in it, and nothing can come any more", "it has ended"),
        (
            6,
            5,
            True,
            "its tasks worked while they were asked, so their counts do not agree: look again",
            "0 rows are on their way in it",
        ),
    ],
)
def test_a_loop_says_what_remains_before_its_end(read, back, drained, text, short, monkeypatch):
    """By the counts that its tasks have committed, as text, in a line of `job explain`, and as data."""
    found = standing_of(read, (5, back), drained=drained)
    assert in_words(found) == f"loop x: {short}"
    shown = shown_with(monkeypatch, [found])
    assert shown.splitlines()[:2] == ["loop x: a; a row may come back 2 times", text]
    assert [*shown.splitlines()[3].split()] == ["a.a", "(feedback)", "5", str(read), str(max(back - read, 0))]
    (data,) = json.loads(shown_with(monkeypatch, [found], "--json"))
    assert (data["fed_by"], data["ended"]) == ([] if drained else ["in.a"], drained and read == back)
    assert data["queues"] == [
        {"link": "a.a", "feedback": True, "written": back, "read": read, "unread": max(back - read, 0)}
    ]


def test_a_loop_whose_rows_are_not_counted_says_so(monkeypatch):
    """An answer that lacks a partition does not count what was written from it."""
    found = standing_of(5, (5, 5), drained=True)
    unknown = msgspec.structs.replace(found.queues[0], written=None, unread=None)
    found = msgspec.structs.replace(found, ended=False, unread=None, queues=[unknown])
    assert "it is not known how many rows were written to a.a" in shown_with(monkeypatch, [found])
    assert in_words(found) == "loop x: it is not known how many rows are on their way in it"
    assert shown_with(monkeypatch, []) == "the job has no loop\n"


def shown_with(monkeypatch: pytest.MonkeyPatch, found: list[JobCycle], *more: str) -> str:
    """What ``job show --cycles`` prints of a job whose loops stand like this."""

    class Client:
        id = "j"

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def job(self, name: str) -> Any:
            return self

        def cycles(self) -> list[JobCycle]:
            return found

    monkeypatch.setattr(Call, "client", lambda _: Client())
    monkeypatch.setattr(Call, "job", lambda _, client, job: client.job(job))
    monkeypatch.setattr(Call, "patience", lambda *_: Client())
    return CliRunner().invoke(app, ["job", "show", "j", "--cycles", *more]).stdout


def test_only_a_running_job_says_how_its_loops_stand():
    """Before and after, its queues do not exist. A job without loops has none to look at."""
    zk: Any = type("Nothing", (), {"read": lambda *_: None})()
    with pytest.raises(SardonyxError) as raised:
        job_cycles(zk, Settings(), "j", crawl().spec(), None)
    assert raised.value.code == "SX-CYCLE-GONE"
    assert job_cycles(zk, Settings(), "j", looped([("in", "a"), ("a", "out")], []), None) == []
