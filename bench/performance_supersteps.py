"""Supersteps that several peers do together, each committed: the part ``graph-durable`` of ``performance.py``.

How long a superstep takes is seen from outside: the time between the last marker of one superstep and that of the next, as the
clients of the peers stamp them. A graph of a few vertices shows what the commit costs, the graph of the part ``graph`` what the
work in it does. Beside them are the same jobs on one peer, whose supersteps are in memory, and GraphX. All ranks are compared.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson
import pyarrow.compute as pc
from bench_graphs import r_mat
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from performance_graph import DEGREE, SCALE, graph_x
from performance_track import Track
from performance_watch import Daemons, daemons
from performance_windows import committed
from races import Row
from topic_to_topic import create_topic

from queues import block
from sardonyx import Job, kafka
from sardonyx.core.graph import graph_of
from sardonyx.job.load import load_job

SHARDS, PEERS = 4, 2
FEW = 64
"""Vertices of the graph that is nearly none: a ring, so each sends a message in each superstep."""
MANY_STEPS, LARGE_STEPS = 200, 30
"""Supersteps of the small graph, and of the large one."""
SKIPPED = 5
"""Supersteps at either end that are not looked at: as peers come and go."""
TASK = "ranks"


class Supersteps(NamedTuple):
    """What a run was."""

    seconds: list[float]
    """Of each superstep."""
    private: float
    """Seconds of the processor's clock for each superstep in memory; 0 if there was none."""
    ranks: dict[int, float]
    told: str
    """Where the time of a batch of a superstep went."""

    def at(self, share: float) -> float:
        """A quantile, in milliseconds."""
        return 1e3 * float(np.quantile(self.seconds, share))


def durable(track: Track, runs: int) -> list[Row]:
    """A superstep with next to no messages, and one of PageRank over a million edges."""
    sources, targets = r_mat(SCALE, DEGREE)
    ring = np.arange(FEW)
    small, large = edges(track, ring, np.roll(ring, 1)), edges(track, sources, targets)
    nothing, million = (
        "a durable superstep, next to no messages",
        f"PageRank, {len(sources):,} edges, a durable superstep",
    )
    rows = [
        Row(f"{nothing}, p50", "80 ms", 1, unit="ms"),
        Row(f"{nothing}, p95", "150 ms", 1, unit="ms"),
        Row(f"{nothing}, p50", "the same job on one peer, in memory", None, unit="ms"),
        Row(f"{million}, p50", "GraphX, static PageRank, on both cores", 3, unit="ms"),
        Row(f"{million}, p50", "200 ms", 1, unit="ms"),
        Row(f"{million}, p50", "the same job on one peer, in memory", None, unit="ms"),
    ]
    with graph_x() as jvm, jvm.loaded(sources, targets) as loaded:
        for _ in range(runs):
            of_few = both(track, small, MANY_STEPS)
            of_many = both(track, large, LARGE_STEPS)
            theirs = 1e3 * loaded.superstep().clock
            figures = [
                (of_few[0].at(0.5), 80.0),
                (of_few[0].at(0.95), 150.0),
                (of_few[0].at(0.5), 1e3 * of_few[1].private),
                (of_many[0].at(0.5), theirs),
                (of_many[0].at(0.5), 200.0),
                (of_many[0].at(0.5), 1e3 * of_many[1].private),
            ]
            for row, (mine, other) in zip(rows, figures, strict=True):
                row.ours.append(mine)
                row.theirs.append(other)
                row.ratios.append(other / mine)
            load = os.getloadavg()[0]
            print(f"  few: p50 {of_few[0].at(0.5):.0f} p95 {of_few[0].at(0.95):.0f} ms; {of_few[0].told}", flush=True)
            print(
                f"  many: p50 {of_many[0].at(0.5):.0f} p95 {of_many[0].at(0.95):.0f} ms; {of_many[0].told}", flush=True
            )
            print(f"  GraphX {theirs:.0f} ms; in memory {1e3 * of_many[1].private:.1f} ms; load {load:.1f}", flush=True)
    for row in rows:
        print(row.line(), flush=True)
    return rows


def both(track: Track, topic: str, steps: int) -> tuple[Supersteps, Supersteps]:
    """The job on several peers and on one, which must give the same ranks, bit by bit."""
    found = run(track, topic, steps, PEERS), run(track, topic, steps, 1)
    assert found[0].ranks == found[1].ranks
    return found


def edges(track: Track, sources: Any, targets: Any) -> str:
    """A topic with edges."""
    topic = track.target()
    producer = Producer({**track.settings.kafka.client(), "linger.ms": 50, "compression.type": "lz4"})
    for number, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        if number % 10_000 == 0:
            producer.flush(60)
        producer.produce(topic, orjson.dumps({"src": source, "dst": target}), partition=number % SHARDS)
    assert producer.flush(60) == 0
    return topic


def ranks_job(source: str, target: str, steps: int, peers: int) -> Job:
    """PageRank of the edges in a topic."""
    job = Job("bench-supersteps", partitions=SHARDS)
    links = job.input("links", kafka(source, schema="src long, dst long", start="earliest", end="latest"))
    web = job.graph("web", edges=links, source="src", target="dst", max_peers=peers)
    job.output("write", kafka(target, key="id"), after=web.pagerank(TASK, max_supersteps=steps))
    return job


def run(track: Track, source: str, steps: int, peers: int) -> Supersteps:
    """The job, on daemons of its own: each of the peers that compute is alone in one of them if it likes."""
    target = f"{track.settings.deployment}-{os.urandom(4).hex()}"
    create_topic(track.settings, target)
    job = load_job(ranks_job(source, target, steps, peers))
    with daemons(track, 2, count=PEERS) as found:
        handle = found.client.submit(job)
        link = graph_of(job.spec, track.settings.deployment, handle.id).stage(TASK).between_shards
        if link is None:
            assert handle.await_completion(900).status == "completed"
            seconds: list[float] = []
        else:
            with watched(track, link.topic) as seen:
                assert handle.await_completion(900).status == "completed"
            seconds = intervals(seen, steps)
        private = [each for each in log_of(found, "graph_computed") if peers == 1]
        told = spent(found) if peers > 1 else ""
    ranks = {row["id"]: row["rank"] for row, _ in committed(track, target)}
    return Supersteps(seconds, sum(each["seconds"] / each["supersteps"] for each in private), ranks, told)


def intervals(seen: dict[int, int], steps: int) -> list[float]:
    """Seconds between the ends of supersteps that follow each other. Two more than the algorithm has bring the vertices home."""
    assert sorted(seen) == list(range(steps + 3)), f"supersteps {sorted(seen)}"
    ends = [seen[step] / 1e3 for step in range(2 + SKIPPED, steps + 3 - SKIPPED)]
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


@contextlib.contextmanager
def watched(track: Track, topic: str) -> Iterator[dict[int, int]]:
    """By superstep, when the last of its markers was written, in milliseconds since 1970; while the block runs."""
    seen: dict[int, int] = defaultdict(int)
    over = threading.Event()
    about = {"group.id": f"{topic}-watch", "isolation.level": "read_committed", "enable.auto.commit": False}

    def watch() -> None:
        consumer = Consumer({**track.settings.kafka.client(), **about})
        while topic not in consumer.list_topics(timeout=10).topics and not over.wait(0.1):
            pass
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(SHARDS)])
        while not over.is_set():
            for message in consumer.consume(1_000, 0.2):
                if message.error() is None and dict(message.headers() or ()).get("sx-rows") is not None:
                    rows = block.decode([message.value()])
                    for step in rows.filter(pc.equal(rows["kind"], "marker"))["step"].to_pylist():
                        seen[step] = max(seen[step], message.timestamp()[1])
        consumer.close()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def log_of(found: Daemons, event: str) -> list[dict[str, Any]]:
    """The lines of the peers' logs that tell of an event."""
    lines = [line for peer in found.peers for line in str(peer.log_path and peer.log_path.read_text()).splitlines()]
    return [told for line in lines if f'"{event}"' in line and (told := msgspec.json.decode(line))["event"] == event]


def spent(found: Daemons) -> str:
    """Where the time of the batches went, in the median, and how many there were, by daemon."""
    counts = [0] * len(found.peers)
    steps: dict[str, list[float]] = defaultdict(list)
    for number, peer in enumerate(found.peers):
        alone = Daemons(found.client, [peer])
        for batch in alone.batches(TASK):
            counts[number] += 1
            for name, value in batch.items():
                if name.endswith("_ms"):
                    steps[name.removesuffix("_ms")].append(float(value))
    medians = {name: statistics.median(values) for name, values in steps.items()}
    return f"batches {counts}; " + ", ".join(f"{name} {value:.1f}" for name, value in medians.items())


__all__ = ["durable"]
