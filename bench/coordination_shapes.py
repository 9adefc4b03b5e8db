"""Clusters of four shapes over simulated time: a fixed number of peers, growth, a sine, and a hundred wide jobs.

What runs is the product's own coordinator and its peer daemons on the simulated ZooKeeper and Kafka of ``tests/simulation``;
only time and a task's work are made up. After every decision it is looked whether a peer idles beside work that waits for
one: such moments are counted, and the seconds of peers that they lasted.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from coordinator.core import scheduling
from coordinator.core.invariants import check
from coordinator.core.state import State
from peer.daemon import PeerDaemon
from sardonyx.core.events import JobSubmitted
from sardonyx.core.spec import JobSpec, TaskSpec

sys.path.insert(0, str(Path(__file__).parents[1]))
from coordination_world import replaced

from tests.simulation import kafka as simulated_kafka
from tests.simulation import peer_work
from tests.simulation.plan import Plan, Submission
from tests.simulation.verdict import Stuck
from tests.simulation.world import World, instrumented

RECORDS, BATCH = 160, 4
"""Records of a job, and of a batch. A batch takes up to 0.3 s of simulated time, so a task some 6 s of one peer."""
PARTITIONS = 8
SAMPLE = 0.5
"""Simulated seconds between the points of a plot."""
CHECKED = 20
"""Decisions after which all rules of the state are checked once; that costs as much as the state is large."""
LONGEST = 3600.0
"""Simulated seconds after which a shape is given up."""


@dataclass(frozen=True)
class Shape:
    """A cluster and its jobs, each with the simulated seconds at which it comes; a peer that is drained also goes."""

    title: str
    peers: list[tuple[float, float | None]]
    jobs: list[tuple[float, JobSpec]]


def chain(tasks: int) -> JobSpec:
    """A job of so many tasks in a row."""
    names = [f"t{index}" for index in range(tasks)]
    catalog = [TaskSpec(name=names[0], type="input", connector="generator")]
    catalog += [TaskSpec(name=name, type="function", fn="m:f") for name in names[1:-1]]
    catalog.append(TaskSpec(name=names[-1], type="output", connector="blackhole"))
    return JobSpec(name="chain", workflow=list(itertools.pairwise(names)), catalog=catalog, partitions=PARTITIONS)


def sine(mean: int, swing: int, period: float, until: float) -> list[tuple[float, float | None]]:
    """When each peer comes and goes, so that there are ``mean + swing * sin`` of them; who came first goes first."""
    standing: list[float] = []
    gone: list[tuple[float, float | None]] = []
    for second in range(int(until)):
        wanted = round(mean + swing * math.sin(2 * math.pi * second / period))
        while len(standing) < wanted:
            standing.append(float(second))
        while len(standing) > wanted:
            gone.append((standing.pop(0), float(second)))
    return [*gone, *((came, None) for came in standing)]


def shapes() -> dict[str, Shape]:
    """The four, by name."""
    return {
        "fixed": Shape("20 peers, 40 jobs of 5 tasks at once", [(0.0, None)] * 20, [(1.0, chain(5))] * 40),
        "growth": Shape(
            "a peer every 3 s up to 40, 80 jobs of 5 tasks at once",
            [(3.0 * number, None) for number in range(40)],
            [(1.0, chain(5))] * 80,
        ),
        "sine": Shape(
            "20 peers and up to 15 more or fewer, a job of 5 tasks every 2 s",
            sine(20, 15, 60.0, 240.0),
            [(2.0 * number + 1, chain(5)) for number in range(105)],
        ),
        "hundred": Shape("50 peers, 100 jobs of 10 tasks at once", [(0.0, None)] * 50, [(1.0, chain(10))] * 100),
    }


class Seen:
    """What the decisions of one shape came to."""

    def __init__(self) -> None:
        self.points: dict[str, list[float]] = {
            name: [] for name in ("at", "alive", "at_work", "idle", "open", "complete")
        }
        """What is drawn, every half second of simulated time."""
        self.violations = 0
        """Decisions after which a peer idled beside work."""
        self.peer_seconds = dict.fromkeys(("alive", "at_work", "idle", "beside_work"), 0.0)
        """Simulated; ``idle`` while jobs were open, ``beside_work`` while there was something to do."""
        self._now: dict[str, float] = dict.fromkeys(self.peer_seconds, 0.0)
        self._at = 0.0
        self._drawn = -SAMPLE

    def look(self, at: float, state: State) -> None:
        """After a decision."""
        for name, peers in self._now.items():
            self.peer_seconds[name] += peers * (at - self._at)
        self._at = at
        running = [job for job in state.plans if state.jobs[job].status == "running"]
        beside = any(state.free and scheduling.choose(state, job, state.free) for job in running)
        self.violations += beside
        by = {name: len(peers) for name, peers in state.by_state.items()}
        alive = sum(by.values()) - by["dead"]
        at_work = by["active"] + by["waiting"] + by["sealing"]
        idle = by["idle"]
        unended = len([job for job in state.jobs.values() if not job.ended])
        self._now = {
            "alive": alive if unended else 0,
            "at_work": at_work,
            "idle": idle if unended else 0,
            "beside_work": idle if beside else 0,
        }
        if at >= self._drawn + SAMPLE or not unended:
            self._drawn = at
            complete = sum(task.state == "complete" for job in state.jobs.values() for task in job.tasks.values())
            for name, value in zip(self.points, (at, alive, at_work, idle, unended, complete), strict=True):
                self.points[name].append(round(value, 2))


class counted(instrumented):  # noqa: N801 - reads as a word
    """As in the simulation's tests, but peers that idle beside work are counted, and are no error."""

    _world: ShapeWorld

    def _checked(self, state: State, n: int, event: Any) -> Any:
        effects = self._decide(state, n, event)
        if n % CHECKED == 0:
            check(state)
        self._world.seen.look(self._world.sim.now, state)
        self._world.oracle.decisions += 1
        return effects


class ShapeWorld(World):
    """A simulated cluster without faults, played until all jobs have ended."""

    seen: Seen

    def __init__(self, shape: Shape, seed: str) -> None:
        self._shape = shape
        self.seen = Seen()
        jobs = [
            Submission(at, f"j{number:03d}", msgspec.structs.replace(spec, name=f"j{number:03d}"))
            for number, (at, spec) in enumerate(shape.jobs)
        ]
        super().__init__(Plan(seed=seed, daemons=(1,) * len(shape.peers), jobs=jobs, until=0.0))

    def _instrumented(self) -> Any:
        return counted(self)

    def _begin(self) -> None:
        self.sim.at(0.0, partial(self._start, "c0"))
        for number, (comes, goes) in enumerate(self._shape.peers):
            self.sim.at(0.02 + comes, partial(self._start, f"d{number}"))
            if goes is not None:
                self.sim.at(0.02 + goes, partial(self._leave, f"d{number}"))
        self.user.spawn("session", self._open_user_session)
        for job in self.plan.jobs:
            self.sim.at(job.at, partial(self._ask, JobSubmitted(job=job.job, spec=job.spec)))

    def _leave(self, place: str) -> None:
        """SIGTERM: it finishes its batch and goes."""
        daemon = self.running[place]
        assert isinstance(daemon, PeerDaemon)
        daemon.stop()

    def _again(self, place: str) -> None:
        """Who has gone stays away."""

    def _settle(self) -> None:
        self.trouble = msgspec.structs.replace(self.plan, slow=0.2)
        looked = 0.0
        while not (self.sim.now >= looked + 1.0 and self._over()):
            looked = self.sim.now if self.sim.now >= looked + 1.0 else looked
            if not self.sim.step() or self.sim.now > LONGEST:
                raise Stuck("the jobs do not come to their end")
            if self.wrong:
                raise AssertionError(self.wrong[0])

    def _over(self) -> bool:
        state = self.oracle.state
        return len(state.jobs) == len(self.plan.jobs) and all(
            job.ended and job.links == "gone" for job in state.jobs.values()
        )


def played(name: str, shape: Shape) -> dict[str, Any]:
    """Play one shape; what it came to, with the points of its plot."""
    with replaced(simulated_kafka, "RECORDS", RECORDS), replaced(peer_work, "BATCH", BATCH):
        world = ShapeWorld(shape, name)
        began = time.perf_counter()
        tally = world.play()
        seconds = time.perf_counter() - began
    seen, state = world.seen, world.oracle.state
    shares = {key: round(value, 3) for key, value in seen.peer_seconds.items()}
    return {
        "title": shape.title,
        "peers": len(shape.peers),
        "peers_at_once": max(seen.points["alive"]),
        "jobs": len(state.jobs),
        "completed": sum(job.status == "completed" for job in state.jobs.values()),
        "tasks": sum(len(job.tasks) for job in state.jobs.values()),
        "idle_beside_work": seen.violations,
        "peer_seconds": shares,
        "at_work_of_alive": round(shares["at_work"] / shares["alive"], 3),
        "simulated_s": round(world.sim.now, 1),
        "real_s": round(seconds, 2),
        "decisions": tally.decisions,
        "steps": tally.steps,
        "steps_per_s": round(tally.steps / seconds),
        "points": seen.points,
    }


def measure(names: list[str] | None = None) -> dict[str, Any]:
    """Play all shapes, or some."""
    found = {}
    for name, shape in shapes().items():
        if names is None or name in names:
            found[name] = played(name, shape)
            told = {key: value for key, value in found[name].items() if key not in ("points", "title")}
            print(f"{name}: {told}", flush=True)
    return found


def plot(name: str, found: dict[str, Any], axes: Any) -> None:
    """Peers above, work below, over simulated time."""
    shape = found[name]
    points = shape["points"]
    peers, work = axes
    peers.plot(points["at"], points["alive"], label="alive", color="0.45")
    peers.plot(points["at"], points["at_work"], label="at work", color="tab:blue")
    peers.plot(points["at"], points["idle"], label="idle", color="tab:red")
    peers.set(ylabel="virtual peers", title=shape["title"])
    work.plot(points["at"], points["open"], label="jobs open", color="tab:orange")
    work.set(xlabel="simulated seconds", ylabel="jobs open")
    done = work.twinx()
    done.plot(points["at"], points["complete"], label="tasks complete", color="tab:green")
    done.set(ylabel="tasks complete")
    done.set_ylim(bottom=0)
    for panel in (peers, work):
        panel.set_ylim(bottom=0)
    peers.legend(loc="best")
    work.legend([*work.lines, *done.lines], ["jobs open", "tasks complete"], loc="center right")
