"""A task's position in a partition, which it commits in the transaction of each batch. Pure.

Kafka keeps a short text with each committed offset. Ours holds how many rows the task has read, written and left out up
to that offset, and whether the partition is drained. The task commits it in the same transaction as the results. The
counts are therefore exact even if peers died in between, and a peer that takes the partition over continues the count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from sardonyx.core.chains import Heard
from sardonyx.core.checkpoints import Checkpoints
from sardonyx.core.clocks import NEVER, SourceClock
from sardonyx.core.errors import InternalError, SetupError
from sardonyx.core.events import Counts, LinkFacts
from sardonyx.core.front_text import in_full, told
from sardonyx.core.fronts import Front, Held
from sardonyx.core.graph import Graph, Stage, is_endless
from sardonyx.core.topics_anew import fewer_partitions, recreated
from sardonyx.core.wire_types import ready_for_threads

Begins = tuple[tuple[int, int], ...]
"""Pairs of a time and an offset before which no row of that time or later stands, ascending."""


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int


@ready_for_threads
class _Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    rows_in: int = msgspec.field(name="in", default=0)
    rows_out: int = msgspec.field(name="out", default=0)
    skipped: int = 0
    dead: int = 0
    late: int = 0
    drained: str | None = None
    marked: bool = False
    seen: int = NEVER
    clock: int = NEVER
    idle: bool = False
    state: tuple[int, int, int] | None = None
    heard: dict[str, int] | None = None
    partial: bool = False
    told: tuple[int, ...] | None = None
    by_link: dict[int, int] | None = None
    front: Front | None = None
    held: tuple[int, Front] | None = None
    since: tuple[int, ...] | None = None
    ckpt: list[Any] | None = None
    begins: tuple[tuple[int, int], ...] | None = None
    waits: int | None = None
    sent: dict[str, int] | None = None
    format: int = 1


POSITION_FORMAT = 4
"""Version of this text. Texts of version 1 do not say it: those without a clock, state, chains and rows by link. Those of
version 3 have checkpoints, which a task must not lose; those of version 4 rows by the numbers of links."""

LONGEST = 3_500
"""Largest length of the text, in bytes. Brokers take 4,096 (``offset.metadata.max.bytes``)."""

_AROUND_FRONTS = 60
"""Bytes that two fronts need beside their own text: their names, and the clock of what is held."""
_NO_FRONT = 2
"""Bytes of a front that says nothing."""
_WITHOUT = "Submit the job without `--resume`, with the `start=` that you want."

_LONGEST_SENT = 600
"""Bytes that rows by link to users' topics may take. If they take more, they are left out, and so not known."""

COUNTED = 64
"""A task that writes to more internal links than this does not count rows by link: the text would become too long. If numbers of
its links are not below this, the position says which ones it counts."""

Told = tuple[int, ...] | dict[int, int]
"""Rows by link: by the numbers from 0 on, or by some numbers."""


class Position(NamedTuple):
    """A committed position. ``drained``: the uuid of the sentinel AT the offset; ``"end"`` or ``"marker"``, where the input
    ends or an end marker stands right before the offset; None: not drained.

    ``marked``: the transaction that committed it also wrote the task's end markers. ``clock``: of the partition, if the job has
    clocks. ``state``: if the task has state, how its log stands (:class:`sardonyx.state.messages.Mark`). ``heard``: on an
    internal link, the chains that were read up to here (:mod:`sardonyx.core.chains`). ``told``: rows that batches of this
    partition wrote to each internal link of the task, by their numbers (:func:`sardonyx.core.link_counts.places`); None: not
    counted. ``front``, ``held``: if the job keeps its lineage, what was stated last on an internal link, and what the shard of a
    task with state still holds. The text tells both less exactly if they are long (:mod:`sardonyx.core.front_text`), and leaves
    both out if there is no room at all: None, and then nothing is known. ``checkpoints``: those of the shard, if the
    job has them. ``begins``: of a partition of a user's topic, where rows of a time are read again from
    (:mod:`sardonyx.core.going_back`). ``waits``: of a shard of a lookup, how many rows wait for the clock of the other side;
    None: it is not a lookup, or not known.
    """

    offset: int
    counts: Counts = Counts()
    drained: str | None = None
    marked: bool = False
    clock: SourceClock = SourceClock()
    state: tuple[int, int, int] | None = None
    heard: Heard | None = None
    told: Told | None = None
    front: Front | None = None
    held: Held | None = None
    checkpoints: Checkpoints | None = None
    begins: Begins | None = None
    waits: int | None = None

    def metadata(self) -> str:
        """The text that Kafka keeps with the offset: about 60 bytes, 100 more with a clock and state, and 30 for each chain. Of a
        job that keeps its lineage, fronts take what is left of the room, and up to 20 bytes for each source partition.

        Raises:
            InternalError: ``SX-POSITION-LARGE``: it is longer than a broker takes for sure.
        """
        counts, heard = self.counts, self.heard
        rows = (counts.rows_in, counts.rows_out, counts.skipped, counts.dead, counts.late)
        chains, partial = (None, False) if heard is None else (dict(heard.chains), heard.partial)
        newer = self.clock != SourceClock() or any(
            each is not None for each in (self.state, chains, self.told, self.front)
        )
        version = 2 if newer else 1
        ordered = None if isinstance(self.told, dict) else self.told
        text = _Metadata(
            *rows, self.drained, self.marked, *self.clock, self.state, chains, partial, ordered, format=version
        )
        if self.checkpoints is not None:
            text = msgspec.structs.replace(text, ckpt=self.checkpoints.text(), format=3)
        if self.begins:
            text = msgspec.structs.replace(text, begins=self.begins, format=3)
        if self.waits is not None:
            text = msgspec.structs.replace(text, waits=self.waits)
        if counts.sent is not None and len(msgspec.json.encode(counts.sent)) <= _LONGEST_SENT:
            text = msgspec.structs.replace(text, sent=counts.sent)
        if isinstance(self.told, dict):
            text = msgspec.structs.replace(text, by_link=self.told, format=POSITION_FORMAT)
        if self.held is not None and self.held.since:
            text = msgspec.structs.replace(text, since=self.held.since)
        if self.front is not None:
            whole = msgspec.json.encode(_with_fronts(text, self.front, self.held))
            if len(whole) <= LONGEST:
                return whole.decode()
        found = msgspec.json.encode(text)
        if len(found) > LONGEST:
            raise _too_large(len(found))
        if self.front is not None:
            whole = msgspec.json.encode(self._coarser(text, LONGEST - len(found)))
            if len(whole) <= LONGEST:
                return whole.decode()
        return found.decode()  # of fronts that are left out nothing is known, and so nothing wrong

    def _coarser(self, text: _Metadata, room: int) -> _Metadata:
        """The text with fronts as they find room. What a task states rests on both, so each gets one half."""
        share = max((room - _AROUND_FRONTS) // (1 if self.held is None else 2), _NO_FRONT)
        held = None if self.held is None else self.held._replace(front=told(self.held.front, share))
        return _with_fronts(text, told(self.front or (), share), held)

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Position:
        """The reverse of :meth:`metadata`. Ignores text that is not ours (another program committed to the group).

        Raises:
            SetupError: ``SX-POSITION-UNREADABLE``: a newer release wrote it.
        """
        try:
            held = msgspec.json.decode(metadata or "{}", type=_Metadata)
        except msgspec.DecodeError:
            held = _Metadata()
        if held.format > POSITION_FORMAT:
            raise _unreadable(held.format)
        counts = Counts(held.rows_in, held.rows_out, held.skipped, held.dead, held.late, held.sent)
        clock = SourceClock(held.seen, held.clock, held.idle)
        heard = None if held.heard is None else Heard(held.heard, held.partial)
        front = None if held.front is None else in_full(held.front)
        kept = None if held.held is None else Held(held.held[0], in_full(held.held[1]), held.since or ())
        apart = None if held.ckpt is None else Checkpoints.read(held.ckpt)
        rows = held.told if held.by_link is None else held.by_link
        made = (held.begins, held.waits)
        return cls(offset, counts, held.drained, held.marked, clock, held.state, heard, rows, front, kept, apart, *made)


def _with_fronts(text: _Metadata, front: Front, held: Held | None) -> _Metadata:
    return msgspec.structs.replace(text, front=front, held=None if held is None else (held.until, held.front))


def _unreadable(version: int) -> SetupError:
    return SetupError(
        "SX-POSITION-UNREADABLE",
        f"a committed position of a task has format {version}, and this release reads format {POSITION_FORMAT}",
        cause="a newer release of Sardonyx wrote it",
        fix="upgrade this installation; `sardonyx upgrade --check` shows who runs which release",
    )


def _too_large(size: int) -> InternalError:
    return InternalError(
        "SX-POSITION-LARGE",
        f"the text of a task's position has {size:,} bytes; the limit is {LONGEST:,}",
        cause="a broker takes 4,096 bytes with a committed offset, and what is kept there must stay below",
        fix="please report this, with the job's graph",
    )


def first_clock(facts: LinkFacts, number: int) -> SourceClock:
    """The clock of a partition of which nothing was ever committed."""
    if facts.clocks is not None and number < len(facts.clocks):
        return SourceClock(*facts.clocks[number])
    return SourceClock() if facts.since is None else SourceClock(value=facts.since)


def clock_of(facts: LinkFacts, number: int, position: Position | None) -> SourceClock:
    """The clock of a partition, whose position was committed; None: nothing was. A partition of a queue that was not used for a
    while is behind the others: it begins again with the clock that the facts say.
    """
    first = first_clock(facts, number)
    return first if position is None else position.clock.stated(first.value)


def add(one: Counts, other: Counts) -> Counts:
    return Counts(
        one.rows_in + other.rows_in,
        one.rows_out + other.rows_out,
        one.skipped + other.skipped,
        one.dead + other.dead,
        one.late + other.late,
        _sent(one, other),
    )


def _sent(one: Counts, other: Counts) -> dict[str, int] | None:
    """Where nothing was counted, nothing was sent. Else it must be known of both."""
    if Counts() in (one, other):
        return other.sent if one == Counts() else one.sent
    if one.sent is None or other.sent is None:
        return None
    return {link: one.sent.get(link, 0) + other.sent.get(link, 0) for link in sorted({*one.sent, *other.sent})}


def of_inputs(stage: Stage, held: Mapping[Partition, Position | None]) -> dict[str, list[int | None]]:
    """Of a task's positions, the committed offset in each partition, by topic; only for the user's topics."""
    topics = {link.topic for link in stage.ingress if link.kind == "input"}
    found: dict[str, list[int | None]] = {}
    for partition, position in sorted(held.items(), key=itemgetter(0)):
        if partition.topic in topics:
            found.setdefault(partition.topic, []).append(None if position is None else position.offset)
    return found


def next_offsets(
    stage: Stage, facts: Mapping[str, LinkFacts], committed: Mapping[str, Sequence[int | None]]
) -> dict[str, list[int]]:
    """Where a task would continue in the user's topics that it reads: the value for ``start=`` of a next job.

    Args:
        stage: the task.
        facts: of the job's links, by name.
        committed: by topic, the committed offset in each partition; None where the task has not committed yet.

    Returns:
        By topic, the next offset to read in each partition: the committed one, or else the offset where the job began to read.
        Partitions that were added while the job ran follow; 0 if it has read nothing of one. A topic that ``committed`` does
        not name is missing.
    """
    found = {}
    for link in stage.ingress:
        if link.kind == "input" and link.topic in committed and link.name in facts:
            known = facts[link.name]
            starts = known.start or [0] * known.partitions
            found[link.topic] = [
                (start or 0) if offset is None else offset
                for start, offset in zip_longest(starts, committed[link.topic])
            ]
    return found


def stopped(graph: Graph, facts: Mapping[str, LinkFacts], *, closes: bool) -> dict[str, LinkFacts]:
    """The facts of a job's links from when it was stopped: its inputs without an end stop. ``closes``: so do their clocks."""
    ends = {
        link.name: msgspec.structs.replace(facts[link.name], stops=True, closes=closes)
        for link in graph.links
        if is_endless(link) and link.name in facts
    }
    return {name: ends.get(name, known) for name, known in facts.items()}


def continued(
    graph: Graph,
    facts: Mapping[str, LinkFacts],
    positions: Mapping[str, Mapping[str, Sequence[int]]],
    made_anew: Collection[str] = (),
) -> dict[str, LinkFacts]:
    """The facts of a job's links when it goes on from the positions of another job.

    A partition that the other job did not know is read from its beginning: it was added since.

    Args:
        graph: of the new job.
        facts: of its links, as the topics are now.
        positions: by task, by topic, what :func:`next_offsets` gave for the other job.
        made_anew: topics that were deleted and created again since that job was submitted.

    Raises:
        InputError: ``SX-INPUT-RECREATED``: a topic was made anew. ``SX-RESUME-TOPIC``: it has fewer partitions than the other
            job has read.
    """
    found = dict(facts)
    for stage in graph.stages:
        known = positions.get(stage.name, {})
        for link in stage.ingress:
            if link.kind == "input" and link.topic in known and link.name in facts:
                start, partitions = list(known[link.topic]), facts[link.name].partitions
                where = {"task": stage.name, "topic": link.topic}
                if link.topic in made_anew:
                    raise recreated(link.topic, "the job to resume", _WITHOUT, where)
                if len(start) > partitions:
                    raise fewer_partitions(link.topic, partitions, "the job to resume", len(start), _WITHOUT, where)
                start += [0] * (partitions - len(start))
                found[link.name] = msgspec.structs.replace(facts[link.name], start=start)
    return found


def total(positions: Iterable[Position | None]) -> Counts:
    """The counts of a whole task, added up over all its partitions."""
    result = Counts()
    for position in positions:
        if position is not None:
            result = add(result, position.counts)
    return result
