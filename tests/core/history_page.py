"""The page of the ten histories, ``docs/histories.md``: each scenario file as a sequence diagram.

The scenarios are played here as the tests play them, so a diagram shows what the coordinator really decides.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.core.scenario_runner import World, blocks, scenario_files

PAGE = Path(__file__).parents[2] / "docs" / "histories.md"
_INTRODUCTION = """\
# The ten histories

Ten situations decide whether a bounded job ends, and ends only when all of its records are processed: peers that join,
die and come back at awkward moments. Each is a scenario file in `tests/scenarios`, and the tests play it through the pure core
of the coordinator. Some have a second file with another order of events. The diagrams are drawn from these files.

In a diagram, `P1` and `P2` are virtual peers. An arrow from a peer is an event. An arrow to a peer is the new value of its state
node, which the peer watches. A note says which number the event has in the log, and what else the coordinator decides.
The states are explained in [coordination](coordination.md), the words in the [glossary](glossary.md).

<!-- Written by `pytest tests/core/test_history_page.py --rewrite`. -->
"""


def page() -> str:
    """The whole page."""
    files = [path for path in scenario_files() if path.name.startswith("history_")]
    return "\n".join([_INTRODUCTION, *(_section(path) for path in files)])


def _section(path: Path) -> str:
    number, title = re.fullmatch(r"history_(\d+)_(\w+)", path.stem).groups()
    text = path.read_text("utf-8")
    remarks = [line.removeprefix("#").strip() for comments, _, _ in blocks(text)[:1] for line in comments]
    about = re.sub(r"^History \d+\. ", "", " ".join(remarks))
    lines = [
        f"## History {int(number)}: {title.replace('_', ' ')}",
        "",
        textwrap.fill(about, 120),
        "",
        "```mermaid",
        *_diagram(text),
        "```",
        "",
        f"Scenario: [{path.name}](../tests/scenarios/{path.name})",
        "",
    ]
    return "\n".join(lines)


def _diagram(text: str) -> Iterator[str]:
    yield "sequenceDiagram"
    peers = sorted(set(re.findall(r"\bP\d\b", text)))
    for name in ("Client", "Coordinator", *peers):
        yield f"    participant {name}"
    world = World()
    last: dict[str, str] = {}
    for _, sentences, _ in blocks(text):
        for sentence in sentences:
            yield f"    {_said(sentence, peers)}"
            for line in _decided(world.say(sentence), last):
                yield f"    {line}"


def _said(sentence: str, peers: list[str]) -> str:
    """What happens, as an arrow to the coordinator."""
    words = _plain(sentence)
    match = re.fullmatch(r"(P\d)(?:'s)? (.*)", words)
    if match and not match[2].startswith("timer"):
        arrow = "-x" if match[2].startswith("dies") else "->>"
        return f"{match[1]}{arrow}Coordinator: {match[2]}"
    if "submitted" in words or words.endswith(("is killed", "is purged")):
        return f"Client->>Coordinator: {words}"
    if words.endswith(" pass"):
        return f"Note over Coordinator,{peers[-1]}: {words}"
    return f"Note over Coordinator: {words}"


def _decided(lines: list[str], last: dict[str, str]) -> Iterator[str]:
    """Arrows to peers, and a note with the rest, for each event. ``last`` holds the value that each node had."""
    notes: list[str] = []
    arrows: list[str] = []
    for line in [*lines, ""]:
        if not line.startswith("  "):
            if notes:
                yield f"Note over Coordinator: {'<br/>'.join(notes)}"
            yield from arrows
            notes, arrows = [f"log entry {line.split()[0]}"] if line else [], []
            continue
        verb, path, data = [*line.split(maxsplit=2), "", ""][:3]  # as tests/core/scenario_runner.py shows an effect
        if verb == "delete" and path.startswith("/peer-state/"):
            arrows.append(f"Coordinator--x{path.rpartition('/')[2]}: node deleted")
        elif path.startswith("/peer-state/"):
            arrows.append(f"Coordinator->>{path.rpartition('/')[2]}: {_place(json.loads(data))}")
        elif not path.startswith("/"):
            notes.append("nothing changes" if verb == "nothing" else _plain(line.strip()))
        elif data.startswith("{"):
            note = json.loads(data)
            state = note.get("state") or note.get("status")
            if state and last.get(path) != state:
                last[path] = state
                kind, name = ("task" if "/task/" in path else "job"), path.removesuffix("/status").rpartition("/")[2]
                notes.append(f"{kind} {name}: {state}")


def _place(note: dict[str, object]) -> str:
    assignment = note.get("assignment")
    if not isinstance(assignment, dict):
        return str(note["state"])
    return f"{note['state']}, task {assignment['task']}, slot {assignment['slot']}"


def _plain(text: str) -> str:
    """Without characters that mean something to Mermaid."""
    return text.replace("->", "→").replace(";", ",").replace("#", " slot ")
