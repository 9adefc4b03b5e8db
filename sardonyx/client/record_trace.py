"""Where a record of a source is on its way through a job, in which batches it was worked, and where it went. Asked from Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from sardonyx.client.progress import asked, holding, shown
from sardonyx.client.record_windows import FIXED, windows_in
from sardonyx.core.batch_origins import decode, writer_of
from sardonyx.core.clocks import NEVER
from sardonyx.core.errors import SardonyxError, SetupError
from sardonyx.core.graph import Graph
from sardonyx.core.notes import JobNote
from sardonyx.core.positions import Partition, Position
from sardonyx.core.progress import Look
from sardonyx.core.record_way import ReadWritten, Seen, TaskWay, Told, record_way
from sardonyx.core.source_fronts import Sources
from sardonyx.core.spec import JobSpec
from sardonyx.core.timing import length
from sardonyx.core.trace import State, trace
from sardonyx.state.release import gives_once

if TYPE_CHECKING:
    from sardonyx.client.dead_letters import DeadLetters
    from sardonyx.core.graph import Link, Stage
    from sardonyx.core.record_way import Written
    from sardonyx.runtime.settings import Settings
    from sardonyx.zookeeper.session import ZooKeeperSession


TELEMETRY = 10.0
"""Seconds to read what peers have told of their batches."""
YOURS = 10.0
"""Seconds to read topics of users. They may be long, and in some partitions the job may have written nothing for long."""
MOST_READ = 20
"""Messages whose rows are looked at, to tell the windows that hold them."""

Values = Callable[["Link", Mapping[int, Sequence[int]]], "list[bytes] | None"]


class ReadOnWay(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch has read of one partition: the record, or what was made of it, is in there."""

    link: str
    partition: int
    start: int
    end: int
    """The offset after the last one."""


class BatchOnWay(msgspec.Struct, frozen=True, kw_only=True):
    """A batch on the way of a record."""

    peer: str
    assignment: int
    """The number of the log entry that gave the peer the task."""
    slot: int
    at: float | None = None
    """When it wrote, seconds since 1970."""
    rows: int
    """How many rows it has read, over all links and partitions."""
    read: list[ReadOnWay]


class OutputOnWay(msgspec.Struct, frozen=True, kw_only=True):
    """What batches have written to one partition of a link, or of a user's topic whose records say which batch wrote them."""

    link: str
    topic: str
    partition: int
    offsets: list[tuple[int, int]]
    """The offsets of the messages: the first and the last one of each stretch."""
    rows: int
    """How many rows they hold."""
    sure: bool
    """Whether what was made of the record is certainly in there: the batches have read no other row."""
    yours: bool = False
    """Whether it is a topic of the user's."""
    files: list[str] = []
    """If it is a listing of files: the names of those that are listed there, in the folder of the output."""


class TaskOnWay(msgspec.Struct, frozen=True, kw_only=True):
    """One task on the way of a record."""

    task: str
    state: State
    """``unread``: it reads the source, and has not come so far. ``waiting``: the record, or what was made of it, is before the
    task. ``held``: it may be in an open window, or wait for other rows. ``through``: the task has worked it, or it ended before.
    ``unknown``: the job keeps no lineage."""
    why: str = ""
    until: int | None = None
    """If ``held``: the clock by which it is out at the latest, as :attr:`sardonyx.client.clocks.TaskClock.clock`. None: no clock
    lets it out, but the end of the input, or rows that fill its window."""
    windows: list[tuple[int, int]] = []
    """If ``held`` by windows of fixed times: those that may hold it, start and end as ``until``. Empty: it cannot be told."""
    batches: list[BatchOnWay] = []
    """Those that have worked the record, or what was made of it, and have left a sign. Only of a job that keeps its lineage."""
    outputs: list[OutputOnWay] = []
    """What these batches have written, as far as it is still there, and of a task with windows or a join what later ones have
    while it held the record: what was made of the record is among it, if anything was.
    """
    dropped: bool = False
    """Whether it is certain that the batches which worked it have written nothing: the function gave nothing for it, no condition
    let it through, or ``on_error`` has it skipped. It is not a dead letter."""
    unknown: list[str] = []
    """What cannot be known, each with the reason."""


class DeadOnWay(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter that a record has become."""

    task: str
    number: int
    """The number of the letter, as ``sardonyx dlq show`` takes it."""
    code: str
    error: str
    sure: bool = True
    """Whether it is of this record. If not, it may be of another one that was worked with it."""


class RecordTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record is on its way through a job."""

    job: str
    lineage: bool
    source: str
    partition: int
    offset: int
    ordinal: bool = False
    """Whether the job's clocks count rows, and are no times."""
    tasks: list[TaskOnWay]
    """Those that rows of its source come to, in their order."""
    letters: list[DeadOnWay] = []
    """The letters of tasks that read the source itself; of later tasks those of rows from messages that may hold some of it."""


def record_trace(
    zk: ZooKeeperSession,
    settings: Settings,
    job: str,
    spec: JobSpec,
    note: JobNote | None,
    record: tuple[str, int, int],
) -> RecordTrace:
    """Where a record is, without its dead letters, and how it came there.

    Args:
        zk: a session with the job's deployment.
        settings: of the deployment; its Kafka is asked.
        job: the job's id.
        spec: the job as data.
        note: its status.
        record: the source, the partition, the offset.

    Raises:
        SardonyxError: ``SX-PROGRESS-GONE``; ``SX-TRACE-SOURCE``: the job has no such source; ``SX-TRACE-RECORD``: it has no such
            record.
        SetupError: as of :func:`sardonyx.client.progress.job_progress`.
    """
    graph, look = asked(zk, settings, job, spec, note)

    def end(place: Partition) -> int:
        from queues.topic_log import stable_end

        return stable_end(settings, place)

    found = trace_of(job, graph, look, record, end)
    if not graph.lineage:
        return found
    from queues import marked_topics
    from queues.written import WrittenReader

    with closing(WrittenReader(settings)) as reader, ExitStack() as stack:
        yours = cache(lambda: stack.enter_context(closing(WrittenReader(settings, YOURS))))

        def read(link: Link, enough: Callable[[Sequence[Written]], bool]) -> dict[int, Seen]:
            partitions = partitions_of(link, look)
            try:
                if link.owned:
                    return reader.read(link, partitions, enough)
                partitions = marked_topics.partitions(settings, link.topic)  # some may have been added
                return yours().read(link, partitions, enough, writer_of(job, link.source))
            except SetupError as error:
                if error.code not in (["SX-KAFKA-DENIED"] if link.owned else ["SX-KAFKA-DENIED", "SX-KAFKA-REFUSED"]):
                    raise
                return {number: Seen([], 0, 0, to_end=False, why=error.message) for number in range(partitions)}

        def values(link: Link, places: Mapping[int, Sequence[int]]) -> list[bytes] | None:
            try:
                return reader.values(link, places)
            except SetupError as error:
                if error.code != "SX-KAFKA-DENIED":
                    raise
                return None

        changed = note is not None and note.revision > 1
        return with_way(found, graph, look, read, _Telling(settings, job), values, changed=changed)


def partitions_of(link: Link, look: Look) -> int:
    """How many partitions of a link may hold rows: a queue had more once, if the job's number of partitions has fallen."""
    held = look.first.get(link.target, {})
    return max([look.facts[link.name].partitions, *(place.number + 1 for place in held if place.topic == link.topic)])


def trace_of(
    job: str, graph: Graph, look: Look, record: tuple[str, int, int], end: Callable[[Partition], int]
) -> RecordTrace:
    """Put the way of a record together.

    Args:
        job: the job's id.
        graph: of the job.
        look: what is known of its tasks.
        record: the source, the partition, the offset.
        end: tells up to which offset a partition of a source has records. It is not called if a task has read the record.

    Raises:
        SardonyxError: ``SX-TRACE-SOURCE``, ``SX-TRACE-RECORD``.
    """
    sources, (source, partition, offset) = Sources(graph), record
    names = shown(graph)
    number = next((number for number, topic in enumerate(sources.names) if source in (topic, names[topic])), None)
    if number is None:
        raise SardonyxError(
            "SX-TRACE-SOURCE",
            f"job {job} does not read {source!r}",
            cause=f"its sources are {', '.join(names[topic] for topic in sources.names)}",
            fix="name one of them, with partition and offset: TOPIC[3]@4711",
        )
    _check_record(sources, look, number, names[sources.names[number]], partition, offset, end)
    found = trace(graph, sources, look, (number, partition, offset), holding=holding(graph), stated=graph.lineage)
    return RecordTrace(
        job=job,
        lineage=graph.lineage,
        source=names[sources.names[number]],
        partition=partition,
        offset=offset,
        ordinal=any(link.time is not None and link.time.kind == "ordinal" for link in graph.links),
        tasks=[TaskOnWay(task=each.task, state=each.state, why=each.why, until=each.until) for each in found],
    )


def with_way(
    found: RecordTrace,
    graph: Graph,
    look: Look,
    read: ReadWritten,
    told: Callable[[str], Sequence[Told]] = lambda _: (),
    values: Values = lambda *_: None,
    *,
    changed: bool = False,
) -> RecordTrace:
    """The same with the batches that have worked the record, and what they have written.

    Args:
        found: where the record is.
        graph: of the job, which keeps its lineage.
        look: what is known of its tasks.
        read: reads what tasks have written.
        told: what peers have told of the batches of a task.
        values: gives the messages of a link at some offsets of its partitions; None: not all are there.
        changed: whether the job has had another version.
    """
    topic = next(topic for topic, name in shown(graph).items() if name == found.source)
    ways = record_way(
        graph,
        look.facts,
        look.first,
        (topic, found.partition, found.offset),
        read,
        ended=look.ended,
        holding=holding(graph),
        told=told,
        done={e.task for e in found.tasks if e.state == "through" and gives_once(graph.stage(e.task).task)},
        changed=changed,
    )
    by_task = {way.task: way for way in ways}
    tasks = []
    for each in found.tasks:
        way = by_task.get(each.task)
        if way is None:
            tasks.append(each)
            continue
        told_of = _with_way(each, way)
        if each.state == "held":
            stage = graph.stage(way.task)
            windows = _open_windows(stage, way, look.first.get(stage.name, {}), values)
            told_of = msgspec.structs.replace(told_of, windows=windows)
        tasks.append(told_of)
    return msgspec.structs.replace(found, tasks=tasks)


def _open_windows(
    stage: Stage, way: TaskWay, positions: Mapping[Partition, Position | None], values: Values
) -> list[tuple[int, int]]:
    """The windows that may hold what came of a record to a task: those of all rows of the messages which may hold it, without
    those that are closed and not kept for late rows any more. Empty: it cannot be told.
    """
    window = stage.task.window
    count = sum(map(len, way.places.values()))
    if window is None or window.kind not in FIXED or not way.whole or count > MOST_READ:
        return []
    waits = length(window.grace) + length(window.allowed_lateness)
    found: set[tuple[int, int]] = set()
    for link in stage.ingress:
        by_partition: dict[int, list[int]] = {}
        for place in sorted(way.places.get(link.name, ())):
            by_partition.setdefault(place.partition, []).append(place.offset)
        for number, offsets in by_partition.items():
            messages = values(link, {number: offsets}) if link.kind == "internal" else None
            there = None if messages is None else windows_in(window, link, messages)
            if there is None:
                return []
            position = positions.get(Partition(link.topic, number))
            closed = NEVER if position is None else position.clock.seen
            found |= {each for each in there if each[1] + waits > closed}
    return sorted(found)


class _Telling:
    """What peers have told of the batches of a job, read when it is first asked for."""

    def __init__(self, settings: Settings, job: str) -> None:
        self._settings, self._job = settings, job
        self._found: dict[str, list[Told]] | None = None

    def __call__(self, task: str) -> Sequence[Told]:
        if self._found is None:
            from queues.telemetry import batches_of

            self._found = {}
            for each in batches_of(self._settings, self._job, TELEMETRY) or ():
                origin = decode(each.made_from.encode() or None)
                if origin is not None:
                    self._found.setdefault(each.task, []).append(Told(each.at, each.rows_out, each.dead, origin))
        return self._found.get(task, ())


def _with_way(task: TaskOnWay, way: TaskWay) -> TaskOnWay:
    batches = []
    for each in way.batches:
        peer, assignment, slot = each.by.rsplit("/", 2)
        read = [
            ReadOnWay(link=link, partition=span.partition, start=span.start, end=span.end) for link, span in each.read
        ]
        batches.append(
            BatchOnWay(peer=peer, assignment=int(assignment), slot=int(slot), at=each.at, rows=each.rows, read=read)
        )
    outputs = [
        OutputOnWay(
            link=each.link.name,
            topic=each.link.topic,
            yours=not each.link.owned,
            partition=each.partition,
            offsets=stretches(each.offsets),
            rows=each.rows,
            sure=each.sure,
            files=list(each.files),
        )
        for each in way.outputs
    ]
    return msgspec.structs.replace(
        task, batches=batches, outputs=outputs, dropped=way.dropped, unknown=list(dict.fromkeys(way.unknown))
    )


def stretches(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending offsets as stretches without a gap: the first and the last one of each."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1] = found[-1][0], offset
        else:
            found.append((offset, offset))
    return found


def _check_record(
    sources: Sources, look: Look, number: int, shown: str, partition: int, offset: int, end: Callable[[Partition], int]
) -> None:
    """Raise if there is no such record: nothing true can be said of it."""
    place = Partition(sources.names[number], partition)
    known = [held for reader in sources.readers[number] for held in look.first[reader] if held.topic == place.topic]
    if place not in known:
        partitions = 1 + max((each.number for each in known), default=-1)
        raise SardonyxError(
            "SX-TRACE-RECORD",
            f"{shown} has no partition {partition}",
            cause=f"it has {partitions}; they are counted from 0",
            fix="name one of these partitions" if partitions else "see that the topic exists",
        )
    positions = [look.first[reader].get(place) for reader in sources.readers[number]]
    read = max((position.offset for position in positions if position is not None), default=0)
    if offset < read:
        return
    ends = max(end(place), read)  # a broker that has just lost its leadership may tell an older end
    if offset >= ends:
        raise SardonyxError(
            "SX-TRACE-RECORD",
            f"{shown}[{partition}] has no record at offset {offset:,} yet",
            cause=f"its records end before offset {ends:,}",
            fix="name an earlier offset, or ask again when the record is written and its transaction committed",
        )


def with_letters(found: RecordTrace, graph: Graph, letters: Callable[[], DeadLetters]) -> RecordTrace:
    """The same with the dead letters that the record has become: in a task that reads the source itself, and in later tasks those
    of rows from messages that may hold something of it.

    Args:
        found: where the record is.
        graph: of the job.
        letters: gives those of the deployment; not called if no such task keeps any.
    """
    dead = []
    for stage in graph.stages:
        if not any(link.kind == "dead" for link in stage.egress):
            continue
        own = any(link.topic == found.source for link in stage.ingress)
        topics = {link.topic for link in stage.ingress}
        before = [each for task in found.tasks for each in task.outputs if each.topic in topics]
        if not own and not before:
            continue
        for stored in letters().each(found.job, stage.name):
            origin = stored.letter.origin
            place = origin.topic, origin.partition, origin.offset
            sure = place == (found.source, found.partition, found.offset)
            holds = [each for each in before if _holds(each, *place)]
            if sure or holds:
                failure = stored.letter.failure
                sure = sure or all(each.sure and each.rows == 1 for each in holds)
                dead.append(
                    DeadOnWay(
                        task=stage.name, number=stored.offset, code=failure.code, error=failure.message, sure=sure
                    )
                )
    failed = {letter.task for letter in dead}
    tasks = [msgspec.structs.replace(each, dropped=each.dropped and each.task not in failed) for each in found.tasks]
    return msgspec.structs.replace(found, tasks=tasks, letters=dead)


def _holds(output: OutputOnWay, topic: str, partition: int, offset: int) -> bool:
    there = (output.topic, output.partition) == (topic, partition)
    return there and any(first <= offset <= last for first, last in output.offsets)


__all__ = [
    "BatchOnWay",
    "DeadOnWay",
    "OutputOnWay",
    "ReadOnWay",
    "RecordTrace",
    "TaskOnWay",
    "record_trace",
    "trace_of",
    "with_letters",
    "with_way",
]
