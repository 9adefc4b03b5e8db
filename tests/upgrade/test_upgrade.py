"""A rolling upgrade: the release before this issue and this one side by side, under kills, and the job is exact.

The other release comes from the history of this repository: ``make test-upgrade``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.history import reader
from queues import confirmed_end, topic_log
from sardonyx.client.client import Client
from sardonyx.core import node_paths
from sardonyx.core.events import OLDEST_RULES, RULES
from sardonyx.core.notes import CandidateNote, EpochNote
from sardonyx.dev.services import embedded_services
from sardonyx.runtime.child_process import ChildProcess, start_child
from sardonyx.runtime.settings import Settings, load_settings
from tests.waiting import until

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(900)]

HERE = Path(__file__).parents[2]
OLD = "e80ebc6"
"""The last commit whose newest rules are 3."""
JOB = """
import time
import pyarrow as pa
from sardonyx import Job, kafka

def same(rows: pa.Table) -> pa.Table:
    time.sleep(0.2)  # so that the job lasts until all kills have come
    return rows

job = Job("copy", partitions=4, failure_limit=50)
rows = job.input("in", kafka("in", start="earliest", end="latest", format="json", schema="n long"))
for name in ("one", "two", "three"):
    rows = job.task(name, same, after=rows, batch_size=500, max_peers=2)
job.output("write", kafka("out", format="json"), after=rows)
"""
RECORDS = 150_000
KILLS = 12
SEED = int(os.environ.get("SEED") or 0) or random.SystemRandom().randrange(1, 100_000)


@pytest.fixture(scope="module")
def old_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the release before, from the history."""
    found = subprocess.run(["git", "-C", HERE, "archive", OLD], capture_output=True, check=False)
    if found.returncode:
        pytest.fail(
            f"commit {OLD} is not in this clone's history; `git fetch --unshallow` gets it: {found.stderr.decode()}"
        )
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class Mixed(contextlib.ExitStack):
    """Daemons of both releases on one deployment; leaving it ends them."""

    def __init__(self, settings: Settings, folder: Path, old: Path) -> None:
        super().__init__()
        self.settings, self.folder = settings, folder
        self.sources = {"old": old, "new": HERE}
        self.number = itertools.count()
        self.daemons: list[tuple[str, str, ChildProcess]] = []
        self.callback(self.end)

    def start(self, kind: str, release: str) -> ChildProcess:
        name = f"{next(self.number)}-{release}-{kind}"
        source = self.sources[release]
        env = {**self.settings.environment(), "PYTHONPATH": f"{source}"}
        work = self.folder / name
        work.mkdir()
        command = [sys.executable, HERE / "tests/upgrade/process.py", kind, work]
        child = start_child(command, name=name, log_path=self.folder / f"{name}.log", env=env, cwd=work)
        self.daemons.append((kind, release, child))
        return child

    def living(self, kind: str, release: str | None = None) -> list[ChildProcess]:
        return [
            child for its, of, child in self.daemons if its == kind and release in (None, of) and child.poll() is None
        ]

    def end(self) -> None:
        for _, _, child in self.daemons:
            child.kill()


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with embedded_services(tmp_path / "services") as services:
        yield load_settings(
            deployment="upgrade",
            zookeeper={"hosts": services.zookeeper, "session_timeout": 4.0},
            kafka={"bootstrap_servers": services.kafka},
            coordinator={"snapshot_every": 40},
            peer={"virtual_peers": 3, "session_timeout": 6.0, "heartbeat": 0.3, "transaction_timeout": 6.0},
            spark={"master": "local[1]"},
            log={"format": "json", "level": "debug"},
        )


def test_a_rolling_upgrade_under_kills_loses_nothing(settings: Settings, tmp_path: Path, old_sources: Path) -> None:
    """A deployment of the release before is taken over while its jobs run: coordinators and peers of both releases work side by
    side, are killed and replaced in random order, and each record is in the output exactly once.
    """
    sys.stderr.write(f"seed {SEED}; again: make test-upgrade SEED={SEED}\n")
    rng = random.Random(SEED)
    fill(settings, "in", RECORDS)
    source = tmp_path / "job.py"
    source.write_text(JOB)
    with Mixed(settings, tmp_path, old_sources) as mixed, Client(settings=settings) as client:
        mixed.start("coordinator", "old")
        mixed.start("peer", "old")
        until(lambda: len(client.peers()) >= 3, what="the old peers to register", timeout=60)
        running = client.submit(source)
        for release in ("new", "old", "new"):
            mixed.start("coordinator", release)
        for release in ("new", "old"):
            mixed.start("peer", release)
        until(lambda: len(client.peers()) >= 9, what="all peers to register", timeout=60)
        assert leader(client).rules == OLDEST_RULES  # it came first, and both write the same format
        for _ in range(KILLS):
            kind = rng.choice(["coordinator", "peer"])
            if victims := mixed.living(kind):
                rng.choice(victims).kill()
            mixed.start(kind, rng.choice(["old", "new", "new"]))
            before, wanted = topic_log.ends(settings, "out")[1], rng.randint(500, 5_000)
            until(
                lambda before=before, wanted=wanted: topic_log.ends(settings, "out")[1] >= before + wanted,
                what=f"{wanted} more rows in the output",
                timeout=120,
            )
        assert not running.status().ended, "the job ended before the upgrade did: give it more records"
        for kind in ("peer", "coordinator"):
            for child in mixed.living(kind, "old"):
                child.kill()
        mixed.start("peer", "new")
        until(lambda: leader(client).rules == RULES, what="a coordinator of this release to lead", timeout=60)
        assert not running.status().ended, "the job ended before the upgrade did: give it more records"
        view = running.await_completion(400)
        assert view.status == "completed", view
        assert Counter(values(settings, "out")) == Counter(range(RECORDS))
        assert reader.present(client.zk).rules == RULES
        verdict = reader.verify(client.zk)
        assert verdict.ok, verdict.findings


def leader(client: Client) -> CandidateNote:
    """The coordinator that leads."""
    zk = client.zk
    data = zk.read(node_paths.EPOCH)
    token = msgspec.json.decode(data, type=EpochNote).token if data else "none"
    nodes = [name for name in zk.children(node_paths.ELECTION) if name.startswith(token)]
    found = zk.read(f"{node_paths.ELECTION}/{nodes[0]}") if nodes else None
    assert found is not None, "no coordinator leads"
    return CandidateNote.read(found)


def fill(settings: Settings, topic: str, records: int) -> None:
    """Numbers from 0 on, in four partitions."""
    config = {"bootstrap.servers": settings.kafka.bootstrap_servers}
    topics = AdminClient(config)  # as long as it is referred to, it answers
    for created in topics.create_topics([NewTopic(topic, 4, 1), NewTopic("out", 1, 1)]).values():
        created.result()
    producer = Producer({**config, "enable.idempotence": True, "linger.ms": 50})
    for number in range(records):
        producer.produce(topic, json.dumps({"n": number}).encode(), partition=number % 4)
        if number % 10_000 == 0:
            producer.flush(30)  # its queue holds 100,000
    assert producer.flush(30) == 0


def values(settings: Settings, topic: str) -> list[int]:
    """What a reader of committed records sees."""
    return [json.loads(value)["n"] for value in confirmed_end.read_all(settings, topic)]
