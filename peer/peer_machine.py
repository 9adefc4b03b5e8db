"""The life of a virtual peer as a state machine: nine states, eleven triggers, and nothing else allowed.

The states say what this process has done. They are not the states that the coordinator keeps of a peer
(:mod:`coordinator.core.peer_states`): these say what the coordinator has decided, and reach the peer through its state node.

A machine is not thread-safe: only the peer's own thread fires triggers. Other threads ask it to leave or to stop
(:class:`peer.virtual_peer.VirtualPeer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from transitions import Machine, MachineError

from sardonyx.core.errors import InternalError

PeerLifeState = Literal[
    "registering", "unnoticed", "idle", "prepared", "accepted", "working", "leaving", "revoked", "closed"
]
"""What a virtual peer has done so far.

registering: its pulse is still to be created. unnoticed: the pulse is there, and the coordinator has not made a state node yet.
idle: it has a state node and no task. prepared: the offered task can run here, and the peer has yet to say so. accepted: it has
said so. working: the task loop runs. leaving: it finishes its batch and says goodbye. revoked: its id is used up, and the pulse
is still to be withdrawn. closed: it has ended.
"""

Trigger = Literal[
    "register", "notice", "prepare", "accept", "work", "release", "leave", "close", "revoke", "rejoin", "stop"
]
"""What happens to a virtual peer.

register: it created its pulse. notice: the coordinator made its state node. prepare: the offered task is ready to run.
accept: it asked the coordinator for the task. work: the coordinator made it active. release: its state node names the task no
more. leave: its daemon drains. close: it said goodbye. revoke: the coordinator took the task away, or took the peer for dead.
rejoin: it withdrew its pulse and takes a new id. stop: it ends without a goodbye, because the session is over or of no use.
"""

STATES: tuple[PeerLifeState, ...] = get_args(PeerLifeState)
TRIGGERS: tuple[Trigger, ...] = get_args(Trigger)

_WITH_TASK: list[PeerLifeState] = ["prepared", "accepted", "working"]
_REGISTERED: list[PeerLifeState] = ["unnoticed", "idle", *_WITH_TASK]
_TABLE: list[tuple[Trigger, list[PeerLifeState], PeerLifeState]] = [
    ("register", ["registering"], "unnoticed"),
    ("notice", ["unnoticed"], "idle"),
    ("prepare", ["idle"], "prepared"),
    ("accept", ["prepared"], "accepted"),
    ("work", ["prepared", "accepted"], "working"),  # prepared: the reply to its acceptance was lost
    ("release", _WITH_TASK, "idle"),
    ("leave", _REGISTERED, "leaving"),
    ("close", ["leaving"], "closed"),
    ("revoke", _REGISTERED, "revoked"),
    ("rejoin", ["revoked"], "registering"),
    ("stop", ["registering", *_REGISTERED, "leaving", "revoked"], "closed"),
]
_ENDS_TASK: frozenset[Trigger] = frozenset({"release", "close", "revoke", "stop"})
"""Triggers before which the task in hand is ended: its thread must not run on in a state without a task."""

_TRANSITIONS: list[dict[str, Any]] = [
    {"trigger": trigger, "source": sources, "dest": target, "before": ["end_task"] if trigger in _ENDS_TASK else []}
    for trigger, sources, target in _TABLE
]

_MACHINE = Machine(
    model=None, states=list(STATES), transitions=_TRANSITIONS, initial="registering", auto_transitions=False
)
"""For all peers of a process: it has no state of its own."""


class PeerMachine:
    """The state of one virtual peer.

    Args:
        end_task: ends the task in hand, if there is one. Called before every transition to a state without a task.
    """

    state: PeerLifeState
    """Read and set by the library."""

    def __init__(self, end_task: Callable[[], None]) -> None:
        self.end_task = end_task
        self.state = "registering"

    def fire(self, trigger: Trigger) -> None:
        """Go to the state that ``trigger`` leads to.

        Raises:
            InternalError: ``SX-STATE-ILLEGAL``, the table has no such transition. The state stays as it is.
        """
        try:
            _MACHINE.events[trigger].trigger(self)
        except MachineError as error:
            raise InternalError(
                "SX-STATE-ILLEGAL",
                f"A virtual peer in state {self.state} cannot {trigger}.",
                cause="The peer did something that its own table of states does not allow.",
                fix="Report this with the log of the peer daemon.",
                where={"state": self.state, "trigger": trigger},
            ) from error


def allowed() -> dict[tuple[PeerLifeState, Trigger], PeerLifeState]:
    """Every declared transition: (state, trigger) -> state."""
    return {(source, trigger): target for trigger, sources, target in _TABLE for source in sources}
