"""Thousands of random histories on the core: the rules hold after every event, and whatever happened, bounded jobs end.

The number of histories can be raised with SARDONYX_HISTORIES; the seed stands in the header of the test session, and a
failure names the history: `History(random.Random("<seed>/<number>"))` plays it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from history_maker import History

from coordinator.core import changeset, job_changes, peer_changes
from coordinator.core import decide as core
from coordinator.core.decide import replay
from coordinator.core.state import Peer
from coordinator.core.stored_state import encode_state
from sardonyx.core.effects import Effect
from sardonyx.core.errors import InternalError
from sardonyx.core.events import (
    Acked,
    AckTimedOut,
    AnyEvent,
    BackoffEnded,
    Completed,
    Declined,
    Exhausted,
    JobKilled,
    JobSubmitted,
    PeerBorn,
    PeerDied,
    TaskFailed,
    decode_event,
    encode_event,
)
from tests.sizes import as_asked

HISTORIES = as_asked(90, whole=300)
BATCHES = 4
MOST_TO_REACH = 1_000
"""Histories until everything has occurred: of 60 seeds the median needs 24, the worst 91. No seconds: a machine may be busy."""


class Remembering(History):
    """It holds each event against what it has seen: an id is used once, and only who has an assignment is heard about it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ids: set[str] = set()
        """Of all jobs that there were, and of all peers that have died."""

    def deliver(self, event: AnyEvent) -> list[Effect]:
        peer = self.world.state.peers.get(getattr(event, "peer", ""))
        strange = isinstance(event, JobSubmitted) and event.job in self.ids
        strange |= isinstance(event, PeerBorn) and event.peer in self.ids
        if isinstance(event, Acked | AckTimedOut | Exhausted | Completed | Declined | TaskFailed):
            strange |= peer is None or peer.assignment is None or peer.assignment.id != event.assignment
        effects = super().deliver(event)
        assert not (strange and effects), f"{event} comes too late or again, and changes {effects}"
        self.ids |= self.world.state.jobs.keys()
        if isinstance(event, PeerDied):
            self.ids.add(event.peer)
        return effects


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_histories(batch: int, seed: int) -> None:
    """Invariants, projection, idempotence, work conservation after every event; liveness and replay at the end."""
    for number in range(batch, HISTORIES, BATCHES):
        play(f"{seed}/{number}")


def play(name: str, *, longest: int = 60, kind: type[History] = Remembering) -> None:
    """One history to its end, and its log once more. ``longest``: the most events before all behave."""
    history = kind(random.Random(name), parts=True)
    try:
        history.unkind(history.rng.randint(5, longest))
        history.settle()
        entries = [(n, decode_event(encode_event(event))) for n, event in history.world.log]
        assert encode_state(replay(entries, deployment="test")) == encode_state(history.world.state)
    except BaseException as error:
        error.add_note(f"history {name}, event {history.world.n}: {history.world.picture()}")
        raise


def play_many(name: str, count: int) -> None:
    for number in range(count):
        play(f"{name}/{number}")


def test_random_histories_with_a_short_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where only the last two dead peers and forgotten jobs are remembered, as after thousands of others: one that
    is reported again counts as new, and the rules still hold.
    """
    monkeypatch.setattr(peer_changes, "REMEMBERED_DEAD", 2)
    monkeypatch.setattr(job_changes, "REMEMBERED_PURGED", 2)
    for number in range(HISTORIES // 10):
        play(f"{seed}/short/{number}", longest=200, kind=History)


# A test that cannot fail shows nothing: rules of the core are broken on purpose.


def _late_is_in_time(patch: pytest.MonkeyPatch) -> None:
    """A peer with a task is heard, whichever assignment it speaks of."""

    def held(made: changeset.ChangeSet, event: Acked) -> Peer | None:
        peer = made.state.peers.get(event.peer)
        return peer if peer is not None and peer.assignment else None

    patch.setattr(core, "_held", held)


def _purged_jobs_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_changes, "REMEMBERED_PURGED", 0)


def _tasks_never_wake(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(core._HANDLERS, BackoffEnded, lambda made, event: None)


def _nobody_is_killed(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(core._HANDLERS, JobKilled, lambda made, event: None)


@pytest.mark.parametrize("broken", [_late_is_in_time, _purged_jobs_come_back, _tasks_never_wake, _nobody_is_killed])
def test_a_broken_rule_is_found(
    broken: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one rule of the core broken, something that is held against every history no longer holds."""
    broken(monkeypatch)
    with pytest.raises((AssertionError, InternalError)):
        play_many(f"{seed}/broken", 10 * MOST_TO_REACH)


def test_histories_reach_everything(seed: int) -> None:
    """The random histories are worth something: all states, all ends of jobs, and peers called back occur in them."""
    states, ends = set(), set()
    for number in range(MOST_TO_REACH):
        if len(states) == 7 and len(ends) == 4:
            break
        history = History(random.Random(f"{seed}/reach/{number}"))
        for _ in range(60):
            history.unkind(1)
            states |= {peer.state for peer in history.world.state.peers.values()}
            ends |= {job.status for job in history.world.state.jobs.values() if job.ended}
    assert states == {"idle", "acking", "active", "waiting", "sealing", "revoked", "dead"}
    assert ends == {"completed", "stopped", "killed", "failed"}
