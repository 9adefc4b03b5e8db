"""Which tasks a process follows, as jobs change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from peer.process import Process
from peer.standby_tasks import StandbyTasks
from sardonyx import Job, State, kafka
from sardonyx.core import node_paths
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import JobNote, LinksNote, PulseNote
from sardonyx.core.spec import JobSpec, encode_spec

if TYPE_CHECKING:
    from peer.prepared_task import PreparedTask
    from peer.standby import StandbyShards
    from sardonyx.runtime.clock import Runtime
    from sardonyx.runtime.settings import Settings
    from sardonyx.zookeeper.session import ZooKeeperSession


def add(row: dict[str, Any], count: State[int]) -> dict[str, Any]:
    count.set((count.get() or 0) + 1)
    return row


class Tree:
    """ZooKeeper with the nodes that a test puts there."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.watches: dict[str, list[Callable[[object], None]]] = {}

    def put(self, path: str, note: Any) -> None:
        self.nodes[path] = note if isinstance(note, bytes) else msgspec.json.encode(note)
        for watch in self.watches.pop(path, []):
            watch(None)

    def read(self, path: str, watch: Callable[[object], None] | None = None) -> bytes | None:
        if watch is not None:
            self.watches.setdefault(path, []).append(watch)
        return self.nodes.get(path)

    def children(self, path: str, watch: Callable[[object], None] | None = None) -> list[str]:
        return sorted({each[len(path) + 1 :].partition("/")[0] for each in self.nodes if each.startswith(path + "/")})


class Told:
    """Hears which tasks are to be followed."""

    tasks: list[str]

    def follow(self, tasks: Iterable[Any]) -> None:
        self.tasks = [task.stage.name for task in tasks]


def with_standby(number: int) -> JobSpec:
    job = Job("stands")
    read = job.input("read", kafka("given", schema="key long", start="earliest"))
    job.output("out", kafka("out"), after=job.keyed("count", add, after=read, group_by="key", standby=number))
    return job.spec()


@pytest.mark.parametrize("again", [False, True], ids=["same session", "another session"])
def test_a_standby_that_a_change_adds_is_followed(*, again: bool) -> None:
    """By processes that had looked at the job when it had none, or none any more. Another one goes on as it was."""
    tree, told, clock = Tree(), Told(), [0.0]
    about = PulseNote(daemon="one", host="one", pid=1)
    runtime = cast("Runtime", SimpleNamespace(now=lambda: clock[0]))
    sessions = [tree]
    tasks = StandbyTasks(
        cast("Settings", SimpleNamespace(deployment="d")),
        lambda: Process(cast("ZooKeeperSession", sessions[0]), about),
        cast("StandbyShards", told),
        lambda *_: cast("PreparedTask", None),
        runtime,
    )

    def by(number: int, revision: int) -> list[str]:
        spec, note = with_standby(number), JobNote("stands", "running", 1, 0.0, links="made", revision=revision)
        facts = {link.name: LinkFacts(1) for link in graph_of(spec, "d", "j").links}
        tree.put(node_paths.job_links("j"), LinksNote(facts))
        tree.put(node_paths.job_status("j"), note)
        tree.put(node_paths.job_spec("j"), encode_spec(spec))
        for _ in range(2):
            tasks.look()
            clock[0] += 10
        return told.tasks

    tree.put(node_paths.pulse("one-0"), about)
    assert by(0, 1) == []
    if again:
        sessions[0] = copy(tree)
        sessions[0].watches = {}
        tree.watches.clear()  # no watch outlives its session
        tree = sessions[0]
    assert by(1, 2) == ["count"]
    assert by(0, 3) == []
    assert by(1, 4) == ["count"]
    found = tasks._tasks["j", "count"]
    assert by(1, 4) == ["count"]
    assert tasks._tasks["j", "count"] is found
