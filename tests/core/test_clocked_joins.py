"""Joins and the like in a job that a test leads step by step: what comes when, what is late, and that crashes change nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sardonyx import Count, Distinct, Job, event_time, kafka, tumbling
from sardonyx.testing import ClockedRun
from tests.sizes import histories

Begin = Callable[..., ClockedRun]
DAY = "2026-11-23T"


def shop(**join: Any) -> Job:
    """Views joined with orders, and a window over what the join gives."""
    job = Job("shop", partitions=2)
    views, orders = (
        job.input(
            name,
            kafka(name, schema=f"user string, at timestamp, {column} bigint", start="earliest"),
            time=event_time("at", delay="5 s"),
        )
        for name, column in (("views", "view"), ("orders", "order"))
    )
    given = {"on": "user", "within": ("0 s", "1 min"), "how": "left", **join}
    bought = job.join("bought", views, orders, **given)
    counts = {"views": Distinct("view"), "orders": Count("order")}
    per_user = job.window("per-user", tumbling("1 min"), after=bought, group_by="user", aggregate=counts)
    job.output("out", kafka("out"), after=bought)
    job.output("counts", kafka("counts"), after=per_user)
    job.output("late", kafka("late"), after=per_user.late)
    return job


def row(user: str, at: str, column: str, value: int) -> dict[str, Any]:
    return {"user": user, "at": DAY + at, column: value}


def test_columns_that_a_join_adds_take_the_place_of_no_others(sardonyx_clocked: Begin) -> None:
    """A ``join_time`` of your own is kept, and so is a ``late_by``; that of a join before is replaced."""
    job = Job("own", partitions=1)
    left, right = (
        job.input(
            name,
            kafka(name, schema="user string, at timestamp, join_time string, late_by string", start="earliest"),
            time=event_time("at"),
        )
        for name in ("left", "right")
    )
    pairs = job.join("pairs", left, right, on="user", within="1 min")
    again = job.join("again", pairs, right, on="user", within="1 min", prefix="again_")
    job.output("out", kafka("out"), after=again)
    job.output("late", kafka("late"), after=pairs.late)
    run = sardonyx_clocked(job)
    for side in ("left", "right"):
        run.give(side, [{"user": "a", "at": DAY + "10:00:00", "join_time": side, "late_by": side}])
        run.clock(side, f"{DAY}10:09:00")
    run.give("left", [{"user": "a", "at": DAY + "10:00:00", "join_time": "late", "late_by": "mine"}])
    run.end()
    (found,), (late,) = run.rows("out"), run.rows("late")
    times = {name: value for name, value in found.items() if "join_time" in name}
    assert times == {
        "own_join_time": "left",
        "right_join_time": "right",
        "again_join_time": "right",
        "join_time": found["at"],
    }
    assert (late["own_late_by"], late["late_by"], late["join_time"]) == ("mine", 540_000_000, "late")


def test_a_view_without_an_order_comes_when_both_clocks_have_passed_it(sardonyx_clocked: Begin) -> None:
    """It is not late for the window after the join, though the clock of the inputs has long passed the end of that."""
    run = sardonyx_clocked(shop())
    run.give("views", [row("a", "10:00:10", "view", 1), row("b", "10:00:20", "view", 2)])
    run.give("orders", [row("a", "10:00:40", "order", 7)])
    assert [(each["view"], each["order"]) for each in run.rows("out")] == [(1, 7)]
    run.clock("views", f"{DAY}10:09:00")
    run.crash("bought")
    assert len(run.rows("out")) == 1
    run.clock("orders", f"{DAY}10:01:21")
    assert [(each["view"], each["order"]) for each in run.rows("out")] == [(1, 7), (2, None)]
    run.end()
    found = {(each["user"], each["views"], each["orders"]) for each in run.rows("counts")}
    assert found == {("a", 1, 1), ("b", 1, 0)}
    assert run.rows("late") == []


def test_a_row_that_is_late_for_the_join_is_a_dead_letter(sardonyx_clocked: Begin) -> None:
    """The letter says which side it came on, and by how much it was too old."""
    run = sardonyx_clocked(shop(late="dead_letter"))
    run.give("orders", [row("a", "10:00:00", "order", 1), row("a", "10:05:00", "order", 2)])
    run.give("orders", [row("a", "10:04:50", "order", 3)])
    (letter,) = run.dead_letters("bought")
    assert letter.failure.code == "SX-TIME-LATE"
    assert "right side" in letter.failure.message
    assert "5 s" in letter.failure.cause


@pytest.mark.parametrize("history", range(histories(2, whole=6)))
def test_crashes_change_no_result(seed: int, history: int, sardonyx_clocked: Begin) -> None:
    """Rows in any order of the two inputs, and a crash of the join before, amid and after its batches: what all pairs give."""
    rng = random.Random(f"{seed}/clocked-joins/{history}")
    run = sardonyx_clocked(shop(store=rng.choice(["memory", "rocksdb"])), batch_size=rng.choice([1, 3, 100]))
    views, orders = (
        [(rng.choice("abc"), n * rng.choice([1, 2]) + rng.randrange(3), n) for n in range(0, 150, 5)] for _ in range(2)
    )
    views, orders = (sorted(each, key=lambda one: one[1]) for each in (views, orders))
    rest = {"views": list(views), "orders": list(orders)}
    while any(rest.values()):
        source = rng.choice([name for name, each in rest.items() if each])
        taken, rest[source] = rest[source][:4], rest[source][4:]
        if rng.random() < 0.4:
            run.crash("bought", rng.choice(["settled", "applied", "committed"]))
        run.give(source, [row(u, f"10:{at // 60:02}:{at % 60:02}", source[:-1], n) for u, at, n in taken])
    run.end()
    wanted: Counter[tuple[int, int | None]] = Counter()
    for user, at, view in views:
        partners = [order for other, when, order in orders if other == user and 0 <= when - at <= 60]
        wanted.update([(view, order) for order in partners or [None]])
    assert Counter((each["view"], each["order"]) for each in run.rows("out")) == wanted, f"seed {seed}"
    assert sum(each["orders"] for each in run.rows("counts")) == sum(n for (_, o), n in wanted.items() if o is not None)
    assert run.rows("late") == []


def test_a_lookup_and_distinct_rows_in_one_job(sardonyx_clocked: Begin) -> None:
    """Each order once, with the price of its own time, also if the price has changed since."""
    job = Job("prices", partitions=2)
    time = event_time("at")
    prices, orders = (
        job.input(name, kafka(name, schema=f"{columns}, at timestamp", start="earliest"), time=time)
        for name, columns in (("prices", "item string, price double"), ("orders", "id bigint, item string"))
    )
    once = job.distinct("once", after=orders, by="id", within="1 h")
    job.output("out", kafka("out"), after=job.lookup("priced", once, prices, on="item"))
    run = sardonyx_clocked(job)
    run.give("prices", [{"item": "tea", "at": f"{DAY}10:00:00", "price": 2.0}])
    order = {"id": 1, "item": "tea", "at": f"{DAY}10:03:00"}
    run.give("orders", [order, order])
    run.crash("once")
    run.crash("priced")
    run.give("orders", [order])
    assert run.rows() == []
    run.give("prices", [{"item": "tea", "at": f"{DAY}10:05:00", "price": 9.0}])
    assert [(each["id"], each["price"]) for each in run.rows()] == [(1, 2.0)]
