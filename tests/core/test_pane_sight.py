"""The check of fault runs on windows that tell of each change: it agrees with a run, and sees what is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sardonyx.job.load import load
from sardonyx.testing import ClockedRun
from tests.faults.shapes import KEYS, PARTITIONS, SHAPES, SOURCE, disordered
from tests.faults.sights import PaneSight, _by_window

COUNT = 300
"""Records of each source."""
IDS = {source * SOURCE + number for source in range(PARTITIONS) for number in range(COUNT)}

Row = dict[str, Any]


def record(number: int) -> Row:
    source, position = divmod(number, SOURCE)
    return {"id": number, "key": f"{source}-{position % KEYS}", "at": disordered(position)}


def results(rng: random.Random, folder: Path, begin: Callable[..., ClockedRun]) -> list[Row]:
    """What the job gives in a run in which its peers crash."""
    path = folder / "job.py"
    path.write_text(SHAPES["panes"].spec("panes", ["in"], "out", COUNT, 0, 1.0, folder))
    run = begin(load(str(path)), topics={"read": PARTITIONS})
    sent = [0] * PARTITIONS
    while min(sent) < COUNT:
        source = sent.index(min(sent))
        first, sent[source] = sent[source], min(sent[source] + rng.randint(30, 90), COUNT)
        if rng.random() < 0.2:
            run.crash(rng.choice(["read", "meet"]), rng.choice(["settled", "applied", "committed"]))
        run.give("read", [record(source * SOURCE + number) for number in range(first, sent[source])], source)
    run.end()
    return [*run.rows("write"), *run.rows("late")]


def sight_of(rows: list[Row]) -> PaneSight:
    sight = PaneSight(SHAPES["panes"])
    for row in rows:
        sight.record(0, json.dumps(row).encode())
    return sight


def verdict(rows: list[Row]) -> tuple[int, int, int, int]:
    """How much is lost, strange, wrong and doubled."""
    sight = sight_of(rows)
    wanted = sight.wanted(IDS)
    return len(wanted - sight.seen), len(sight.seen - wanted), sight.wrong_values(IDS), sight.doubled


def test_the_check_agrees_with_a_run_and_sees_what_is_wrong(
    seed: int, tmp_path: Path, sardonyx_clocked: Callable[..., ClockedRun]
) -> None:
    """A pane that comes twice or is missing, one that counts a row too few, two that are final or none, a row that is lost, and
    one that is called too late although it was on time.
    """
    rows = results(random.Random(f"{seed}/panes"), tmp_path, sardonyx_clocked)
    assert verdict(rows) == (0, 0, 0, 0)
    told = sight_of(rows).told()
    assert min(told.values()) > 5, told

    on_time = {each.number for window in _by_window(IDS).values() for each in window if each.on_time}
    late = next(row for row in rows if "pane" not in row)
    windows: dict[Any, list[Row]] = {}
    for row in rows:
        if "pane" in row:
            windows.setdefault((row["key"], row["window_start"]), []).append(row)
    first, last = next(
        (panes[0], panes[-1])
        for panes in windows.values()
        if len(panes) > 1 < panes[-1]["hits"] and panes[-1]["final"] and not on_time.isdisjoint(panes[-1]["ids"])
    )
    fewer = {"hits": last["hits"] - 1, "total": last["total"] - last["ids"][-1], "ids": last["ids"][:-1]}
    fewer["most"] = max(fewer["ids"])

    def changed(row: Row, **values: Any) -> list[Row]:
        return [{**each, **values} if each is row else each for each in rows]

    def without(row: Row) -> list[Row]:
        return [each for each in rows if each is not row]

    assert verdict([*rows, last])[3] == 1
    assert verdict(without(first))[0] == 1
    assert verdict(changed(last, **fewer))[2] == 1
    assert verdict(changed(last, total=last["total"] + 1))[2] == 1
    assert verdict(changed(first, final=True))[2] == 1
    assert verdict(changed(last, final=False))[2] == 1
    assert verdict(without(late))[2] == 1
    assert verdict([*rows, record(min(on_time))])[1] == 1
