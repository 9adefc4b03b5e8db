"""docs/cli.md against the commands: each command and flag stands there, and what its JSON holds."""

from __future__ import annotations

import importlib
import re
import typing
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import typer

from sardonyx.cli.app import app
from sardonyx.core.errors import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
OF_ALL = frozenset({"--zookeeper", "--kafka", "--deployment", "--json", "-v", "--verbose"})
"""Flags with a table of their own."""
SHOWN = {
    "`run`": "sardonyx.cli.results:OutputView",
    "`job show --changes`": "coordinator.history.revisions:RevisionMade",
    "`job show --cycles`": "sardonyx.client.cycles:JobCycle",
    "`job show` also": "coordinator.history.timeline:TimelineEvent",
    "`job try`": "sardonyx.core.trial:Comparison",
    "`job explain`": "coordinator.core.explanation:Explanation",
    "`job diff`": "sardonyx.core.job_diff:JobDiff",
    "`peers list`": "sardonyx.client.cluster_views:PeerView",
    "`deployments`": "sardonyx.client.deployments:DeploymentView",
    "`cluster policy`": "sardonyx.client.policy:Policy",
    "`clock`": "sardonyx.client.clocks:JobClock",
    "`job rollback`": "sardonyx.client.going_back:GoingBack",
    "`job replay`": "sardonyx.client.replay:Replay",
    "`job checkpoints`": "sardonyx.client.checkpoints:JobCheckpoints",
    "`job progress`": "sardonyx.client.progress:JobProgress",
    "`job trace`": "sardonyx.client.record_trace:RecordTrace",
    "`link lag`": "sardonyx.client.lags:LinkLag",
    "`link audit`": "sardonyx.client.lags:LinkAudit",
    "`link peek`": "sardonyx.client.peek:Peek",
    "`dlq list`": "sardonyx.client.dead_letters:Pile",
    "`peers show`": "sardonyx.cli.history_text:Moment",
    "`peers drain`, `peers undrain`": "sardonyx.client.draining:Draining",
    "`log verify`, `log replay`": "coordinator.history.replay:Verdict",
}
"""A row of the table of JSON, and what the commands in it print."""


def commands(group: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each command with its whole name."""
    group = typer.main.get_command(app) if group is None else group
    for word, command in group.commands.items():
        whole = f"{name} {word}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, whole)
        else:
            yield whole, command


def cells(text: str) -> Iterator[tuple[str, str]]:
    """The rows of tables of two columns."""
    for line in text.splitlines():
        if line.startswith("| "):
            first, second = re.split(r"(?<!\\)\|", line)[1:3]
            yield first.strip(), second


def rows_by_command() -> dict[str, str]:
    """What the table of commands says of each."""
    known = dict(commands())
    found: dict[str, str] = defaultdict(str)
    for first, second in cells(PAGE.partition("## Flags of all commands")[0]):
        for call in re.findall(r"`([^`]+)`", first):
            words = call.split()
            names = [name for name in known if words[: len(name.split())] == name.split()]
            assert names, f"there is no command {call}"
            found[max(names, key=len)] += f"{first} {second}"
    return found


def fields(struct: Any) -> Iterator[str]:
    """The names of its fields and of those of the structs in it, but for errors, which have a row of their own."""
    for field in msgspec.structs.fields(struct):
        yield field.encode_name
        yield from _inner(field.type)


def _inner(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not Failure:
        yield from fields(kind)
    for each in typing.get_args(kind):
        yield from _inner(each)


def test_the_page_says_what_each_command_takes() -> None:
    """All of its flags."""
    told = rows_by_command()
    missing = []
    for name, command in commands():
        if name not in told:
            missing.append(name)
        for param in command.params:
            options = [*param.opts, *param.secondary_opts]
            if param.param_type_name == "option" and not OF_ALL & {*options}:
                missing += [f"{name} {options[0]}"] if not any(option in told[name] for option in options) else []
    assert not missing


def test_the_page_names_each_command_that_prints_json() -> None:
    """In the table of what its JSON holds; those that run until they are stopped print none."""
    said = " ".join(first for first, _ in cells(PAGE.partition("## JSON")[2]))
    assert not [name for name, _ in commands() if f"`{name}" not in said and name not in ("coordinator", "peer")]


@pytest.mark.parametrize("row", SHOWN)
def test_the_table_of_json_names_all_that_is_printed(row: str) -> None:
    """Programs that read it should not have to guess."""
    module, name = SHOWN[row].split(":")
    told = dict(cells(PAGE.partition("## JSON")[2]))[row]
    struct = getattr(importlib.import_module(module), name)
    assert not {*fields(struct)} - {*re.findall(r"`([a-z_]+)`", told)}


def test_the_page_names_all_that_is_shown_of_a_job_and_its_tasks() -> None:
    """In the row of ``job show`` and in the text below the table."""
    from sardonyx.client.views import JobView

    table = PAGE.partition("## JSON")[2].partition("## From Python")[0]
    text = dict(cells(table))["`job show`, `job await`, `job stop`"]
    text += "".join(line for line in table.splitlines() if not line.startswith("|"))
    assert not {*fields(JobView)} - {*re.findall(r"`([a-z_]+)`", text)}
