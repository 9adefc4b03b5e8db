"""The log on a real ZooKeeper: what comes back, and that it holds wherever its writer breaks off."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.loop import event_log, snapshots
from coordinator.loop.election import Leadership, identity
from coordinator.loop.limits import Limits
from coordinator.loop.log_writer import Appended, LogWriter, PendingEntry, append
from sardonyx.core import node_paths
from sardonyx.core.effects import Create
from sardonyx.core.errors import InternalError, SetupError
from sardonyx.core.events import FORMAT, RULES, AckTimedOut, Left
from sardonyx.zookeeper.session import ZooKeeperSession
from tests.services.entries import SMALL, batches, events, numbers


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
