"""What the handle of a job learns from Kafka: what is unread, how far the job is in time, and through all its tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from sardonyx.client.lags import LinkAudit, LinkLag, PartitionLag
from sardonyx.client.links import facts_of
from sardonyx.client.views import JobView, laid_out
from sardonyx.core.errors import SetupError
from sardonyx.core.events import LinkFacts
from sardonyx.core.notes import JobNote
from sardonyx.core.spec import JobSpec

if TYPE_CHECKING:
    from datetime import datetime

    from sardonyx.client.checkpoints import JobCheckpoints
    from sardonyx.client.client import Client
    from sardonyx.client.clocks import JobClock
    from sardonyx.client.cycles import JobCycle
    from sardonyx.client.peek import Peek
    from sardonyx.client.progress import JobProgress
    from sardonyx.client.record_trace import RecordTrace
    from sardonyx.client.task_state import Held, StateRow, TaskState
    from sardonyx.zookeeper.session import ZooKeeperSession

T = TypeVar("T")


class AsksKafka(ABC):
    """The part of :class:`~sardonyx.client.job_handle.JobHandle` that asks Kafka."""

    id: str
    _client: Client
    _zk: ZooKeeperSession

    @abstractmethod
    def spec(self) -> JobSpec:
        """Return the job as data."""

    @abstractmethod
    def _note(self) -> JobNote | None: ...

    @abstractmethod
    def _sought(self, note: JobNote | None) -> JobNote | None: ...

    @abstractmethod
    def _view_of(self, note: JobNote | None, *, live: bool) -> JobView: ...

    def lag(self, *, holds: bool = True) -> list[LinkLag]:
        """Ask Kafka what is unread on each link that a task reads, and for how long. Links are in task order.

        A completed job has nothing unread. If the links of a job do not exist yet, or no longer exist, it cannot tell.

        Args:
            holds: whether to ask what the links' topics hold, too, which reads the first messages of each partition.

        Raises:
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.lag import link_lags

        settings = self._client.settings
        return self._of_links(lambda note: link_lags(self._zk, settings, self.id, self.spec(), note, holds=holds))

    def partitions(self, task: str) -> list[PartitionLag]:
        """Ask Kafka what is unread in each partition that a task reads, and how far it is. Links are in their order.

        Of a complete task, and of one without a queue of its own, there is nothing.

        Args:
            task: its name.

        Raises:
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.lag import partition_lags

        settings = self._client.settings
        return self._of_links(lambda note: partition_lags(self._zk, settings, self.id, self.spec(), note, task))

    def peek(
        self, link: str, rows: int = 20, partition: int | None = None, begin: Literal["position", "end"] = "position"
    ) -> Peek:
        """Look into a link: rows of each partition around the position of the task that reads it. Nothing is changed.

        It reads what is committed, for a few seconds at most. Long texts and lists are cut.

        Args:
            link: its name, such as ``clean.label``: the task that writes it, and the task that reads it.
            rows: how many of each partition at most.
            partition: only this one; None: the first 32.
            begin: around the reader's position, or the last rows before the ``end``.

        Raises:
            SardonyxError: ``SX-JOB-GONE``; ``SX-PEEK-LINK``: there is no such link or partition; ``SX-PEEK-GONE``: the links of
                the job do not exist yet, or no more.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``, ``SX-KAFKA-DENIED``.
        """
        from sardonyx.client.peek import peek

        settings, note = self._client.settings, self._sought(self._note())
        return peek(self._zk, settings, self.id, self.spec(), note, link, most=rows, partition=partition, begin=begin)

    def audit(self) -> list[LinkAudit]:
        """Compare what was written to each link between two tasks with what was read from it and what stands there unread.

        It counts the unread rows, so it takes as long as reading them once. If the links of a job do not exist yet, or no longer
        exist, it cannot tell.

        Raises:
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.lag import link_audits

        return self._of_links(lambda note: link_audits(self._zk, self._client.settings, self.id, self.spec(), note))

    def _of_links(self, ask: Callable[[JobNote | None], list[T]]) -> list[T]:
        """What Kafka says about the job's links. It is asked again if they were made, changed or deleted meanwhile."""
        before = self._sought(self._note())
        found, error = list[T](), None
        try:
            found = ask(before)
        except SetupError as raised:
            error = raised
        after = self._sought(self._note())
        if _link_state(after) != _link_state(before):  # positions go with the links: an ending job may show any
            return ask(after)
        if error is not None:
            raise error
        return found

    def clock(self) -> JobClock:
        """Ask Kafka how far each task has come in event time, and what holds its clock back.

        Raises:
            SardonyxError: ``SX-JOB-GONE``; ``SX-CLOCK-NONE``: the job has no clock; ``SX-CLOCK-GONE``: it does not run.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.clocks import job_clock

        return job_clock(self._zk, self._client.settings, self.id, self.spec(), self._sought(self._note()))

    def progress(self) -> JobProgress:
        """Ask Kafka how far each source partition is through all tasks of the job, and which task the rest waits for.

        A row below ``everywhere`` is in results, or was dropped, or is a dead letter. It is always known of a job with
        ``lineage=True``, and of another one while nothing is under way.

        Raises:
            SardonyxError: ``SX-JOB-GONE``; ``SX-PROGRESS-GONE``: the job does not run.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.progress import job_progress

        return job_progress(self._zk, self._client.settings, self.id, self.spec(), self._sought(self._note()))

    def cycles(self) -> list[JobCycle]:
        """Ask Kafka how the loops of the job stand: what is on its way in each, and what may still come into it.

        Raises:
            SardonyxError: ``SX-JOB-GONE``; ``SX-CYCLE-GONE``: the job does not run.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.cycles import job_cycles

        return job_cycles(self._zk, self._client.settings, self.id, self.spec(), self._sought(self._note()))

    def trace(self, source: str, partition: int, offset: int) -> RecordTrace:
        """Ask Kafka where a record of a source is on its way through the job: which tasks it is through, and which holds it; in
        which batches it was worked, and what these have written.

        It reads the job's queues backwards from their ends, for at most 20 seconds, and the dead letters of tasks that may have
        worked it. It calls unknown what is not there any more. A job without ``lineage=True`` can only tell which tasks have
        read the record.

        Args:
            source: a topic that the job reads; for an input that is read in splits the name of the list, ``task.splits``.
            partition: of the source.
            offset: of the record.

        Raises:
            SardonyxError: ``SX-JOB-GONE``; ``SX-PROGRESS-GONE``: the job does not run; ``SX-TRACE-SOURCE``: it has no such
                source; ``SX-TRACE-RECORD``: the source has no such partition, or no record at the offset yet.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.dead_letters import DeadLetters
        from sardonyx.client.record_trace import record_trace, with_letters

        client, note = self._client, self._sought(self._note())
        found = record_trace(self._zk, client.settings, self.id, self.spec(), note, (source, partition, offset))
        graph = laid_out(self.spec(), client.settings.deployment, self.id)
        return with_letters(found, graph, lambda: DeadLetters(client))

    def checkpoints(self) -> JobCheckpoints:
        """Return of which times the job keeps the state of its tasks: those that are complete, and those of each task.

        Raises:
            SardonyxError: ``SX-JOB-GONE``; ``SX-STATE-GONE``: the job does not run.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.checkpoints import job_checkpoints

        return job_checkpoints(self._client.settings, self.id, self.spec(), self._sought(self._note()))

    def state(
        self, task: str, key: Sequence[object] | None = None, *, at: datetime | str | None = None
    ) -> Iterator[StateRow]:
        """Read what a task keeps, from its log in Kafka: of keyed state a :class:`sardonyx.state.look.KeyState` for each key, of
        windows a dict for each open one, with the result that it would have if it closed now.

        Each partition is read as of its last commit. The whole log of a partition is read, also for one key.

        Args:
            task: a task with keyed state or windows.
            key: a list or tuple with the values of one key, in the order of ``group_by``; None: all keys. A text is read as all
                that it may mean: ``"4711"`` finds the key of a number too.
            at: the time of a checkpoint, as :meth:`checkpoints` lists them for the task: what it kept then. Without a zone it is
                UTC. None: what it keeps now.

        Raises:
            SardonyxError: ``SX-JOB-GONE``; ``SX-STATE-NONE``: the task keeps nothing that can be read; ``SX-STATE-GONE``: the job
                does not run, or ends meanwhile; ``SX-STATE-KEY``: the key is not a list, or has another number of values;
                ``SX-CHECKPOINT-UNKNOWN``: there is no checkpoint at this time.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        return self._state(task, key, at).rows()

    def held(self, task: str) -> Iterator[Held]:
        """Count what a task keeps, part by part: all of it is the sum. Of state in a database this asks the database.

        Errors are those of :meth:`state`, and those of a database (``SX-DATABASE-UNREACHABLE`` and the like).
        """
        return self._state(task, counts=True).held()

    def _state(
        self, task: str, key: Sequence[object] | None = None, at: datetime | str | None = None, *, counts: bool = False
    ) -> TaskState:
        from sardonyx.client.task_state import task_state

        return task_state(
            self._client.settings,
            self.id,
            self.spec(),
            lambda: self._sought(self._note()),
            task,
            key,
            at,
            self._facts,
            counts=counts,
        )

    def positions(self) -> dict[str, dict[str, list[int]]]:
        """Return how far the job has read its Kafka inputs: by task, by topic, the next offset in each partition.

        For a running job, it asks Kafka. For an ended job, the coordinator has kept the offsets. With
        ``start={partition: offset}`` a new job can continue from there.

        Raises:
            SardonyxError: ``SX-JOB-GONE``: it was purged, or never taken in.
            SetupError: ``SX-CONFIG-MISSING``, ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
        """
        from sardonyx.client.lag import input_positions

        note = self._sought(self._note())
        if note is not None and note.status == "running" and note.links == "made":
            return input_positions(self._zk, self._client.settings, self.id, self.spec())
        return {task.name: task.positions for task in self._view_of(note, live=False).tasks if task.positions}

    def _facts(self) -> Mapping[str, LinkFacts]:
        return facts_of(self._zk, self.id) or {}


def _link_state(note: JobNote | None) -> tuple[str, str, int] | None:
    return None if note is None else (note.status, note.links, note.revision)
