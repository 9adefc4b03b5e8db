"""A plugin for pytest that writes how each test ended: ``pytest -p tests.results --results FILE``. `tests.stages` reads the file.

The file is a JSON object: for each test's node id its ``seconds``, set-up and clean-up included, and if it did not pass,
``error``, the first line of what was wrong, and ``output``, all that was reported of it. With pytest-xdist only the controlling
process writes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest


class Results:
    """Collects the reports of a session.

    Args:
        path: of the file to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._errors: dict[str, str] = {}
        self._outputs: dict[str, str] = defaultdict(str)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self._errors.setdefault(report.nodeid, first_line(report.longrepr))
            sections = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
            self._outputs[report.nodeid] += f"{report.longreprtext}\n{sections}\n"
            self._seconds[report.nodeid] += 0  # what cannot be collected took no time

    def pytest_sessionfinish(self) -> None:
        found: dict[str, dict[str, Any]] = {name: {"seconds": taken} for name, taken in self._seconds.items()}
        for name, error in self._errors.items():
            found[name] |= {"error": error, "output": self._outputs[name]}
        self._path.write_text(json.dumps(found))


def first_line(error: object) -> str:
    """What a report says was wrong, in one line."""
    crash = getattr(error, "reprcrash", None)
    said = (crash.message if crash is not None else str(error)).strip()
    return said.partition("\n")[0][:300]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="write how each test ended to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--results")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(path))
