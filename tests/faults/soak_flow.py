"""What goes into a soak's job and what comes out. Topics keep records for a while only, so the output is read as it goes by."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.shapes import PARTITIONS
from tests.faults.soak_records import RETENTION, SEGMENT, Sight, Tally, record
from tests.waiting import until

QUEUED = 50_000
"""Records that wait for Kafka to take them, at most."""
BURST = 20.0
"""Seconds for which the feed may make up, at most, if it could not go on for a while."""

SPEC = """
import pyarrow as pa
from sardonyx import Job, kafka

def first(rows: pa.Table) -> pa.Table:
    return rows

def second(rows: pa.Table) -> pa.Table:
    return rows

def third(rows: pa.Table) -> pa.Table:
    return rows

job = Job("soak", partitions={partitions})
read = job.input("read", kafka("{topic}", start="earliest", schema="id bigint, key string, text string"))
one = job.task("first", first, after=read, max_peers=2)
two = job.task("second", second, after=one, max_peers=2)
job.output("write", kafka("{out}", key="key"), after=job.task("third", third, after=two, max_peers=2))
"""


class SoakFlow:
    """The topics of a soak, its feed and its reader.

    Args:
        kafka: where.
        rate: records a second; 0: as many as go through.
        backlog: records that have gone in and not come out, at most.
        folder: for the job's file.
    """

    def __init__(self, kafka: str, rate: float, backlog: int, folder: Path) -> None:
        self.config: dict[str, Any] = {"bootstrap.servers": kafka, "log_level": 0, "reconnect.backoff.max.ms": 500}
        self.topic, self.out = "soak-in", "soak-out"
        self._rate, self._backlog = rate, backlog
        self._due = 0.0
        self.given = 0
        self.held = 0.0
        """Seconds in which nothing went in, because too much had not come out."""
        self.tally = Tally()
        self.sight = Sight()
        self.failed: list[str] = []
        self._at = dict.fromkeys(range(PARTITIONS), 0)
        self._stop = threading.Event()
        self._make()
        self.spec = folder / "soak.py"
        self.spec.write_text(SPEC.format(topic=self.topic, out=self.out, partitions=PARTITIONS))
        self._producer = Producer(
            {
                **self.config,
                "enable.idempotence": True,
                "linger.ms": 100,
                "compression.type": "lz4",
                "delivery.report.only.error": True,
                "on_delivery": self._delivered,
            }
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def feed(self) -> SoakFlow:
        """As :class:`tests.faults.flow.Flow` has one."""
        return self

    @property
    def seen(self) -> int:
        return self.sight.count

    @property
    def ends(self) -> list[int]:
        """How many records each source has given."""
        return [len(range(source, self.given, PARTITIONS)) for source in range(PARTITIONS)]

    def step(self, seconds: float) -> None:
        """Give what is due after so many seconds more."""
        self._due = min(self._due + seconds * self._rate, self.given + BURST * self._rate)
        until_ = self.given + 5 * QUEUED if self._rate == 0 else int(self._due)
        began = time.monotonic()
        while self.given < until_ and len(self._producer) < QUEUED and time.monotonic() < began + 0.5:
            if self.given - self.seen >= self._backlog:
                self.held += seconds
                break
            for _ in range(min(1000, until_ - self.given)):
                source, number = self.given % PARTITIONS, self.given // PARTITIONS
                key, value = record(source, number)
                self._producer.produce(self.topic, value, key, source)
                self.tally.add(key, value)
                self.given += 1
            self._producer.poll(0)
        self._producer.poll(0)

    def arrived(self) -> None:
        """Wait until all that was given is in Kafka."""
        assert self._producer.flush(120) == 0, "Kafka does not take the feed"

    def up_to_date(self) -> bool:
        """Whether all that is committed in the output has been read."""
        consumer = Consumer({**self.config, "group.id": "nobody", "isolation.level": "read_committed"})
        try:
            ends = [consumer.get_watermark_offsets(place, timeout=60)[1] for place in self._places(self.out)]
        finally:
            consumer.close()
        return all(self._at[number] >= end for number, end in enumerate(ends))

    def input_ends(self) -> list[int]:
        """The end offsets of the input: those of the feed, if no other process has written there and nothing was lost."""
        consumer = Consumer({**self.config, "group.id": "nobody"})
        try:
            return [consumer.get_watermark_offsets(place, timeout=60)[1] for place in self._places(self.topic)]
        finally:
            consumer.close()

    def close(self) -> None:
        self._stop.set()
        self._reader.join()

    def _places(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def _make(self) -> None:
        admin = AdminClient(self.config)
        kept = {"segment.bytes": str(SEGMENT), "retention.bytes": str(RETENTION), "retention.ms": "-1"}
        topics = [NewTopic(topic, num_partitions=PARTITIONS, config=kept) for topic in (self.topic, self.out)]
        for future in admin.create_topics(topics).values():
            future.result(30)
        until(lambda: {self.topic, self.out} <= admin.list_topics(timeout=60).topics.keys(), what="the topics")

    def _delivered(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self.failed.append(f"the feed lost a record: {error}")

    def _read(self) -> None:
        """Read what comes out. Its topic may have lost what was not read in time: then this is an error, and no jump."""
        about = {
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        consumer = Consumer({**self.config, **about})
        consumer.assign([TopicPartition(self.out, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        while not self._stop.is_set():
            for message in consumer.consume(2000, 0.1):
                error = message.error()
                if error is None:
                    self.sight.record(message.value())
                    self._at[message.partition()] = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._at[message.partition()] = message.offset()
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.failed.append(f"the reader was too slow: {error}")
        consumer.close()


def reached(positions: Mapping[str, Mapping[str, list[int]]]) -> list[int]:
    """How many records of each source a job has read. The offset of a record is its number: no other process writes there."""
    ((found,),) = (task.values() for task in positions.values())
    return found


__all__ = ["SoakFlow", "reached"]
