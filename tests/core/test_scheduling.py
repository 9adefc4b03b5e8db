"""Which task comes next, who is called back, who is missing: single choices, beside the scenario files."""

from __future__ import annotations

import math
import random

import pytest
from scenario_runner import World

from coordinator.core import scheduling
from coordinator.core.scheduling import Offer
from sardonyx.core.events import LinkFacts, LinksCreated


def played(*sentences: str) -> World:
    world = World()
    for sentence in sentences:
        world.say(sentence)
    return world


def running(spec: str, *sentences: str) -> World:
    return played(f"work is submitted: {spec}", "the links of work are made", *sentences)


@pytest.mark.parametrize(
    ("remark", "limit"),
    [
        ("4 partitions", 4),
        ("4 partitions; write takes at most 3", 3),
        ("4 partitions; write takes at most 30", 4),
        ("4 partitions; write is sequential", 1),
    ],
)
def test_how_many_peers_a_task_takes(remark: str, limit: int) -> None:
    """No more than it may, and no more than there are partitions to read."""
    world = running(f"read -> write; {remark}")
    assert world.state.plans["work"].limit["write"] == limit


def test_the_widest_link_counts() -> None:
    """A task that reads two links can have as many peers as the wider one has partitions."""
    world = played("work is submitted: a -> c, b -> c")
    facts = {"a.splits": LinkFacts(1), "b.splits": LinkFacts(1), "a.c": LinkFacts(2), "b.c": LinkFacts(5)}
    world.deliver(LinksCreated(job="work", links=facts))
    assert world.state.plans["work"].limit == {"a": 1, "b": 1, "c": 5}


def test_more_peers_to_begin_than_a_task_takes() -> None:
    """``min_peers`` beyond what the task can take would never come together; it is begun with what it takes."""
    world = running("read -> write; read begins with 5; read takes at most 2", "P1, P2 are born")
    assert list(world.state.jobs["work"].tasks["read"].peers) == ["P1", "P2"]


def test_nothing_behind_a_task_that_nobody_works_on() -> None:
    """While the first task waits for two peers, one peer is not put on the second."""
    world = running("read -> write; read begins with 2", "P1 is born")
    assert scheduling.choose(world.state, "work", 1) is None
    assert scheduling.choose(world.state, "work", math.inf) == Offer("work", "read", 2)
    assert scheduling.waits_for(world.state, "work") == 1


def test_another_branch_goes_on() -> None:
    """A task that waits for peers holds up what is behind it, and nothing else."""
    world = running("a -> c, b -> d; a begins with 3", "P1 is born")
    assert world.state.peers["P1"].assignment is not None
    assert world.state.peers["P1"].assignment.task == "b"
    assert scheduling.waits_for(world.state, "work") == 0


def test_several_are_preempted_at_once() -> None:
    """If the front needs two and one is idle, one is preempted; without a peer to preempt, the job waits and says so."""
    world = running(
        "read -> write; read begins with 2; write takes at most 1",
        "P1, P2, P3 are born",
        "P3 acks",
        "P1 dies",
        "P2 dies",
    )
    assert world.state.peers["P3"].assignment is not None
    assert world.state.peers["P3"].assignment.task == "write"
    assert world.state.jobs["work"].waits_for == 1
    world.say("P4 is born")
    assert world.state.on_task(world.state.jobs["work"].tasks["read"]) == ["P4", "P3"]
    assert world.state.jobs["work"].tasks["write"].peers == {}
    assert world.state.jobs["work"].waits_for == 0


def test_a_sealing_peer_is_not_preempted() -> None:
    """It is about to be free by itself, and what it has done would be lost."""
    world = running("a -> b, c -> d; 1 partition", "P1, P2, P3 are born", "P1 acks", "P2 acks", "P3 acks")
    places = {name: peer.assignment.task for name, peer in world.state.peers.items() if peer.assignment}
    assert places == {"P1": "a", "P2": "b", "P3": "c"}
    world.say("P2 is exhausted")
    world.say("P1 dies")
    world.say("P3 dies")
    assert world.state.peers["P2"].state == "sealing"
    assert scheduling.preemption(world.state, "work") is None
    world.say("P2 completes")
    assert world.state.assignment("P2").task == "a"


def test_jobs_take_turns_from_the_last_one_served() -> None:
    """Three jobs, one peer after the other: each job once, in the order in which they were handed in, and round again."""
    world = World()
    for job in ("one", "two", "three"):
        world.say(f"{job} is submitted: read -> write")
        world.say(f"the links of {job} are made")
    served = []
    for number in range(1, 7):
        world.say(f"P{number} is born")
        place = world.state.peers[f"P{number}"].assignment
        assert place is not None
        served.append(place.job)
    assert served == ["one", "two", "three"] * 2


def test_some_unbounded_job_always_works(seed: int) -> None:
    """Peers come, go and are shared out among unbounded jobs. Whenever there are enough peers for the oldest of these, a job
    has peers on all its tasks. (An older job that lacks peers keeps those that it has, until they are enough again.)
    """
    for number in range(60):
        rng = random.Random(f"{seed}/unbounded/{number}")
        world = World()
        chains: dict[str, list[str]] = {}
        for step in range(60):
            kind = rng.random()
            alive = [name for name, peer in world.state.peers.items() if peer.state != "dead"]
            if kind < 0.15 and len(chains) < 5:
                name = f"job{step}"
                tasks = [f"t{n}" for n in range(rng.randint(1, 5))]
                chains[name] = tasks
                world.say(f"{name} is submitted: {' -> '.join(['topic', *tasks])}; topic never ends")
                world.say(f"the links of {name} are made")
            elif kind < 0.35 and alive:
                world.say(f"{rng.choice(alive)} dies")
            elif kind < 0.4 and chains:
                name = rng.choice(list(chains))
                world.say(f"{name} is killed")
                del chains[name]
            else:
                world.say(f"P{step} is born")
            alive = [name for name, peer in world.state.peers.items() if peer.state != "dead"]
            whole = [
                name
                for name, tasks in chains.items()
                if all(world.state.jobs[name].tasks[task].peers for task in tasks)
            ]
            oldest = next(iter(chains.values()), None)
            fits = oldest is not None and len(oldest) <= len(alive)
            assert whole or not fits, f"{seed}/unbounded/{number}: no job works: {world.picture()}"
