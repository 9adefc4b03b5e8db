"""One task's loop on real ZooKeeper, Kafka and Spark, while what it depends on goes wrong. The test is the coordinator."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from peer import batch_commit, sealing
from peer.assignment import AssignmentHandle, AssignmentRevoked
from peer.preparation import prepare
from peer.task_loop import TaskLoop
from peer.task_session import result_of
from queues import admin, block
from queues.messages import DUE_HEADER
from queues.reader import Reader
from queues.transaction import TransactionalWriter
from sardonyx import Job, blackhole, generator
from sardonyx.connectors.base import Split
from sardonyx.core import node_paths
from sardonyx.core.events import Counts
from sardonyx.core.graph import graph_of
from sardonyx.core.notes import Assignment, LinksNote
from sardonyx.core.spec import JobSpec, TaskSpec, encode_spec
from sardonyx.dev.services import embedded_services
from sardonyx.runtime.settings import Settings, load_settings
from sardonyx.zookeeper.session import ZooKeeperSession
from spark_tasks.on_demand import SparkOnDemand
from tests.proxy import Proxy
from tests.services.crew import Crew
from tests.waiting import until

JOB = "loop-1"
ROWS = 60
PARTITIONS = 3


class _Doors:
    """Where the function of task ``work`` waits, if a test wants it to; a DataFrame function runs in this process."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.left = threading.Event()


DOORS = _Doors()


def work(rows: DataFrame) -> DataFrame:
    DOORS.entered.set()
    assert DOORS.open.wait(180)
    DOORS.left.set()
    return rows


class Peer:
    """A virtual peer's loop on a thread of its own, and the handle that the test plays with."""

    def __init__(self, stand: Stand, task: str, slot: int, zk: ZooKeeperSession) -> None:
        assignment = Assignment(next(stand.numbers), JOB, task, slot)
        name = f"{stand.settings.deployment}-{assignment.id}"
        self.handle = AssignmentHandle(assignment, lambda: zk.connected)
        self.work = prepare(stand.settings, zk, stand.spark, name, assignment, stand.folder)
        self.loop = TaskLoop(self.work, self.handle, zk)
        self.thread = threading.Thread(target=self.loop.run, name=name, daemon=True)
        self.thread.start()

    def ends(self) -> None:
        until(lambda: not self.thread.is_alive(), what="the loop's end")

    def stop(self) -> None:
        self.handle.revoke()
        self.ends()


class Stand:
    """make -> work -> drop, its topics and its notes in the tree, and peers on its tasks."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkOnDemand,
        folder: Path,
        rate: float | None = None,
        output: TaskSpec | None = None,
    ) -> None:
        self.settings, self.spark, self.folder = settings, spark, folder
        self.numbers = iter(range(1, 100))
        paced = {} if rate is None else {"rate": rate}
        spec = JobSpec(
            name="loop",
            workflow=[("make", "work"), ("work", "drop")],
            catalog=[
                TaskSpec(name="make", type="input", connector="generator", options={"count": ROWS, **paced}),
                TaskSpec(name="work", type="function", fn=f"{__name__}:work"),
                output or TaskSpec(name="drop", type="output", connector="blackhole"),
            ],
            partitions=PARTITIONS,
        )
        self.graph = graph_of(spec, settings.deployment, JOB)
        self.zk = ZooKeeperSession.connect(settings)
        facts = admin.create_links(settings, self.graph, spec)
        self.zk.create(node_paths.job(JOB))
        self.zk.create(node_paths.sentinels(JOB))
        self.zk.create(node_paths.job_spec(JOB), encode_spec(spec))
        self.zk.create(node_paths.job_links(JOB), msgspec.json.encode(LinksNote(facts)))
        self.trees = [self.zk]
        self.peers: list[Peer] = []

    def peer(self, task: str, *, slot: int = 0, zk: ZooKeeperSession | None = None) -> Peer:
        self.peers.append(Peer(self, task, slot, zk or self.zk))
        return self.peers[-1]

    def through(self, peer: Peer) -> None:
        """Let a peer work its task off, tell it to seal, and wait until it says that it has."""
        task = peer.handle.assignment.task
        until(lambda: self.told("exhausted", peer), what=f"{task} to be exhausted")
        peer.handle.update("sealing")
        until(lambda: self.told("complete", peer), what=f"{task} to be sealed")
        peer.stop()

    def told(self, kind: str, peer: Peer) -> int:
        """How often the coordinator was told that by this peer."""
        names = self.zk.children(node_paths.INBOX)
        found = self.zk.read_many(f"{node_paths.INBOX}/{name}" for name in names if name.startswith(kind))
        return sum(f'"{peer.work.peer}"'.encode() in data for data in found.values())

    def made(self) -> None:
        """The input, read and sealed."""
        self.through(self.peer("make"))

    def messages(self, link: str) -> list[Message]:
        """What is committed on a link, partition by partition."""
        topic = next(each.topic for each in self.graph.links if each.name == link)
        consumer = Consumer(
            {
                **self.settings.kafka.client(),
                "group.id": f"{self.settings.deployment}-look",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        found, ended = [], set()
        while len(ended) < PARTITIONS:
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ended.add(message.partition())
        consumer.close()
        return found

    def ids(self, link: str = "work.drop") -> list[int]:
        """The ids of the rows that are committed on a link, sorted."""
        values = [message.value() for message in self.messages(link) if message.value() is not None]
        return sorted(block.decode(values)["id"].to_pylist()) if values else []

    def counted(self, task: str) -> Counts:
        return admin.counts(self.settings, self.graph, JOB)[task]

    def close(self) -> None:
        DOORS.open.set()
        for peer in self.peers:
            peer.stop()
        for zk in self.trees:
            zk.close()


@pytest.fixture
def build(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Stand]]:
    made: list[Stand] = []
    DOORS.__init__()  # type: ignore[misc]

    def one(settings: Settings, rate: float | None = None, output: TaskSpec | None = None) -> Stand:
        made.append(Stand(settings, SparkOnDemand(lambda: spark), tmp_path, rate, output))
        return made[-1]

    yield one
    for stand in made:
        stand.close()


@pytest.fixture
def stand(build: Callable[..., Stand], settings: Settings) -> Stand:
    stand = build(settings)
    stand.made()
    return stand


EXACT = list(range(ROWS))


def test_a_batch_whose_grant_goes_while_spark_works_commits_nothing(stand: Stand):
    """The loop ends at once, whatever Spark still does; a successor finds everything still to be done, and does it once."""
    first = stand.peer("work")
    assert DOORS.entered.wait(180)
    first.handle.revoke()
    first.ends()
    DOORS.open.set()
    assert DOORS.left.wait(180)
    assert (stand.ids(), stand.counted("work")) == ([], Counts())
    stand.through(stand.peer("work"))
    assert stand.ids() == EXACT


@pytest.mark.gate
def test_a_rival_on_the_same_slot_costs_a_batch_and_no_record(stand: Stand, monkeypatch: pytest.MonkeyPatch):
    """Fenced while its assignment stands, a loop takes its slot back and goes on from the committed positions: exact."""
    opened: list[threading.Thread] = []
    plain = TransactionalWriter.open

    def noted(writer: TransactionalWriter) -> None:
        opened.append(threading.current_thread())
        plain(writer)

    monkeypatch.setattr(TransactionalWriter, "open", noted)
    peer = stand.peer("work")
    assert DOORS.entered.wait(180)
    rival = TransactionalWriter(stand.settings, peer.work.transactional_id)
    rival.open()
    DOORS.open.set()
    stand.through(peer)
    assert opened.count(peer.thread) >= 2  # fenced once, and its slot taken back
    assert stand.ids() == EXACT
    assert stand.counted("work") == Counts(ROWS, ROWS, sent={})


def test_a_rival_on_the_same_slot_wins_if_the_grant_is_gone(stand: Stand, monkeypatch: pytest.MonkeyPatch):
    """Fenced when its task was given to the rival, a loop stands down, and everything is the rival's to do."""
    zombie = stand.peer("work")
    assert DOORS.entered.wait(180)
    at_the_failpoint, go = threading.Event(), threading.Event()

    def wait(point: str) -> None:
        if point == "begin" and threading.current_thread() is zombie.thread:
            at_the_failpoint.set()
            assert go.wait(180)

    monkeypatch.setattr(batch_commit, "failpoint", wait)
    DOORS.open.set()
    assert at_the_failpoint.wait(180)
    zombie.handle.revoke()  # past its last look at the handle: only the fences are left
    heir = stand.peer("work")
    until(lambda: (clients := heir.loop.session.clients) and clients.reader._held, what="the heir to hold the slot")
    go.set()
    zombie.ends()
    stand.through(heir)
    assert stand.ids() == EXACT
    assert stand.counted("work") == Counts(ROWS, ROWS, sent={})


@pytest.mark.gate
def test_a_transaction_that_stayed_open_too_long_is_done_again(
    build: Callable[..., Stand], settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    """The broker aborts it and fences its producer, as a rival would; the loop begins afresh, and the output is exact."""
    peer_settings = settings.peer.model_copy(update={"transaction_timeout": 3.0})
    stand = build(settings.model_copy(update={"peer": peer_settings}))
    stand.made()
    DOORS.open.set()
    asked = Reader.group_metadata
    late = threading.Event()

    def after_the_timeout(reader: Reader) -> object:
        if not late.is_set() and DOORS.left.is_set():  # something is written, not only news of an end
            until(lambda: aborted(stand), what="the broker to abort the transaction")
            late.set()
        return asked(reader)

    monkeypatch.setattr(Reader, "group_metadata", after_the_timeout)
    stand.through(stand.peer("work"))
    assert late.is_set()
    assert stand.ids() == EXACT
    assert stand.counted("work") == Counts(ROWS, ROWS, sent={})


def aborted(stand: Stand) -> bool:
    """Whether something was written to the output that no reader waits for any more, and none sees."""
    consumer = Consumer({**stand.settings.kafka.client(), "group.id": "look", "isolation.level": "read_committed"})
    topic = next(each.topic for each in stand.graph.links if each.name == "work.drop")
    stable = [consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=60)[1] for n in range(PARTITIONS)]
    consumer.close()
    return any(stable)


@pytest.mark.gate
def test_nothing_is_committed_while_zookeeper_is_away(
    build: Callable[..., Stand], settings: Settings, zookeeper: str, monkeypatch: pytest.MonkeyPatch
):
    """A batch that is ready waits, its reader in the group, until ZooKeeper is back; then it is committed as it is."""
    proxy = Proxy(zookeeper)
    try:
        stand = build(settings)
        stand.made()
        # The absence lasts until the loop has waited for a while, however slow this machine is. The session must outlive that.
        distant = settings.zookeeper.model_copy(update={"hosts": proxy.address, "session_timeout": 110.0})
        zk = ZooKeeperSession.connect(settings.model_copy(update={"zookeeper": distant}))
        stand.trees.append(zk)
        peer = stand.peer("work", zk=zk)
        assert DOORS.entered.wait(180)
        proxy.refuse()
        until(lambda: not zk.connected, what="the connection to be lost")
        DOORS.open.set()
        assert DOORS.left.wait(180)
        polls = counting(monkeypatch)
        until(lambda: polls() > 40, what="the loop to wait for a while")
        assert stand.counted("work") == Counts()
        assert peer.thread.is_alive()
        proxy.accept_again()
        stand.through(peer)
        assert stand.ids() == EXACT
    finally:
        proxy.close()


def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often readers were polled from now on: time, as a loop knows it."""
    calls: list[float] = []
    poll = Reader.poll

    def counted(reader: Reader, timeout: float) -> None:
        calls.append(timeout)
        poll(reader, timeout)

    monkeypatch.setattr(Reader, "poll", counted)
    return lambda: len(calls)


def test_the_question_whether_to_seal_is_asked_once(stand: Stand, monkeypatch: pytest.MonkeyPatch):
    """However long the answer takes; and nothing is sealed before it comes."""
    DOORS.open.set()
    peer = stand.peer("work")
    until(lambda: stand.told("exhausted", peer), what="the question")
    polls = counting(monkeypatch)
    until(lambda: polls() > 40, what="the loop to wait for a while")
    assert stand.told("exhausted", peer) == 1
    assert all(message.value() is not None for message in stand.messages("work.drop"))


@pytest.mark.parametrize("point", ["seal", pytest.param("sealed", marks=pytest.mark.gate)])
def test_a_sealer_that_dies_is_followed_by_another(stand: Stand, monkeypatch: pytest.MonkeyPatch, point: str):
    """Before its commit nothing is sealed, after it the successor seals again: the next task ends either way, exact."""
    DOORS.open.set()
    first = stand.peer("work")
    until(lambda: stand.told("exhausted", first), what="the question")

    def dies(here: str) -> None:
        if here == point and threading.current_thread() is first.thread:
            raise AssignmentRevoked

    monkeypatch.setattr(sealing, "failpoint", dies)
    first.handle.update("sealing")
    first.ends()
    assert not stand.told("complete", first)
    wanted = PARTITIONS if point == "sealed" else 0  # a commit is answered before all that it commits can be read
    until(
        lambda: sum(message.value() is None for message in stand.messages("work.drop")) == wanted, what="its sentinels"
    )
    second = stand.peer("work")
    second.handle.update("sealing")
    until(lambda: stand.told("complete", second), what="the successor to seal")
    second.stop()
    stand.through(stand.peer("drop"))
    assert stand.ids() == EXACT
    assert stand.counted("drop") == Counts(ROWS, ROWS, sent={})


def test_a_sealer_that_was_held_up_writes_no_second_marker(
    build: Callable[..., Stand], settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    """It has seen that no marker is written, and pauses. Another peer seals meanwhile. When the first one goes on, still a member
    of the group with a slot of its own, its transaction is refused, and it finds the markers.
    """
    options = {"topic": f"{settings.deployment}-marked", "partitions": PARTITIONS, "format": "json", "end_marker": True}
    stand = build(settings, output=TaskSpec(name="drop", type="output", connector="kafka", options=options))
    stand.made()
    DOORS.open.set()
    peers = [stand.peer("work", slot=slot) for slot in range(2)]
    until(lambda: all(stand.told("exhausted", peer) for peer in peers), what="the question of both")
    held, go_on = threading.Event(), threading.Event()

    def waits(point: str) -> None:
        if point == "seal" and threading.current_thread() is peers[0].thread and not held.is_set():
            held.set()
            assert go_on.wait(180)

    monkeypatch.setattr(sealing, "failpoint", waits)
    peers[0].handle.update("sealing")
    assert held.wait(180)
    peers[1].handle.update("sealing")
    until(lambda: stand.told("complete", peers[1]), what="the second peer to seal")
    go_on.set()
    until(lambda: stand.told("complete", peers[0]), what="the first peer to seal")
    markers = [message.partition() for message in stand.messages("work.drop") if message.value() is None]
    assert sorted(markers) == list(range(PARTITIONS))


def test_a_paced_input_is_read_no_faster_than_its_rate(build: Callable[..., Stand], settings: Settings):
    """Each piece of the input says when it is due, and no row of it is written earlier."""
    rate = 30.0
    stand = build(settings, rate)
    stand.made()
    due: dict[int, float] = {}
    for message in stand.messages("make.splits"):
        if message.value() is not None:
            split = msgspec.json.decode(message.value(), type=Split)
            due[split.data["first"]] = float(dict(message.headers())[DUE_HEADER])
    began = due[0]
    assert {first: round(at - began, 2) for first, at in due.items()} == {
        first: round(first / rate, 2) for first in range(0, ROWS, 7)
    }
    for message in stand.messages("make.work"):
        if message.value() is not None:
            for number in block.decode([message.value()])["id"].to_pylist():
                assert message.timestamp()[1] / 1000 >= due[number - number % 7] - 0.001
    assert stand.ids("make.work") == EXACT


@pytest.mark.parametrize("how", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_daemon_ends_when_told_though_its_broker_is_gone(tmp_path: Path, how: signal.Signals):
    """Whether the broker is dead or only silent: SIGTERM ends a peer daemon in the middle of its work within a bounded time."""
    with embedded_services() as own:
        settings = load_settings(
            deployment="gone",
            zookeeper={"hosts": own.zookeeper},
            kafka={"bootstrap_servers": own.kafka},
            peer={"transaction_timeout": 5.0},
        )
        with Crew(settings, tmp_path) as crew:
            crew.coordinator()
            daemon = crew.peers(2)
            job = Job("endless")
            job.output("drop", blackhole(), after=job.input("make", generator(count=100_000, rate=100)))
            handle = crew.client.submit(job)
            crew.until(lambda: (handle.status().task("drop").rows_in or 0) > 0, "the first rows")
            os.kill(own.pids["kafka"], how)
            os.kill(daemon.pid, signal.SIGTERM)
            crew.until(lambda: daemon.poll() is not None, "the daemon's end")
            assert daemon.poll() == 0, crew.logs()
            own.stop("kafka", kill=True)  # one that is stopped would not hear that it is to end


def test_what_is_no_exception_out_of_a_tasks_code_is_an_error_of_the_task() -> None:
    """Else it would end the thread, and with it the daemon's session, of every peer that gets the task, again and again."""
    future: Future[None] = Future()
    future.set_exception(SystemExit(3))
    with pytest.raises(RuntimeError, match="SystemExit out of the task's own code: 3"):
        result_of(future)
