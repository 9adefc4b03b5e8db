"""The flights example on real ZooKeeper, Kafka and Spark: its result equals that of pandas, whichever peers work on it and die.

``examples/flights`` reads 336,776 departures from CSV, goes through a DataFrame, an Arrow and a per-record function, and
ends in Parquet files and a topic of JSON records. Every row of both is compared. Tests that need no more read the first 80,000.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import orjson
import pandas as pd
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from coordinator.core.decide import replay
from coordinator.core.invariants import check
from coordinator.core.projection import project
from coordinator.loop.event_log import read_log
from sardonyx.client.client import JobHandle
from sardonyx.client.views import JobView
from sardonyx.core import node_paths
from sardonyx.core.events import Acked, PeerDied
from sardonyx.core.notes import JobNote
from sardonyx.runtime.child_process import ChildProcess
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.session import ZooKeeperSession
from tests import flights_reference
from tests.services.crew import Crew

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"
ALL = flights_reference.DEPARTURES
SOME = 80_000


class Flights:
    """One run of the example, with its first departures, in a deployment of its own."""

    def __init__(self, crew: Crew, script: Path, departures: int, out: Path, topic: str) -> None:
        self.crew = crew
        self.script = script
        self.departures = departures
        self.out = out
        self.topic = topic
        self.handle: JobHandle

    def submit(self) -> JobHandle:
        self.handle = self.crew.client.submit(str(self.script))
        return self.handle

    def task(self, view: JobView, name: str):
        return next(task for task in view.tasks if task.name == name)

    def under_way(self, task: str) -> None:
        """Wait until the task has committed rows and is not complete."""

        def started() -> bool:
            found = self.task(self.handle.status(), task)
            assert found.state != "complete", f"{task} was complete before anything could be killed"
            return bool(found.rows_in)

        self.crew.until(started, f"rows in {task}")

    def check(self) -> JobView:
        """Wait for the end; everything must be as pandas has it, in the files, in the topic, and in the counts."""
        try:
            view = self.crew.completed(self.handle)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.crew.logs()}") from error
        files = sorted(self.out.glob("*.parquet"))
        written = pd.concat([pq.read_table(file).to_pandas() for file in files])
        on_time, late = flights_reference.on_time(self.departures), flights_reference.late(self.departures)
        flights_reference.compare(written, on_time)
        records = flights_reference.from_records(orjson.loads(value) for value in self.records())
        flights_reference.compare(records, late)
        assert (self.out / "_SUCCESS").exists()
        assert not (self.out / "_sardonyx").exists()
        flown = len(on_time) + len(late)
        counted = {task.name: (task.rows_in, task.rows_out) for task in view.tasks}
        assert counted["read"] == (self.departures, self.departures)
        assert counted["clean"] == (self.departures, flown)
        assert counted["late"] == (flown, len(late))
        assert counted["write"] == (len(on_time), len(on_time))
        return view

    def records(self) -> Iterator[bytes]:
        """Every committed record of the output topic."""
        consumer = Consumer(
            {
                **self.crew.settings.kafka.client(),
                "group.id": f"{self.topic}-check",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        with contextlib.closing(consumer):
            partitions = consumer.list_topics(self.topic, timeout=60).topics[self.topic].partitions
            consumer.assign([TopicPartition(self.topic, number, 0) for number in partitions])
            left = set(partitions)
            while left:
                for message in consumer.consume(10_000, timeout=0.5):
                    if message.error() is None:
                        yield message.value()
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        left.discard(message.partition())

    def check_log(self) -> None:
        """The whole log, replayed on the pure core, gives the tree as it stands."""
        self.crew.until(lambda: self.note_of_links() == "gone", "the job's topics to be removed")
        with contextlib.closing(ZooKeeperSession.connect(self.crew.settings)) as zk:
            entries = list(read_log(zk))
            state = replay(entries, deployment=self.crew.settings.deployment)
            check(state)
            wanted = project(state)
            assert zk.read_many(wanted) == wanted
            assert set(zk.children(node_paths.PEER_STATE)) == {
                path.rpartition("/")[2] for path in wanted if path.startswith(node_paths.PEER_STATE + "/")
            }
            assert zk.children(node_paths.INBOX) == []
            assert zk.children(node_paths.SENTINEL) == []

    def note_of_links(self) -> str:
        with contextlib.closing(ZooKeeperSession.connect(self.crew.settings)) as zk:
            data = zk.read(node_paths.job_status(self.handle.id))
        assert data is not None
        return msgspec.json.decode(data, type=JobNote).links

    def peers_of(self, kind: type[PeerDied | Acked]) -> set[str]:
        """Peers of which the coordinator's log has such an event."""
        with contextlib.closing(ZooKeeperSession.connect(self.crew.settings)) as zk:
            return {event.peer for _, event in read_log(zk) if isinstance(event, kind)}

    def at_work(self, daemon: ChildProcess) -> bool:
        """Whether a peer of that daemon is on a task now."""
        return any(peer.pid == daemon.pid and peer.state == "active" for peer in self.crew.client.peers())


@pytest.fixture
def flights(
    request: pytest.FixtureRequest, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Flights]:
    """A deployment whose sessions expire soon, and the example with its data, a folder and a topic of its own."""
    departures = getattr(request, "param", SOME)
    (tmp_path / "example" / "data").mkdir(parents=True)
    for name in ("job.py", "flights_data.py"):
        shutil.copy(EXAMPLE / name, tmp_path / "example")
    flights_reference.write_first(departures, tmp_path / "example" / "data")
    out, topic = tmp_path / "out", f"{settings.deployment}-late"
    monkeypatch.setenv("FLIGHTS_OUT", str(out))
    monkeypatch.setenv("FLIGHTS_TOPIC", topic)
    quick = settings.zookeeper.model_copy(update={"session_timeout": 4.0})
    with Crew(settings.model_copy(update={"zookeeper": quick}), tmp_path) as crew:
        yield Flights(crew, tmp_path / "example" / "job.py", departures, out, topic)


@pytest.mark.parametrize(
    ("flights", "peers"),
    [
        (SOME, 1),
        pytest.param(ALL, 2, marks=pytest.mark.long),
        pytest.param(ALL, 8, marks=pytest.mark.long),
    ],
    indirect=["flights"],
)
def test_any_number_of_virtual_peers_gives_the_result_of_pandas(flights: Flights, peers: int):
    """One virtual peer works the whole graph off, task after task; eight share tasks; the result is the same, and the whole
    log replayed gives the tree.
    """
    flights.crew.coordinator()
    flights.crew.peers(peers)
    flights.submit()
    flights.check()
    flights.check_log()
    assert len(flights.peers_of(Acked)) == peers


@pytest.mark.long
def test_two_daemons_share_the_work(flights: Flights):
    """Two peer daemons, each with a Spark session of its own, give the result of one."""
    flights.crew.coordinator()
    flights.crew.peers(2, wait=False)
    flights.crew.peers(2)
    flights.crew.until(lambda: len(flights.crew.client.peers()) == 4, "both daemons")
    flights.submit()
    flights.check()
    worked = flights.peers_of(Acked)
    assert len({peer.daemon for peer in flights.crew.client.peers() if peer.id in worked}) == 2


def test_a_daemon_that_is_killed_is_replaced_by_another(flights: Flights):
    """SIGKILL of a peer daemon in the middle of the job: its tasks go to the other, and no row is lost or doubled."""
    flights.crew.coordinator()
    first = flights.crew.peers(2, wait=False)
    flights.crew.peers(2)
    flights.crew.until(lambda: len(flights.crew.client.peers()) == 4, "both daemons")
    flights.submit()
    flights.under_way("clean")
    flights.crew.until(lambda: flights.at_work(first), "the daemon to be killed to be at work")
    first.signal(signal.SIGKILL)
    flights.check()
    assert len(flights.peers_of(PeerDied)) == 2
    flights.check_log()


def test_a_leader_that_is_killed_is_replaced_by_its_standby(flights: Flights):
    """SIGKILL of the leading coordinator in the middle of the job: the standby takes over from the log, and the job goes on."""
    flights.crew.coordinator()
    flights.crew.coordinator()
    flights.crew.peers(4)
    flights.submit()
    flights.under_way("clean")
    old = flights.crew.leader()
    old.signal(signal.SIGKILL)
    flights.crew.until(lambda: flights.crew.leader() is not old, "the standby to lead")
    flights.check()
    flights.check_log()
