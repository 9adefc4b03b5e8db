"""Thousands of random histories on the core: the rules hold after every event, and whatever happened, bounded jobs end.

The number of histories can be raised with SARDONYX_HISTORIES; the seed stands in the header of the test session, and a
failure names the history: `History(random.Random("<seed>/<number>"))` plays it again.
"""

from __future__ import annotations

import os
import random

import pytest
from history_maker import History

from coordinator.core import changeset, peer_changes
from coordinator.core.decide import replay
from coordinator.core.stored_state import encode_state
from sardonyx.core.events import decode_event, encode_event
from tests.sizes import histories

HISTORIES = int(os.environ.get("SARDONYX_HISTORIES") or histories(500, whole=2_000))
BATCHES = 4
MOST_TO_REACH = 1_000
"""Histories until everything has occurred: of 60 seeds the median needs 24, the worst 91. No seconds: a machine may be busy."""


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_histories(batch: int, seed: int) -> None:
    """Invariants, projection, idempotence, work conservation after every event; liveness and replay at the end."""
    for number in range(batch, HISTORIES, BATCHES):
        play(f"{seed}/{number}")


def play(name: str, *, longest: int = 60) -> None:
    """One history to its end, and its log once more. ``longest``: the most events before all behave."""
    history = History(random.Random(name), parts=True)
    try:
        history.unkind(history.rng.randint(5, longest))
        history.settle()
        entries = [(n, decode_event(encode_event(event))) for n, event in history.world.log]
        assert encode_state(replay(entries, deployment="test")) == encode_state(history.world.state)
    except BaseException as error:
        error.add_note(f"history {name}, event {history.world.n}: {history.world.picture()}")
        raise


def test_random_histories_with_a_short_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where only the last two dead peers and forgotten jobs are remembered, as after thousands of others: one that
    is reported again counts as new, and the rules still hold.
    """
    monkeypatch.setattr(peer_changes, "REMEMBERED_DEAD", 2)
    monkeypatch.setattr(changeset, "REMEMBERED_PURGED", 2)
    for number in range(HISTORIES // 10):
        play(f"{seed}/short/{number}", longest=200)


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
