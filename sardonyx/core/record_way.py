"""In which batches a record was worked, and which messages hold what was made of it. Pure.

What tasks write says which offsets its batch has read (:mod:`sardonyx.core.batch_origins`). So the way of a record is walked
from task to task: what was found on the links into a task are the offsets to look for in what it writes. Of a batch it is known
what it wrote, and not which of its rows is made from which. So a message that is found *may* hold something of the record, unless
its batch has read no other row. A message that is not found does not exist, if all was read that may be there: then the batch has
written nothing, and the record was dropped. What was deleted, or says nothing of its batch, is not known, and nothing is guessed.

Results of windows and joins say from which offset on the rows came that their shard held. So the record may be in each result of
its shard from the batch that took it in until the shard holds it no longer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sardonyx.core.batch_origins import Origin, Span, encode
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Link, Stage
from sardonyx.core.positions import Partition, Position
from sardonyx.core.spec import stateful
from sardonyx.core.text import counted, listed

MOST = 500
"""Messages that may hold something of a record, on the links into one task: with more, its way is not followed further."""


class Written(NamedTuple):
    """A message with rows that a task has written."""

    offset: int
    at: float | None
    """When, seconds since 1970."""
    rows: int
    origin: Origin | None
    """None: it does not say it."""
    file: str = ""
    """In a listing of files: the file that holds its rows, in the folder of the output. Empty: none that is complete."""
    chunk: str = ""
    """The same: what waits to be merged with others."""
    merges: tuple[str, str] | None = None
    """The same: the last chunk that was merged, and the file that it was merged to; empty: each became a file of its own."""


class Told(NamedTuple):
    """A committed batch of which its peer has told."""

    at: float
    rows_out: int
    """Rows that its function gave, before the conditions of edges."""
    dead: int
    """Records that became dead letters."""
    origin: Origin


class Seen(NamedTuple):
    """What was read of one partition that a task writes."""

    messages: Sequence[Written]
    """All with rows, from ``begins`` on."""
    begins: int
    deleted: int
    """Before this offset messages may have been deleted; 0: none."""
    to_end: bool
    """Nothing that was committed before is missing at the end."""
    why: str = ""
    """Why it could not be read at all."""


class Place(NamedTuple):
    """One message that a task reads."""

    partition: int
    offset: int


class Batch(NamedTuple):
    """A batch that has worked the record."""

    by: str
    """Who worked it, as :attr:`sardonyx.core.batch_origins.Origin.by`."""
    read: Sequence[tuple[str, Span]]
    """What it has read with the record, or with what was made of it: links, and offsets."""
    rows: int
    """How many rows it has read in all."""
    at: float | None
    """When it wrote, seconds since 1970."""


class Output(NamedTuple):
    """Messages of one partition that hold what batches have made which have worked the record."""

    link: Link
    partition: int
    offsets: Sequence[int]
    rows: int
    sure: bool
    """They hold something of the record: these batches have read no other row."""
    files: Sequence[str] = ()
    """In a listing of files: those that are listed there."""


@dataclass
class TaskWay:
    """One task on the way of a record."""

    task: str
    places: dict[str, list[Place]] = field(default_factory=dict)
    """By link, the messages that it reads and that may hold something of the record."""
    whole: bool = True
    """There are no others."""
    sure: bool = True
    """Each of them holds something of the record."""
    batches: list[Batch] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    dropped: bool = False
    """Its batches have written nothing."""
    unknown: list[str] = field(default_factory=list)
    """What cannot be known, and why."""

    @property
    def reached(self) -> bool:
        """Whether something of the record may have come to it."""
        return bool(self.places) or not self.whole


class ReadWritten(Protocol):
    """Reads what a task has written to a link, by partition, backwards until there is enough."""

    def __call__(self, link: Link, enough: Callable[[Sequence[Written]], bool]) -> dict[int, Seen]: ...


def record_way(
    graph: Graph,
    facts: Mapping[str, LinkFacts],
    positions: Mapping[str, Mapping[Partition, Position | None]],
    record: tuple[str, int, int],
    read: ReadWritten,
    *,
    ended: Collection[str] = (),
    holding: Collection[str] = (),
    told: Callable[[str], Sequence[Told]] = lambda _: (),
    done: Collection[str] = (),
    changed: bool = False,
) -> list[TaskWay]:
    """The way of a record, for each task that it may have come to, in the order of the tasks.

    Args:
        graph: of the job, which keeps its lineage.
        facts: of its links.
        positions: what the groups of the tasks have committed, asked before anything is read.
        record: the topic of its source, the partition, the offset.
        read: reads what was written.
        ended: tasks that are complete.
        holding: tasks that hold rows back, such as those with windows.
        told: what peers have told of the batches of a task. It is asked only where what was written does not tell.
        done: of the tasks that hold rows back, those that have written all that they will ever make of the record.
        changed: the job has had another version: it may have written where this one writes nothing any more.
    """
    topic, partition, offset = record
    ways = {stage.name: TaskWay(stage.name) for stage in graph.stages}
    for stage in graph.stages:
        for link in stage.ingress:
            if link.topic == topic and link.kind != "internal":
                ways[stage.name].places[link.name] = [Place(partition, offset)]
    for stage in graph.stages:
        way = ways[stage.name]
        if way.reached:
            walk = _Walk(facts, stage, way, read, told, changed=changed)
            name = stage.name
            walk.go(positions.get(name, {}), ended=name in ended, holds=name in holding, done=name in done)
            walk.pass_on(ways)
    return [ways[stage.name] for stage in graph.stages if ways[stage.name].reached]


class _Walk:
    """One task, while what it has made of a record is looked for."""

    def __init__(
        self,
        facts: Mapping[str, LinkFacts],
        stage: Stage,
        way: TaskWay,
        read: ReadWritten,
        told: Callable[[str], Sequence[Told]],
        *,
        changed: bool,
    ) -> None:
        self._facts, self._stage, self._way, self._read, self._told = facts, stage, way, read, told
        self._changed = changed
        self._incomplete: set[str] = set()
        """Links to which something may have been written that was not found."""

    def go(self, positions: Mapping[Partition, Position | None], *, ended: bool, holds: bool, done: bool) -> None:
        way, stage = self._way, self._stage
        if not way.whole:
            way.unknown.append("all that came to it")
            self._lose(stage.egress)
        if sum(map(len, way.places.values())) > MOST:
            way.unknown.append("where it went from here: too many messages may hold something of it")
            self._lose(stage.egress)
            return
        worked = self._worked(positions, ended=ended)
        if not worked:
            return
        results = [link for link in stage.egress if link.kind in ("internal", "parts") or link.says_its_batch]
        states = [link for link in stage.egress if link.kind == "state"]
        found = {link.name: self._written(link, worked) for link in states}
        found |= {link.name: self._written(link, worked, holds=holds) for link in results}
        signs = [(message, spans) for seen in found.values() for each in seen for message, spans in each.messages]
        # A result that is made of rows that were held before is not a sign that its batch has worked the record.
        took = (
            (message.at, message.origin, [each for each in spans if _took(each, worked)]) for message, spans in signs
        )
        way.batches = _batches(sign for sign in took if sign[2])
        keeps = holds or stateful(stage.task)
        if holds and not done:
            way.unknown.append("what it gives of it from now on: it may still hold it, or give it again")
        self._outputs(results, found, holds=holds)
        if keeps and not holds:
            way.unknown.append("what it gives of it later: its state does not say of which rows it is")
        read = sum(len(offsets) for each in worked.values() for offsets in each.values())
        certain = not keeps and way.whole and read == sum(len({*places}) for places in way.places.values())
        way.dropped = certain and self._wrote_nothing(results)
        if not way.batches and not way.dropped and self._told_of(worked) and certain:
            way.dropped, way.unknown, self._incomplete = True, [], set()
        if keeps and not (holds and done):
            self._lose(stage.egress)
        if not way.batches and not way.dropped:
            way.unknown.append(f"in which batch it was worked: {self._why_no_batch([*states, *results])}")

    def _worked(
        self, positions: Mapping[Partition, Position | None], *, ended: bool
    ) -> dict[str, dict[int, list[int]]]:
        """By link and partition the offsets that the task has read, ascending."""
        worked: dict[str, dict[int, list[int]]] = {}
        for link in self._stage.ingress:
            for place in sorted(self._way.places.get(link.name, ())):
                position = positions.get(Partition(link.topic, place.partition))
                forgotten = ended and position is None and link.kind == "internal"
                if forgotten or (position is not None and place.offset < position.offset):
                    worked.setdefault(link.name, {}).setdefault(place.partition, []).append(place.offset)
        return {name: {number: sorted({*offsets}) for number, offsets in each.items()} for name, each in worked.items()}

    def _outputs(self, results: list[Link], found: Mapping[str, list[_Found]], *, holds: bool) -> None:
        way, stage = self._way, self._stage
        for link in results:
            if (
                link.says_its_batch
                and link.name not in self._incomplete
                and not any(e.messages for e in found[link.name])
            ):
                way.unknown.append(
                    f"whether it is in {link.topic}: no record there says so, as far as they are still there"
                )
            for each in found[link.name]:
                if each.messages:
                    messages = [message for message, _ in each.messages]
                    alone = all(m.origin is not None and m.origin.rows == 1 for m in messages)
                    sure = way.sure and alone and not holds
                    offsets, rows = [m.offset for m in messages], sum(m.rows for m in messages)
                    files = list(dict.fromkeys(m.file for m in messages if m.file))
                    way.outputs.append(Output(link, each.partition, offsets, rows, sure, files))
        topics = sorted({link.topic for link in stage.egress if link.kind == "output" and not link.says_its_batch})
        if topics:
            way.unknown.append(
                f"which records of {listed(topics)} it became: they say it only of an output with lineage=True"
            )
        elif self._other_output:
            way.unknown.append(f"what {stage.last.name} wrote of it: its output does not say of which batch it is")

    @property
    def _other_output(self) -> bool:
        """Whether results go where nothing is listed on a link."""
        return self._stage.last.type == "output" and not any(
            link.kind in ("output", "parts") for link in self._stage.egress
        )

    def _wrote_nothing(self, results: list[Link]) -> bool:
        """Whether it is certain that the batches have written nothing."""
        whole = self._way.whole and not self._incomplete
        elsewhere = self._other_output or any(link.kind == "output" for link in self._stage.egress)
        return bool(results) and whole and not self._way.outputs and not elsewhere and not self._changed

    def _written(
        self, link: Link, worked: Mapping[str, Mapping[int, Sequence[int]]], *, holds: bool = False
    ) -> list[_Found]:
        """What the batches that have read these offsets have written to one link; of a task that holds rows back, also what later
        ones have that may be made of them.
        """
        places = [(name, number, offsets) for name, each in worked.items() for number, offsets in each.items()]

        def enough(messages: Sequence[Written]) -> bool:
            return all(
                _after_earlier(messages, name, number, offsets[0]) is not None for name, number, offsets in places
            )

        found: list[_Found] = []
        missing: list[tuple[int, Seen]] = []
        for number, read in sorted(self._read(link, enough).items()):
            seen = _of_held_rows(read) if holds else read
            taken = [(message, spans) for message in seen.messages if (spans := list(_spans(message, places)))]
            found.append(_Found(number, taken))
            if seen.why or not all(_is_complete(seen, *place) for place in places):
                missing.append((number, seen))
        if missing:
            self._incomplete.add(link.name)
        if missing and link.kind != "state":
            others = f", and so in {counted(len(missing) - 1, 'other partition')}" if len(missing) > 1 else ""
            self._way.unknown.append(_what_is_missing(link, *missing[0]) + others)
        return found

    def _told_of(self, worked: Mapping[str, Mapping[int, Sequence[int]]]) -> bool:
        """Take the batches from what their peers have told. Whether it is certain by that, too, that they have given nothing."""
        places = [(name, number, offsets) for name, each in worked.items() for number, offsets in each.items()]
        left = {(name, number): {*offsets} for name, number, offsets in places}
        told = [(each, spans) for each in self._told(self._stage.name) if (spans := list(_spans(each, places)))]
        for _, spans in told:
            for name, span in spans:
                left[name, span.partition] = {
                    offset for offset in left[name, span.partition] if not span.start <= offset < span.end
                }
        self._way.batches = _batches((each.at, each.origin, spans) for each, spans in told)
        return not any(left.values()) and not any(each.rows_out or each.dead for each, _ in told)

    def _lose(self, links: Iterable[Link]) -> None:
        self._incomplete |= {link.name for link in links}

    def _why_no_batch(self, links: list[Link]) -> str:
        if not links:
            return "it writes nothing that says it"
        if self._incomplete & {link.name for link in links}:
            return "what it has written is deleted, or does not say it, or was not read"
        return "its batch has written nothing that says it"

    def pass_on(self, ways: Mapping[str, TaskWay]) -> None:
        """Tell the tasks after this one what to look for."""
        for output in self._way.outputs:
            if output.link.kind == "internal":
                places = ways[output.link.target].places.setdefault(output.link.name, [])
                places += [Place(output.partition, offset) for offset in output.offsets]
                ways[output.link.target].sure &= output.sure
        for link in self._stage.egress:
            if link.kind == "internal" and (link.name in self._incomplete or not self._way.whole):
                ways[link.target].whole = False


class _Found(NamedTuple):
    """The messages of one partition whose batches have worked the record, each with what was read of it: links, and offsets."""

    partition: int
    messages: list[tuple[Written, list[tuple[str, Span]]]]


def _spans(message: Written | Told, places: Iterable[tuple[str, int, Sequence[int]]]) -> Iterator[tuple[str, Span]]:
    """What the batch of a message has read, where that is one of these offsets."""
    for link, number, offsets in places:
        span = None if message.origin is None else message.origin.span([link], number)
        if span is not None and _is_among(offsets, _first(span), span.end):
            yield link, span


def _is_among(offsets: Sequence[int], start: int, end: int) -> bool:
    at = bisect_left(offsets, start)
    return at < len(offsets) and offsets[at] < end


def _first(span: Span) -> int:
    """From which offset on the rows came that a message may be made of."""
    return span.start if span.since is None else span.since


def _took(read: tuple[str, Span], worked: Mapping[str, Mapping[int, Sequence[int]]]) -> bool:
    """Whether it is what a batch has read itself that is one of these offsets."""
    link, span = read
    return _is_among(worked[link][span.partition], span.start, span.end)


def _of_held_rows(seen: Seen) -> Seen:
    """The same, in which results of a task that holds rows back say of which rows they are, or nothing."""
    messages = [
        message
        if message.origin is None
        or all(span.since is not None for each in message.origin.spans.values() for span in each)
        else message._replace(origin=None)
        for message in seen.messages
    ]
    return seen._replace(messages=messages)


def _after_earlier(messages: Sequence[Written], link: str, partition: int, offset: int) -> int | None:
    """The number of the message after the last one whose batch had read this partition before; None: there is none such."""
    for number in range(len(messages) - 1, -1, -1):
        origin = messages[number].origin
        span = None if origin is None else origin.span([link], partition)
        if span is not None and span.end <= offset:
            return number + 1
    return None


def _is_complete(seen: Seen, link: str, partition: int, offsets: Sequence[int]) -> bool:
    """Whether all that batches which have read these offsets have written there was read, and says so."""
    begin = _after_earlier(seen.messages, link, partition, offsets[0])
    if begin is None:
        if seen.begins > 0 or seen.deleted > 0:
            return False
        begin = 0
    for message in seen.messages[begin:]:
        if message.origin is None:
            return False
        span = message.origin.span([link], partition)
        if span is not None and _first(span) > offsets[-1]:  # of a later batch, and no earlier row is held any more
            return True
    return seen.to_end


def _what_is_missing(link: Link, number: int, seen: Seen) -> str:
    name = f"{link.name if link.owned else link.topic}[{number}]"
    if seen.why:
        return f"what it has written to {name}: {seen.why}"
    if any(message.origin is None for message in seen.messages):
        return f"all of what it has written to {name}: messages there do not say of which batch they are"
    if seen.begins > seen.deleted:
        return f"what it has written to {name} before offset {seen.begins:,}: it was not read in time"
    if seen.deleted:
        why = ", since its reader has read it" if link.owned else ""
        return f"what it has written to {name} before offset {seen.deleted:,}: it is deleted{why}"
    return f"what it has written to the end of {name}: a transaction there is open"


def _batches(signs: Iterable[tuple[float | None, Origin | None, list[tuple[str, Span]]]]) -> list[Batch]:
    """The batches of these signs, the earliest first. A sign says when its batch wrote, what the batch was made from, and what of
    that is of the record.
    """
    batches: dict[bytes, Batch] = {}
    for at, origin, spans in signs:
        own = None if origin is None else origin.own
        key = None if own is None else encode(own)
        if own is None or key is None:
            continue
        known = batches.get(key)
        times = [each for each in (at, None if known is None else known.at) if each is not None]
        read = [(link, span._replace(since=None)) for link, span in spans]
        batches[key] = Batch(own.by, read, own.rows, min(times, default=None))
    return sorted(batches.values(), key=lambda batch: (batch.at or 0.0, list(batch.read)))


__all__ = [
    "MOST",
    "Batch",
    "Output",
    "Place",
    "ReadWritten",
    "Seen",
    "TaskWay",
    "Told",
    "Written",
    "record_way",
]
