"""Graphs that change, in a job: what users write, what ``check`` finds, what comes out, and that crashes change nothing of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sardonyx import (
    Count,
    Job,
    Vertex,
    VertexProgram,
    blackhole,
    calendar,
    counted,
    event_time,
    everything,
    hopping,
    kafka,
    ordinal,
    session,
    tumbling,
)
from sardonyx.cli.graph_text import computed_text
from sardonyx.core.graph import graph_of
from sardonyx.core.row_times import row_times
from sardonyx.core.timing import RowTime
from sardonyx.job.graphing import GraphView
from sardonyx.job.load import load_job
from sardonyx.job.parse import read
from sardonyx.pipeline import Pipeline, Window
from sardonyx.testing import ClockedRun, run_job
from tests.core.window_jobs import found, only
from tests.sizes import histories

SCHEMA = "src long, dst long, at timestamp, km double, gone boolean"
AT = event_time("at", idle="1 min")


def a_job(
    add: Callable[[GraphView], Any] | None = None, *, time: Any = AT, end: str | None = None, **given: Any
) -> Job:
    """A good job without an end, for tests to spoil."""
    job = Job("live", partitions=3)
    links = job.input("links", kafka("links", schema=SCHEMA, start="earliest", end=end), time=time)
    fields = {
        "source": "src",
        "target": "dst",
        "directed": False,
        "window": tumbling("10 s"),
        "remove": "gone",
        **given,
    }
    graph = job.graph("web", edges=links, **fields)
    job.output("out", kafka("out"), after=(add or (lambda view: view.connected_components("circles")))(graph))
    return job


def rows(count: int) -> list[dict[str, Any]]:
    chance = random.Random("links")
    return [
        {
            "src": chance.randrange(60),
            "dst": chance.randrange(60),
            "at": f"2026-11-27T12:{second // 60:02}:{second % 60:02}",
            "gone": chance.random() < 0.3,
        }
        for second in range(count)
    ]


@pytest.mark.parametrize("emit", ["all", "changes"])
def test_crashes_change_nothing(emit: str) -> None:
    """Peers die while rows wait, as a version is computed, and between parts of its results: each comes once, the same."""

    def begun(batch_size: int) -> ClockedRun:
        return ClockedRun(a_job(emit=emit), batch_size=batch_size, topics={"links": 1})

    given = rows(120)
    quiet = begun(1000)
    quiet.give("links", given)
    wanted = quiet.messages("out")
    quiet.close()
    assert len({row["window_start"] for row in quiet.rows("out")}) > 8
    for number in range(histories(4, whole=15)):
        chance = random.Random(f"versions/{number}")
        run, left = begun(chance.choice([10, 25, 1000])), list(given)
        while left:
            if chance.random() < 0.4:
                run.crash("circles", chance.choice(["settled", "applied", "committed"]))
            size = chance.randint(1, 25)
            run.give("links", left[:size])
            del left[:size]
        assert run.messages("out") == wanted
        run.close()


def test_the_log_of_the_state_stays_short() -> None:
    """Entries with many edges are written again whenever one of the edges is removed. What is needed of the log is a few hundred
    entries, however many windows there were. A peer that begins has no more to read, and goes on with the same graph.
    """
    job = a_job(emit="changes")
    run = ClockedRun(job, topics={"links": 1})
    (task,) = (each for each in run._engine.tasks.values() if each.stage.name == "circles")
    for number in range(150):
        at = f"2026-11-27T12:{number // 6:02}:{number % 6 * 10:02}"
        run.give("links", [{"src": 1, "dst": 2, "at": at, "gone": number % 2 == 1}])
    home = next(place for place in task.positions if place.number == 0)
    mark = task.positions[home].state
    assert mark is not None
    log = run._engine.topics.all_of(next(link.topic for link in task.stage.egress if link.kind == "state"))
    needed = sum(message.at >= mark[1] for message in log if message.place.number == 0)
    assert needed < 100 < len(log), (needed, len(log))
    run.crash("circles")
    run.clock("links", "2026-11-27T14:00:00")
    last = {row["id"]: row["component"] for row in run.rows("out")}
    assert last == {1: 1, 2: 2}
    run.close()


def test_the_slowest_partition_says_when_a_window_has_ended() -> None:
    """A version has the rows of all partitions and of all inputs: it waits for the clock of each. One that is idle keeps no other
    back.
    """
    job = Job("live", partitions=3)
    links = job.input("links", kafka("links", schema=SCHEMA, start="earliest"), time=AT)
    people = job.input(
        "people",
        kafka("people", schema="id long, seen timestamp", start="earliest"),
        time=event_time("seen", idle="1 min"),
    )
    ends = {"source": "src", "target": "dst", "directed": False}
    graph = job.graph("web", edges=links, vertices=people, window=tumbling("10 s"), **ends)
    job.output("out", kafka("out"), after=graph.degrees("degrees"))
    run = ClockedRun(job, topics={"links": 2, "people": 1})

    def versions() -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for row in run.rows("out"):
            found.setdefault(row["window_start"][17:19], {})[row["id"]] = row["degree"]
        return found

    first, second = "2026-11-27T12:00:01", "2026-11-27T12:00:25"
    run.give("links", [{"src": 1, "dst": 2, "at": first}, {"src": 2, "dst": 3, "at": second}])
    run.give("people", [{"id": 9, "seen": first}, {"id": 8, "seen": second}])
    assert versions() == {}
    run.give("links", [{"src": 5, "dst": 1, "at": "2026-11-27T12:00:02"}], partition=1)
    assert versions() == {}
    run.give("links", [{"src": 5, "dst": 2, "at": "2026-11-27T12:00:12"}], partition=1)
    version_0 = {1: 2, 2: 1, 5: 1, 9: 0}
    assert versions() == {"00": version_0}
    run.crash("degrees")
    run.advance("2 min")
    run.give("people", [{"id": 7, "seen": "2026-11-27T12:00:31"}])
    run.give("links", [{"src": 3, "dst": 3, "at": "2026-11-27T12:00:30"}])
    version_1 = {1: 2, 2: 2, 5: 2, 9: 0}
    version_2 = {1: 2, 2: 3, 3: 1, 5: 2, 8: 0, 9: 0}
    assert versions() == {"00": version_0, "10": version_1, "20": version_2}
    run.end()
    assert versions() == {"00": version_0, "10": version_1, "20": version_2, "30": {**version_2, 3: 3, 7: 0}}
    run.close()


def test_windows_without_rows_give_no_version() -> None:
    """However far the clock goes."""
    run = ClockedRun(a_job(), topics={"links": 1})
    run.clock("links", "2026-11-27T12:00:10")
    run.give("links", [{"src": 1, "dst": 2, "at": "2026-11-27T12:00:15"}])
    run.clock("links", "2026-11-27T13:00:00")
    assert {row["window_start"][14:19] for row in run.rows("out")} == {"00:10"}
    run.give("links", [{"src": 4, "dst": 5, "at": "2026-11-27T12:00:15", "gone": True}])
    run.clock("links", "2026-11-27T13:00:10")
    assert {row["window_start"][11:19] for row in run.rows("out")} == {"12:00:10", "13:00:00"}
    assert sorted(row["id"] for row in run.rows("out")) == [1, 1, 2, 2]
    run.close()


@pytest.mark.parametrize("batch_size", [7, None])
def test_a_job_with_an_end_gives_its_last_version_at_the_end(batch_size: int | None) -> None:
    """The end of the input ends all windows. Read from a topic or from rows, the versions are the same."""
    given = rows(125)
    whole = run_job(a_job(end="latest"), {"links": given}, batch_size=batch_size)
    run = ClockedRun(a_job(end="latest"), topics={"links": 1}, batch_size=batch_size)
    run.give("links", given)
    assert len({row["window_start"] for row in run.rows("out")}) == 12
    run.end()
    assert run.rows("out") == whole.rows("out")
    last = [row for row in whole.rows("out") if row["window_start"] == "2026-11-27T12:02:00.000000Z"]
    assert len(last) == len({row["id"] for row in whole.rows("out")})
    run.close()


def test_numbers_of_rows_as_windows() -> None:
    """On an ordinal time each so many rows make a version, whose bounds are numbers."""
    job = a_job(time=ordinal("nr", idle="1 min"), window=tumbling(4))
    run = ClockedRun(job, topics={"links": 1})
    run.give("links", [{"src": n, "dst": n + 1, "gone": False} for n in range(9)])
    found = {(row["window_start"], row["window_end"], row["window_time"]) for row in run.rows("out")}
    assert found == {(0, 4, 3), (4, 8, 7)}
    run.close()


def test_windows_after_a_graph_that_changes() -> None:
    """Its results have a time, right before the end of their window."""
    job = a_job(emit="changes")
    counts = job.window("per-minute", tumbling("1 min"), after="circles", aggregate={"changes": Count()})
    job.output("out2", blackhole(), after=counts)
    assert found(job) == []
    spec = job.spec()
    times = row_times(spec, graph_of(spec, "d", "j").order)
    assert times["per-minute"] == {RowTime(column="window_time")}
    run = ClockedRun(job, topics={"links": 1})
    run.give("links", rows(120))
    (minute,) = run.rows("per-minute")
    assert minute["changes"] == sum(row["window_start"] < "2026-11-27T12:01" for row in run.rows("out"))
    run.close()


def test_it_is_the_same_in_a_job_file() -> None:
    """``window`` is a mapping there, as for windows."""
    job = a_job(emit="changes")
    data = job.data()
    task = next(each for each in data["catalog"] if each["name"] == "circles")
    graph = {
        "algorithm": "connected_components",
        "graph": "web",
        "edges": "links",
        "source": "src",
        "target": "dst",
        "directed": False,
        "window": {"kind": "tumbling", "size": "10 s"},
        "remove": "gone",
        "emit": "changes",
    }
    catalog = [{**task, "graph": graph} if each is task else each for each in data["catalog"]]
    spec, problems = read({**data, "catalog": catalog})
    assert (spec, problems) == (job.spec(), [])
    text = " ".join(computed_text(spec.task("circles").graph))
    assert "a version each tumbling 10 s; edges removed by gone; emit changes" in text


def test_it_is_the_same_in_a_pipeline() -> None:
    """``graph_view`` has the windows of ``job.graph``, on the times of the source."""
    ends: dict[str, Any] = {"source": "src", "target": "dst", "window": tumbling(100), "emit": "changes"}
    topic, size = kafka("links", schema=SCHEMA, start="earliest"), Window.size(100)
    pipeline = Pipeline("live")
    web = pipeline.graph_view("web", edges=pipeline.source("links", topic, window=size), **ends)
    web.degrees("degrees").sink("out", blackhole())
    job = Job("live")
    web_of_job = job.graph("web", edges=job.input("links", topic, time=size.clock), **ends)
    job.output("out", blackhole(), after=web_of_job.degrees("degrees"))
    assert load_job(pipeline, places=False).spec == job.spec()


class Sums(VertexProgram):
    """A program that is done at once."""

    def compute(self, vertex: Vertex, messages: Iterator[Any]) -> None:
        vertex.halt()


BAD: list[tuple[str, Callable[[GraphView], Any] | None, dict[str, Any], str]] = [
    ("SX-TIME-MISSING", None, {"time": None}, "its graph has windows by time"),
    ("SX-GRAPH-WINDOW", None, {"window": session("1 min")}, "cannot have session windows"),
    ("SX-GRAPH-WINDOW", None, {"window": hopping("1 min", "10 s")}, "cannot have hopping windows"),
    ("SX-GRAPH-WINDOW", None, {"window": everything()}, "cannot have everything windows"),
    ("SX-GRAPH-WINDOW", None, {"window": counted(5)}, "cannot have counted windows"),
    ("SX-GRAPH-WINDOW", None, {"window": {"kind": "tumbling", "size": "1 s", "grace": "1 s"}}, "have no grace"),
    ("SX-GRAPH-WINDOW", None, {"window": None, "end": "latest"}, "has remove, but no windows"),
    ("SX-GRAPH-WINDOW", None, {"window": None, "end": "latest", "remove": None, "emit": "changes"}, "has emit"),
    ("SX-GRAPH-WINDOW", lambda view: view.common_neighbors("x", pairs="links"), {}, "common_neighbors cannot"),
    ("SX-GRAPH-ENDLESS", None, {"window": None, "remove": None}, "never give a result"),
    ("SX-WINDOW-SIZE", None, {"window": {"kind": "tumbling"}}, "need size"),
    ("SX-WINDOW-ZONE", None, {"window": calendar("day", zone="Berlin")}, "no time zone 'Berlin'"),
    ("SX-TIME-ORDINAL", None, {"window": tumbling(10)}, "a number without a unit"),
    ("SX-TIME-ORDINAL", None, {"time": ordinal("nr", idle="1 min")}, "numbers as their times"),
    ("SX-GRAPH-COLUMN", None, {"remove": "src"}, "'src' is two columns of an edge"),
    ("SX-GRAPH-COLUMN", None, {"id": "window_end"}, "'window_end'"),
    ("SX-GRAPH-COLUMN", lambda view: view.compute("x", Sums, state="window_time bigint"), {}, "'window_time'"),
    ("SX-JOB-FIELD", None, {"window": 7}, "window cannot be 7"),
    ("SX-JOB-FIELD", None, {"emit": "final"}, "emit cannot be 'final'"),
]


@pytest.mark.parametrize(("code", "add", "given", "said"), BAD)
def test_what_is_wrong_with_a_graph_that_changes(
    code: str, add: Callable[[GraphView], Any] | None, given: dict[str, Any], said: str
) -> None:
    """One mistake is one problem, with its task, and what to do."""
    problem = only(a_job(add, **given))
    assert problem.code == code
    assert said in f"{problem.message} {problem.cause}"
    assert problem.where["task"] in ("circles", "x")
    assert problem.fix


def test_rows_with_two_kinds_of_time() -> None:
    """Edges by moments and vertices by numbers have no common order. Each may have its time in a column of its own."""
    for other, code in ((ordinal("nr", idle="1 min"), "SX-TIME-MIXED"), (event_time("seen", idle="1 min"), None)):
        job = Job("live")
        links = job.input("links", kafka("links", schema=SCHEMA, start="earliest"), time=AT)
        people = job.input("people", kafka("people", schema="id long, seen timestamp", start="earliest"), time=other)
        graph = job.graph("g", edges=links, vertices=people, source="src", target="dst", window=tumbling("10 s"))
        job.output("out", blackhole(), after=graph.degrees("degrees"))
        assert [problem.code for problem in found(job)] == ([code] if code else [])
