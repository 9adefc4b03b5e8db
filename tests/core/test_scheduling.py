"""Which task comes next, who is called back, who is missing: single choices, beside the scenario files."""

from __future__ import annotations

import math
import random

import pytest
from scenario_runner import World

from coordinator.core import entitlement, scheduling
from coordinator.core.entitlement import targets
from coordinator.core.scheduling import Offer
from coordinator.core.state import Bounds
from sardonyx.core.events import LinkFacts, LinksCreated, PolicySet


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


def test_every_unbounded_job_works(seed: int) -> None:
    """Peers come, go and are shared out among unbounded jobs. As soon as those that are to give their tasks up have done so, each
    job that is not queued has peers; a task has two only if each task of its job has one; and nothing moves any more.
    """
    for number in range(40):
        rng = random.Random(f"{seed}/unbounded/{number}")
        world = World()
        for step in range(60):
            kind = rng.random()
            alive = [name for name, peer in world.state.peers.items() if peer.state != "dead"]
            if kind < 0.15 and len(world.state.plans) < 5:
                chain = " -> ".join(["topic", *(f"t{n}" for n in range(rng.randint(1, 5)))])
                world.say(f"job{step} is submitted: {chain}; topic never ends")
                world.say(f"the links of job{step} are made")
            elif kind < 0.35 and alive:
                world.say(f"{rng.choice(alive)} dies")
            elif kind < 0.4 and world.state.plans:
                world.say(f"{rng.choice(list(world.state.plans))} is killed")
            else:
                world.say(f"P{step} is born")
        for _ in range(3):  # what a job cannot go on without moves at once, and the rest when it may move again
            world.say("61 s pass")
            world.say("the peers that are to give their tasks up do")
            world.say("the offers are acked")
        where = f"{seed}/unbounded/{number}: {world.picture()}"
        assert not scheduling.giving_back(world.state), where
        for name in world.state.plans:
            job = world.state.jobs[name]
            staffed = [len(job.tasks[stage].peers) for stage in world.state.plans[name].stages]
            assert job.queued == (not sum(staffed)), where
            assert 0 not in staffed or max(staffed) <= 1, where
        assert not world.state.queued or world.state.live < len(world.state.plans), where


def test_targets_as_onyx_documents_them() -> None:
    """The three schedulers of Onyx, with the numbers of its documentation: 100 peers, and jobs that could use them all."""

    def divided(scheduler: str, peers: int, **jobs: str) -> list[int]:
        world = World()
        world.deliver(PolicySet(scheduler=scheduler))  # type: ignore[arg-type]
        for name, remark in jobs.items():
            world.say(f"{name} is submitted: in -> out; in never ends; 400 partitions{remark and '; ' + remark}")
            world.say(f"the links of {name} are made")
        world.say(f"{peers} peers are born")
        found = targets(world.state)
        return [found[name].peers for name in jobs]

    assert divided("greedy", 100, a="", b="") == [100, 0]
    assert divided("balanced", 100, a="", b="") == [50, 50]
    assert divided("balanced", 100, a="", b="", c="") == [34, 33, 33]
    assert divided("percentage", 100, a="70 percent", b="30 percent") == [70, 30]
    assert divided("percentage", 200, a="70 percent", b="30 percent") == [140, 60]
    assert divided("percentage", 100, a="70 percent", b="30 percent", c="20 percent") == [70, 30, 0]
    assert divided("percentage", 100, a="50 percent", b="20 percent") == [80, 20]
    assert divided("percentage", 100, a="50 percent", b="") == [50, 50]


def test_a_share_is_exact_to_a_peer(seed: int) -> None:
    """Of any jobs on any number of peers: none is promised more than its cap, the sum is what there is or all that is asked for,
    and no other division would give more to the job that has least for its weight.
    """
    rng = random.Random(f"{seed}/shares")
    for _ in range(300):
        count = rng.randint(1, 8)
        low = [rng.randint(1, 3) for _ in range(count)]
        high = [least + rng.randint(0, 20) for least in low]
        weights = [rng.choice([0.3, 1.0, 1.0, 2.5]) for _ in range(count)]
        amount = rng.randint(sum(low), sum(high))
        shares = entitlement._level(amount, Bounds(low, high, weights))
        assert math.isclose(sum(shares), amount, abs_tol=1e-6)
        whole = entitlement._whole(shares, amount, high, low)
        assert sum(whole) == amount
        for share, peers, least, most in zip(shares, whole, low, high, strict=True):
            assert least <= peers <= most
            assert abs(share - peers) < 1 + 1e-6
        rising = [s / w for s, w, most in zip(shares, weights, high, strict=True) if s < most - 1e-6]
        lifted = [s / w for s, w, least in zip(shares, weights, low, strict=True) if s > least + 1e-6]
        assert not rising or not lifted or max(lifted) <= min(rising) + 1e-6, (low, high, weights, shares)


def test_one_job_has_more_than_its_share() -> None:
    """Three jobs have 4, 2 and 2 of 8 peers. No job lacks a whole peer, and yet the first gives one: its share is less than 3."""
    world = played("P1, P2, P3, P4 are born")
    for name in ("a", "b", "c"):
        world.say(f"{name} is submitted: in -> out; in never ends")
        world.say(f"the links of {name} are made")
    world.say("P5, P6, P7, P8 are born")
    assert world.state.held == {"a": 4, "b": 2, "c": 2}
    (move,) = scheduling.giving_back(world.state)
    assert (move.job, len(move.peers), move.at_once) == ("a", 1, 0)
