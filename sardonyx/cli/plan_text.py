"""A job's plan for people: as text, and as a picture for Mermaid or Graphviz. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from sardonyx.cli.graph_text import ENDINGS
from sardonyx.core.plan import Exchange, JobPlan, Loop, Operator
from sardonyx.core.text import counted

WIDTH = 80
_OF = {"results": "", "failed": "failed records", "late": "late rows"}


def as_text(plan: JobPlan, working: Mapping[str, int] | None = None) -> list[str]:
    """Lines of at most 80 columns, unless a single name is longer.

    Args:
        plan: what to show.
        working: how many peers each task has now; None: the text says nothing of it.
    """
    lines = [*_wrapped(f"job {plan.job}: {ENDINGS[plan.ending]}; {_needs(plan)}", "", "  "), "", "operators"]
    lines += _columns(
        [
            (each.name, each.kind, _peers_now(each, working), "; ".join([*each.functions, *_holds(each)]))
            for each in plan.operators
        ]
    )
    lines += ["", "exchanges"]
    lines += _columns([(each.name, _partitions(each), ", ".join(_rule(each))) for each in plan.exchanges])
    lines += ["", "groups"]
    for number, group in enumerate(plan.groups, 1):
        text = f"{', '.join(group.operators)}: a row goes over at most {counted(group.depth, 'exchange')}"
        lines += _wrapped(text, f"  {number}  ", "     ")
    if plan.cycles:
        lines += ["", "loops"]
    for cycle in plan.cycles:
        most = "" if cycle.max_hops is None else f", at most {counted(cycle.max_hops, 'time')}"
        back = [f"{each.source} to {each.target}" for each in plan.exchanges if each.feedback and _closes(each, cycle)]
        lines += _wrapped(
            f"{cycle.name}: {', '.join(cycle.operators)}; back from {', '.join(back)}{most}", "  ", "     "
        )
    return lines


def _closes(exchange: Exchange, cycle: Loop) -> bool:
    """Whether a feedback exchange is one of this loop."""
    return exchange.target in cycle.operators


def as_mermaid(plan: JobPlan) -> list[str]:
    """A flowchart for Mermaid, which pages on GitHub and MkDocs draw."""
    number = {each.name: f"n{at}" for at, each in enumerate(plan.operators)}
    lines = ["flowchart LR"]
    for each in plan.operators:
        label = "<br/>".join(_mermaid(line) for line in _label(each))
        shape = '[("{}")]' if not each.runs else '["{}"]'
        lines.append(f"  {number[each.name]}{shape.format(label)}")
    for source, target, exchange in _edges(plan):
        arrow = "-.->" if exchange.feedback else "-->"
        lines.append(f'  {number[source]} {arrow}|"{_mermaid(", ".join(_rule(exchange)))}"| {number[target]}')
    return lines


def as_dot(plan: JobPlan) -> list[str]:
    """A graph in the language of Graphviz."""
    lines = [f"digraph {_quoted(plan.job)} {{", "  rankdir=LR", "  node [shape=box]"]
    for each in plan.operators:
        shape = "" if each.runs else ", shape=cylinder"
        lines.append(f"  {_quoted(each.name)} [label={_quoted(*_label(each))}{shape}]")
    for source, target, exchange in _edges(plan):
        style = ", style=dashed, constraint=false" if exchange.feedback else ""
        lines.append(f"  {_quoted(source)} -> {_quoted(target)} [label={_quoted(*_rule(exchange))}{style}]")
    return [*lines, "}"]


def peers_text(operator: Operator) -> str:
    """How many peers an operator can use."""
    least, most = operator.least_peers, operator.most_peers
    if not operator.runs:
        return "a topic, in place"
    if most is None:
        return f"{least} peers or more" if least > 1 else "1 peer or more"
    return counted(most, "peer") if least == most else f"{least} to {most} peers"


def _needs(plan: JobPlan) -> str:
    return "one peer is enough" if plan.least_peers == 1 else f"it needs {plan.least_peers} peers"


def _peers_now(operator: Operator, working: Mapping[str, int] | None) -> str:
    text = peers_text(operator)
    return text if working is None or not operator.runs else f"{text}, now {working.get(operator.name, 0)}"


def _holds(operator: Operator) -> list[str]:
    found = [f"with {', '.join(operator.tasks[1:])}"] if len(operator.tasks) > 1 else []
    return [*found, *([f"state in {operator.store}"] if operator.store else [])]


def _label(operator: Operator) -> list[str]:
    return [operator.name, operator.kind, *operator.functions, *_holds(operator)]


def _partitions(exchange: Exchange) -> str:
    return "-" if exchange.partitions is None else counted(exchange.partitions, "partition")


def _rule(exchange: Exchange) -> list[str]:
    """By what rule rows go, in words."""
    how = {
        "any": "to any partition",
        "key": f"by {', '.join(exchange.by)}",
        "one": "all to one partition",
        "splits": "the list of its splits",
        "shards": "from shard to shard",
        "topic": "a topic of yours",
        "forward": "in the same batch",
    }[exchange.kind]
    more = [
        _OF[exchange.of],
        "combined" if exchange.combined else "",
        f"where {exchange.where}" if exchange.where else "",
        "feedback" if exchange.feedback else "",
    ]
    return [how, *filter(None, more)]


def _edges(plan: JobPlan) -> Iterator[tuple[str, str, Exchange]]:
    """The exchanges between two operators."""
    runs_in = {task: each.name for each in plan.operators for task in each.tasks}
    for exchange in plan.exchanges:
        source, target = runs_in[exchange.source], runs_in[exchange.target]
        if source != target or exchange.feedback:
            yield source, target, exchange


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    """A line for each row. If one would be too long, each row has its name on a line, and the rest below."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        ("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))).rstrip() for row in rows
    ]
    if max(map(len, lines), default=0) <= WIDTH:
        return lines
    return [
        line
        for name, *cells in rows
        for line in (
            f"  {name}",
            *_wrapped("; ".join(cell for cell in cells if cell not in ("", "-")), *(["    "] * 2)),
        )
    ]


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    """Lines that no name is cut by."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _mermaid(text: str) -> str:
    """A text within a label, whose own quotes, brackets and the like mean nothing."""
    return "".join(
        character if character.isalnum() or character in " .,:;_-/" else f"#{ord(character)};" for character in text
    )


def _quoted(*lines: str) -> str:
    """A string of Graphviz."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


def lines_of(
    plan: JobPlan, form: Literal["text", "mermaid", "dot"], working: Mapping[str, int] | None = None
) -> list[str]:
    """A plan in one of the forms for people; ``working`` as for :func:`as_text`."""
    if form == "text":
        return as_text(plan, working)
    return as_mermaid(plan) if form == "mermaid" else as_dot(plan)
