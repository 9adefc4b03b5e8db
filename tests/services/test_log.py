"""The log and its snapshots on a real ZooKeeper: what comes back, and that it holds wherever its writer breaks off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest

from coordinator import layout, log
from coordinator.events import FORMAT, AckTimedOut, Create, Delete, Evicted, JobSubmitted, Left, Set
from coordinator.leadership import Leadership, identity
from coordinator.log import Entry, Intake
from coordinator.operations import ENTRY_LIMIT, SetIf, weight
from coordinator.outcomes import Deposed
from coordinator.tree import Tree
from sardonyx.config import Settings
from sardonyx.errors import InternalError, SardonyxError, SetupError
from sardonyx.spec import JobSpec
from tests.services.coordination import leadership


@pytest.fixture
def tree(leader: Leadership) -> Tree:
    return leader.tree


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short buckets, batches and distances, so that a short log has many of each."""
    monkeypatch.setattr(layout, "LOG_BUCKET", 10)
    monkeypatch.setattr(log, "BATCH", 300)
    monkeypatch.setattr(log, "SPARSE", 30)


def events(first: int, last: int) -> list[Intake]:
    return [Intake(AckTimedOut(at=float(n), peer=f"p{n}", assignment=n)) for n in range(first, last + 1)]


def numbers(tree: Tree, first: int = 0) -> list[int]:
    """Of the entries that are read; each must be the one that was appended under its number."""
    found = list(log.read_log(tree, first))
    assert all(event == AckTimedOut(at=float(n), peer=f"p{n}", assignment=n) for n, event in found)
    return [n for n, _ in found]


def batches(tree: Tree) -> dict[int, bytes]:
    """Every node of the log, by the number in its name."""
    paths = [f"/log/{bucket}/{name}" for bucket in tree.children("/log") for name in tree.children(f"/log/{bucket}")]
    return {int(path[-10:]): data for path, data in tree.read_many(paths).items()}


class Broke(Exception):
    """The writer is gone."""


class Breaking(Leadership):
    """A leader that dies before its transaction number ``after + 1``."""

    def __init__(self, whole: Leadership, after: int) -> None:
        self.__dict__.update(whole.__dict__)
        self.left = after

    def begin(self, operations: object) -> Callable[[], None]:
        if self.left == 0:
            raise Broke
        self.left -= 1
        return super().begin(operations)


@contextmanager
def breaking(settings: Settings, after: int) -> Iterator[tuple[Leadership, Breaking]]:
    """In a deployment of its own: a leader, and the same one as it dies after so many transactions."""
    own = settings.model_copy(update={"deployment": f"{settings.deployment}-{after}"})
    with leadership(own) as won:
        yield won, Breaking(won, after)


# Entries


def test_entries_come_back_in_order(leader: Leadership, tree: Tree) -> None:
    """What is appended is read again, over buckets, batches and transactions, from any number on, and from the end."""
    log.append(leader, 1, events(1, 2500))
    log.append(leader, 2501, events(2501, 2503))
    assert numbers(tree) == list(range(1, 2504))
    for first in (1, 2, 999, 1000, 1998, 2500, 2501, 2502, 2503, 2504, 9999):
        assert numbers(tree, first) == list(range(first, 2504))
    assert [n for n, _ in log.tail(tree, 5)] == [2499, 2500, 2501, 2502, 2503]
    assert log.tail(tree, 0) == []
    assert len(log.tail(tree, 10_000)) == 2503
    assert log.last(tree) == 2503


def test_an_empty_log(leader: Leadership, tree: Tree) -> None:
    """Before the first event there is nothing to read, and the checkpoint is 0."""
    assert list(log.read_log(tree)) == []
    assert log.tail(tree, 3) == []
    assert log.last(tree) == log.read_checkpoint(tree) == 0
    assert log.base(tree, 7) is None
    log.append(leader, 1, [])
    assert log.last(tree) == 0


def test_what_is_appended_at_once_stands_in_few_nodes(leader: Leadership, tree: Tree) -> None:
    """Full batches, none over the limit, none across the end of a bucket, each named for its first entry."""
    log.append(leader, 1, events(1, 5000))
    found = batches(tree)
    assert len(found) < 20
    assert all(len(data) <= log.BATCH + 100 for data in found.values())
    for first, data in found.items():
        count = len(log.decode_batch(first, data))
        assert first // layout.LOG_BUCKET == (first + count - 1) // layout.LOG_BUCKET
        assert first + count in found or first + count == 5001


def test_an_entry_is_plain_json_that_says_its_format(leader: Leadership, tree: Tree) -> None:
    """The bytes in ZooKeeper can be read by people and tools; the first of each leadership says whose it is."""
    log.append(leader, 1, [Intake(AckTimedOut(at=1.0, peer="p", assignment=1), request="0f1e"), *events(2, 2)])
    assert msgspec.json.decode(tree.read(layout.log_batch(1)) or b"") == {
        "format": FORMAT,
        "entries": [
            {
                "event": {"kind": "ack-timed-out", "at": 1.0, "peer": "p", "assignment": 1},
                "request": "0f1e",
                "leader": identity(),
            },
            {"event": {"kind": "ack-timed-out", "at": 2.0, "peer": "p2", "assignment": 2}},
        ],
    }


def submission(size: int) -> Intake:
    """An entry of just so many bytes."""
    entry = Entry(JobSubmitted(at=1.0, job="j", spec=JobSpec(name="j", workflow=[], catalog=[], doc="x")))
    doc = "x" * (size - len(msgspec.json.encode(entry)) + 1)
    return Intake(msgspec.structs.replace(entry.event, spec=JobSpec(name="j", workflow=[], catalog=[], doc=doc)))


def test_batches_at_the_limit(leader: Leadership, tree: Tree) -> None:
    """Entries that just fit share a node; one byte more and they do not; a larger one stands alone, between the others."""
    half = log.BATCH // 2
    leader.unheard_of = ""  # the first entry would be longer by it
    log.append(leader, 1, [submission(half - 1), submission(half)])
    log.append(leader, 3, [submission(half), submission(half + 1)])
    log.append(leader, 5, [*events(5, 5), submission(2 * ENTRY_LIMIT), *events(7, 7)])
    assert list(batches(tree)) == [1, 3, 4, 5, 6, 7]
    assert [n for n, _ in log.read_log(tree)] == list(range(1, 8))


def test_an_entry_that_is_too_large_is_refused_by_name(leader: Leadership, tree: Tree) -> None:
    """Before anything is written, far below the size at which ZooKeeper would drop the connection."""
    with pytest.raises(InternalError, match=r"entry 3 has 131,073 bytes; 131,072 is the most") as caught:
        log.append(leader, 1, [*events(1, 2), submission(2 * ENTRY_LIMIT + 1)])
    assert caught.value.code == "SX-INTERNAL-ENTRY-SIZE"
    assert log.last(tree) == 0
    assert tree.connected


def test_transactions_of_an_append_are_small(leader: Leadership, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is appended, no transaction comes near ZooKeeper's limit, the removals of the requests counted in."""
    sizes = []

    def note(operations: list) -> Callable[[], None]:
        sizes.append(sum(map(weight, operations)))
        return lambda: None

    monkeypatch.setattr(leader, "begin", note)
    name = "ack-" + 32 * "0" + "-0000000001"
    log.append(leader, 1, [Intake(Left(peer="p"), name, 32 * "0") for _ in range(5000)])
    log.append(leader, 1, [submission(2 * ENTRY_LIMIT) for _ in range(20)])
    assert max(sizes) <= 256 * 1024
    assert len(sizes) > 10


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


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("wrong", [1, 7, 20, 33, 60])
def test_what_is_behind_a_refused_piece_is_refused_too(
    leader: Leadership, tree: Tree, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """Several pieces are under way at once; when ZooKeeper refuses one, none of those sent behind it stands either."""
    monkeypatch.setattr(log, "PIECE", 500)
    sent = []
    begin = leader.begin
    monkeypatch.setattr(leader, "begin", lambda operations: sent.append(operations) or begin(operations))
    intakes = events(1, 60)
    intakes[wrong - 1] = msgspec.structs.replace(intakes[wrong - 1], inbox="was-never-there")
    given = []
    with pytest.raises(InternalError):
        given += (len(piece) for piece in log.appending(leader, 1, intakes))
    assert log.last(tree) == sum(given) < wrong
    assert numbers(tree) == list(range(1, sum(given) + 1))
    assert len(sent) - len(given) > 1 or wrong > 50, "nothing was under way behind it"


def test_a_deposed_leader_appends_nothing(leader: Leadership, tree: Tree) -> None:
    """After another took the epoch, neither entry nor removal happens."""
    tree.request(Evicted(peer="p"))
    (name,) = tree.children(layout.INBOX)
    tree.commit([SetIf(layout.EPOCH, b"{}", leader.version)])
    with pytest.raises(Deposed):
        log.append(leader, 1, [Intake(Evicted(peer="p"), name)])
    assert tree.children(layout.INBOX) == [name]
    assert log.last(tree) == 0


def test_an_append_that_breaks_off_anywhere(settings: Settings) -> None:
    """What stands in the log is out of the inbox, the rest is in it, and a successor goes on behind it."""
    broke = True
    after = 0
    while broke:
        with breaking(settings, after) as (whole, dying):
            wanted = [submission(60_000) for _ in range(9)]
            for intake in wanted:
                whole.tree.request(msgspec.structs.replace(intake.event, at=0.0))
            names = sorted(whole.tree.children(layout.INBOX), key=lambda name: name[-10:])
            intakes = [Intake(i.event, name, name.split("-")[1]) for i, name in zip(wanted, names, strict=True)]
            try:
                log.append(dying, 1, intakes)
                broke = False
            except Broke:
                pass
            last = log.last(whole.tree)
            assert sorted(whole.tree.children(layout.INBOX), key=lambda name: name[-10:]) == names[last:]
            log.append(whole, last + 1, intakes[last:])
            assert [entry.request for _, entry in log.read_entries(whole.tree)] == [i.request for i in intakes]
            assert whole.tree.children(layout.INBOX) == []
        after += 1
    assert after > 2


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("missing", [0, 1, -1])
def test_a_missing_batch_is_said(leader: Leadership, tree: Tree, missing: int) -> None:
    """A log with a hole, also at its beginning, is not replayed as if it were whole; an end that is gone is for its
    reader to see.
    """
    log.append(leader, 1, events(1, 50))
    firsts = list(batches(tree))
    n = firsts[missing]
    tree.delete(layout.log_batch(n))
    if missing == -1:
        assert numbers(tree)[-1] == n - 1
        return
    with pytest.raises(InternalError, match=f"no entry {n}") as caught:
        list(log.read_log(tree))
    assert caught.value.code == "SX-INTERNAL-LOG-GAP"
    assert numbers(tree, firsts[2]) == list(range(firsts[2], 51))


@pytest.mark.usefixtures("small")
def test_two_entries_of_one_number_are_not_read(leader: Leadership, tree: Tree) -> None:
    """A batch that begins inside another one was not written by a leader, and is no history."""
    log.append(leader, 1, events(1, 9))
    first, second, *_ = batches(tree)
    tree.commit([Create(layout.log_batch(second - 1), tree.read(layout.log_batch(first)) or b"")])
    with pytest.raises(InternalError) as caught:
        list(log.read_log(tree))
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
def test_another_versions_log_is_refused(leader: Leadership, tree: Tree, data: bytes) -> None:
    """An entry or a snapshot of another format, or one with something that we do not know, is refused, never misread."""
    tree.commit([Create(layout.log_bucket(1)), Create(layout.log_batch(1), data)])
    tree.commit([Create(layout.snapshot(1), data)])
    reads = (lambda: list(log.read_log(tree)), lambda: log.load_snapshot(tree), lambda: log.base(tree, 1))
    for read in (*reads, lambda: log.last(tree)):
        with pytest.raises(SetupError) as caught:
            read()
        assert caught.value.code == "SX-LOG-FORMAT"


# Snapshots


@pytest.mark.parametrize("size", [0, 1, log.PART, log.PART + 1, 3 * log.PART, 20 * log.PART + 7])
def test_a_snapshot_comes_back(leader: Leadership, tree: Tree, size: int) -> None:
    """Of whatever size, in whatever number of parts."""
    state = bytes(n % 251 for n in range(size))
    log.write_snapshot(leader, 7, state)
    assert log.load_snapshot(tree) == log.base(tree, 7) == (7, state)
    assert log.base(tree, 6) is None


def test_a_snapshot_counts_when_what_it_holds_stands(leader: Leadership, tree: Tree) -> None:
    """Its parts are written beside other work; before the tree is whole up to it, the one before it is taken."""
    log.write_snapshot(leader, 3, b"before")
    stands = False
    writing = log.writing_snapshot(leader, 7, b"n" * (6 * log.PART), lambda: stands)
    for _ in range(20):
        next(writing)
        assert log.load_snapshot(tree) == (3, b"before")
    assert len(tree.children(layout.snapshot(7))) == 6
    stands = True
    for _ in writing:
        pass
    assert log.load_snapshot(tree) == (7, b"n" * (6 * log.PART))


def test_the_last_two_snapshots_are_kept(leader: Leadership, tree: Tree) -> None:
    """Older ones go, and so does what an earlier leader left half-written."""
    tree.commit([Create(layout.snapshot(15)), Create(layout.snapshot_part(15, 0), b"half")])
    for n in (10, 20, 30):
        log.write_snapshot(leader, n, str(n).encode())
    assert tree.children(layout.SNAPSHOT) == ["0000000020", "0000000030"]
    assert log.load_snapshot(tree) == (30, b"30")


def test_sparse_snapshots_are_kept(leader: Leadership, tree: Tree) -> None:
    """The first one at or behind every 10,000 entries stays, and leads to every moment behind it."""
    written = [9_000, 9_999, 10_001, 10_500, 20_000, 29_999, 45_000, 46_000, 47_000, 48_000]
    for n in written:
        log.write_snapshot(leader, n, str(n).encode())
    kept = [10_001, 20_000, 45_000, 47_000, 48_000]
    assert log.complete_snapshots(tree) == kept
    for n in (10_000, 10_001, 19_999, 20_000, 44_999, 45_000, 47_500, 99_999):
        nearest = max((found for found in kept if found <= n), default=None)
        assert log.base(tree, n) == (None if nearest is None else (nearest, str(nearest).encode()))


def test_a_snapshot_that_breaks_off_anywhere(settings: Settings) -> None:
    """At every moment there is a whole one: the old or the new. Written again by a successor it is whole."""
    new = b"n" * (2 * log.PART + 1)
    broke = True
    after = 0
    while broke:
        with breaking(settings, after) as (whole, dying):
            for n in (10, 20):
                log.write_snapshot(whole, n, str(n).encode())
            try:
                log.write_snapshot(dying, 30, new)
                broke = False
            except Broke:
                pass
            assert log.load_snapshot(whole.tree) in ((20, b"20"), (30, new))
            assert log.base(whole.tree, 29) == (20, b"20")
            log.write_snapshot(whole, 30, new)
            log.write_snapshot(whole, 40, b"40")
            assert whole.tree.children(layout.SNAPSHOT) == ["0000000030", "0000000040"]
            assert log.base(whole.tree, 39) == (30, new)
        after += 1
    assert after > 5


def test_a_damaged_snapshot_is_not_taken(leader: Leadership, tree: Tree) -> None:
    """Parts that do not hash to what was noted, or are missing, are passed over for the snapshot before."""
    log.write_snapshot(leader, 10, b"ten")
    log.write_snapshot(leader, 20, b"twenty")
    tree.commit([Set(layout.snapshot_part(20, 0), b"twelve")])
    assert log.load_snapshot(tree) == (10, b"ten")
    tree.commit([Delete(layout.snapshot_part(20, 0))])
    assert log.load_snapshot(tree) == (10, b"ten")


def test_a_snapshot_that_goes_while_it_is_read(leader: Leadership, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader takes what has come instead."""
    log.write_snapshot(leader, 10, b"ten")
    read, replaced = tree.read, threading.Event()

    def reading(path: str, watch: object = None) -> bytes | None:
        if path == layout.snapshot(10) and not replaced.is_set():
            replaced.set()
            for n in (20, 30):
                log.write_snapshot(leader, n, str(n).encode())
        return read(path, watch)

    monkeypatch.setattr(tree, "read", reading)
    assert log.load_snapshot(tree) == (30, b"30")


# Compaction


def test_compaction_keeps_what_is_needed(leader: Leadership, tree: Tree) -> None:
    """It goes up to a sparse snapshot that is behind the latest but one by as much as asked, and no further."""
    for first in range(1, 45_001, 1500):  # as the loop does: a snapshot stands at the end of a batch
        log.append(leader, first, events(first, first + 1499))
        log.write_snapshot(leader, first + 1499, str(first + 1499).encode())
    assert log.complete_snapshots(tree) == [10_500, 21_000, 30_000, 40_500, 43_500, 45_000]
    assert log.compact(leader, keep=33_001) == 0
    assert log.begins(tree) == 1
    assert log.compact(leader, keep=33_000) == 10_500
    assert numbers(tree) == list(range(10_501, 45_001))
    assert numbers(tree, 44_000) == list(range(44_000, 45_001))
    assert log.compact(leader, keep=10_000) == 19_500
    assert numbers(tree) == list(range(30_001, 45_001))
    assert log.complete_snapshots(tree) == [30_000, 40_500, 43_500, 45_000]
    assert tree.children(layout.LOG)[0] == "0000030"
    assert log.base(tree, 30_000) == (30_000, b"30000")
    assert log.compact(leader, keep=10_000) == 0
    for read in (lambda: log.base(tree, 29_999), lambda: log.base(tree, 3)):
        with pytest.raises(SardonyxError, match="it begins at 30001") as caught:
            read()
        assert caught.value.code == "SX-LOG-COMPACTED"
    log.append(leader, 45_001, events(45_001, 45_002))
    assert log.last(tree) == 45_002


@pytest.mark.usefixtures("small")
def test_nothing_is_removed_for_a_snapshot_that_cannot_be_read(leader: Leadership, tree: Tree) -> None:
    """The one before it is taken instead."""
    fill(leader)
    tree.commit([Set(layout.snapshot_part(60, 0), b"damaged")])
    log.compact(leader, keep=0)
    assert numbers(tree) == list(range(31, 91))
    assert log.base(tree, 70) == (31 - 1, b"30")


def fill(leader: Leadership) -> None:
    """90 entries, with snapshots at 30, 60, 80 and 90."""
    for n in range(5, 95, 5):
        log.append(leader, n - 4, events(n - 4, n))
        if n % 10 == 0:
            log.write_snapshot(leader, n, str(n).encode())
    assert log.complete_snapshots(leader.tree) == [30, 60, 80, 90]


def every_moment_can_be_shown(tree: Tree) -> None:
    """From the base of each moment that is kept the log leads to it; of others it is said that they are not kept."""
    first = log.begins(tree)
    for n in range(1, 91):
        if n < first - 1:
            with pytest.raises(SardonyxError) as caught:
                log.base(tree, n)
            assert caught.value.code == "SX-LOG-COMPACTED"
            continue
        found = log.base(tree, n)
        behind = 1 if found is None else found[0] + 1
        if found is not None:
            assert found[1] == str(found[0]).encode()
        assert [number for number in numbers(tree, behind) if number <= n] == list(range(behind, n + 1))


@pytest.mark.usefixtures("small")
def test_a_compaction_that_breaks_off_anywhere(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its readers it is done or not begun, never half; the next one finishes it."""
    monkeypatch.setattr(log, "chunked", lambda groups: (list(group) for group in groups))  # each removal by itself
    broke = True
    after = 0
    while broke:
        with breaking(settings, after) as (whole, dying):
            fill(whole)
            try:
                log.compact(dying, keep=20)
                broke = False
            except Broke:
                pass
            first = log.begins(whole.tree)
            assert first == (1 if after == 0 else 61)
            assert numbers(whole.tree) == list(range(first, 91))
            assert log.last(whole.tree) == 90
            every_moment_can_be_shown(whole.tree)
            assert log.load_snapshot(whole.tree) == (90, b"90")
            log.compact(whole, keep=20)
            assert log.begins(whole.tree) == next(iter(batches(whole.tree))) == 61
            assert log.complete_snapshots(whole.tree) == [60, 80, 90]
            assert whole.tree.children(layout.LOG) == [f"{n:07d}" for n in range(6, 10)]
        after += 1
    assert after > 10


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("taken", [0, 1, 7, 14, 40, 75])
def test_a_reader_while_the_log_is_compacted(settings: Settings, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    """It reads on to the end, or hears that the rest was compacted: what it has read is right in any case."""
    monkeypatch.setattr(log, "chunked", lambda groups: (list(group) for group in groups))
    outcomes = set()
    for after in range(1, 30, 4):
        with breaking(settings, after) as (whole, dying):
            fill(whole)
            reader = log.read_log(whole.tree, 1)
            found = [next(reader)[0] for _ in range(taken)]
            with suppress(Broke):
                log.compact(dying, keep=20)
            try:
                found += [n for n, _ in reader]
                outcomes.add("read")
                first = 61 if taken == 0 else 1  # it begins to read with its first entry
                assert found == list(range(first, 91))
            except SardonyxError as error:
                outcomes.add(error.code)
                assert found == list(range(1, len(found) + 1))
    assert outcomes <= {"read", "SX-LOG-COMPACTED"}
    assert ("read" in outcomes) or taken < 60
