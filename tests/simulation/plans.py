"""Random plans: what may go wrong in a history, drawn from a seed."""

from __future__ import annotations

import random

from msgspec.structs import replace

from tests.random_jobs import random_spec
from tests.simulation.plan import Fault, Kind, Plan, Submission

WEIGHTS: dict[Kind, int] = {
    "kill": 4,
    "crash": 6,
    "stop": 3,
    "cut": 3,
    "break": 4,
    "mute": 4,
    "expire": 2,
    "usurp": 3,
    "evict": 2,
    "end": 1,
    "halt": 2,
    "purge": 2,
    "policy": 2,
    "scale": 2,
    "suspend": 3,
    "drain": 2,
    "lag": 1,
    "kafka": 2,
    "say": 4,
}


def with_bounds(rng: random.Random, job: Submission) -> Submission:
    """Some jobs have bounds: of all queues, or of some."""
    most = rng.choice([None, None, 1, 4, 9])
    if most is None:
        return job
    queues = [f"{source}.{target}" for source, target in job.spec.workflow]
    some = {name: most for name in queues if rng.random() < 0.5}
    return replace(job, spec=replace(job.spec, max_backlog=rng.choice([most, some])))


def random_plan(seed: str) -> Plan:
    """A cluster, its jobs and its troubles."""
    rng = random.Random(f"plan/{seed}")
    coordinators = rng.choice([1, 2, 2, 3])
    daemons = [rng.randint(1, 2) for _ in range(rng.randint(1, 2))]
    until = rng.uniform(8.0, 30.0)
    jobs = []
    for number in range(rng.choice([1, 1, 2])):
        name = f"j{number}"
        jobs.append(
            Submission(round(rng.uniform(0.1, until / 2), 3), name, random_spec(rng, name, rng.choice([0.3, 0.9])))
        )
    bounded = random.Random(f"bounded/{seed}")
    jobs = [with_bounds(bounded, job) for job in jobs]
    wanted = [task.min_peers for job in jobs for task in job.spec.catalog]
    few = daemons.copy()
    daemons[-1] += max(0, max(wanted) - sum(daemons))
    faults = []
    for _ in range(rng.choice([0, 1, 2, 3, 5, 8, 16])):
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        places = [f"c{n}" for n in range(coordinators)], [f"d{n}" for n in range(len(daemons))]
        who = rng.choice(places[rng.random() < 0.4])
        if kind == "drain":
            who = f"d{rng.randrange(len(daemons))}"
        seconds = rng.choice([rng.uniform(0.05, 2.0), rng.uniform(2.0, 9.0), rng.uniform(9.0, 25.0)])
        faults.append(Fault(round(rng.uniform(0.2, until), 3), kind, who, round(seconds, 3), rng.randrange(24)))
    for number, job in enumerate(jobs):
        if rng.random() < 0.3:  # while it reads
            faults.append(Fault(round(job.at + rng.uniform(0.0, 2.0), 3), "halt", count=number))
    changing = random.Random(f"changing/{seed}")
    for number in range(changing.choice([0, 0, 1, 2]) if jobs else 0):
        at = jobs[number % len(jobs)].at + changing.uniform(0.2, until - jobs[number % len(jobs)].at)
        faults.append(Fault(round(at, 3), "change", count=number))
    closing = [changing.uniform(jobs[0].at + 0.2, until) for _ in range(changing.choice([0, 0, 0, 1, 2, 3])) if jobs]
    faults += [Fault(round(at, 3), "close", count=number) for number, at in enumerate(closing)]
    resizing = random.Random(f"resizing/{seed}")
    for number in range(resizing.choice([0, 0, 1, 2, 3]) if jobs else 0):
        at, count = resizing.uniform(jobs[0].at + 0.2, until), resizing.randrange(24)
        faults.append(
            Fault(round(at, 3), "resize", seconds=round(resizing.uniform(0.5, 9.0), 3), count=24 * number + count)
        )
    troubled = rng.random() < 0.4
    growing = max(wanted) if random.Random(f"growing/{seed}").random() < 0.3 else 0
    return Plan(
        seed=seed,
        servers=rng.choice([1, 1, 3]),
        coordinators=coordinators,
        daemons=tuple(few if growing else daemons),
        growing=growing,
        jobs=jobs,
        faults=sorted(faults, key=lambda fault: fault.at),
        until=round(until, 3),
        snapshot_every=rng.choice([3, 10, 1000]),
        keep_log=rng.choice([0, 5, 100_000]),
        keep_jobs=rng.choice([0, 1000, 1000]),
        memory=rng.choice([5, 1000, 1000, 1000]),
        forgiven=rng.choice([3.0, 600.0]),
        declines=0.05 if troubled else 0.0,
        fails=0.01 if troubled else 0.0,
        fails_for_good=0.1,
        slow=rng.choice([0.2, 0.2, 20.0]),
        doubled=rng.choice([0.0, 0.1]),
        trim_every=rng.choice([0.5, 60.0]),
        audit_every=random.Random(f"audit/{seed}").choice([0.0, 1.0, 60.0]),
        quantum=rng.choice([0.5, 5.0]),
        rebalance_after=rng.choice([1.0, 60.0]),
    )
