"""The seven states of a virtual peer and the transitions between them. Pure.

They are declared once, as a machine of ``transitions``. A decision looks a transition up in a dictionary made from that machine:
firing it would take far longer. The tests fire it: each peer of each history that they make up is a model of the machine
(``tests/cards.py``). ``docs/coordination.md`` shows the machine as a diagram.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from transitions import Machine

from sardonyx.core.errors import InternalError
from sardonyx.core.events import PeerState

Trigger = Literal["offer", "ack", "wait", "seal", "release", "revoke", "die"]
"""What the coordinator decides about a peer.

offer: the peer gets a task. ack: it has accepted the task. wait: it is exhausted, but other peers of the task are not. seal: it
must write the sentinels. release: it is free again. revoke: its task is taken away because it does not respond. die: it is gone.
"""

STATES: tuple[PeerState, ...] = get_args(PeerState)
WORKING: frozenset[PeerState] = frozenset({"acking", "active"})
"""States of a peer that still has input to read for its task."""
ASSIGNED: frozenset[PeerState] = frozenset({"acking", "active", "waiting", "sealing"})
"""States of a peer that is on a task."""

_TABLE: list[tuple[Trigger, list[PeerState], PeerState]] = [
    ("offer", ["idle"], "acking"),
    ("ack", ["acking"], "active"),
    ("seal", ["active"], "sealing"),
    ("wait", ["active", "sealing"], "waiting"),
    ("release", ["acking", "active", "waiting", "sealing"], "idle"),
    ("revoke", ["acking", "active", "waiting", "sealing"], "revoked"),
    ("die", ["idle", "acking", "active", "waiting", "sealing", "revoked"], "dead"),
]

MACHINE = Machine(
    model=None,
    states=list(STATES),
    transitions=[{"trigger": trigger, "source": sources, "dest": target} for trigger, sources, target in _TABLE],
    initial="idle",
    auto_transitions=False,
)
"""A peer is born idle."""

_AFTER = {
    (cast("PeerState", each.source), cast("Trigger", trigger)): cast("PeerState", each.dest)
    for trigger in MACHINE.events
    for each in MACHINE.get_transitions(trigger)
}


def after(state: PeerState, trigger: Trigger) -> PeerState:
    """The state that ``trigger`` leads to from ``state``.

    Raises:
        InternalError: SX-STATE-ILLEGAL, no such transition is declared.
    """
    target = _AFTER.get((state, trigger))
    if target is None:
        raise InternalError(
            "SX-STATE-ILLEGAL",
            f"a peer that is {state} cannot {trigger}",
            cause="the coordinator decided something that its own table of states does not allow",
            fix="please report this with the coordinator's log",
            where={"state": state, "trigger": trigger},
        )
    return target


def allowed() -> dict[tuple[PeerState, Trigger], PeerState]:
    """Every declared transition: (state, trigger) -> state."""
    return dict(_AFTER)
