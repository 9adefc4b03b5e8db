"""The seven states: declared once, drawn in the docs, and nothing else allowed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from coordinator.core.peer_states import ASSIGNED, STATES, Trigger, after, allowed
from docs_site.state_diagram import mermaid
from sardonyx.core.errors import InternalError
from sardonyx.core.events import PeerState

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


def test_whoever_is_assigned_can_be_freed_revoked_and_die() -> None:
    """There is a way out of a task from every state in it."""
    for state in ASSIGNED:
        assert {after(state, trigger) for trigger in ("release", "revoke", "die")} == {"idle", "revoked", "dead"}


def test_the_docs_show_this_very_table() -> None:
    """The diagram in docs/coordination.md is the one that the machine draws."""
    assert f"```mermaid\n{mermaid(allowed(), 'idle')}\n```" in DOCS.read_text()
