"""Every client of Kafka logs where we say: by itself it writes to standard error, into the output of the user's command."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENTS = {"AdminClient", "Consumer", "Producer"}
QUIET = {"queues/topics.py"}
"""A client may log nothing, if its user says so (``log_level``)."""


def test_every_client_of_kafka_has_a_logger() -> None:
    """Such a line was ``Purging 1 unserved events from background queue``, when a client was closed."""
    found = 0
    for path in sorted((ROOT / "queues").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in CLIENTS):
                continue
            found += 1
            place = f"{path.relative_to(ROOT)}:{call.lineno}"
            assert any(each.arg == "logger" for each in call.keywords) or place.partition(":")[0] in QUIET, place
    assert found > 15
