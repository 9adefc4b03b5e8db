"""The log and its snapshots on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from coordinator import layout, log
from coordinator.events import AckTimedOut, Create, Evicted, Left, Set
from coordinator.leadership import Leadership
from coordinator.log import Intake
from coordinator.operations import SetIf
from coordinator.tree import Deposed, Tree
from sardonyx.config import Settings
from sardonyx.errors import InternalError, SetupError
from tests.services.coordination import leadership


@pytest.fixture
def leader(settings: Settings) -> Iterator[Leadership]:
    with leadership(settings) as won:
        yield won


@pytest.fixture
def tree(leader: Leadership) -> Tree:
    return leader.tree


def events(first: int, last: int) -> list[Intake]:
    return [Intake(AckTimedOut(at=float(n), peer=f"p{n}", assignment=n)) for n in range(first, last + 1)]


def test_entries_come_back_in_order(leader: Leadership, tree: Tree) -> None:
    """What is appended is read again, over buckets and transactions, from any number on, and from the end."""
    log.append(leader, 1, events(1, 2500))
    log.append(leader, 2501, events(2501, 2503))
    assert [n for n, _ in log.read_log(tree)] == list(range(1, 2504))
    assert next(log.read_log(tree, 1998)) == (1998, AckTimedOut(at=1998.0, peer="p1998", assignment=1998))
    assert [n for n, _ in log.tail(tree, 5)] == [2499, 2500, 2501, 2502, 2503]
    assert log.tail(tree, 0) == []
    assert len(log.tail(tree, 10_000)) == 2503
    assert log.last(tree) == 2503
    assert all(len(tree.children(f"/log/{bucket}")) <= layout.LOG_BUCKET for bucket in tree.children("/log"))


def test_an_empty_log(leader: Leadership, tree: Tree) -> None:
    """Before the first event there is nothing to read, and the checkpoint is 0."""
    assert list(log.read_log(tree)) == []
    assert log.tail(tree, 3) == []
    assert log.last(tree) == log.read_checkpoint(tree) == 0


def test_a_request_leaves_the_inbox_as_it_enters_the_log(leader: Leadership, tree: Tree) -> None:
    """Both or neither: if a request is gone already, its event is not appended either."""
    tree.request(Left(peer="p"))
    (name,) = tree.children(layout.INBOX)
    intake = Intake(Left(at=1.0, peer="p"), name, name.split("-")[1])
    log.append(leader, 1, [intake])
    assert tree.children(layout.INBOX) == []
    ((n, entry),) = log.read_entries(tree)
    assert (n, entry.event, entry.request) == (1, Left(at=1.0, peer="p"), name.split("-")[1])
    with pytest.raises(InternalError):
        log.append(leader, 2, [intake])
    assert log.last(tree) == 1


def test_a_deposed_leader_appends_nothing(leader: Leadership, tree: Tree) -> None:
    """After another took the epoch, neither entry nor removal happens."""
    tree.request(Evicted(peer="p"))
    (name,) = tree.children(layout.INBOX)
    tree.commit([SetIf(layout.EPOCH, b"{}", leader.version)])
    with pytest.raises(Deposed):
        log.append(leader, 1, [Intake(Evicted(peer="p"), name)])
    assert tree.children(layout.INBOX) == [name]
    assert log.last(tree) == 0


def test_a_missing_entry_is_said(leader: Leadership, tree: Tree) -> None:
    """A log with a hole is not replayed as if it were whole."""
    log.append(leader, 1, events(1, 5))
    tree.delete(layout.log_entry(3))
    with pytest.raises(InternalError, match="no entry 3") as caught:
        list(log.read_log(tree))
    assert caught.value.code == "SX-INTERNAL-LOG-GAP"


def test_another_versions_log_is_refused(leader: Leadership, tree: Tree) -> None:
    """An entry or a snapshot of another format is refused, never misread."""
    tree.commit([Create(layout.log_bucket(1)), Create(layout.log_entry(1), b'{"format":99,"event":{"kind":"new"}}')])
    tree.commit([Create(layout.snapshot(1), b'{"format":99,"pieces":7}')])
    for read in (lambda: list(log.read_log(tree)), lambda: log.load_snapshot(tree)):
        with pytest.raises(SetupError, match="format 99") as caught:
            read()
        assert caught.value.code == "SX-LOG-FORMAT"


# Snapshots


@pytest.mark.parametrize("size", [0, 1, log.PART, log.PART + 1, 3 * log.PART])
def test_a_snapshot_comes_back(leader: Leadership, tree: Tree, size: int) -> None:
    """Of whatever size, in whatever number of parts."""
    state = bytes(n % 251 for n in range(size))
    log.write_snapshot(leader, 7, state)
    assert log.load_snapshot(tree) == (7, state)


def test_the_last_two_snapshots_are_kept(leader: Leadership, tree: Tree) -> None:
    """Older ones go, and so does what an earlier leader left half-written."""
    tree.commit([Create(layout.snapshot(15)), Create(layout.snapshot_part(15, 0), b"half")])
    for n in (10, 20, 30):
        log.write_snapshot(leader, n, str(n).encode())
    assert tree.children(layout.SNAPSHOT) == ["0000000020", "0000000030"]
    assert log.load_snapshot(tree) == (30, b"30")


def test_a_half_written_snapshot_is_not_taken(leader: Leadership, tree: Tree) -> None:
    """Without its last write a snapshot is none; written again, it is one."""
    log.write_snapshot(leader, 10, b"ten")
    tree.commit([Create(layout.snapshot(20)), Create(layout.snapshot_part(20, 0), b"twe")])
    assert log.load_snapshot(tree) == (10, b"ten")
    log.write_snapshot(leader, 20, b"twenty")
    assert log.load_snapshot(tree) == (20, b"twenty")


def test_a_damaged_snapshot_is_not_taken(leader: Leadership, tree: Tree) -> None:
    """Parts that do not hash to what was noted are passed over for the snapshot before."""
    log.write_snapshot(leader, 10, b"ten")
    log.write_snapshot(leader, 20, b"twenty")
    tree.commit([Set(layout.snapshot_part(20, 0), b"twelve")])
    assert log.load_snapshot(tree) == (10, b"ten")


def test_compaction_keeps_what_a_takeover_may_need(leader: Leadership, tree: Tree) -> None:
    """Only whole buckets go, and only those behind the snapshot before the latest by more than asked."""
    log.append(leader, 1, events(1, 4500))
    assert log.compact(leader, keep=0) == 0
    log.write_snapshot(leader, 3200, b"a")
    log.write_snapshot(leader, 4400, b"b")
    assert log.compact(leader, keep=1500) == 999
    assert log.compact(leader, keep=0) == 2000
    numbers = [n for n, _ in log.read_log(tree)]
    assert numbers == list(range(3000, 4501))
    assert tree.children(layout.LOG) == ["0000003", "0000004"]


def test_an_entry_says_its_format(leader: Leadership, tree: Tree) -> None:
    """The bytes in ZooKeeper are plain JSON that says what it is."""
    log.append(leader, 1, events(1, 1))
    assert msgspec.json.decode(tree.read(layout.log_entry(1)) or b"") == {
        "format": 1,
        "event": {"kind": "ack-timed-out", "at": 1.0, "peer": "p1", "assignment": 1},
    }
