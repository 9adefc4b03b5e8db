"""Compare what was written to the internal links of a running job with what was read from them, and what stands there unread.

Written and read are counts in committed positions. Unread rows are counted one message after the other, up to the end of each
partition as it was after the writers were asked. A look is repeated while tasks write in the meantime, so that what moves is not
taken for a loss: see :class:`sardonyx.core.link_counts.LinkTally`.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from contextlib import closing

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from queues import admin, topic_log
from queues.admin_client import CALL, admin_client, failed
from queues.client import CLIENT_LOG, onlooker_config
from queues.connectivity import kafka_unreachable
from queues.denied import refuse_denied
from queues.messages import rows_counted
from sardonyx.core import link_counts
from sardonyx.core.events import LinkFacts
from sardonyx.core.graph import Graph, Link
from sardonyx.core.link_counts import LinkTally, Positions
from sardonyx.core.positions import Partition
from sardonyx.runtime.settings import Settings

_LOOKS = 5
"""Looks at most. With each, tasks that write between two requests hide less of a loss."""
_ATTEMPTS = 3
"""Times that we begin again because records were trimmed that we were about to read."""
_AT_ONCE = 1_000


class Trimmed(Exception):
    """Records that were to be counted were read meanwhile, and trimmed."""


def audit(
    settings: Settings,
    graph: Graph,
    job: str,
    facts: Mapping[str, LinkFacts],
    only: Collection[str] | None = None,
    most: int | None = None,
) -> dict[str, LinkTally]:
    """Audit the internal links of a job, by name. What is unread is counted, so this takes as long as reading it once.

    Args:
        settings: connection to Kafka.
        graph: the job's graph.
        job: id of the job, whose links must exist.
        facts: the facts of the links, by link name.
        only: the links that are audited; None: all.
        most: rows of a link that are counted at most; None: any number.

    Returns:
        Unread, lost and twice are None where they are not known: see :mod:`sardonyx.core.link_counts`, because more rows were
        to be counted, or because the records were trimmed faster than they could be.

    Raises:
        SetupError: ``SX-KAFKA-UNREACHABLE``, ``SX-KAFKA-REFUSED``.
    """
    one = _Audit(settings, graph, job, facts, only, math.inf if most is None else most)
    for _ in range(_ATTEMPTS):
        try:
            return one.run()
        except Trimmed:
            continue
    return one.run(count=False)


class _Audit:
    def __init__(
        self,
        settings: Settings,
        graph: Graph,
        job: str,
        facts: Mapping[str, LinkFacts],
        only: Collection[str] | None,
        most: float,
    ) -> None:
        self._settings, self._graph, self._job, self._facts = settings, graph, job, facts
        links = [link for stage in graph.stages for link in stage.ingress if link.kind == "internal"]
        self._links = [link for link in links if only is None or link.name in only]
        self._most = most

    def run(self, *, count: bool = True) -> dict[str, LinkTally]:
        held = self._held({link.target for link in self._links}, stable=False)
        readers = {link.name: held[self._graph.stage(link.target).name] for link in self._links}
        read = {link.name: link_counts.read(link, readers[link.name]) for link in self._links}
        written = self._written(read)
        tallies = {link.name: LinkTally(read[link.name], written[link.name]) for link in self._links}
        unsettled = [link for link in self._links if not tallies[link.name].settled]
        few = [link for link in unsettled if (written[link.name] or 0) - read[link.name] <= self._most]
        if count and few:
            self._look(few, readers, written, tallies)
        for link in self._links:
            if link not in unsettled:
                tallies[link.name].close(None, exact=True)
        return tallies

    def _look(
        self,
        links: list[Link],
        readers: Mapping[str, Positions],
        written: dict[str, int | None],
        tallies: Mapping[str, LinkTally],
    ) -> None:
        starts = {
            partition: 0 if position is None else position.offset
            for link in links
            for partition, position in readers[link.name].items()
            if partition.topic == link.topic
        }
        with closing(_Scan(self._settings, starts)) as scan:
            for _ in range(_LOOKS):
                scan.up_to(self._ends(starts))
                for link in links:
                    tallies[link.name].look(written[link.name], scan.rows[link.topic])
                before, written = written, self._written({name: tally.read for name, tally in tallies.items()})
                still = {link.name for link in links if written[link.name] == before[link.name]}
                if len(still) == len(links):
                    break
            for link in links:
                tallies[link.name].close(scan.rows[link.topic], exact=link.name in still)

    def _written(self, read: Mapping[str, int]) -> dict[str, int | None]:
        """Rows that have been written, by link. Waits for transactions that are open, so that no row is read before it counts."""
        held = self._held({link.source for link in self._links}, stable=True)
        found: dict[str, int | None] = {}
        for link in self._links:
            stage = self._graph.stage(link.source)
            rows = link_counts.written(stage, link.name, held[stage.name], self._facts)
            # Fewer than were read: the brokers have dropped the positions of a task that ended.
            if rows is not None and rows < read[link.name]:
                rows = rows if link_counts.all_committed(stage, self._facts, held[stage.name]) else None
            found[link.name] = rows
        return found

    def _held(self, tasks: Collection[str], *, stable: bool) -> dict[str, Positions]:
        stages = [stage for stage in self._graph.stages if stage.name in tasks]
        return {**admin.held_positions(self._settings, stages, self._job, stable=stable)}

    def _ends(self, places: Collection[Partition]) -> dict[Partition, int]:
        """The ends of partitions, with transactions that are open: one may be decided whose end is not written yet."""
        began = time.monotonic()
        wanted = [TopicPartition(*place) for place in places]
        try:
            return topic_log.offsets_of(
                admin_client(self._settings),
                self._settings,
                wanted,
                OffsetSpec.latest(),
                IsolationLevel.READ_UNCOMMITTED,
            )
        except KafkaException as error:
            needs = ("Describe", topic_log.named(places))
            raise failed(self._settings, began, "tell where topics end", error.args[0], needs) from error


class _Scan:
    """Counts rows from some offsets on, up to those that the caller names."""

    def __init__(self, settings: Settings, starts: Mapping[Partition, int]) -> None:
        self.rows: Counter[str] = Counter()
        """By topic, those that were counted so far."""
        self._settings = settings
        self._reached = dict(starts)
        self._ahead: dict[Partition, deque[tuple[int, int]]] = {partition: deque() for partition in starts}
        """Offset and rows of messages that came, and are not asked for yet."""
        self._consumer = Consumer(
            {
                **onlooker_config(settings),
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
            },
            logger=CLIENT_LOG,
        )
        self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in starts.items()])

    def up_to(self, ends: Mapping[Partition, int]) -> None:
        """Count what stands before these offsets.

        Raises:
            Trimmed: a part of it is gone.
            SetupError: ``SX-KAFKA-UNREACHABLE``: nothing comes for longer than a transaction can stand open; ``SX-KAFKA-DENIED``.
        """
        began = heard = time.monotonic()
        patience = CALL + self._settings.peer.transaction_timeout
        while any(self._reached[partition] < end for partition, end in ends.items()):
            messages = self._consumer.consume(_AT_ONCE, timeout=0.2)
            for message in messages:
                self._take(message)
            heard = time.monotonic() if messages else heard
            if time.monotonic() - heard > patience:
                slow = next(partition for partition, end in ends.items() if self._reached[partition] < end)
                said = f"{slow.topic}[{slow.number}] stopped at offset {self._reached[slow]} of {ends[slow]}"
                raise kafka_unreachable(self._settings, began, said)
        for partition, end in ends.items():
            ahead = self._ahead[partition]
            while ahead and ahead[0][0] < end:
                self.rows[partition.topic] += ahead.popleft()[1]

    def _take(self, message: Message) -> None:
        refuse_denied(self._settings, message)
        partition = Partition(message.topic(), message.partition())
        error, offset = message.error(), message.offset()
        if error is None:
            self._reached[partition] = offset + 1
            self._ahead[partition].append((offset, rows_counted(dict(message.headers() or ()), unknown=0)))
        elif error.code() == KafkaError._PARTITION_EOF:
            self._reached[partition] = max(self._reached[partition], offset)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise Trimmed

    def close(self) -> None:
        self._consumer.close()
