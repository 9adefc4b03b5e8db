"""What must be true of jobs that follow each other: one goes on where another was stopped, or from a checkpoint of it.

Each row has its effect once over the whole chain. What is counted for a job begins with what was counted for the one before: all
of it, if that was stopped; else the rows that had come before the time of the checkpoint. What that one has given for later
ones is taken back, and given again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coordinator.core.state import Job, State
from sardonyx.core import node_paths
from sardonyx.core.errors import Failure
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, first_clock
from sardonyx.core.units import seconds
from sardonyx.state.columns import ROWS, SLICE
from tests.simulation.checkpoint_oracle import times_on
from tests.simulation.oracle import Oracle
from tests.simulation.time_oracle import BEFORE, Expected, TimeOracle, Window, blocks, late_rows, micros
from tests.simulation.timed_plans import SECOND, SIZE

if TYPE_CHECKING:
    from tests.simulation.going_back import GoingBackWorld

Panes = dict[Window, dict[int, Any]]
"""Results by window and by the number of their pane."""


class Leg(NamedTuple):
    """A job of the chain."""

    job: str
    before: str
    """The job that it goes on from; empty: it is the first one."""
    at: int | None
    """The time of the checkpoint from which it does; None: from where that one was stopped."""
    facts: Mapping[str, LinkFacts]
    """Of its links when it began."""


@dataclass
class Counted(Expected):
    """What the windows of a task have counted by a time."""

    passed: Counter[Window] = field(default_factory=Counter)
    """Rows before that time that came when the clock had passed it, and were not late for the job. They are in no checkpoint, and
    are not read again."""


class ChainOracle(TimeOracle):
    """Watches over a history of such jobs."""

    _world: GoingBackWorld

    def __init__(self, *of_history: Any) -> None:
        super().__init__(*of_history)
        self.legs: dict[str, Leg] = {}
        """All jobs that ever ran, in their order."""
        self.status: dict[str, str] = {}
        """How each stood last: some are forgotten."""
        self.errors: dict[str, Failure | None] = {}
        self._bases: dict[tuple[str, str], Counted] = {}

    def _decide(self, n: int) -> None:
        super()._decide(n)
        for name, job in self.state.jobs.items():
            if job.facts is not None:
                self.status[name], self.errors[name] = job.status, job.error
                if name not in self.legs:
                    self._went_back(name, job)
                    self.legs[name] = Leg(name, job.resumes, job.resumes_at, job.facts)

    def _went_back(self, name: str, job: Job) -> None:
        """A job goes on from the last checkpoint that there is at or before the time that the user asked for."""
        wanted = self._world.wanted.get(name)
        if wanted is None:
            assert job.resumes_at is None, f"{name} goes on from a checkpoint at {job.resumes_at}, and was not asked to"
            return
        known = [point.at for point in self.state.jobs[job.resumes].checkpoints if point.at <= wanted]
        assert job.resumes_at == max(known), (
            f"{name} goes on from {job.resumes_at}: it was to from {wanted}, of {known}"
        )

    def since(self, leg: Leg | None) -> int | None:
        """The time of the checkpoint from which a job, or the last one before it that did, goes on; None: there is none."""
        while leg is not None and leg.at is None:
            leg = self.legs.get(leg.before)
        return None if leg is None else leg.at

    def job_of(self, link: Link) -> str:
        """The job that a link belongs to."""
        return link.topic.split(".")[1]

    # While it settles

    def left_over(self, world: Any) -> list[str]:
        """Before the last job is stopped, nothing is asked for any more, and all rows are read."""
        found = super().left_over(world)
        found += [f"{name} is to be followed by {job.into}" for name, job in self.state.jobs.items() if job.into]
        found += [f"request {name} lies in the inbox" for name in self.children(node_paths.INBOX)]
        latest = self._world.latest()
        asked = next(reversed(self._world.asked), latest)
        known = self.state.jobs.get(asked)
        if known is not None and known.refused:
            found.append(f"{asked} was refused, and is submitted again")
        leg, job = self.legs.get(latest), self.state.jobs.get(latest)
        if leg is None or job is None or job.ended:
            return found
        stage = self.kafka.graphs[latest].stages[0]
        (link,) = [link for link in stage.ingress if link.kind == "input"]
        for place, position in self.kafka.group(stage, latest).positions().items():
            start = (leg.facts[link.name].start or [])[place.number]
            if (start if position is None else position.offset) < self.kafka.input[place.number]:
                found.append(f"{latest} has not read {place}")
        return found

    # What must have been counted

    def base(self, leg: Leg, task: str) -> Counted:
        """What the job before had counted when this one goes on from it."""
        if not leg.before:
            return Counted()
        key = leg.job, task
        if key not in self._bases:
            self._bases[key] = self.counted(leg.before, task, leg.at)
        return self._bases[key]

    def counted(self, job: str, task: str, until: int | None = None) -> Counted:
        """What a task has counted, and what the jobs before had; of the rows before a time, if one is given."""
        leg, found = self.legs[job], Counted()
        stage = self.kafka.graphs[job].stage(task)
        link, window = stage.ingress[0], stage.task.window
        assert window is not None
        base = self.base(leg, task)
        found.counts, found.closing, found.passed = +base.counts, set(base.closing), +base.passed
        size, (grace, allowed) = round(seconds(str(window.size)) * SECOND), _slack(stage)
        for number in range(leg.facts[link.name].partitions):
            for row, at, before in self._rows(leg, link, number):
                start = at // size * size
                weight, key = row.get(ROWS, 1), (row["k"], start)
                if start + size + grace + allowed <= before:
                    found.late += weight
                elif until is not None and at >= until:
                    continue
                elif until is not None and before >= until:
                    found.passed[key] += weight
                else:
                    found.counts[key] += weight
                    if start + size + grace > before:
                        found.closing.add(key)
        return found

    def _rows(self, leg: Leg, link: Link, number: int) -> Iterator[tuple[dict[str, Any], int, int]]:
        """The rows that came to a shard, each with its time and the clock before it, without those that a checkpoint holds."""
        clock, since = first_clock(leg.facts[link.name], number).value, self.since(leg)
        for said, table in blocks(self.kafka.broker.logs[Partition(link.topic, number)]):
            clock = max(clock, said)
            if table is None or not table.num_rows:
                continue
            for row, at in zip(table.to_pylist(), times_on(link, table), strict=True):
                if since is None or SLICE in row or at >= since:
                    yield row, at, max(clock, row.get(BEFORE, clock))

    # In the end

    def at_the_end(self, world: Any) -> None:
        """All jobs but the last one were stopped or rolled back, and that one has come to its end."""
        legs = list(self.legs.values())
        last = legs[-1]
        for leg, after in itertools.pairwise(legs):
            wanted = "killed" if after.at is not None else "stopped"
            assert self.status[leg.job] == wanted, (
                f"{leg.job} is {self.status[leg.job]}, and {after.job} goes on from it"
            )
            assert after.before == leg.job, f"{after.job} does not go on from {leg.job}"
        well = self.status[last.job] in ("completed", "stopped")
        assert well, f"{last.job} is {self.status[last.job]}: {self.errors[last.job]}"
        Oracle.at_the_end(self, world)
        segments = list(_segments(legs))
        for segment in segments:
            self._read_once(segment, is_last=segment is segments[-1])
        self._given(segments)
        self._checkpoints(last)

    def _completed(self, job: str, graph: Graph, state: State) -> None:
        """What is late was so by its place in the log, and no clock stands before a row that is older."""
        counts, rows = state.jobs[job].tasks["count"].counts, {row.n: row for row in self._world.rows}
        late = self.counted(job, "count").late
        assert counts is not None
        assert counts.late + counts.dead == late, f"{counts.late} + {counts.dead} rows of {job} are late, not {late}"
        for stage in graph.stages:
            for link in stage.ingress:
                if link.kind == "internal":
                    self._stated(link, rows, late_rows(self._world.rows))

    def _read_once(self, segment: list[Leg], *, is_last: bool) -> None:
        """From a rollback to the next one no row is worked twice, and in the end each one was that is not in the checkpoint."""
        jobs, since = [leg.job for leg in segment], segment[0].at
        rows = {row.n: row for row in self._world.rows}
        needed = Counter(n for n, row in rows.items() if since is None or row.at >= since)
        seen: Counter[int] = Counter()
        count = 0
        for leg in segment:
            first = self.kafka.graphs[leg.job].stages[0]
            (link,) = [link for link in first.egress if link.kind == "internal"]
            for log in self._logs(link.topic):
                for _, table in blocks(log):
                    for row in table.to_pylist() if table is not None else ():
                        count += row.get(ROWS, 1)
                        if "n" in row:
                            seen[row["n"]] += 1
                            assert since is None or row["at"] >= since, f"{leg.job} has worked {row}, before {since}"
        assert seen <= Counter(list(rows)), f"{jobs} have worked rows {+(seen - Counter(list(rows)))} twice"
        assert count <= len(rows), f"{jobs} have worked {count} rows, and there are {len(rows)}"
        if is_last:
            combined = count - seen.total()  # those have no numbers; what came late stands among them as it was
            assert combined or needed <= seen, f"{jobs} have not worked rows {needed - seen}"
            assert needed.total() <= count, f"{jobs} have worked {count} of {needed.total()} rows"

    def _given(self, segments: list[list[Leg]]) -> None:
        """The last result of each window counts all its rows; what came before a checkpoint is given once, the rest once more."""
        tasks = self._counting(segments[-1][-1].job)
        found = Counted()
        held: Panes = {}
        own: Panes = {}
        for segment, after in itertools.zip_longest(segments, segments[1:]):
            own = self._panes({leg.job for leg in segment})
            for window, panes in own.items():
                first = min(panes)
                stay = {number: row for number, row in held.get(window, {}).items() if number < first}
                held[window] = stay | panes
            found = self._in_windows(self.counted(segment[-1].job, tasks[0].name), tasks)
            self._due(segment[0].at, own, found, tasks, None if after is None else after[0])
        self._against_the_rows(self.counted(segments[-1][-1].job, tasks[0].name).counts)
        for key, count in found.counts.items():
            beyond = 0 if key in own and len(tasks) == 1 else found.passed[key]
            self._window(key, range(count, count + beyond + 1), held.get(key, {}), found, own.get(key, {}))

    def _counting(self, job: str) -> list[Stage]:
        """The tasks of a job that have windows: one, or a second one that adds up the results of the first."""
        return [stage for stage in self.kafka.graphs[job].stages if stage.task.window is not None]

    def _in_windows(self, found: Counted, tasks: list[Stage]) -> Counted:
        """What the first of these tasks has counted, in the windows of the last one."""
        if len(tasks) == 1:
            return found
        longer = Counted(_longer(found.counts, 3 * SIZE * SECOND), set(), 0, _longer(found.passed, 3 * SIZE * SECOND))
        longer.closing = set(longer.counts)
        return longer

    def _due(self, since: int | None, own: Panes, found: Counted, tasks: list[Stage], after: Leg | None) -> None:
        """From a rollback to the next one each window is given that closes then, and none that has no row or had closed before.

        Args:
            since: the time of the rollback before; None: there was none.
            own: what was given since.
            found: what has been counted since.
            tasks: see :meth:`_counting`.
            after: the job that then went back; None: there was no further rollback.
        """
        strange = own.keys() - found.counts.keys() - found.passed.keys()
        assert not strange, f"windows {strange} have results, and no rows"
        size = SIZE * SECOND * (1 if len(tasks) == 1 else 3)
        grace, allowed = _slack(tasks[-1])
        # By its checkpoint, the second task has all results of the first that are due by then, and these are due later.
        till = None if after is None or after.at is None else after.at - (0 if len(tasks) == 1 else _slack(tasks[0])[0])
        wanted = found if after is None else self._in_windows(self.base(after, tasks[0].name), tasks)
        for key in wanted.counts:
            close = key[1] + size + grace
            begun = since is None or close > since
            assert key in own or not begun or (till is not None and close > till), f"{key} is not given again"
        for key in own:
            close = key[1] + size + grace + allowed
            assert since is None or close > since, f"{key} is given again, and had closed before {since}"

    def _window(self, key: Window, counts: range, panes: dict[int, Any], found: Counted, given: dict[int, Any]) -> None:
        """``panes``: all, without those that were taken back since they were ``given`` again. One that was final may be followed
        by others: a checkpoint before the end of the window counts it as an early one.
        """
        assert panes, f"{key} has no result, and {counts[0]} rows"
        assert sorted(panes) == list(range(len(panes))), f"panes of {key} are missing: {sorted(panes)}"
        hits = panes[max(panes)]["hits"]
        assert hits in counts, f"{key} counts {hits}, and should {counts[0]} to {counts[-1]}"
        finals = sum(row["final"] for row in given.values())
        assert not given or finals == (key in found.closing), f"{key} has {finals} final results: {panes}"

    def _against_the_rows(self, counts: Counter[Window]) -> None:
        """An answer that needs no link: rows that were not late where they came from count, and none counts twice."""
        size, late = SIZE * SECOND, late_rows(self._world.rows)
        most = Counter((row.key, row.at // size * size) for row in self._world.rows)
        assert counts <= most, f"windows count {+(counts - most)} rows too many"
        sure = [row for row in self._world.rows if Partition("rows", row.partition) not in self._idle]
        least = Counter((row.key, row.at // size * size) for row in sure if row.n not in late)
        assert least <= counts, f"windows lack {+(least - counts)} rows"

    def _panes(self, jobs: set[str]) -> Panes:
        """What some jobs have given."""
        found: Panes = {}
        for log in self._logs("out"):
            for entry in log.history():
                if entry.transaction is not None and entry.transaction.id.split("/")[1] in jobs:
                    row = msgspec.json.decode(entry.value or b"")
                    of = found.setdefault((row["k"], micros(row["window_start"])), {})
                    assert row["pane"] not in of, f"pane {row['pane']} of {row} comes twice"
                    of[row["pane"]] = row
        return found

    def _checkpoints(self, last: Leg) -> None:
        """Those of the last job, and all that the log has of others, are what the rows before their times have made."""
        oracle = self._world.checkpoints
        assert oracle is not None
        if last.job in self.state.jobs:  # otherwise the logs of its states are gone
            oracle.check(last.job, self.kafka.graphs[last.job], all_of_them=True)
        for name, job in self.state.jobs.items():
            if name in self.legs:
                oracle.check_logged(name, self.kafka.graphs[name], job.checkpoints)


def _segments(legs: list[Leg]) -> Iterator[list[Leg]]:
    """The jobs between two rollbacks."""
    starts = [n for n, leg in enumerate(legs) if n == 0 or leg.at is not None]
    for start, end in zip(starts, [*starts[1:], len(legs)], strict=True):
        yield legs[start:end]


def _slack(stage: Stage) -> tuple[int, int]:
    """How long the windows of a task wait after their end, and take late rows then, in microseconds."""
    window = stage.task.window
    assert window is not None
    grace, allowed = (seconds(str(length or "0 s")) for length in (window.grace, window.allowed_lateness))
    return round(grace * SECOND), round(allowed * SECOND)


def _longer(counts: Counter[Window], size: int) -> Counter[Window]:
    """The same, of longer windows."""
    found: Counter[Window] = Counter()
    for (key, start), count in counts.items():
        found[key, start // size * size] += count
    return found


__all__ = ["ChainOracle", "Counted", "Leg"]
