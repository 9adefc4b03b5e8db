"""What is known: stored and loaded, projected, and held against its rules."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from scenario_runner import World

from coordinator.core.invariants import check
from coordinator.core.projection import project
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from sardonyx.core.errors import InternalError, SardonyxError
from sardonyx.core.events import FORMAT, decode_event
from sardonyx.core.notes import JobNote, PeerNote, TaskNote


@pytest.fixture
def busy() -> State:
    """One peer in each state but active: P1 seals and P3 waits beside it, P4 was offered what P2 lost, P6 has failed. Its
    task rests; two more jobs have ended, and one of them was forgotten.
    """
    world = World()
    for sentence in [
        "work is submitted: read -> write; read takes at most 2; write is sequential",
        "the links of work are made",
        "P1, P2, P3, P4, P5, P6 are born",
        "P1 acks",
        "P2 acks",
        "P3 acks",
        "P3 is exhausted",
        "P1 is exhausted",
        "P2 is evicted",
        "P5 dies",
        "copy is submitted: read -> write",
        "the links of copy are made",
        "P6 acks",
        "P6 fails: no reason",
        "gone is submitted: read -> write",
        "gone is killed",
        "the links of gone are gone",
        "gone is purged",
        "kept is submitted: read -> write",
        "kept is killed",
        "the links of kept are gone",
    ]:
        world.say(sentence)
    check(world.state)
    return world.state


def test_a_stored_state_is_the_state(busy: State) -> None:
    """Stored and loaded again it gives the same bytes, the same tree, and passes the same rules."""
    data = encode_state(busy)
    loaded = decode_state(data)
    check(loaded)
    assert encode_state(loaded) == data
    assert project(loaded) == project(busy)


def test_equal_states_give_equal_bytes(busy: State) -> None:
    """The bytes do not depend on the order in which things came into the dictionaries."""
    data = encode_state(busy)
    busy.peers = dict(reversed(busy.peers.items()))
    assert encode_state(busy) == data


def test_nothing_has_happened() -> None:
    """A new state is event 0, holds nothing and puts nothing into the tree."""
    state = new_state("prod")
    check(state)
    assert (state.n, state.deployment, project(state)) == (0, "prod", {})
    assert decode_state(encode_state(state)).deployment == "prod"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format":1}', b"{}", b'{"format":"one"}'])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    """It is not misread as an empty one."""
    with pytest.raises(SardonyxError) as caught:
        decode_state(data)
    assert caught.value.code == "SX-LOG-FORMAT"


def test_what_another_version_added_is_refused(busy: State) -> None:
    """A field that this version does not know is not dropped in silence, wherever it stands."""
    stored = msgspec.json.decode(encode_state(busy))
    for place in (
        stored,
        stored["peers"]["P1"],
        stored["peers"]["P1"]["assignment"],
        stored["jobs"]["work"],
        stored["jobs"]["work"]["spec"],
        stored["jobs"]["work"]["facts"]["read.write"],
        stored["jobs"]["work"]["tasks"]["read"],
        stored["jobs"]["copy"]["tasks"]["read"]["error"],
    ):
        place["news"] = 1
        with pytest.raises(SardonyxError) as caught:
            decode_state(msgspec.json.encode(stored))
        assert caught.value.code == "SX-LOG-FORMAT"
        del place["news"]
    decode_state(msgspec.json.encode(stored))


@pytest.mark.parametrize("event", ['{"kind":"kill","job":"j","news":1}', '{"kind":"forgive","job":"j"}'])
def test_an_event_of_another_version_is_refused(event: str) -> None:
    """An unknown kind or an unknown field is an error, not an event with something left out."""
    with pytest.raises(msgspec.ValidationError):
        decode_event(event.encode())


def test_another_version_is_refused(busy: State) -> None:
    """A state of another format is refused and says which it has."""
    stored = msgspec.json.decode(encode_state(busy)) | {"format": FORMAT + 1}
    with pytest.raises(SardonyxError, match="SX-LOG-FORMAT") as caught:
        decode_state(msgspec.json.encode(stored))
    assert f"format {FORMAT + 1}" in caught.value.cause


def test_the_tree_shows_the_state(busy: State) -> None:
    """Every node decodes as what it is declared to hold, parents come first, and the dead have none."""
    zk = project(busy)
    peers = {path: msgspec.json.decode(data, type=PeerNote) for path, data in zk.items() if "/peer-state/" in path}
    assert sorted(peers) == [f"/peer-state/P{number}" for number in (1, 2, 3, 4, 6)]
    assert peers["/peer-state/P1"].state == "sealing"
    assert msgspec.json.decode(zk["/job/work/status"], type=JobNote).status == "running"
    assert msgspec.json.decode(zk["/job/work/task/read"], type=TaskNote).state == "running"
    assert zk["/job/work"] == zk["/job/work/task"] == b""
    paths = list(zk)
    for path in paths:
        parent = path.rpartition("/")[0]
        assert parent not in zk or paths.index(parent) < paths.index(path)


def _give_twice(state: State) -> None:
    state.jobs["work"].tasks["read"].peers["P3"] = state.jobs["work"].tasks["read"].peers["P1"]


def _complete_with_peers(state: State) -> None:
    state.jobs["work"].tasks["read"].state = "complete"


def _lose_assignment(state: State) -> None:
    state.peers["P1"].assignment = None


def _two_sealing(state: State) -> None:
    for name in state.jobs["work"].tasks["read"].peers:
        state.peers[name].state = "sealing"


def _all_waiting(state: State) -> None:
    for name in state.jobs["work"].tasks["read"].peers:
        state.peers[name].state = "waiting"


def _end_behind_their_back(state: State) -> None:
    state.jobs["work"].status = "killed"


def _queue_out_of_order(state: State) -> None:
    state.by_state["idle"].clear()


def _rest_without_failure(state: State) -> None:
    state.jobs["work"].tasks["write"].backing_off = True


def _rest_when_ended(state: State) -> None:
    job = state.jobs["copy"]
    job.status, job.ended_at = "killed", 1.0
    del state.plans["copy"], state.names["copy"]
    state.jobs_with_capacity.discard("copy")


def _rest_when_complete(state: State) -> None:
    state.jobs["copy"].tasks["read"].state = "complete"


def _rest_in_no_row(state: State) -> None:
    state.backing_off.clear()


def _ended_in_no_row(state: State) -> None:
    state.expirable.clear()


def _forgotten_and_known(state: State) -> None:
    state.purged["work"] = None


def _purge_before_the_end(state: State) -> None:
    state.jobs["work"].purge = True


def _waits_since_never(state: State) -> None:
    state.jobs["work"].waits_for = 1


def _strangers(state: State) -> None:
    state.jobs["work"].tasks["write"].peers["P99"] = 1


@pytest.mark.parametrize(
    "damage",
    [
        _give_twice,
        _complete_with_peers,
        _lose_assignment,
        _two_sealing,
        _all_waiting,
        _end_behind_their_back,
        _queue_out_of_order,
        _strangers,
        _rest_without_failure,
        _rest_when_ended,
        _rest_when_complete,
        _rest_in_no_row,
        _ended_in_no_row,
        _forgotten_and_known,
        _purge_before_the_end,
        _waits_since_never,
    ],
)
def test_broken_rules_are_found(busy: State, damage: Callable[[State], None]) -> None:
    """The invariants notice what no event can bring about."""
    damage(busy)
    with pytest.raises(InternalError) as caught:
        check(busy)
    assert caught.value.code == "SX-INVARIANT"
    assert "rule that" in caught.value.message
