"""docs/jobs.md against the builder: each argument of a job, a task and a connector stands in the tables there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sardonyx import Job, files, generator, kafka

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text("utf-8")


def named(part: str) -> set[str]:
    """The words in code of a part of the page."""
    return {word for code in re.findall(r"`([^`\n]+)`", part) for word in re.findall(r"\w+", code)}


def arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Those that are given by name, with their defaults."""
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.name not in ("self", "name", "connector", "after")}


def test_the_table_of_a_job_has_its_arguments_and_their_defaults() -> None:
    """A default that is nothing, or none to speak of, need not be there."""
    table = PAGE.partition("| `Job(name, ...)` |")[2].partition("\n\n")[0]
    rows = {name: default.strip() for name, default in re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE)}
    given = arguments(Job.__init__)
    assert {*rows} == {*given}
    assert not [name for name, default in given.items() if default and f"{default}" != rows[name].strip("`")]


@pytest.mark.parametrize("method", [Job.input, Job.task, Job.output])
def test_the_table_of_tasks_has_their_arguments(method: Callable[..., Any]) -> None:
    """Those of windows, states and joins have pages of their own."""
    table = PAGE.partition("| `job.input`, `job.task`")[2].partition("\n\n")[0]
    assert not {*arguments(method)} - {*re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)}


@pytest.mark.parametrize("connector", [files, kafka, generator])
def test_the_tables_of_connectors_have_their_options(connector: Callable[..., Any]) -> None:
    """As inputs and as outputs."""
    part = PAGE.partition("## Connectors")[2].partition("### Which topics exist")[0]
    assert not {*arguments(connector)} - named(part)
