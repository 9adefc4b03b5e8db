"""Ten thousand histories of a simulated cluster, those that once failed, and proof that the simulation notices defects."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import coordinator.core.decide
import coordinator.core.follow_up
import coordinator.core.job_events
import coordinator.loop.event_log
import coordinator.loop.intake
import coordinator.loop.leader
import peer.back_pressure
import peer.daemon
import peer.virtual_peer
import sardonyx.core.resizing
import sardonyx.zookeeper.session
from peer.assignment import AssignmentHandle
from sardonyx.core.graph import graph_of
from sardonyx.core.spec import JobSpec, TaskSpec
from tests.simulation.kafka import RECORDS, SimKafka
from tests.simulation.plan import Plan, Submission
from tests.simulation.plans import random_plan
from tests.simulation.simulate import noticed, played, share
from tests.simulation.world import World
from tests.sizes import histories

HERE = Path(__file__).parent
FIRST = int(os.environ.get("SARDONYX_SIMULATE_FIRST", "0"))
HISTORIES = int(os.environ.get("SARDONYX_SIMULATE") or histories(1_500, whole=10_000))
SHARES = 50
"""So many tests: each must end within the limit of one test."""
LOSSES = histories(30, whole=60)
SAME = histories(6, whole=12)
"""Histories in which a block is lost."""


@pytest.mark.parametrize("number", range(SHARES))
def test_simulated_histories(number: int) -> None:
    """Whatever crashes, is paused or cut off: all rules hold, nothing is lost or doubled, and every bounded job ends."""
    size = HISTORIES // SHARES
    total, failures = share(FIRST + number * size, size)
    assert not failures, "\n".join(
        f"history {seed} failed (again, shrunk: make simulate SEEDS=1 FIRST={seed})\n{wrong}"
        for seed, wrong in failures
    )
    assert total.accepted == 0
    assert total.decisions > 10 * size


@pytest.mark.parametrize("path", sorted((HERE / "histories").glob("*.json")), ids=lambda path: path.stem)
def test_histories_that_went_wrong_once(path: Path) -> None:
    """Each defect that the simulation found has its history here, shrunk, as it was before the fix."""
    World(msgspec.json.decode(path.read_bytes(), type=Plan)).play()


@pytest.mark.parametrize(
    "which", [lambda written: 4 <= written <= 8, lambda written: written >= RECORDS], ids=["middle", "end"]
)
def test_a_job_that_has_lost_a_record_never_completes(which: Callable[[int], bool]) -> None:
    """Kafka loses one committed block of a job: whatever else goes wrong, the job fails, and says that a link has lost rows."""
    failed = lost = 0
    for seed in range(LOSSES):
        plan = random_plan(f"loss/{seed}")
        # A job that was changed would be suspended, and one may lose a queue as its user wants.
        faults = [each for each in plan.faults if each.kind not in ("change", "resize", "close")]
        world = World(msgspec.structs.replace(plan, faults=faults))
        world.kafka.loses = lambda _link, written: not world.kafka.lost and which(written)  # noqa: B023
        world.play()
        for job, link in world.kafka.lost:
            found = world.oracle.state.jobs.get(job)
            if found is not None:
                lost += 1
                assert found.status not in ("completed", "stopped"), f"{seed}: {job} has lost a block of {link}"
                failed += found.error is not None and found.error.code == "SX-LINK-LOSS"
    assert failed > lost / 2 > 5, f"{lost} jobs have lost a block, and {failed} have said so"


@pytest.mark.parametrize("audited", [True, False])
def test_a_lost_tail_of_a_job_without_end_is_found_while_it_runs(*, audited: bool) -> None:
    """The last block of a link is lost, and no later one shows that. The leader's audits find it. Without these it is found when
    the job is stopped.
    """
    tasks = [
        TaskSpec(name="orders", type="input", connector="kafka", options={"topic": "orders"}),
        TaskSpec(name="mark", type="function", fn="m:f"),
        TaskSpec(name="write", type="output", connector="blackhole"),
    ]
    spec = JobSpec(name="j", workflow=[("orders", "mark"), ("mark", "write")], catalog=tasks, partitions=1)
    jobs = [Submission(0.5, "j-1", spec)]
    world = World(Plan(seed="tail", daemons=(3,), jobs=jobs, until=25.0, audit_every=1.0 if audited else 0.0))
    world.kafka.loses = lambda _link, written: written == RECORDS
    world.play()
    job = world.oracle.state.jobs["j-1"]
    assert (job.status, job.stopping) == ("failed", not audited)
    assert job.error is not None
    assert job.error.code == "SX-LINK-LOSS"


@pytest.mark.parametrize("kind", ["cluster", "clocks"])
def test_a_seed_gives_the_same_history_every_time(kind: str) -> None:
    """Whatever order a set has in this process, a seed's history is the same to the last step and byte."""
    code = (
        "from tests.simulation.simulate import drawn, world_of\n"
        f"for seed in range({SAME}):\n    world = world_of(drawn('{kind}', f'same/{{seed}}'))\n"
        "    print(world.play(), world.oracle.digest())"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": str(HERE.parent.parent)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashing in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len(set(told[0].splitlines())) == SAME


# What the simulation is worth: with one safeguard taken out of the product, it must fail soon.


def _unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = sardonyx.zookeeper.session.ZooKeeperSession.begin
    monkeypatch.setattr(
        sardonyx.zookeeper.session.ZooKeeperSession,
        "begin",
        lambda zk, wanted, *, epoch_version=None: begin(zk, wanted, epoch_version=None),
    )


def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.loop.intake.Intake, "remember", lambda self, request: None)


def _unrepaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.loop.leader.Leader, "_repair", lambda self, touched: 0)


def _unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.loop.leader, "unfinished", lambda state: [])


def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is exhausted seals, whatever the others do."""

    def exhausted(step: Any, event: Any) -> None:
        peer = coordinator.core.decide._held(step, event)
        if peer is not None and peer.state == "active":
            step.move(event.peer, "seal")

    monkeypatch.setitem(coordinator.core.decide._HANDLERS, coordinator.core.decide.Exhausted, exhausted)


def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is complete when one peer says so, though another has joined meanwhile."""
    monkeypatch.setattr(coordinator.core.decide, "WORKING", frozenset())


def _deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual peer reads its state once, and never again."""
    monkeypatch.setattr(peer.virtual_peer, "_LOOK_ANYWAY", None)
    monkeypatch.setattr(peer.virtual_peer.VirtualPeer, "_signal", lambda self, event: None)


def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader looks at its lists once and never again."""
    monkeypatch.setattr(coordinator.loop.intake.Intake, "_on_request", lambda self, event: None)


def _insistent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A create whose reply was lost is sent again without a search, and the first one is not recognised by its uuid."""
    _forgetful(monkeypatch)
    call = sardonyx.zookeeper.session.ZooKeeperSession.call
    monkeypatch.setattr(
        sardonyx.zookeeper.session.ZooKeeperSession,
        "call",
        lambda self, send, *, first=None, instead=None: call(self, send, first=first),
    )


def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job goes on by its next spec although peers work by the one before."""
    monkeypatch.setattr(coordinator.core.follow_up, "_swap_specs", _swap_at_once)


def _careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers stay on every task whose functions are the same, whatever a change makes of its queues."""

    def all_of_them(old: JobSpec, _new: JobSpec, same: list[str], *_: object) -> list[str]:
        return [stage.name for stage in graph_of(old, "", "").stages if stage.name in same]

    monkeypatch.setattr(coordinator.core.job_events, "untouched", all_of_them)


def _unlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues get another number of partitions, whatever stands in them."""
    monkeypatch.setattr(sardonyx.core.resizing, "unread", lambda graph, held, facts: {})


def _stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue holds its writer also where the reader gets no peer before that is complete."""
    monkeypatch.setattr(peer.back_pressure.BackPressure, "_is_read", lambda pressure, link: True)


def _swap_at_once(changes: Any) -> None:
    for name in [name for name in changes.jobs if name in changes.state.plans]:
        job = changes.state.jobs[name]
        if job.next_spec is not None and not job.switching:
            changes.switch(name)


MUTATIONS = [
    _unfenced,
    _forgetful,
    _unrepaired,
    _unlooked,
    _unfinished,
    _hasty,
    _early,
    _deaf,
    _blind,
    _insistent,
    _impatient,
    _careless,
    _stubborn,
]


SEEN_IN: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    _unrepaired: 17,
    _unlooked: 168,
    _unfinished: 17,
    _early: 259,
    _careless: 24,
}
"""The first history that fails without it, where that is a late one: it is played before the others."""


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__.strip("_"))
def test_the_simulation_notices(mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """With one safeguard taken out, some of the first thousand histories fail."""
    mutate(monkeypatch)
    seeds = [SEEN_IN.get(mutate, 0), *range(1000)]
    assert any(noticed(random_plan(str(seed))) for seed in seeds), "the simulation did not notice"


def test_the_simulation_notices_who_commits_by_a_revision_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer stands still while its job is changed, and wakes up with a batch of the revision before. If no slot is fenced, and
    no peer asks whether its assignment still stands, that batch is committed.
    """
    plan = msgspec.json.decode((HERE / "histories/changed_while_a_peer_stands_still.json").read_bytes(), type=Plan)
    monkeypatch.setattr(SimKafka, "fence", lambda kafka, runtime, slot: runtime.sleep(kafka.sim.rng.random() * 0.05))
    monkeypatch.setattr(AssignmentHandle, "confirm", lambda handle: None)
    assert "after 2 has taken over" in noticed(plan)


def test_the_simulation_notices_what_is_written_to_a_queue_after_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer stands still within a batch, and its slot cannot be fenced then. By the next revision no row comes to a queue any
    more. If nothing is fenced for that, the peer wakes up and commits rows there, after what is there was counted.
    """
    plan = msgspec.json.decode((HERE / "histories/closed_while_a_peer_stands_still.json").read_bytes(), type=Plan)
    assert played(plan)[1] == ""
    monkeypatch.setattr(SimKafka, "fence", lambda kafka, runtime, slot: runtime.sleep(kafka.sim.rng.random() * 0.05))
    assert "after revision 2 has closed it" in noticed(plan)


def test_the_simulation_notices_a_full_queue_that_holds_a_job_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user stops a job of five tasks while its two peers are held by full queues. From then on the tasks get peers one after
    the other, so the readers of these queues get none before. If a peer does not ask whether its job goes on, it waits forever.
    """
    plan = msgspec.json.decode((HERE / "histories/stopped_while_a_queue_is_full.json").read_bytes(), type=Plan)
    assert played(plan)[1] == ""
    monkeypatch.setattr(peer.back_pressure.BackPressure, "_goes_on", lambda pressure: pressure._work.goes_on)
    assert "j is running" in noticed(plan)
