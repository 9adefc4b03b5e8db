"""Draining peers: what a client asks for, and what becomes of it."""

from __future__ import annotations

import pytest

from coordinator.core.decide import decide
from coordinator.core.state import State, new_state
from coordinator.core.stored_state import decode_state, encode_state
from sardonyx.client.draining import concerned, request
from sardonyx.core.errors import SardonyxError
from sardonyx.core.events import Drained, PeerBorn, PeerDied


def deployment(rules: int = 4) -> State:
    state = new_state("test", rules)
    for name, host in [("a-0", "a"), ("a-1", "a"), ("b-0", "b")]:
        decide(state, state.n + 1, PeerBorn(at=1.0, peer=name, host=host))
    return state


def drain(state: State, wanted: str, *, back: bool = False) -> tuple[str, list[str]]:
    asked = request(state, wanted, back=back)
    decide(state, state.n + 1, asked)
    found = concerned(state, asked)
    return found.host, found.peers


def drained(state: State) -> list[str]:
    return [name for name, peer in state.peers.items() if peer.drained]


def test_a_host_is_meant_or_a_peer() -> None:
    """A host by its name, also when none of its peers is left; a peer by its id or the beginning of it."""
    state = deployment()
    assert drain(state, "a") == ("a", ["a-0", "a-1"])
    assert drain(state, "b-") == ("", ["b-0"])
    assert drained(state) == ["a-0", "a-1", "b-0"]
    assert (state.live, state.free) == (0, 0)
    assert drain(state, "a-0", back=True) == ("", ["a-0"])
    assert drained(state) == ["a-1", "b-0"], "the last word about a peer counts"
    del state.peers["a-0"], state.peers["a-1"]
    assert drain(state, "a", back=True) == ("a", [])
    assert state.drained == []
    for wanted in ("c", ""):
        with pytest.raises(SardonyxError, match="SX-PEER-UNKNOWN"):
            drain(state, wanted)


def test_a_peer_that_has_died_meanwhile_is_not_said_to_be_drained() -> None:
    """As when no coordinator led for a while: the command says that there is none, and does not break."""
    state = deployment()
    asked = request(state, "b-0", back=False)
    decide(state, state.n + 1, PeerDied(at=2.0, peer="b-0"))
    decide(state, state.n + 1, asked)
    with pytest.raises(SardonyxError, match="SX-PEER-UNKNOWN"):
        concerned(state, asked)


def test_a_snapshot_holds_drained_hosts_only_if_there_are_any() -> None:
    """The release before reads one without them."""
    state = deployment()
    assert b"drained" not in encode_state(state)
    drain(state, "a")
    again = decode_state(encode_state(state))
    assert (again.drained, drained(again)) == (["a"], ["a-0", "a-1"])
    assert encode_state(again) == encode_state(state)
    drain(state, "a", back=True)
    assert b"drained" not in encode_state(state)


def test_a_coordinator_of_the_release_before_is_not_asked() -> None:
    """It could not read the event; and by its rules, the event changes nothing."""
    state = deployment(rules=3)
    with pytest.raises(SardonyxError, match="SX-PEER-DRAIN-RULES"):
        request(state, "a", back=False)
    assert decide(state, state.n + 1, Drained(host="a")) == []
    assert (drained(state), state.drained) == ([], [])
