"""What holds the clock of a job, in the sentence that ``sardonyx job explain`` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.client.clocks import against_now, clocks_of, waiting_rows, what_holds
from sardonyx.core.clocks import END, NEVER, SourceClock
from sardonyx.core.graph import graph_of
from sardonyx.core.positions import Partition, Position
from sardonyx.testing import ClockedRun

NOON = 1_764_000_000_000_000


def job() -> Job:
    made = Job("traffic", partitions=1)
    hits = made.input("hits", kafka("in", schema="at timestamp", start="earliest"), time=event_time("at", idle="1 min"))
    made.output(
        "out", kafka("out"), after=made.window("count", tumbling("1 min"), after=hits, aggregate={"n": Count()})
    )
    return made


def held(hits: Mapping[int, SourceClock], count: SourceClock) -> str | None:
    graph = graph_of(job().spec(), "d", "traffic-1")
    link = graph.stage("count").ingress[0]
    known = {
        "hits": {Partition("in", number): Position(5, clock=clock) for number, clock in hits.items()},
        "count": {Partition(link.topic, 0): Position(5, clock=count)},
    }
    return what_holds(clocks_of("traffic-1", graph, known, now=None))


@pytest.mark.parametrize(
    ("hits", "count", "said"),
    [
        pytest.param(
            {0: SourceClock(NOON, NOON), 1: SourceClock(), 2: SourceClock()},
            SourceClock(),
            "its clock is held by in[1] and 1 more, which task hits reads: no row of it had a time yet",
            id="partitions without rows",
        ),
        pytest.param(
            {0: SourceClock(NOON, NOON), 1: SourceClock(NOON + 5, NOON + 5)},
            SourceClock(NOON, NOON - 9),
            "its clock is held by hits.count[0], which task count reads: hits has stated no more",
            id="a task that has not come so far",
        ),
        pytest.param(
            {0: SourceClock(NOON, NOON, idle=True)},
            SourceClock(NOON, NOON),
            "its clock is that of task hits: all its partitions are idle, so the clock holds "
            '(`at_rest="wall"` lets it go on)',
            id="nothing but idle partitions",
        ),
        pytest.param({0: SourceClock(NOON, END)}, SourceClock(NEVER, END), None, id="nothing: it has ended"),
    ],
)
def test_what_holds_the_clock_is_said(hits: Mapping[int, SourceClock], count: SourceClock, said: str | None) -> None:
    """The slowest of its tasks, its slowest partition, and why that is no further."""
    assert held(hits, count) == said


@pytest.mark.parametrize(
    ("after", "now", "said"),
    [
        (3, "behind now 3.0 s", None),
        (-0.5, "behind now 0.0 s", None),
        (-7_200, "ahead of now 2 h 0 min", "; it is ahead of now 2 h 0 min, so rows of now come late"),
    ],
)
def test_a_clock_that_is_ahead_of_now_is_said_to_be(after: float, now: str, said: str | None) -> None:
    """One record of the future has passed it, and rows of now come late. Clocks of machines differ a little."""
    graph = graph_of(job().spec(), "d", "traffic-1")
    link = graph.stage("count").ingress[0]
    known = {
        "hits": {Partition("in", 0): Position(5, clock=SourceClock(NOON, NOON))},
        "count": {Partition(link.topic, 0): Position(5, clock=SourceClock(NOON, NOON))},
    }
    found = clocks_of("traffic-1", graph, known, now=NOON / 1e6 + after)
    assert against_now(found) == now
    assert (said or "no later row of it was read") in str(what_holds(found))


def test_rows_that_wait_in_a_lookup_are_counted(sardonyx_clocked: Callable[..., ClockedRun]) -> None:
    """They are read, so none is unread; and nothing comes out before the table has its next row. No crash changes the count."""
    made = Job("shop", partitions=2)
    orders, customers = (
        made.input(
            name,
            kafka(name, schema=f"id string, at timestamp, {name} bigint", start="earliest"),
            time=event_time("at"),
        )
        for name in ("orders", "customers")
    )
    made.output("out", kafka("out"), after=made.lookup("tiered", orders, customers, on="id", how="left"))
    run = sardonyx_clocked(made, batch_size=2)

    def waiting() -> list[str]:
        engine = run._engine
        known = {name: task.answer() for name, task in engine.tasks.items()}
        return waiting_rows(clocks_of("shop-1", engine.graph, known, now=None))

    def at(minute: int) -> str:
        return f"2026-11-23T10:{minute:02}:00"

    run.give("customers", [{"id": "ada", "at": at(0), "customers": 1}])
    assert waiting() == []
    run.give(
        "orders", [{"id": each, "at": at(minute), "orders": 1} for minute in range(1, 6) for each in ("ada", "bob")]
    )
    assert waiting() == [
        "10 rows wait in tiered for customers: a row waits until the clock of the table has passed its time"
    ]
    run.crash("tiered", "committed")
    run.give("customers", [{"id": "eve", "at": at(3), "customers": 2}])
    assert len(run.rows("out")) == 4
    assert waiting()[0].startswith("6 rows wait in tiered")
    run.crash("tiered")
    run.give("customers", [{"id": "eve", "at": at(9), "customers": 2}])
    assert len(run.rows("out")) == 10
    assert waiting() == []
