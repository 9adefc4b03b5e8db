"""The seven states: declared once, drawn in the docs, and nothing else allowed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from scenario_runner import World
from transitions import MachineError

from coordinator.core.decide import decide
from coordinator.core.peer_states import ASSIGNED, STATES, Trigger, after, allowed
from coordinator.core.state import State
from docs_site.state_diagram import mermaid
from sardonyx.core.effects import Effect
from sardonyx.core.errors import InternalError
from sardonyx.core.events import AnyEvent, PeerDied, PeerState
from tests.cards import Card

DOCS = Path(__file__).parent.parent.parent / "docs" / "coordination.md"

MAY_BECOME: dict[str, set[str]] = {
    "idle": {"acking", "dead"},
    "acking": {"active", "revoked", "idle", "dead"},
    "active": {"sealing", "waiting", "idle", "revoked", "dead"},
    "waiting": {"idle", "revoked", "dead"},
    "sealing": {"idle", "waiting", "revoked", "dead"},
    "revoked": {"dead"},
    "dead": set(),
}


def test_what_may_become_of_each_state() -> None:
    """The table allows exactly the transitions that the project was designed with."""
    found: dict[str, set[str]] = {state: set() for state in STATES}
    for (source, _), target in allowed().items():
        found[source].add(target)
    assert found == MAY_BECOME


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("trigger", get_args(Trigger))
def test_anything_else_is_refused(state: PeerState, trigger: Trigger) -> None:
    """A transition that is not declared raises; one that is gives its state."""
    if (state, trigger) in allowed():
        assert after(state, trigger) == allowed()[state, trigger]
    else:
        with pytest.raises(InternalError) as caught:
            after(state, trigger)
        assert caught.value.code == "SX-STATE-ILLEGAL"
        assert caught.value.where == {"state": state, "trigger": trigger}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("trigger", get_args(Trigger))
def test_a_decision_goes_where_the_machine_goes(state: PeerState, trigger: Trigger) -> None:
    """What `transitions` makes of a trigger is what a decision makes of it; both refuse the same."""
    card = Card(state)
    try:
        card.trigger(trigger)
    except MachineError:
        with pytest.raises(InternalError, match="SX-STATE-ILLEGAL"):
            after(state, trigger)
        assert card.state == state
    else:
        assert after(state, trigger) == card.state


def test_a_change_past_the_machine_is_seen() -> None:
    """The histories of the tests give each peer a card; a state that changes otherwise is not that of the card."""
    world = World()
    for sentence in ("P1 is born", "P2 is born"):
        world.say(sentence)

    def defective(state: State, n: int, event: AnyEvent) -> list[Effect]:
        found = decide(state, n, event)
        state.peers["P1"].state = "active"
        return found

    with pytest.raises(AssertionError, match="without a transition"):
        world.cards.decide(defective, world.state, world.n + 1, PeerDied(at=0.0, peer="P2"))


def test_whoever_is_assigned_can_be_freed_revoked_and_die() -> None:
    """There is a way out of a task from every state in it."""
    for state in ASSIGNED:
        assert {after(state, trigger) for trigger in ("release", "revoke", "die")} == {"idle", "revoked", "dead"}


def test_the_docs_show_this_very_table() -> None:
    """The diagram in docs/coordination.md is the one that the machine draws."""
    assert f"```mermaid\n{mermaid(allowed(), 'idle')}\n```" in DOCS.read_text()
