"""Jobs with windows after windows, runs of them, and runs that go on from where another one stood."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sardonyx import Count, Job, Sum, blackhole, event_time, kafka, tumbling
from sardonyx.core.going_back import adopted_at_end, adopted_by, adopting, begins_of, end_of, state_topics
from sardonyx.core.positions import Partition, Position, continued, of_inputs
from sardonyx.core.spec import JobSpec
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.testing.clocked import ClockedRun
from sardonyx.testing.engine import Engine

START = datetime(2026, 11, 26, 10, tzinfo=UTC)
MINUTE = 60_000_000
DELAY = 20
PARTITIONS = 2
INPUTS = {"read": PARTITIONS}


def micros(at: datetime) -> int:
    return round(at.timestamp()) * 1_000_000


def a_job(name: str, grace: str = "100 s") -> Job:
    """Windows, windows that wait for late rows, and windows of the results of both."""
    job = Job(name, partitions=3, checkpoint_every="1 min")
    schema = "user long, n long, at timestamp"
    read = job.input("read", kafka("given", schema=schema, start="earliest"), time=event_time("at", delay=f"{DELAY} s"))
    hits = job.window(
        "hits", tumbling("90 s"), after=read, group_by="user", aggregate={"hits": Count(), "sum": Sum("n")}
    )
    slow = job.window("slow", tumbling("1 min"), after=read, group_by="user", aggregate={"rows": Count()}, grace=grace)
    seen = job.distinct("seen", after=read, by="n", within="5 min")
    job.window(
        "all", tumbling("5 min"), after=[hits], group_by="user", aggregate={"hits": Sum("hits"), "sum": Sum("sum")}
    )
    job.output("out", blackhole(), after="all")
    job.window("waited", tumbling("7 min"), after=[slow], group_by="user", aggregate={"rows": Sum("rows")})
    job.output("out2", blackhole(), after="waited")
    job.output("out3", blackhole(), after=seen)
    return job


def rows_of(seed: int, count: int, *, strays: bool = False) -> list[tuple[int, dict[str, Any]]]:
    """Rows with the partition of each: one each second, out of order by at most the delay. Rows of one number are in order.

    ``strays``: in the end some are ten minutes late, which no task takes any more.
    """
    rng = random.Random(seed)
    found: list[tuple[int, dict[str, Any]]] = []
    for second in range(count):
        late = 600 if strays and second > 360 and rng.random() < 0.1 else rng.randint(0, DELAY)
        row = {
            "user": rng.randint(0, 4),
            "n": rng.randint(0, 300) if late <= DELAY else 1_000 + second,
            "at": (START + timedelta(seconds=second - late)).isoformat(),
        }
        found.append((row["n"] % PARTITIONS, row))
    return found


def at_of(row: dict[str, Any]) -> int:
    return micros(datetime.fromisoformat(row["at"]))


def portions(rng: random.Random, rows: list[Any]) -> Iterator[list[Any]]:
    at = 0
    while at < len(rows):
        size = rng.randint(1, 60)
        yield rows[at : at + size]
        at += size


def job_run(spec: JobSpec, topics: Mapping[str, int] = INPUTS) -> ClockedRun:
    return ClockedRun(spec, topics=topics, batch_size=50)


def feed(run: ClockedRun, rows: list[tuple[int, dict[str, Any]]], rng: random.Random, *, crashes: bool = True) -> None:
    """Give rows in portions; now and then a peer crashes."""
    for portion in portions(rng, rows):
        for number in range(PARTITIONS):
            own = [row for partition, row in portion if partition == number]
            if own:
                run.give("read", own, number)
        if crashes and rng.random() < 0.3:
            run.crash(rng.choice(["read", "hits", "slow", "all", "seen"]))


def engine_of(run: ClockedRun) -> Engine:
    return run._engine


def resumed(
    before: ClockedRun, spec: JobSpec, point: CheckpointPoint | None = None, inputs: Mapping[str, int] = INPUTS
) -> ClockedRun:
    """A run of another job that goes on from a checkpoint of a run, or where it stands (None). Its topics hold what those of the
    earlier one hold.
    """
    old = engine_of(before)
    run = job_run(spec, inputs)
    new = engine_of(run)
    topics = state_topics(old.graph)
    if point is None:
        end = end_of(old.graph, held(before))
        assert end is not None
        positions = {
            stage.name: {t: list(map(int, row)) for t, row in of_inputs(stage, held(before)[stage.name]).items()}
            for stage in old.graph.stages
        }
        facts = continued(new.graph, new.facts, positions)
        new.facts = adopting(new.graph, facts, adopted_at_end(end, topics), None, end.clocks, old.facts)
    else:
        facts = continued(new.graph, new.facts, begins_of(point, old.graph, old.facts))
        new.facts = adopting(new.graph, facts, adopted_by(point, topics), point.at, {}, old.facts)
    kept = {*(link.topic for link in old.graph.links if link.kind == "input"), *topics.values()}
    for place in old.topics.places():
        if place.topic in kept:
            for message in old.topics.read(place):
                new.topics.append(place, message.stored_value, message.stored_key, message.stored_headers)
    return run


def held(run: ClockedRun) -> dict[str, dict[Partition, Position | None]]:
    """What a run has committed."""
    return {
        task.stage.name: {
            Partition(link.topic, number): task.positions.get(Partition(link.topic, number))
            for link in task.stage.ingress
            for number in range(engine_of(run).facts[link.name].partitions)
        }
        for task in engine_of(run).tasks.values()
    }


def results(run: ClockedRun, task: str) -> Counter[Any]:
    return Counter(tuple(sorted((k, str(v)) for k, v in row.items())) for row in run.rows(task))


GRACE = {"hits": 0, "slow": 100_000_000, "all": 0, "waited": 0}


def closing_after(given: Counter[Any], time: int, grace: int) -> Counter[Any]:
    """The results of the windows that were open when the clock of their task stood at a time."""
    found = Counter(given)
    for row in given:
        if micros(datetime.fromisoformat(dict(row)["window_end"])) + grace <= time:
            del found[row]
    return found
