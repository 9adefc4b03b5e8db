"""The log on a real ZooKeeper: what comes back, and that it holds wherever its writer breaks off."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from coordinator.loop import event_log, snapshots
from coordinator.loop.election import Leadership, identity
from coordinator.loop.event_log import Entry
from coordinator.loop.limits import DEFAULT, Limits
from coordinator.loop.log_writer import Appended, LogWriter, PendingEntry, append
from sardonyx.core import node_paths
from sardonyx.core.effects import Create
from sardonyx.core.errors import InternalError, SetupError
from sardonyx.core.events import FORMAT, RULES, AckTimedOut, Evicted, JobSubmitted, Left
from sardonyx.core.spec import JobSpec
from sardonyx.runtime.settings import Settings
from sardonyx.zookeeper.errors import Deposed
from sardonyx.zookeeper.session import ZooKeeperSession
from sardonyx.zookeeper.transactions import ENTRY_LIMIT, SetIf, weight
from tests.services.entries import SMALL, Broke, batches, breaking, events, numbers


@pytest.fixture
def zk(leader: Leadership) -> ZooKeeperSession:
    return leader.zk


def test_entries_come_back_in_order(leader: Leadership, zk: ZooKeeperSession) -> None:
    """What is appended is read again, over buckets, batches and transactions, from any number on, and from the end."""
    append(leader, 1, events(1, 2500))
    append(leader, 2501, events(2501, 2503))
    assert numbers(zk) == list(range(1, 2504))
    for first in (1, 2, 999, 1000, 1998, 2500, 2501, 2502, 2503, 2504, 9999):
        assert numbers(zk, first) == list(range(first, 2504))
    assert [n for n, _ in event_log.tail(zk, 5)] == [2499, 2500, 2501, 2502, 2503]
    assert event_log.tail(zk, 0) == []
    assert len(event_log.tail(zk, 10_000)) == 2503
    assert event_log.last(zk) == 2503


def test_an_empty_log(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Before the first event there is nothing to read, and the checkpoint is 0."""
    assert list(event_log.read_log(zk)) == []
    assert event_log.tail(zk, 3) == []
    assert event_log.last(zk) == event_log.read_checkpoint(zk) == 0
    assert snapshots.base(zk, 7) is None
    append(leader, 1, [])
    assert event_log.last(zk) == 0


def test_what_is_appended_at_once_stands_in_few_nodes(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Full batches, none over the limit, none across the end of a bucket, each named for its first entry."""
    append(leader, 1, events(1, 5000))
    found = batches(zk)
    assert len(found) < 20
    assert all(len(data) <= DEFAULT.log_node + 100 for data in found.values())
    for first, data in found.items():
        count = len(event_log.decode_batch(first, data))
        assert first // node_paths.LOG_BUCKET == (first + count - 1) // node_paths.LOG_BUCKET
        assert first + count in found or first + count == 5001


def test_an_entry_is_plain_json_that_says_its_format(leader: Leadership, zk: ZooKeeperSession) -> None:
    """The bytes in ZooKeeper can be read by people and tools; the first of each leadership says whose it is."""
    append(leader, 1, [PendingEntry(AckTimedOut(at=1.0, peer="p", assignment=1), request="0f1e"), *events(2, 2)])
    assert msgspec.json.decode(zk.read(node_paths.log_batch(1)) or b"") == {
        "format": FORMAT,
        "rules": RULES,
        "entries": [
            {
                "event": {"kind": "ack-timed-out", "at": 1.0, "peer": "p", "assignment": 1},
                "request": "0f1e",
                "leader": identity(),
            },
            {"event": {"kind": "ack-timed-out", "at": 2.0, "peer": "p2", "assignment": 2}},
        ],
    }


def submission(size: int) -> PendingEntry:
    """An entry of just so many bytes."""
    entry = Entry(JobSubmitted(at=1.0, job="j", spec=JobSpec(name="j", workflow=[], catalog=[], doc="x")))
    doc = "x" * (size - len(msgspec.json.encode(entry)) + 1)
    return PendingEntry(msgspec.structs.replace(entry.event, spec=JobSpec(name="j", workflow=[], catalog=[], doc=doc)))


def test_batches_at_the_limit(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Entries that just fit share a node; one byte more and they do not; a larger one stands alone, between the others."""
    half = DEFAULT.log_node // 2
    leader.unlogged_leader = ""  # the first entry would be longer by it
    append(leader, 1, [submission(half - 1), submission(half)])
    append(leader, 3, [submission(half), submission(half + 1)])
    append(leader, 5, [*events(5, 5), submission(2 * ENTRY_LIMIT), *events(7, 7)])
    assert list(batches(zk)) == [1, 3, 4, 5, 6, 7]
    assert [n for n, _ in event_log.read_log(zk)] == list(range(1, 8))


def test_an_entry_that_is_too_large_is_refused_by_name(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Before anything is written, far below the size at which ZooKeeper would drop the connection."""
    with pytest.raises(InternalError, match=r"entry 3 has 131,073 bytes; 131,072 is the most") as caught:
        append(leader, 1, [*events(1, 2), submission(2 * ENTRY_LIMIT + 1)])
    assert caught.value.code == "SX-INTERNAL-ENTRY-SIZE"
    assert event_log.last(zk) == 0
    assert zk.connected


def test_transactions_of_an_append_are_small(leader: Leadership, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is appended, no transaction comes near ZooKeeper's limit, the removals of the requests counted in."""
    sizes = []

    def note(operations: list) -> Callable[[], None]:
        sizes.append(sum(map(weight, operations)))
        return lambda: None

    monkeypatch.setattr(leader, "begin", note)
    name = "ack-" + 32 * "0" + "-0000000001"
    append(leader, 1, [PendingEntry(Left(peer="p"), name, 32 * "0") for _ in range(5000)])
    append(leader, 1, [submission(2 * ENTRY_LIMIT) for _ in range(20)])
    assert max(sizes) <= 256 * 1024
    assert len(sizes) > 10


def test_a_request_leaves_the_inbox_as_it_enters_the_log(leader: Leadership, zk: ZooKeeperSession) -> None:
    """Both or neither: if a request is gone already, its event is not appended either."""
    zk.request(Left(peer="p"))
    (name,) = zk.children(node_paths.INBOX)
    intake = PendingEntry(Left(at=1.0, peer="p"), name, name.split("-")[1])
    append(leader, 1, [intake])
    assert zk.children(node_paths.INBOX) == []
    ((n, entry),) = event_log.read_entries(zk)
    assert (n, entry.event, entry.request) == (1, Left(at=1.0, peer="p"), name.split("-")[1])
    with pytest.raises(InternalError):
        append(leader, 2, [intake])
    assert event_log.last(zk) == 1


@pytest.mark.usefixtures("small_log")
@pytest.mark.parametrize("wrong", [1, 7, 20, 33, 60])
def test_what_is_behind_a_refused_transaction_is_refused_too(
    leader: Leadership, zk: ZooKeeperSession, wrong: int
) -> None:
    """Several transactions are in flight at once; when ZooKeeper refuses one, it refuses all that were sent after it."""
    entries = events(1, 60)
    entries[wrong - 1] = msgspec.structs.replace(entries[wrong - 1], inbox="was-never-there")
    writer = LogWriter(leader, limits=Limits(log_node=300, transaction=500))
    sent: list[Appended] = []
    given: list[int] = []

    def write() -> None:
        for transaction in [*writer.add(entries), *writer.rest()]:
            while writer.full:
                given.append(len(sent[len(given)].wait()))
            sent.append(writer.submit(transaction))
        given.extend(len(appended.wait()) for appended in sent[len(given) :])

    with pytest.raises(InternalError):
        write()
    assert event_log.last(zk) == sum(given) < wrong
    assert numbers(zk) == list(range(1, sum(given) + 1))
    assert len(sent) - len(given) > 1 or wrong > 50, "nothing was in flight after it"


def test_a_deposed_leader_appends_nothing(leader: Leadership, zk: ZooKeeperSession) -> None:
    """After another took the epoch, neither entry nor removal happens."""
    zk.request(Evicted(peer="p"))
    (name,) = zk.children(node_paths.INBOX)
    zk.commit([SetIf(node_paths.EPOCH, b"{}", leader.version)])
    with pytest.raises(Deposed):
        append(leader, 1, [PendingEntry(Evicted(peer="p"), name)])
    assert zk.children(node_paths.INBOX) == [name]
    assert event_log.last(zk) == 0


def test_an_append_that_breaks_off_anywhere(settings: Settings) -> None:
    """What stands in the log is out of the inbox, the rest is in it, and a successor goes on behind it."""
    broke = True
    after = 0
    while broke:
        with breaking(settings, after) as (whole, dying):
            wanted = [submission(60_000) for _ in range(9)]
            for intake in wanted:
                whole.zk.request(msgspec.structs.replace(intake.event, at=0.0))
            names = sorted(whole.zk.children(node_paths.INBOX), key=lambda name: name[-10:])
            intakes = [PendingEntry(i.event, name, name.split("-")[1]) for i, name in zip(wanted, names, strict=True)]
            try:
                append(dying, 1, intakes)
                broke = False
            except Broke:
                pass
            last = event_log.last(whole.zk)
            assert sorted(whole.zk.children(node_paths.INBOX), key=lambda name: name[-10:]) == names[last:]
            append(whole, last + 1, intakes[last:])
            assert [entry.request for _, entry in event_log.read_entries(whole.zk)] == [i.request for i in intakes]
            assert whole.zk.children(node_paths.INBOX) == []
        after += 1
    assert after > 2


@pytest.mark.usefixtures("small_log")
@pytest.mark.parametrize("missing", [0, 1, -1])
def test_a_missing_batch_is_said(leader: Leadership, zk: ZooKeeperSession, missing: int) -> None:
    """A log with a hole, also at its beginning, is not replayed as if it were whole; an end that is gone is for its
    reader to see.
    """
    append(leader, 1, events(1, 50), SMALL)
    firsts = list(batches(zk))
    n = firsts[missing]
    zk.delete(node_paths.log_batch(n))
    if missing == -1:
        assert numbers(zk)[-1] == n - 1
        return
    with pytest.raises(InternalError, match=f"no entry {n}") as caught:
        list(event_log.read_log(zk))
    assert caught.value.code == "SX-INTERNAL-LOG-GAP"
    assert numbers(zk, firsts[2]) == list(range(firsts[2], 51))


@pytest.mark.usefixtures("small_log")
def test_two_entries_of_one_number_are_not_read(leader: Leadership, zk: ZooKeeperSession) -> None:
    """A batch that begins inside another one was not written by a leader, and is no history."""
    append(leader, 1, events(1, 9), SMALL)
    first, second, *_ = batches(zk)
    zk.commit([Create(node_paths.log_batch(second - 1), zk.read(node_paths.log_batch(first)) or b"")])
    with pytest.raises(InternalError) as caught:
        list(event_log.read_log(zk))
    assert caught.value.code == "SX-INTERNAL-LOG-GAP"


@pytest.mark.parametrize(
    "data",
    [
        b'{"format":1,"event":{"kind":"left","peer":"p"}}',
        b'{"format":99,"pages":[{"kind":"new"}]}',
        b'{"format":%d,"entries":[],"more":1}' % FORMAT,
        b'{"format":%d,"entries":[{"event":{"kind":"leave","peer":"p","mood":"good"}}]}' % FORMAT,
        b'{"format":%d,"entries":[{"event":{"kind":"leave","peer":"p"},"from":"x"}]}' % FORMAT,
        b'{"format":%d,"parts":1,"sha256":"","more":1}' % FORMAT,
        b"\x00\x01",
        b"[]",
    ],
)
def test_another_versions_log_is_refused(leader: Leadership, zk: ZooKeeperSession, data: bytes) -> None:
    """An entry or a snapshot of another format, or one with something that we do not know, is refused, never misread."""
    zk.commit([Create(node_paths.log_bucket(1)), Create(node_paths.log_batch(1), data)])
    zk.commit([Create(node_paths.snapshot(1), data)])
    reads = (lambda: list(event_log.read_log(zk)), lambda: snapshots.latest(zk), lambda: snapshots.base(zk, 1))
    for read in (*reads, lambda: event_log.last(zk)):
        with pytest.raises(SetupError) as caught:
            read()
        assert caught.value.code == "SX-LOG-FORMAT"
