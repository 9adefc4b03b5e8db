"""The cards of the peers of a history: each peer is a model of the machine of ``transitions`` that the coordinator declares.

A card gets each move that a decision makes, and the library says whether there is such a transition. After the decision the
card and the coordinator must agree. So no peer changes its state but by a transition of the machine, in any history that a test
makes up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.core.peer_changes import PeerChanges
from coordinator.core.peer_states import MACHINE
from coordinator.core.state import State


class Card:
    """One peer, as a model of the machine: the library reads and sets its state."""

    def __init__(self, state: str) -> None:
        self.state = state

    def trigger(self, name: str) -> None:
        """Fire a trigger. Raises ``MachineError``, the machine has no such transition."""
        MACHINE.events[name].trigger(self)


_move = PeerChanges.move


class Cards:
    """The cards of all peers that one coordinator knows."""

    def __init__(self) -> None:
        self._cards: dict[str, Card] | None = None

    def decide(self, decide: Callable[..., Any], state: State, n: int, event: Any) -> Any:
        """Decide, and hold each change of a peer's state against its card.

        Raises:
            MachineError: the machine has no such transition.
            AssertionError: a state was changed without a transition.
        """
        cards = self._cards
        if cards is None:
            cards = {name: Card(peer.state) for name, peer in state.peers.items()}
        self._cards = None  # of a decision that cannot be made, nothing is known
        moves: list[tuple[str, str]] = []

        def move(changes: PeerChanges, name: str, trigger: Any) -> None:
            moves.append((name, trigger))
            _move(changes, name, trigger)

        PeerChanges.move = move  # type: ignore[method-assign]
        try:
            found = decide(state, n, event)
        finally:
            PeerChanges.move = _move  # type: ignore[method-assign]
        for name in [*state.peers, *(name for name, _ in moves)]:
            if name not in cards:
                cards[name] = Card("idle")
        for name, trigger in moves:
            cards[name].trigger(trigger)
        self._cards = {name: cards[name] for name in state.peers}
        agree = {name: peer.state for name, peer in state.peers.items()} == {n: c.state for n, c in self._cards.items()}
        assert agree, "a peer has changed its state without a transition"
        return found
