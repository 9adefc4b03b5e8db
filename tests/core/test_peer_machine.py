"""The life of a virtual peer: its states are declared once, drawn in the docs, and nothing else is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs_site.state_diagram import mermaid
from peer.peer_machine import STATES, TRIGGERS, PeerLifeState, PeerMachine, Trigger, allowed
from sardonyx.core.errors import InternalError

DOCS = Path(__file__).parent.parent.parent / "docs" / "coordination.md"

MAY_BECOME: dict[str, set[str]] = {
    "registering": {"unnoticed", "closed"},
    "unnoticed": {"idle", "leaving", "revoked", "closed"},
    "idle": {"prepared", "leaving", "revoked", "closed"},
    "prepared": {"accepted", "working", "idle", "leaving", "revoked", "closed"},
    "accepted": {"working", "idle", "leaving", "revoked", "closed"},
    "working": {"idle", "leaving", "revoked", "closed"},
    "leaving": {"closed"},
    "revoked": {"registering", "closed"},
    "closed": set(),
}

PATHS: dict[PeerLifeState, list[Trigger]] = {
    "registering": [],
    "unnoticed": ["register"],
    "idle": ["register", "notice"],
    "prepared": ["register", "notice", "prepare"],
    "accepted": ["register", "notice", "prepare", "accept"],
    "working": ["register", "notice", "prepare", "accept", "work"],
    "leaving": ["register", "leave"],
    "revoked": ["register", "revoke"],
    "closed": ["stop"],
}
"""How each state is reached from the first."""


def in_state(state: PeerLifeState, ended: list[str]) -> PeerMachine:
    machine = PeerMachine(lambda: ended.append(machine.state))
    for trigger in PATHS[state]:
        machine.fire(trigger)
    assert machine.state == state
    ended.clear()
    return machine


def test_what_may_become_of_each_state() -> None:
    """The table allows exactly the transitions that the life of a peer was designed with."""
    found: dict[str, set[str]] = {state: set() for state in STATES}
    for (source, _), target in allowed().items():
        found[source].add(target)
    assert found == MAY_BECOME


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_trigger_is_a_transition_or_is_refused(state: PeerLifeState, trigger: Trigger) -> None:
    """A declared transition changes the state; any other trigger raises and leaves the state as it is."""
    machine = in_state(state, [])
    target = allowed().get((state, trigger))
    if target is not None:
        machine.fire(trigger)
        assert machine.state == target
        return
    with pytest.raises(InternalError) as caught:
        machine.fire(trigger)
    assert caught.value.code == "SX-STATE-ILLEGAL"
    assert caught.value.where == {"state": state, "trigger": trigger}
    assert machine.state == state


@pytest.mark.parametrize(("state", "trigger"), sorted(allowed()))
def test_a_task_ends_before_a_state_without_one(state: PeerLifeState, trigger: Trigger) -> None:
    """The task is ended while the old state still holds, wherever the new state has no task. No other transition touches it."""
    ended: list[str] = []
    machine = in_state(state, ended)
    machine.fire(trigger)
    with_task = {"prepared", "accepted", "working", "leaving"}
    if state in with_task and machine.state not in with_task:
        assert ended == [state]
    elif state in with_task:
        assert ended == []


def test_a_peer_can_always_stop() -> None:
    """A session may end at any moment: every state but the last has a way to it."""
    assert {state for state, trigger in allowed() if trigger == "stop"} == set(STATES) - {"closed"}


def test_the_docs_show_this_very_table() -> None:
    """The diagram in docs/coordination.md is the one that the library draws."""
    assert f"```mermaid\n{mermaid(allowed(), 'registering')}\n```" in DOCS.read_text()
