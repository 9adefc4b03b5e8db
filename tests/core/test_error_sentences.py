"""What is said of an error in one line reads as a sentence."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sardonyx.cli.app import app
from sardonyx.core.errors import SardonyxError

ROOT = Path(__file__).parents[2]
PACKAGES = ("sardonyx", "coordinator", "peer", "queues", "sentinel", "spark_tasks")
GOES_ON = re.compile(r"error\.message\}( \(|:|,|;)")


@pytest.mark.parametrize("message", ["Kafka at k:9 did not answer (waited 5.0 s)", "No peer runs."])
def test_a_text_that_goes_on_has_no_full_stop_before_a_colon(message: str) -> None:
    """Messages of some errors end with one."""
    said = f"{SardonyxError('SX-TEST', message).opening}: the cause"
    assert re.sub(r"\.$", "", message) + ": the cause" == said


def test_no_text_goes_on_after_the_whole_message_of_an_error() -> None:
    """``explain``, ``doctor`` and the pages take :attr:`~sardonyx.core.errors.SardonyxError.opening`."""
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for match in GOES_ON.finditer(path.read_text("utf-8"))
    ]
    assert found == []


# --- Commands that texts name -----------------------------------------------------------------------------------------

COMMAND = re.compile(r"`sardonyx ([^`]+)`")
COMMANDS: Any = typer.main.get_command(app)
"""All that can be typed, as the click has it that typer brings along."""
SOME = "X"
"""In place of what a text fills in."""


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a module, or a page."""
    if path.suffix == ".md":
        yield path.read_text("utf-8")
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else SOME for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def why_not(words: list[str]) -> str:
    """Why a command cannot be typed so; empty: it can, with what else it needs."""
    command = COMMANDS
    while hasattr(command, "commands"):
        if not words or words[0] == SOME or "|" in words[0] or words[0].startswith("-"):  # several in one, or a part
            return ""
        found = command.commands.get(words.pop(0))
        if found is None:
            return "there is no such command"
        command = found
    flags = {name: each for each in command.params if each.param_type_name == "option" for name in each.opts}
    places = 0
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            places += 1
        elif word.partition("=")[0] not in {*flags, "--help"}:
            return f"it has no {word}"
        elif not flags[word].is_flag and words:
            words.pop(0)
    room = [each.nargs for each in command.params if each.param_type_name == "argument"]
    return "" if -1 in room or places <= sum(room) else f"it takes {sum(room)} arguments, and not {places}"


def test_every_command_that_a_text_names_can_be_typed() -> None:
    """In errors, in explanations, and in the pages: the command, its flags, and how many arguments it takes."""
    sources = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    named = {
        (path.relative_to(ROOT), match[1])
        for path in [*sources, ROOT / "docs" / "errors.md"]
        for text in texts_of(path)
        for match in COMMAND.finditer(text)
    }
    assert len(named) > 100
    wrong = [
        f"{path}: sardonyx {command}: {why}"
        for path, command in sorted(named)
        if (why := why_not(shlex.split(command)))
    ]
    assert wrong == []


@pytest.mark.parametrize("wrong", ["log export FILE", "job killed X", "job stop X --now", "peers undrain"])
def test_a_command_that_cannot_be_typed_is_found(wrong: str) -> None:
    assert bool(why_not(shlex.split(wrong))) == (wrong != "peers undrain")
