"""What must be true of the checkpoints of a job: looked at after each commit, and once more in the end.

The state of a shard at a time is made from the log of its state, as a client reads it. What it must be is counted from the link
that the windows read: of all that ever stood there, only the rows before that time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from peer.operators import Stores
from peer.window_split import row_times
from queues.messages import Logged
from sardonyx.core.checkpoints import Bookmark
from sardonyx.core.errors import InputError
from sardonyx.core.going_back import points_of
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.core.state_points import CheckpointPoint
from sardonyx.core.units import seconds
from sardonyx.state.base import KEY
from sardonyx.state.columns import ROWS, SLICE
from sardonyx.state.entry_keys import KEPT, WAITS, starts_of
from sardonyx.state.groups import numpy, one
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark, about
from sardonyx.state.restore import Restore
from tests.simulation.broker import Group
from tests.simulation.time_oracle import BEFORE, Window, blocks
from tests.simulation.timed_plans import SECOND

if TYPE_CHECKING:
    from tests.simulation.timed import TimedWorld


class CheckpointOracle:
    """Watches over the checkpoints of a history's job."""

    def __init__(self, world: TimedWorld) -> None:
        self._world, self._kafka = world, world.kafka
        self._due = False
        self._seen: set[tuple[str, int, Bookmark]] = set()
        self.taken = 0
        """Checkpoints that rows of later times had to be kept apart from."""
        self.logged = 0
        """Checkpoints that the coordinator had logged of a job when it ended."""
        world.kafka.broker.on_commit.append(self._committed)

    def _committed(self, _group: Group, _place: Partition, _before: Position | None, _now: Position) -> None:
        """All records of the transaction are there a moment later."""
        if not self._due:
            self._due = True
            self._world.sim.at(0.0, self._look)

    def _look(self) -> None:
        self._due = False
        for job, graph in self._kafka.graphs.items():
            try:
                self.check(job, graph, all_of_them=False)
            except AssertionError as wrong:
                self._world.wrong.append(str(wrong))

    def check(self, job: str, graph: Graph, *, all_of_them: bool) -> None:
        """Look at the checkpoints that are kept, or only at those that are new. Of a job whose states are gone there is none in
        which all its shards have a part.
        """
        if job in self._kafka.without_states:
            held = {stage.name: self._kafka.group(stage, job).positions() for stage in graph.stages}
            assert not points_of(graph, held), f"{job} has checkpoints, and its states are gone"
            return
        for stage in graph.stages:
            if stage.task.window is None:
                continue
            first = stage.ingress[0]
            (state,) = [link for link in stage.egress if link.kind == "state"]
            for place, position in self._kafka.group(stage, job).positions().items():
                marks = () if position is None or position.checkpoints is None else position.checkpoints.kept
                for mark in marks if place.topic == first.topic else ():
                    known = (place.topic, place.number, mark)
                    if known not in self._seen or all_of_them:
                        self._seen.add(known)
                        self.taken += mark.undo and not all_of_them
                        self._one(stage, state, place.number, mark)

    def check_logged(self, job: str, graph: Graph, points: Sequence[CheckpointPoint]) -> None:
        """The logs hold all that the checkpoints need which the coordinator has logged, whatever the positions say by now."""
        self.logged += len(points)
        for point in points:
            for stage in (each for each in graph.stages if each.task.window is not None):
                (state,) = [link for link in stage.egress if link.kind == "state"]
                for number, (seq, low, base) in enumerate(point.marks[stage.name]):
                    self._one(stage, state, number, Bookmark(point.at, point.at, seq, low, base))

    def _one(self, stage: Stage, state: Link, number: int, mark: Bookmark) -> None:
        for time in {max(mark.first, 0), mark.last}:
            found, wanted = self._found(state, number, time, mark), self._wanted(stage, number, time)
            assert found == wanted, f"{stage.name}[{number}] at {time}: {dict(found)} is not {dict(wanted)}"

    def _found(self, link: Link, number: int, time: int, mark: Bookmark) -> Counter[Window]:
        """Rows by key and window, as the log of the state has them."""
        stores = Stores(lambda _, schema: MemoryStore(schema))
        at = Mark(mark.seq, mark.low, mark.base)
        restore = Restore(at, {}, topic=link.topic, partition=number, others=("windows",), make=stores.open)
        log = self._kafka.broker.logs[Partition(link.topic, number)]
        messages = (Logged(at, entry.headers, entry.value or b"") for at, entry in log.committed(restore.start))
        try:
            restore.read(message for message in messages if about(message, {}).seq <= mark.seq)
            restore.finish()
        except InputError as error:
            raise AssertionError(f"{link.topic}[{number}] has not all of the checkpoint at {time}: {error}") from error
        for name, undo in restore.undo.get(time, {}).items():
            stores.all[name].apply(undo)
        found: Counter[Window] = Counter()
        for store in stores.all.values():
            for row in store.scan().to_pylist():
                if row[KEY].startswith(WAITS):
                    continue
                (start,) = starts_of(pa.array([row[KEY].removeprefix(KEPT)])).tolist()
                found[row["key:k"], start] += row[ROWS]
        return found

    def _wanted(self, stage: Stage, number: int, time: int) -> Counter[Window]:
        """The same, counted from the link."""
        window, link = stage.task.window, stage.ingress[0]
        assert window is not None
        found, clock, since = self._world.begun(stage, number)
        size, grace, allowed = (_micros(each) for each in (window.size, window.grace, window.allowed_lateness))
        for said, table in blocks(self._kafka.broker.logs[Partition(link.topic, number)]):
            clock = max(clock, said)
            if clock >= time:
                break
            if table is None or not table.num_rows:
                continue
            for row, at in zip(table.to_pylist(), times_on(link, table), strict=True):
                start = at // size * size
                before = max(clock, row.get(BEFORE, clock))
                if since is not None and SLICE not in row and at < since:
                    continue
                if at < time and before < time and start + size + grace + allowed > before:
                    found[row["k"], start] += row.get(ROWS, 1)
        for key, start in list(found):
            if start + size + grace + allowed <= time:
                del found[key, start]
        return found


def times_on(link: Link, rows: pa.Table) -> list[int]:
    """The times of rows on a link that windows read; of combined ones, the beginning of their slice."""
    assert link.row_time is not None
    found: list[int] = (
        numpy(one(rows[SLICE])) if SLICE in rows.column_names else row_times(rows, link.row_time, link.source)
    ).tolist()
    return found


def _micros(length: Any) -> int:
    return round(seconds(str(length or "0 s")) * SECOND)
