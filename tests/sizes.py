"""How many random histories a test plays: fewer in ``make test`` than in ``make test-all``, which sets SARDONYX_ALL_HISTORIES."""

from __future__ import annotations

import os

ALL = os.environ.get("SARDONYX_ALL_HISTORIES") == "1"


def histories(few: int, *, whole: int) -> int:
    """The number for this run: ``few``, or ``whole`` if all are asked for."""
    return whole if ALL else few


def as_asked(few: int, *, whole: int) -> int:
    """The same for a file that can have a long run of its own. There SARDONYX_HISTORIES says the number:
    ``SARDONYX_HISTORIES=10000 .venv/bin/pytest tests/core/test_state_log_random.py``.
    """
    return int(os.environ.get("SARDONYX_HISTORIES") or histories(few, whole=whole))
