"""What the fraud example must give: its rules again, in plain loops over all payments of a card."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "examples" / "fraud" / "job.py"
START = datetime(2026, 11, 23, tzinfo=UTC)
TIME = timedelta(minutes=15)

Alert = tuple[str, datetime, int, float, str]


def payments(seed: int, count: int, cards: int = 40) -> list[dict[str, Any]]:
    """Payments and confirmations in the order of their times; many are of the rules' edges."""
    rng = random.Random(f"{seed}/fraud")
    at = START
    found = []
    for number in range(count):
        at += timedelta(seconds=rng.choice([0, 1, 5, 30]))
        amount = rng.choice([0.5, 1.0, 35.0, 499.0, 500.0, 900.0])
        what = rng.choice(["payment", "payment", "payment", "confirm"])
        found.append({"id": number, "at": at, "card": f"c{rng.randrange(cards)}", "what": what, "amount": amount})
    return found


def alerts(rows: Iterable[dict[str, Any]]) -> list[Alert]:
    """Every alert, sorted."""
    found: list[Alert] = []
    by_card: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_card.setdefault(row["card"], []).append(row)
    for card, own in by_card.items():
        for place, row in enumerate(own):
            if row["what"] == "confirm" or row["amount"] < 500:
                continue
            small = [each["at"] for each in own[:place] if each["what"] == "payment" and each["amount"] <= 1]
            if small and row["at"] - small[-1] < TIME:
                found.append((card, row["at"], row["id"], row["amount"], "tried out"))
            until = row["at"] + TIME
            if not any(each["what"] == "confirm" and each["at"] < until for each in own[place:]):
                found.append((card, until, row["id"], row["amount"], "not confirmed"))
    return sorted(found)


def of_results(results: Iterable[dict[str, Any]]) -> list[Alert]:
    """Rows that the job gave, as :func:`alerts` has them. Times may be texts, as in JSON."""
    found = []
    for row in results:
        at = row["at"] if isinstance(row["at"], datetime) else datetime.fromisoformat(row["at"])
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        found.append((row["card"], at, row["payment"], row["amount"], row["why"]))
    return sorted(found)
