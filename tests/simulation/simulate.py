"""``make simulate SEEDS=5000 FIRST=700000``: that many histories of a simulated cluster, from that seed on.

A history that goes wrong is shrunk to the faults that matter, and written to a file; ``make simulate PLAN=FILE`` plays that
file alone and tells everything that happens. The last line counts; the exit code is 1 if any history failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from sardonyx.core.graph import graph_of  # noqa: E402
from tests.simulation import world  # noqa: E402
from tests.simulation.plan import Plan, Tally  # noqa: E402
from tests.simulation.plans import random_plan  # noqa: E402
from tests.simulation.shrink import shrunk  # noqa: E402
from tests.simulation.verdict import Wrong  # noqa: E402

SHARE = 50
"""Histories that a process takes at a time."""
SHOWN = 5
"""Failures that are shrunk; further ones only show their seed."""


KINDS = ("cluster", "clocks", "damage", "lineage", "checkpoints", "loops", "going-back", "stops")
"""What histories are about. Those after the first: :mod:`tests.simulation.timed_plans`."""


def drawn(kind: str, seed: str) -> Plan:
    """A random history. ``kind``: one of :data:`KINDS`."""
    from tests.simulation import timed_plans as timed

    plans = (
        random_plan,
        timed.timed_plan,
        timed.damaged_plan,
        timed.lineage_plan,
        timed.checkpoint_plan,
        timed.loop_plan,
        timed.going_back_plan,
        timed.stop_plan,
    )
    return dict(zip(KINDS, plans, strict=True))[kind](seed)


def world_of(plan: Plan) -> world.World:
    """Jobs with clocks get a world with rows, transactions and state."""
    if all(task.time is None for job in plan.jobs for task in job.spec.catalog):
        return world.World(plan)
    from tests.simulation.going_back import GoingBackWorld  # needs Kafka's client
    from tests.simulation.stopping import StoppingWorld
    from tests.simulation.timed import TimedWorld

    if any(fault.kind in ("rollback", "restart") for fault in plan.faults):
        return GoingBackWorld(plan)
    return (TimedWorld if all(graph_of(job.spec, "", "").bounded for job in plan.jobs) else StoppingWorld)(plan)


def played(plan: Plan) -> tuple[Tally, str]:
    """Play a plan; gives what it came to, and what went wrong, if anything."""
    one = world_of(plan)
    try:
        return one.play(), ""
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return one.tally(), "".join(traceback.format_exception(error, limit=-3))


def noticed(plan: Plan) -> str:
    """What the simulation says is wrong in a plan, if anything. What else is raised passes: a patch that breaks shows nothing.

    Raises:
        Unforeseen: a process has raised what is not an error of Sardonyx.
    """
    try:
        world_of(plan).play()
    except Wrong as wrong:
        return str(wrong)
    return ""


def share(first: int, count: int, kind: str = "cluster") -> tuple[Tally, list[tuple[str, str]]]:
    """So many histories; their tally, and (seed, what went wrong) of those that failed."""
    total, failures = Tally(), []
    for seed in map(str, range(first, first + count)):
        tally, wrong = played(drawn(kind, seed))
        total.add(tally)
        if wrong:
            failures.append((seed, wrong))
    return total, failures


def _share(arguments: tuple[int, int, str]) -> tuple[Tally, list[tuple[str, str]]]:
    return share(*arguments)


def shares(first: int, count: int, kind: str) -> Iterator[tuple[int, int, str]]:
    for at in range(first, first + count, SHARE):
        yield at, min(SHARE, first + count - at), kind


def simulate(first: int, count: int, processes: int, kind: str = "cluster") -> int:
    """Play them all; gives the exit code."""
    began = time.perf_counter()
    total, failures, done = Tally(), list[tuple[str, str]](), 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        parts = list(shares(first, count, kind))
        for (_, size, _), (tally, wrong) in zip(parts, pool.imap(_share, parts), strict=True):
            total.add(tally)
            done += size
            for seed, what in wrong:
                failures.append((seed, what))
                tell(kind, seed, what, shrink=len(failures) <= SHOWN)
            if done % 5000 == 0 and done < count:
                print(f"{done} of {count}, {len(failures)} failures", file=sys.stderr)
    took = time.perf_counter() - began
    print(
        f"{total.decisions} decisions, {total.requests} requests, {total.lost_replies} replies lost, "
        f"{total.depositions} depositions, {total.refused} writes of deposed leaders refused, {total.accepted} accepted"
    )
    print(
        f"histories {count} from {first}, steps {total.steps}, steps/s {total.steps / took:.0f}, failures {len(failures)}"
    )
    return 1 if failures else 0


def tell(kind: str, seed: str, wrong: str, *, shrink: bool) -> None:
    """Show a failure, and how to see it again."""
    print(f"\nhistory {seed} failed (again: make simulate SEEDS=1 FIRST={seed} KIND={kind})\n{wrong}")
    if not shrink:
        return
    small = shrunk(drawn(kind, seed), played)
    folder = ROOT / ".simulation"
    folder.mkdir(exist_ok=True)
    path = folder / f"{seed}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(small)) + b"\n")
    print(f"shrunk to {len(small.faults)} faults (tell all of it: make simulate PLAN={path.relative_to(ROOT)})")
    print("".join(f"  {fault}\n" for fault in small.faults), played(small)[1])


def without(name: str, first: int, count: int) -> int:
    """Take one safeguard out, and look for a history that fails as it should; gives the exit code: 0 if there is one."""
    import pytest

    from tests.simulation.safeguards import SAFEGUARDS

    safeguard = next(each for each in SAFEGUARDS if each.name == name)
    with pytest.MonkeyPatch.context() as patch:
        safeguard.take_out(patch)
        for seed in range(first, first + count):
            wrong = noticed(safeguard.planned(str(seed)))
            if wrong:
                print(f"{wrong}\nwithout {name}, history {seed} fails")
            if safeguard.says in wrong:
                return 0
    print(f"without {name}, no history from {first} to {first + count - 1} fails with '{safeguard.says}'")
    return 1


def replay(path: Path) -> int:
    """Play one plan from a file, and tell everything that happens."""
    world.VERBOSITY = 10
    tally, wrong = played(msgspec.json.decode(path.read_bytes(), type=Plan))
    print(wrong or "nothing went wrong")
    print(f"histories 1 from {path.name}, steps {tally.steps}, failures {int(bool(wrong))}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    parser.add_argument("--kind", choices=KINDS, default="cluster", help="what it is about")
    parser.add_argument(
        "--without", help="take this safeguard out (tests/simulation/safeguards.py), and find what fails"
    )
    parser.add_argument("--plan", type=Path, help="play this one plan and tell everything")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # a failure is shown at once, also in a file
    if chosen.without:
        return without(chosen.without, chosen.first, chosen.seeds)
    return replay(chosen.plan) if chosen.plan else simulate(chosen.first, chosen.seeds, chosen.processes, chosen.kind)


if __name__ == "__main__":
    sys.exit(main())
