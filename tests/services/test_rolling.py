"""Files with the rows of several batches: exactly once on real services, with few files and a listing that stays short."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from peer import rolling
from peer.connector_sink import PartsList
from peer.rolling_sink import RollingSink
from queues.messages import Outgoing
from queues.tail import Listed
from sardonyx import Job, files, generator, kafka
from sardonyx.connectors.files.roll import Entry, Listing, Roll
from sardonyx.connectors.files.rolling import Merged, RollingFiles
from sardonyx.core.errors import OutputError
from sardonyx.core.positions import Partition, Position
from sardonyx.runtime.settings import Settings
from sardonyx.testing import Cluster, Fault, kill_at, pause_at
from tests.waiting import until

ROWS = 3_000
POINTS = ("roll", "merged", "rolled", "roll-published", "roll-finished")
"""Before and after a merge, its commit, its publishing and the removal of what was merged."""
QUICK = {"coordinator.trim_every": "100 ms", "zookeeper.session_timeout": "2 s", "peer.session_timeout": "3 s"}


def same(row: dict) -> dict:
    return row


def found(folder: Path) -> list[int]:
    """What a reader of the folder sees, in order of value. Fails if it sees a row twice."""
    numbers = sorted(json.loads(line)["n"] for path in folder.glob("part-*") for line in path.read_text().splitlines())
    assert len(set(numbers)) == len(numbers), "a reader sees a row twice"
    return numbers


def span(settings: Settings, topic: str) -> tuple[int, int]:
    """The first offset that is left in a topic of one partition, and its end."""
    admin = AdminClient({**settings.kafka.client(), "log_level": 0})
    place = TopicPartition(topic, 0)
    first, end = (
        admin.list_offsets({place: spec})[place].result(30).offset
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    )
    return first, end


def copied(topic: str, folder: Path, roll: str) -> Job:
    job = Job("copied", partitions=2)
    read = job.input("read", kafka(topic, start="earliest"))
    passed = job.task("pass", same, after=read, batch_size=20)
    job.output("write", files(folder, format="json", mode="append", roll=roll), after=passed, batch_size=20)
    return job


@pytest.mark.parametrize(
    ("roll", "script"),
    [
        pytest.param("4 KiB or 1 s", [kill_at(point, 2) for point in POINTS], id="kills", marks=pytest.mark.long),
        pytest.param("4 KiB or 1 s", [pause_at("merged", 8, 2)], id="a pause", marks=pytest.mark.long),
        pytest.param("batch", [kill_at("committed", 6), kill_at("rolled", 2)], id="by batch"),
    ],
)
def test_an_unbounded_job_under_kills_writes_few_files(
    roll: str, script: list[Fault], sardonyx_clusters: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Peers die around merge, commit, publishing and removal, and rows go on coming. At no time a reader of the folder sees a row
    twice, and every row arrives, also those of a batch whose peer died. The listing's first record moves on.
    """
    folder = tmp_path / "out"
    with sardonyx_clusters(**QUICK) as cluster:
        topic = cluster.topic("in", ({"n": n} for n in range(ROWS)))
        faulty = cluster.peers(4, faults=script)
        handle = cluster.submit(copied(topic, folder, roll))
        if any(fault.pause for fault in script):
            cluster.peers(4)  # they take over
        sent = ROWS

        def occurred(faults: int) -> bool:
            nonlocal sent
            if len(found(folder)) == sent and len(faulty.happened) < faults:
                cluster.fill(topic, ({"n": n} for n in range(sent, sent + 500)))
                sent += 500
            return len(faulty.happened) >= faults

        for faults in range(1, len(script) + 1):
            until(lambda faults=faults: occurred(faults), what=f"fault {faults} of {len(script)}")
        cluster.fill(topic, ({"n": n} for n in range(sent, sent + 500)))
        sent += 500
        until(lambda: len(found(folder)) >= sent, what="all rows")
        assert found(folder) == list(range(sent))
        parts = f"{cluster.settings.deployment}.{handle.id}.write.parts"
        until(lambda: span(cluster.settings, parts)[0] > 0, what="the listing to be cut")
        if roll != "batch":
            count = len(list(folder.glob("part-*")))
            assert count < sent / 20 / 2, f"{count} files of {sent / 20:g} batches"
        handle.kill()
        until(lambda: not (folder / "_sardonyx").exists(), what="the temporary files to go")
        assert found(folder) == list(range(sent))


def test_a_killed_job_publishes_what_it_has_committed(
    sardonyx_clusters: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Rows that wait for a file to fill are published when the job is killed, beside those in files."""
    folder = tmp_path / "out"
    with sardonyx_clusters(**QUICK) as cluster:
        topic = cluster.topic("in", ({"n": n} for n in range(500)))
        cluster.peers(2)
        handle = cluster.submit(copied(topic, folder, "2 KiB or 1 h"))

        def written() -> bool:
            (write,) = (task for task in handle.status().tasks if task.name == "write")
            return write.rows_out == 500

        until(written, what="all rows to be committed")
        assert len(found(folder)) < 500
        handle.kill()
        until(lambda: len(found(folder)) == 500, what="the rest")


def test_a_bounded_job_may_roll(sardonyx_clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    """Its end waits for no file to fill. _SUCCESS counts the files and their rows. Peers die meanwhile."""
    folder = tmp_path / "out"
    with sardonyx_clusters(**QUICK) as cluster:
        cluster.peers(3, faults=[kill_at("rolled"), kill_at("in-seal")])
        job = Job("bounded", partitions=2)
        made = job.input("made", generator(2_000, columns={"n": "sequence"}))
        passed = job.task("pass", same, after=made, batch_size=50)
        job.output("write", files(folder, format="json", roll="8 KiB or 1 h"), after=passed, batch_size=50)
        assert cluster.run(job, timeout="6 min").status == "completed"
    assert found(folder) == list(range(2_000))
    done = json.loads((folder / "_SUCCESS").read_text())
    assert (done["files"], done["rows"]) == (len(list(folder.glob("part-*"))), 2_000)
    assert done["files"] < 20


def test_a_job_that_stops_rolls_what_it_has(sardonyx_clusters: Callable[..., Cluster], tmp_path: Path) -> None:
    """``job stop`` waits for no file to fill, and seals the folder."""
    folder = tmp_path / "out"
    with sardonyx_clusters(**QUICK) as cluster:
        topic = cluster.topic("in", ({"n": n} for n in range(500)))
        cluster.peers(2)
        handle = cluster.submit(copied(topic, folder, "1 MiB or 1 h"))
        until((folder / "_sardonyx").exists, what="the first batch")
        handle.stop()
        assert handle.await_completion(300).status == "stopped"
        ((reached,),) = (task.values() for task in handle.positions().values())
        assert found(folder) == [n for n in range(500) if n // 2 < reached[n % 2]]
        assert (folder / "_SUCCESS").exists()


class Merging:
    """The task session of a peer that holds the task's partitions, reduced to what a roller uses; it keeps the listing."""

    def __init__(self, sink: RollingSink) -> None:
        self.listed: list[bytes] = []
        self.position: Position | None = None
        link = SimpleNamespace(topic="in")
        stage = SimpleNamespace(ingress=[link])
        self.work = SimpleNamespace(sinks=[sink], settings=None, stage=stage, sources=None)
        self.reader = self
        self.handle = SimpleNamespace(may_commit=True, check=lambda: None)
        self.held: dict[Partition, Position | None] = {}
        self.idle = False

    def incarnation(self, _partition: Partition) -> int:
        return 1

    def committed_at(self, _partition: Partition) -> Position | None:
        return self.position

    def meanwhile(self, work: Callable[[], Any]) -> Any:
        return work()

    def write(self, messages: list[Outgoing], positions: dict[Partition, Position]) -> None:
        self.listed += [message.value for message in messages]
        (self.position,) = positions.values()


def test_totals_outlive_a_merge_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch commits while two others are merged. The merge of that one fails on a full disk. The next peer reads the listing
    from the committed position: the counts of what was merged before are still in it.
    """
    files_out = RollingFiles({"path": str(tmp_path), "format": "json"}, "job-1", "write", Roll(1, 0.0))
    session = Merging(RollingSink(files_out, PartsList("parts", list, lambda start: ([], start))))

    class Tailed:
        """The rest of the listing."""

        caught_up = True

        def __init__(self, _settings: object, _topic: str, start: int | None) -> None:
            self.read_to = start or 0

        def read(self) -> list[Listed]:
            at, self.read_to = self.read_to, len(session.listed)
            return [Listed(at + n, 0.0, value) for n, value in enumerate(session.listed[at:])]

        def close(self) -> None:
            pass

    monkeypatch.setattr(rolling, "Tail", Tailed)
    merge = files_out.merge

    def staged(number: int) -> list[bytes]:
        return files_out.stage(pa.table({"n": [number]}))

    def joined_by_another_batch(chunks: list[Entry]) -> Merged:
        session.listed += staged(3)
        return merge(chunks)

    def refused(_chunks: list[Entry]) -> Merged:
        raise OutputError("SX-OUTPUT-FULL", "full")

    session.listed += staged(1) + staged(2)
    files_out.roll = Roll(1000, 0.0)
    first = rolling.Roller(session)
    monkeypatch.setattr(files_out, "merge", joined_by_another_batch)
    first.look()
    monkeypatch.setattr(files_out, "merge", refused)
    with pytest.raises(OutputError):
        first.look()
    monkeypatch.setattr(files_out, "merge", merge)
    rolling.Roller(session).look()
    assert session.position is not None
    assert Listing(session.listed[session.position.offset :]).totals() == (2, 3)
    assert found(tmp_path) == [1, 2, 3]
