"""Random histories of jobs with clocks: the job, its rows, and what goes wrong."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

from msgspec.structs import replace

from sardonyx.core.spec import CycleSpec, JobSpec, OnError, TaskSpec
from sardonyx.core.timing import AggregateSpec, TimeSpec, WindowSpec
from tests.simulation.plan import Fault, Kind, Plan, Submission
from tests.simulation.plans import with_bounds

SECOND = 1_000_000
SIZE = 10
"""Seconds of a window; of the one after it, three times as many."""
DELAY = 3
"""Seconds by which a source's rows may be late."""
KEPT = 1000.0
"""``trim_every`` of a history whose links are kept from their first records on."""

WEIGHTS: dict[Kind, int] = {
    "kill": 6,
    "crash": 3,
    "stop": 6,
    "cut": 3,
    "break": 3,
    "mute": 2,
    "expire": 3,
    "usurp": 1,
    "evict": 4,
    "drain": 2,
    "scale": 1,
    "suspend": 2,
    "kafka": 1,
}


class Row(NamedTuple):
    """``comes``: at which simulated second. ``at``: its own time, in microseconds. ``n``: its number among all rows."""

    comes: float
    partition: int
    key: str
    at: int
    n: int


def timed_plan(seed: str) -> Plan:
    """A cluster, a job with windows, and its troubles."""
    rng = random.Random(f"timed/{seed}")
    until = rng.uniform(12.0, 30.0)
    daemons = tuple(rng.randint(1, 3) for _ in range(rng.randint(2, 3)))
    spec = _spec(rng)
    faults = []
    for _ in range(rng.choice([0, 1, 2, 4, 6])):
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        who = f"d{rng.randrange(len(daemons))}" if kind != "usurp" else "c0"
        seconds = rng.choice([rng.uniform(0.05, 2.0), rng.uniform(2.0, 9.0), rng.uniform(9.0, 20.0)])
        faults.append(Fault(round(rng.uniform(3.0, until), 3), kind, who, round(seconds, 3), rng.randrange(24)))
    troubled = rng.random() < 0.5
    return Plan(
        seed=seed,
        coordinators=1,
        daemons=daemons,
        jobs=[with_bounds(random.Random(f"bounded/{seed}"), Submission(0.5, "j", spec))],
        faults=sorted(faults, key=lambda fault: fault.at),
        until=round(until, 3),
        slow=rng.choice([0.2, 0.2, 2.5]),
        dies=0.004 if troubled else 0.0,
        lost=0.04 if troubled else 0.0,
        trim_every=rng.choice([2.0, 60.0]),
        rebalance_after=rng.choice([1.0, 5.0]),
    )


def lineage_plan(seed: str) -> Plan:
    """The same with a job that keeps its lineage."""
    plan = timed_plan(seed)
    return replace(plan, jobs=[replace(job, spec=replace(job.spec, lineage=True)) for job in plan.jobs])


def checkpoint_plan(seed: str) -> Plan:
    """The same with a job that has checkpoints: at bounds of its windows, or within them."""
    plan, every = timed_plan(seed), random.Random(f"checkpoints/{seed}").choice([f"{SIZE} s", "7 s", "4 s"])
    return replace(plan, jobs=[replace(job, spec=replace(job.spec, checkpoint_every=every)) for job in plan.jobs])


def going_back_plan(seed: str) -> Plan:
    """The same with a user who has the job go back to a checkpoint now and then, or stop and another one go on from there. Of two
    coordinators one may die at such a moment.
    """
    plan, rng = checkpoint_plan(seed), random.Random(f"{seed}/going back")
    endless, faults = rng.random() < 0.75, list(plan.faults)
    for _ in range(rng.choice([1, 2, 2, 3])):
        at, kinds = rng.uniform(0.3, 1.0) * plan.until, ("rollback", "restart") if endless else ("rollback",)
        faults.append(Fault(round(at, 3), rng.choice(kinds), count=rng.randrange(24)))
        if rng.random() < 0.3:
            faults.append(Fault(round(at + rng.uniform(0.0, 3.0), 3), "kill", "c0"))
    return replace(
        plan,
        jobs=[replace(job, spec=_endless(job.spec)) for job in plan.jobs] if endless else plan.jobs,
        faults=sorted(faults, key=lambda fault: fault.at),
        coordinators=rng.choice([1, 2]),
        keep_jobs=rng.choice([0, 1000]),
        audit_every=0.0,
    )


def stop_plan(seed: str) -> Plan:
    """The same with a job without an end, with a loop perhaps and with bounds, which a user stops, and with fewer peers."""
    rng = random.Random(f"stops/{seed}")
    plan = (loop_plan if rng.random() < 0.7 else timed_plan)(seed)
    jobs = [replace(job, spec=replace(_endless(job.spec), max_backlog=rng.choice([1, 4, 9]))) for job in plan.jobs]
    return replace(plan, jobs=jobs, daemons=rng.choice([plan.daemons, (1,), (1, 1), (2, 1)]), audit_every=0.0)


def _endless(spec: JobSpec) -> JobSpec:
    read, *rest = spec.catalog
    options = {name: option for name, option in read.options.items() if name != "end"}
    return replace(spec, catalog=[replace(read, options=options), *rest])


def loop_plan(seed: str) -> Plan:
    """The same with a job whose rows go round a loop, some times each, before they come to the windows."""
    plan, rng = timed_plan(seed), random.Random(f"loops/{seed}")
    return replace(plan, jobs=[replace(job, spec=_looped(rng, job.spec)) for job in plan.jobs])


def damaged_plan(seed: str) -> Plan:
    """The same with a Kafka that loses state or positions, and with all peers gone right after it."""
    plan, rng = timed_plan(seed), random.Random(f"damaged/{seed}")
    at = round(rng.uniform(0.4, 0.9) * plan.until, 3)
    kinds: list[Kind] = ["tear", "tear", "erase", "forget"]
    faults = [Fault(at, rng.choice(kinds), count=rng.randrange(1000))]
    faults += [Fault(at, "kill", f"d{number}") for number in range(len(plan.daemons))]
    return replace(plan, trim_every=KEPT, faults=sorted([*plan.faults, *faults], key=lambda fault: fault.at))


def _spec(rng: random.Random) -> JobSpec:
    through, twice = rng.random() < 0.5, rng.random() < 0.4
    final = twice or rng.random() < 0.6
    window = WindowSpec(
        kind="tumbling",
        size=f"{SIZE} s",
        aggregate={"hits": AggregateSpec(of="count")},
        emit="final" if final else "changes",
        grace=rng.choice(["0 s", "5 s"]),
        allowed_lateness=0 if twice else rng.choice([0, "10 s"]),
        late=rng.choice(["drop", "dead_letter"]),
    )
    idle = rng.choice([None, None, "3 s"])
    catalog = [
        TaskSpec(
            name="read",
            type="input",
            connector="kafka",
            options={"topic": "rows", "schema": "k string, at bigint, n bigint", "end": "latest"},
            time=TimeSpec(column="at", unit="us", delay=f"{DELAY} s", idle=idle),
            batch_size=rng.choice([3, 20]),
        )
    ]
    names = ("same", "again") if through else ()
    catalog += [TaskSpec(name=name, type="function", fn="m:f", batch_size=20) for name in names]
    catalog.append(
        TaskSpec(name="count", type="function", group_by=["k"], window=window, batch_size=rng.choice([2, 50]))
    )
    if twice:
        longer = WindowSpec(
            kind="tumbling", size=f"{3 * SIZE} s", aggregate={"hits": AggregateSpec(of="sum", column="hits")}
        )
        catalog.append(TaskSpec(name="more", type="function", group_by=["k"], window=longer, batch_size=50))
    catalog.append(TaskSpec(name="out", type="output", connector="kafka", options={"topic": "out"}))
    chain = [task.name for task in catalog]
    return JobSpec(
        name="j", workflow=list(itertools.pairwise(chain)), catalog=catalog, partitions=rng.choice([1, 2, 3])
    )


def _looped(rng: random.Random, spec: JobSpec) -> JobSpec:
    """The job with a loop between its input and its windows. What comes back too often is left out."""
    ring = [f"turn{number}" for number in range(rng.randint(1, 3))]
    read, *rest = [task for task in spec.catalog if task.name not in ("same", "again")]
    turns = [
        TaskSpec(name=name, type="function", fn="m:f", on_error=OnError(then="skip"), batch_size=rng.choice([1, 3, 20]))
        for name in ring
    ]
    catalog = [read, *turns, *rest]
    return replace(
        spec,
        catalog=catalog,
        workflow=list(itertools.pairwise(task.name for task in catalog)),
        cycles=[CycleSpec(name="loop", back=[(ring[-1], ring[0])], max_hops=rng.randint(1, 3))],
    )


def passes(spec: JobSpec) -> int:
    """How often each row goes through the tasks before the windows."""
    return 1 if not spec.cycles else 1 + (spec.cycles[0].max_hops or 0)


def rows_of(plan: Plan) -> list[Row]:
    """The rows of a history: each partition has its own pace, pauses, and disorder."""
    rng = random.Random(f"rows/{plan.seed}")
    found: list[Row] = []
    for partition in range(rng.randint(2, 3)):
        comes, time = rng.uniform(1.0, 4.0), rng.randint(0, 5) * SECOND
        for _ in range(rng.randint(4, 14)):
            comes += rng.choice([0.0, rng.uniform(0.1, 1.5), rng.uniform(0.1, 1.5), rng.uniform(1.0, 7.0)])
            time += rng.choice([0, rng.randint(0, 3 * SECOND), rng.randint(0, 12 * SECOND)])
            disorder = rng.choice([0, 0, rng.randint(0, DELAY * SECOND), rng.randint(0, 25 * SECOND)])
            at = max(0, time - disorder)
            if comes < 0.85 * plan.until or not found:
                found.append(Row(round(comes, 3), partition, rng.choice("abc"), at, len(found)))
    return found
