"""What a decision costs, and that it does not grow with the number of peers: `python bench/bench_decide.py`.

Peers and jobs grow together, so that every peer has a place (8 partitions, 5 stages a job). Measured is a steady mix: a
peer dies and another is born, gets its place, acks, finds it exhausted. Also where all but one job's peers are idle, and where
there are fewer peers than places: seven for the forty of each job. Time is that of the processor.
"""

from __future__ import annotations

import itertools
import sys
import time

from coordinator.core.decide import decide
from coordinator.core.state import State, new_state
from sardonyx.core.events import Acked, AnyEvent, Exhausted, JobSubmitted, LinkFacts, LinksCreated, PeerBorn, PeerDied
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec, TaskSpec

STAGES, PARTITIONS = 5, 8


def job(number: int) -> JobSpec:
    names = [f"t{index}" for index in range(STAGES)]
    catalog = [TaskSpec(name=names[0], type="input", connector="generator")]
    catalog += [TaskSpec(name=name, type="function", fn="m:f") for name in names[1:-1]]
    catalog.append(TaskSpec(name=names[-1], type="output", connector="blackhole"))
    workflow = list(itertools.pairwise(names))
    return JobSpec(name=f"job{number}", workflow=workflow, catalog=catalog, partitions=PARTITIONS)


class Driver:
    def __init__(self) -> None:
        self.state: State = new_state()
        self.n = 0

    def __call__(self, event: AnyEvent) -> None:
        self.n += 1
        decide(self.state, self.n, event)


def world(peers: int, jobs: int) -> Driver:
    """So many peers and jobs; the peers have accepted what they were offered."""
    drive = Driver()
    for number in range(jobs):
        spec = job(number)
        drive(JobSubmitted(job=spec.name, spec=spec))
        facts = {link.name: LinkFacts(PARTITIONS) for link in graph_of(spec, "default", spec.name).links}
        drive(LinksCreated(job=spec.name, links=facts))
    for peer in range(peers):
        drive(PeerBorn(peer=f"p{peer}"))
        if drive.state.peers[f"p{peer}"].assignment:
            drive(Acked(peer=f"p{peer}", assignment=drive.n))
    return drive


def measure(drive: Driver, rounds: int = 5000) -> float:
    """Events a second."""
    on_tasks = [name for name, peer in drive.state.peers.items() if peer.assignment]
    began, events = time.process_time(), drive.n
    for number in range(rounds):
        victim = on_tasks[number % len(on_tasks)]
        drive(PeerDied(peer=victim))
        heir = next(iter(drive.state.by_state["acking"]), None)
        born = f"q{number}"
        drive(PeerBorn(peer=born))
        heir = heir or born
        on_tasks[number % len(on_tasks)] = heir
        assignment = drive.state.assignment(heir).id
        drive(Acked(peer=heir, assignment=assignment))
        drive(Exhausted(peer=heir, assignment=assignment))
    return (drive.n - events) / (time.process_time() - began)


if __name__ == "__main__":
    mixes = [("all at work", peers, max(1, peers // (STAGES * PARTITIONS))) for peers in (10, 100, 1000, 10_000)]
    mixes += [("one job, the others idle", peers, 1) for peers in (10, 100, 1000, 10_000)]
    mixes += [("fewer than places", 7 * jobs, jobs) for jobs in (10, 100, 1000)]
    for kind, peers, jobs in mixes:
        began = time.process_time()
        drive = world(peers, jobs)
        setup = drive.n / (time.process_time() - began)
        rounds = 5000 if jobs < 300 or kind == "all at work" else 500
        sys.stdout.write(
            f"{peers:>6} peers, {jobs} jobs, {kind}: set-up {setup:,.0f}, steady {measure(drive, rounds):,.0f} events/s\n"
        )
