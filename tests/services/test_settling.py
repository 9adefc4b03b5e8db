"""What the coordinator does with the committed files of a job that was killed, before it deletes the topic that lists them."""

from __future__ import annotations

import errno
import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import structlog
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.kafka.job_links import KafkaLinks
from queues import admin
from sardonyx.connectors.registry import files_output
from sardonyx.core.errors import OutputError
from sardonyx.core.events import LastCommits
from sardonyx.core.graph import Graph, graph_of
from sardonyx.core.spec import JobSpec, TaskSpec
from sardonyx.runtime.settings import Settings
from tests.waiting import until

ROWS = 3


class Killed:
    """A job whose batches are committed and not merged yet."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.id, self.folder = f"killed-{uuid.uuid4().hex[:8]}", folder
        topic, path = (
            {"topic": f"{self.id}-in", "start": "earliest", "format": "json"},
            {"path": str(folder), "format": "json"},
        )
        self.spec = JobSpec(
            name="killed",
            workflow=[("read", "write")],
            catalog=[
                TaskSpec(name="read", type="input", connector="kafka", options=topic),
                TaskSpec(name="write", type="output", connector="files", options={**path, "roll": "1 h"}),
            ],
            partitions=1,
        )
        self.graph: Graph = graph_of(self.spec, settings.deployment, self.id)
        self.links = KafkaLinks(settings)
        self.topic = next(link.topic for link in self.graph.links if link.kind == "parts")
        self.settings = settings

    def create(self) -> None:
        client, source = AdminClient({**self.settings.kafka.client(), "log_level": 0}), f"{self.id}-in"
        client.create_topics([NewTopic(source, num_partitions=1)])[source].result(30)
        until(lambda: source in admin.topics(self.settings), what="the input topic to be listed")
        producer = Producer({**self.settings.kafka.client(), "log_level": 0})
        self.links.create_links(self.id, self.spec)
        output = files_output(self.graph.stages[-1].last, self.id, bounded=False)
        for number in range(ROWS):
            for entry in output.stage(pa.table({"n": [number]})):
                producer.produce(self.topic, entry, partition=0)
        assert producer.flush(30) == 0

    def published(self) -> list[int]:
        return sorted(json.loads(path.read_text())["n"] for path in self.folder.glob("part-*"))

    def topics_left(self) -> list[str]:
        owned = {link.topic for link in self.graph.links if link.owned}
        return sorted(owned & set(admin.topics(self.settings)))


@pytest.fixture
def killed(settings: Settings, tmp_path: Path) -> Iterator[Killed]:
    made = Killed(settings, tmp_path / "out")
    made.create()
    yield made
    made.links.forget([made.id])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ESTALE, errno.EACCES])
def test_a_full_disk_delays_the_deletion_of_the_list(
    killed: Killed, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The topic that lists what is committed stays until that is published, which is tried again."""

    def refused(_source: Path, _target: Path) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        with pytest.raises(OutputError):
            killed.links.delete_links(killed.id, killed.spec)
    assert killed.topic in killed.topics_left()
    killed.links.delete_links(killed.id, killed.spec)
    assert killed.published() == list(range(ROWS))
    until(lambda: killed.topics_left() == [], what="the end of the job's topics")
    killed.links.delete_links(killed.id, killed.spec)


def test_the_list_of_files_that_the_coordinator_does_not_see_stays(killed: Killed, tmp_path: Path) -> None:
    """An error names the topic. It goes when the job is purged; a call that comes after all is published deletes it, too."""
    away = killed.folder.rename(tmp_path / "away")
    with structlog.testing.capture_logs() as said:
        killed.links.delete_links(killed.id, killed.spec)
    assert [(line["code"], line["topic"]) for line in said if line["event"] == "committed_rows_not_published"] == [
        ("SX-OUTPUT-UNSEEN", killed.topic)
    ]
    assert killed.topics_left() == [killed.topic]
    killed.links.forget([killed.id])
    until(lambda: killed.topics_left() == [], what="the end of the job's topics")
    away.rename(killed.folder)
    killed.links.delete_links(killed.id, killed.spec)
    assert killed.published() == []


def test_a_share_that_hangs_holds_up_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of an ended job lie in a folder that does not answer: the thread, of which all jobs have four, is given back. The
    links are deleted when the folder answers again, and the files are settled once.
    """
    answers, begun = threading.Event(), list[str]()

    def settle(_links: KafkaLinks, _graph: Graph, job: str) -> list[str]:
        begun.append(job)
        answers.wait()
        return []

    monkeypatch.setattr("coordinator.kafka.job_links.last_commits", lambda *_: LastCommits())
    monkeypatch.setattr("coordinator.kafka.job_links.delete_links", lambda _settings, _graph, _job, end, **_: end())
    monkeypatch.setattr("coordinator.kafka.job_links.letters_left", lambda *_: {})
    monkeypatch.setattr("coordinator.kafka.job_links.SETTLES", 0.1)
    monkeypatch.setattr(KafkaLinks, "_settle_files", settle)
    links, spec = KafkaLinks(Settings()), JobSpec(name="j", workflow=[], catalog=[])
    for _ in range(2):
        with pytest.raises(OutputError, match="SX-OUTPUT-AWAY"):
            links.delete_links("j-1", spec)
    answers.set()
    assert links.delete_links("j-1", spec) == LastCommits()
    assert begun == ["j-1"]
