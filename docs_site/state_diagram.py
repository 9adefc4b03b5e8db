"""State machines as Mermaid diagrams for the docs, drawn by ``transitions``: tests hold ``docs/coordination.md`` against them."""

from __future__ import annotations

from collections.abc import Mapping

from transitions.extensions import GraphMachine

_STYLE = ("classDef ", "Class ", "state ", "direction ")
"""How lines begin that say only how a state looks."""


class _Model:
    """What the machine is drawn for: the library draws none without a model."""


def mermaid(transitions: Mapping[tuple[str, str], str], initial: str) -> str:
    """The machine as a Mermaid state diagram, without the library's colours.

    Args:
        transitions: (state, trigger) -> state.
        initial: the first state.
    """
    machine = GraphMachine(
        model=_Model(),
        states=list(dict.fromkeys([initial, *(source for source, _ in transitions), *transitions.values()])),
        transitions=[
            {"trigger": trigger, "source": source, "dest": target} for (source, trigger), target in transitions.items()
        ],
        initial=initial,
        auto_transitions=False,
        graph_engine="mermaid",
    )
    drawn = str(machine.get_combined_graph().draw(None))
    lines = [line.strip() for line in drawn.partition("stateDiagram-v2")[2].splitlines()]
    kept = [line for line in lines if line and not line.startswith(_STYLE)]
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in kept)])
