"""Which task comes next, who is called back, who is missing: single choices, beside the scenario files."""

from __future__ import annotations

import math
import random

import pytest
from scenario_runner import World

from coordinator.core import entitlement, scheduling
from coordinator.core import state as state_module
from coordinator.core.decide import decide
from coordinator.core.entitlement import targets
from coordinator.core.indexes import Bounds, Kind
from coordinator.core.state import new_state
from coordinator.core.stored_state import decode_state, encode_state
from coordinator.core.timers import due
from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    FORMAT,
    TOO_OLD,
    Declined,
    LinkFacts,
    LinksCreated,
    PeerBorn,
    PolicySet,
    Rebalanced,
)
from tests.shares import hold_shares
from tests.sizes import histories


def played(*sentences: str) -> World:
    world = World()
    for sentence in sentences:
        world.say(sentence)
    return world


def running(spec: str, *sentences: str) -> World:
    return played(f"work is submitted: {spec}", "the links of work are made", *sentences)


def test_the_widest_link_counts() -> None:
    """A task that reads two links can have as many peers as the wider one has partitions."""
    world = played("work is submitted: a -> c, b -> c")
    facts = {"a.splits": LinkFacts(1), "b.splits": LinkFacts(1), "a.c": LinkFacts(2), "b.c": LinkFacts(5)}
    world.deliver(LinksCreated(job="work", links=facts))
    assert world.state.plans["work"].limit == {"a": 1, "b": 1, "c": 5}


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


def odd_world(rng: random.Random, *, odd_peers: bool = True) -> World:
    """Jobs of all kinds, with ``min_peers`` and limits, and peers, in any order. ``odd_peers``: jobs also ask for tags, and peers
    have some, and are of two releases.
    """
    steps: list[tuple[float, list[str | PeerBorn]]] = []
    for job in "jklm"[: rng.randint(2, 4)]:
        tasks = "abcd"[: rng.randint(2, 4)]
        remarks = [
            (0.5, "a never ends"),
            (0.4, f"{rng.choice(tasks)} begins with {rng.randint(2, 4)}"),
            (0.3, f"{rng.choice(tasks)} is sequential"),
            (0.4, f"{rng.choice(tasks)} asks for {rng.choice(['gpu', 'ssd'])}"),
            (0.15, "pool gpu"),
            (0.3, f"at most {rng.randint(1, 5)} peers"),
            (0.3, f"priority {rng.randint(-1, 2)}"),
            (0.3, f"weight {rng.choice(['0.5', '2', '3'])}"),
            (0.4, f"{rng.randint(10, 60)} percent"),
        ]
        said = "; ".join([" -> ".join(tasks), *(remark for chance, remark in remarks if rng.random() < chance)])
        if not odd_peers:
            said = "; ".join(part for part in said.split("; ") if "gpu" not in part and "ssd" not in part)
        partitions = rng.choice([1, 2, 4, 8])
        steps.append(
            (rng.random(), [f"{job} is submitted: {said}; {partitions} partitions", f"the links of {job} are made"])
        )
        if rng.random() < 0.2:
            steps.append((1.0, [f"{job} takes at most {rng.randint(1, 3)} peers"]))
        if rng.random() < 0.15 and "never ends" in said:
            steps.append((1.0, [f"{job} is stopped"]))
    peers = [f"P{number:02}" for number in range(rng.randint(2, 16))]
    for peer in peers:
        tags = rng.choice([(), (), ("gpu",), ("ssd",), ("gpu", "ssd")])
        born = PeerBorn(peer=peer, tags=tags, format=rng.choice([FORMAT, FORMAT + 1, FORMAT + 1]))
        if not odd_peers:
            born = PeerBorn(peer=peer, format=FORMAT)
        steps.append((rng.random(), [born, *["the offers are acked"] * (rng.random() < 0.7)]))
    steps += [(rng.random(), [f"{rng.choice(peers)} dies"]) for _ in range(rng.randint(0, 3))]
    if rng.random() < 0.5:
        how = rng.choice(["equally", "greedily", "in turns", "by percent"])
        steps.append((rng.random(), [f"peers are divided {how}"]))
    world = World()
    for _, each in sorted(steps, key=lambda step: step[0]):
        for one in each:
            if isinstance(one, str):
                world.say(one)
            else:
                world.deliver(one)
                if odd_peers and one.format == FORMAT and rng.random() < 0.2:
                    decline(world, one.peer)
            hold_shares(world.state)
    return world


def test_peers_come_to_rest(seed: int) -> None:
    """Jobs give peers to each other until each has what it can use; then nothing moves. No peer goes back and forth."""
    for number in range(histories(60, whole=300)):
        world = odd_world(random.Random(f"{seed}/rest/{number}"))
        moved = []
        for _ in range(15):
            world.now += 61
            events = [event for event in due(world.state, world.now, world.timers) if isinstance(event, Rebalanced)]
            moved.append(sum(event.peers for event in events))
            for event in events:
                world.deliver(event)
                hold_shares(world.state)
            for sentence in ("the peers that are to give their tasks up do", "the offers are acked"):
                world.say(sentence)
                hold_shares(world.state)
        assert not any(moved[-3:]), f"{seed}/rest/{number}: {moved}: {world.picture()}"


def given_back(world: World, rounds: int = 6) -> list[int]:
    """How many peers moved in each of so many rounds, in which the peers that are to give their tasks up do."""
    moved = []
    for _ in range(rounds):
        world.now += 61
        events = [event for event in due(world.state, world.now, world.timers) if isinstance(event, Rebalanced)]
        moved.append(sum(event.peers for event in events))
        for event in events:
            world.deliver(event)
        world.say("the peers that are to give their tasks up do")
        world.say("the offers are acked")
    return moved


def decline(world: World, peer: str) -> None:
    """The peer cannot read what it is offered: its release is too old. Its job needs newer peers from then on."""
    place = world.state.peers[peer].assignment
    if place is not None:
        world.deliver(Declined(peer=peer, assignment=place.id, error=Failure(TOO_OLD, "too old")))


def old(world: World, *peers: str, unread: str) -> None:
    """Peers are born that cannot read a job, and accept what else they are offered."""
    for peer in peers:
        world.deliver(PeerBorn(peer=peer, format=FORMAT))
        place = world.state.peers[peer].assignment
        if place is not None and place.job == unread:
            decline(world, peer)
    world.say("the offers are acked")


def job(name: str, spec: str) -> tuple[str, str]:
    return f"{name} is submitted: {spec}", f"the links of {name} are made"


def test_nothing_moves_for_a_blocked_task() -> None:
    """A bounded job whose later task is blocked gets no peers that could run only that task: they would go back at once."""
    world = played(
        *job("o", "a -> b; a never ends"),
        *job("k", "r -> s; r asks for gpu; r begins with 2; 4 partitions"),
        "PG1, PG2 are born with gpu",
        "P1, P2, P3 are born",
        "the offers are acked",
    )
    assert not any(given_back(world)[3:]), world.picture()


def test_a_job_with_tags_that_needs_two_at_once_begins() -> None:
    """What other jobs give it one by one is kept until there are enough."""
    world = played(
        *job("o", "a -> b; a never ends"),
        "P1, P2 are born",
        "PG1, PG2 are born with gpu",
        "the offers are acked",
        *job("k", "r -> s; r begins with 2; r asks for gpu; 4 partitions"),
    )
    world.now += 61
    for event in due(world.state, world.now, world.timers):
        world.deliver(event)
    world.say("PG1 yields")
    assert world.state.peers["PG1"].state == "idle"
    world.say("PG2 yields")
    assert sorted(world.state.jobs["k"].tasks["r"].peers) == ["PG1", "PG2"]
    assert not any(given_back(world)), world.picture()


@pytest.mark.parametrize("spec", ["r -> s; r asks for gpu", "r -> s; weight 2"])
def test_a_job_that_no_peer_can_run_reserves_nothing(spec: str) -> None:
    """A job after it, with an idle peer beside it, runs. The first one is queued, and no daemon is asked for more such peers."""
    world = played(*job("k", spec), *job("b", "a -> c"))
    old(world, "P1", unread="k")
    assert world.state.held == {"k": 0, "b": 1}
    assert (world.state.jobs["k"].queued, world.state.jobs["b"].queued) == (True, False)
    assert world.state.jobs["k"].waits_for == 0


def test_a_queued_job_runs_while_another_backs_off() -> None:
    """The only peer works for the queued job until the pause is over, and then goes back."""
    world = played(
        *job("k", "r -> s"), *job("b", "a -> c"), "P1 is born", "P1 acks", "P1 fails, which may pass: disk full"
    )
    assert world.state.held == {"k": 0, "b": 1}
    assert world.state.jobs["b"].queued
    world.say("the offers are acked")
    world.say("2 s pass")
    assert world.state.peers["P1"].yields == "", "the back-off has only just ended"
    world.say("0 s pass")
    world.say("P1 yields")
    assert world.state.held == {"k": 1, "b": 0}


def test_no_peer_is_kept_for_a_job_that_cannot_take_it() -> None:
    """A task that begins with more peers than its job's share leaves keeps none, nor does a job that the peer cannot read."""
    world = played(
        *job("b", "r -> s; r is sequential; s begins with 5"),
        "P1 is born",
        "P1 acks",
        *job("o", "a -> c; a never ends"),
        "7 peers are born",
        "the offers are acked",
    )
    assert world.state.free == 0, world.picture()
    world = played(*job("k", "r -> s; weight 2; r never ends"), *job("o", "a -> b; a never ends"))
    old(world, *(f"P{number}" for number in range(8)), unread="k")
    assert world.state.free == 0, world.picture()


def test_a_bounded_job_does_not_stand_still_beside_an_idle_peer() -> None:
    """If the peer of its front dies, it gets an idle one, even if that was kept for another job."""
    world = played(
        *job("b", "r -> s; r is sequential; s begins with 2"),
        "P1 is born",
        "P1 acks",
        *job("x", "a -> c -> d; 1 partitions"),
        "4 peers are born",
        "the offers are acked",
        "b gets weight 8",
    )
    assert world.state.free == 1
    (peer,) = world.state.jobs["x"].tasks["a"].peers
    world.say(f"{peer} dies")
    assert world.state.jobs["x"].tasks["a"].peers, world.picture()


def test_a_job_above_its_max_peers_gives_the_rest() -> None:
    """Also if it is the only job: what it has beyond ``max_peers`` becomes idle."""
    world = running("r -> s; r never ends", "5 peers are born", "the offers are acked", "work takes at most 2 peers")
    assert given_back(world) == [3, 0, 0, 0, 0, 0]
    assert (world.state.held["work"], world.state.free) == (2, 3)


def test_a_decision_does_not_look_at_each_idle_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle peers are looked up by kind, also for a job that asks for a release."""
    world = played("600 peers are born")
    looked = 0
    right = state_module.Kind.fits

    def fits(kind: Kind, asked: Kind) -> bool:
        nonlocal looked
        looked += 1
        return right(kind, asked)

    monkeypatch.setattr(state_module.Kind, "fits", fits)
    for sentence in job("work", "a -> b -> c; weight 2; 100 partitions"):
        world.say(sentence)
    assert world.state.held["work"] == 300
    assert looked < 300 * 20


def test_a_state_from_a_snapshot_decides_the_same(seed: int) -> None:
    """Also in the order of effects, whatever the names of the peers: a leader that takes over goes on as the old one would."""
    for number in range(60):
        world = odd_world(random.Random(f"{seed}/snapshot/{number}"))
        given_back(world, 3)
        kept, stored = new_state("test"), new_state("test")
        for n, event in world.log:
            effects = decide(kept, n, event)
            assert decide(stored, n, event) == effects, f"{seed}/snapshot/{number}: event {n}, {event}"
            stored = decode_state(encode_state(stored))
            assert due(stored, world.now, world.timers) == due(kept, world.now, world.timers)


def test_a_job_that_is_not_queued_soon_has_its_peers(seed: int) -> None:
    """It has what it needs to go on after at most as many ``rebalance``, and as many ``yielded``, as jobs lack peers to their
    targets, or have beyond ``max_peers``, if all peers can run all tasks and nothing else happens.
    """
    waited = 0
    for number in range(200):
        world = odd_world(random.Random(f"{seed}/soon/{number}"), odd_peers=False)
        world.say("the offers are acked")
        state = world.state
        where = f"{seed}/soon/{number}: {world.picture()}"
        lack = sum(max(target.peers - state.held[name], 0) for name, target in targets(state).items())
        beyond = sum(max(state.held[name] - (state.jobs[name].max_peers or 99), 0) for name in state.held)
        bound, steps = lack + beyond + sum(state.giving.values()), 0
        while True:
            events = [event for event in due(state, world.now, world.timers) if isinstance(event, Rebalanced)]
            leaving = [name for name, peer in state.peers.items() if peer.yields == "share"]
            if not events and not leaving:
                break
            steps += 1
            waited += 1
            assert steps <= 2 * bound, where
            if events:
                world.deliver(events[0])
            else:
                world.say(f"{leaving[0]} yields")
        for name, target in targets(state).items():
            able = scheduling.openings(state, name, target.peers - state.held[name])
            assert state.held[name] >= target.floor or state.jobs[name].queued or not able, f"{name}: {where}"
    assert waited > 50


def test_a_queued_job_goes_on_when_another_one_asks_for_less() -> None:
    """A queued job has a peer on a later task and none on its first. It may move it once the job that it was kept for can use
    none, though as many peers are idle as before (a random history found this).
    """
    world = World()
    for sentence in (
        *(
            "peers are divided greedily",
            "P1, P2 are born",
            "a is submitted: in -> mid -> out",
            "the links of a are made",
        ),
        "b is submitted: one -> two, one -> three; one takes at most 2; two takes at most 1; three begins with 2; priority 1",
        *("the links of b are made", "P3 is born", "the offers are acked", "P1 dies"),
    ):
        world.say(sentence)
    tasks = world.state.jobs["a"].tasks
    assert world.state.jobs["a"].queued
    assert not tasks["in"].peers, "b may have another peer"
    for sentence in ("P3 is exhausted", "P3 completes"):
        world.say(sentence)
    assert list(world.state.jobs["b"].tasks["two"].peers) == ["P3"]
    assert list(tasks["in"].peers) == ["P2"], "b has room for two peers at once only"
