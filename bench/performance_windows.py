"""Windows beside those of others: a count per key and minute, and the same with a key of its own for each record."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from environments import FLINK, KAFKA_STREAMS, ONCE, PATHWAY, STREAMS, entered
from performance_track import RESULTS, Track
from performance_watch import daemons
from races import Row, race_all
from rich.console import Console
from topic_to_topic import PARTITIONS, SCHEMA
from window_figures import Results, expected, key_number, steady

from sardonyx import Count, Job, event_time, kafka, tumbling
from sardonyx.cli.profile import profile_table, profiled, read_profile
from sardonyx.client.views import JobView
from sardonyx.connectors.generator import Generator
from sardonyx.job.load import load_job

SPARK = "Structured Streaming, RocksDB, at least once"
TASKS = 3
"""Of the job, and its virtual peers: what reads, what counts, what writes."""


def window(track: Track, runs: int) -> list[Row]:
    """A thousand keys."""
    title = "windowed count per key"
    beside = [
        (Row(title, SPARK, 2), "structured_windows"),
        (Row(title, "Quix Streams, exactly once", 5), "quix_windows"),
        (Row(title, STREAMS, 1.5), KAFKA_STREAMS),
        (Row(title, f"{FLINK}, state in memory", 1.5), "flink_sql"),
        (Row(title, f"{FLINK}, RocksDB", 1.5), "flink_sql:rocksdb"),
        (Row(title, PATHWAY, None), "pathway_rows"),
    ]
    return counted(track, runs, "key", beside, 200_000)


def window_wide(track: Track, runs: int) -> list[Row]:
    """A key a row: nothing can be combined."""
    row = Row("windowed count, a key a row", SPARK, 2)
    return counted(track, runs, "id", [(row, "structured_windows")], 100_000)


def counted(track: Track, runs: int, by: str, beside: Sequence[tuple[Row, str]], rate: float) -> list[Row]:
    """The races, and our own speed beside what it should be at least."""
    wanted = expected(pa.concat_tables(generated(track.records)), by)

    def ours() -> float:
        found = our_windows(track, by)
        return steady(results(track, found.topic, by), wanted, once=True, since=found.since)

    def theirs(name: str) -> float:
        script, _, state = name.partition(":")
        given = track.given("windows", bounded=True, by=by, state=state or "hashmap")
        target = track.finished(script, given)
        return steady(results(track, target, by), wanted, once=script in ONCE)

    sides = [(entered(row, name.partition(":")[0]), functools.partial(theirs, name)) for row, name in beside]
    rows = race_all(runs, ours, sides)
    speeds = max((row.ours for row in rows), key=len)
    aim = Row(rows[0].bench, "the rate that is aimed at", 1, ours=speeds, theirs=[rate] * len(speeds))
    aim.ratios = [speed / rate for speed in speeds]
    print(aim.line(), flush=True)
    rows.append(aim)
    explain(track, rows, f"window-by-{by}", lambda where: our_windows(where, by).view)
    return rows


def generated(records: int) -> list[pa.Table]:
    """The records of the source."""
    made = Generator({"count": records})
    return [made.read(split.data) for split in made.splits()]


def window_job(source: str, target: str, by: str, *, lineage: bool = False) -> Job:
    """JSON, a count per key and minute."""
    job = Job("bench-window", partitions=PARTITIONS, lineage=lineage)
    timed = event_time("at", delay="1 s")
    read = job.input("read", kafka(source, schema=SCHEMA, start="earliest", end="latest"), time=timed)
    found = job.window("work", tumbling("1 min"), after=read, group_by=by, aggregate={"hits": Count()})
    job.output("write", kafka(target), after=found)
    return job


class Counted(NamedTuple):
    """A job of windows that has come to its end."""

    view: JobView
    topic: str
    """With its results."""
    processor: float
    """Seconds of it that the peer daemon, its JVM and its workers took."""
    since: float
    """When it had read its first batch, in seconds since 1970."""


def our_windows(track: Track, by: str, target: str = "", *, lineage: bool = False) -> Counted:
    """Run the job to its end. ``target``: a topic for the results; otherwise one is made for them."""
    target = target or track.target()
    with daemons(track, TASKS) as found:
        made = load_job(window_job(track.source, target, by, lineage=lineage))
        worked = found.processor_seconds()
        view = found.client.submit(made).await_completion(900)
        worked = found.processor_seconds() - worked
        assert view.status == "completed", view
        return Counted(view, target, worked, found.begun("read"))


def results(track: Track, topic: str, by: str) -> Results:
    """All that is committed in a topic of windows."""
    found = [
        # The program in Java has one name for the key.
        (key_number(row[by] if by in row else row["key"]), start_of(row["window_start"]), row["hits"], written)
        for row, written in committed(track, topic)
    ]
    keys, starts, hits, written = np.array(found, np.int64).reshape(-1, 4).T
    return Results(keys, starts, hits, written / 1000)


def committed(track: Track, topic: str) -> Iterator[tuple[dict[str, Any], int]]:
    """All that is committed in a topic of JSON, in the order of each partition, and when the broker got it (milliseconds since
    1970).
    """
    consumer = Consumer(
        {
            **track.settings.kafka.client(),
            "group.id": f"{topic}-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is None:
                yield orjson.loads(message.value()), message.timestamp()[1]
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()


@functools.cache
def start_of(start: str | int) -> int:
    """Of a window, in milliseconds since 1970: what others write; we write a timestamp."""
    return start if isinstance(start, int) else round(datetime.fromisoformat(start).timestamp() * 1000)


def explain(track: Track, rows: Sequence[Row], name: str, run: Callable[[Track], JobView]) -> None:
    """If a goal was missed, run ours once more, and show and keep where the time of its batches goes."""
    if all(row.met is not False for row in rows):
        return
    file = Path(tempfile.mkdtemp(dir=track.folder)) / "metrics.json"
    view = run(dataclasses.replace(track, settings=profiled(track.settings, file)))
    table = profile_table(read_profile(file, view.id))
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{name}-profile.txt").open("w") as kept:
        for place in (None, kept):
            console: Any = Console(file=place, width=140)
            console.print(table)
