"""Clients of the simulated broker, in the place of confluent-kafka's: a member of a group, a transactional writer, and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from queues.messages import Logged, Outgoing, Records
from queues.transaction_errors import ProducerLost, TransactionAborted
from sardonyx.core.positions import Partition, Position
from tests.simulation.broker import Broker, Group, Log
from tests.simulation.engine import Process, SimRuntime, Waiter
from tests.simulation.messages import Record, end_of_partition

LONG = 600.0


class Metadata(NamedTuple):
    """A membership at one moment."""

    client: SimConsumer
    generation: int


class _Fatal:
    """The error of a client whose place another one has taken."""

    @staticmethod
    def code() -> int:
        found: int = KafkaError._FATAL
        return found

    @staticmethod
    def fatal() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "FENCED_INSTANCE_ID"

    str = name


class SimConsumer:
    """What of ``confluent_kafka.Consumer`` a reader uses.

    Args:
        broker: the broker.
        group: the group that it joins.
        instance: its static name there.
        process: that it lives in.
    """

    def __init__(self, broker: Broker, group: Group, instance: str, process: Process) -> None:
        self._broker, self._group, self.instance, self._process = broker, group, instance, process
        self._runtime = SimRuntime(process)
        self.generation = 0
        self.fenced = False
        self.held: dict[Partition, int] = {}
        """The partitions that its application knows of, with the next offset to read."""
        self.taking = False
        """It is taking partitions that the group has given to it."""
        self._paused: set[Partition] = set()
        self._ended: dict[Partition, int] = {}
        self._turn = 0
        self._closed = False
        self._silent_since: float | None = None
        self._fetches_at = 0.0
        process.on_kill.append(self._fall_silent)
        process.on_pause.append(self._fall_silent)
        process.on_resume.append(self._resume)

    # --- The process ---

    def _fall_silent(self) -> None:
        self._silent_since = self._broker.sim.now

    def _resume(self) -> None:
        """After a pause it must fetch before it knows of new records."""
        self._silent_since = None
        self._fetches_at = self._broker.sim.now + self._broker.sim.rng.uniform(0.05, 0.3)

    def silent_for(self, now: float) -> float:
        """Seconds for which the group has not heard of it."""
        return 0.0 if self._silent_since is None else now - self._silent_since

    def wake(self) -> None:
        self._broker.wake()

    # --- The group ---

    def subscribe(self, _topics: Sequence[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self._came, self._went, self._lost = on_assign, on_revoke, on_lost
        self._group.join(self)

    def memberid(self) -> str:
        return self.instance if self.generation else ""  # as far as it knows

    @property
    def _inside(self) -> bool:
        member = self._group.members.get(self.instance)
        return member is not None and member.client is self

    def consumer_group_metadata(self) -> Metadata:
        return Metadata(self, self.generation)

    def _serve(self) -> bool:
        """Serve the group. Whether something changed."""
        self._group.look()
        if not self._inside:
            self.generation = 0
            if self.held:
                self._let_go(list(self.held), self._lost)
            self._group.join(self)
            return True
        member = self._group.members[self.instance]
        told, member.told = member.told, None
        if told is None:
            return False
        gone = [partition for partition in self.held if partition not in told]
        if gone:
            self._let_go(gone, self._went)
            self._group.begin_round()
        self.taking = True
        self._came(self, _places(p for p in told if p not in self.held))
        self.taking = False
        return True

    def _let_go(self, gone: list[Partition], told: Any) -> None:
        told(self, _places(gone))
        for partition in gone:
            self.held.pop(partition, None)
            self._ended.pop(partition, None)

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        for place in places:
            partition = Partition(place.topic, place.partition)
            self.held[partition] = place.offset
            self._ended.pop(partition, None)

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        for place in places:
            self.held.pop(Partition(place.topic, place.partition), None)

    def assignment(self) -> list[TopicPartition]:
        return _places(self.held)

    def leave(self) -> None:
        """Leave the group, and close."""
        if not self._closed:
            self._closed = True
            for told in (self._process.on_kill, self._process.on_pause):
                told.remove(self._fall_silent)
            self._process.on_resume.remove(self._resume)
            if self._process.alive:
                self._group.leave(self)

    # --- Records ---

    def poll(self, timeout: float) -> Any:
        if self.fenced:
            return Record("", 0, 0, None, error=_Fatal())
        if self._serve():
            return None
        found = self._next()
        if found is None and timeout > 0:
            self._broker.wait(Waiter(self._process), timeout)
            if self.fenced or self._serve():
                return None
            found = self._next()
        return found

    def consume(self, count: int, timeout: float) -> list[Any]:
        assert timeout == 0
        found = []
        while len(found) < count and (message := self._next()) is not None:
            found.append(message)
        return found

    def _next(self) -> Any:
        if self._broker.sim.now < self._fetches_at:
            return None
        places = list(self.held)
        self._turn += 1
        for at in range(len(places)):
            partition = places[(at + self._turn) % len(places)]
            log = self._broker.logs.get(partition)
            if log is None or partition in self._paused:
                continue
            found = next(log.committed(self.held[partition], log.stable), None)
            if found is not None:
                offset, entry = found
                self.held[partition] = offset + 1
                return Record(*partition, offset, entry.value, entry.headers)
            self.held[partition] = max(self.held[partition], log.stable)
            if self._ended.get(partition) != self.held[partition]:
                self._ended[partition] = self.held[partition]
                return end_of_partition(*partition, self.held[partition])
        return None

    def seek(self, place: TopicPartition) -> None:
        partition = Partition(place.topic, place.partition)
        self.held[partition] = place.offset
        self._ended.pop(partition, None)

    def pause(self, places: list[TopicPartition]) -> None:
        self._paused |= {Partition(place.topic, place.partition) for place in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self._paused -= {Partition(place.topic, place.partition) for place in places}

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """The answer waits for transactions that may move the positions."""
        del timeout
        wanted = [Partition(place.topic, place.partition) for place in places]
        while True:
            self._runtime.sleep(self._broker.sim.rng.uniform(0.001, 0.02))
            if not self._group.unstable(wanted):
                break
        found = [self._group.committed.get(partition, (OFFSET_INVALID, "")) for partition in wanted]
        return [TopicPartition(*p, offset, metadata=text) for p, (offset, text) in zip(wanted, found, strict=True)]

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        """The partitions that the topic has now."""
        del timeout
        known = {partition.number: None for partition in self._broker.logs if partition.topic == topic}
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=known)})


def _places(partitions: Any) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]


class SimWriter:
    """Stands in for :class:`queues.transaction.TransactionalWriter`.

    Args:
        broker: the broker.
        name: the transactional id.
        process: that it lives in.
        lost: how often the answer to a commit is lost.
        waits: called when it has waited for the broker.
    """

    def __init__(
        self, broker: Broker, name: str, process: Process, lost: Callable[[], float], waits: Callable[[], None]
    ) -> None:
        self._broker, self._name, self._lost, self._waits = broker, name, lost, waits
        self._runtime = SimRuntime(process)
        self._epoch = 0

    def open(self) -> None:
        self._epoch = 0
        while not self._epoch:
            self._wait()
            self._epoch = self._broker.init(self._name)

    def close(self) -> None:
        """What is open is left to the next one."""

    def _wait(self) -> None:
        self._runtime.sleep(self._broker.sim.rng.uniform(0.001, 0.02))
        self._waits()

    def _check(self) -> None:
        if self._broker.epochs[self._name] != self._epoch:
            raise ProducerLost("fenced")

    def write(
        self,
        messages: Sequence[Outgoing | Records],
        positions: Mapping[Partition, Position],
        group_metadata: Callable[[], Metadata],
        clock: Any = None,
    ) -> None:
        del clock
        assert positions
        broker, rng = self._broker, self._broker.sim.rng
        while self._name in broker.standing:
            self._check()
            self._wait()
        self._check()
        transaction = broker.begin(self._name)
        for message in messages:
            for place, value, headers in _records(message, broker):
                broker.write(transaction, place, value, headers)
        self._wait()
        self._check()
        metadata = group_metadata()
        refused = metadata.client._group.refuses(metadata.client, metadata.generation)
        if refused is not None:
            broker.decide(transaction, "aborted")
            self.open()
            raise TransactionAborted(KafkaError(getattr(KafkaError, refused)))
        offsets = {partition: (position.offset, position.metadata()) for partition, position in positions.items()}
        broker.send_offsets(transaction, metadata.client._group, offsets)
        fate, lost = rng.random(), self._lost()
        if fate < lost / 2:
            raise ProducerLost("no answer, and it was not committed")
        self._wait()
        self._check()
        broker.decide(transaction, "committed")
        if fate < lost:
            raise ProducerLost("no answer, though it is committed")
        self._wait()


def _records(message: Outgoing | Records, broker: Broker) -> Iterator[tuple[Partition, bytes | None, Any]]:
    if isinstance(message, Outgoing):
        yield Partition(message.topic, max(message.partition, 0)), message.value, message.headers
    else:
        for _, value in message.records:
            yield Partition(message.topic, 0), value, None


class SimClocks:
    """Stands in for :class:`queues.group_clocks.GroupClocks`. An answer may be old when it comes."""

    def __init__(self, broker: Broker, group: Group) -> None:
        self._broker, self._group = broker, group
        self._asked: tuple[float, dict[Partition, Position | None]] | None = None
        self._ask_at = 0.0

    def answer(self) -> dict[Partition, Position | None] | None:
        now, found = self._broker.sim.now, None
        if self._asked is not None and now >= self._asked[0]:
            found, self._asked = self._asked[1], None
        if self._asked is None and now >= self._ask_at:
            self._asked = now + self._broker.sim.rng.uniform(0.0, 0.5), self._group.positions()
            self._ask_at = now + 0.25
        return found

    def check_partitions(self) -> None:
        """No user adds any here."""

    def close(self) -> None:
        pass


class SimStateTopic:
    """Stands in for :class:`queues.state_topics.StateTopic`."""

    def __init__(self, broker: Broker, topic: str, runtime: SimRuntime) -> None:
        self._broker, self._topic, self._runtime = broker, topic, runtime

    def _log(self, partition: int) -> Log:
        return self._broker.logs.get(Partition(self._topic, partition)) or Log()

    def end(self, partition: int) -> int:
        """Now and then a replaced leader answers, which has only the first half of the log."""
        self._runtime.sleep(self._broker.sim.rng.uniform(0.001, 0.02))
        log = self._log(partition)
        return (log.first + log.end) // 2 if int(self._broker.sim.now * 1000) % 20 == 0 else log.end

    def end_beyond(self, partition: int, end: int) -> int:
        return max(end, self._log(partition).end)

    def read(self, partition: int, start: int, end: int) -> list[Logged]:
        """It waits for transactions that are open before the end."""
        log = self._log(partition)
        while log.stable < end:
            self._runtime.sleep(self._broker.sim.rng.uniform(0.01, 0.1))
        return [Logged(offset, entry.headers, entry.value or b"") for offset, entry in log.committed(start, end)]
