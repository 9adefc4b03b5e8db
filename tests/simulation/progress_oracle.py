"""What must be true of the progress that a job with lineage shows: looked at after each commit, and once more in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from sardonyx.core.graph import Graph, Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.core.progress import Look, SourceProgress, source_progress
from sardonyx.core.source_fronts import Sources
from sardonyx.core.units import seconds
from sardonyx.state.columns import ROWS, SLICE
from tests.simulation.broker import Group
from tests.simulation.time_oracle import BEFORE, Window, blocks, micros
from tests.simulation.timed_plans import SECOND, SIZE, Row

if TYPE_CHECKING:
    from tests.simulation.timed import TimedWorld


class ProgressOracle:
    """Watches over the progress of a history's job.

    A row that is said to be everywhere is in a result that has come, or it was late. The rows on the link into the windows are
    combined, so this is counted for each window.
    """

    def __init__(self, world: TimedWorld) -> None:
        self._world, self._kafka = world, world.kafka
        self._due = False
        self.seen = Counter[str]()
        """How many source partitions were looked at, and how many of them had something everywhere, or something pending."""
        world.kafka.broker.on_commit.append(self._committed)

    def _committed(self, _group: Group, _place: Partition, _before: Position | None, _now: Position) -> None:
        """All positions of the transaction are there a moment later."""
        if not self._due:
            self._due = True
            self._world.sim.at(0.0, self._look)

    def _look(self) -> None:
        self._due = False
        for job, graph in self._kafka.graphs.items():
            try:
                self._check(job, graph)
            except AssertionError as wrong:
                self._world.wrong.append(str(wrong))

    def progress(self, job: str, graph: Graph) -> list[SourceProgress]:
        held = {stage.name: self._kafka.group(stage, job).positions() for stage in graph.stages}
        return source_progress(graph, Sources(graph), Look(held, held))

    def _check(self, job: str, graph: Graph) -> None:
        everywhere: dict[int, int] = {}
        for said in self.progress(job, graph):
            everywhere[said.partition] = said.everywhere or 0
            self.seen["looked"] += 1
            self.seen["moved"] += bool(said.everywhere and said.pending)
        stages = [stage for stage in graph.stages if stage.task.window is not None]
        length = SIZE * (3 if len(stages) > 1 else 1) * SECOND
        wanted = Counter(
            (row.key, row.at // length * length)
            for number, rows in self._rows().items()
            for row in rows[: everywhere.get(number, 0)]
        )
        late, done = self._late(stages[0], length), self._done()
        for window, count in wanted.items():
            assert done[window] + late[window] >= count, (
                f"{count} rows of {window} are said to be everywhere ({everywhere}): {done[window]} are in results, "
                f"and {late[window]} were late"
            )

    def _rows(self) -> dict[int, list[Row]]:
        """By partition, in the order of their offsets."""
        found: dict[int, list[Row]] = {}
        for row in sorted(self._world.rows, key=lambda row: row.comes):
            found.setdefault(row.partition, []).append(row)
        return found

    def _late(self, stage: Stage, length: int) -> Counter[Window]:
        """Rows on the link into the first windows that were late there."""
        window, found = stage.task.window, Counter[Window]()
        assert window is not None
        waits = sum(round(seconds(str(text or "0 s")) * SECOND) for text in (window.grace, window.allowed_lateness))
        for log in self._logs(stage.ingress[0].topic):
            clock = -(2**63)
            for said, table in blocks(log):
                clock = max(clock, said)
                for row in table.to_pylist() if table is not None else ():
                    start = row[SLICE] if SLICE in row else row["at"] // (SIZE * SECOND) * SIZE * SECOND
                    if start + SIZE * SECOND + waits <= max(clock, row.get(BEFORE, clock)):
                        found[row["k"], start // length * length] += row.get(ROWS, 1)
        return found

    def _done(self) -> Counter[Window]:
        """What the last result of each window counts."""
        found: Counter[Window] = Counter()
        for log in self._logs("out"):
            for entry in log.history():
                row = msgspec.json.decode(entry.value or b"")
                window = row["k"], micros(row["window_start"])
                found[window] = max(found[window], row["hits"])
        return found

    def _logs(self, topic: str) -> Iterator:  # type: ignore[type-arg]
        return (log for place, log in self._kafka.broker.logs.items() if place.topic == topic)

    def at_the_end(self, job: str, graph: Graph) -> None:
        """The job has completed: all rows are everywhere."""
        rows = {number: len(rows) for number, rows in self._rows().items()}
        for said in self.progress(job, graph):
            assert (said.everywhere, said.pending) == (rows.get(said.partition, 0), 0), f"in the end: {said}"


__all__ = ["ProgressOracle"]
