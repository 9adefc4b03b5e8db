"""The examples of docs/state.md, run as they stand: the rows on the left give the results on the right."""

from __future__ import annotations

import importlib
import itertools
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from sardonyx import blackhole
from sardonyx.connectors.schema import arrow_schema
from sardonyx.core.clocks import NEVER
from sardonyx.job.parse import read
from sardonyx.job.validate import problems_of
from sardonyx.state.keyed_run import KeyedFunction
from sardonyx.state.keyed_work import KeyedPiece
from sardonyx.state.memory import MemoryStore
from sardonyx.state.signature import signature_of
from tests.core.keyed_machine import Machine

PAGE = (Path(__file__).parents[2] / "docs/state.md").read_text("utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.S)
PYTHON = [
    code
    for kind, code in BLOCKS
    if kind == "python" and not any(word in code for word in ("def test_", "Store:", "StoreSuite"))
]
BEFORE = PYTHON[0]
EXAMPLES = [
    (code, shown) for (kind, code), (_, shown) in itertools.pairwise(BLOCKS[1:]) if kind == "python" and code in PYTHON
]
DAY = datetime(2026, 11, 23, tzinfo=UTC)


def timed(given: dict[str, Any]) -> dict[str, Any]:
    """A row of the page; its time is in hours and minutes from the beginning of a day."""
    if "at" not in given:
        return given
    hours, minutes = given["at"].split(":")
    return {**given, "at": DAY + timedelta(hours=int(hours), minutes=int(minutes))}


def lines_of(shown: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each row with the results that it gives."""
    found = []
    for line in shown.splitlines()[1:]:
        row, *results = re.split(r"\s{2,}", line.strip())
        found.append((timed(json.loads(row)), [timed(json.loads(result)) for result in results]))
    return found


def test_every_example_shows_what_it_gives():
    """Behind each block of Python but the first there is a table of rows and results."""
    assert len(EXAMPLES) == len(PYTHON) - 1 > 5
    assert all(shown.startswith("row") for _, shown in EXAMPLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_gives_what_the_page_shows(number, tmp_path, monkeypatch):
    """It is a valid job, and its functions give these results, row after row, with the clock at the time of the last row."""
    code, shown = EXAMPLES[number]
    (tmp_path / f"state_docs_{number}.py").write_text(BEFORE + "\n" + code)
    monkeypatch.syspath_prepend(tmp_path)
    job = importlib.import_module(f"state_docs_{number}").job
    job.output("out", blackhole(), after=job.spec().catalog[-1].name)
    spec, problems = read(job.data())
    assert [*job.problems, *problems, *problems_of(spec, functions=job.functions)] == []
    task = spec.catalog[1]
    assert task.keyed is not None
    on_timer = None if task.keyed.on_timer is None else job.functions[task.keyed.on_timer]
    declared = None if task.keyed.state is None else arrow_schema(task.keyed.state)
    fn = job.functions[task.fn]
    signature = signature_of(task.keyed, fn, on_timer, declared)
    machine = Machine(signature, KeyedFunction(signature, fn, on_timer, task.params), task.group_by or (), MemoryStore)
    schema = arrow_schema(spec.catalog[0].options["schema"])
    clock = NEVER
    for row, wanted in lines_of(shown):
        times = pa.array([row["at"]], pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
        piece = KeyedPiece(pa.Table.from_pylist([row], schema), clock, times)
        clock = max(clock, int(times[0]))
        before = len(machine.results)
        machine.batch([piece], clock)
        assert [result for result, _ in machine.results[before:]] == wanted, row
    assert not machine.failed


def test_the_yaml_is_a_task():
    """As it stands on the page."""
    (text,) = (code for kind, code in BLOCKS if kind == "yaml")
    catalog = [
        {
            "name": "orders",
            "type": "input",
            "connector": "kafka",
            "options": {"topic": "o", "start": "earliest"},
            "time": "at",
        },
        *yaml.safe_load(text),
        {"name": "out", "type": "output", "connector": "blackhole"},
    ]
    spec, problems = read({"name": "shop", "workflow": [["orders", "confirm"], ["confirm", "out"]], "catalog": catalog})
    assert problems == []
    assert problems_of(spec, import_functions=False) == []
    assert spec.task("confirm").keyed is not None
