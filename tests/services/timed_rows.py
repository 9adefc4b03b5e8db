"""Rows with times that are out of order, and a keyed function over them, for tests of checkpoints and of going back."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from sardonyx import ListState, State

USERS, ROWS, PARTITIONS, PORTION = 4, 400, 2, 40
START = datetime(2026, 11, 26, 10, tzinfo=UTC)
DELAY, WINDOW = timedelta(seconds=20), timedelta(seconds=90)
QUICK = {"zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def keep(row: dict, total: State[int], seen: ListState[int]) -> dict:
    total.value += row["n"]
    seen.append(row["n"])
    return row


def rows(seed: int) -> list[dict[str, Any]]:
    """A row each second; each is up to 20 s older than that. The last ones bring the clocks of all partitions to the end."""
    rng = random.Random(seed)
    found = [{"user": n % USERS, "n": n, "at": START + timedelta(seconds=n - rng.randint(0, 20))} for n in range(ROWS)]
    found += [{"user": 9, "n": 0, "at": START + timedelta(seconds=ROWS + 30)} for _ in range(PARTITIONS)]
    return [{**row, "at": row["at"].isoformat()} for row in found]


def at_of(row: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(row["at"])


def clock_after(given: list[dict[str, Any]]) -> int:
    """Where the clock of each task comes to with these rows: the least of both partitions, in microseconds."""
    seen = [max(at_of(row) for row in given[n::PARTITIONS]) for n in range(PARTITIONS)]
    return round((min(seen) - DELAY).timestamp() * 1_000_000)
