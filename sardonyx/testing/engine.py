"""Runs a job in this process, task by task: the product's own code over links in memory. No thread, no service, no clock.

Of each task one peer at a time holds all partitions. It does the steps of :mod:`peer.task_loop`: it cuts a batch, applies the
task, and writes results, positions, state and statements of the clock at once (:class:`peer.batch_commit.BatchCommit`). A
peer that crashes leaves what is written. The next one begins with that, and with nothing else.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast

import msgspec

from peer.batch_commit import BatchCommit
from peer.batch_result import Result
from peer.preparation import assemble
from peer.prepared_task import PreparedTask
from peer.sinks import sentinel_message
from peer.step_timer import StepTimer
from peer.timekeeper import Timekeeper
from queues.messages import ROWS_HEADER, Outgoing, Records, numbered
from sardonyx.connectors.base import Split
from sardonyx.core.chains import WriterChains
from sardonyx.core.cycles import inner_links, standing
from sardonyx.core.errors import JobFailed, SardonyxError, SetupError, failure_of
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Cycle, Graph, Link, Stage, graph_of
from sardonyx.core.notes import Assignment
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.state.times import microseconds
from sardonyx.testing.memory import MemoryReader, SetTime, StateLog, Topics
from sardonyx.testing.result import TaskResult, no_task
from sardonyx.testing.rows import GivenRows, Rows, messages_of, table_of
from sentinel import rules
from spark_tasks.code import CodeBundle
from spark_tasks.on_demand import SparkOnDemand

if TYPE_CHECKING:
    from peer.slot_clients import SlotClients
    from peer.task_session import TaskSession
    from spark_tasks.session import SparkSession

DEPLOYMENT = "test"
PEER = "test-0"

Point = Literal["settled", "applied", "committed"]
"""Where a peer crashes: with nothing to do; with a batch that is not written; with one that is written and that it does not
know of yet.
"""

T = TypeVar("T")


class Crashed(Exception):
    """The peer of a task has crashed."""


class _Allowed:
    """What the coordinator allows a peer: everything."""

    may_commit = True

    def check(self) -> None:
        pass


class _Clients(NamedTuple):
    """What a peer reads with; it asks no group, since no other peer holds partitions of the task."""

    reader: MemoryReader
    clocks: None = None


class TaskRun:
    """One task of a run. It stands for :class:`peer.task_session.TaskSession`, of one peer after the other.

    Args:
        engine: the run.
        stage: the task.
    """

    def __init__(self, engine: Engine, stage: Stage) -> None:
        self._engine = engine
        self.stage = stage
        self.result = TaskResult()
        self.ended = False
        self._committed: dict[Partition, tuple[int, str]] = {}
        self._assignments = 0
        self._lives = 0
        self.begun = False
        """Whether a peer has it."""
        self._applied: Result | None = None
        self._commits = 0
        self.crashes: Point | None = None
        """Where its peer crashes next."""
        self.work: PreparedTask
        self.reader: MemoryReader
        # of a session, for `BatchCommit`
        self.clock = StepTimer()
        self.handle = _Allowed()
        self.store = None
        self.times: Timekeeper | None = None

    @property
    def positions(self) -> dict[Partition, Position]:
        """What is committed, as the broker would say it."""
        return {place: Position.read(*held) for place, held in self._committed.items()}

    def answer(self) -> dict[Partition, Position | None]:
        """The same for all partitions that the task reads."""
        sizes = {link.topic: self._engine.facts[link.name].partitions for link in self.stage.ingress}
        positions = self.positions
        places = [Partition(topic, number) for topic, count in sizes.items() for number in range(count)]
        return {place: positions.get(place) for place in places}

    def open(self) -> None:
        """Another peer takes the task, and knows only what is written."""
        self.close()
        self._assignments += 1
        engine, stage = self._engine, self.stage
        assignment = Assignment(id=self._assignments, job=engine.spec.name, task=stage.name, slot=0)
        self.work = engine.assembled(stage, assignment)
        self.begun = True
        for link in stage.ingress:
            if link.kind == "splits" and link.source in engine.given:
                self.work.source = GivenRows.reader()
        self.take_slot()
        if self.work.hooks is not None:
            self.work.give(self.work.hooks.start())

    def take_slot(self) -> None:
        """Begin to read at the committed positions."""
        engine, work = self._engine, self.work
        links = {link.name: (link, engine.facts[link.name]) for link in self.stage.ingress}
        self.reader = MemoryReader(
            engine.topics,
            self.positions,
            links,
            engine.elect,
            self.stage.task.rows_per_batch,
            timed=work.timed,
            lineage=work.sources is not None,
            most_rows=work.most_rows,
            runtime=engine.time,
        )
        for link in self.stage.ingress:
            if link.topic in engine.reached:
                self.reader.reach(link.topic, engine.reached[link.topic], _delay(link))
        self._lives += 1
        self._chains = WriterChains(work.assignment.id, 0, self._lives, work.peer)
        clients = cast("SlotClients", _Clients(self.reader))
        self.times = (
            Timekeeper(
                self.stage,
                engine.facts,
                clients,
                work.peer,
                runtime=engine.time,
                every=0.0,
                front_every=0.0,
                sources=work.sources,
            )
            if work.timed
            else None
        )
        self._batch = BatchCommit(cast("TaskSession", self))

    def close(self) -> None:
        """Let the peer go."""
        if self.begun:
            self.begun = False
            self.work.close()
            if self.work.hooks is not None:
                self.work.hooks.stop()

    def go_on(self) -> bool:
        """Do everything that there is to do. Whether there was anything."""
        if self.ended:
            return False
        if not self.begun:
            self.open()
        before, moved = self._commits, False
        while self._step():
            moved = True
        self._batch.between()
        if rules.sealable({place: self._drained(place) for place in self.reader.everything}):
            self._seal()
        return moved or self._commits > before or self.ended

    def crash(self, at: Point) -> None:
        """Crash the peer, now or in its next batch. A task that has ended has none."""
        if self.ended:
            return
        if at == "settled":
            self.open()
        else:
            self.crashes = at

    def _drained(self, place: Partition) -> str | None:
        held = self._committed.get(place)
        return None if held is None else Position.read(*held).drained

    def _step(self) -> bool:
        """One batch, as :meth:`peer.task_loop.TaskLoop.step` does it. False: there is nothing to do."""
        reader, shards, size = self.reader, self.work.shards, self.stage.task.rows_per_batch
        reader.poll()
        pending = shards.due(reader.incarnations) if shards is not None else set()
        if not pending and reader.batch_due_in(size, 0.0) > 0:
            return False
        batch = reader.cut(size)
        if shards is not None:
            reader.add(batch, shards.together([*batch.positions, *pending]))
        self.clock.start()
        if not batch.positions:
            return True
        try:
            self._applied, messages = self._batch.apply(batch)
            self._crash_at("applied")
            self._batch.commit(batch, self._applied, messages)
        except Crashed:
            self.open()
        finally:
            self._applied = None
        return True

    def _crash_at(self, point: Point) -> None:
        if self.crashes == point:
            self.crashes = None
            raise Crashed

    def write(self, messages: Sequence[Outgoing | Records], positions: Mapping[Partition, Position]) -> None:
        """One transaction: messages, and the positions that they were made from."""
        topics = {link.topic for link in self.stage.counted}
        for message in numbered(messages, self._chains, topics):
            self._engine.topics.write(message)
        self._committed |= {place: (at.offset, at.metadata()) for place, at in positions.items()}
        self._commits += 1
        self._chains.committed()
        self.reader.committed(positions)
        if self._applied is not None:
            self.result.add(self._applied)
            self._crash_at("committed")

    def meanwhile(self, work: Callable[[], T]) -> T:
        """Nothing else happens meanwhile."""
        return work()

    def _seal(self) -> None:
        """Everything is read: say so to the tasks that follow."""
        sentinel = str(uuid.uuid4())
        messages = [message for sink in self.work.sinks for message in sink.sentinels(sentinel)]
        self.write(messages, self.positions)
        for sink in self.work.sinks:
            sink.sealed()
        self.close()
        self.ended = True


class Engine:
    """A run of a job.

    Args:
        spec: the job; its outputs write nothing outside this process.
        code: where the code of its functions is; None: nowhere.
        session: gives a Spark session. It is asked only if a task has a function.
        topics: number of partitions of the topics that Kafka inputs read, by input. Others have one.
        now: seconds since 1970.
    """

    def __init__(
        self,
        spec: JobSpec,
        code: Path | bytes | None,
        session: Callable[[], SparkSession],
        *,
        topics: Mapping[str, int] | None = None,
        now: float,
    ) -> None:
        self.spec = spec
        self.time = SetTime(now)
        self.topics = Topics(self.time)
        self.graph: Graph = graph_of(spec, DEPLOYMENT, spec.name)
        self.given: set[str] = set()
        """The inputs that were given rows."""
        self.reached: dict[str, int] = {}
        """By topic of an input: where the test has brought its clock, without rows."""
        sizes = topics or {}
        self.facts = {
            link.name: LinkFacts(spec.partitions if link.owned else sizes.get(link.source, 1))
            for link in self.graph.links
        }
        self.tasks = {stage.name: TaskRun(self, stage) for stage in self.graph.stages}
        self._session = session
        self._settings: Settings = load_settings(deployment=DEPLOYMENT)
        self._folder = tempfile.TemporaryDirectory(prefix="sardonyx-test-")
        folder = Path(self._folder.name)
        self._code = CodeBundle.open(code, spec.code, folder) if code is not None and spec.code is not None else None
        self._leaders: dict[str, str] = {}

    def assembled(self, stage: Stage, assignment: Assignment) -> PreparedTask:
        """A task as a new peer has it."""
        spark = SparkOnDemand(self._session) if stage.functions else None
        return assemble(
            self._settings,
            spark,
            PEER,
            assignment,
            self.graph,
            self.facts,
            self._code,
            lambda link: StateLog(self.topics, link),
            Path(self._folder.name) / "state",
            self.time,
        )

    def elect(self, link: str, uuid: str) -> str:
        """The sentinel that counts: the first one that a reader has seen."""
        return self._leaders.setdefault(link, uuid)

    def settle(self) -> None:
        """Let all tasks work until nothing is left to do.

        Raises:
            JobFailed: the error that would have failed the job on a cluster.
            SetupError: Spark cannot start, or has ended.
        """
        moved = True
        while moved:
            moved = False
            for task in self.tasks.values():
                with self._failing(task.stage.name):
                    moved |= task.go_on()
            if not moved:
                moved = any(self._end_loop(cycle) for cycle in self.graph.cycles)

    def _end_loop(self, cycle: Cycle) -> bool:
        """Write the sentinels of a loop's feedback links, if it is proven that it has ended. Whether that was so."""
        links = [link for link in inner_links(self.graph, cycle) if link.feedback and link.name not in self._leaders]
        answers = {name: self.tasks[name].answer() for name in cycle.stages}
        if not links or not standing(self.graph, cycle, self.facts, answers).quiescent:
            return False
        sentinel = str(uuid.uuid4())
        for link in links:
            for number in range(self.facts[link.name].partitions):
                self.topics.write(sentinel_message(link, number, sentinel, PEER))
        return True

    @contextlib.contextmanager
    def _failing(self, task: str) -> Iterator[None]:
        """An error of a task fails the job."""
        try:
            yield
        except SetupError:
            raise
        except SardonyxError as error:
            where = {"job": self.spec.name, "task": task}
            raise JobFailed.from_failure(failure_of(error, where=where)) from error

    def close(self) -> None:
        """Let all peers go."""
        for task in self.tasks.values():
            task.close()
        self._folder.cleanup()

    def run_of(self, task: str) -> TaskRun:
        """The run of a task, which may be fused with others.

        Raises:
            SardonyxError: ``SX-TEST-TASK``.
        """
        for run in self.tasks.values():
            if task in {run.stage.name, *(each.name for each in run.stage.fused)}:
                return run
        raise no_task(self.spec, f"it has no task {task!r} that runs", list(self.tasks))

    # --- inputs ---

    @property
    def inputs(self) -> list[str]:
        return [task.name for task in self.spec.catalog if task.type == "input"]

    def reads_topic(self, source: str) -> bool:
        """Whether an input reads a Kafka topic."""
        return self._links_of(source)[0].kind == "input"

    def reach(self, source: str, time: int) -> None:
        """Bring the clock of an input that reads a topic up to a time."""
        for link in self._links_of(source):
            self.reached[link.topic] = time
            for run in self.tasks.values():
                if run.begun and link in run.stage.ingress:
                    run.reader.reach(link.topic, time, _delay(link))

    def give(self, source: str, rows: Rows, partition: int = 0) -> None:
        """Put rows where an input reads them."""
        task = self.spec.task(source)
        self.given.add(source)
        links = self._links_of(source)
        if links[0].kind == "input":
            for key, value in messages_of(source, links[0].options, rows):
                self.topics.append(Partition(links[0].topic, partition), value, key)
            return
        for run in self.tasks.values():
            if run.stage.name == source and run.begun:
                run.work.source = GivenRows.reader()
        self._write_splits(links[0], GivenRows(table_of(task, rows), task.rows_per_batch).splits())

    def end(self, source: str) -> None:
        """An input ends with what was given. If nothing was, it reads its own rows."""
        links = self._links_of(source)
        if links[0].kind == "input":
            self._end_topic(links)
            return
        (link,) = links
        if source not in self.given:
            run = self.tasks[source]
            with self._failing(source):
                if not run.begun:
                    run.open()
                assert run.work.source is not None  # noqa: S101 (for the type checker: splits have a source)
                self._write_splits(link, run.work.source.splits())
        sentinel = str(uuid.uuid4())
        for number in range(self.facts[link.name].partitions):
            self.topics.write(sentinel_message(link, number, sentinel, PEER))

    def _links_of(self, source: str) -> list[Link]:
        return [link for link in self.graph.links if link.source == source and link.kind in ("input", "splits")]

    def _end_topic(self, links: Iterable[Link]) -> None:
        for link in links:
            count = self.facts[link.name].partitions
            ends = [self.topics.end(Partition(link.topic, number)) for number in range(count)]
            self.facts[link.name] = LinkFacts(count, end=ends)
            for run in self.tasks.values():
                if run.begun and link in run.stage.ingress:
                    run.take_slot()

    def _write_splits(self, link: Link, splits: Iterable[Split]) -> None:
        """Write the splits of an input, as :class:`peer.input_split.InputSplitter` does, but all of them to be read now."""
        for number, split in enumerate(splits):
            headers = [] if split.rows is None else [(ROWS_HEADER, str(split.rows).encode())]
            place = Partition(link.topic, number % self.facts[link.name].partitions)
            self.topics.append(place, msgspec.json.encode(split), None, headers)


def _delay(link: Link) -> int:
    spec = link.time
    return 0 if spec is None or spec.kind == "ordinal" else microseconds(spec.delay)
