"""Another process follows the state of a task, and takes it over as the last commit left it, or not at all."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from log_world import SCHEMA, Partition, entries_of, table

from peer.operators import Stores
from peer.shards import Shards
from peer.standby import FollowedShard, StandbyShards
from peer.state_keeper import TopicKeeper
from queues.lost import ReaderLost
from queues.messages import Followed, Logged
from sardonyx import Job, State, kafka, sql
from sardonyx.core.changing import change_failure
from sardonyx.core.errors import JobInvalid
from sardonyx.core.graph import Link
from sardonyx.core.positions import Partition as Place
from sardonyx.core.positions import Position
from sardonyx.core.standby import followers, ranked
from sardonyx.job.load import load_job
from sardonyx.job.validate import validate
from sardonyx.state.log import ShardLog
from sardonyx.state.memory import MemoryStore
from sardonyx.state.messages import Mark
from sardonyx.state.restore import Restore
from sardonyx.state.undo import UndoChange, after
from tests.sizes import histories
from tests.waiting import PATIENCE, until

TOPIC = "test.job.count.state"
PLACE = Place(TOPIC, 0)


class Writer:
    """A shard at work, with its log."""

    def __init__(self, rng: random.Random, log: Partition) -> None:
        self.rng, self.log = rng, log
        self.store = MemoryStore(SCHEMA)
        self.shard = ShardLog(log.end, spare=20, piece=3)
        self.times = 0
        self.undo: dict[int, pa.Table] = {}
        """Of checkpoints that are pending, by their times."""

    def commit(self, *, commits: bool = True) -> None:
        keys = self.rng.sample([bytes([n]) for n in range(20)], self.rng.randint(1, 4))
        changes = table({key: self.rng.choice([None, self.rng.randint(0, 9)]) for key in keys})
        whole, changed = dict(self.undo), {}
        if self.rng.random() < 0.1:
            self.times += 1
            whole[self.times] = table({})
        for time in list(whole):
            if self.rng.random() < 0.2:
                del whole[time]  # the clock has passed it
            elif self.rng.random() < 0.5:
                changed[time] = {"v": table({self.rng.choice(keys): self.rng.randint(0, 9)})}
                whole[time] = after(whole[time], changed[time]["v"])
        undo = UndoChange(changed, {time: {"v": found} for time, found in whole.items()})
        self.log.write(self.shard.messages({"v": changes}, {"v": self.store}, undo), commit=commits)
        if commits:
            self.store.apply(changes)
            self.shard.committed()
            self.undo = whole
        else:
            self.shard.dropped()


def standing(mark: Mark) -> FollowedShard:
    stores = Stores(lambda _, schema: MemoryStore(schema))
    stores.open("v", SCHEMA)
    return FollowedShard(PLACE, Restore(mark, stores.all, topic=TOPIC, partition=0), stores)


def held(shard: FollowedShard) -> dict[bytes, int]:
    return entries_of(cast("MemoryStore", shard.stores.all["v"]))


def rows_of(undo: pa.Table) -> dict[bytes, tuple[int, bool]]:
    return {row["k"]: (row["v"], row["gone"]) for row in undo.to_pylist()}


class Log:
    """The state topic, as a keeper asks for it."""

    def __init__(self, log: Partition) -> None:
        self.log = log

    def end(self, _: int) -> int:
        return self.log.end()

    def end_beyond(self, _: int, end: int) -> int:
        return max(end, self.log.end())

    def read(self, _: int, start: int, end: int) -> Iterator[Logged]:
        return (record for record in self.log.committed(start) if record.offset < end)


def keeper(log: Partition) -> TopicKeeper:
    return TopicKeeper(Link("count.state", TOPIC, "state", "count", "count"), Log(log))


def test_what_is_followed_is_what_a_restore_gives(seed: int) -> None:
    """Wherever a process began to follow, however the log came in pieces, aborted commits, rounds of restatement and deletions
    in between: it has the entries of the last commit, and knows of the log what a restore knows.
    """
    rng = random.Random(seed)
    for _ in range(histories(60, whole=300)):
        log = Partition()
        writer = Writer(rng, log)
        for _ in range(rng.randint(1, 30)):
            writer.commit(commits=rng.random() < 0.9)
        shard = standing(writer.shard.mark)
        at = shard.restore.start
        for _ in range(rng.randint(0, 40)):
            writer.commit(commits=rng.random() < 0.9)
            if rng.random() < 0.3:
                assert shard.take_in(Followed(list(log.committed(at)), log.end()))
                at = log.end()
                log.delete_before(writer.shard.mark.low)
        assert shard.take_in(Followed(list(log.committed(at)), log.end()))
        mark = writer.shard.mark
        followed = keeper(log).goes_on(0, mark, shard.restore)
        assert followed is not None
        assert held(shard) == entries_of(writer.store)
        assert followed.state == writer.shard.state
        restore = Restore(mark, {"v": MemoryStore(SCHEMA)}, topic=TOPIC, partition=0)
        restore.read(log.committed(mark.low))
        assert followed.state == restore.finish()
        for time, found in writer.undo.items():
            for undo in (followed.undo, restore.undo):
                assert rows_of(undo.get(time, {}).get("v", table({}))) == rows_of(found)


def test_what_is_followed_does_not_grow_with_the_commits() -> None:
    """What is remembered of each commit is forgotten when the log begins after it."""
    log = Partition()
    writer = Writer(random.Random(1), log)
    writer.commit()
    shard = standing(writer.shard.mark)
    at = 0
    for _ in range(2_000):
        writer.commit()
        shard.take_in(Followed(list(log.committed(at)), log.end()))
        at = log.end()
    assert len(shard.restore._rows) < 100
    assert len(shard.restore._undo) < 30 < writer.times
    assert writer.shard.mark.base > 1_900


def test_a_shard_that_is_not_what_the_position_says_is_not_taken() -> None:
    """One that lacks commits, that has more of them, or that begins later than the position needs."""
    log = Partition()
    writer = Writer(random.Random(3), log)
    writer.commit()
    first = writer.shard.mark
    writer.commit()
    shard = standing(first)
    assert shard.take_in(Followed(list(log.committed(0))[:1], 1))
    assert keeper(log).goes_on(0, writer.shard.mark, shard.restore) is None, "it lacks the second commit"
    shard = standing(first)
    assert shard.take_in(Followed(list(log.committed(0)), log.end()))
    assert keeper(log).goes_on(0, first, shard.restore) is None, "it has more"
    shard = standing(Mark(2, log.end(), 1))
    assert keeper(log).goes_on(0, writer.shard.mark, shard.restore) is None, "it begins later"


def test_a_torn_log_is_given_up() -> None:
    """A gap in the log ends it, and a peer that waits does not get it: the restore says what is wrong."""
    log = Partition()
    writer = Writer(random.Random(5), log)
    for _ in range(3):
        writer.commit()
    shard = standing(Mark(1))
    torn = [record for record in log.committed(0) if record.headers[1][1].split()[0] != b"2"]
    assert not shard.take_in(Followed(torn, log.end()))
    assert not shard.ready(0, 60)


class Client:
    """A client that gives what a test puts in."""

    def __init__(self) -> None:
        self.calls: queue.Queue[Callable[[], Mapping[Place, Followed]]] = queue.Queue()
        self.reads: dict[Place, int] = {}
        self.closed = False

    def begin(self, place: Place, offset: int) -> None:
        assert place not in self.reads
        self.reads[place] = offset

    def end(self, place: Place) -> None:
        del self.reads[place]

    def read(self, timeout: float) -> Mapping[Place, Followed]:
        try:
            call = self.calls.get(timeout=timeout)
        except queue.Empty:
            return {}
        return call()

    def close(self) -> None:
        self.closed = True

    def gives(self, messages: list[Logged], reached: int) -> None:
        self.calls.put(lambda: {PLACE: Followed(messages, reached)})


class Task:
    """A task to follow, of two partitions: the second has no position yet."""

    topic = TOPIC
    partitions = 2
    by_rows = ()

    def __init__(self, mark: Mark) -> None:
        self.mark = mark

    def positions(self) -> dict[int, Position | None]:
        return {0: Position(1, state=self.mark), 1: None}

    def shards(self) -> Shards:
        return cast("Shards", self)

    def may_follow(self, mark: Mark) -> bool:
        return True

    def empty(self) -> tuple[Stores, None]:
        return standing(self.mark).stores, None


@pytest.fixture
def running() -> Iterator[tuple[StandbyShards, list[Client]]]:
    clients: list[Client] = []

    def made() -> Client:
        clients.append(Client())
        return clients[-1]

    shards = StandbyShards(made, patience=PATIENCE)
    thread = threading.Thread(target=shards.run)
    thread.start()
    yield shards, clients
    shards.close()
    thread.join(60)
    assert not thread.is_alive()
    assert all(client.closed for client in clients)


def test_a_peer_waits_for_the_end_of_the_log(running: Any) -> None:
    """It takes the shard once all up to the end is applied. Then it is followed no more."""
    shards, clients = running
    log = Partition()
    writer = Writer(random.Random(7), log)
    writer.commit()
    shards.follow([Task(writer.shard.mark)])
    until(lambda: clients and clients[0].reads == {PLACE: 0}, what="the log to be read")
    clients[0].gives(list(log.committed(0)), log.end())
    end = log.end()
    writer.commit()
    taken: list[FollowedShard | None] = []
    waiting = threading.Thread(target=lambda: taken.append(shards.take(PLACE, log.end)))
    waiting.start()
    clients[0].gives(list(log.committed(end)), log.end())
    waiting.join(60)
    assert taken[0] is not None
    assert held(taken[0]) == entries_of(writer.store)
    until(lambda: clients[0].reads == {}, what="the log to be read no more")
    assert shards.take(PLACE, log.end) is None


def test_a_peer_does_not_wait_without_end(running: Any) -> None:
    """If nothing comes, it reads the log itself."""
    shards, clients = running
    shards._patience = 0.2
    shards.follow([Task(Mark(1))])
    until(lambda: clients and clients[0].reads, what="the log to be read")
    assert shards.take(PLACE, lambda: 10) is None


def test_what_a_peer_of_the_process_has_is_not_followed(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when it has it until it lets it go; also if it comes while the log is read."""
    monkeypatch.setattr("peer.standby.AGAIN", 0.0)
    shards, clients = running
    shards.hold(PLACE)
    shards.follow([Task(Mark(1))])
    assert clients == []
    shards.hold(PLACE)
    shards.let_go(PLACE)
    shards.follow([Task(Mark(1))])
    assert clients == []
    shards.let_go(PLACE)
    shards.follow([Task(Mark(1))])
    until(lambda: clients and clients[0].reads == {PLACE: 0}, what="the log to be read")
    shards.hold(PLACE)
    until(lambda: clients[0].reads == {}, what="the log to be read no more")
    shards.let_go(PLACE)
    shards.follow([Task(Mark(1))])
    shards.follow([])
    until(lambda: clients[0].reads == {}, what="the log to be read no more")


def test_a_client_that_is_lost_is_replaced(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was followed is given up, and followed anew by another client."""
    monkeypatch.setattr("peer.standby.AGAIN", 0.0)
    shards, clients = running

    def lost() -> Mapping[Place, Followed]:
        raise ReaderLost("gone")

    shards.follow([Task(Mark(1))])
    until(lambda: clients and clients[0].reads, what="the log to be read")
    clients[0].calls.put(lost)
    until(lambda: clients[0].closed, what="the client to be given back")
    until(lambda: shards.follow([Task(Mark(1))]) or (len(clients) == 2 and clients[1].reads), what="another client")


def add(row: dict, seen: State[int]) -> dict:
    seen.value += 1
    return row


def same(row: dict) -> dict:
    return row


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"standby": 1}, ""),
        ({"standby": 1, "store": "rocksdb"}, ""),
        ({"standby": 2}, "standby cannot be 2"),
        ({"standby": -1}, "standby cannot be -1"),
        ({"standby": 1, "store": sql("sqlite:////tmp/state.db")}, "a store that no other process can follow"),
    ],
)
def test_which_tasks_may_have_a_standby(settings: dict[str, Any], wrong: str) -> None:
    """One, at a task whose state has a log. It is a setting that a running job can change, and older peers do not run it."""
    job, plain = Job("stands"), Job("stands")
    for each, given in (
        (job, settings),
        (plain, {name: value for name, value in settings.items() if name != "standby"}),
    ):
        read = each.input("read", kafka("given", schema="key long", start="earliest"))
        each.output("out", kafka("out"), after=each.keyed("count", add, after=read, group_by="key", **given))
    if wrong:
        with pytest.raises(JobInvalid, match="SX-JOB-STANDBY") as found:
            load_job(job, places=False)
        assert wrong in found.value.message
        return
    spec = load_job(job, places=False).spec
    assert change_failure("stands-1", load_job(plain, places=False).spec, spec) is None


def test_a_task_without_state_has_no_standby() -> None:
    """There is nothing to follow."""
    job = Job("stands")
    read = job.input("read", kafka("given", schema="key long", start="earliest"))
    job.output("out", kafka("out"), after=job.task("pass", same, after=read))
    spec = job.spec()
    catalog = [msgspec.structs.replace(task, standby=int(task.name == "pass")) for task in spec.catalog]
    with pytest.raises(JobInvalid, match="keeps no state"):
        validate(msgspec.structs.replace(spec, catalog=catalog), import_functions=False)


def test_each_task_has_its_order_of_processes() -> None:
    """All processes and the coordinator know it alike, and tasks are spread over the processes. If one goes, the others keep
    their order. The holder of a shard is not its own standby.
    """
    homes = [f"host-{n}:1" for n in range(10)]
    first = {ranked("job", f"task-{n}", homes)[0] for n in range(200)}
    assert first == set(homes)
    order = ranked("job", "task", reversed(homes))
    assert order == ranked("job", "task", homes)
    assert ranked("job", "task", order[1:]) == order[1:]
    assert followers("job", "task", homes, []) == order[:1]
    assert followers("job", "task", homes, order[3:4]) == order[:1]
    assert followers("job", "task", homes, order[:1]) == order[:2]
    assert followers("job", "task", [], ["host-1:1"]) == []
