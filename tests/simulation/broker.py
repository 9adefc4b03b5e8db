"""A broker with logs, transactions and consumer groups, as far as exactly-once batches depend on it.

A partition is a log. The records of an open transaction stand in it, and no reader of committed records passes the first of
them. A transaction is decided at one moment; its markers, and the positions that it commits, come into each partition some time
later. A producer is fenced by the next one of its transactional id, a commit of positions by the generation of the group. A group
moves partitions in rounds, and gives none away before its holder has let it go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sardonyx.core.positions import Partition, Position
from tests.simulation.engine import Simulation, Waiter

if TYPE_CHECKING:
    from tests.simulation.broker_clients import SimConsumer

SESSION = 6.0
"""Seconds without a heartbeat after which a group puts a member out."""
OPEN = 12.0
"""Seconds that a transaction may stay open."""


class Entry(NamedTuple):
    """What stands at one offset. Without a transaction it is readable at once."""

    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    transaction: Transaction | None = None
    at: float = 0.0
    marker: bool = False


@dataclass(eq=False)
class Transaction:
    """What one producer writes at once. ``state``: open, committed, aborted."""

    id: str
    state: str = "open"
    logs: dict[Partition, None] = field(default_factory=dict)
    offsets: dict[str, dict[Partition, tuple[int, str]]] = field(default_factory=dict)
    """By group."""
    pending: int = 0
    """Markers that are still to be written, once it is decided."""


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """All that was ever written: the oracle looks at what is deleted, too."""
        self.first = 0
        """What stands before it is deleted."""
        self._open: dict[int, int] = {}

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.entries)

    @property
    def stable(self) -> int:
        """The last stable offset: the first record of a transaction whose marker is not written."""
        return min(self._open.values(), default=len(self.entries))

    def append(self, entry: Entry) -> int:
        if entry.transaction is not None and not entry.marker:
            self._open.setdefault(id(entry.transaction), len(self.entries))
        self.entries.append(entry)
        return len(self.entries) - 1

    def mark(self, transaction: Transaction) -> None:
        """The end of a transaction."""
        self._open.pop(id(transaction), None)
        self.entries.append(Entry(None, transaction=transaction, marker=True))

    def committed(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, Entry]]:
        """The records that a reader sees, with their offsets. The caller has looked at :attr:`stable`."""
        for offset in range(max(start, self.first), len(self.entries) if end is None else end):
            if readable(self.entries[offset]):
                yield offset, self.entries[offset]

    def history(self, offset: int = 0) -> Iterator[Entry]:
        """All records from there on that a reader has seen or will see, deleted ones, too."""
        return (entry for entry in self.entries[offset:] if readable(entry))

    def lose(self, offset: int) -> None:
        """A record is gone that was acknowledged."""
        self.entries[offset] = self.entries[offset]._replace(marker=True)

    def delete_before(self, offset: int) -> None:
        self.first = max(self.first, min(offset, len(self.entries)))


def readable(entry: Entry) -> bool:
    """Whether a reader of committed records gets this one."""
    return not entry.marker and (entry.transaction is None or entry.transaction.state == "committed")


@dataclass(eq=False)
class Member:
    """A static member of a group. ``told``: what it must hold from its next poll on; None: nothing new."""

    client: SimConsumer
    assigned: list[Partition] = field(default_factory=list)
    told: list[Partition] | None = None


class Group:
    """A consumer group: who holds what, and which positions are committed."""

    def __init__(self, broker: Broker, name: str, partitions: list[Partition]) -> None:
        self._broker = broker
        self._sim = broker.sim
        self.name = name
        self.partitions = partitions
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.committed: dict[Partition, tuple[int, str]] = {}
        self.pending: list[Transaction] = []
        """Transactions that may still move positions."""
        self._round = False

    def position(self, partition: Partition) -> Position | None:
        found = self.committed.get(partition)
        return None if found is None else Position.read(*found)

    def positions(self) -> dict[Partition, Position | None]:
        return {partition: self.position(partition) for partition in self.partitions}

    def unstable(self, wanted: Iterable[Partition]) -> bool:
        """Whether open transactions may move these positions."""
        places = set(wanted)
        return any(not places.isdisjoint(t.offsets.get(self.name, ())) for t in self.pending)

    def join(self, client: SimConsumer) -> None:
        """A member comes. One that has the place of another gets what that one had, without a round."""
        before = self.members.get(client.instance)
        if before is None:
            self.members[client.instance] = Member(client)
            self.begin_round()
            return
        before.client.fenced = True
        before.client.wake()
        unreleased = set(before.client.held) - set(before.assigned)
        self.members[client.instance] = Member(client, before.assigned, list(before.assigned))
        client.generation = self.generation
        if unreleased:
            self.begin_round()

    def leave(self, client: SimConsumer) -> None:
        member = self.members.get(client.instance)
        if member is not None and member.client is client:
            del self.members[client.instance]
            self.begin_round()

    def look(self) -> None:
        """Put silent members out."""
        for instance, member in list(self.members.items()):
            if member.client.silent_for(self._sim.now) > SESSION:
                del self.members[instance]
                self.begin_round()

    def begin_round(self) -> None:
        if not self._round:
            self._round = True
            self._sim.at(self._sim.rng.uniform(0.02, 0.4), self._finish_round)

    def _finish_round(self) -> None:
        self.look()
        if any(member.client.silent_for(self._sim.now) > 0 for member in self.members.values()):
            self._sim.at(0.5, self._finish_round)  # it has not said that it takes part, and may be alive
            return
        if any(member.told is not None or member.client.taking for member in self.members.values()):
            self._sim.at(0.02, self._finish_round)  # it says what it has when it has taken what it was given
            return
        self._round = False
        self.generation += 1
        names = sorted(self.members)
        turn = self._sim.rng.randrange(len(names) or 1)
        owners = {p: name for name, member in self.members.items() for p in member.client.held}
        for name in names:
            self.members[name].assigned = []
        for number, partition in enumerate(self.partitions):
            if names:
                wanted = names[(number + turn) % len(names)]
                if owners.get(partition, wanted) == wanted:
                    self.members[wanted].assigned.append(partition)
        for name in names:
            member = self.members[name]
            member.told = list(member.assigned)
            member.client.generation = self.generation
            member.client.wake()

    def refuses(self, client: SimConsumer, generation: int) -> str | None:
        """Why positions of this member are not taken; None: they are."""
        member = self.members.get(client.instance)
        if member is None:
            return "UNKNOWN_MEMBER_ID"
        if member.client is not client:
            return "FENCED_INSTANCE_ID"
        return None if generation == self.generation else "ILLEGAL_GENERATION"


class Broker:
    """All logs, groups and transactional ids."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.logs: dict[Partition, Log] = {}
        self.groups: dict[str, Group] = {}
        self.epochs: dict[str, int] = {}
        self.standing: dict[str, Transaction] = {}
        """By transactional id, the last transaction, as long as not all its markers are written."""
        self.on_commit: list[Callable[[Group, Partition, Position | None, Position], None]] = []
        """Called when a position is committed, with the one before it."""
        self._waiting: list[Waiter] = []

    def create(self, topic: str, partitions: int) -> None:
        for number in range(partitions):
            self.logs.setdefault(Partition(topic, number), Log())

    def delete(self, topic: str) -> None:
        for partition in [p for p in self.logs if p.topic == topic]:
            del self.logs[partition]

    def group(self, name: str, partitions: list[Partition]) -> Group:
        return self.groups.setdefault(name, Group(self, name, partitions))

    # --- Waiting ---

    def wait(self, waiter: Waiter, timeout: float) -> None:
        """Until something can be read anywhere, or for so long."""
        self._waiting.append(waiter)
        waiter.park(timeout)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.fire()

    # --- Records and transactions ---

    def put(self, partition: Partition, value: bytes) -> None:
        """A record without a transaction: users' programs write such."""
        self.logs[partition].append(Entry(value, at=self.sim.now))
        self.wake()

    def init(self, name: str) -> int:
        """Fence the producer of a transactional id, and end what it has open. 0: ask again, that is not done yet."""
        standing = self.standing.get(name)
        if standing is not None and standing.state != "open":
            return 0
        self.epochs[name] = self.epochs.get(name, 0) + 1
        if standing is not None:
            self.decide(standing, "aborted")
        return self.epochs[name]

    def begin(self, name: str) -> Transaction:
        transaction = self.standing[name] = Transaction(name)
        self.sim.at(OPEN, lambda: self._expire(transaction))
        return transaction

    def _expire(self, transaction: Transaction) -> None:
        if transaction.state == "open":
            self.epochs[transaction.id] += 1
            self.decide(transaction, "aborted")

    def write(self, transaction: Transaction, place: Partition, value: bytes | None, headers: Any) -> None:
        log = self.logs.get(place)
        if log is not None:  # otherwise the job has ended, and its topics with it
            transaction.logs[place] = None
            log.append(Entry(value, tuple(headers or ()), transaction, self.sim.now))

    def send_offsets(
        self, transaction: Transaction, group: Group, positions: Mapping[Partition, tuple[int, str]]
    ) -> None:
        transaction.offsets.setdefault(group.name, {}).update(positions)
        group.pending.append(transaction)

    def decide(self, transaction: Transaction, state: str) -> None:
        """Committed, or aborted: from here on nothing changes that. Where it is to be seen, it is seen later."""
        transaction.state = state
        parts: list[Callable[[], None]] = [
            lambda place=place: self._mark(place, transaction) for place in transaction.logs
        ]  # type: ignore[misc]
        parts += [lambda name=name: self._apply(name, transaction) for name in transaction.offsets]  # type: ignore[misc]
        transaction.pending = len(parts)
        rng = self.sim.rng
        for part in parts:
            delay = rng.uniform(0.0, 0.02) if rng.random() < 0.9 else rng.uniform(0.02, 1.5)
            self.sim.at(delay, lambda part=part: self._written(part, transaction))  # type: ignore[misc]
        if not parts:
            self.standing.pop(transaction.id, None)

    def _written(self, part: Callable[[], None], transaction: Transaction) -> None:
        part()
        transaction.pending -= 1
        if not transaction.pending and self.standing.get(transaction.id) is transaction:
            del self.standing[transaction.id]
        self.wake()

    def _mark(self, place: Partition, transaction: Transaction) -> None:
        if place in self.logs:
            self.logs[place].mark(transaction)

    def _apply(self, name: str, transaction: Transaction) -> None:
        group = self.groups[name]
        group.pending.remove(transaction)
        if transaction.state == "committed":
            for partition, (offset, metadata) in transaction.offsets[name].items():
                before = group.position(partition)
                group.committed[partition] = offset, metadata
                for told in self.on_commit:
                    told(group, partition, before, Position.read(offset, metadata))
