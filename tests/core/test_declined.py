"""A process that cannot run a task leaves it to others, also where just as many peers are there as the job has tasks."""

from __future__ import annotations

import pytest
from scenario_runner import World

from coordinator.core.explain import explain
from coordinator.core.state import State

STREAM = "work is submitted: a -> b -> c -> d; a never ends"
BATCH = "work is submitted: b -> c; b takes at most 1; c takes at most 1"
PAIR = "work is submitted: a -> b -> c; a never ends; b takes at most 1; c takes at most 1"


def places(state: State) -> dict[str, str]:
    """Active peer -> task."""
    return {
        name: peer.assignment.task
        for name, peer in state.peers.items()
        if peer.assignment is not None and peer.state == "active"
    }


def goes_on(world: World, lacking: dict[str, set[str]], rounds: int) -> list[dict[str, str]]:
    """Let the peers work, one second a round. ``lacking``: by host, the tasks that its peers decline.

    Returns:
        Who was active at which task, after each round.
    """
    seen = []
    for _ in range(rounds):
        for name, peer in list(world.state.peers.items()):
            if peer.state == "acking" and peer.assignment is not None:
                declines = peer.assignment.task in lacking.get(peer.host, ())
                world.say(f"{name} declines, which may pass: there is no such secret" if declines else f"{name} acks")
            elif peer.yields == "turn":
                world.say(f"{name} yields")
        seen.append(places(world.state))
        world.say("1 s pass")
    return seen


def started(job: str, *hosts: str) -> World:
    world = World()
    for number, host in enumerate(hosts, 1):
        world.say(f"P{number} is born in {host}")
    world.say(job)
    world.say("the links of work are made")
    return world


@pytest.mark.parametrize("hosts", [("east", "west"), ("west", "east")])
@pytest.mark.parametrize("task", ["b", "c"])
def test_two_peers_swap_their_tasks(hosts: tuple[str, str], task: str) -> None:
    """Of two peers and two tasks, where one process lacks the secret of one task: each soon has the task that it can run, and
    keeps it. The other process was asked once more at most, in the second until the peer made way.
    """
    world = started(PAIR, *hosts)
    seen = goes_on(world, {"east": {task}}, 12)
    able, other = f"P{hosts.index('west') + 1}", f"P{hosts.index('east') + 1}"
    wanted = {able: task, other: "c" if task == "b" else "b"}
    assert seen[4:] == [wanted] * 8
    assert world.state.jobs["work"].tasks[task].failures <= 2


def test_in_a_bounded_job_the_able_peer_comes_at_once() -> None:
    """It is taken off a later task, because the job could not go on without the first one."""
    world = started(BATCH, "east", "west")
    assert goes_on(world, {"east": {"b"}}, 3)[-1] == {"P1": "c", "P2": "b"}


def test_a_process_that_can_run_nothing_holds_up_nothing() -> None:
    """The other peer takes turns at all tasks, as if it were alone."""
    world = started(STREAM, "east", "west")
    seen = goes_on(world, {"east": {"b", "c", "d"}}, 90)
    assert {task for each in seen for task in each.values()} == {"b", "c", "d"}
    assert all(set(each) <= {"P2"} for each in seen)
    assert {task for each in seen[60:] for task in each.values()} == {"b", "c", "d"}, "and does not stop"


def test_a_process_tries_again_after_the_pause() -> None:
    """What it lacked may be there by now: as long as no other can, and when its pause is over."""
    world = started(PAIR, "east")
    goes_on(world, {"east": {"b"}}, 2)
    assert explain(world.state, "work").reasons
    assert goes_on(world, {}, 70)[-1] != {}
    seen = goes_on(world, {}, 20)
    assert {task for each in seen for task in each.values()} == {"b", "c"}


def test_what_all_decline_is_one_failure_in_each_pause() -> None:
    """However many processes there are: a job whose code cannot be loaded fails after as many pauses as it survives failures."""
    world = started("work is submitted: read -> write; outlives 2 failures", *"abcdef")
    for failures in (1, 2):
        while world.state.jobs["work"].tasks["read"].failures != failures or offered(world):
            world.say(f"{offered(world)[0]} declines: no module" if offered(world) else "1 s pass")
        assert len(world.state.jobs["work"].tasks["read"].declined) == 6
        world.say("4 s pass")
    world.say(f"{offered(world)[0]} declines: no module")
    assert world.state.jobs["work"].status == "failed"


def offered(world: World) -> list[str]:
    """The peers that were offered the first task."""
    return list(world.state.jobs["work"].tasks["read"].peers)


@pytest.mark.parametrize(("rules", "status"), [(3, "failed"), (4, "running")])
def test_a_machine_that_is_silent_fails_no_job_that_works_elsewhere(rules: int, status: str) -> None:
    """Its offers do not count once a peer has begun with the task: by the rules before they do, and the fourth fails the job."""
    world = World()
    world.state.rules = rules
    for sentence in ("work is submitted: read -> write; read is a topic", "the links of work are made"):
        world.say(sentence)
    world.say("P1 is born in east")
    world.say("P1 acks")
    for number in range(2, 8):
        world.say(f"P{number} is born in west")
        world.say("60 s pass")  # the pause is over
        world.say("15 s pass")
    job = world.state.jobs["work"]
    assert job.status == status
    assert rules == 3 or (job.tasks["write"].failures, job.tasks["write"].passing) == (6, 6)
