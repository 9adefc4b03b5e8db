"""The seven states of a virtual peer and the transitions between them. Pure.

The table is declared once. A decision looks a transition up in a dictionary made from it, because a machine object for each of
ten thousand peers would cost memory and time. ``docs/coordination.md`` shows the same table as a diagram.
"""

from __future__ import annotations

from typing import Literal, get_args

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

_AFTER: dict[tuple[PeerState, Trigger], PeerState] = {
    (source, trigger): target for trigger, sources, target in _TABLE for source in sources
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
