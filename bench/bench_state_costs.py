"""What windows and keyed state would cost a batch, tried on a real broker before they are built: ``PYTHONPATH=. python
bench/bench_state_costs.py``.

- A transaction that writes to more partitions: those of a state log beside those of a link, and the group's own.
- Positions with more text: 240 bytes in place of 60, of each of 8 partitions.
- Peers that ask for their group's positions four times a second while others commit.
- Rows that are combined by key before they go into a link, beside rows that are not.

The two ways take turns, so that both meet the same load of the machine. Figures are in docs/performance.md.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from machine import machine

from queues.keys import checksums
from sardonyx.dev.services import embedded_services

PARTITIONS = 8
ROUNDS = 25
"""Pairs of measurements."""
COMMITS = 8
"""Transactions in each."""
BLOCK = 60_000
"""Bytes that a batch of 50,000 rows puts into a partition of a link, about."""
DELTA = 6_000
"""Bytes of changed keys in a partition of a state log."""
ROWS = 50_000
KEYS = 1_000


class Writer:
    """A transactional producer as a task's slot has one, with the group whose positions it commits."""

    def __init__(self, kafka: str) -> None:
        self.kafka = kafka
        self._producer = Producer(
            {
                "bootstrap.servers": kafka,
                "transactional.id": "bench",
                "linger.ms": 100,
                "retry.backoff.ms": 10,
                "compression.type": "none",  # the blocks are compressed already
            }
        )
        self._producer.init_transactions(30)
        self._consumer = Consumer({"bootstrap.servers": kafka, "group.id": "bench"})
        self._offset = 0
        self._bytes = np.random.default_rng(1).bytes(BLOCK + DELTA)

    def commit(self, sizes: dict[str, int], text: int = 60) -> None:
        """One transaction: a block of so many bytes to each partition of each topic, and the positions with so much text."""
        self._offset += 1
        self._producer.begin_transaction()
        for topic, size in sizes.items():
            for number in range(PARTITIONS):
                self._producer.produce(topic, self._bytes[:size], partition=number)
        places = [TopicPartition("in", n, self._offset, metadata="x" * text) for n in range(PARTITIONS)]
        self._producer.send_offsets_to_transaction(places, self._consumer.consumer_group_metadata(), 30)
        self._producer.commit_transaction(30)

    def close(self) -> None:
        self._consumer.close()


def pairs(title: str, old: Callable[[], object], new: Callable[[], object]) -> None:
    """Time both in turn, and tell the ratio of neighbours."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 2):
        for way, times in zip((old, new), taken, strict=True):
            began = time.perf_counter()
            way()
            if number >= 2:  # the first ones warm up
                times.append(time.perf_counter() - began)
    low, middle, high = statistics.quantiles([b / a for a, b in zip(*taken, strict=True)], n=4)
    before, after = (statistics.median(times) * 1000 for times in taken)
    print(
        f"{title:<66} {before:7.2f} ms, then {after:7.2f} ms, ratio {middle:.2f} ({low:.2f} to {high:.2f})", flush=True
    )


@contextmanager
def asking(kafka: str, peers: int) -> Iterator[list[float]]:
    """Threads that ask for the group's positions four times a second each; gives how long each answer took, in seconds."""
    over, took = threading.Event(), list[float]()

    def ask() -> None:
        admin = AdminClient({"bootstrap.servers": kafka})
        places = [TopicPartition("in", number) for number in range(PARTITIONS)]
        while not over.wait(0.25):
            began = time.perf_counter()
            for answer in admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("bench", places)]).values():
                answer.result()
            took.append(time.perf_counter() - began)

    threads = [threading.Thread(target=ask) for _ in range(peers)]
    for thread in threads:
        thread.start()
    try:
        yield took
    finally:
        over.set()
        for thread in threads:
            thread.join()


def transactions(writer: Writer) -> None:
    def many(sizes: dict[str, int], text: int = 60) -> Callable[[], None]:
        return lambda: [writer.commit(sizes, text) for _ in range(COMMITS)] and None

    link, more = {"link": BLOCK}, {"link": BLOCK + DELTA}
    pairs(
        f"{COMMITS} commits: 9 partitions; 17, a state log of {DELTA:,} bytes",
        many(link),
        many({**link, "state": DELTA}),
    )
    pairs(f"{COMMITS} commits: 9 partitions; 9 with as many bytes as those 17", many(link), many(more))
    small = {"link": 600}
    pairs(f"{COMMITS} small commits: 9 partitions; 17", many(small), many({**small, "state": 600}))
    pairs(f"{COMMITS} small commits: positions with 60 bytes; 240 bytes", many(small), many(small, 240))
    for peers in (4, 16):
        took: list[float] = []

        def asked(peers: int = peers, took: list[float] = took) -> None:
            with asking(writer.kafka, peers) as found:
                time.sleep(0.3)  # all of them have begun; it is taken off below
                many(link)()
            took += found

        def alone() -> None:
            time.sleep(0.3)
            many(link)()

        pairs(f"0.3 s and {COMMITS} commits: alone; {peers} peers ask 4 times a second", alone, asked)
        print(
            f"    an answer took {statistics.median(took) * 1000:.1f} ms in the median, {max(took) * 1000:.0f} ms at most"
        )


def blocks(rows: pa.Table) -> int:
    """Rows as a block for each partition, by key; gives their bytes."""
    numbers = np.asarray(checksums([rows["user"]])) % PARTITIONS
    size = 0
    for number in range(PARTITIONS):
        sink = pa.BufferOutputStream()
        part = rows.filter(pa.array(numbers == number))
        with pa.ipc.new_stream(sink, part.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(part)
        size += sink.getvalue().size
    return size


def combined(rows: pa.Table) -> pa.Table:
    """A row for each user and minute: how many, the greatest and the sum of a column, and the last time."""
    minute = pc.multiply(pc.divide(rows["at"], 60_000_000), 60_000_000)
    wanted = [([], "count_all"), ("ms", "max"), ("ms", "sum"), ("at", "max")]
    return rows.append_column("minute", minute).group_by(["user", "minute"]).aggregate(wanted)


def combining() -> None:
    """Rows to blocks of a link, one for each partition: as they are, and combined by key and minute before."""
    random = np.random.default_rng(3)
    for keys in (KEYS, ROWS):
        rows = pa.table(
            {
                "user": pa.array([f"user-{n}" for n in random.integers(0, keys, ROWS)]),
                "at": pa.array(1_700_000_000_000_000 + random.integers(0, 60_000_000, ROWS)),
                "ms": pa.array(random.random(ROWS)),
            }
        )
        title = f"{ROWS:,} rows of {keys:,} keys to blocks: as they are; combined"
        pairs(title, partial(blocks, rows), lambda rows=rows: blocks(combined(rows)))
        print(f"    {blocks(rows):,} bytes as they are, {blocks(combined(rows)):,} combined")


def main() -> None:
    print(machine())
    print(f"{ROUNDS} times each way; median, and the quartiles of the ratio of neighbours")
    combining()
    with embedded_services() as services:
        admin = AdminClient({"bootstrap.servers": services.kafka})
        topics = [NewTopic(name, PARTITIONS, 1) for name in ("in", "link", "state")]
        for made in admin.create_topics(topics).values():
            made.result()
        writer = Writer(services.kafka)
        try:
            transactions(writer)
        finally:
            writer.close()


if __name__ == "__main__":
    main()
