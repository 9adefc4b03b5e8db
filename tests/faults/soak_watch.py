"""What a soak samples while it runs, every few seconds."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from sardonyx.core import node_paths
from sardonyx.dev.servers import four_letters
from sardonyx.zookeeper.errors import ZooKeeperAway
from tests.faults.cluster import Cluster, Seat, now
from tests.faults.shapes import PARTITIONS
from tests.faults.soak_judge import MIB, Sample


class Watch(threading.Thread):
    """Samples everything every so many seconds until it is ended.

    Args:
        cluster: what is sampled.
        links: the internal topics of the job.
        progress: gives (records in, records out, faults so far).
        every: seconds.
    """

    def __init__(
        self, cluster: Cluster, links: Sequence[str], progress: Callable[[], tuple[int, int, int]], every: float
    ) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._cluster, self._links, self._progress, self._every = cluster, links, progress, every
        self._admin = self._new_admin()
        self._over = threading.Event()
        self._began = now()

    def _new_admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._cluster.services.kafka, "log_level": 0})

    def end(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(max(0.0, self._every * len(self.samples) - (now() - self._began))):
            given, seen, faults = self._progress()
            sample: Sample = {"at": round(now() - self._began, 1), "in": given, "out": seen, "faults": faults}
            sample["daemons"] = {
                seat.process.name: held
                for seat in (*self._cluster.coordinators, *self._cluster.peers)
                if seat.process is not None and (held := _held(seat))
            }
            sample |= self._disk() | self._kafka()
            sample |= self._zookeeper()
            self.samples.append(sample)
            with (self._cluster.folder / "samples.jsonl").open("a") as lines:  # for a look at a run that goes on
                lines.write(json.dumps(sample) + "\n")

    def _zookeeper(self) -> Sample:
        """How many nodes the coordinator's log has, and how many others there are; nothing while the servers are away."""
        answers = [four_letters(address, "srvr") for address in self._cluster.services.zookeeper.split(",")]
        nodes = [int(found[1]) for answer in answers if (found := re.search(r"Node count: (\d+)", answer))]
        zk = self._cluster.client.zk
        with contextlib.suppress(ZooKeeperAway):
            buckets = [f"{node_paths.LOG}/{name}" for name in zk.children(node_paths.LOG)]
            log = len(buckets) + sum(map(len, zk.children_of(buckets).values()))
            if nodes:
                return {"nodes": max(nodes) - log, "log": log}
        return {}

    def _kafka(self) -> Sample:
        """Nothing of it while the brokers are away. Then with a new client: one got no answer for half an hour after its broker
        was killed, while all others did.
        """
        with contextlib.suppress(KafkaException):
            topics = len(self._admin.list_topics(timeout=3).topics)
            groups = self._admin.list_consumer_groups(request_timeout=3).result(5)
            places = [TopicPartition(topic, number) for topic in self._links for number in range(PARTITIONS)]
            first, last = (self._offsets(places, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
            if not groups.errors:
                return {"topics": topics, "groups": len(groups.valid), "low": first, "high": last}
        self._admin = self._new_admin()
        return {}

    def _offsets(self, places: list[TopicPartition], spec: OffsetSpec) -> list[int]:
        asked = self._admin.list_offsets(dict.fromkeys(places, spec), request_timeout=3)
        return [asked[place].result(5).offset for place in places]

    def _disk(self) -> Sample:
        """MiB that Kafka's log directories take up, and of these its internal links and the topics that go in and come out."""
        home = Path(self._cluster.services.data_dir)
        found = {"disk": 0.0, "disk_links": 0.0, "disk_users": 0.0, "disk_zookeeper": 0.0}
        for path, size in _files(home):
            parts = path.relative_to(home).parts
            if parts[0].startswith("zookeeper"):
                found["disk_zookeeper"] += size
            elif parts[0].startswith("kafka"):
                topic = parts[2].rpartition("-")[0] if len(parts) > 3 else ""
                found["disk"] += size
                found["disk_links"] += size * (topic in self._links)
                found["disk_users"] += size * topic.startswith("soak-")
        return {name: round(size / MIB, 2) for name, size in found.items()}


def _files(folder: Path) -> list[tuple[Path, int]]:
    """Each file below, with the bytes that it takes up on the disk: Kafka's indexes are mostly holes."""
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found.append((Path(where) / name, (Path(where) / name).stat().st_blocks * 512))
    return found


def _held(seat: Seat) -> dict[str, float]:
    """What a daemon's process holds; of one that runs Spark, also its JVM and its Python workers."""
    assert seat.process is not None
    try:
        process = psutil.Process(seat.process.pid)
        with process.oneshot():
            rss = round(process.memory_info().rss / MIB, 2)
            found: dict[str, float] = {"rss": rss, "threads": process.num_threads(), "descriptors": process.num_fds()}
        if seat.spark:
            found |= {"jvm": 0.0, "workers": 0.0}
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.Error):  # a worker that has just ended
                    found["jvm" if child.name() == "java" else "workers"] += child.memory_info().rss / MIB
    except psutil.Error:  # it has just died
        return {}
    return found


__all__ = ["Watch"]
