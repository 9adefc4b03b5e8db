"""How many random histories a test plays: fewer in ``make test`` than in ``make test-all``, which sets SARDONYX_ALL_HISTORIES."""

from __future__ import annotations

import os

ALL = os.environ.get("SARDONYX_ALL_HISTORIES") == "1"


def histories(few: int, *, whole: int) -> int:
    """The number for this run: ``few``, or ``whole`` if all are asked for."""
    return whole if ALL else few
