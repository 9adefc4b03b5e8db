"""Graphs that several peers may compute together, in a job: what users write, what ``check`` finds, and what comes out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import networkx as nx
import pytest

from sardonyx import Job, kafka, sql, tumbling
from sardonyx.core.graph import graph_of
from sardonyx.core.plan import plan_of
from sardonyx.job.graphing import GraphView
from sardonyx.job.parse import read
from sardonyx.testing import ClockedRun, run_job
from sardonyx.testing.engine import Crashed, Point, TaskRun
from tests.core.window_jobs import found
from tests.sizes import histories

KARATE = nx.karate_club_graph()
LINKS = [{"src": a, "dst": b, "km": float(1 + (a * b) % 5) / 7} for a, b in KARATE.edges()]
TASKS = ("ranks", "near", "depths", "circles", "hops")


def club(max_peers: int, *, directed: bool = False, **given: Any) -> Job:
    job = Job("club", partitions=3)
    links = job.input("links", kafka("links", schema="src long, dst long, km double", start="earliest", end="latest"))
    people = job.input("people", kafka("people", schema="id long", start="earliest", end="latest"))
    asked = {"source": "src", "target": "dst", "vertices": people, "directed": directed, **given}
    graph = job.graph("club", edges=links, max_peers=max_peers, **asked)
    for task in of_all(graph):
        job.output(f"out-{task.name}", kafka(task.name), after=task)
    return job


def of_all(graph: GraphView) -> list[Any]:
    return [
        graph.pagerank("ranks", tolerance=1e-6, start={0: 1.0, 33: 3.0}),
        graph.shortest_paths("near", start=16, weight="km"),
        graph.bfs("depths", start=[16, 1]),
        graph.connected_components("circles"),
        graph.k_hop("hops", start=16, hops=2),
    ]


def results(job: Job, chance: random.Random | None = None) -> Mapping[str, list[Any]]:
    """What comes out, sorted."""
    run = ClockedRun(job, batch_size=1000 if chance is None else chance.choice([2, 9, 1000]), topics={"links": 2})
    for number in range(4):
        run.give("links", LINKS[number::4], number % 2)
    run.give("people", [{"id": number} for number in range(36)])
    run.end()
    outputs = {task: sorted(run.messages(f"out-{task}")) for task in TASKS}
    run.close()
    return outputs


@pytest.mark.parametrize("directed", [False, True])
def test_crashes_change_no_bit(*, directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers die at any point of any superstep, with batches of any size: each result comes once, with the bits that one peer
    gives which holds the whole graph.
    """
    wanted = results(club(1, directed=directed))
    assert {task: len(rows) for task, rows in wanted.items() if task != "hops"} == dict.fromkeys(TASKS[:4], 36)
    assert results(club(2, directed=directed)) == wanted
    crash = TaskRun._crash_at
    for seed in range(histories(1, whole=3)):
        chance = random.Random(f"durable/{seed}")

        def crashing(run: TaskRun, point: Point) -> None:
            if run.stage.between_shards is not None and chance.random() < 0.15:  # noqa: B023
                raise Crashed
            crash(run, point)

        monkeypatch.setattr(TaskRun, "_crash_at", crashing)
        assert results(club(2, directed=directed), chance) == wanted, f"seed {seed}"
        monkeypatch.undo()


def test_a_graph_without_rows_ends() -> None:
    """Also if no partition gets any row."""
    job = Job("empty", partitions=3)
    links = job.input("links", kafka("links", schema="src long, dst long", start="earliest", end="latest"))
    graph = job.graph("web", edges=links, source="src", target="dst", max_peers=2)
    job.output("out", kafka("out"), after=graph.pagerank("ranks"))
    assert run_job(job, {"links": []}).rows("out") == []


def test_the_plan_shows_the_loop() -> None:
    """The task feeds itself, over a link that no edge of the workflow names; its rows come by their keys."""
    spec = read(club(2).data())[0]
    graph = graph_of(spec, "d", "j")
    stage = graph.stage("ranks")
    assert stage.between_shards is not None
    assert [(link.name, link.group_by, link.feedback) for link in stage.ingress] == [
        ("links.ranks", ["src"], False),
        ("people.ranks", ["id"], False),
        ("ranks.ranks", None, True),
    ]
    assert [cycle.stages for cycle in graph.cycles] == [[task] for task in TASKS]
    operator = next(each for each in plan_of(spec).operators if each.name == "ranks")
    assert (operator.kind, operator.most_peers) == ("iterator", 2)
    assert graph_of(read(club(1).data())[0], "d", "j").cycles == []


@pytest.mark.parametrize(
    ("add", "given", "said"),
    [
        (lambda graph: graph.k_core("cores"), {}, "several peers cannot compute k_core together"),
        (lambda graph: graph.triangles("corners"), {}, "several peers cannot compute triangles together"),
        (lambda graph: graph.bfs("deep", start=1), {"window": tumbling("1 min")}, "over a graph that changes"),
        (lambda graph: graph.bfs("deep", start=1), {"store": sql("postgresql://h/n")}, "whose state is in a database"),
    ],
)
def test_what_several_peers_cannot_do(add: Any, given: dict[str, Any], said: str) -> None:
    """Each mistake is found before the job runs, and the message says what to do."""
    job = Job("web")
    links = job.input("links", kafka("links", schema="src long, dst long", start="earliest", end="latest"))
    job.output(
        "out", kafka("out"), after=add(job.graph("web", edges=links, source="src", target="dst", max_peers=2, **given))
    )
    problems = [each for each in found(job) if each.code == "SX-GRAPH-PEERS"]
    assert [said in each.message for each in problems] == [True]
