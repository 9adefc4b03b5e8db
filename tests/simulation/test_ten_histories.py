"""The ten histories of docs/coordination.md on the simulated cluster: as they are, with the coordinator dead before or
behind a third of its writes, and with every request put in twice.

On the bare core they stand in ``tests/scenarios``, each also with every event delivered twice; three of them stand on
real services with real processes in ``tests/services/test_histories.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from sardonyx.core.events import kind_of
from sardonyx.core.spec import JobSpec, TaskSpec
from tests.simulation.plan import Cue, Fault, Plan, Submission
from tests.simulation.world import World
from tests.sizes import histories

JOB = JobSpec(
    name="job",
    workflow=[("read", "write")],
    catalog=[
        TaskSpec(name="read", type="input", connector="generator"),
        TaskSpec(name="write", type="output", connector="blackhole"),
    ],
    partitions=2,
)


class History(NamedTuple):
    plan: Plan
    holds: Callable[[list[str]], bool]
    """What must be true of the kinds of events in the log, in their order, if nothing disturbs it."""


def _history(*cues: Cue, peers: tuple[int, ...] = (1,), slow: float = 0.2) -> Plan:
    submission = Submission(0.3, "job", JOB)
    return Plan(seed="ten", daemons=peers, jobs=[submission], cues=list(cues), until=3.0, slow=slow, snapshot_every=4)


def _order(*kinds: str) -> Callable[[list[str]], bool]:
    """These kinds come in this order, others between them."""

    def holds(log: list[str]) -> bool:
        found = iter(log)
        return all(kind in found for kind in kinds)

    return holds


ALONE = ("submit", "links-created", "ack", "exhausted", "completed", "ack", "exhausted", "completed", "links-deleted")

HISTORIES = {
    "01 one peer": History(_history(), _order("born", *ALONE)),
    "02 never acks": History(
        _history(Cue("d0", "offered", hold=60.0), peers=(1, 1)), _order("ack-timed-out", "completed", "died")
    ),
    "03 dies while acking": History(_history(Cue("d0", "offered", kill=True)), _order("died", *ALONE[2:])),
    "04 dies while active": History(_history(Cue("d0", "active", kill=True)), _order("ack", "died", *ALONE[2:])),
    "05 dies while sealing, before its sentinel": History(
        _history(Cue("d0", "seal", kill=True)), _order("exhausted", "died", *ALONE[2:])
    ),
    "05 dies while sealing, behind its sentinel": History(
        # The next peer may finish the task behind it first: its end is logged, although it is not yet known to be.
        _history(Cue("d0", "sealed", kill=True)),
        _order("exhausted", "died", "ack", "exhausted", "completed"),
    ),
    "06 dies after complete": History(
        _history(Cue("d0", "complete!", kill=True)), _order("completed", "died", "ack", "exhausted", "completed")
    ),
    "07 two peers": History(_history(peers=(2,)), _order("ack", "ack", "exhausted", "exhausted", "completed")),
    "08 another one joins while one seals": History(
        _history(Cue("d0", "seal", start="d1", hold=3.0), peers=(1, 1)),
        _order("exhausted", "born", "ack", "completed", "exhausted", "completed"),
    ),
    "09 it joins, and dies while active": History(
        _history(
            Cue("d0", "seal", start="d1", hold=3.0),
            Cue("d1", "active", hold=5.0),
            Cue("d1", "active", kill=True),
            peers=(1, 1),
        ),
        _order("exhausted", "born", "ack", "completed", "died", "exhausted", "completed"),
    ),
    "10 dies while sealing, another one is born": History(
        _history(Cue("d0", "sealed", kill=True, start="d1"), peers=(1, 1)),
        _order("exhausted", "born", "died", "ack", "exhausted", "completed"),
    ),
}


def log_of(world: World) -> list[str]:
    return [kind_of(event) for event in world.oracle.events]


@pytest.mark.parametrize("name", HISTORIES)
def test_as_it_is(name: str) -> None:
    """Each history goes as described, and the job completes."""
    plan, holds = HISTORIES[name]
    world = World(plan)
    world.play()
    assert holds(log_of(world)), log_of(world)
    assert world.oracle.state.jobs["job"].status == "completed"


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("coordinators", [1, 2], ids=["and comes back", "and a standby follows"])
def test_the_coordinator_dies_at_each_of_its_writes(name: str, coordinators: int) -> None:
    """Before and behind writes, whichever they are: the job completes all the same, and every rule holds."""
    plan = replace(HISTORIES[name].plan, coordinators=coordinators)
    undisturbed = World(plan)
    undisturbed.play()
    (leader, writes), *_ = undisturbed.zookeeper.writes.most_common()
    assert leader.startswith("c")
    assert writes > 20
    for count in range(0, 2 * writes, histories(7, whole=3)):  # an odd step, so before and behind
        world = World(replace(plan, faults=[Fault(0.02, "crash", leader.partition(".")[0], count=count)]))
        try:
            world.play()
            assert world.oracle.state.jobs["job"].status == "completed"
        except BaseException as error:
            error.add_note(f"the coordinator died {'behind' if count % 2 else 'before'} its write {count // 2}")
            raise


@pytest.mark.parametrize("name", HISTORIES)
def test_every_request_is_put_in_twice(name: str) -> None:
    """A request that its writer repeats after a lost reply is one event, and changes nothing the second time."""
    plan, holds = HISTORIES[name]
    world = World(replace(plan, doubled=1.0))
    world.play()
    assert holds(log_of(world)), log_of(world)
    assert world.oracle.state.jobs["job"].status == "completed"
