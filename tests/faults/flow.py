"""One job of a fault run: what is fed into it, what a concurrent reader sees come out, and whether that is right."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from queues.client import BEGINNING
from queues.dead_letters import row_of
from tests.faults.shapes import KEYS, PARTITIONS, SOURCE, Shape
from tests.faults.sights import KINDS, Sight
from tests.waiting import PATIENCE, until

MARGIN = 20
"""Records that are missing in each partition until the feed is finished."""
_QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 500}


class Verdict(Counter[str]):
    """``in``, ``out``, ``lost``, ``doubled``, ``out_of_order``: records, summed over jobs."""


class Feed:
    """Records into the input topics of one job, up to an end that is known beforehand.

    Args:
        kafka: where.
        topics: of :data:`PARTITIONS` partitions each.
        end: the offset at which each partition ends for the job.
        at: the time of a record, in milliseconds, by its number in its source.
    """

    def __init__(self, kafka: str, topics: list[str], end: int, at: Callable[[int], int] = int) -> None:
        self._at = at
        self._config = {"bootstrap.servers": kafka, **_QUIET}
        self._producer = Producer({**self._config, "enable.idempotence": True, "linger.ms": 100})
        self.end = end
        self.places = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
        self.sent = [0] * len(self.places)
        """How many records each source has given so far, by its number."""
        self._offsets = [array("q") for _ in self.places]

    def give(self, source: int, count: int) -> None:
        """So many more records of one source, fewer if it would come near its end."""
        place, offsets = self.places[source], self._offsets[source]
        first = self.sent[source]
        for number in range(first, min(first + count, self.end - MARGIN)):
            offsets.append(-1)
            self._produce(source, place, offsets, number)
        self._producer.poll(0)

    def _produce(self, source: int, place: TopicPartition, offsets: array[int], number: int) -> None:
        def stands(error: KafkaError | None, message: Any) -> None:
            assert error is None, f"the feed lost a record: {error}"
            offsets[number] = message.offset()

        key = f"{source}-{number % KEYS}"
        value = b'{"id":%d,"key":"%s","at":%d}' % (source * SOURCE + number, key.encode(), self._at(number))
        while True:
            try:
                self._producer.produce(place.topic, value, key.encode(), place.partition, on_delivery=stands)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self.sent[source] = number + 1
                return

    @property
    def waits(self) -> bool:
        """Whether Kafka has still to take some of what was given."""
        self._producer.poll(0)
        return len(self._producer) > 0

    def arrived(self) -> None:
        """Wait until all that was given stands in Kafka."""
        assert self._producer.flush(180) == 0, "Kafka does not take the feed"

    def finish(self) -> None:
        """Fill every partition up to its end; the marks of strangers' transactions count too."""
        consumer = Consumer({**self._config, "group.id": "nobody", "isolation.level": "read_uncommitted"})
        try:
            for source, place in enumerate(self.places):
                while True:
                    self.arrived()
                    high = until(lambda place=place: _bounds(consumer, place), what="a leader")[1]
                    if high >= self.end:
                        break
                    for number in range(self.sent[source], self.sent[source] + self.end - high):
                        self._offsets[source].append(-1)
                        self._produce(source, place, self._offsets[source], number)
        finally:
            consumer.close()

    def offset(self, number: int) -> int:
        """Where a record stands in its partition."""
        source, position = divmod(number, SOURCE)
        return self._offsets[source][position]

    def expected(self) -> Iterator[int]:
        """Ids of the records that stand before the end."""
        for source, offsets in enumerate(self._offsets):
            for number, offset in enumerate(offsets):
                if 0 <= offset < self.end:
                    yield source * SOURCE + number

    def given(self) -> Iterator[int]:
        """Ids of all records that were given, also those of which Kafka has not said yet where they stand."""
        for source, sent in enumerate(self.sent):
            yield from range(source * SOURCE, source * SOURCE + sent)


class Flow:
    """A job, its feed, and a reader that looks on all the time.

    Args:
        kafka: its own address, past all proxies.
        shape: of the job.
        name: unique in the deployment.
        records: how many go in, about.
        folder: for the spec and for files.
        seconds: how long the run is about to take.
        disk: for the files that come out; None: the same folder.
    """

    def __init__(
        self,
        kafka: str,
        shape: Shape,
        name: str,
        records: int,
        folder: Path,
        seconds: float,
        disk: Path | None = None,
    ) -> None:
        self.shape, self.name = shape, name
        self.config: dict[str, Any] = {"bootstrap.servers": kafka, **_QUIET}
        self.folder = folder / name
        self.folder.mkdir()
        topics = [f"{name}-in{number}" for number in range(shape.inputs)]
        self._out = str((disk or folder) / name / "out") if shape.files else f"{name}-out"
        self._make([*topics, *([] if shape.files else [self._out])])
        sources = max(1, len(topics) * PARTITIONS)
        end = max(records // sources, 100)
        self._made = 0 if topics else records
        self._steps = 0
        self.feed = Feed(kafka, topics, end, shape.at)
        self.spec = self.folder / "job.py"
        self.spec.write_text(shape.spec(name, topics, self._out, end, records, records / seconds, self.spec.parent))
        self.sight = self._new_sight()
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._watch_files if shape.files else self._watch_topic, daemon=True)
        self._reader.start()

    def _new_sight(self) -> Sight:
        return KINDS[self.shape.results](self.shape)

    def _make(self, topics: list[str]) -> None:
        admin = AdminClient(self.config)
        new = [NewTopic(topic, num_partitions=PARTITIONS) for topic in topics]
        for future in admin.create_topics(new).values() if new else ():
            future.result(60)
        until(lambda: set(topics) <= set(admin.list_topics(timeout=60).topics), what="the topics to be known")

    @property
    def places(self) -> list[TopicPartition]:
        """The partitions of its output topic."""
        return [TopicPartition(self._out, number) for number in range(PARTITIONS)]

    def close(self) -> None:
        """Look on no longer."""
        self._stop.set()
        self._reader.join()

    def step(self, share: float) -> None:
        """Feed on, so that about ``share`` of everything has gone in; and a little in any case, in the end more and more seldom.

        Nothing while Kafka has not taken the last: librdkafka's idempotent producer spins as long as records queue behind such as
        a broker does not answer for.
        """
        feed = self.feed
        if feed.waits:
            return
        self._steps += 1
        for source, sent in enumerate(feed.sent):
            left = max(feed.end - MARGIN - sent, 1)
            rarely = max((feed.end // (4 * left)) ** 2, 1)  # so that some are left, however long the run takes
            feed.give(source, max(int(self._steps % rarely == 0), int(share * feed.end) - sent))

    def check(self, *, whole: bool = True) -> Verdict:
        """After the job's end: everything came out, once, and is still there as it was seen.

        Args:
            whole: whether the job is complete. If not, nothing can be said of what is missing. Records also go on while they
                are read here: those that Kafka has not confirmed yet may come out, and the reader may have seen more.
        """
        expected = set(range(self._made)) if self._made else set(self.feed.expected() if whole else self.feed.given())
        copies = len(self.shape.vias)
        final = self._new_sight()
        for place, value in self._files() if self.shape.files else self._all(self._out):
            final.record(place, value)
        with contextlib.suppress(AssertionError):
            until(lambda: self.sight.count >= final.count, what="the reader to have seen all", timeout=60)
        self.close()
        gone = 0
        for place, seen in self.sight.places.items():
            stands = final.places.get(place, array("q"))
            if stands[: len(seen)] != (seen if whole else seen[: len(stands)]):
                gone += 1
                self.sight.wrong.append(f"what was seen at {place} is not there any more")
        unseen = final.count - self.sight.count
        bad = self.shape.bad
        strange = {copy for copy in final.seen if bad and copy % bad == 0}
        for value in self._letters() if bad else ():  # the second place where a record may be, instead of the first
            final.record("letters", value)
        strange |= {copy for copy in final.places.get("letters", ()) if copy % bad}
        wanted = final.wanted(expected)
        lost = wanted - final.seen if whole else set[int]()
        wrong_windows = final.wrong_values(expected)
        strange |= final.seen - wanted
        self.wrong = [*self.sight.wrong, *final.wrong]
        self.wrong += [f"{copy // copies} is lost" for copy in sorted(lost)[:10]]
        self.wrong += [f"{copy // copies} should not be there" for copy in sorted(strange)[:10]]
        return Verdict(
            {
                "in": len(expected),
                "out": final.count,
                "lost": len(lost) + gone,
                "doubled": max(final.doubled, self.sight.doubled) + len(strange),
                "out_of_order": max(final.out_of_order, self.sight.out_of_order),
                "unseen": unseen,
                "wrong_windows": wrong_windows,
                **final.told(),
            }
        )

    # What comes out

    def _consumer(self, topic: str, partitions: int) -> Consumer:
        about = {"group.id": "nobody", "enable.auto.commit": False, "isolation.level": "read_committed"}
        ends = {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
        consumer = Consumer({**self.config, **about, **ends})
        consumer.assign([TopicPartition(topic, number, BEGINNING) for number in range(partitions)])
        return consumer

    def _watch_topic(self) -> None:
        consumer = self._consumer(self._out, PARTITIONS)
        while not self._stop.is_set():
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    self.sight.record(message.partition(), message.value())
        consumer.close()

    def _letters(self) -> Iterator[bytes]:
        """The records of the job's dead letters, which stand on topics named by its id."""
        for topic in AdminClient(self.config).list_topics(timeout=60).topics:
            if topic.endswith(".dead") and topic.split(".")[1].startswith(f"{self.name}-"):
                for _, value in self._all(topic, 1):
                    yield json.dumps(row_of(value).to_pylist()[0]).encode()

    def _all(self, topic: str, partitions: int = PARTITIONS) -> Iterator[tuple[int, bytes]]:
        consumer = self._consumer(topic, partitions)
        ended: set[int] = set()
        deadline = time.monotonic() + PATIENCE
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end: a transaction holds it up"
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    ended.discard(message.partition())
                    yield message.partition(), message.value()
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        consumer.close()

    def _watch_files(self) -> None:
        known: set[str] = set()
        while not self._stop.wait(0.1):
            stand = {path.name for path in Path(self._out).glob("part-*")}
            for name in known - stand:
                self.sight.wrong.append(f"{name} was there and is gone")
                self.sight.doubled += 1
            for name in sorted(stand - known):
                for value in (Path(self._out) / name).read_bytes().splitlines():
                    self.sight.record(name, value)
            known |= stand

    def _files(self) -> Iterator[tuple[str, bytes]]:
        for path in sorted(Path(self._out).glob("part-*")):
            for value in path.read_bytes().splitlines():
                yield path.name, value


def _bounds(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """The first offset of a partition and the one after its last. A broker that was killed may not lead it again yet."""
    try:
        found: tuple[int, int] = consumer.get_watermark_offsets(place, timeout=60)
    except KafkaException as error:
        raise AssertionError(str(error)) from error
    return found


def abandoned(kafka: str, topic: str, partition: int, alive: float) -> Callable[[], None]:
    """A stranger writes into a transaction and is never heard of again: the broker ends it after ``alive`` seconds.

    Gives a call that forgets its producer.
    """
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            **_QUIET,
            "transactional.id": f"stranger-{topic}-{partition}-{time.monotonic_ns()}",
            "transaction.timeout.ms": int(alive * 1000),
        }
    )
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(topic, b'{"id":-1,"key":"never"}', partition=partition)
    if producer.flush(120):
        raise KafkaException("the stranger could not write")
    held = [producer]
    return held.clear


__all__ = ["Feed", "Flow", "Sight", "Verdict", "abandoned"]
