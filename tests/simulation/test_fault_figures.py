"""What a fault run counts as the commit of a zombie, from the logs of its processes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.faults.cluster import Cluster
from tests.faults.figures import zombie_commits

DIED, WOKE, ASKED = 10.0, 12.0, 13.0


def logged(folder: Path, name: str, *lines: tuple[float, str, str]) -> None:
    """The log of a process: at which second a peer said which event."""
    about: dict[str, Any] = {"job": "copy-1", "task": "one", "slot": 0, "kind": "died"}
    text = [
        json.dumps(about | {"peer": peer, "event": event, "timestamp": datetime.fromtimestamp(at, UTC).isoformat()})
        for at, peer, event in lines
    ]
    (folder / f"{name}.log").write_text("\n".join(text))


def counted(folder: Path, opened: float, commit: str = "batch_committed") -> int:
    """How many commits of zombies there are, of a peer that died, woke up, and asked for this commit. ``opened``: when its
    successor opened the slot.
    """
    logged(folder, "coordinator0-0", (DIED, "old", "event_decided"))
    logged(folder, "peer0-1", (1.0, "old", "task_accepted"), (ASKED, "old", "commit_requested"), (20.0, "old", commit))
    logged(folder, "peer1-2", (11.0, "new", "task_accepted"), (opened, "new", "partitions_assigned"))
    cluster = SimpleNamespace(folder=folder)
    cluster.lines = lambda name: Cluster.lines(cast("Cluster", cluster), name)
    return zombie_commits(cast("Cluster", cluster), [("peer0-1", WOKE)])


def test_a_batch_that_a_zombie_asks_for_after_its_slot_was_opened_counts(tmp_path: Path) -> None:
    assert counted(tmp_path, opened=ASKED - 1) == 1


def test_a_batch_that_a_zombie_asks_for_before_its_slot_is_opened_does_not_count(tmp_path: Path) -> None:
    """Its successor reads the positions after that, and finds it."""
    assert counted(tmp_path, opened=ASKED + 1) == 0


@pytest.mark.parametrize("opened", [ASKED - 1, ASKED + 1])
def test_a_seal_of_a_zombie_counts(tmp_path: Path, opened: float) -> None:
    assert counted(tmp_path, opened, "task_sealed") == 1
