"""A slot: one place on a task, which one virtual peer holds at a time."""

from __future__ import annotations

from typing import NamedTuple


class Slot(NamedTuple):
    """One place on a task."""

    job: str
    task: str
    number: int
