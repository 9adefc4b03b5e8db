"""The seven states of a virtual peer and what may become of each, declared once with ``transitions``. Pure.

The machine is asked once, at import, for its whole table; a transition of a peer is then one look into a dictionary, and
ten thousand peers need no machine each. ``docs/coordination.md`` shows the diagram that :func:`diagram` draws.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from transitions import Machine

from sardonyx.core.errors import InternalError
from sardonyx.core.events import PeerState

Trigger = Literal["offer", "ack", "wait", "seal", "release", "revoke", "die"]
"""What the coordinator decides about a peer.

offer: it is to take a task. ack: it has taken it. wait: it is exhausted, others on the task are not. seal: it is the one
to write the sentinels. release: it is free again. revoke: its task is taken away because it cannot be relied upon.
die: it is gone.
"""

STATES: tuple[PeerState, ...] = get_args(PeerState)
WORKING: frozenset[PeerState] = frozenset({"acking", "active"})
"""States of a peer that has work on its task in front of it."""
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

machine = Machine(
    model=None,
    states=list(STATES),
    initial="idle",
    auto_transitions=False,
    transitions=[{"trigger": trigger, "source": sources, "dest": target} for trigger, sources, target in _TABLE],
)
"""The declaration itself, for tools that read ``transitions`` machines."""

_AFTER: dict[tuple[PeerState, Trigger], PeerState] = {
    (cast("PeerState", transition.source), cast("Trigger", name)): cast("PeerState", transition.dest)
    for name, event in machine.events.items()
    for transitions in event.transitions.values()
    for transition in transitions
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


def diagram() -> str:
    """The table as a Mermaid state diagram, in a fixed order."""
    edges: dict[tuple[PeerState, PeerState], list[str]] = {}
    for (source, trigger), target in sorted(_AFTER.items(), key=lambda row: (_rank(row[0][0]), _rank(row[1]))):
        edges.setdefault((source, target), []).append(trigger)
    lines = [f"    {source} --> {target}: {', '.join(triggers)}" for (source, target), triggers in edges.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {machine.initial}", *lines, "    dead --> [*]"])


def _rank(state: PeerState) -> int:
    return STATES.index(state)
