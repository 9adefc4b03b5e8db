"""What an inbox may hold besides what peers and clients of ours put there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from sardonyx.core.errors import Failure
from sardonyx.core.events import (
    Acked,
    Completed,
    Declined,
    Evicted,
    Exhausted,
    JobKilled,
    JobPurged,
    JobScaled,
    JobSubmitted,
    Left,
    Request,
    TaskFailed,
    Yielded,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

ERROR = Failure("SX-SIMULATED", "said without reason")
JUNK = (
    b"",
    b"{",
    b'{"kind":"born","peer":"P"}',
    b'{"kind":"ack"}',
    b"\xff" * 100,
    b"[" * 10_000,
    b'{"kind":"kill","job":1}',
)


def nonsense(world: World) -> Request | bytes:
    """A request about peers, jobs or assignments that are not, not any more, or not so; or no request at all."""
    rng, state = world.sim.rng, world.oracle.state
    peer = rng.choice(["nobody", *state.peers])
    job = rng.choice(["nothing", *state.jobs, *state.purged])
    old = rng.randint(-1, max(state.n - 40, 0))  # hardly ever an assignment of now
    submission = rng.choice(world.plan.jobs)
    spec = submission.spec
    wrong = replace(spec, workflow=[*spec.workflow, rng.choice([("t0", "nowhere"), ("t1", "t0"), spec.workflow[0]])])
    renamed = replace(spec, name=rng.choice([spec.name, "other", "a/b"]))
    return rng.choice(
        [
            rng.choice(JUNK),
            Acked(peer=peer, assignment=rng.randint(0, state.n)),
            Exhausted(peer=peer, assignment=old),
            Completed(peer=peer, assignment=old),
            Declined(peer=peer, assignment=old, error=ERROR),
            TaskFailed(peer=peer, assignment=old, error=ERROR),
            Evicted(peer=peer),
            Left(peer=peer),
            Yielded(peer=peer, assignment=old),
            JobScaled(job=job, weight=-1.0, max_peers=-3),
            JobKilled(job="nothing"),
            JobPurged(job=job),
            JobSubmitted(job=submission.job, spec=wrong),
            JobSubmitted(job=f"again-{state.n}", spec=renamed if renamed.name == "a/b" else wrong),
            JobSubmitted(job=rng.choice(["a/b", f"more-{state.n}"]), spec=wrong),
        ]
    )
