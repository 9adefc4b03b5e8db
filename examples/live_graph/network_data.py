"""Links of a small network that come up and go down, as its devices would report them, in a CSV file beside this module."""

import csv
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parent / "data"
SIDE = 5
"""Devices stand in a square, each linked to those beside it: 25 devices, 40 links."""
MINUTES = 10


def events(seed: int = 1) -> Iterator[tuple[str, str, str, bool]]:
    """The two ends of a link, when it was, and whether it went down: first all come up, then one in five seconds changes."""
    chance = random.Random(seed)  # noqa: S311 - no secret depends on it
    places = [(x, y) for x in range(SIDE) for y in range(SIDE)]
    links = [((x, y), (x + dx, y + dy)) for x, y in places for dx, dy in ((1, 0), (0, 1)) if max(x + dx, y + dy) < SIDE]
    up = dict.fromkeys(links, False)
    changed = [(0, link) for link in links]
    changed += [(second, chance.choice(links)) for second in range(60, 60 * MINUTES, 5)]
    for second, link in changed:
        up[link] = not up[link]
        one, other = (f"{'ABCDE'[x]}{y + 1}" for x, y in link)
        yield one, other, f"2026-11-27T12:{second // 60:02}:{second % 60:02}Z", not up[link]


def write() -> Path:
    """The path of links.csv. It is written once."""
    path = DATA / "links.csv"
    if not path.exists():
        DATA.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=DATA)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["one", "other", "at", "down"])
            lines.writerows((one, other, at, str(down).lower()) for one, other, at, down in events())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)  # so that another process never sees half a file
    return path
