"""A record is followed through windows and joins: their results say from where on the rows came that they may be made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from sardonyx import Collect, Job, Last, counted, event_time, hopping, kafka, session, tumbling
from sardonyx.testing import ClockedRun
from tests.core.test_trace_outputs import places, records, way

Begin = Callable[..., ClockedRun]
WINDOWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (tumbling("1 min"), {}),
    "changes": (tumbling("1 min"), {"emit": "changes"}),
    "late": (tumbling("1 min"), {"grace": "20 s", "allowed_lateness": "1 min"}),
    "hopping": (hopping("1 min", every="30 s"), {}),
    "session": (session("20 s", most="1 min"), {}),
    "counted": (counted(3), {}),
}


def hits(job: Job, name: str) -> Any:
    schema = "user string, id long, at timestamp"
    return job.input(name, kafka(name, schema=schema, start="earliest"), time=event_time("at"))


def row(number: int, second: int, user: str) -> dict[str, Any]:
    return {"user": user, "id": number, "at": f"2026-11-23T10:{second // 60:02}:{second % 60:02}"}


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_record_is_followed_through_windows(sardonyx_clocked: Begin, rng: random.Random, kind: str) -> None:
    """Whatever came in whatever order, and wherever tasks crashed: each result that holds a record is among those that are told
    of it, also behind another task, unless it is said that more may come. Results before and long after it are not.
    """
    window, options = WINDOWS[kind]
    job = Job("ids", partitions=2, lineage=True)
    aggregate = {"ids": Collect("id"), "id": Last("id")}
    found = job.window("window", window, after=hits(job, "hits"), group_by="user", aggregate=aggregate, **options)
    job.output("early", kafka("early", lineage=True), after=found)
    timed = kind != "counted"
    if timed:
        last = job.distinct("last", after=found, by="id", within="1 h")
        job.output("late", kafka("late", lineage=True), after=last)
    told = exact = known = 0
    for _ in range(2):
        run, given = sardonyx_clocked(job, batch_size=rng.randint(1, 4)), 0
        for minute in range(5):
            fresh = sorted(rng.randrange(max(0, minute * 60 - 40), minute * 60 + 60) for _ in range(rng.randint(1, 3)))
            run.give("hits", [row(given + n, second, rng.choice("ab")) for n, second in enumerate(fresh)])
            given += len(fresh)
            if rng.random() < 0.3:
                run.crash(rng.choice(["window", "last"][: 1 + timed]), rng.choice(["settled", "applied", "committed"]))
        if rng.random() < 0.5:
            run.end()
        early, late = records(run, "early"), records(run, "late") if timed else {}
        for number in range(given):
            tasks = way(run, number, source="hits")
            own = {offset for offset, result in early.items() if number in result["ids"]}
            among = places(tasks["window"], "early")
            assert own <= among, (number, own, among, early)
            told, exact = told + len(own), exact + len({*early} - among)
            if not any("from now on" in text for text in tasks["window"].unknown) and "last" in tasks:
                behind = {offset for offset, result in late.items() if number in result["ids"]}
                assert behind <= places(tasks["last"], "late"), (number, behind, late)
                known += len(behind)
    assert told
    assert exact, "all results were told of every record"
    assert known or kind in ("late", "counted"), "nothing was known of what is behind the windows"


def test_a_record_is_followed_through_a_join(sardonyx_clocked: Begin, rng: random.Random) -> None:
    """Of both sides: pairs that hold it are among those that are told of it, and pairs of long ago and long after are not."""
    job = Job("pairs", partitions=2, lineage=True)
    pair = job.join("pair", hits(job, "views"), hits(job, "orders"), on="user", within="30 s")
    job.output("out", kafka("out", lineage=True), after=pair)
    told = exact = 0
    for _ in range(2):
        run = sardonyx_clocked(job, batch_size=rng.randint(1, 4))
        given = {"views": 0, "orders": 0}
        for minute in range(5):
            for side in ("views", "orders"):
                fresh = sorted(rng.randrange(minute * 60, minute * 60 + 60) for _ in range(rng.randint(1, 3)))
                first = given[side] + (1_000 if side == "orders" else 0)
                run.give(side, [row(first + n, second, rng.choice("ab")) for n, second in enumerate(fresh)])
                given[side] += len(fresh)
            if rng.random() < 0.3:
                run.crash("pair", rng.choice(["settled", "applied", "committed"]))
        pairs = {offset: {*result.values()} for offset, result in records(run, "out").items()}
        for side, count in given.items():
            for number in range(count):
                own = {offset for offset, ids in pairs.items() if number + (1_000 if side == "orders" else 0) in ids}
                among = places(way(run, number, source=side)["pair"], "out")
                assert own <= among, (side, number, own, among, pairs)
                told, exact = told + len(own), exact + len({*pairs} - among)
    assert told
    assert exact, "all pairs were told of every record"
