"""Why a job seems to stand still: a peer has worked on one batch for long, and tells so in its pulse."""

from __future__ import annotations

import msgspec
from scenario_runner import World

from sardonyx.client.long_batches import in_words
from sardonyx.core.notes import BatchInHand, PulseNote

NOON = 1_764_072_000.0
"""2025-11-25T12:00:00Z."""


def pulse(batch: BatchInHand | None) -> bytes:
    return msgspec.json.encode(PulseNote(daemon="d", host="h", batch=batch))


def test_it_says_which_task_sits_on_what_since_when() -> None:
    """The one that began first comes first. What a pulse tells of the task before, and what is no pulse, counts for nothing."""
    world = World()
    for sentence in (
        "copy is submitted: read -> write; read is a topic",
        "the links of copy are made",
        "P1, P2, P3 and P4 are born",
    ):
        world.say(sentence)
    places = {peer: found.assignment for peer, found in world.state.peers.items() if found.assignment is not None}
    (first, one), (second, other), (third, last), (fourth, _) = places.items()
    pulses = {
        first: pulse(BatchInHand(one.id, 5_000, NOON + 20)),
        second: pulse(BatchInHand(other.id, 1, NOON, starts_spark=True)),
        third: pulse(BatchInHand(last.id + 100, 7, NOON)),
        fourth: b"?",
    }
    slow = f"task {other.task} sits on one batch of 1 row since 2025-11-25T12:00:00Z (3 min 20 s), at peer {second}"
    assert list(in_words(world.state, "copy", pulses, NOON + 200)) == [
        f"{slow}, where Spark has to start first",
        f"task {one.task} sits on one batch of 5,000 rows since 2025-11-25T12:00:20Z (3 min 0 s), at peer {first}",
    ]
    assert list(in_words(world.state, "copy", {first: pulse(None), second: None}, NOON)) == []
