"""A small model of running jobs: random graphs, peers that read and write in transactions, and where each row of a source is.

It uses the product's fronts and positions, and knows of each row in it from which rows of the sources it was made. So it can be
asked what is true of a source partition, however the job was played.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sardonyx.core import batch_origins as made
from sardonyx.core.clocks import END
from sardonyx.core.events import Counts
from sardonyx.core.front_text import LONGEST_FRONT, fitted
from sardonyx.core.fronts import UNKNOWN, Front, Held, greatest, least
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.link_counts import with_told
from sardonyx.core.positions import Partition, Position, add
from sardonyx.core.progress import Look
from sardonyx.core.source_fronts import Fronts, HeldRows, Sources
from sardonyx.core.spec import TaskSpec

Origin = tuple[int, int, int]
"""A row of a source: the number of the source, the partition, the offset."""


@dataclass
class Entry:
    """What stands at one offset of a partition: rows, a statement, a sentinel, or the marker of a transaction's end."""

    transaction: int
    origins: frozenset[Origin] = frozenset()
    time: int = 0
    is_row: bool = False
    front: Front | None = None
    sentinel: bool = False


class HeldRow(NamedTuple):
    """A row in the state of a shard."""

    origins: frozenset[Origin]
    until: int


@dataclass
class Shard:
    """The state of one partition number, as it is committed."""

    rows: list[HeldRow] = field(default_factory=list)
    closed: int = 0
    more: bool = False


@dataclass
class Slot:
    """What one peer of a task knows."""

    fronts: Fronts
    held: dict[int, HeldRows] = field(default_factory=dict)
    answer: dict[Partition, Position | None] | None = None
    open: Batch | None = None


@dataclass
class Batch:
    """A transaction that is still open."""

    transaction: int
    positions: dict[Partition, Position]
    shards: dict[int, Shard]
    held: dict[int, HeldRows]
    front: Front | None
    written: list[Partition]
    seals: bool = False
    since: dict[int, Held | None] = field(default_factory=dict)
    """By shard, what it held before."""


class World:
    """One history of one job.

    Args:
        name: what its chances come from.
        room: bytes that the front of a statement may take.
    """

    def __init__(self, name: str, room: int = LONGEST_FRONT) -> None:
        self.rng = rng = random.Random(name)
        self.room = room
        self.width = rng.choice([1, 2, 2, 3])
        self.log: dict[Partition, list[Entry]] = {}
        self.outcome: dict[int, bool] = {0: True}
        self.made_from: dict[int, made.Origin] = {}
        """By transaction, what its batch has read."""
        self.bounded = rng.random() < 0.5
        self.graph = self._graph()
        self.sources = Sources(self.graph)
        self.partitions: dict[str, list[Partition]] = {}
        for stage in self.graph.stages:
            for link in stage.ingress:
                self.partitions[link.topic] = [Partition(link.topic, number) for number in range(self.width)]
        for topic, partitions in self.partitions.items():
            for partition in partitions:
                self.log[partition] = self._rows(topic, partition.number) if topic in self.sources.names else []
        names = [stage.name for stage in self.graph.stages]
        self.positions: dict[str, dict[Partition, Position | None]] = {
            stage.name: {p: None for link in stage.ingress for p in self.partitions[link.topic]}
            for stage in self.graph.stages
        }
        self.shards = {name: {number: Shard() for number in range(self.width)} for name in names}
        self.slots = {stage.name: [self._slot(stage) for _ in range(rng.randint(1, 3))] for stage in self.graph.stages}
        self.holder = {
            stage.name: {p: p.number % len(self.slots[stage.name]) for p in self.positions[stage.name]}
            for stage in self.graph.stages
        }
        self.sealed: set[str] = set()
        self.forgotten: set[str] = set()
        self.finishing = False

    # --- The job ---

    def _graph(self) -> Graph:
        rng, stages = self.rng, list[Stage]()
        egress: dict[str, list[Link]] = {}
        ingress: dict[str, list[Link]] = {}
        names = [f"t{number}" for number in range(rng.choice([2, 3, 3, 4, 4, 5, 6]))]
        self.kinds = {}
        topics = rng.randint(1, 2)
        for at, name in enumerate(names):
            before = rng.sample(names[:at], min(at, rng.choice([0, 1, 1, 2, 2, 3])))
            ingress[name] = [Link(f"{b}.{name}", f"d.j.{b}.{name}", "internal", b, name) for b in before]
            kinds = ["pass", "pass", "time", "count"] if len(before) < 2 else ["pass", "time", "count", "count"]
            self.kinds[name] = rng.choice(kinds) if before else "pass"  # of several links mostly joins
            if not before or (self.kinds[name] == "pass" and rng.random() < 0.2):
                topic = f"in{rng.randrange(topics)}"
                ingress[name].append(Link(f"{topic}.{name}", topic, "input", topic, name))
            for link in inner_of(ingress[name]):
                egress.setdefault(link.source, []).append(link)
        for name in names:
            stages.append(Stage(TaskSpec(name=name, type="function"), ingress[name], egress.get(name, [])))
        return Graph(names, stages, {}, self.bounded)

    def _rows(self, topic: str, number: int) -> list[Entry]:
        source = self.sources.names.index(topic)
        time, found = 0, list[Entry]()
        for offset in range(self.rng.randint(0, 25)):
            time += self.rng.randint(0, 6)
            found.append(Entry(0, frozenset({(source, number, offset)}), time, is_row=True))
        return found

    def _slot(self, stage: Stage) -> Slot:
        known = [p for link in stage.ingress for p in self.partitions[link.topic]]
        return Slot(Fronts(self.sources, stage, known))

    # --- What happens ---

    def steps(self, count: int) -> None:
        acts = {
            self.begin: 40, self.end: 30, self.ask: 10, self.hear: 10, self.hand_over: 8, self.die: 2, self.grow: 1,
            self.forget: 1,
        }  # fmt: skip
        for _ in range(count):
            act = self.rng.choices(list(acts), list(acts.values()))[0]
            stage = self.rng.choice(self.graph.stages)
            act(stage, self.rng.randrange(len(self.slots[stage.name])))

    def finish(self) -> None:
        """All that there is gets through; nothing goes wrong any more."""
        self.finishing = True
        for _ in range(30):
            for stage in self.graph.stages:
                for number in range(len(self.slots[stage.name])):
                    self.begin(stage, number, all_out=True)
                    self.end(stage, number, good=True)

    def own(self, stage: Stage, slot: int) -> list[Partition]:
        return [partition for partition, holder in self.holder[stage.name].items() if holder == slot]

    def begin(self, stage: Stage, number: int, *, all_out: bool = False) -> None:
        """A batch: rows first, the statement after them. The end of its transaction comes some time later."""
        slot, name = self.slots[stage.name][number], stage.name
        held = self.own(stage, number)
        if slot.open is not None or not held or name in self.sealed:
            return
        committed = {partition: self.positions[name][partition] for partition in held}
        slot.fronts.heard(committed)
        if all_out:
            slot.fronts.heard(self.positions[name])
        transaction = len(self.outcome)
        self.outcome[transaction] = False
        batch = Batch(transaction, {}, {}, {}, None, [])
        if self.bounded and all(p is not None and p.drained for p in self.positions[name].values()):
            self._seal(stage, batch, committed)
        elif self.kinds[name] == "pass":
            self._pass(stage, batch, held, all_out=all_out)
        else:
            self._through_shards(stage, slot, batch, held, all_out=all_out)
        if self.rng.random() < 0.6 or all_out:
            batch.front = fitted(slot.fronts.front(committed | batch.positions), self.room)
            self._write(batch, [p for link in stage.egress for p in self.partitions[link.topic]], batch.front)
        slot.open = batch
        self.made_from[transaction] = self._made_from(stage, number, batch)

    def _made_from(self, stage: Stage, number: int, batch: Batch) -> made.Origin:
        """What a batch says of itself in what it writes."""
        rows, spans = 0, dict[str, list[made.Span]]()
        for place, position in batch.positions.items():
            before = self.positions[stage.name][place] or Position(0)
            rows += position.counts.rows_in - before.counts.rows_in
            link = next(link.name for link in stage.ingress if link.topic == place.topic)
            span = made.Span(place.number, before.offset, position.offset)
            if self.kinds[stage.name] != "pass":
                at = [link.topic for link in stage.ingress].index(place.topic)
                held = batch.since.get(place.number)
                first = before.offset if held is None else min(before.offset, *held.since[at : at + 1] or [0])
                spans.setdefault(link, []).append(span._replace(since=first))
            elif span.start < span.end:
                spans.setdefault(link, []).append(span)
        return made.Origin(rows, f"p{number}/1/{number}", spans)

    def _pass(self, stage: Stage, batch: Batch, held: list[Partition], *, all_out: bool) -> None:
        chosen = held if all_out else self.rng.sample(held, self.rng.randint(1, len(held)))
        rows = [row for partition in chosen for row in self._read(stage, batch, partition)]
        told = [self._emit(batch, link, row.origins, row.time) for row in rows for link in [stage.egress]]
        self._count(stage, batch, chosen[0], told)

    def _emit(self, batch: Batch, links: list[Link], origins: frozenset[Origin], time: int) -> list[int]:
        """Rows that are made of one: to some links none, to others up to two."""
        counts = []
        for link in links:
            copies = self.rng.choice([0, 1, 1, 1, 2])
            for _ in range(copies):
                partition = self.rng.choice(self.partitions[link.topic])
                self.log[partition].append(Entry(batch.transaction, origins, time, is_row=True))
                batch.written.append(partition)
            counts.append(copies)
        return counts

    def _count(self, stage: Stage, batch: Batch, first: Partition, told: list[list[int]]) -> None:
        sums = [sum(column) for column in zip(*told, strict=True)] if told else [0] * len(stage.counted)
        for partition, position in batch.positions.items():
            before = self.positions[stage.name][partition] or Position(0)
            written = sums if partition == first else [0] * len(sums)
            batch.positions[partition] = position._replace(told=with_told(before, written).told)

    def _through_shards(self, stage: Stage, slot: Slot, batch: Batch, held: list[Partition], *, all_out: bool) -> None:
        numbers = sorted({partition.number for partition in held})
        if not all_out:
            numbers = self.rng.sample(numbers, self.rng.randint(1, len(numbers)))
        told: list[list[int]] = []
        for number in numbers:
            told += self._through(stage, slot, batch, number, all_out=all_out)
        self._count(stage, batch, Partition(stage.ingress[0].topic, numbers[0]), told)

    def _through(self, stage: Stage, slot: Slot, batch: Batch, number: int, *, all_out: bool) -> list[list[int]]:
        """A batch of one shard: rows go in, and those that are due come out."""
        before = self.shards[stage.name][number]
        shard = batch.shards[number] = replace(before, rows=list(before.rows))
        came: list[HeldRow] = []
        fronts: list[Front] = []
        for link in stage.ingress:
            partition = Partition(link.topic, number)
            position = self.positions[stage.name][partition]
            rows = [] if shard.more else self._read(stage, batch, partition)
            if shard.more:
                batch.positions[partition] = position or Position(0, front=UNKNOWN)
            came += [HeldRow(row.origins, self._until(stage, row.time)) for row in rows]
            if rows:
                bare = None if position is None else position._replace(held=None)
                fronts.append(self.in_force(link.topic, bare, batch.positions[partition]))
        came = [row for row in came if row.until > before.closed]  # the others are late
        ends = all_out or all(batch.positions[Partition(link.topic, number)].drained for link in stage.ingress)
        clock = END if ends else before.closed + (0 if shard.more else self.rng.choice([0, 3, 8]))
        shard.rows += came
        everything = self.kinds[stage.name] == "count" and self.rng.random() < 0.3
        due = [row for row in shard.rows if row.until <= clock or everything]
        shard.more = len(due) > 2 and not all_out and not everything and self.rng.random() < 0.3
        due = due[:1] if shard.more else due
        for row in due:
            shard.rows.remove(row)
        shard.closed = before.closed if shard.more else clock
        holds = slot.held.get(number)
        if holds is None:
            holds = HeldRows.committed(self.positions[stage.name][Partition(stage.ingress[0].topic, number)])
        stretch = None
        if came:
            began = (self.positions[stage.name][Partition(link.topic, number)] for link in stage.ingress)
            since = tuple(0 if each is None else each.offset for each in began)
            stretch = Held(max(row.until for row in came), least(fronts, len(self.sources)), since)
        batch.since[number] = holds.merged
        batch.held[number] = holds.after(stretch, shard.closed) if shard.rows else HeldRows()
        first = Partition(stage.ingress[0].topic, number)
        drained = batch.positions[first].drained if not shard.more else None
        batch.positions[first] = batch.positions[first]._replace(held=batch.held[number].merged, drained=drained)
        groups = [due[at : at + 3] for at in range(0, len(due), 3)]
        return [
            self._emit(batch, stage.egress, frozenset().union(*(row.origins for row in group)), 0) for group in groups
        ]

    def in_force(self, topic: str, before: Position | None, after: Position) -> Front:
        """What is said of the rows of a batch: what was stated before it."""
        return self.sources.in_partition(topic, before)

    def _until(self, stage: Stage, time: int) -> int:
        return (time // 10 + 1) * 10 if self.kinds[stage.name] == "time" else END

    def _read(self, stage: Stage, batch: Batch, partition: Partition) -> list[Entry]:
        """Up to some entries of a partition that are committed, and nothing after one whose transaction is open."""
        position = self.positions[stage.name][partition] or Position(0, front=UNKNOWN)
        is_source = partition.topic in self.sources.names
        rows, offset, front, log = list[Entry](), position.offset, position.front or UNKNOWN, self.log[partition]
        drained = position.drained
        most = len(log) if self.finishing else offset + self.rng.randint(1, 5)
        while offset < min(most, len(log)) and not self._undecided(log[offset]):
            entry = log[offset]
            if self.outcome[entry.transaction] and entry.is_row:
                rows.append(entry)
            elif self.outcome[entry.transaction] and entry.front is not None:
                front = greatest(front, entry.front)
            elif self.outcome[entry.transaction] and entry.sentinel:
                drained = "sentinel"
                break
            offset += 1
        if is_source and self.bounded and offset == len(log):
            drained = "end"
        counts = add(position.counts, Counts(len(rows)))
        batch.positions[partition] = position._replace(offset=offset, front=front, counts=counts, drained=drained)
        return rows

    def _undecided(self, entry: Entry) -> bool:
        return any(
            slot.open is not None and slot.open.transaction == entry.transaction
            for slots in self.slots.values()
            for slot in slots
        )

    def _write(self, batch: Batch, partitions: list[Partition], front: Front | None) -> None:
        for partition in partitions:
            self.log[partition].append(Entry(batch.transaction, front=front, sentinel=front is None))
            batch.written.append(partition)

    def _seal(self, stage: Stage, batch: Batch, committed: dict[Partition, Position | None]) -> None:
        batch.positions |= {p: position for p, position in committed.items() if position is not None}
        batch.seals = True

    def end(self, stage: Stage, number: int, *, good: bool | None = None) -> None:
        """An open transaction is committed or aborted."""
        slot = self.slots[stage.name][number]
        batch, slot.open = slot.open, None
        if batch is None:
            return
        good = self.rng.random() < 0.8 if good is None else good
        if good and batch.seals:
            self._write(batch, [p for link in stage.egress for p in self.partitions[link.topic]], None)
            self.sealed.add(stage.name)
        for partition in dict.fromkeys(batch.written):
            self.log[partition].append(Entry(batch.transaction))
        self.outcome[batch.transaction] = good
        if good:
            self.positions[stage.name].update({p: as_text(position) for p, position in batch.positions.items()})
            self.shards[stage.name].update(batch.shards)
            slot.held.update(batch.held)
            if batch.front is not None:
                slot.fronts.stated(batch.front)

    def ask(self, stage: Stage, number: int) -> None:
        """A peer asks its group; the answer comes later."""
        self.slots[stage.name][number].answer = dict(self.positions[stage.name])

    def hear(self, stage: Stage, number: int) -> None:
        slot = self.slots[stage.name][number]
        if slot.answer is not None:
            slot.fronts.heard(slot.answer)

    def hand_over(self, stage: Stage, number: int) -> None:
        """The partitions of a number get another holder, which fences the last one and knows what is committed."""
        which = self.rng.randrange(self.width)
        moved = [partition for partition in self.positions[stage.name] if partition.number == which]
        for partition in moved:
            self.end(stage, self.holder[stage.name][partition], good=False)
            self.holder[stage.name][partition] = number
        for slot in self.slots[stage.name]:
            slot.held.pop(which, None)

    def die(self, stage: Stage, number: int) -> None:
        """A peer dies, and another one begins in its slot."""
        self.end(stage, number, good=False)
        self.slots[stage.name][number] = self._slot(stage)

    def grow(self, stage: Stage, number: int) -> None:
        """A user adds a partition to a topic. Only the peer that gets it knows of it, until others begin anew."""
        link = next((link for link in stage.ingress if link.kind == "input"), None)
        if link is None or self.bounded or len(self.partitions[link.topic]) > self.width:
            return
        partition = Partition(link.topic, self.width)
        self.log[partition] = self._rows(link.topic, partition.number)
        self.partitions[link.topic].append(partition)
        for reader in self.graph.stages:
            if any(each.topic == link.topic for each in reader.ingress):
                self.positions[reader.name][partition] = None
                self.holder[reader.name][partition] = number % len(self.slots[reader.name])

    def forget(self, stage: Stage, number: int) -> None:
        """The brokers forget the positions of a task that has ended."""
        if stage.name in self.sealed:
            self.forgotten.add(stage.name)

    # --- What is said, and what is true ---

    def asked(self, stage: Stage) -> dict[Partition, Position | None]:
        """What the group says."""
        gone = stage.name in self.forgotten
        return {p: None if gone else position for p, position in self.positions[stage.name].items()}

    def look(self, pause: int = 0) -> Look:
        """Ask the groups, while the job goes on for up to ``pause`` steps between two answers."""
        ended = set(self.sealed)
        first = dict(self._answers(pause))
        again = dict(self._answers(pause))
        return Look(first, again, ended)

    def _answers(self, pause: int) -> Iterator[tuple[str, dict[Partition, Position | None]]]:
        for stage in self.rng.sample(self.graph.stages, len(self.graph.stages)):
            yield stage.name, self.asked(stage)
            self.steps(self.rng.randint(0, pause))

    def alive(self, tasks: Collection[str] | None = None) -> set[Origin]:
        """The rows of the sources that are not everywhere yet: each of them is looked for in all places.

        ``tasks``: only before and in these tasks.
        """
        found: set[Origin] = set()
        for stage in self.graph.stages:
            if tasks is not None and stage.name not in tasks:
                continue
            for partition, position in self.positions[stage.name].items():
                offset = 0 if position is None else position.offset
                for entry in self.log[partition][offset:]:
                    if self.outcome[entry.transaction]:
                        found |= entry.origins
            for shard in self.shards[stage.name].values():
                for row in shard.rows:
                    found |= row.origins
        return found


def as_text(position: Position) -> Position:
    """As the text says it that Kafka keeps."""
    return Position.read(position.offset, position.metadata())


def inner_of(links: list[Link]) -> list[Link]:
    return [link for link in links if link.kind == "internal"]
