"""State machines as Mermaid diagrams for the docs, drawn by ``transitions``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transitions.extensions import GraphMachine

_STYLE = ("classDef ", "Class ", "state ", "direction ")
"""How lines begin that say only how a state looks."""


class _Model:
    """What the machine is drawn for: the library draws none without a model."""


def mermaid(states: Sequence[str], transitions: Sequence[Mapping[str, Any]], initial: str) -> str:
    """The machine as a Mermaid state diagram, without the library's colours.

    Args:
        states: in the order in which they are drawn.
        transitions: as ``transitions.Machine`` takes them. Callbacks are left out.
        initial: the first state.
    """
    machine = GraphMachine(
        model=_Model(),
        states=list(states),
        transitions=[{key: edge[key] for key in ("trigger", "source", "dest")} for edge in transitions],
        initial=initial,
        auto_transitions=False,
        graph_engine="mermaid",
    )
    drawn = str(machine.get_combined_graph().draw(None))
    lines = [line.strip() for line in drawn.partition("stateDiagram-v2")[2].splitlines()]
    kept = [line for line in lines if line and not line.startswith(_STYLE)]
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in kept)])
