"""What must be true of clocks, windows and state: looked at with each commit, and once more in the end.

The oracle knows all rows, and all that ever stood in the logs. What windows must give it computes from the log of the link that
they read, row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
import pyarrow as pa

import peer.timekeeper
from coordinator.core.state import State
from queues import block
from queues.messages import CLOCK_HEADER, SENTINEL_HEADER, Logged
from sardonyx.core.clocks import END, NEVER
from sardonyx.core.events import Counts, JobStatus
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.notes import TaskNote
from sardonyx.core.positions import Partition, Position, total
from sardonyx.core.units import seconds
from sardonyx.state.base import GONE, KEY
from sardonyx.state.columns import ROWS, SLICE
from sardonyx.state.entry_keys import WAITS
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark
from sardonyx.state.restore import Restore
from tests.simulation.broker import Group, Log
from tests.simulation.oracle import Oracle
from tests.simulation.timed_plans import DELAY, SECOND, SIZE, Row, passes
from tests.simulation.zookeeper import SimZooKeeper

if TYPE_CHECKING:
    from tests.simulation.timed import TimedKafka, TimedWorld

UNSEEN = 1.5
"""Seconds that a record may stand at the broker before a reader that asks for it has it: a process that was stopped for less than
a second does not notice, and asks for records a little later."""

REFUSALS = {"SX-STATE-TORN", "SX-STATE-AHEAD", "SX-STATE-POSITIONS-LOST"}
"""With these a job may fail whose state Kafka has lost. It must never give other results."""

BEFORE = "before"
"""A column with the clock before each row of a block."""

Window = tuple[str, int]
"""A key, and the start of a window in microseconds."""


@dataclass
class Expected:
    """What the windows of one task must have given."""

    counts: Counter[Window] = field(default_factory=Counter)
    closing: set[Window] = field(default_factory=set)
    """Windows that had rows when they closed. Others have had corrections only."""
    late: int = 0


class TimeOracle(Oracle):
    """Watches over a history of a job with clocks."""

    kafka: TimedKafka
    ends: JobStatus = "completed"
    """How the job ends."""

    def __init__(self, zookeeper: SimZooKeeper, kafka: TimedKafka, world: TimedWorld) -> None:
        super().__init__(zookeeper, kafka)
        self._world = world
        self._idle: set[Partition] = set()
        """Partitions that were ever idle: rows that come then may be late."""
        kafka.broker.on_commit.append(self._committed_position)

    # With each commit

    def _committed_position(self, group: Group, place: Partition, before: Position | None, now: Position) -> None:
        where = f"{group.name} in {place.topic}[{place.number}]"
        if now.clock.idle:
            self._idle.add(place)
        if before is None:
            return
        assert now.offset >= before.offset, f"{where}: the position fell from {before.offset} to {now.offset}"
        assert now.clock.value >= before.clock.value, f"{where}: the clock fell"
        assert now.clock.seen >= before.clock.seen, f"{where}: what is closed opened again"
        steps = (now.state or (0,))[0] - (before.state or (0,))[0]
        assert steps in (0, 1), f"{where}: the state went from {before.state} to {now.state}"

    def _task_changed(self, below: str, data: bytes) -> None:
        """A task that is complete has read all rows. Statements may come after the end: of peers that have not heard of it."""
        job, _, name = below.split("/")
        graph = self.kafka.graphs.get(job)
        if msgspec.json.decode(data, type=TaskNote).state != "complete" or graph is None or name in graph.bound:
            return
        for place, position in self.kafka.group(graph.stage(name), job).positions().items():
            read = position is not None and (position.drained or not self._rows_from(place, position.offset))
            assert read, f"{job}/{name} is complete, but {place.topic}[{place.number}] is not read"

    def _rows_from(self, place: Partition, offset: int) -> bool:
        log = self.kafka.broker.logs[place]
        if place.topic == "rows":
            return offset < log.end
        return any(table is not None for _, table in blocks(log, offset))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Within it, what peers do between batches is looked at."""
        between = peer.timekeeper.Timekeeper.between_batches

        def looked(times: Any) -> Any:
            found = between(times)
            for place, position in (found[1] if found else {}).items():
                if place.topic == "rows" and position.clock.idle:
                    self._called_idle(place, position, times._clients.reader.held[place])
            return found

        with patch.object(peer.timekeeper.Timekeeper, "between_batches", looked):
            yield

    def _called_idle(self, place: Partition, position: Position, before: Position | None) -> None:
        """A peer is about to call a partition idle."""
        if before is not None and before.clock.idle:
            return
        log, now = self.kafka.broker.logs[place], self.kafka.broker.sim.now
        limit = next(link.time for link in self._stage_of(place).ingress).idle
        last = max((entry.at for entry in log.entries[: position.offset]), default=0.0)
        waiting = [entry.at for entry in log.entries[position.offset :]]
        if now - last < seconds(limit):
            self._world.wrong.append(f"{place} is called idle {now - last:.2f} s after a row")
        if waiting and now - waiting[0] > UNSEEN:
            self._world.wrong.append(f"{place} is called idle, and a row waits for {now - waiting[0]:.2f} s")

    def _stage_of(self, place: Partition) -> Stage:
        stages = (stage for graph in self.kafka.graphs.values() for stage in graph.stages)
        return next(stage for stage in stages if stage.ingress[0].topic == place.topic)

    # In the end

    def at_the_end(self, world: Any) -> None:
        """The job has completed: nothing that went wrong fails it, and no clock stands still."""
        for name, job in self.state.jobs.items():
            refused = self._world.damaged and job.error is not None and job.error.code in REFUSALS
            assert job.status == self.ends or refused, f"{name} is {job.status}: {job.error}"
        super().at_the_end(world)

    def _completed(self, job: str, graph: Graph, state: State) -> None:
        """Every row is in the windows that it belongs to, once, or was late where it had to be."""
        rows = {row.n: row for row in self._world.rows}
        counts = {stage.name: total(self.kafka.group(stage, job).positions().values()) for stage in graph.stages}
        for stage in graph.stages:
            known = state.jobs[job].tasks[stage.name].counts
            told = msgspec.structs.replace(
                counts[stage.name], sent=None
            )  # if no coordinator stood when the task was complete
            assert known in (counts[stage.name], told), f"{job}/{stage.name} was complete with {known}, and has {told}"
        read, times = counts[graph.stages[0].name].rows_in, passes(state.jobs[job].spec)
        beyond = 1 if graph.cycles else 0  # each row comes back once more than it may
        wanted = len(rows) * (times + beyond)
        assert read == wanted, f"{read} rows were read, and should be {wanted}"
        skipped = counts[graph.stages[0].name].skipped
        assert skipped == beyond * len(rows), f"{skipped} rows came back too often, and should {beyond * len(rows)}"
        late_at_source = late_rows(self._world.rows)
        for stage in graph.stages:
            for link in stage.ingress:
                if link.kind == "internal":
                    seen = self._stated(link, rows, late_at_source)
                    wrong = seen and not link.window and seen != Counter(list(rows) * times)
                    assert not wrong, f"{link.name} has rows {seen}"
            if stage.task.window is not None and not self._world.damaged:
                self._restores(stage, job)
        self._windows(graph, counts, times * len(rows))
        if self._world.progress is not None:
            self._world.progress.at_the_end(job, graph)
        if self._world.checkpoints is not None:
            self._world.checkpoints.check(job, graph, all_of_them=True)
            self._world.checkpoints.check_logged(job, graph, state.jobs[job].checkpoints)

    def _logs(self, topic: str) -> Iterator[Log]:
        for place, log in self.kafka.broker.logs.items():
            if place.topic == topic:
                yield log

    def _stated(self, link: Link, rows: dict[int, Row], late_at_source: set[int]) -> Counter[int]:
        """No clock is above a row that comes after it, unless the row was late where it came from. Returns the numbers of its
        rows, if they have any.
        """
        seen: Counter[int] = Counter()
        for log in self._logs(link.topic):
            clock = NEVER
            for said, table in blocks(log):
                clock = max(clock, said)
                if table is None or "n" not in table.column_names:
                    continue
                for row in table.to_pylist():
                    seen[row["n"]] += 1
                    source = Partition("rows", rows[row["n"]].partition)
                    late = row["n"] in late_at_source or source in self._idle
                    before = max(clock, row.get(BEFORE, NEVER))
                    assert late or row["at"] >= before, f"{link.name} states {before}, and row {row} comes after it"
        return seen

    def _windows(self, graph: Graph, counts: dict[str, Counts], rows: int) -> None:
        stages = [stage for stage in graph.stages if stage.task.window is not None]
        first = self._expected(stages[0])
        assert sum(first.counts.values()) + first.late == rows, "rows of the input are not on the link"
        found = counts["count"]
        assert found.late + found.dead == first.late, f"{found.late} + {found.dead} late rows, not {first.late}"
        if not self._idle:
            source = late_rows(self._world.rows)
            assert first.late <= len(source), f"{first.late} rows are late, and {len(source)} were at their sources"
        last, closing = first.counts, first.closing
        if len(stages) > 1:
            assert not counts["more"].late, "results of windows are late for the next ones"
            last = Counter()
            for (key, start), hits in first.counts.items():
                last[key, start // (3 * SIZE * SECOND) * 3 * SIZE * SECOND] += hits
            closing = set(last)
        self._results(last, closing)

    def _expected(self, stage: Stage) -> Expected:
        """What the rows on a link, and the clocks that are stated among them, come to."""
        window, found, size = stage.task.window, Expected(), SIZE * SECOND
        assert window is not None
        grace = round(seconds(str(window.grace)) * SECOND)
        allowed = round(seconds(str(window.allowed_lateness or "0 s")) * SECOND)
        for log in self._logs(stage.ingress[0].topic):
            clock = NEVER
            for said, table in blocks(log):
                clock = max(clock, said)
                for row in table.to_pylist() if table is not None else ():
                    start = row[SLICE] if SLICE in row else row["at"] // size * size
                    weight, before = row.get(ROWS, 1), max(clock, row.get(BEFORE, NEVER))
                    if start + size + grace + allowed <= before:
                        found.late += weight
                        continue
                    found.counts[row["k"], start] += weight
                    if start + size + grace > before:
                        found.closing.add((row["k"], start))
        return found

    def _results(self, wanted: Counter[Window], closing: set[Window]) -> None:
        """The last result of each window counts all its rows; none comes twice."""
        panes: dict[Window, dict[int, Any]] = {}
        for log in self._logs("out"):
            for entry in log.history():
                row = msgspec.json.decode(entry.value or b"")
                window = row["k"], micros(row["window_start"])
                of = panes.setdefault(window, {})
                assert row["pane"] not in of, f"pane {row['pane']} of {window} comes twice"
                of[row["pane"]] = row
        found = {window: of[max(of)]["hits"] for window, of in panes.items()}
        assert found == wanted, f"windows count {found}, and should {dict(wanted)}"
        for window, of in panes.items():
            assert sorted(of) == list(range(len(of))), f"panes of {window} are missing: {sorted(of)}"
            finals = sum(row["final"] for row in of.values())
            assert finals == (window in closing), f"{window} has {finals} final results: {of}"

    def _restores(self, stage: Stage, job: str) -> None:
        """What a peer would make of the state log now: everything is closed, so nothing is left."""
        (link,) = [link for link in stage.egress if link.kind == "state"]
        group = self.kafka.group(stage, job)
        for place, log in list(self.kafka.broker.logs.items()):
            if place.topic != link.topic:
                continue
            number = place.number
            position = group.position(Partition(stage.ingress[0].topic, number))
            assert position is not None
            assert position.clock.seen == position.clock.value == END
            if position.state is not None:
                self._restored(link, number, Mark(*position.state), log)

    def _restored(self, link: Link, number: int, mark: Mark, log: Log) -> None:
        messages = [Logged(at, entry.headers, entry.value or b"") for at, entry in log.committed(mark.low)]
        store = MemoryStore(block.decode([messages[0].value]).drop_columns([GONE]).schema)
        restore = Restore(mark, {"windows": store}, topic=link.topic, partition=number)
        restore.read(messages)
        restore.finish()
        left = [row for row in store.scan().to_pylist() if not row[KEY].startswith(WAITS)]
        assert not left, f"{link.name}[{number}] has entries of windows that are closed: {left}"


def blocks(log: Log, offset: int = 0) -> Iterator[tuple[int, Any]]:
    """What stands on a link from an offset on, in order: clocks that are stated, and blocks of rows. If a block says the clock
    before each row, it stands in a column :data:`BEFORE`.
    """
    for entry in log.history(offset):
        said = dict(entry.headers)
        if CLOCK_HEADER in said:
            yield int(said[CLOCK_HEADER]), None
        elif SENTINEL_HEADER not in said and entry.value is not None:
            table, clocks = block.decode_clocked(entry.value)
            yield NEVER, table if clocks is None else table.append_column(BEFORE, pa.array(clocks))


def late_rows(rows: list[Row]) -> set[int]:
    """Rows that are older than the clock of their partition, as rows before them have made it."""
    found, seen = set(), dict[int, int]()
    for row in sorted(rows, key=lambda row: row.comes):
        if row.at < seen.get(row.partition, NEVER) - DELAY * SECOND:
            found.add(row.n)
        seen[row.partition] = max(seen.get(row.partition, NEVER), row.at)
    return found


def micros(text: str) -> int:
    at = datetime.fromisoformat(text)
    return round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * SECOND)
