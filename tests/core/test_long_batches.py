"""Why a job seems to stand still: a peer has worked on one batch for long, or waits for a service, and tells so in its pulse."""

from __future__ import annotations

import msgspec
from scenario_runner import World

from sardonyx.client.long_batches import away_in_words, in_words
from sardonyx.core.notes import BatchInHand, PulseNote, ServiceAway

NOON = 1_764_072_000.0
"""2025-11-25T12:00:00Z."""


def pulse(batch: BatchInHand | None) -> bytes:
    return msgspec.json.encode(PulseNote(daemon="d", host="h", batch=batch))


def at_work() -> World:
    """A job with four peers."""
    world = World()
    for sentence in (
        "copy is submitted: read -> write; read is a topic",
        "the links of copy are made",
        "P1, P2, P3 and P4 are born",
    ):
        world.say(sentence)
    return world


def test_it_says_which_task_sits_on_what_since_when() -> None:
    """The one that began first comes first. What a pulse tells of the task before, and what is no pulse, counts for nothing."""
    world = at_work()
    places = {peer: found.assignment for peer, found in world.state.peers.items() if found.assignment is not None}
    (first, one), (second, other), (third, last), (fourth, _) = places.items()
    pulses = {
        first: pulse(BatchInHand(one.id, 5_000, NOON + 20)),
        second: pulse(BatchInHand(other.id, 1, NOON, starts_spark=True)),
        third: pulse(BatchInHand(last.id + 100, 7, NOON)),
        fourth: b"?",
    }
    slow = f"task {other.task} sits on one batch of 1 row, for 3 min 20 s, at peer {second}"
    assert list(in_words(world.state, "copy", pulses, NOON + 200)) == [
        (other.task, f"{slow}, where Spark has to start first"),
        (one.task, f"task {one.task} sits on one batch of 5,000 rows, for 3 min 0 s, at peer {first}"),
    ]
    assert list(in_words(world.state, "copy", {first: pulse(None), second: None}, NOON)) == []


def test_it_says_which_task_waits_for_what_since_when() -> None:
    """In one line for each task and error. What a pulse tells of the task before, and what is no pulse, counts for nothing."""
    world = at_work()
    places = {peer: found.assignment for peer, found in world.state.peers.items() if found.assignment is not None}
    (first, one), (second, other), (third, last), (fourth, _) = places.items()
    assert one.task == other.task

    def away(assignment: int, since: float) -> bytes:
        said = ServiceAway(
            assignment, "SX-DATABASE-UNREACHABLE", "the database cannot be reached: no route.\nmore", since
        )
        return msgspec.json.encode(PulseNote(daemon="d", host="h", away=said))

    pulses = {
        first: away(one.id, NOON + 20),
        second: away(other.id, NOON),
        third: away(last.id + 100, NOON),
        fourth: b"?",
    }
    said = "SX-DATABASE-UNREACHABLE: the database cannot be reached: no route"
    (words,) = away_in_words(world.state, pulses, NOON + 200)
    assert words == f"task {one.task} waits, for 3 min 20 s: {said} (peer {second} and 1 other)"
    assert list(away_in_words(world.state, {first: pulse(None), second: None}, NOON)) == []
